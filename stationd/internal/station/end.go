package station

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// targetShim is the shim as evidence names it, beside the targets of package wire.
const targetShim = "shim"

// end is the stop of station §12 from step 2 on: access dies first, processes next,
// credentials and the lease only then. The reason is in the row already.
func (a *attempt) end(ctx context.Context) {
	if !a.insist("go to stopping", func() error {
		return a.move(ctx, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
			return s.AttemptIsStopping(ctx, a.lease, id, n)
		})
	}) {
		return
	}
	a.resumeRecord()
	a.shut(ctx)
	a.terminate(ctx)
	if !a.clean(ctx) {
		return
	}
	a.turn()
	if a.conclude(ctx) {
		a.giveBack(ctx)
	}
}

// resumeRecord takes up what an earlier stationd wrote of this stop.
func (a *attempt) resumeRecord() {
	if done := cleanedUp(a.current().Cleanup); done != nil {
		a.record = *done
	}
	switch a.record.Cleanup.Result {
	case "":
		a.record.Cleanup.Result = evidence.CleanupClean
	case evidence.CleanupFailed: // until the tries of this one
		a.record.Cleanup.Result, a.record.Cleanup.Left = evidence.CleanupForced, nil
	}
	a.record.Cleanup.LeaseRelease = evidence.LeasePending
}

// shut is steps 2 and 3: no new requests and tunnels, the last event of streams, and
// a little time for requests in flight.
func (a *attempt) shut(ctx context.Context) {
	a.refuseWay()
	a.mu.Lock()
	route := a.route
	a.mu.Unlock()
	if route != nil {
		bounded, cancel := context.WithTimeout(ctx, bridgeTime)
		_ = route.Stop(bounded, a.current().StopReason) // what does not end in time dies with the daemon
		cancel()
	}
	a.closeWay()
}

// terminate is steps 4 and 5 as far as the shim can do them: TERM to the daemon's
// group, time for it, KILL to what is left, and the rest of the output.
func (a *attempt) terminate(ctx context.Context) {
	if a.reached() == nil { // only its conductor lets go of it
		return
	}
	if a.left(ctx) > 0 {
		a.signal(ctx, wire.Group, unix.SIGTERM)
		begun := process.BootTime()
		a.awaitEmpty(ctx, func() int64 { return a.graceUntil(begun) })
	}
	if a.left(ctx) > 0 {
		a.record.Cleanup.Result = evidence.CleanupForced
		a.signal(ctx, wire.All, unix.SIGKILL)
	}
	crashpoint.At("daemon_killed")
	a.awaitExit(ctx)
	a.awaitOutput(ctx)
	shim, reason := a.reached(), a.current().StopReason
	_ = a.request(ctx, askTime, func(ctx context.Context, c *supervise.Client) error { return c.Kill(ctx, reason) }) // its end says more
	bounded, cancel := context.WithTimeout(ctx, killedTime)
	defer cancel()
	select {
	case <-shim.Done():
		a.obeyed = true
	case <-bounded.Done():
	}
}

// graceUntil is when the grace of a stop that began then is over. The end of stationd
// cuts it.
func (a *attempt) graceUntil(begun int64) int64 {
	until := begun + a.plan.grace.Milliseconds()
	if killBy := a.t.killBy.Load(); killBy != 0 {
		until = min(until, max(killBy, begun))
	}
	return until
}

// left counts the processes beside the shim; 0 too when it cannot be asked, which
// the proof of emptiness then decides.
func (a *attempt) left(ctx context.Context) int {
	var stats wire.Stats
	_ = a.request(ctx, askTime, func(ctx context.Context, c *supervise.Client) (err error) {
		stats, err = c.Stats(ctx)
		return err
	})
	return stats.Processes
}

// awaitEmpty waits until nothing lives beside the shim.
func (a *attempt) awaitEmpty(ctx context.Context, until func() int64) {
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for process.BootTime() < until() && a.left(ctx) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// awaitExit waits for the shim to have reaped a daemon that is dead.
func (a *attempt) awaitExit(ctx context.Context) {
	if a.current().StartedAt == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, killedTime)
	defer cancel()
	select {
	case <-a.exited:
	case <-bounded.Done():
	}
}

