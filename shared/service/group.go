package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/run"

	"drawbridge/shared/fault"
)

// Bounds of a stop.
const (
	DefaultDrain = 20 * time.Second
	lateGrace    = time.Second // between "stop at once" and giving up
	stackBytes   = 1 << 20
)

// ErrDrain is in the chain of what Run returns when the drain deadline passed
// with actors unfinished. Its code is drain_expired, exit status 70.
var ErrDrain error = fault.New(fault.DrainExpired, "stop: the drain deadline passed with work unfinished")

// Group runs named actors until the first of them returns, then stops the others
// in the order of Add: each is told only when the one before it has ended. The
// drain deadline starts with the first end; when it passes, all that are left
// are told at once, get one second, and Run returns without them, with their
// stacks on Stacks.
//
// SIGINT, SIGTERM and SIGHUP are a clean stop. The zero Group is usable.
type Group struct {
	Log   *slog.Logger  // nil discards
	Drain time.Duration // 0 means DefaultDrain

	// IgnoreSecondSignal makes a second signal change nothing: some Hosts send
	// several. Without it the second one is the drain deadline.
	IgnoreSecondSignal bool

	// Sibling leaves SIGINT and SIGHUP without effect: a program with a lifeline
	// is stopped by that or by SIGTERM, and a terminal's interrupt is meant for
	// its owner. AddLifeline sets it.
	Sibling bool

	// Stopping, when set, is called once when the stop begins.
	Stopping func()

	Stacks io.Writer // nil means os.Stderr

	actors []actor
}

type actor struct {
	name string
	run  func(context.Context) error
}

// errStop is the cause of an actor's context when the group stops.
var errStop = errors.New("the program stops")

// Add appends an actor. run blocks until its context is done or its work is, and
// returns only when everything it started has ended.
func (g *Group) Add(name string, run func(ctx context.Context) error) {
	g.actors = append(g.actors, actor{name, run})
}

// Run starts all actors and blocks until they have ended or the drain deadline
// has passed. The result is the error of the first actor to end: nil after a
// signal or when that actor returned nil.
//
// Cancelling ctx is a clean stop too. A panic in an actor is logged with its
// stack and stops the group with an internal error.
func (g *Group) Run(ctx context.Context) error {
	r := &running{
		Group: g, log: g.Log,
		late: make(chan struct{}), stopping: make(chan struct{}), caught: make(chan os.Signal, 2),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r.run(ctx)
}

// running is one Run.
type running struct {
	*Group
	log       *slog.Logger
	late      chan struct{}  // closed at the drain deadline
	stopping  chan struct{}  // closed when the first actor has ended
	caught    chan os.Signal // signals that mean stop
	signalled atomic.Bool    // the stop was begun by a signal
}

func (r *running) run(ctx context.Context) error {
	defer r.listen()()
	var rg run.Group
	rg.Add(r.signals(ctx))
	rg.Add(func() error { <-r.stopping; return nil }, func(error) {
		if r.Stopping != nil {
			r.Stopping()
		}
		close(r.stopping)
	})
	before := r.stopping
	for _, a := range r.actors {
		actx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		previous, done := before, make(chan struct{})
		rg.Add(func() error {
			defer close(done)
			return r.act(actx, a)
		}, func(error) {
			select {
			case <-previous:
			case <-r.late:
			}
			cancel(errStop)
		})
		before = done
	}

	result := make(chan error, 1)
	go func() { result <- rg.Run() }()
	select {
	case err := <-result:
		return err
	case <-r.stopping:
	}
	if err, ended := r.drain(result); ended {
		return err
	}
	r.log.Error("drain deadline passed, stopping at once")
	close(r.late) // every actor's context ends now, whatever runs before it
	select {
	case err := <-result:
		return errors.Join(ErrDrain, err)
	case <-time.After(lateGrace):
		r.dump()
		return ErrDrain
	}
}

// drain waits for the result until the deadline, or until a second signal makes
// it come at once; ended false means that it came.
func (r *running) drain(result <-chan error) (err error, ended bool) {
	limit := r.Drain
	if limit <= 0 {
		limit = DefaultDrain
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case err := <-result:
			return err, true
		case <-timer.C:
			return nil, false
		case sig := <-r.caught:
			if r.signalled.Swap(true) && !r.IgnoreSecondSignal {
				r.log.Warn("stopping at once", "signal", sig.String())
				return nil, false
			}
		}
	}
}

// act runs one actor and turns its panic into an error.
func (r *running) act(ctx context.Context, a actor) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("actor panicked", "actor", a.name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "%s: panic", a.name)
			return
		}
		if err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			r.log.Debug("actor ended", "actor", a.name)
			err = nil
			return
		}
		r.log.Error("actor ended", "actor", a.name, "err", err)
		err = fmt.Errorf("%s: %w", a.name, err)
	}()
	return a.run(ctx)
}

// signals is the built-in first actor: the first signal ends it.
func (r *running) signals(ctx context.Context) (execute func() error, interrupt func(error)) {
	stop := make(chan struct{})
	return func() error {
		select {
		case sig := <-r.caught:
			r.log.Info("stopping", "signal", sig.String())
			r.signalled.Store(true)
		case <-ctx.Done():
		case <-stop:
		}
		return nil
	}, func(error) { close(stop) }
}

// listen delivers the signals that mean stop until the returned function is called.
func (r *running) listen() (stop func()) {
	raw := make(chan os.Signal, 4)
	signal.Notify(raw, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-raw:
				if r.Sibling && sig != syscall.SIGTERM {
					continue
				}
				select {
				case r.caught <- sig:
				default: // enough are waiting
				}
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(raw)
		close(quit)
		<-done
	}
}

// dump writes the stacks of all goroutines: what is stuck, and where.
func (r *running) dump() {
	buf := make([]byte, stackBytes)
	buf = buf[:runtime.Stack(buf, true)]
	w := r.Stacks
	if w == nil {
		w = os.Stderr
	}
	_, _ = w.Write(buf)
}
