package handoff

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sort"
	"sync"

	"golang.org/x/sync/errgroup"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// A sighting is one pane with an agent in it, as one look at the world shows
// it. It advertises; whoever types looks again.
type sighting struct {
	pane     terminal.Pane
	proc     agent.Process
	adapter  agent.Adapter
	identity agent.Identity
	seen     bool // reading is of a screen captured in this survey
	reading  agent.Reading
	screen   *terminal.Screen // what reading is of
	warnings []string
}

func (s *sighting) id() string { return terminal.ID(string(s.proc.Agent), s.pane, s.proc.Inc.PID) }

// survey looks at every pane of the configured sockets once: one listing, one
// capture of all, one walk over the process tree, no settling wait.
//
// Panes that the last survey met are looked for in /proc while tmux lists and
// captures; those that are new or changed, after it.
func (d *Desk) survey(ctx context.Context, scan bool) ([]*sighting, []string, error) {
	var known []terminal.Pane
	if scan {
		known = d.Tmux.Known()
	}
	early := aside(func() map[string]*sighting { return d.find(ctx, known) })
	defer early()
	listing, screens, err := d.list(ctx, scan)
	if err != nil {
		return nil, nil, err
	}
	at := early()
	var problems []string
	for _, e := range listing.Errors {
		problems = append(problems, e.Error())
	}
	before := map[string]terminal.Pane{}
	for _, p := range known {
		before[p.Key()] = p
	}
	var fresh, unseen []terminal.Pane
	for _, p := range listing.Panes {
		if k, ok := before[p.Key()]; !ok || k.PID != p.PID || k.TTY != p.TTY || k.Dead != p.Dead {
			fresh = append(fresh, p)
		}
		if _, ok := screens[p.Key()]; scan && !ok {
			unseen = append(unseen, p)
		}
	}
	captured := aside(func() error { return d.capture(ctx, unseen, screens) })
	defer captured()
	for key, s := range d.find(ctx, fresh) {
		at[key] = s
	}
	if err := captured(); err != nil {
		problems = append(problems, fault.CleanLine(err.Error()))
	}
	found := d.readAll(listing.Panes, at, screens)
	sort.Slice(found, func(i, j int) bool { return found[i].id() < found[j].id() })
	return found, problems, ctx.Err()
}

func (d *Desk) list(ctx context.Context, scan bool) (terminal.Listing, map[string]terminal.Screen, error) {
	if scan {
		return d.Tmux.Survey(ctx)
	}
	listing, err := d.Tmux.Panes(ctx)
	return listing, nil, err
}

// capture adds the screens of panes.
func (d *Desk) capture(ctx context.Context, panes []terminal.Pane, screens map[string]terminal.Screen) error {
	if len(panes) == 0 {
		return nil
	}
	more, err := d.Tmux.Capture(ctx, panes)
	maps.Copy(screens, more)
	return err
}

// readAll joins what was found in the listed panes with their screens.
func (d *Desk) readAll(panes []terminal.Pane, at map[string]*sighting, screens map[string]terminal.Screen) []*sighting {
	var found []*sighting
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, p := range panes {
		s := at[p.Key()]
		if s == nil {
			continue
		}
		s.pane = p
		found = append(found, s)
		g.Go(func() error {
			var screen *terminal.Screen
			if one, ok := screens[p.Key()]; ok {
				screen = &one
			}
			s.read(screen)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	return found
}

// find gives, by Pane.Key, the panes that hold exactly one agent, with what its
// own files say. All of it reads /proc and files.
func (d *Desk) find(ctx context.Context, panes []terminal.Pane) map[string]*sighting {
	var (
		mu  sync.Mutex
		out = map[string]*sighting{}
	)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, p := range panes {
		if p.Dead {
			continue
		}
		g.Go(func() error {
			s, err := d.findIn(gctx, p)
			if err == nil {
				s.identify(gctx)
				mu.Lock()
				out[p.Key()] = s
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	return out
}

// findIn gives the agent of one pane, whichever adapter knows it.
func (d *Desk) findIn(ctx context.Context, p terminal.Pane) (*sighting, error) {
	err := error(agent.ErrNoAgent)
	for _, a := range d.Agents {
		proc, e := a.Find(ctx, p)
		if e == nil {
			return &sighting{pane: p, proc: proc, adapter: a}, nil
		}
		if !errors.Is(e, agent.ErrNoAgent) {
			err = e
		}
	}
	return nil, err
}

// judge adds what the screen, if there is one of this very pane and process,
// and the agent's own files say.
func (d *Desk) judge(ctx context.Context, s *sighting, screen *terminal.Screen) {
	s.read(screen)
	s.identify(ctx)
}

// read adds what the screen says.
func (s *sighting) read(screen *terminal.Screen) {
	if screen == nil || screen.Pane.PID != s.pane.PID {
		s.reading.State = agent.Unknown
		return
	}
	s.seen = true
	s.pane.Dead, s.pane.InMode = screen.Pane.Dead, screen.Pane.InMode
	s.reading = s.adapter.Read(s.proc.Version, *screen)
	s.screen = screen
}

// glimpse captures a pane once and reads its screen, and leaves the sighting as
// it is.
func (d *Desk) glimpse(ctx context.Context, s *sighting) (terminal.Screen, agent.Reading, error) {
	pctx, cancel := probe(ctx)
	defer cancel()
	screen, err := d.Tmux.CaptureOne(pctx, s.pane)
	if err != nil {
		return screen, agent.Reading{}, err
	}
	return screen, s.adapter.Read(s.proc.Version, screen), nil
}

// identify adds what the agent's own files say.
func (s *sighting) identify(ctx context.Context) {
	id, err := s.adapter.Identify(ctx, s.proc)
	if err != nil {
		id = agent.Identity{State: agent.Unavailable, Activity: agent.ActivityUnknown, Reason: fault.CleanLine(err.Error())}
	}
	s.identity = id
	if s.proc.Class == agent.Untested {
		s.warnings = append(s.warnings, fmt.Sprintf("%s %s has no recorded fixtures; each action is allowed only as far as its screens and records pass the structural proofs", s.proc.Agent, s.proc.Version))
	}
}

// activity joins screen and records conservatively: idle only when nothing
// says otherwise, working when anything does.
func (s *sighting) activity() (state, reason string) {
	switch {
	case s.reading.State == agent.Approval:
		return "awaiting_approval", "an approval dialog is open"
	case s.reading.State == agent.Question:
		return "awaiting_answer", "a questionnaire is open"
	case s.identity.Activity == agent.ActivityWorking:
		return "working", "the agent's records show an open turn"
	case s.reading.State == agent.Working:
		return "working", "the screen shows work"
	case s.pane.InMode:
		return "unknown", closedPane
	case s.reading.State == agent.Idle:
		if s.identity.Activity == agent.ActivityUnknown {
			return "idle", "the screen is idle; the records of this pane cannot be told"
		}
		return "idle", "screen and records are idle"
	}
	return "unknown", "the screen shows " + string(s.reading.State)
}
