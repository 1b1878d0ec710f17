package handoff

import (
	"context"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// toolName gives the full name of a tool.
func toolName(short string) string { return "agent_knock_knock_" + short }

// turnActions reads what actionsOf needs.
func (d *Desk) turnActions(ctx context.Context, t store.Turn) (Actions, error) {
	var x store.Dispatch
	if t.CurrentMessageID != "" {
		var err error
		if x, err = d.Store.Dispatch(ctx, t.CurrentMessageID); err != nil {
			return nil, err
		}
	}
	rows, err := d.Store.TurnCallbacks(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	return d.actionsOf(t, x, rows), nil
}

// actionsOf says what may be done with a Turn now, from its current dispatch (the
// zero value where it has none) and its callbacks. It is a snapshot: every tool
// checks again.
func (d *Desk) actionsOf(t store.Turn, x store.Dispatch, callbacks []store.Callback) Actions {
	acts := Actions{"status": turnAction("status", t)}
	uncertain := x.Status == store.DispatchUncertain || x.Status == store.DispatchNotAccepted
	switch t.Status {
	case store.TurnWaitingForAgent, store.TurnRunning, store.TurnWaitingForController:
		a := turnAction("cancel", t)
		a.RequiresUserIntent = true
		acts["cancel"] = a
	case store.TurnStalled:
		switch {
		case uncertain && reprovable(x):
			a := turnAction("send", t)
			a.RequiresUserIntent = true
			acts["retry_submission"] = a
		case !uncertain && d.now().UnixMilli() < t.HardDeadlineAt:
			acts["renew"] = turnAction("renew", t)
		}
	}
	if t.Status != store.TurnClosed {
		a := turnAction("close", t)
		a.RequiresUserIntent = t.Blocks()
		acts["close"] = a
	}
	for _, c := range callbacks {
		if c.Status == store.CallbackRetryWait {
			acts["retry_callback"] = turnAction("retry_callback", t)
		}
	}
	return acts
}

// reprovable reports whether it may still be proven that the agent never took a
// submission: the draft was seen to stay, or Enter is not known to have been sent.
// An answer is not typed again.
func reprovable(x store.Dispatch) bool {
	if x.Kind == store.KindAnswer || x.ErrorCode == string(fault.SubmissionUnfenced) {
		return false
	}
	return x.Status == store.DispatchNotAccepted ||
		x.LastProvenStage == store.DispatchPrepared || x.LastProvenStage == store.DispatchTextInjected
}

func turnAction(short string, t store.Turn) Action {
	return Action{Tool: toolName(short), Arguments: map[string]any{"turn_id": t.ID}}
}

// Contracts tells a controller how to read available_actions.
type Contracts struct {
	Version      int               `json:"version"`
	Instructions []string          `json:"instructions"`
	Fields       map[string]string `json:"field_semantics"`
	Actions      map[string]string `json:"actions"`
}

var contracts = Contracts{
	Version: 18,
	Instructions: []string{
		"Call only actions that a row or turn shows in available_actions, with the arguments as they stand there plus missing_required.",
		"An action with requires_user_intent needs the user's wish for exactly that; one with requires_explicit_user_confirmation, the user's word about exactly what is shown.",
		"Where before_call is given, do that first: approve and respond_interaction act only on what status has just shown to you.",
		"After a send that answers async_pending, end your turn: the result arrives as a callback. Do not poll.",
		"Never send again after do_not_retry; look at status and tell the user.",
		"Availability is a snapshot; every tool checks again and may refuse.",
	},
	Fields: map[string]string{
		"activity_state":            "screen and records joined; idle only when nothing says otherwise",
		"native_identity_state":     "how well the pane's native thread is known without typing",
		"managed.current_turn":      "the turn that owns the pane's last submission",
		"blocking_turns":            "unfinished turns that keep the pane from a send, each with a way out",
		"approval_state":            "approvable says that approve may decide it; else the user decides in the pane, and reason says why",
		"scope":                     "whose context a send reaches: the proven session, whatever the pane shows, or a first attach",
		"unavailable_managed_turns": "turns whose pane or process is not there",
		"management_state":          "conflict: the bound session does not fit what the pane shows; conflict_kind says how",
		"handoff_decision":          "a person took the pane of an open turn for something else; the user decides what becomes of the turn",
		"unresolved_transition":     "a thread switch whose end is not proven; close with its id ends it as the pane shows it",
	},
	Actions: map[string]string{
		"send":             "start a task in this pane's context",
		"retry_submission": "send({turn_id}): try a submission again that is proven not to be taken",
		"approve":          "decide the one approval that status has just shown; approve_once allows that one call and nothing more",
		"respond":          "answer the agent inside the same turn",
		"unwatch":          "stop to observe such work; it goes on",
		"watch":            "be told when work that a human started ends; types nothing",
		"status":           "look at a turn, a watch, or a raw terminal",
		"cancel":           "interrupt the running turn once",
		"close":            "end the record of a turn; types nothing",
		"renew":            "go on watching a stalled turn",
		"retry_callback":   "deliver a waiting callback now",

		"respond_interaction":    "answer the one step of a questionnaire that status has just shown",
		"native_inspect":         "run the agent's own status screen once and read it",
		"identify_foreground":    "ask a Codex pane once which thread it shows; the answer authorises nothing",
		"identify_and_send":      "ask that and start a task, without letting the pane go in between",
		"list_resumable_threads": "list the earlier threads of this pane's workspace; types nothing",
		"new_thread":             "go on in a clean native thread; afterwards send as list shows it",
		"resume_thread":          "go on in an earlier native thread; afterwards send as list shows it",
		"reconcile_binding":      "detach the session that does not fit this pane any more; types nothing",
	},
}
