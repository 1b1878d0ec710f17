// Package sweep is watchd's work: it follows every managed Turn and every
// Terminal Watch of one Store, and turns what it sees into rows.
//
// One watchd of a Store sweeps, by the lease watchd/main; others stand by and
// take over when it ends. Each Turn and each Watch has a task of its own: it
// looks at every event of the agent's files, and at the latest every Interval.
// A task that hangs, fails or panics holds up no other. Screens are captured
// once for all tasks with each poll, because starting tmux costs more than
// everything else here.
//
// The pass behind the events (Interval after the one before it ended) has two
// phases with error boundaries of their own: Turns with recovery, then Watches.
//
// When the context of Run ends, no new observation begins, the running ones
// finish or are cut by their own bounds, and the leases are released.
package sweep

import (
	"context"
	"log/slog"
	"time"

	"drawbridge/shared/agent/files"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds (core §14).
const (
	DefaultInterval = 5 * time.Second
	LeastInterval   = 50 * time.Millisecond
	standbyPoll     = time.Second           // between tries for the lease
	refreshGap      = 50 * time.Millisecond // between two readings of what is to be done
	captureTime     = 5 * time.Second       // for all screens together
	releaseTime     = 2 * time.Second
	cleanInterval   = time.Minute // between two looks at the lock-file records
	restartPause    = time.Second // between two starts of one task
)

// Sweeper sweeps one Store. All fields but Interval and Standing are required.
type Sweeper struct {
	Desk     *handoff.Desk
	Store    *store.Store
	Leases   *store.Keeper
	Bell     *store.Doorbell
	Files    *files.Watcher
	Tmux     *terminal.Tmux
	Interval time.Duration // 0: DefaultInterval
	Standing func()        // called once, when the lease is held or stood by for
	Log      *slog.Logger

	told    bool
	cleaned time.Time // when lock-file records were looked through
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	if s.Interval == 0 {
		s.Interval = DefaultInterval
	}
	s.Interval = max(s.Interval, LeastInterval)
	for {
		lease, err := s.Store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
		if err == nil {
			err = s.serve(ctx, lease)
		}
		s.standing()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, fault.Is(err, fault.LeaseHeld), fault.Is(err, fault.LeaseLost), fault.Is(err, fault.StoreBusy):
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(standbyPoll):
		}
	}
}

// standing tells the caller once that this watchd is up.
func (s *Sweeper) standing() {
	if !s.told && s.Standing != nil {
		s.Standing()
	}
	s.told = true
}

// serve sweeps while the lease is held.
func (s *Sweeper) serve(ctx context.Context, lease *store.Lease) error {
	return s.under(ctx, lease, func(held context.Context) error {
		tasks := newTasks(s, lease)
		defer tasks.wait()
		wake, cancel := s.Bell.Subscribe()
		defer cancel()
		// A send is a dozen commits, and each rings: they are answered together. What
		// happens in an agent's file reaches its task without this.
		var last time.Time
		var later <-chan time.Time
		refresh := func() {
			tasks.refresh(held)
			last, later = time.Now(), nil
		}
		soon := func() {
			if wait := refreshGap - time.Since(last); wait <= 0 {
				refresh()
			} else if later == nil {
				later = time.After(wait)
			}
		}
		s.reconcile(held)
		refresh()
		s.standing()
		poll := time.NewTimer(s.Interval)
		defer poll.Stop()
		for {
			select {
			case <-held.Done():
				if ctx.Err() != nil {
					return nil
				}
				return context.Cause(held)
			case <-wake:
				soon()
			case <-tasks.ended:
				soon()
			case <-later:
				refresh()
			case <-poll.C:
				s.reconcile(held)
				if time.Since(last) > s.Interval/2 { // a bell may have asked already
					refresh()
				}
				tasks.poll(held)
				poll.Reset(s.Interval)
			}
		}
	})
}

// Once does one reconciliation pass and one observation of everything, and
// returns when all of it has ended.
func (s *Sweeper) Once(ctx context.Context) error {
	lease, err := s.Store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		return err
	}
	return s.under(ctx, lease, func(held context.Context) error {
		tasks := newTasks(s, lease)
		tasks.once = true
		s.reconcile(held)
		tasks.refresh(held)
		tasks.poll(held)
		tasks.wait()
		return nil
	})
}

// under runs f while the lease is kept, and releases it then.
func (s *Sweeper) under(ctx context.Context, lease *store.Lease, f func(held context.Context) error) error {
	held, stop := s.Leases.Keep(ctx, lease)
	defer func() {
		stop()
		rctx, cancel := context.WithTimeout(context.Background(), releaseTime)
		defer cancel()
		if err := s.Store.Release(rctx, lease); err != nil {
			s.Log.Warn("release lease", "lease", lease.Name, "err", err)
		}
	}()
	return f(held)
}

// reconcile is phase A's recovery. Its failures are logged, never returned: the
// Watches are swept whatever happens here.
func (s *Sweeper) reconcile(ctx context.Context) {
	defer s.caught("reconcile")
	r := s.Desk.Recover(ctx, "")
	for _, p := range r.Problems {
		s.Log.Warn("reconcile", "problem", p)
	}
	if r.Changed > 0 {
		s.Log.Info("reconciled", "checked", r.Checked, "changed", r.Changed)
	}
	if time.Since(s.cleaned) < cleanInterval {
		return
	}
	s.cleaned = time.Now()
	if err := s.Desk.ClearRecords(ctx); err != nil && ctx.Err() == nil {
		s.Log.Warn("clear lock-file records", "err", err)
	}
}

// caught keeps a panic in one phase or task from the others.
func (s *Sweeper) caught(what string) {
	if v := recover(); v != nil {
		s.Log.Error("panic", "in", what, "value", v, "stack", stack())
	}
}
