package catalog

import (
	"context"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// Instructions are given to the client at the start of a session.
const Instructions = `drawbridge hands work to coding agents (Codex, Claude Code) that a person already runs in tmux, and tells you what becomes of it.

1. Start with agent_knock_knock_list. It shows every agent pane, what runs there, and under available_actions what may be done now, with the arguments filled in. Ids come from list, status and send results only; never make one up. A short_ref such as @1a2b3c4d5e is for people, not for arguments.
2. agent_knock_knock_send starts one task and comes back as soon as the agent has taken it. Then yield: end your turn. The answer, an approval request or a stall arrives later as a callback in this conversation. Do not poll.
3. What list and status show is a snapshot. Each tool checks again and refuses what is no longer true; a refusal says whether anything was typed (terminal_input), whether the same call may be repeated (safe_to_retry, do_not_retry) and what to do next (next).
4. Never repeat a call whose result says do_not_retry or terminal_input "possible": the agent may already be working on it.`

// spec is one tool as it is written here: what a model reads, what a Host may
// decide by, and how it is run.
type spec struct {
	name        string // without Prefix
	title       string
	description string

	readOnly    bool
	destructive bool
	idempotent  bool
	openWorld   bool

	form  string // which arguments go together, for the error that a schema cannot word
	types bool   // may press keys in a pane: an unknown failure may have typed
	run   func(context.Context, Handoff, handoff.Call, []byte) (handoff.Outcome, error)
}

var tools = []spec{
	{
		name:  "list",
		title: "List agent panes, Turns and Watches",
		description: `Shows every tmux pane in which a Codex or Claude Code agent runs, the Turns (tasks you sent) and the Watches, and what may be done with each now. Call it first, and again before you act on something you saw a while ago.

All ids for the other tools come from here: terminals[].id is a terminal_id, managed.session_id a session_id, current_turn.turn_id a turn_id, terminal_watches[].watch_id a watch_id. available_actions names the tools that apply to a row with their arguments filled in; what is not listed there is refused. Where several panes fit, ask the user which one; show short_ref, workspace and target.

Nothing is typed into any pane. With all=true settled Watches and Turns whose pane is gone are shown too.`,
		readOnly: true, idempotent: true,
		run: runList,
	},
	{
		name:  "status",
		title: "Show one Turn, Watch or pane",
		description: `Shows one Turn (turn_id), one Watch (watch_id) or one raw pane (the terminal id that list gave, in conversation_id) in detail: state, a bounded excerpt of the screen, pending approval or question, the state of its callback, and the actions that apply now. Give exactly one id.

Use it when a callback asks for a decision, when the user asks how a task is going, or before acting on something that may have changed. Do not poll it: completion arrives as a callback. Nothing is typed into the pane.`,
		readOnly: true, idempotent: true,
		form: "give exactly one of turn_id, conversation_id and watch_id",
		run:  runStatus,
	},
	{
		name:  "send",
		title: "Send a task to an agent",
		description: `Starts a new task (a Turn): types request into one idle agent pane and submits it once. Give the exact words for the agent; it does not see this conversation. Target: session_id to go on in a known Session, or terminal_id for the pane's current context, both from list; with neither, exactly one pane must be ready.

The call returns when the agent has taken the request (submission_outcome agent_accepted, next.action yield). Then yield; the agent's answer comes as a callback with this turn_id. Any other outcome is an error that says what is known: pending_acceptance and uncertain must never be sent again; inspect them with status. A request that begins with / or ! is refused: native commands and shell escapes are the user's.

Retry form: turn_id alone, only where list or status advertises retry_submission.`,
		destructive: true, openWorld: true, types: true,
		form: "give request with at most one of session_id and terminal_id, or turn_id alone",
		run:  runSend,
	},
	{
		name:  "watch",
		title: "Watch a task that a human started",
		description: `Observes one task that somebody started by hand in a pane and calls back once when it ends, and when it asks for an approval. Takes the terminal_id of a row that advertises watch, so the agent must be working and the work must not belong to a Turn (Turns call back by themselves).

Returns the Watch with its watch_id; then yield. Nothing is typed into the pane, ever: approvals seen by a Watch are decided by the user in the live pane.`,
		run: runWatch,
	},
	{
		name:        "unwatch",
		title:       "Stop a Watch",
		description: `Ends one Watch by its watch_id. The observed task goes on untouched. Ending a Watch that has already ended changes nothing and returns it.`,
		idempotent:  true,
		run:         runUnwatch,
	},
	{
		name:        "renew",
		title:       "Go on monitoring a stalled Turn",
		description: `Goes on waiting for a Turn whose status is stalled (quiet for too long) while its pane and agent process are still the same. minutes sets the new inactivity limit. The hard lifetime since the first start is not extended. Nothing is typed. After it, yield; the callback comes when the agent ends.`,
		idempotent:  true,
		form:        "give exactly one of turn_id and conversation_id",
		run:         runRenew,
	},
	{
		name:        "retry_callback",
		title:       "Deliver a waiting callback now",
		description: `Makes the callback of one Turn due at once if its delivery failed and waits for another try (callback.status retry_wait in status), and reports the outcome. The same delivery is repeated with the same ids. A callback that the Host may already have, or refused for good, is never delivered again.`,
		idempotent:  true, openWorld: true,
		form: "give exactly one of turn_id and conversation_id",
		run:  runRetryCallback,
	},
	{
		name:        "cancel",
		title:       "Interrupt a running Turn",
		description: `Interrupts the agent's work on one Turn: one Escape in its pane, which also denies an open approval. The pane and the agent stay. Only on the user's wish. Work done so far is not undone. No callback follows.`,
		destructive: true, types: true,
		form: "give exactly one of turn_id and conversation_id",
		run:  runCancel,
	},
	{
		name:        "close",
		title:       "Close a Turn's record",
		description: `Gives up the record of one Turn: its monitor ends, its undelivered callbacks are dropped, and the pane becomes free for another send. Nothing is typed and the agent is not stopped; use cancel for that. Also resolves an orphan that list shows: pass the expected_message_id or expected_transition_id exactly as advertised. With reason superseded_by_human_context_switch it hands the pane back after a human took it over, only where list offers it and the user agrees.`,
		destructive: true, idempotent: true,
		form: "give exactly one of turn_id and conversation_id, and at most one of expected_message_id and expected_transition_id",
		run:  runClose,
	},
	{
		name:  "respond",
		title: "Answer inside a Turn",
		description: `Answers the agent inside the same Turn while its status is waiting_for_controller and no dialog is open: types request once and submits it once, as send does, and keeps the turn_id. For an approval use approve, for a questionnaire respond_interaction.

Give the exact words for the agent. Then yield; the next callback of the Turn follows. Outcomes other than agent_accepted are those of send, and are never repeated.`,
		destructive: true, openWorld: true, types: true,
		run: runRespond,
	},
	{
		name:        "respond_interaction",
		title:       "Answer a questionnaire step",
		description: `Answers the one pending questionnaire step that status shows (interaction_id, question_id and option ids from there), for a Turn or a Watch. Exactly one answer. ` + later,
		destructive: true, openWorld: true, types: true,
		form: "give exactly one of turn_id and watch_id",
		run:  notYet,
	},
	{
		name:  "approve",
		title: "Decide an approval prompt",
		description: `Decides the one approval prompt that status has just shown for a Turn (turn_id), or for a Codex pane in which a person started the task (terminal_id): decision approve_once, which allows that one call and nothing more, or reject, which ends the agent's turn. An option that allows more than the one call is never chosen.

Only on the user's explicit decision about exactly this prompt: call status, show the user the command, and call approve with the answer. Each decision needs a fresh status; one whose prompt has changed since is refused and nothing is pressed. Where approval_state.approvable is false the user decides in the pane. Then yield.`,
		destructive: true, openWorld: true, types: true,
		form: "give exactly one of turn_id and terminal_id",
		run:  runApprove,
	},
	{
		name:        "native_inspect",
		title:       "Run the agent's own status screen",
		description: `Types the agent's own read-only /status into an idle pane and reports what it shows. Stores nothing. ` + later,
		types:       true,
		run:         notYet,
	},
	{
		name:        "identify_foreground",
		title:       "Learn which thread a Codex pane shows",
		description: `Types /status into a Codex pane and reports the thread id it shows. The answer is for diagnosis and lasts 30 seconds; it authorises nothing. ` + later,
		types:       true,
		run:         notYet,
	},
	{
		name:        "identify_and_send",
		title:       "Identify a Codex pane and send",
		description: `Types /status into a Codex pane and then, if nothing changed meanwhile, one task, as send does. For panes whose thread is ambiguous. ` + later,
		destructive: true, openWorld: true, types: true,
		run: notYet,
	},
	{
		name:        "list_resumable_threads",
		title:       "List native threads that can be resumed",
		description: `Lists earlier native threads of a pane's agent and workspace, and which of them can be resumed there. Nothing is typed. ` + later,
		readOnly:    true, idempotent: true,
		run: notYet,
	},
	{
		name:        "new_thread",
		title:       "Start a clean native context",
		description: `Starts a new native thread in an idle pane, on the user's wish. The old one stays resumable. ` + later,
		destructive: true, types: true,
		run: notYet,
	},
	{
		name:        "resume_thread",
		title:       "Resume a native thread",
		description: `Switches an idle pane to one earlier native thread that list_resumable_threads shows as resumable, on the user's wish. ` + later,
		destructive: true, types: true,
		run: notYet,
	},
	{
		name:        "reconcile_binding",
		title:       "Detach a stale Session from a pane",
		description: `Detaches one Session that list shows in conflict with what the pane really holds. Only where list advertises it and the user agrees. Nothing is typed and nothing is adopted. ` + later,
		destructive: true,
		run:         notYet,
	},
}

// later ends the description of a tool that is listed and not run.
const later = `Not run by this release: the call is refused with not_available_yet and has no effect.`

func notYet(context.Context, Handoff, handoff.Call, []byte) (handoff.Outcome, error) {
	return handoff.Outcome{}, fault.New(fault.NotAvailableYet, "this tool is not run by this release; nothing was done").
		WithHint("do it in the pane by hand, or use another advertised action")
}

func runList(ctx context.Context, h Handoff, _ handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ListInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("idleTimeoutMinutes", in.IdleTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	if in.Status == statusAlias {
		in.Status = statusWaiting
	}
	return h.List(ctx, in)
}

func runStatus(ctx context.Context, h Handoff, _ handoff.Call, args []byte) (handoff.Outcome, error) {
	in, err := statusInput(args)
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Status(ctx, in)
}

func runSend(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	in, err := sendInput(args)
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Send(ctx, call, in)
}

func runWatch(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.WatchInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("hardTimeoutMinutes", in.HardTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Watch(ctx, call, in)
}

func runUnwatch(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.UnwatchInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := watchID(in.WatchID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Unwatch(ctx, call, in)
}

func runRenew(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		Minutes *float64 `json:"minutes"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("minutes", in.Minutes); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Renew(ctx, call, handoff.RenewInput{TurnID: turn, Minutes: in.Minutes})
}

func runRetryCallback(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in turnArgs
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.RetryCallback(ctx, call, handoff.RetryCallbackInput{TurnID: turn})
}

func runCancel(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("idleTimeoutMinutes", in.IdleTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Cancel(ctx, call, handoff.CancelInput{TurnID: turn, IdleTimeoutMinutes: in.IdleTimeoutMinutes})
}

func runApprove(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ApproveInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	err := turnID("turn_id", in.TurnID)
	if in.TerminalID != "" {
		err = idKind("terminal_id", in.TerminalID, "an id")
	}
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Approve(ctx, call, in)
}

func runRespond(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.RespondInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := turnID("turn_id", in.TurnID); err != nil {
		return handoff.Outcome{}, err
	}
	if err := request(in.Request); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Respond(ctx, call, in)
}

func runClose(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		Reason               string `json:"reason"`
		ExpectedMessageID    string `json:"expected_message_id"`
		ExpectedTransitionID string `json:"expected_transition_id"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if in.ConversationID != nil && in.ExpectedTransitionID != "" && terminalForm.MatchString(*in.ConversationID) {
		// A transition belongs to a pane, not to a Turn.
		turn, err = *in.ConversationID, idKind("conversation_id", *in.ConversationID, "an id")
	}
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Close(ctx, call, handoff.CloseInput{
		TurnID: turn, Reason: fault.CleanLine(in.Reason),
		ExpectedMessageID: in.ExpectedMessageID, ExpectedTransitionID: in.ExpectedTransitionID,
	})
}
