package handoff

import (
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Next tells a controller what to do with a result.
type Next struct {
	Action string `json:"action"` // yield, status, inspect, retry, list, none
}

// Message names a dispatched message.
type Message struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

// Budget is advice on the number of response rounds (core §5.1).
type Budget struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

// SendResult is the body of a send (tools §8.12).
type SendResult struct {
	SessionID        string  `json:"session_id"`
	TurnID           string  `json:"turn_id"`
	Message          Message `json:"message"`
	Delivered        bool    `json:"delivered"`
	Status           string  `json:"status"`
	Outcome          string  `json:"submission_outcome"`
	Receipt          string  `json:"delivery_receipt,omitempty"`
	Background       bool    `json:"background"`
	CallbackExpected bool    `json:"callback_expected"`
	SafeToRetry      bool    `json:"safe_to_retry"`
	DoNotRetry       bool    `json:"do_not_retry"`
	TerminalInput    string  `json:"terminal_input"`
	Replayed         bool    `json:"replayed,omitempty"`
	Reason           string  `json:"reason,omitempty"`
	Budget           Budget  `json:"budget"`
	Next             Next    `json:"next"`
}

// sendResult renders what the Store proves of a submission.
func (d *Desk) sendResult(sub store.Submission, replayed bool, why string) Outcome {
	x := sub.Dispatch
	r := SendResult{
		SessionID: sub.Session.ID, TurnID: sub.Turn.ID,
		Message:    Message{ID: x.MessageID, Type: x.Kind},
		Background: true, CallbackExpected: sub.Turn.Route != nil,
		Replayed: replayed, Reason: why, Budget: budget(sub.Turn),
		DoNotRetry: true, TerminalInput: string(fault.InputSent), Receipt: x.Status,
		Next: Next{"status"},
	}
	if r.Reason == "" {
		r.Reason = sub.Turn.StalledReason
	}
	status := x.Status
	if x.ResolvedAt != 0 && open(status) { // somebody closed the Turn under it
		status, r.Reason = store.DispatchUncertain, "the turn was closed before its submission was proven"
		r.CallbackExpected = false
	}
	switch status {
	case store.DispatchAccepted:
		r.Delivered, r.Status, r.Outcome = true, "async_pending", "agent_accepted"
		r.DoNotRetry, r.Reason = false, ""
		if r.CallbackExpected {
			r.Next = Next{"yield"}
		}
	case store.DispatchNotAccepted:
		r.Status, r.Outcome = "submission_not_accepted", "not_accepted"
		r.Next = Next{"inspect"}
	case store.DispatchAborted:
		r.Status, r.Outcome, r.Receipt = "submission_aborted", "aborted", ""
		r.SafeToRetry, r.DoNotRetry, r.TerminalInput = x.SafeToRetry, !x.SafeToRetry, string(fault.InputNone)
		r.CallbackExpected, r.Next = false, Next{"list"}
		if x.SafeToRetry {
			r.Next = Next{"retry"}
		}
	case store.DispatchUncertain:
		r.Status, r.Outcome, r.Receipt = "submission_uncertain", "uncertain", x.LastProvenStage
		r.TerminalInput = string(fault.InputPossible)
		if x.ErrorCode == string(fault.SubmissionUnfenced) {
			r.Outcome = "unfenced"
		}
	default: // prepared, text_injected, enter_dispatched: the monitor goes on
		r.Status, r.Outcome = "submission_pending_acceptance", "pending_acceptance"
		if x.Status != store.DispatchEnterDispatched {
			r.TerminalInput = string(fault.InputPossible)
		}
		if r.Reason == "" {
			r.Reason = "acceptance is not proven yet; a callback follows when it is decided"
		}
	}
	return Outcome{Body: r, Failed: !r.Delivered}
}

// open reports whether a dispatch of this status is still to be decided.
func open(status string) bool {
	return status == store.DispatchPrepared || status == store.DispatchTextInjected || status == store.DispatchEnterDispatched
}

// budget gives the level of core §5.1.
func budget(t store.Turn) Budget {
	const first, warning = 30, 40
	n := t.ResponseRoundsUsed
	switch {
	case n >= t.HardLimit:
		return Budget{"hard_stop", "stop asking and close the turn"}
	case n >= t.SoftLimit:
		return Budget{"soft_stop", "finish with the next answer"}
	case n >= warning:
		return Budget{"warning", "bring the exchange to an end"}
	case n >= first:
		return Budget{"converge", "narrow the exchange down"}
	}
	return Budget{"normal", "no limit is near"}
}
