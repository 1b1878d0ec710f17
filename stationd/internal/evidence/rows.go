package evidence

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/launch"
)

// maxEvents and ms are named once.
const (
	maxEvents = store.MaxAttemptEvents
	ms        = time.Millisecond
)

// Launch is what is durable before anything is started: launch_json of an attempt.
// Evidence reads it back, also in a later stationd.
type Launch struct {
	Command   Command          `json:"command"`
	Grounding launch.Grounding `json:"grounding"`
	Harness   Harness          `json:"harness"`
	UID       int              `json:"uid"` // of the daemon, on the machine of the lease
	GraceMS   int64            `json:"graceMs"`
	Bridge    *Bridge          `json:"bridge,omitempty"` // port, path and host; nil without one
}

// JSON is the redacted document for the row.
func (l Launch) JSON(r *redact.Redactor) ([]byte, error) {
	l.Grounding.Repo = remoteOnly(l.Grounding.Repo)
	data, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("write the launch of an attempt: %w", err)
	}
	return r.JSON(data)
}

// CleanedUp is how far a stop has come: cleanup_json of an attempt.
type CleanedUp struct {
	SignalPath []Signal `json:"signalPath"`
	Cleanup    Cleanup  `json:"cleanup"`
}

// Rows are what the Store knows of an attempt.
type Rows struct {
	Station     store.Station
	Attempt     store.StationAttempt
	Tickets     []store.Ticket
	TicketCount int64
	Chain       store.Chain
	Failed      []byte // detail of the event that says why the attempt was never ready; nil: none
}

// FactsOf fills in what the rows say. What only the running parts know is left to
// the caller: Times.Resumed, Times.Ended of an attempt that is about to end, Egress, Loopback, Logs, Artifacts, and the counts of AgentRuntime.Bridge.
// A part of a row that cannot be read is left out.
func FactsOf(rows Rows) Facts {
	st, a := rows.Station, rows.Attempt
	begun := store.IDTime(a.LeaseID)
	f := Facts{
		StationID: a.StationID, Attempt: a.Number, LeaseID: a.LeaseID, RunID: a.RunID,
		Profile: st.Profile, Org: st.Org, Owner: st.Owner,
		Times: Times{Created: Time(begun), Started: Time(a.StartedAt), Ready: Time(a.ReadyAt), StopRequested: Time(a.StopAt), Ended: Time(a.EndedAt)},
		Process: Process{BootID: a.BootID, ShimPID: a.ShimPID, ShimStart: a.ShimStart, PID: a.DaemonPID, StartTime: a.DaemonStart, PGID: a.DaemonPGID,
			Containment: a.Containment, Exit: Exit{Source: ExitUnknown}},
		Stop:   Stop{Reason: a.StopReason, RequestedBy: a.StopBy},
		Limits: LimitsOf(time.Duration(a.TTLDeadline-begun)*time.Millisecond, time.Duration(a.IdleMS)*time.Millisecond),
		Events: Events{Count: rows.Chain.Count, HeadHash: hex.EncodeToString(rows.Chain.Head[:])},
	}
	var l Launch
	if json.Unmarshal(a.Launch, &l) == nil {
		f.Command, f.Grounding, f.Harness = l.Command, l.Grounding, l.Harness
		f.Process.UID, f.Stop.GraceMS = l.UID, l.GraceMS
		if l.Bridge != nil {
			f.AgentRuntime = &AgentRuntime{Bridge: *l.Bridge, Tickets: ticketsOf(rows.Tickets), TicketCount: rows.TicketCount}
			if a.Port != 0 {
				f.AgentRuntime.Bridge.Port = a.Port
			}
		}
	}
	if a.CommandHash != "" {
		f.Command.Hash, f.Command.Workdir = a.CommandHash, a.Workdir
	}
	if a.Exit != nil {
		if err := json.Unmarshal(a.Exit, &f.Process.Exit); err != nil {
			f.Process.Exit = Exit{Source: ExitUnknown}
		}
	}
	var c CleanedUp
	if json.Unmarshal(a.Cleanup, &c) == nil {
		f.Stop.SignalPath, f.Stop.Cleanup = c.SignalPath, c.Cleanup
	}
	var why Failure
	if json.Unmarshal(rows.Failed, &why) == nil && why.Code != "" {
		f.Stop.Failure = &why
	}
	return f
}

func ticketsOf(rows []store.Ticket) []Ticket {
	out := make([]Ticket, 0, len(rows))
	for _, k := range rows {
		out = append(out, Ticket{TicketID: k.ID, Issuer: k.Issuer, PrincipalScope: k.PrincipalID, PathPrefix: k.Prefix,
			IssuedAt: Time(k.IssuedAt), ExpiresAt: Time(k.ExpiresAt), Uses: k.Uses, RevokedReason: k.RevokedReason})
	}
	return out
}
