package handoff

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds of a public projection (core §11.3, §14).
const (
	interactionSchema  = "agent-knock-knock/terminal-interaction"
	interactionVersion = 1
	interactionPrefix  = "interaction-"
	maxProjection      = 32 << 10 // bytes
	maxSteps           = 16
	minOptions         = 2
	maxOptions         = 5
	maxHeader          = 12
	maxPrompt          = 4096
	maxLabel           = 64
	maxDescription     = 1024
	answerDecided      = 60 * time.Second // a sent answer whose page was not seen to move on is in doubt
	kindQuestionnaire  = "questionnaire"
	callbackAsks       = "interaction"
	reasonAsks         = "interaction_required"
)

// InteractionView is the public projection of one step (core §11.3).
type InteractionView struct {
	Schema       string                  `json:"schema"`
	Version      int                     `json:"version"`
	ID           string                  `json:"interaction_id"`
	TurnID       string                  `json:"turn_id,omitempty"`
	Subject      *InteractionSubject     `json:"subject,omitempty"` // of a Watch
	Agent        string                  `json:"agent"`
	Kind         string                  `json:"kind"`
	State        string                  `json:"state"` // pending, manual_required, response_uncertain
	Reason       string                  `json:"reason,omitempty"`
	Step         InteractionStep         `json:"step"`
	Questions    []QuestionView          `json:"questions"` // exactly one
	ExpiresAt    string                  `json:"expires_at"`
	Capabilities InteractionCapabilities `json:"capabilities"`
}

// InteractionSubject names the Watch that a step belongs to.
type InteractionSubject struct {
	Kind    string `json:"kind"`
	WatchID string `json:"watch_id"`
}

// InteractionStep is the place of a step in its questionnaire.
type InteractionStep struct {
	Index int `json:"index"`
	Total int `json:"total"`
}

// QuestionView is one question as a controller sees it.
type QuestionView struct {
	ID           string       `json:"question_id"`
	Header       string       `json:"header,omitempty"`
	Prompt       string       `json:"prompt"`
	Required     bool         `json:"required"`
	ResponseKind string       `json:"response_kind"`
	Options      []OptionView `json:"options,omitempty"`
	Placeholder  string       `json:"placeholder,omitempty"`
}

