package handoff

import (
	"context"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Kinds of open prompts in a monitor's state.
const (
	promptApproval = "approval"
	promptQuestion = "question"
)

// clearAfter is how many consecutive screens must show the agent at work or at
// its composer instead of a notified prompt, while its call is still unanswered,
// until the prompt counts as gone. Any other screen may only hide it.
const clearAfter = 2

// prompt notices a dialog that waits for a person, once for each exact prompt,
// and that it is gone. A dialog counts only where transcript and screen agree: an
// unanswered call that may ask, of the dialog's kind and command, and one complete
// region on two equal captures. soon is when to look again, 0 for the next event
// or poll.
func (m *Monitor) prompt(ctx context.Context, p agent.Progress, screen *terminal.Screen) (soon time.Duration, err error) {
	if m.keep.Prompt == "" && m.turn.Status == store.TurnWaitingForController {
		m.keep.Prompt = "unknown" // decided, and its outcome never stored
	}
	calls, why := waiting(p), ""
	if len(calls) == 0 && m.standsUnsaid(p, screen) {
		calls, why = p.Unsaid, "the agent does not say that it waits for a decision, though its dialog stands there; decide in the pane"
	}
	if len(calls) == 0 {
		err := m.promptGone(ctx)
		m.keep.Call, m.keep.Gone, m.asked = "", 0, ""
		return 0, err
	}
	open := func(id string) bool { return slices.ContainsFunc(calls, func(c agent.Call) bool { return c.ID == id }) }
	if m.keep.Call != "" && !open(m.keep.Call) {
		if err := m.promptGone(ctx); err != nil {
			return 0, err
		}
		m.keep.Call = ""
	}
	if m.keep.Call == "" {
		m.keep.Call, m.keep.Gone = calls[0].ID, 0
	}
	if newest := calls[len(calls)-1].ID; newest != m.asked {
		m.asked, m.askedAt = newest, m.desk.now()
	}
	fresh := m.keep.Prompt == "" && m.desk.now().Sub(m.askedAt) < askingFor
	if fresh {
		soon = askingPoll
	}
	if screen == nil {
		if !fresh {
			return 0, nil
		}
		if screen = m.capture(ctx); screen == nil {
			return soon, nil
		}
	}
	reading := m.adapter.Read(m.at.Process.Version, *screen)
	if reading.State != agent.Approval && reading.State != agent.Question {
		if m.keep.Prompt != "" && (reading.State == agent.Working || reading.State == agent.Idle) {
			if m.clear++; m.clear >= clearAfter {
				m.keep.Gone++ // the same call may ask again: that is another request
				return soon, m.promptGone(ctx)
			}
		}
		return soon, nil
	}
	m.clear = 0
	if m.standing(reading, calls) {
		return 0, nil
	}
	if reading.State == agent.Question {
		if err := m.candidate(ctx, reading, calls); err != nil {
			return 0, err
		}
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	settled, err := m.desk.Tmux.Settled(pctx, m.at.Pane, settleGap, probeTime)
	if err != nil {
		return askingPoll, nil //nolint:nilerr // not settled yet, or the pane went: the next look decides
	}
	second := m.adapter.Read(m.at.Process.Version, settled)
	if second.State != reading.State || second.Prompt == nil {
		return askingPoll, nil
	}
	if second.State == agent.Question {
		return 0, m.notifyQuestion(ctx, second, calls)
	}
	call, ok := callOf(*second.Prompt, calls)
	if ok {
		m.strange = ""
		return m.notifyApproval(ctx, second, call, why)
	}
	// No waiting call says what the dialog says: it is not written yet, or shown in
	// other words. A person is told of the second case, and no key is ever sent.
	if m.strange != second.Prompt.Digest {
		m.strange, m.strangeAt = second.Prompt.Digest, m.desk.now()
	}
	if m.desk.now().Sub(m.strangeAt) < askingFor {
		return askingPoll, nil
	}
	return m.notifyApproval(ctx, second, likely(*second.Prompt, calls), unmatched)
}

// standsUnsaid reports whether a dialog stands on the screen, and stood there
// askingFor before, whose call does not wait by the agent's own word: what it wrote
// of itself may be late or lost. A person is told, and no tool sends a key.
func (m *Monitor) standsUnsaid(p agent.Progress, screen *terminal.Screen) bool {
	if screen != nil && m.keep.Prompt == "" {
		r, found := m.adapter.Read(m.at.Process.Version, *screen), ""
		switch {
		case r.Prompt == nil:
		case r.State == agent.Approval:
			if _, ok := callOf(*r.Prompt, p.Unsaid); ok {
				found = r.Prompt.Digest
			}
		case r.State == agent.Question:
			if slices.ContainsFunc(p.Unsaid, func(c agent.Call) bool { return c.Kind == kindQuestionnaire }) {
				found = r.Prompt.Digest
			}
		}
		if m.unsaid != found {
			m.unsaid, m.unsaidAt = found, m.desk.now()
		}
	}
	return len(p.Unsaid) > 0 && m.unsaid != "" && m.desk.now().Sub(m.unsaidAt) >= askingFor
}

// likely gives the call that an unmatched dialog may be about.
func likely(p agent.Prompt, calls []agent.Call) agent.Call {
	for _, c := range calls {
		if c.Kind == p.Kind {
			return c
		}
	}
	return calls[0]
}

// standing reports whether a dialog is the one that was notified.
func (m *Monitor) standing(r agent.Reading, calls []agent.Call) bool {
	if r.Prompt == nil {
		return false
	}
	if r.State == agent.Question {
		return m.keep.Prompt == printOf(*r.Prompt, asking(calls), m.at.Pane, m.at.Process)
	}
	call, ok := callOf(*r.Prompt, calls)
	if !ok {
		call = likely(*r.Prompt, calls)
	}
	return m.keep.Prompt == printOf(*r.Prompt, call, m.at.Pane, m.at.Process)
}

// asking gives the call of an open questionnaire.
func asking(calls []agent.Call) agent.Call {
	for _, c := range calls {
		if c.Kind == kindQuestionnaire || c.Kind == "elicitation" {
			return c
		}
	}
	return calls[0]
}

func (m *Monitor) capture(ctx context.Context) *terminal.Screen {
	pctx, cancel := probe(ctx)
	defer cancel()
	screen, err := m.desk.Tmux.CaptureOne(pctx, m.at.Pane)
	if err != nil {
		return nil // the transcript decides; the poll looks again
	}
	return &screen
}

// promptGone stores that the notified prompt is no longer open: its call was
// answered, or the human acted in the pane.
func (m *Monitor) promptGone(ctx context.Context) (err error) {
	if m.keep.Prompt == "" {
		return nil
	}
	if m.keep.Kind != promptApproval {
		m.turn, err = m.desk.Store.QuestionCleared(ctx, m.ref)
	}
	if m.keep.Kind != promptQuestion && err == nil {
		m.turn, err = m.desk.Store.ApprovalCleared(ctx, m.ref)
	}
	if err != nil {
		return err
	}
	if m.keep.Kind == promptQuestion && m.turn.Status == store.TurnWaitingForController {
		return nil // its answer is being typed: whoever types has the word, and the next look comes here again
	}
	m.keep.Prompt, m.keep.Kind, m.clear = "", "", 0
	m.asked = "" // the next dialog may stand there already
	m.turn, err = m.desk.Store.TouchActivity(ctx, m.ref, store.Activity{At: m.desk.now().UnixMilli(), State: canonical(m.keep)})
	return err
}

// label names a kind of approval for people.
func label(kind string) string {
	switch kind {
	case "run_command":
		return "run a command"
	case "edit_files":
		return "edit files"
	case "mcp_tool":
		return "call an MCP tool"
	}
	return strings.ReplaceAll(kind, "_", " ")
}
