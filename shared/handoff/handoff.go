// Package handoff is the work itself: what a controller asks of a coding agent
// in a terminal, done so that text is typed at most once, into the pane and
// process that were proven, and every end is noticed once.
//
// bridge calls a Desk to act: one method for each tool. watchd calls it to
// observe: Monitor follows one Turn, Lookout one Terminal Watch, Recover settles
// what a dead program left.
//
// # What is written when
//
// A submission passes prepared → (mark) → text_injected → enter_dispatched →
// agent_accepted, each step committed before the next effect (core §5.2). After
// the mark nothing is ever typed a second time by this package: what cannot be
// proven is uncertain, and a person decides. The pane is held by the kernel's
// lock and by a lease (hold); identity is read again before every key.
//
// Crash points besides those of the Store: terminal_recorded, text_pasted,
// enter_pressed, command_pasted, command_entered, interrupt_sent,
// approval_key_sent, interaction_stroke.
//
// # What is never done
//
// Nothing is typed for an observation. A draft in the composer that is not ours
// is never cleared. No completion is taken from a screen.
package handoff

import (
	"context"
	"log/slog"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/callback"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds (core §14).
const (
	DefaultInactivity = 60.0    // minutes
	DefaultHard       = 720.0   // minutes
	DefaultRetention  = 10080.0 // minutes
	MaxRequest        = 32768   // bytes

	probeTime      = 5 * time.Second        // one look at a terminal or agent file
	acceptWait     = 5 * time.Second        // for acceptance after Enter
	acceptPoll     = 50 * time.Millisecond  // at least this often
	standsWait     = 15 * time.Second       // after Enter, until a draft that stands proves that it was not taken
	standsPoll     = 500 * time.Millisecond // between looks at such a draft
	lateWait       = 3 * time.Second        // for the record, once such a draft has left
	landWait       = 10 * time.Second       // for what was typed to be shown: a busy machine paints late
	settleTimeout  = 2 * time.Second        // for a screen to come to rest; a monitor waits probeTime
	settleGap      = 121 * time.Millisecond // between two equal looks
	draftPoll      = 30 * time.Millisecond  // between looks at a draft
	secondReading  = 20 * time.Millisecond  // between two equal completion readings
	retryWait      = 45 * time.Second       // for the outcome of a retried callback
	acceptLeaseTTL = 15 * time.Second       // of the lease on one text in one home
)

// Untested says what may be done with an agent version that has no fixtures.
type Untested string

// Policies for untested versions (design, override 6).
const (
	UntestedObserve Untested = "observe"
	UntestedSend    Untested = "send"
	UntestedAll     Untested = "all"
)

// Options of a Desk. Store, Tmux, Agents, RuntimeDir and Log are required.
type Options struct {
	Store      *store.Store
	Leases     *store.Keeper // its Run is an actor of the program
	Tmux       *terminal.Tmux
	Agents     []agent.Adapter
	Files      *files.Watcher  // nil: polling alone
	Bell       *store.Doorbell // nil: polling alone
	RuntimeDir string

	Controller string          // trusted controller session
	Route      *callback.Route // nil: record only, no callbacks

	Policy *Policy // nil: nothing is approved without asking

	Untested   Untested // "": send
	Inactivity float64  // minutes; 0: DefaultInactivity
	Hard       float64  // minutes; 0: DefaultHard
	Retention  float64  // minutes; 0: DefaultRetention

	// Siblings gives the state (up, standby, failed) of watchd and outboxd; nil
	// where nobody supervises them.
	Siblings func() map[string]string

	Now   func() time.Time
	NewID func() string
	Log   *slog.Logger
}

// Desk does the work. Its methods may be called from several goroutines.
type Desk struct {
	Options
}

// New makes a Desk.
func New(o Options) *Desk {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = o.Store.NewID
	}
	if o.Untested == "" {
		o.Untested = UntestedSend
	}
	o.Inactivity = orDefault(o.Inactivity, DefaultInactivity)
	o.Hard = orDefault(o.Hard, DefaultHard)
	o.Retention = orDefault(o.Retention, DefaultRetention)
	return &Desk{Options: o}
}

func (d *Desk) now() time.Time { return d.Now() }

// adapter gives the adapter of a stored agent name, or nil.
func (d *Desk) adapter(kind string) agent.Adapter {
	for _, a := range d.Agents {
		if string(a.Kind()) == kind {
			return a
		}
	}
	return nil
}

// routeJSON is the route that a new Turn or Watch keeps for life; nil without one.
func (d *Desk) routeJSON() []byte {
	if d.Route == nil {
		return nil
	}
	return d.Route.Canonical()
}

// probe bounds one look at the world.
func probe(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, probeTime)
}

func orDefault(v, def float64) float64 {
	if v > 0 {
		return v
	}
	return def
}
