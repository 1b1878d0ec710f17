package station

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
)

// errLeft ends the base of attempts that are left to the next stationd.
var errLeft = errors.New("the attempt is left to the next stationd")

// term is one time of acting, under one epoch of the host's lease. Whatever was
// begun in it has ended, or was let go, when act returns.
type term struct {
	m       *Manager
	lead    *store.Lease
	base    context.Context // ends with the lease, or when the drain is over: everything is let go
	letGo   context.CancelCauseFunc
	quit    context.Context // ends when stationd is to end: nothing new is begun
	killBy  atomic.Int64    // boot-time ms at which no grace goes on; 0: none
	settled chan struct{}   // closed when what was left is taken up

	mu       sync.Mutex
	over     bool
	attempts map[string]*attempt // live ones, by station
	work     sync.WaitGroup
}

// act does everything that needs the lease of the host, until ctx or the lease ends.
func (m *Manager) act(ctx context.Context, lead *store.Lease) {
	held, drop := m.keeper.Keep(context.WithoutCancel(ctx), lead)
	defer drop()
	base, letGo := context.WithCancelCause(held)
	defer letGo(errLeft)
	t := &term{m: m, lead: lead, base: base, letGo: letGo, quit: ctx, settled: make(chan struct{}), attempts: map[string]*attempt{}}
	m.mu.Lock()
	m.acting = t
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.acting = nil
		m.mu.Unlock()
	}()
	t.begin(func() {
		t.recover()
		close(t.settled)
		if base.Err() == nil {
			m.once.Do(func() { close(m.recovered) })
		}
	})
	t.begin(t.retain)

	tick := time.NewTicker(m.pace.look)
	defer tick.Stop()
	for ctx.Err() == nil && base.Err() == nil {
		m.turn()
		select {
		case <-ctx.Done():
		case <-base.Done():
			m.log.Warn("the lease of this host is lost: every attempt is let go", "err", context.Cause(base))
		case <-tick.C:
		}
	}
	t.drain(tick.C)
}

// drain waits for everything to end. What has not when the time is over is let go.
func (t *term) drain(tick <-chan time.Time) {
	m := t.m
	t.killBy.Store(process.BootTime() + max(m.opts.Drain-cutBefore, 0).Milliseconds())
	if m.opts.OnExit == OnExitKeep {
		t.letGo(errLeft)
	}
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the work
		t.work.Wait()
		close(done)
	}()
	over := time.NewTimer(m.opts.Drain)
	defer over.Stop()
	for {
		m.turn()
		select {
		case <-done:
			return
		case <-tick:
		case <-over.C:
			m.log.Warn("the drain is over: what has not ended is left to the next stationd")
			t.letGo(errLeft)
		}
	}
}

// begin runs f as a part of this term; false when the term is over.
func (t *term) begin(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.work.Go(f)
	return true
}

// claim makes a the live attempt of its station here. attempt_exists when there is
// one.
func (t *term) claim(a *attempt) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if live := t.attempts[a.station.ID]; live != nil {
		return fault.New(fault.AttemptExists, "begin an attempt of station %s: it has one that has not ended", a.station.ID).
			WithHint("stop it first, or start with --replace")
	}
	t.attempts[a.station.ID] = a
	return nil
}

// forget ends a claim.
func (t *term) forget(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempts[a.station.ID] == a {
		delete(t.attempts, a.station.ID)
	}
}

// stuck reports whether a conductor has begun a step too long ago.
func (t *term) stuck(now int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, a := range t.attempts {
		if at := a.turned.Load(); at != 0 && now-at > t.m.pace.stuck.Milliseconds() {
			t.m.log.Error("an attempt makes no step", "station", id, "seconds", (now-at)/1000)
			return true
		}
	}
	return false
}

// live gives the attempt of a station that is claimed and has its Store lease, or nil.
func (t *term) live(stationID string) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.attempts[stationID]; a != nil && a.owned {
		return a
	}
	return nil
}

// begins reports whether an attempt of a station is claimed and cannot be asked yet.
func (t *term) begins(stationID string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.attempts[stationID]
	return a != nil && !a.owned
}

// pause waits; false when the term ends first.
func (t *term) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.quit.Done():
	case <-t.base.Done():
	}
	return false
}
