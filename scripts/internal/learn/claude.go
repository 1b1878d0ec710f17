package learn

import (
	"fmt"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// What the recorder did with Claude Code, and so what its recordings show.
var claudeScreens = []screenProof{
	{name: "idle-empty-manual", action: Send, state: agent.Idle, also: noDraft},
	{name: "draft-single-line", action: Send, state: agent.Idle, also: anyDraft("a draft that nobody has sent")},
	{name: "draft-multiline-paste-2", action: Send, state: agent.Idle, also: anyDraft("first row of a draft\nsecond row")},
	{name: "draft-multiline-paste-4", action: Send, state: agent.Idle, also: placeholder("+4 lines")},
	{name: "draft-805-chars", action: Send, state: agent.Idle, also: placeholder("[Pasted text #")},
	{name: "slash-menu-status", state: agent.Blocked},
	{name: "draft-bang-bash-mode", state: agent.Blocked},
	{name: "idle-after-turn", action: Send, state: agent.Idle, also: noDraft},
	{name: "working", state: agent.Working},
	{name: "interrupted-before-output", action: Send, state: agent.Idle, also: anyDraft("SCN=GATE:working")},
	{name: "working-streaming", state: agent.Working},
	{name: "interrupted-streaming", action: Send, state: agent.Idle, also: noDraft},
	{name: "permission-bash", action: Approve, state: agent.Approval, also: asks("run_command", "touch approved-x.txt")},
	{name: "after-approve-bash", action: Approve, state: agent.Idle, also: noDraft},
	{name: "permission-bash-multiline", action: Approve, state: agent.Approval,
		also: asks("run_command", "touch approved-long.txt && echo "+strings.Repeat("abcdefghij ", 60)+"&& cat <<'X'\nline1\nline2\nX")},
	{name: "after-reject-esc", action: Approve, state: agent.Idle, also: noDraft},
	{name: "permission-write", action: Approve, state: agent.Approval, also: asks("edit_files", "edited-x.txt")},
	{name: "permission-edit", action: Approve, state: agent.Approval, also: asks("edit_files", "edited-x.txt")},
	{name: "permission-webfetch", action: Approve, state: agent.Approval, also: asks("fetch", "https://docs.example/page")},
	{name: "permission-two-bash-first", action: Approve, state: agent.Approval, also: asks("run_command", "touch both-1.txt")},
	{name: "permission-two-bash-second", action: Approve, state: agent.Approval, also: asks("run_command", "touch both-2.txt")},
	{name: "api-error-400", action: Send, state: agent.Idle, also: noDraft},
	{name: "api-retry-529", state: agent.Working, optional: true},
	{name: "ask-single", action: Questions, state: agent.Question, also: page("Which size?", []string{"Small", "Large"}, 0, oneAnswer)},
	{name: "ask-single-answered", action: Questions, state: agent.Idle, also: noDraft},
	{name: "ask-single-other-focused", action: Questions, state: agent.Question, also: page("Which size?", []string{"Small", "Large"}, 2, oneAnswer)},
	{name: "ask-single-other-typed", action: Questions, state: agent.Question, also: page("Which size?", []string{"Small", "Large"}, 2, ownText("neither of them"))},
	{name: "ask-multi-q1", action: Questions, state: agent.Question, also: page("Which checks should run?", []string{"Unit", "Lint", "Race"}, 0, several)},
	{name: "ask-multi-q1-toggled", action: Questions, state: agent.Question, also: page("Which checks should run?", []string{"Unit", "Lint", "Race"}, 0, several)},
	{name: "ask-multi-q2", action: Questions, state: agent.Question, also: page("Which branch?", []string{"main", "next"}, 0, oneAnswer)},
	{name: "ask-multi-review", action: Questions, state: agent.Question, also: reviewed},
	{name: "ask-cancelled", action: Questions, state: agent.Idle, also: noDraft},
	{name: "idle-plan-mode", action: Send, state: agent.Idle, also: noDraft},
	{name: "plan-approval", action: Approve, state: agent.Approval, also: asks("plan", "")},
	{name: "plan-rejected", action: Approve, state: agent.Idle, also: noDraft},
	{name: "status-panel", action: Lifecycle, state: agent.Blocked, also: card},
	{name: "model-picker", state: agent.Blocked},
	{name: "resume-picker", state: agent.Blocked},
	{name: "transcript-view-idle", state: agent.Blocked},
	{name: "after-clear", action: Lifecycle, state: agent.Idle, also: noDraft},
	{name: "after-resume", action: Lifecycle, state: agent.Idle, also: noDraft},
	{name: "exited", state: agent.Exited},
}

func ownText(text string) func(*agent.Page) error {
	return func(p *agent.Page) error {
		if p.Typed != text {
			return fmt.Errorf("the text of one's own is read as %q, and it is %q", p.Typed, text)
		}
		return nil
	}
}

func reviewed(_ *prover, _ terminal.Screen, r agent.Reading) error {
	if r.Prompt == nil || r.Prompt.Page == nil || !r.Prompt.Page.Review {
		return fmt.Errorf("the page that submits is not seen: %+v", r.Prompt)
	}
	return nil
}

var (
	claudeDone    = []rule.Kind{rule.UserMessage, rule.Answer, rule.TurnCompleted}
	claudeCalled  = []rule.Kind{rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.Answer, rule.TurnCompleted}
	claudeRefused = []rule.Kind{rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.TurnAborted}
)

var claudeTranscripts = []transcriptProof{
	{name: "first-turn", action: Send, kinds: claudeDone, also: prompts("SCN=ECHO the first turn")},
	{name: "interrupted-streaming", action: Send, kinds: []rule.Kind{rule.UserMessage, rule.UserMessage, rule.TurnAborted}, also: prompts("SCN=GATE:working", "SCN=STREAM:40")},
	{name: "approved-bash", action: Approve, kinds: claudeCalled, also: called([2]string{"run_command", "touch approved-x.txt"})},
	{name: "rejected-bash-esc", action: Approve, kinds: claudeRefused, also: called([2]string{"run_command", "cat <<'X'"})},
	{name: "approved-edit", action: Approve,
		kinds: []rule.Kind{rule.UserMessage, rule.CallBegan, rule.CallOutput, rule.CallBegan, rule.CallOutput, rule.Answer, rule.TurnCompleted},
		also:  called([2]string{"edit_files", "edited-x.txt"}, [2]string{"edit_files", "edited-x.txt"})},
	{name: "rejected-webfetch", action: Approve, kinds: claudeRefused, also: called([2]string{"fetch", "https://docs.example/page"})},
	{name: "two-bash-first-approved-second-rejected", action: Approve,
		kinds: []rule.Kind{rule.UserMessage, rule.CallBegan, rule.CallBegan, rule.CallOutput, rule.CallOutput, rule.TurnAborted},
		also:  called([2]string{"run_command", "touch both-1.txt"}, [2]string{"run_command", "touch both-2.txt"})},
	{name: "api-error-400", kinds: []rule.Kind{rule.UserMessage, rule.TurnFailed}},
	{name: "api-error-529-gave-up", kinds: []rule.Kind{rule.UserMessage, rule.TurnFailed}},
	{name: "ask-single", action: Questions, kinds: claudeCalled, also: called([2]string{"questionnaire", "Which size?"})},
	{name: "ask-single-other", action: Questions, kinds: claudeCalled, also: called([2]string{"questionnaire", "Which size?"})},
	{name: "ask-multi-answered", action: Questions, kinds: claudeCalled, also: called([2]string{"questionnaire", "Which checks should run?"})},
	{name: "ask-cancelled", action: Questions, kinds: claudeRefused, also: called([2]string{"questionnaire", "Which size?"})},
}
