package lender

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
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
	said := &words{Handler: l.opt.Output.Handler()}
	c, err := l.opt.Program.Start(slog.New(said), nil)
	if err != nil {
		l.opt.Log.Error("brokerd cannot start", "err", err)
		l.failWaiting(fault.New(fault.BrokerUnavailable, "start brokerd beside kitrun: %w", err).
			WithHint("brokerd must lie in the directory of kitrun, or run already: brokerd serve"))
		return true
	}
	l.opt.Log.Info("brokerd started", "sibling_pid", c.PID())
	how, ended := c.Wait(ctx)
	if !ended {
		l.end(ctx, c)
		c.Release()
		return false
	}
	code := c.ExitCode()
	c.Release() // what it said is complete from here on
	switch {
	case code == leaseHeld: // somebody else was faster
		l.opt.Log.Debug("another brokerd holds the lease")
	case code <= 0: // stopped by somebody, or killed: the next one serves on
		l.opt.Log.Warn("brokerd ended", "how", how)
	default: // it cannot work here, and says why
		l.opt.Log.Warn("brokerd ended", "how", how)
		l.failWaiting(said.fault(how))
	}
	return true
}

// words passes on what a brokerd prints and keeps what it said of its end.
type words struct {
	slog.Handler

	mu               sync.Mutex
	last, fail, hint string
}

func (w *words) Handle(ctx context.Context, r slog.Record) error {
	w.mu.Lock()
	w.last = r.Message
	if fail, ok := strings.CutPrefix(r.Message, "brokerd: error: "); ok {
		w.fail = fail
	}
	if hint, ok := strings.CutPrefix(r.Message, "brokerd: hint: "); ok {
		w.hint = hint
	}
	w.mu.Unlock()
	if !w.Enabled(ctx, r.Level) {
		return nil
	}
	return w.Handler.Handle(ctx, r)
}

// mostWords bounds what is quoted of a brokerd.
const mostWords = 400

// fault says how a brokerd ended that cannot work here, and its own words.
func (w *words) fault(how string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.fail
	if said == "" {
		said = w.last
	}
	clean := func(s string) string {
		line := []rune(fault.CleanLine(redact.New(redact.Options{}).Text(s)))
		return string(line[:min(len(line), mostWords)])
	}
	if said != "" {
		how += ": " + clean(said)
	}
	f := fault.New(fault.BrokerUnavailable, "take out a grant: the brokerd beside kitrun ended: %s", how)
	if w.hint != "" {
		return f.WithHint("%s", clean(w.hint))
	}
	return f.WithHint("brokerd serve on this Store shows it again")
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
