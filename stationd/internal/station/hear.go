package station

import (
	"context"
	"encoding/json"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// attend hears what a shim tells. A shim behind a connection that is cut is still
// the same: its heartbeat is missed. The end is that of the shim, or of who lets it
// go.
func (a *attempt) attend(shim lease.Shim) {
	a.hear(shim.Client())
	select {
	case <-shim.Done():
		a.shimEnded()
	case <-a.ctx.Done():
	}
}

// hear takes what comes over one connection until it ends. What comes of an adopted
// shim waits until its secrets are known; the shim sends no more than wire.MaxUntold
// ahead.
func (a *attempt) hear(c *supervise.Client) {
	events := c.Events()
	var early []wire.Message
	for waiting := a.known != nil; waiting; {
		select {
		case <-a.known:
			waiting = false
		case m, ok := <-events:
			if waiting = ok; ok {
				early = append(early, m)
			}
		}
	}
	for _, m := range early {
		a.take(c, m)
	}
	for m := range events {
		a.take(c, m)
	}
}

// take does with one event what it says.
func (a *attempt) take(c *supervise.Client, m wire.Message) {
	switch m.Event {
	case wire.EventOutput:
		a.kept(a.logs.Write(m.Stream, m.Seq, m.Data))
		a.took(m.Stream, m.Seq+int64(len(m.Data)))
		_ = c.Ack(m.Stream, a.logs.Taken(m.Stream)) // a broken connection ends hear
	case wire.EventDropped:
		a.kept(a.logs.Lost(m.Stream, m.Seq, m.Bytes))
		a.took(m.Stream, m.Seq+m.Bytes)
	case wire.EventExit:
		a.heardExit(m.Exit)
	}
}

// kept complains of output that could not be kept; it is counted as dropped.
func (a *attempt) kept(err error) {
	if err != nil {
		a.log.Warn("keep output", "err", err)
	}
}

// took counts how far a stream was taken.
func (a *attempt) took(stream string, to int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counted[stream] = max(a.counted[stream], to)
}

// heardExit notes how the daemon ended, once; watchExit does what follows, so that
// the connection is read on.
func (a *attempt) heardExit(end *wire.End) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.exit == nil && end != nil {
		a.exit = end
		close(a.exited)
	}
}

// watchExit asks for the stop when the daemon has ended by itself.
func (a *attempt) watchExit() {
	select {
	case <-a.ctx.Done():
	case <-a.exited:
		a.want(store.StopExited)
	}
}

// daemonExit gives how the daemon ended, nil when that is not known.
func (a *attempt) daemonExit() *wire.End {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.exit
}

// shimEnded asks for the stop when the shim has ended by itself; its last word says
// why.
func (a *attempt) shimEnded() {
	if a.ctx.Err() == nil {
		a.want(a.lastWord(a.base))
	}
}

// lastWord reads what a shim that has ended left, and gives the reason of the stop
// that follows from it.
func (a *attempt) lastWord(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	end, ok, err := a.machine.Ended(ctx)
	if err != nil || !ok {
		return store.StopLost
	}
	if end.Code != nil || end.Signal != "" {
		a.exitFrom(evidence.ExitFromFile, &end)
	}
	switch end.Reason {
	case wire.ReasonTTL:
		return store.StopTTL
	case wire.ReasonExited:
		return store.StopExited
	}
	return store.StopLost
}

// exitFrom records how the daemon ended; the first record stays.
func (a *attempt) exitFrom(source string, end *wire.End) {
	if a.current().Exit != nil {
		return
	}
	exit := evidence.Exit{Source: source}
	if end != nil {
		exit.Code, exit.Signal = end.Code, end.Signal
	}
	text, err := json.Marshal(exit)
	if err != nil {
		a.log.Error("write down an exit", "err", err)
		return
	}
	a.insist("record the exit of the daemon", func() error {
		return a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
			return s.RecordExit(ctx, a.lease, id, n, text)
		})
	})
}

// learn takes from a shim that was found what the crashed stationd knew.
func (a *attempt) learn(s wire.Status) {
	a.port = s.Port
	if s.Credential != "" {
		a.takeCredential(redact.NewSecret(s.Credential))
	}
	if s.Exit != nil {
		a.heardExit(s.Exit)
	}
}

// leftAlone is nil for the refusal of a move that somebody else has made.
func leftAlone(err error) error {
	if fault.Is(err, fault.LeaseState) || fault.Is(err, fault.AttemptState) || fault.Is(err, fault.StationEnded) {
		return nil
	}
	return err
}
