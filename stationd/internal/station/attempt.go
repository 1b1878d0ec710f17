package station

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// byStationd asks for the stops that nobody else asked for.
const byStationd = "stationd"

// errStopping ends what starts or watches an attempt that is to stop.
var errStopping = errors.New("the attempt is to stop")

// insistTries bounds the tries of a write that must happen, storeAgain apart.
const insistTries = 300

// attempt is one attempt while this stationd acts on it. Its conductor does its
// steps; the other goroutines watch, and ask for its end.
type attempt struct {
	m       *Manager
	t       *term
	log     *slog.Logger
	station store.Station
	plan    plan
	lease   *store.Lease    // of the station
	base    context.Context // ends when the attempt is let go
	lose    context.CancelCauseFunc
	ctx     context.Context // ends with base, and when a stop was asked for
	stop    context.CancelCauseFunc
	settled chan struct{} // closed when it runs, stops or was let go
	done    chan struct{} // closed when the conductor has ended
	turned  atomic.Int64  // boot-time ms of the conductor's last step; 0 while it waits for a stop
	owned   bool          // it can be asked to stop; guarded by the term

	// Of the conductor.
	machine  lease.Machine
	redactor *redact.Redactor
	birth    process.Incarnation // of the shim, also without a handle to it
	port     int
	env      []string
	launched evidence.Launch
	artifact *wire.Artifact
	loopback *supervise.Loopback
	known    chan struct{} // closed when an adopted shim's secrets are known; nil for a new one
	resumed  int64         // when it was taken up, ms; 0: it began here
	record   evidence.CleanedUp
	gone     bool           // the shim is proven gone
	kind     string         // of containment, as the shim's handle says
	obeyed   bool           // the shim ended when it was told to
	looking  sync.WaitGroup // who uses loopback
	watching sync.WaitGroup // everybody else beside the conductor

	going sync.Mutex // held while a stop is asked for, and around "go": one comes first

	mu         sync.Mutex
	row        store.StationAttempt
	held       lease.Lease    // ID only until it was acquired
	logs       *evidence.Logs // set once
	shim       lease.Shim     // nil: none, or not reached
	route      *gate.Route
	way        *way // nil: no way out
	credential redact.Secret
	exit       *wire.End // of the daemon, as the shim told
	exited     chan struct{}
	counted    map[string]int64 // bytes of output that were taken
	lastActive int64            // boot-time ms
	giveUp     chan struct{}    // closed by a release by force: cleanup is not tried again
	once       sync.Once        // closes giveUp
}

// newAttempt is an attempt that nothing was done for.
func (t *term) newAttempt(st store.Station, p plan) *attempt {
	a := &attempt{
		m: t.m, t: t, station: st, plan: p, log: t.m.log.With("station", st.ID),
		settled: make(chan struct{}), done: make(chan struct{}), exited: make(chan struct{}), giveUp: make(chan struct{}),
		counted: map[string]int64{}, lastActive: process.BootTime(),
	}
	a.redactor = a.newRedactor(nil)
	return a
}

// own binds an attempt to its Store lease, which is kept until the conductor ends.
func (a *attempt) own(l *store.Lease, row store.StationAttempt) {
	held, drop := a.m.keeper.Keep(a.t.base, l)
	base, lose := context.WithCancelCause(held)
	a.lease, a.base = l, base
	a.lose = func(err error) { lose(err); drop() }
	a.ctx, a.stop = context.WithCancelCause(base)
	a.row, a.held = row, lease.Lease{ID: row.LeaseID}
	a.log = a.log.With("attempt", row.Number)
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.owned = true
}

// conduct does the steps of one attempt: first, which ends when the daemon is
// ready, then nothing until a stop was asked for, then the stop.
func (a *attempt) conduct(first func(context.Context) error) {
	defer close(a.done)
	defer a.m.moved()
	defer a.t.forget(a)
	a.watching.Go(a.watchEnd)
	a.turn()
	if err := first(a.ctx); err != nil && a.ctx.Err() == nil {
		a.fail(err)
	}
	a.settle()
	a.turned.Store(0)
	<-a.ctx.Done()
	a.turn()
	if a.base.Err() == nil {
		a.end(a.base)
	}
	a.leave()
	release, cancel := context.WithTimeout(context.WithoutCancel(a.base), releaseTime)
	defer cancel()
	if err := a.m.opts.Store.Release(release, a.lease); err != nil {
		a.log.Warn("free the lease of the station", "err", err)
	}
}

