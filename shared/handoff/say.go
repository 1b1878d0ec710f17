package handoff

import (
	"fmt"
	"strings"

	"drawbridge/shared/agent"
)

// maxText bounds an agent's answer in a callback or a result (core §14).
const maxText = 4000

// maxSummary bounds a request in a summary (core §14).
const maxSummary = 180

// The bodies of callbacks: plain text for the model that talks to the user.
// What happened, the ids, bounded text, what may be done next. No token,
// fingerprint, path or key plan (core §8.1).

func sayDone(kind agent.Kind, turn, session, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s finished the task.\nturn_id: %s\nsession_id: %s\n", title(kind), turn, session)
	if strings.TrimSpace(text) == "" {
		b.WriteString("\nThe agent ended without a final message. status shows what the pane shows.\n")
	} else {
		fmt.Fprintf(&b, "\n%s\n", clip(strings.TrimSpace(text), maxText))
	}
	return b.String()
}

func sayFailed(kind agent.Kind, turn, session, why string) string {
	return fmt.Sprintf("%s ended the task with an error.\nturn_id: %s\nsession_id: %s\n\n%s\n\nA new send may try again once the cause is known.\n",
		title(kind), turn, session, clip(oneLine(why, "no reason was recorded"), maxText))
}

func sayInterrupted(kind agent.Kind, turn, session string) string {
	return fmt.Sprintf("%s stopped: the turn was interrupted in its pane (Escape, or a rejected approval).\nturn_id: %s\nsession_id: %s\n\nA new send may continue in the same context.\n",
		title(kind), turn, session)
}

func sayStalled(kind agent.Kind, turn, session, why string) string {
	return fmt.Sprintf("The task of %s is stalled: %s\nturn_id: %s\nsession_id: %s\n\nstatus shows the pane. renew goes on watching where that is possible; close ends the record. Nothing is sent again by itself.\n",
		title(kind), why, turn, session)
}

// sayApproval tells that a dialog waits; why says what keeps approve from deciding
// it, "" where it may.
func sayApproval(kind agent.Kind, turn, session, what, command, why string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s waits for an approval: %s\nturn_id: %s\nsession_id: %s\n", title(kind), what, turn, session)
	if command != "" {
		fmt.Fprintf(&b, "\n%s\n", clip(command, maxText))
	}
	if why != "" {
		fmt.Fprintf(&b, "\nOnly the user can decide it, in the pane: %s. The decision is noticed by itself.\n", why)
		return b.String()
	}
	b.WriteString("\nThe user decides: show what waits, call status, and then approve with the decision. A decision in the pane itself is noticed too.\n")
	return b.String()
}

func sayDoubt(kind agent.Kind, turn, session, why string) string {
	return fmt.Sprintf("A decision about an approval of %s is in doubt: %s\nturn_id: %s\nsession_id: %s\n\nNothing is pressed again by itself. The user looks at the pane and decides there if the dialog still stands.\n",
		title(kind), why, turn, session)
}

func sayWatch(kind agent.Kind, watch, terminal, what, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Watch on %s: %s\nwatch_id: %s\nterminal_id: %s\n", title(kind), what, watch, terminal)
	if text != "" {
		fmt.Fprintf(&b, "\n%s\n", clip(strings.TrimSpace(text), maxText))
	}
	return b.String()
}

func sayWatchApproval(kind agent.Kind, watch, terminal, command string) string {
	what := "the agent waits for an approval. The user decides in the live pane; no approval tool applies to a Watch."
	return sayWatch(kind, watch, terminal, what, command)
}

func title(kind agent.Kind) string {
	switch kind {
	case agent.Codex:
		return "Codex"
	case agent.Claude:
		return "Claude Code"
	}
	return string(kind)
}

func oneLine(s, empty string) string {
	if s = strings.Join(strings.Fields(s), " "); s == "" {
		return empty
	}
	return s
}