// awaitOutput waits until everything that the shim has of the output was taken.
func (a *attempt) awaitOutput(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, outputTime)
	defer cancel()
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for {
		var stats wire.Stats
		err := a.request(ctx, askTime, func(ctx context.Context, c *supervise.Client) (err error) {
			stats, err = c.Stats(ctx)
			return err
		})
		if err != nil || a.tookAll(stats.Output) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *attempt) tookAll(output map[string]int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for stream, bytes := range output {
		if a.counted[stream] < bytes {
			return false
		}
	}
	return true
}

// signal sends one, and writes down that it did before anything else happens.
func (a *attempt) signal(ctx context.Context, target string, sig unix.Signal) {
	at := a.m.opts.Store.Now()
	err := a.request(ctx, askTime, func(ctx context.Context, c *supervise.Client) error { return c.Signal(ctx, target, sig) })
	result := "sent"
	if err != nil {
		result = string(fault.CodeOf(err))
		a.log.Warn("signal", "target", target, "signal", unix.SignalName(sig), "err", err)
	}
	a.signalled(at, target, sig, result)
	if sig == unix.SIGTERM {
		crashpoint.At("term_sent")
	}
	a.keepRecord()
}

func (a *attempt) signalled(at int64, target string, sig unix.Signal, result string) {
	a.record.SignalPath = append(a.record.SignalPath, evidence.Signal{At: evidence.Time(at), Target: target, Signal: unix.SignalName(sig), Result: result})
}

// keepRecord writes how far the cleanup has come, for evidence and for a stationd
// that has to go on with it.
func (a *attempt) keepRecord() {
	text := a.recordJSON()
	a.insist("record the cleanup", func() error {
		return a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
			return s.RecordCleanup(ctx, a.lease, id, n, text)
		})
	})
}

// clean is steps 5 and 6: the proof that nothing is left, tried again while
// processes are. false when the attempt was let go; a proof that is not to be had is
// part of the record.
func (a *attempt) clean(ctx context.Context) bool {
	for try := 1; ; try++ {
		a.turn()
		left, err := a.prove(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			a.record.Cleanup.Left = nil
			crashpoint.At("shim_ended")
			return true
		}
		a.log.Error("the cleanup failed", "try", try, "left", len(left), "err", err)
		a.record.Cleanup.Result, a.record.Cleanup.Left, a.record.Cleanup.LeaseRelease = evidence.CleanupFailed, left, evidence.LeaseKept
		a.keepRecord()
		a.keepWorkspace(ctx, a.recordJSON())
		if try > cleanupTries {
			return true
		}
		select {
		case <-time.After(a.m.pace.cleanupAgain):
		case <-a.giveUp:
			return true
		case <-ctx.Done():
			return false
		}
		a.record.Cleanup.Result, a.record.Cleanup.LeaseRelease = evidence.CleanupForced, evidence.LeasePending
	}
}

// prove kills what is still there and proves that nothing is. A shim that was proven
// gone, or never was, needs neither.
func (a *attempt) prove(ctx context.Context) ([]supervise.Left, error) {
	var got supervise.Cleanup
	var err error
	at := a.m.opts.Store.Now()
	switch shim := a.reached(); {
	case shim != nil:
		got, err = shim.End(ctx)
		if err == nil {
			a.mu.Lock()
			a.shim = nil
			a.mu.Unlock()
		}
	case !a.birth.IsZero() && !a.gone:
		bounded, cancel := context.WithTimeout(ctx, machineTime)
		defer cancel()
		if a.machine == nil {
			if err := a.enter(bounded); err != nil {
				return nil, err
			}
		}
		got, err = a.machine.Kill(bounded, a.birth)
	default:
		return nil, nil
	}
	if got.Signalled && !a.obeyed {
		a.signalled(at, targetShim, unix.SIGKILL, "sent")
		a.record.Cleanup.Result = evidence.CleanupForced
	}
	return got.Left, err
}