// OptionView is one option of a question.
type OptionView struct {
	ID          string `json:"option_id"`
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// InteractionCapabilities says what an answer may be.
type InteractionCapabilities struct {
	Respond       bool `json:"respond"`
	BatchResponse bool `json:"batch_response"`
	FreeText      bool `json:"free_text"`
	MultiSelect   bool `json:"multi_select"`
}

// A surface is one page of a questionnaire on which the screen and the agent's own
// records agree, or do not: then only the person at the pane may answer.
type surface struct {
	prompt agent.Prompt
	call   agent.Call
	step   agent.Step
	print  string // of the page; a moved highlight or an own text does not change it
	id     string // of the questionnaire, for all its pages
}

// surfaceOf joins a questionnaire on the screen with the calls of its task.
func (d *Desk) surfaceOf(a agent.Adapter, proc agent.Process, pane terminal.Pane, task agent.Task, r agent.Reading, calls []agent.Call) surface {
	x := surface{prompt: *r.Prompt, call: asking(calls), step: agent.Step{Index: 1, Total: 1}}
	x.print = printOf(x.prompt, x.call, pane, proc)
	x.id = digest(kindQuestionnaire, task.ThreadID, task.TurnID, x.call.ID)
	answering, ok := a.(agent.Answering)
	switch {
	case !ok, x.prompt.Kind != kindQuestionnaire:
		x.step.Manual = "no keys for such a dialog are known"
	default:
		x.step = answering.Step(proc.Version, x.prompt, x.call)
		if x.step.Manual == "" && (proc.Class == agent.Refused || proc.Class == agent.Untested && d.Untested != UntestedAll) {
			x.step.Manual = fmt.Sprintf("questionnaires of %s %s are not tested", proc.Agent, proc.Version)
		}
	}
	return x
}

// project makes the public projection of a page. A page that does not fit into it
// is for the person at the pane.
func (x *surface) project(id string, kind agent.Kind, expires int64) InteractionView {
	v := InteractionView{
		Schema: interactionSchema, Version: interactionVersion, ID: id, Agent: string(kind), Kind: kindQuestionnaire,
		Step: InteractionStep{max(x.step.Index, 1), max(x.step.Total, 1)}, ExpiresAt: stamp(expires),
	}
	q := QuestionView{ID: "question-" + digest(id, "question")[:16], Required: true, ResponseKind: agent.SingleSelect}
	manual := func(why string) {
		if x.step.Manual == "" {
			x.step.Manual = why
		}
	}
	if v.Step.Total > maxSteps || v.Step.Index > v.Step.Total {
		v.Step = InteractionStep{min(v.Step.Index, maxSteps), maxSteps}
		manual("it has more steps than can be shown")
	}
	ask := x.step.Ask
	switch {
	case ask != nil:
		q.Header, q.Prompt = clip(ask.Header, maxHeader), ask.Text
	case x.step.Kind == agent.Confirm:
		q.ResponseKind, q.Prompt = agent.Confirm, x.prompt.Page.Text
	case x.prompt.Page != nil:
		q.Prompt = x.prompt.Page.Text
	default:
		q.Prompt = x.prompt.Command
	}
	if q.Prompt = strings.TrimSpace(q.Prompt); q.Prompt == "" {
		q.Prompt = "See the pane."
		manual("its text cannot be read")
	}
	if len([]rune(q.Prompt)) > maxPrompt {
		q.Prompt = clip(q.Prompt, maxPrompt)
		manual("its text is too long to be shown")
	}
	if ask != nil {
		if n := len(ask.Options); n < minOptions || n > maxOptions {
			manual("it has more or fewer options than can be shown")
		}
		for i, o := range ask.Options[:min(len(ask.Options), maxOptions)] {
			if len([]rune(o.Label)) > maxLabel || len([]rune(o.Description)) > maxDescription || strings.TrimSpace(o.Label) == "" {
				manual("an option is too long to be shown")
			}
			q.Options = append(q.Options, OptionView{
				ID: fmt.Sprintf("option-%s-%d", digest(id, "option")[:16], i+1), Label: clip(o.Label, maxLabel), Description: clip(o.Description, maxDescription),
			})
		}
	}
	if x.step.FreeText && x.step.Manual == "" {
		q.Placeholder = fmt.Sprintf("or a text of one's own: one line of at most %d characters", x.step.MaxText)
	}
	v.Questions = []QuestionView{q}
	if len(canonical(v)) > maxProjection {
		v.Questions[0].Prompt, v.Questions[0].Options = clip(q.Prompt, maxDescription), nil
		manual("it is too long to be shown")
	}
	v.State, v.Reason = store.InteractionPending, x.step.Manual
	if x.step.Manual != "" {
		v.State, v.Questions[0].Placeholder = store.InteractionManual, ""
	}
	v.Capabilities = InteractionCapabilities{Respond: x.step.Manual == "", FreeText: x.step.FreeText && x.step.Manual == ""}
	return v
}

// row makes the Store's row of a page. The projection decides whether it may be
// answered at all.
func (x *surface) row(v InteractionView, owner string, proc agent.Process, expires int64) store.NewInteraction {
	state := store.InteractionPublished
	if x.step.Manual != "" {
		state = store.InteractionManual
	}
	return store.NewInteraction{
		InteractionID: v.ID, State: state, PromptFingerprint: x.print, SurfaceID: x.id,
		StepIndex: int64(v.Step.Index), StepTotal: int64(v.Step.Total), Projection: canonical(v), Plan: []byte(`{}`),
		OwnerSession: owner, ProcessKey: digest(proc.Inc.String()), ExpiresAt: expires,
	}
}

// surface joins what the monitor's screen shows with the records of its task.
func (m *Monitor) surface(r agent.Reading, calls []agent.Call) surface {
	return m.desk.surfaceOf(m.adapter, m.at.Process, m.at.Pane, *m.task, r, calls)
}

// candidate notes a page that was seen once: a second look decides.
func (m *Monitor) candidate(ctx context.Context, r agent.Reading, calls []agent.Call) error {
	if r.Prompt == nil {
		return nil
	}
	x := m.surface(r, calls)
	v := x.project(m.desk.newID(interactionPrefix), m.adapter.Kind(), m.turn.HardDeadlineAt)
	v.TurnID = m.turn.ID
	return m.desk.Store.QuestionSeen(ctx, m.ref, x.row(v, m.turn.ControllerSessionID, m.at.Process, m.turn.HardDeadlineAt))
}

// notifyQuestion stores a page that two looks have proven, and tells it once. A
// page that was met before, also an answered one, is not told again.
func (m *Monitor) notifyQuestion(ctx context.Context, r agent.Reading, calls []agent.Call) error {
	x := m.surface(r, calls)
	v := x.project(m.desk.newID(interactionPrefix), m.adapter.Kind(), m.turn.HardDeadlineAt)
	v.TurnID = m.turn.ID
	row := x.row(v, m.turn.ControllerSessionID, m.at.Process, m.turn.HardDeadlineAt)
	cb, err := tellTurn(m.turn, store.LaneLifecycle, callbackAsks, callback.Event{
		ID: "msg-question-" + digest(m.turn.ID, m.ref.MessageID, v.ID)[:32], Type: callback.EventQuestion, RequiresResponse: true,
		Body:     sayInteraction(v, fmt.Sprintf("turn_id: %s\nsession_id: %s\n", m.turn.ID, m.turn.SessionID)),
		Metadata: map[string]any{"reason": reasonAsks, "interaction_id": v.ID},
	})
	if err != nil {
		return err
	}
	row.Callback = cb
	if _, _, err := m.desk.Store.QuestionNotified(ctx, m.ref, row); err != nil {
		return err
	}
	m.keep.Kind = promptQuestion
	return m.noticed(ctx, x.print, x.call.ID)
}

// question notices a questionnaire of a watched task, and that it left. p is the
// present reading of the task.
func (l *Lookout) question(ctx context.Context, r agent.Reading, p agent.Progress) error {
	at := l.anchor.Place
	if !l.loaded { // what an earlier Lookout told
		rows, err := l.desk.Store.WatchInteractions(ctx, l.watch.ID)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.State != store.InteractionSuperseded && row.State != store.InteractionResolved {
				l.asking = row.PromptFingerprint
			}
		}
		l.loaded = true
	}
	if r.State != agent.Question || r.Prompt == nil {
		if l.asking == "" || r.State != agent.Working && r.State != agent.Idle {
			return nil
		}
		if l.left++; l.left < clearAfter {
			l.judged = false // an equal screen is looked at again
			return nil
		}
		err := l.desk.Store.WatchQuestionCleared(ctx, l.fence())
		if err == nil {
			l.asking, l.left = "", 0
		}
		return err
	}
	l.left = 0
	calls := waiting(p)
	if len(calls) == 0 {
		return nil // its record is still to come
	}
	if x := l.desk.surfaceOf(l.adapter, at.Process, at.Pane, *l.anchor.Task, r, calls); x.print == l.asking {
		return nil
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	settled, err := l.desk.Tmux.Settled(pctx, at.Pane, settleGap, probeTime)
	if err == nil {
		r = l.adapter.Read(at.Process.Version, settled)
	}
	if err != nil || r.State != agent.Question || r.Prompt == nil {
		l.judged = false // the next poll looks again
		return nil
	}
	x := l.desk.surfaceOf(l.adapter, at.Process, at.Pane, *l.anchor.Task, r, calls)
	v := x.project(l.desk.newID(interactionPrefix), l.adapter.Kind(), l.watch.DeadlineAt)
	v.Subject = &InteractionSubject{Kind: watchEvidenceKind, WatchID: l.watch.ID}
	row := x.row(v, l.watch.ControllerSessionID, at.Process, l.watch.DeadlineAt)
	note, err := tellWatch(l.watch, callbackAsks, callback.EventQuestion, digest(x.print, v.ID), reasonAsks,
		sayInteraction(v, fmt.Sprintf("watch_id: %s\nterminal_id: %s\n", l.watch.ID, l.watch.TerminalID)))
	if err != nil {
		return err
	}
	row.Callback = &note.Callback
	if _, _, err := l.desk.Store.WatchQuestionNotified(ctx, l.fence(), row); err != nil {
		return err
	}
	l.asking = x.print
	return nil
}

// sayInteraction is the body of the callback about one step.
func sayInteraction(v InteractionView, ids string) string {
	var b strings.Builder
	q := v.Questions[0]
	fmt.Fprintf(&b, "%s asks a question and waits (step %d of %d).\n%sinteraction_id: %s\n\n%s\n", title(agent.Kind(v.Agent)), v.Step.Index, v.Step.Total, ids, v.ID, clip(q.Prompt, maxText/2))
	for i, o := range q.Options {
		fmt.Fprintf(&b, "  %d. %s", i+1, o.Label)
		if o.Description != "" {
			fmt.Fprintf(&b, ": %s", clip(oneLine(o.Description, ""), 200))
		}
		b.WriteString("\n")
	}
	if v.State == store.InteractionManual {
		fmt.Fprintf(&b, "\nOnly the user at the pane can answer this: %s. The answer is noticed by itself.\n", v.Reason)
	} else {
		b.WriteString("\nstatus shows the step with its ids, respond_interaction answers it. The user may answer in the pane instead; that is noticed, too.\n")
	}
	return b.String()
}

// parseInteraction reads a stored projection.
func parseInteraction(row store.Interaction) (InteractionView, error) {
	var v InteractionView
	if err := json.Unmarshal(row.Projection, &v); err != nil || len(v.Questions) != 1 {
		return v, fault.New(fault.Internal, "read interaction %s: its projection is unreadable", row.ID)
	}
	return v, nil
}

// recoverResponses puts in doubt what a dead program was answering (core §12 A5,
// §13 row 11), and a sent answer that moved nothing.
func (d *Desk) recoverResponses(ctx context.Context, turnID string) (checked, changed int, err error) {
	open, err := d.Store.OpenResponses(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, o := range open {
		row := o.Interaction
		if turnID != "" && row.TurnID != turnID {
			continue
		}
		if row.State == store.InteractionAwaiting && d.now().UnixMilli() < row.UpdatedAt+answerDecided.Milliseconds() {
			continue // its observer looks
		}
		checked++
		done, err := d.recoverResponse(ctx, o)
		if err != nil {
			return checked, changed, err
		}
		if done {
			changed++
		}
	}
	return checked, changed, nil
}

func (d *Desk) recoverResponse(ctx context.Context, o store.OpenResponse) (bool, error) {
	row := o.Interaction
	held, h, err := d.grab(ctx, o.TerminalKey, row.TurnID+row.WatchID, 0)
	if fault.Is(err, fault.TerminalBusy) {
		return false, nil // who answers it still lives
	}
	if err != nil {
		return false, err
	}
	defer h.release()
	why := "a program ended in the middle of the answer: some of its keys may have been pressed"
	if row.State == store.InteractionAwaiting {
		why = "the answer was typed and the page did not move on"
	}
	var cb *store.NewCallback
	if row.TurnID != "" {
		t, err := d.Store.Turn(held, row.TurnID)
		if err != nil {
			return false, err
		}
		cb, err = tellTurn(t, store.LaneLifecycle, callbackAsks, callback.Event{
			ID: "msg-question-doubt-" + digest(t.ID, row.ID)[:32], Type: callback.EventBlocked, RequiresResponse: true,
			Body: fmt.Sprintf("An answer to %s is in doubt: %s.\nturn_id: %s\nsession_id: %s\ninteraction_id: %s\n\nNothing is typed again. The user must look at the pane and decide there.\n",
				title(agent.Kind(t.Agent)), why, t.ID, t.SessionID, row.ID),
			Metadata: map[string]any{"reason": "response_uncertain", "interaction_id": row.ID},
		})
		if err != nil {
			return false, err
		}
	}
	err = d.Store.DoubtInteraction(held, h.lease, row.ID, why, cb)
	if fault.Is(err, fault.InteractionMismatch) {
		return false, nil // it was settled before the pane was free
	}
	return err == nil, err
}
