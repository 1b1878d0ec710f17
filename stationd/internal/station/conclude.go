package station

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/gate"
)

// conclude is steps 7 to 9 of a stop, up to the terminal row: what the daemon left,
// the end of its credential and of its runtime directory, and the one document.
// false when the attempt was let go.
func (a *attempt) conclude(ctx context.Context) bool {
	if shim := a.reached(); shim != nil { // it is not proven gone, and nobody waits for its words any more
		_ = shim.Detach()
	}
	a.watching.Wait()
	a.looking.Wait()
	if a.current().StartedAt != 0 {
		if end := a.daemonExit(); end != nil {
			a.exitFrom(evidence.ExitFromShim, end)
		} else if a.machine != nil {
			a.lastWord(ctx)
		}
		a.exitFrom(evidence.ExitUnknown, nil)
	}
	manifest, logs := a.manifest(ctx), a.closeLogs()
	if err := a.m.opts.Access.Flush(ctx); err != nil && ctx.Err() == nil {
		a.log.Warn("write the uses of tickets", "err", err)
	}
	counts := a.closeBridge(ctx)
	a.dropCredential()
	if a.machine != nil && a.record.Cleanup.Result != evidence.CleanupFailed {
		bounded, cancel := context.WithTimeout(ctx, machineTime)
		if err := a.machine.Wipe(bounded); err != nil && ctx.Err() == nil {
			a.log.Warn("remove the runtime directory", "err", err)
		}
		cancel()
	}
	return a.insist("end the attempt", func() error {
		rows, err := a.rows(ctx)
		if err != nil {
			return err
		}
		facts := evidence.FactsOf(rows)
		facts.Times.Resumed, facts.Times.Ended = evidence.Time(a.resumed), evidence.Time(a.m.opts.Store.Now())
		facts.Egress, facts.Artifacts = a.wayOut(), manifest
		facts.Stop.SignalPath, facts.Stop.Cleanup = a.record.SignalPath, a.record.Cleanup
		facts.Process.Containment = or(a.kind, facts.Process.Containment)
		if a.loopback != nil {
			facts.Loopback = evidence.Loopback{Checks: a.loopback.Checks(), Findings: a.loopback.Findings()}
		}
		facts.Logs = logs
		if run := facts.AgentRuntime; run != nil {
			run.Bridge.Requests, run.Bridge.Streams, run.Bridge.Refused = counts.Requests, counts.Streams, counts.Refused
			run.Bridge.BytesIn, run.Bridge.BytesOut = counts.BytesIn, counts.BytesOut
		}
		document, why := evidence.Document(facts, a.redactor)
		if why != nil {
			a.log.Error("the evidence is the minimal one", "err", why)
		}
		crashpoint.At("evidence_built")
		text := a.recordJSON()
		return a.move(ctx, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
			return s.EndAttempt(ctx, a.lease, id, n, store.AttemptEnd{Cleanup: text, Document: document})
		})
	})
}

// rows reads what the Store knows, for the document.
func (a *attempt) rows(ctx context.Context) (r evidence.Rows, err error) {
	s := a.m.opts.Store
	if r.Station, err = s.Station(ctx, a.station.ID); err != nil {
		return r, err
	}
	if r.Attempt, err = s.StationAttempt(ctx, a.station.ID, a.current().Number); err != nil {
		return r, err
	}
	if r.Tickets, r.TicketCount, err = s.Tickets(ctx, a.station.ID, r.Attempt.Number); err != nil {
		return r, err
	}
	if r.Attempt.ReadyAt == 0 {
		failed, _, err := s.LastStationEvent(ctx, a.station.ID, r.Attempt.Number, FailedEvent)
		if err != nil {
			return r, err
		}
		r.Failed = failed.Detail
	}
	r.Chain, err = s.StationChain(ctx, a.station.ID)
	return r, err
}

// closeLogs ends the log, and describes what stays.
func (a *attempt) closeLogs() evidence.LogSummary {
	if a.logs == nil {
		return evidence.LogSummary{}
	}
	err := a.logs.Close()
	s, unread := a.logs.Summary()
	if err := errors.Join(err, unread); err != nil {
		a.log.Warn("close the log", "err", err)
	}
	return s
}

// manifest lists what the daemon left; nothing when that cannot be read.
func (a *attempt) manifest(ctx context.Context) evidence.Manifest {
	p := a.plan.Artifacts
	if a.machine == nil || len(p.Paths) == 0 || a.current().State == store.AttemptPreparing {
		return evidence.Manifest{}
	}
	bounded, cancel := context.WithTimeout(ctx, artifactTime)
	defer cancel()
	m, err := a.machine.Artifacts(bounded, p.Paths, p.MaxBytes)
	if err != nil {
		a.log.Warn("list the artifacts", "err", err)
		m.Truncated = true
	}
	return m
}

// closeBridge ends the route for good, with its copy of the credential, and gives
// what passed it.
func (a *attempt) closeBridge(ctx context.Context) gate.Counts {
	a.mu.Lock()
	route := a.route
	a.route = nil
	a.mu.Unlock()
	if route == nil {
		return gate.Counts{}
	}
	bounded, cancel := context.WithTimeout(ctx, bridgeTime+time.Second)
	defer cancel()
	if err := route.Close(bounded, a.current().StopReason); err != nil && ctx.Err() == nil {
		a.log.Warn("close the bridge", "err", err)
	}
	return route.Counts()
}

// recordJSON is the record as the row has it.
func (a *attempt) recordJSON() []byte {
	text, err := json.Marshal(a.record)
	if err != nil { // it holds text and numbers only
		a.log.Error("write down the cleanup", "err", err)
		return []byte("{}")
	}
	return text
}

// cleanedUp reads the record of a row; nil when there is none.
func cleanedUp(text []byte) *evidence.CleanedUp {
	var c evidence.CleanedUp
	if text == nil || json.Unmarshal(text, &c) != nil {
		return nil
	}
	return &c
}
