package lender

import (
	"context"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
)

// mostPause bounds the pause before a brokerd that keeps ending is started again.
const mostPause = 4 * time.Second

// Run keeps a brokerd on the Store as long as something is lent. It starts nothing
// while nothing is.
func (l *Lender) Run(ctx context.Context) error {
	tick := time.NewTicker(l.opt.Poll)
	defer tick.Stop()
	pause, notBefore := time.Duration(0), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.kick:
		case <-tick.C:
		}
		if time.Now().Before(notBefore) || !l.needed(ctx) {
			continue
		}
		began := time.Now()
		if !l.keep(ctx) {
			return nil
		}
		// The first time it is started again at once: what is lent waits for it.
		if time.Since(began) > mostPause {
			pause = 0
		}
		notBefore = time.Now().Add(pause)
		pause = min(max(2*pause, l.opt.Poll), mostPause)
	}
}

// needed reports whether a brokerd is to be started: something is lent that is not
// at its end, and nobody holds the lease.
func (l *Lender) needed(ctx context.Context) bool {
	loans := l.lent()
	if len(loans) == 0 {
		return false
	}
	rows, err := l.opt.Store.Leases(ctx, store.BrokerdLease())
	if err != nil {
		l.opt.Log.Warn("look for a brokerd", "err", err)
		return false
	}
	for _, r := range rows {
		if r.Live {
			return false
		}
	}
	for _, loan := range loans {
		if g, err := loan.Look(ctx); err == nil && g.Open() {
			return true
		}
	}
	return false
}

// keep runs one brokerd to its end; false means that ctx came first.
func (l *Lender) keep(ctx context.Context) bool {
	c, err := l.opt.Program.Start(l.opt.Output, nil)
	if err != nil {
		l.opt.Log.Error("brokerd cannot start", "err", err)
		l.failWaiting(fault.New(fault.BrokerUnavailable, "start brokerd beside kitrun: %w", err).
			WithHint("brokerd must lie in the directory of kitrun, or run already: brokerd serve"))
		return true
	}
	defer c.Release()
	l.opt.Log.Info("brokerd started", "sibling_pid", c.PID())
	how, ended := c.Wait(ctx)
	if !ended {
		l.end(ctx, c)
		return false
	}
	switch code := c.ExitCode(); {
	case code == leaseHeld: // somebody else was faster
		l.opt.Log.Debug("another brokerd holds the lease")
	case code <= 0: // stopped by somebody, or killed: the next one serves on
		l.opt.Log.Warn("brokerd ended", "how", how)
	default: // it cannot work here, and says why
		l.opt.Log.Warn("brokerd ended", "how", how)
		l.failWaiting(fault.New(fault.BrokerUnavailable, "take out a grant: the brokerd beside kitrun ended: %s", how).
			WithHint("its last lines stand above; brokerd serve on this Store shows them again"))
	}
	return true
}

var leaseHeld = fault.ExitCode(fault.New(fault.LeaseHeld, "held"))

// end tells brokerd that this process is done and waits a moment for it. It may
// serve others for a long time yet.
func (l *Lender) end(ctx context.Context, c *sibling.Child) {
	c.CutLifeline()
	last, done := context.WithTimeout(context.WithoutCancel(ctx), l.opt.Stop)
	defer done()
	if how, ended := c.Wait(last); ended {
		l.opt.Log.Debug("brokerd ended", "how", how)
	} else {
		l.opt.Log.Info("brokerd serves others and goes on", "sibling_pid", c.PID())
	}
}
