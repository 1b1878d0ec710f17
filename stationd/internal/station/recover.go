package station

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// recover takes up what an earlier stationd of this host left (station §4.6). It
// returns when each attempt runs again, is being stopped, or could not be decided in
// time.
func (t *term) recover() {
	left, err := t.m.opts.Store.UnfinishedAttempts(t.base, t.m.opts.Host)
	for err != nil && t.pause(storeAgain) {
		t.m.log.Warn("look for what an earlier stationd left", "err", err)
		left, err = t.m.opts.Store.UnfinishedAttempts(t.base, t.m.opts.Host)
	}
	var deciding sync.WaitGroup
	for _, u := range left {
		deciding.Add(1)
		ok := t.begin(func() {
			defer deciding.Done()
			if !u.Attempt.Live() {
				t.owe(u)
			} else if a := t.takeUp(u); a != nil {
				select {
				case <-a.settled:
				case <-a.done:
				}
			}
		})
		if !ok {
			deciding.Done()
		}
	}
	decided := make(chan struct{})
	go func() { // ends with what it waits for, which the term does, too
		deciding.Wait()
		close(decided)
	}()
	over := time.NewTimer(settleTime)
	defer over.Stop()
	select {
	case <-decided:
	case <-over.C:
		t.m.log.Warn("not every attempt of an earlier stationd is decided yet")
	}
}

// owe releases the lease of an attempt that has ended, now or later.
func (t *term) owe(u store.Unfinished) {
	d, err := t.debtOf(u.Attempt, u.Lease)
	if err == nil {
		if err = d.try(t.base); err == nil {
			return
		}
		t.begin(d.pay)
	}
	t.m.log.Warn("a lease cannot be given back", "lease", u.Lease.LeaseID, "err", err)
}

// takeUp gives an attempt a conductor; nil when that is not possible now.
func (t *term) takeUp(u store.Unfinished) *attempt {
	s, row := t.m.opts.Store, u.Attempt
	log := t.m.log.With("station", row.StationID, "attempt", row.Number)
	st, err := s.Station(t.base, row.StationID)
	if err != nil {
		log.Error("take up an attempt", "err", err)
		return nil
	}
	p, refused := t.m.check(st.Spec)
	if refused != nil {
		if p, err = t.m.planToEnd(st, u.Lease); err != nil {
			log.Error("take up an attempt: it is left to its shim", "err", err)
			return nil
		}
	}
	a := t.newAttempt(st, p)
	if err := t.claim(a); err != nil {
		log.Error("take up an attempt", "err", err)
		return nil
	}
	l, err := s.Await(t.base, store.StationLease(st.ID), store.LeaseTTL, leaseWait)
	if err != nil {
		t.forget(a)
		log.Error("take up an attempt", "err", err)
		return nil
	}
	a.own(l, row)
	a.held = heldBy(u.Lease)
	a.birth, a.known, a.resumed = incarnation(row), make(chan struct{}), s.Now()
	if row.Desired == store.WantStopping {
		a.stop(errStopping)
	}
	first := func(context.Context) error { return a.resume(u.Lease, refused) }
	if !t.begin(func() { a.conduct(first) }) {
		t.forget(a)
		a.lose(errLeft)
		return nil
	}
	return a
}

// planToEnd is a plan that is good enough to end an attempt whose spec may not be
// started any more.
func (m *Manager) planToEnd(st store.Station, w store.Workspace) (p plan, err error) {
	if p.provider, _, err = m.provider(w.Provider); err != nil {
		return p, err
	}
	if p.Spec, err = launch.Parse(st.Spec); err != nil {
		p.Spec = launch.Spec{GraceMS: launch.DefaultGrace.Milliseconds()}
	}
	p.grace = m.grace(st.Spec, p.Spec)
	return p, nil
}

// resume decides what became of an attempt, by the rows of station §4.6, and goes on
// where it can. It does its part also when the attempt is to stop: the shim has to be
// found for that.
func (a *attempt) resume(w store.Workspace, refused error) error {
	ctx := a.base
	row := a.current()
	if err := a.reach(ctx); err != nil {
		a.log.Warn("reach the machine of an attempt", "err", err)
		if row.State == store.AttemptPreparing { // nothing was started there
			return stopError(store.StopLaunch)
		}
		return stopError(store.StopLost)
	}
	boot, err := a.machine.BootID(ctx)
	switch {
	case err != nil:
		return stopError(store.StopLost)
	case rebooted(row, w, boot):
		a.gone = true // nothing outlives a boot, and no number means the same after it
		return stopError(store.StopRebooted)
	case row.State == store.AttemptPreparing:
		return stopError(store.StopLaunch)
	}
	if a.birth.IsZero() {
		if row.RuntimeDir == "" { // the stop came before launching
			return stopError(store.StopLaunch)
		}
		if err := a.findShim(ctx); err != nil {
			return err
		}
	}
	status, err := a.adopt(ctx)
	if fault.Is(err, fault.ProviderUnreachable) {
		a.log.Warn("find the shim of an attempt", "err", err)
		return stopError(store.StopLost)
	}
	if err != nil {
		return err
	}
	if a.ctx.Err() != nil { // it is to stop, and can be now
		return nil
	}
	return a.goOn(w, status, refused)
}

