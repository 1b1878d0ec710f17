package catalog

import (
	"context"

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
		name:  "respond_interaction",
		title: "Answer a questionnaire step",
		description: `Answers the one questionnaire step that status has just shown for a Turn or a Watch, under interaction_state: pass its interaction_id and exactly one answer with the question_id from there. single_select takes one of the shown option ids in selected_option_ids, free_text a text of one line where the step allows it, confirm the page that submits what was answered before.

Answer with the user's choice, never with a guess. A step that is manual_required, takes several choices or a secret is the user's, in the pane. One step is answered by one call; if another follows it is told as a callback, with an id of its own. Never answer again after response_uncertain.`,
		destructive: true, openWorld: true, types: true,
		form: "give exactly one of turn_id and watch_id",
		run:  runRespondInteraction,
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
		description: `Types the agent's own read-only /status into one idle pane, once, and reports the fields that it shows: model, directory, thread, limits. Only where list advertises it for the row, so the agent is idle, its composer is empty and its version is known. Nothing is stored and the conversation does not change.`,
		types:       true,
		run:         runNativeInspect,
	},
	{
		name:        "identify_foreground",
		title:       "Learn which thread a Codex pane shows",
		description: `Types /status into one idle Codex pane, once, and reports the thread id that it shows, for a row whose native identity is ambiguous. The answer is a diagnosis of this moment: it ends after 30 seconds, authorises nothing and is no argument of any other tool. To send to such a pane use identify_and_send.`,
		types:       true,
		run:         runIdentifyForeground,
	},
	{
		name:  "identify_and_send",
		title: "Identify a Codex pane and send",
		description: `Starts a task in a Codex pane whose thread cannot be told without asking: types /status once, and then, if pane and process are still the same, request once, as send does. Takes the terminal_id of a row that advertises it; where send is advertised use that.

The call returns as send does; then yield. With request_sent false only /status was typed and the task was not: list again before another try. After any other doubt nothing is ever sent again.`,
		destructive: true, openWorld: true, types: true,
		run: runIdentifyAndSend,
	},
	{
		name:        "list_resumable_threads",
		title:       "List native threads that can be resumed",
		description: `Lists earlier native threads (conversations) of a pane's agent and workspace, newest first, and which of them can be resumed in this pane; unavailable_reason says why another cannot. Show the user title, preview and time, and let the user choose. Nothing is typed.`,
		readOnly:    true, idempotent: true,
		run: runListResumableThreads,
	},
	{
		name:        "new_thread",
		title:       "Start a clean native context",
		description: `Starts a new, empty native thread in one idle pane, only on the user's wish: the agent forgets the conversation that it shows now, which stays resumable. Takes the terminal_id of a row that advertises it. status committed says that the switch is proven; then send as list shows the row now: a Codex pane whose thread cannot be told without asking takes no session_id. verified_recovery_required and uncertain say that it may have happened: nothing is sent to the pane until list shows how it stands, and the call is not repeated.`,
		destructive: true, types: true,
		run: runNewThread,
	},
	{
		name:        "resume_thread",
		title:       "Resume a native thread",
		description: `Switches one idle pane to an earlier native thread, only on the user's wish and choice: native_thread_id of a row that list_resumable_threads has just shown as resumable. status committed says that the switch is proven, already_active that the pane shows it already and nothing was typed; then send as list shows the row now. verified_recovery_required and uncertain are not repeated; list shows how the pane stands.`,
		destructive: true, types: true,
		run: runResumeThread,
	},
	{
		name:        "reconcile_binding",
		title:       "Detach a stale Session from a pane",
		description: `Detaches one Session from a pane that no longer holds it: a first attach that never got its thread, or a thread that a human switched away from. Only with the terminal_id and conflicting_session_id that list has just advertised, and the user's consent. Nothing is typed, nothing is adopted; list again afterwards. Each call needs a fresh list.`,
		destructive: true,
		run:         runReconcileBinding,
	},
}
