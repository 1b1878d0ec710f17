package learn

import (
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

// What the recorder did with Codex, and so what its recordings show.
var codexScreens = []screenProof{
	{name: "startup-not-ready", state: agent.NotReady, optional: true},
	{name: "idle-empty", action: Send, state: agent.Idle, also: noDraft},
	{name: "draft", action: Send, state: agent.Idle, also: anyDraft("a draft that nobody has sent")},
	{name: "draft-multiline", action: Send, state: agent.Idle, also: anyDraft("first row of a draft\nsecond row\nthird row")},
	{name: "draft-paste-large", action: Send, state: agent.Idle, also: placeholder("1500 chars")},
	{name: "completed", action: Send, state: agent.Idle, also: noDraft},
	{name: "working", state: agent.Working},
	{name: "interrupted", action: Send, state: agent.Idle, also: noDraft},
	{name: "streaming", state: agent.Working, or: agent.Idle}, // shows no busy row; its records tell
	{name: "interrupted-streaming", action: Send, state: agent.Idle, also: noDraft},
	{name: "approval-exec", action: Approve, state: agent.Approval, also: asks("run_command", "touch approved-x.txt")},
	{name: "approval-after", action: Approve, state: agent.Idle, also: noDraft},
	{name: "approval-longcmd", action: Approve, state: agent.Approval,
		also: asks("run_command", "touch approved-long.txt && echo "+strings.Repeat("abcdefghij ", 60)+"&& cat <<'X'\nline1\nline2\nX")},
	{name: "approval-rejected", action: Approve, state: agent.Idle, also: noDraft},
	{name: "approval-patch", action: Approve, state: agent.Approval, also: asks("edit_files", "")},
	{name: "retrying", state: agent.Working, optional: true},
	{name: "error500", action: Send, state: agent.Idle, also: noDraft},
	{name: "error401", action: Send, state: agent.Idle, also: noDraft},
	{name: "plan-mode-idle", action: Send, state: agent.Idle, also: noDraft},
	{name: "questionnaire", action: Questions, state: agent.Question,
		also: page("Which colour should the door be?", []string{"Red (Recommended)", "Blue"}, 0, oneAnswer)},
	{name: "questionnaire-moved", action: Questions, state: agent.Question,
		also: page("Which colour should the door be?", []string{"Red (Recommended)", "Blue"}, 1, oneAnswer)},
	{name: "questionnaire-q2", action: Questions, state: agent.Question, also: page("Which size?", []string{"Small", "Large"}, 0, oneAnswer)},
	{name: "questionnaire-after", action: Questions, state: agent.Idle, also: noDraft},
	{name: "status-card", action: Lifecycle, state: agent.Idle, also: card},
	{name: "after-new", action: Lifecycle, state: agent.Idle, also: noDraft},
	{name: "after-resume", action: Lifecycle, state: agent.Idle, also: noDraft},
	{name: "exited", state: agent.Exited},
}

var codexTranscripts = []transcriptProof{
	{name: "first-turn", action: Send, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.TurnCompleted}, also: prompts("SCN=ECHO the first turn")},
	{name: "interrupted", action: Send, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.TurnAborted}, also: prompts("SCN=GATE:working")},
	{name: "interrupted-streaming", kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.TurnAborted}},
	{name: "approval-approved", action: Approve, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.TurnCompleted},
		also: called([2]string{"run_command", "touch approved-x.txt"})},
	{name: "approval-rejected", action: Approve, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.TurnAborted},
		also: called([2]string{"run_command", "cat <<'X'"})},
	{name: "patch-approved", action: Approve, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.TurnCompleted}},
	{name: "error-500", kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.TurnFailed}},
	{name: "error-401", kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.TurnFailed}},
	{name: "questionnaire", action: Questions, kinds: []rule.Kind{rule.TurnStarted, rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.TurnCompleted},
		also: called([2]string{"questionnaire", "Which colour should the door be?"})},
}
