package station

import (
	"context"
	"errors"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// every calls f at intervals until the attempt is to stop, or f says so.
func (a *attempt) every(d time.Duration, f func() (more bool)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		if !f() {
			return
		}
	}
}

// watchClock ends the attempt when its time is over, or when nobody used its bridge
// for the time of the idle policy. Both count on the boot-time clock.
func (a *attempt) watchClock() {
	row := a.current()
	a.every(a.m.pace.look, func() bool {
		now := process.BootTime()
		active := a.activeAt(now)
		switch {
		case now >= row.TTLBoot:
			a.want(store.StopTTL)
		case row.IdleMS > 0 && now-active >= row.IdleMS:
			a.want(store.StopIdle)
		}
		return true // until the stop ends its context
	})
}

// activeAt gives the boot time of the last activity. Before clients can come, that
// is now.
func (a *attempt) activeAt(now int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.row.ReadyAt == 0:
		a.lastActive = now
	case a.route != nil:
		if at := a.route.Counts().Activity; !at.IsZero() {
			ago := max(a.m.opts.Store.Now()-at.UnixMilli(), 0)
			a.lastActive = max(a.lastActive, now-ago)
		}
	}
	return a.lastActive
}

// watchBeat is the station's heartbeat: the shim answers. Three missed in a row end
// the attempt. While its machine is out of reach none is missed, until the shim has
// ended everything by the orphan rule (station §4.5, §5.3).
func (a *attempt) watchBeat() {
	misses, answered := 0, process.BootTime()
	beat := func() bool {
		wait := min(pingTime, a.m.pace.beat)
		err := a.request(a.ctx, wait, func(ctx context.Context, c *supervise.Client) error { return c.Ping(ctx) })
		cut := err != nil && a.cut(wait)
		switch {
		case a.ctx.Err() != nil:
		case cut && process.BootTime()-answered < a.m.opts.Orphan.Milliseconds():
			a.log.Warn("the machine of the attempt is out of reach", "err", err)
			misses = 0
		case err != nil:
			if misses++; cut || misses >= missed {
				a.log.Warn("the shim has missed its beats", "err", err)
				a.want(store.StopLost)
			}
		default:
			misses, answered = 0, process.BootTime()
			a.acknowledge()
			a.beat()
		}
		return true
	}
	beat()
	a.every(a.m.pace.beat, beat)
}

// cut reports whether the provider cannot reach the machine now.
func (a *attempt) cut(wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(a.ctx, wait)
	defer cancel()
	_, err := a.machine.BootID(ctx)
	return fault.Is(err, fault.ProviderUnreachable)
}

// beat records that the shim answered, and when clients were last active.
func (a *attempt) beat() {
	s, row := a.m.opts.Store, a.current()
	now, boot := s.Now(), process.BootTime()
	b := store.Beats{Heartbeat: now, Observed: now}
	if row.ReadyAt != 0 {
		b.Activity = now - (boot - a.activeAt(boot))
	}
	if err := s.Beat(a.ctx, a.lease, a.station.ID, row.Number, b); err != nil && a.ctx.Err() == nil {
		a.log.Warn("record a heartbeat of the station", "err", err)
	}
}

// acknowledge lets the shim forget what was taken meanwhile: the end of an unfinished
// line is, a moment after it came.
func (a *attempt) acknowledge() {
	logs := a.output()
	_ = a.request(a.ctx, pingTime, func(_ context.Context, c *supervise.Client) error {
		return errors.Join(c.Ack(wire.Stdout, logs.Taken(wire.Stdout)), c.Ack(wire.Stderr, logs.Taken(wire.Stderr)))
	})
}

// watchLease is the heartbeat of the lease of the workspace. Missed until the
// lease's own end, it ends the attempt.
func (a *attempt) watchLease(expires int64) {
	s := a.m.opts.Store
	a.every(a.m.pace.leaseBeat, func() bool {
		ctx, cancel := context.WithTimeout(a.ctx, machineTime)
		defer cancel()
		until, err := a.plan.provider.Heartbeat(ctx, a.held)
		if a.ctx.Err() != nil {
			return false
		}
		if err == nil {
			expires = max(expires, until.UnixMilli())
			if err = s.BeatWorkspace(a.ctx, a.lease, a.held.ID, expires); err != nil && a.ctx.Err() == nil {
				a.log.Warn("record a heartbeat of the lease", "err", err)
			}
			return true
		}
		a.log.Warn("the lease has missed a beat", "err", err)
		if s.Now() < expires {
			return true
		}
		a.want(store.StopLeaseLost)
		a.insist("lose the lease", func() error {
			_, err := s.LoseWorkspace(a.base, a.lease, a.held.ID)
			return leftAlone(err)
		})
		return false
	})
}
