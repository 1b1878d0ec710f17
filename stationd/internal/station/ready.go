package station

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// maxProbe is how much of a probe's answer is read; the rest is of no interest.
const maxProbe = 64 << 10

// becomeReady waits for the daemon, looks at what listens, and lets clients in.
func (a *attempt) becomeReady(ctx context.Context) error {
	if err := a.awaitDaemon(ctx); err != nil {
		return err
	}
	if err := a.openBridge(); err != nil {
		return err
	}
	crashpoint.At("bridge_opened")
	err := a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
		return s.AttemptIsReady(ctx, a.lease, id, n)
	})
	if err != nil {
		return err
	}
	a.keepLooking()
	return nil
}

// awaitDaemon asks until the daemon answers and a descendant of the shim listens on
// its port on loopback (station §7.2, §7.4).
func (a *attempt) awaitDaemon(ctx context.Context) error {
	wait := time.Duration(a.plan.Readiness.TimeoutMS) * time.Millisecond
	bounded, cancel := context.WithTimeoutCause(ctx, wait, errNotReady)
	defer cancel()
	var err error
	if a.loopback, err = supervise.NewLoopback(a.plan.Loopback); err != nil {
		return err
	}
	probe, idle, err := a.probe()
	if err != nil {
		return err
	}
	defer idle()
	var unseen error // of the last look, while there was time
	for pause := probeFirst; ; pause = min(2*pause, probeEvery) {
		a.turn()
		rows, err := a.listeners(bounded)
		if err == nil {
			if err := a.judge(a.loopback.Check(rows)); err != nil {
				return err
			}
			if a.loopback.Serves(rows, a.port) && probe(bounded) {
				return nil
			}
		}
		if bounded.Err() == nil {
			unseen = err
		}
		if !sleep(bounded, pause) {
			if unseen != nil {
				a.log.Warn("what listens cannot be looked at", "err", unseen)
			}
			return context.Cause(bounded)
		}
	}
}

// probe gives what asks the daemon once whether it is there, with its credential.
// idle closes what that keeps open.
func (a *attempt) probe() (ask func(context.Context) bool, idle func(), err error) {
	path := a.plan.Readiness.HTTPPath
	if path == "" { // that it listens is enough
		return func(context.Context) bool { return true }, func() {}, nil
	}
	credential, err := a.plan.inject(a.secret())
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx) },
		DisableKeepAlives: true, DisableCompression: true,
	}
	client := &http.Client{
		Transport: transport, Timeout: probeTime, // one that hangs is not the whole readiness
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ask = func(ctx context.Context) bool {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port))+path, nil)
		if err != nil {
			return false
		}
		credential.Apply(r.Header)
		answer, err := client.Do(r)
		if err != nil {
			return false
		}
		_, _ = io.CopyN(io.Discard, answer.Body, maxProbe)
		answer.Body.Close()
		return answer.StatusCode < http.StatusInternalServerError
	}
	return ask, transport.CloseIdleConnections, nil
}

// listeners asks the shim what listens in its namespace.
func (a *attempt) listeners(ctx context.Context) (rows []wire.Listener, err error) {
	err = a.request(ctx, pingTime, func(ctx context.Context, c *supervise.Client) error {
		rows, err = c.Listeners(ctx)
		return err
	})
	return rows, err
}

// judge notes what was found newly, and refuses a breach.
func (a *attempt) judge(found []supervise.Finding) error {
	var breach error
	for _, f := range found {
		a.note("listener_found", map[string]any{"protocol": f.Protocol, "address": f.Address, "program": a.redactor.Text(f.Program), "breach": f.Breach})
		if f.Breach && breach == nil {
			breach = errBreach
		}
	}
	return breach
}

// Why a daemon that runs is not let go on.
var (
	errNotReady = errors.New("the daemon is not ready in time")
	errBreach   = errors.New("the daemon listens outside loopback")
)

// openBridge lets the gate route to the daemon. Until the row says ready it answers
// that the station is not.
func (a *attempt) openBridge() error {
	b := a.plan.Bridge
	if b == nil {
		return nil
	}
	credential, err := a.plan.inject(a.secret())
	if err != nil {
		return err
	}
	route, err := a.m.opts.Gate.Open(gate.Bridge{
		Station: a.station.ID, Attempt: int(a.current().Number), Port: a.port, Dial: a.dial,
		HeaderAllow: b.HeaderAllow, Credential: credential, Limits: limits(b.Limits),
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.route = route
	return nil
}

// keepLooking goes on looking at what listens until a stop was asked for.
func (a *attempt) keepLooking() {
	a.looking.Go(func() {
		var b blind
		look := func(ctx context.Context) ([]wire.Listener, error) {
			rows, err := a.listeners(ctx)
			if err == nil && b.looks > 0 {
				a.log.Info("what listens can be looked at again", "looks", b.looks)
				b = blind{}
			}
			return rows, err
		}
		for a.ctx.Err() == nil {
			err := a.loopback.Run(a.ctx, look, func(f supervise.Finding) {
				if a.judge([]supervise.Finding{f}) != nil {
					a.want(store.StopLoopback)
				}
			})
			if err == nil {
				return
			}
			a.unseen(&b, err)
			sleep(a.ctx, supervise.CheckEvery)
		}
	})
}

// blind is a series of looks that failed.
type blind struct {
	looks int
	since int64 // boot-time ms of the first
}

// unseen is what follows from a look that failed. The first one of a series is told.
// Nobody knows what a daemon does meanwhile: where the policy is strict, a series as
// long as missed beats ends the attempt like those. While the machine is out of reach
// the beats decide.
func (a *attempt) unseen(b *blind, err error) {
	now := process.BootTime()
	if b.looks++; b.looks == 1 {
		b.since = now
		a.log.Warn("what listens cannot be looked at", "err", err)
	}
	long := int64(missed) * a.m.pace.beat.Milliseconds()
	if a.plan.Loopback != supervise.Strict || b.looks < missed || now-b.since < long {
		return
	}
	if a.cut(min(pingTime, a.m.pace.beat)) {
		b.looks, b.since = 1, now // what was missed is the machine's
		return
	}
	if a.ctx.Err() == nil {
		a.log.Warn("the shim does not say what listens", "looks", b.looks, "err", err)
		a.want(store.StopLost)
	}
}