// turn says that the conductor begins a step.
func (a *attempt) turn() { a.turned.Store(process.BootTime()) }

func (a *attempt) settle() {
	select {
	case <-a.settled:
	default:
		close(a.settled)
	}
}

// watchEnd asks for the stop when stationd ends.
func (a *attempt) watchEnd() {
	select {
	case <-a.ctx.Done():
	case <-a.t.quit.Done():
		if a.m.opts.OnExit == OnExitStop {
			a.want(store.StopShutdown)
		}
	}
}

// leave lets go of everything that is still held, without a word to the Store or a
// signal: after the end that is nothing.
func (a *attempt) leave() {
	a.stop(errLeft)
	a.lose(errLeft)
	a.mu.Lock()
	shim, route := a.shim, a.route
	a.shim, a.route = nil, nil
	a.mu.Unlock()
	if route != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.base), bridgeTime)
		_ = route.Detach(ctx)
		cancel()
	}
	a.closeWay()
	if shim != nil {
		_ = shim.Detach()
	}
	a.looking.Wait()
	a.watching.Wait()
	if a.logs != nil {
		_ = a.logs.Leave()
	}
	if a.machine != nil {
		_ = a.machine.Close()
	}
}

// current gives the row as it was last seen.
func (a *attempt) current() store.StationAttempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.row
}

// see keeps a row that a move gave, and tells who waits.
func (a *attempt) see(row store.StationAttempt) {
	a.mu.Lock()
	if row.Revision >= a.row.Revision {
		a.row = row
	}
	a.mu.Unlock()
	a.m.moved()
}

// move does one move of the Store.
func (a *attempt) move(ctx context.Context, f func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error)) error {
	row, err := f(ctx, a.m.opts.Store, a.station.ID, a.current().Number)
	if err != nil {
		return err
	}
	a.see(row)
	return nil
}

// insist repeats a write that has to happen until it succeeds or the attempt is let
// go; one that never succeeds lets it go.
func (a *attempt) insist(doing string, f func() error) bool {
	for n := 1; a.base.Err() == nil; n++ {
		err := f()
		if err == nil {
			return true
		}
		if a.base.Err() != nil {
			break
		}
		if fault.Is(err, fault.LeaseLost) || n == insistTries {
			a.log.Error(doing, "err", err)
			a.lose(err)
			break
		}
		if n == 1 {
			a.log.Warn(doing, "err", err)
		}
		sleep(a.base, storeAgain)
	}
	return false
}

// ask writes the wish for the end. The first reason stays; whoever comes later gets
// the row as it is.
func (a *attempt) ask(ctx context.Context, reason, by string) (store.StationAttempt, error) {
	a.going.Lock()
	defer a.going.Unlock()
	row, _, err := a.m.opts.Store.RequestStop(ctx, a.lease, a.station.ID, a.current().Number, reason, by)
	if err != nil {
		return row, err
	}
	a.see(row)
	a.stop(errStopping)
	return row, nil
}

// want is ask for what stationd itself found.
func (a *attempt) want(reason string) {
	a.insist("ask for the stop", func() error {
		_, err := a.ask(a.base, reason, byStationd)
		return err
	})
}

// note adds an event to the chain; one that cannot be added is logged.
func (a *attempt) note(kind string, detail map[string]any) {
	err := a.m.opts.Store.AppendStationEvent(a.base, a.lease, a.station.ID, a.current().Number, kind, detail)
	if err != nil && a.base.Err() == nil {
		a.log.Warn("add an event", "kind", kind, "err", err)
	}
}

// reached gives the shim, or nil.
func (a *attempt) reached() lease.Shim {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shim
}

// output gives the log, nil before there is one.
func (a *attempt) output() *evidence.Logs {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs
}

// enforcement is what keeps the daemon from other ways out.
func (a *attempt) enforcement() egress.Enforcement { return egress.Enforcement(a.current().Egress) }
