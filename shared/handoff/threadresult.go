package handoff

import (
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Statuses of a switch.
const (
	switchCommitted = "committed"
	switchVerified  = "verified_recovery_required"
	switchUncertain = "uncertain"
	switchActive    = "already_active"
)

// ThreadResult is the body of new_thread and resume_thread (tools §8.8, §8.10).
type ThreadResult struct {
	Status     string `json:"status"`
	Transition string `json:"transition_id,omitempty"`
	Operation  string `json:"operation"`
	TerminalID string `json:"terminal_id"`
	SessionID  string `json:"session_id,omitempty"`
	Previous   string `json:"previous_session_id,omitempty"`
	Thread     string `json:"native_thread_id,omitempty"`
	NoTurn     bool   `json:"no_turn_created"`
	NoOp       bool   `json:"no_op,omitempty"`
	Replayed   bool   `json:"replayed,omitempty"`
	DoNotRetry bool   `json:"do_not_retry,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Next       *Next  `json:"next,omitempty"`
}

// threadReplay answers a call that made a transition before.
func (d *Desk) threadReplay(tr store.Transition, id, want string) (Outcome, error) {
	op := store.OpNewThread
	if want != "" {
		op = store.OpResumeThread
	}
	if tr.TerminalID != id || tr.Operation != op || want != "" && tr.TargetThread != want {
		return Outcome{}, fault.New(fault.IdempotencyConflict, "%s in %s: this call was made before for something else", op, id).
			With("transition_id", tr.ID)
	}
	return d.threadResult(tr, true)
}

// threadResult renders what the Store proves of a transition.
func (d *Desk) threadResult(tr store.Transition, replayed bool) (Outcome, error) {
	r := ThreadResult{
		Transition: tr.ID, Operation: tr.Operation, TerminalID: tr.TerminalID, SessionID: tr.TargetID, Previous: tr.SourceID,
		Thread: tr.TargetThread, NoTurn: true, Replayed: replayed, Reason: tr.Error,
	}
	switch tr.Status {
	case store.TransitionCommitted:
		r.Status, r.Reason = switchCommitted, ""
		return Outcome{Body: r}, nil
	case store.TransitionAborted:
		f := fault.New(fault.InputNotStarted, "%s in %s: the attempt was given up: %s", tr.Operation, tr.TerminalID, oneLine(tr.Error, "no reason was recorded")).
			With("transition_id", tr.ID).WithHint("make a new call")
		if tr.DispatchingAt != 0 { // recovery proved that the earlier thread is current
			f = f.WithInput(fault.InputPossible)
		}
		return Outcome{}, f
	case store.TransitionVerified:
		r.Status = switchVerified
	default:
		r.Status, r.SessionID, r.Thread = switchUncertain, "", ""
	}
	r.DoNotRetry, r.Next = true, &Next{"list"}
	return Outcome{Body: r, Failed: true}, nil
}