// reach gets the machine of the lease, which may be another host that is out of reach;
// it tries as long as a shim can be alive there.
func (a *attempt) reach(ctx context.Context) error {
	until := process.BootTime() + a.m.opts.Orphan.Milliseconds()
	for pause := againLeast; ; pause = min(2*pause, againMost) {
		a.turn()
		err := a.enter(ctx)
		again := fault.Is(err, fault.ProviderUnreachable) || fault.Is(err, fault.LeaseHeld)
		if !again || process.BootTime() > until || !sleep(ctx, pause) {
			return err
		}
		a.settle() // others do not wait for this one
	}
}

// rebooted reports whether what the rows name was on another boot of the machine.
func rebooted(row store.StationAttempt, w store.Workspace, boot string) bool {
	for _, then := range []string{row.BootID, w.BootID} {
		if then != "" && then != boot {
			return true
		}
	}
	return false
}

// findShim looks for a shim that was started and not written down. It says who it is
// before it answers; a moment is enough.
func (a *attempt) findShim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	until := process.BootTime() + birthTime.Milliseconds()
	for {
		inc, err := a.machine.Recorded(ctx)
		switch {
		case err == nil:
			a.birth = inc
			return a.recordShim()
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case process.BootTime() > until || !sleep(ctx, probeEvery):
			return stopError(store.StopLaunch)
		}
	}
}

// adopt takes the shim in hand again. When it is gone, its last word is the reason;
// when it does not answer, it is killed in the stop that follows.
func (a *attempt) adopt(ctx context.Context) (status wire.Status, err error) {
	bounded, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	alive, err := a.machine.Alive(bounded, a.birth)
	if err != nil {
		return status, err
	}
	if !alive {
		a.gone = !a.sweepable(bounded)
		return status, stopError(a.lastWord(ctx))
	}
	answering, enough := context.WithTimeout(bounded, adoptTime)
	defer enough()
	shim, err := a.machine.AdoptShim(answering, a.birth)
	if err != nil {
		return status, err // shim_lost: supervisor_lost
	}
	a.attach(shim)
	defer close(a.known) // the credential is known before output is kept
	if status, err = shim.Client().Status(bounded); err != nil {
		return status, err
	}
	a.learn(status)
	return status, nil
}

// sweepable reports whether emptiness may be proven for a shim that is gone,
// which removes its cgroup: the runtime directory names the same one. Where it names
// another, which the row does not, nothing is done to that.
func (a *attempt) sweepable(ctx context.Context) bool {
	inc, err := a.machine.Recorded(ctx)
	return err == nil && inc.PID == a.birth.PID && inc.Start == a.birth.Start
}

// goOn takes an adopted attempt to where it was: clients are let in again, or the way
// to ready is gone to its end. A daemon that was never told to go is not told now.
func (a *attempt) goOn(w store.Workspace, status wire.Status, refused error) error {
	row := a.current()
	switch {
	case refused != nil:
		a.log.Warn("the spec of an attempt that runs may not be started any more", "err", refused)
		return stopError(store.StopPolicy)
	case status.Exit != nil:
		return stopError(store.StopExited)
	case status.Started == nil:
		return stopError(store.StopLaunch)
	case row.StartedAt == 0:
		if err := a.recordDaemon(*status.Started); err != nil {
			return err
		}
	}
	a.watching.Go(func() { a.watchLease(w.ExpiresAt) })
	a.watching.Go(a.watchClock)
	if err := a.openWay(a.ctx); err != nil {
		return err
	}
	a.note("adopted", map[string]any{"shim": row.ShimPID, "state": row.State})
	if row.State != store.AttemptReady {
		return a.becomeReady(a.ctx)
	}
	var err error
	if a.loopback, err = supervise.NewLoopback(a.plan.Loopback); err != nil {
		return err
	}
	a.mu.Lock()
	a.lastActive = process.BootTime() - max(a.m.opts.Store.Now()-row.ActivityAt, 0)
	a.mu.Unlock()
	if err := a.openBridge(); err != nil {
		return err
	}
	a.keepLooking()
	return nil
}
