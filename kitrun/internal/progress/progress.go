// Package progress shows an operator what a worker does while it runs: on a
// terminal one line that is drawn again and again, elsewhere a line for each step
// and one every ten seconds, and on request every event as a line of JSON.
//
// It never holds the run up: events wait in a queue, and when whoever reads the
// output is slow, those between two steps are dropped. Names of events come out of
// the container and are cleaned before a terminal sees them.
//
// On a terminal the line shares stderr with the log: Log gives a writer that lifts
// the line, writes, and puts it back.
package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/term"

	"drawbridge/kitrun/internal/worker"
)

// Mode is a way to show progress.
type Mode int

// The modes.
const (
	Lines Mode = iota
	Terminal
	JSON
)

// Bounds.
const (
	maxQueue   = 1000
	drawEvery  = 100 * time.Millisecond // on a terminal, at the most often
	tickEvery  = time.Second            // elapsed time goes on without events
	lineEvery  = 10 * time.Second
	wideEnough = 40 // columns of a terminal that does not say its width
)

// ModeFor chooses for a stderr: a terminal that can go back to the start of a line
// gets one, unless events were asked for.
func ModeFor(stderr io.Writer, events bool) Mode {
	switch f, ok := stderr.(*os.File); {
	case events:
		return JSON
	case ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb":
		return Terminal
	}
	return Lines
}

// Lent is what the broker has counted of a run so far.
type Lent struct {
	Requests     int64 `json:"requests"`
	Refused      int64 `json:"refused"` // not what the capability allows
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Options of a Progress. Out is required.
type Options struct {
	Mode Mode
	Out  io.Writer // stderr; for JSON stdout

	// Lent is asked about once a second; ok is false when nothing is known. nil:
	// nothing is lent.
	Lent func(ctx context.Context) (l Lent, ok bool)

	Columns func() int       // of the terminal; nil asks Out
	Now     func() time.Time // nil: time.Now
}

// Progress shows one run.
type Progress struct {
	opt   Options
	since time.Time
	wake  chan struct{} // holds a token when something was queued

	mu    sync.Mutex // guards all below
	queue []worker.Event

	out   sync.Mutex // held while Out is written; guards all below
	last  worker.Event
	lent  Lent
	known bool   // lent is
	shown string // the line that stands on the terminal
	wrote time.Time
}

// New makes a Progress. The time of the run counts from here.
func New(o Options) *Progress {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Columns == nil {
		o.Columns = func() int { return columns(o.Out) }
	}
	p := &Progress{opt: o, since: o.Now(), wake: make(chan struct{}, 1)}
	p.last = worker.Event{InputTokens: -1, OutputTokens: -1, ObservedBytes: -1, ObservedEntries: -1}
	return p
}

func columns(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
	}
	return wideEnough
}

// Event takes in what happened; it does not block. It is worker.Deps.Progress.
func (p *Progress) Event(e worker.Event) {
	p.mu.Lock()
	if len(p.queue) >= maxQueue {
		p.queue = p.thin()
	}
	p.queue = append(p.queue, e)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// thin drops what is between two steps; of a run there are few steps.
func (p *Progress) thin() []worker.Event {
	return slices.DeleteFunc(p.queue, func(e worker.Event) bool {
		return e.State == worker.StateRunning
	})
}

// Run shows events until ctx is done, and what is queued then. It leaves no line
// on the terminal.
func (p *Progress) Run(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.take()
			p.lift()
			return nil
		case <-p.wake:
			p.take()
			if p.opt.Mode == Terminal { // a burst of events is one drawing
				select {
				case <-time.After(drawEvery):
				case <-ctx.Done():
				}
			}
		case <-tick.C:
			p.count(ctx)
			p.tick()
		}
	}
}

// take shows what is queued.
func (p *Progress) take() {
	p.mu.Lock()
	events := p.queue
	p.queue = nil
	p.mu.Unlock()
	p.out.Lock()
	defer p.out.Unlock()
	for _, e := range events {
		step := e.State != p.last.State
		p.last = e
		switch p.opt.Mode {
		case JSON:
			p.json()
		case Lines:
			if step {
				p.line()
			}
		}
	}
	if p.opt.Mode == Terminal && len(events) > 0 {
		p.draw()
	}
}

func (p *Progress) tick() {
	p.out.Lock()
	defer p.out.Unlock()
	switch p.opt.Mode {
	case Terminal:
		p.draw()
	case Lines:
		if p.opt.Now().Sub(p.wrote) >= lineEvery && p.last.State != "" {
			p.line()
		}
	}
}

// count asks what the broker has counted.
func (p *Progress) count(ctx context.Context) {
	if p.opt.Lent == nil {
		return
	}
	lent, ok := p.opt.Lent(ctx)
	p.out.Lock()
	defer p.out.Unlock()
	if ok {
		p.lent, p.known = lent, true
	}
}

func (p *Progress) json() {
	type event worker.Event
	line := struct {
		Event string `json:"event"`
		event
		Lent *Lent `json:"lent,omitempty"`
	}{Event: "progress", event: event(p.last)}
	if p.known {
		line.Lent = &p.lent
	}
	if data, err := json.Marshal(line); err == nil {
		_, _ = p.opt.Out.Write(append(data, '\n')) // whoever does not read on has seen enough
	}
}

func (p *Progress) line() {
	p.wrote = p.opt.Now()
	fmt.Fprintf(p.opt.Out, "kitrun: %s\n", p.text())
}

// draw puts the line on the terminal in the place of the one that stands there.
func (p *Progress) draw() {
	text := cut(p.text(), p.opt.Columns()-spare)
	if text != p.shown {
		p.shown = text
		_, _ = io.WriteString(p.opt.Out, startOfLine+text)
	}
}

func (p *Progress) lift() {
	p.out.Lock()
	defer p.out.Unlock()
	if p.shown != "" {
		p.shown = ""
		_, _ = io.WriteString(p.opt.Out, startOfLine)
	}
}

// spare is how many columns stay free: for the cursor, and for the ^C that the
// terminal echoes, so that the line never breaks in two.
const spare = 3

// startOfLine goes to the start of the line and clears it.
const startOfLine = "\r\x1b[K"
