package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Statuses of an answer.
const (
	answerResponded = "responded"
	answerUncertain = "response_uncertain"
)

const (
	offerInteraction     = "interaction"
	offerInteractionLife = 10 * time.Minute
	advanceWait          = 5 * time.Second // for the page to move on
	spareStrokes         = 4               // beyond one for each option
)

// RespondInteractionResult is the body of respond_interaction (tools §8.14).
type RespondInteractionResult struct {
	Status        string          `json:"status"` // responded, response_uncertain
	InteractionID string          `json:"interaction_id"`
	TurnID        string          `json:"turn_id,omitempty"`
	WatchID       string          `json:"watch_id,omitempty"`
	Step          InteractionStep `json:"step"`
	Replayed      bool            `json:"replayed,omitempty"`
	DoNotRetry    bool            `json:"do_not_retry"`
	TerminalInput string          `json:"terminal_input"`
	Reason        string          `json:"reason,omitempty"`
	Next          Next            `json:"next"`
}

// interactionOffer is what status showed of a step.
type interactionOffer struct {
	InteractionID string `json:"interaction_id"`
	Print         string `json:"fingerprint"`
}

// asker is the Turn or Watch whose agent asks.
type asker struct {
	turnID, watchID string
	at              place
	task            agent.Task
	routed          bool
}

func (a asker) id() string { return a.turnID + a.watchID }

// kind is the target type of the offer.
func (a asker) kind() string {
	if a.turnID != "" {
		return "turn"
	}
	return "watch"
}

// interactionKey names the offer of one step. Each step has its own, so that the
// next one does not invalidate what was shown of this one.
func (d *Desk) interactionKey(kind, target, interaction string) store.OfferKey {
	return store.OfferKey{OwnerSession: d.Controller, Kind: offerInteraction, TargetType: kind, TargetID: target + " " + interaction}
}

// RespondInteraction answers the step of a questionnaire that status has just shown
// to this controller session, once. After the first key may have been pressed, any
// doubt is response_uncertain for good.
func (d *Desk) RespondInteraction(ctx context.Context, call Call, in RespondInteractionInput) (Outcome, error) {
	if err := checkTarget(in); err != nil {
		return Outcome{}, err
	}
	id := messageID(d.Controller, call)
	if out, done, err := d.answeredBefore(ctx, id, in); done || err != nil {
		return out, err
	}
	who := asker{turnID: in.TurnID, watchID: in.WatchID}
	seen, err := d.takeInteraction(ctx, who, in.InteractionID)
	if err != nil {
		if out, done, _ := d.answeredBefore(ctx, id, in); done { // an equal call took the offer
			return out, nil
		}
		return Outcome{}, err
	}
	row, err := d.Store.Interaction(ctx, in.InteractionID)
	if err != nil || row.TurnID != in.TurnID || row.WatchID != in.WatchID || seen.InteractionID != row.ID {
		return Outcome{}, mismatch(in.InteractionID, "it is not a step of this target")
	}
	v, err := parseInteraction(row)
	if err != nil {
		return Outcome{}, err
	}
	if v.State, err = d.answerable(row, seen); err != nil {
		return Outcome{}, err
	}
	answer, option, err := checkAnswers(v, in.Answers)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.resolveAsker(ctx, &who); err != nil {
		return Outcome{}, err
	}
	held, h, err := d.grab(ctx, who.at.Pane.Key(), who.at.TerminalID, terminalWait)
	if err != nil {
		return Outcome{}, err
	}
	defer h.release()
	if out, done, err := d.answeredBefore(held, id, in); done || err != nil {
		return out, err
	}
	if err := h.foreign(held); err != nil {
		return Outcome{}, err
	}
	x := answering{desk: d, hold: h, who: who, row: row, answer: answer}
	if err := x.prove(held); err != nil {
		return Outcome{}, err
	}
	x.row, err = d.Store.ReserveInteraction(held, h.lease, store.Response{
		InteractionID: row.ID, MessageID: id, Fingerprint: x.shown.print, OwnerSession: d.Controller,
		Kind: answer.Kind, QuestionID: in.Answers[0].QuestionID, OptionID: option, Seal: sealOf(in),
	})
	if err != nil {
		return Outcome{}, err
	}
	return x.run(held)
}

// checkTarget refuses ids of another kind and more or less than one target.
func checkTarget(in RespondInteractionInput) error {
	switch {
	case (in.TurnID == "") == (in.WatchID == ""):
		return fault.New(fault.InvalidArguments, "respond_interaction: exactly one of turn_id and watch_id").Safe()
	case in.InteractionID == "":
		return fault.New(fault.InvalidArguments, "respond_interaction: no interaction_id").Safe()
	case in.TurnID != "":
		return checkTurnID(in.TurnID)
	}
	return checkWatchID(in.WatchID)
}

func mismatch(id, why string) error {
	return fault.New(fault.InteractionMismatch, "answer %s: %s", clip(id, 128), why).WithHint("call status again").Safe()
}

// answeredBefore answers a call that was made before (tools §5): what is stored of
// it, and nothing is typed.
func (d *Desk) answeredBefore(ctx context.Context, message string, in RespondInteractionInput) (Outcome, bool, error) {
	row, ok, err := d.Store.AnsweredInteraction(ctx, message)
	if err != nil || !ok {
		return Outcome{}, false, err
	}
	var kept struct {
		Seal string `json:"seal"`
	}
	if err := json.Unmarshal(row.Plan, &kept); err != nil || kept.Seal != sealOf(in) {
		return Outcome{}, false, fault.New(fault.IdempotencyConflict, "respond_interaction: this call was made before with another answer").
			With("interaction_id", row.ID)
	}
	v, err := parseInteraction(row)
	if err != nil {
		return Outcome{}, false, err
	}
	r := answerResult(row, v, false)
	r.Replayed = true
	return Outcome{Body: r, Failed: r.Status != answerResponded}, true, nil
}

// takeInteraction consumes the offer of a step; a failed attempt uses it up, too.
func (d *Desk) takeInteraction(ctx context.Context, who asker, interaction string) (seen interactionOffer, err error) {
	payload, err := d.Store.ConsumeOffer(ctx, d.interactionKey(who.kind(), who.id(), interaction))
	if err == nil {
		err = json.Unmarshal(payload, &seen)
	}
	if f, ok := fault.As(err); ok {
		return seen, f.WithHint("call status for the turn or watch, show the step to the user, then answer").Safe()
	}
	return seen, err
}

// answerable refuses a step of a state or age that takes no answer. It gives the
// public state.
func (d *Desk) answerable(row store.Interaction, seen interactionOffer) (string, error) {
	switch {
	case row.State == store.InteractionManual:
		return store.InteractionManual, nil // checkAnswers says why
	case row.State == store.InteractionSuperseded || row.State == store.InteractionCandidate:
		return "", mismatch(row.ID, "it is not asked any more")
	case row.State != store.InteractionPending && row.State != store.InteractionPublished:
		hint := "look at status; a step is answered once"
		if row.State == store.InteractionUncertain {
			hint = "an earlier answer may have been typed: the person at the pane must look"
		}
		return "", fault.New(fault.ResponseNotAllowed, "answer %s: it was answered before (%s)", row.ID, row.State).
			With("interaction_id", row.ID).WithHint("%s", hint)
	case row.OwnerSession != d.Controller:
		return "", mismatch(row.ID, "another controller session owns it")
	case seen.Print != row.PromptFingerprint:
		return "", fault.New(fault.OfferChanged, "answer %s: it is not what was shown", row.ID).WithHint("call status again").Safe()
	case row.ExpiresAt <= d.now().UnixMilli():
		return "", fault.New(fault.Expired, "answer %s: the step is past its life", row.ID).With("interaction_id", row.ID).Safe()
	}
	return store.InteractionPending, nil
}

// resolveAsker finds pane and task of the Turn or Watch.
func (d *Desk) resolveAsker(ctx context.Context, who *asker) error {
	if who.turnID != "" {
		t, err := d.Store.Turn(ctx, who.turnID)
		if err != nil {
			return err
		}
		if t.Status != store.TurnWaitingForController {
			return fault.New(fault.TurnStatusInvalid, "answer a question of %s: it is %s", t.ID, t.Status).With("turn_id", t.ID).With("status", t.Status).Safe()
		}
		x, err := d.currentDispatch(ctx, t)
		if err != nil {
			return err
		}
		if who.task, err = d.turnTask(x); err != nil {
			return err
		}
		_, who.at, err = d.turnPlace(ctx, t)
		who.routed = t.Route != nil
		return err
	}
	w, err := d.Store.Watch(ctx, who.watchID)
	if err != nil {
		return err
	}
	anchor, err := parseWatchAnchor(w.Anchor)
	if err != nil {
		return err
	}
	if w.Status != store.WatchActive || anchor.Task == nil {
		return fault.New(fault.WatchConflict, "answer a question of %s: it is %s and follows no exact task that could ask", w.ID, w.Status).With("watch_id", w.ID).Safe()
	}
	who.at, who.task, who.routed = anchor.Place, *anchor.Task, true
	return nil
}

// An answering is one answer on its way into one pane that is held.
type answering struct {
	desk   *Desk
	hold   *hold
	who    asker
	row    store.Interaction
	answer agent.Answer
	s      *sighting
	shown  surface
}

// prove looks at the pane for typing: the same process, two equal captures, and on
// them exactly the step that is to be answered.
func (x *answering) prove(ctx context.Context) error {
	d := x.desk
	s, err := d.byPlace(ctx, x.who.at)
	if err != nil {
		return err
	}
	if x.s, err = d.inspect(ctx, s); err != nil {
		return err
	}
	if x.s.pane.InMode {
		return notIdle(x.s.id(), closedPane)
	}
	changed := func(why string) error {
		return fault.New(fault.OfferChanged, "answer %s: %s", x.row.ID, why).With("interaction_id", x.row.ID).WithHint("call status again").Safe()
	}
	if x.s.reading.State != agent.Question || x.s.reading.Prompt == nil {
		return changed("the pane shows no questionnaire now")
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	p, err := x.s.adapter.Progress(pctx, x.who.task, agent.Position{})
	if err != nil {
		return fault.New(fault.ObservationUnavail, "answer %s: %w", x.row.ID, err).Safe()
	}
	calls := waiting(p)
	if p.State != agent.Open || len(calls) == 0 {
		return changed("the agent's records show no open question")
	}
	x.shown = d.surfaceOf(x.s.adapter, x.s.proc, x.s.pane, x.who.task, x.s.reading, calls)
	switch step := x.shown.step; {
	case x.shown.print != x.row.PromptFingerprint || x.shown.id != x.row.SurfaceID:
		return changed("the pane shows another step")
	case digest(x.s.proc.Inc.String()) != x.row.ProcessKey:
		return fault.New(fault.TerminalChanged, "answer %s: another process asks", x.row.ID).Safe()
	case step.Manual == agent.ManualSecret:
		return fault.New(fault.SecretNotAllowed, "answer %s: %s", x.row.ID, step.Manual).Safe()
	case step.Manual != "":
		return fault.New(fault.ResponseNotAllowed, "answer %s: only the person at the pane may: %s", x.row.ID, step.Manual).Safe()
	case x.answer.Kind == agent.FreeText && len([]rune(x.answer.Text)) > step.MaxText:
		return fault.New(fault.LimitExceeded, "answer %s: its text has more than %d characters", x.row.ID, step.MaxText).
			WithHint("shorten it, or let the user type it in the pane").Safe()
	case x.shown.prompt.Page.Typed != "":
		return fault.New(fault.TerminalChanged, "answer %s: a person types an answer in the pane", x.row.ID).Safe()
	}
	// The whole way must be known before its first key.
	_, err = x.stroke()
	if err != nil {
		return fault.New(fault.ResponseNotAllowed, "answer %s: %w", x.row.ID, err).WithHint("the user may answer in the pane").Safe()
	}
	return nil
}

// stroke gives the next input from the page as it was seen last.
func (x *answering) stroke() (agent.Stroke, error) {
	return x.s.adapter.(agent.Answering).Stroke(x.s.proc.Version, x.shown.prompt, x.shown.step, x.answer)
}

// run types the answer stroke by stroke, each from a fresh look.
func (x *answering) run(ctx context.Context) (Outcome, error) {
	d := x.desk
	if err := x.hold.prove(ctx, x.s); err != nil {
		return x.back(err)
	}
	if err := d.Store.ExecuteInteraction(ctx, x.hold.lease, x.row.ID); err != nil {
		return x.back(err)
	}
	ctx = context.WithoutCancel(ctx) // what was begun is brought to an end
	begun := false
	for range len(x.shown.prompt.Page.Options) + spareStrokes {
		stroke, err := x.stroke()
		if err == nil && stroke.Submits {
			err = x.stands(ctx)
		}
		if err == nil {
			err = x.hold.still(ctx, x.s)
		}
		if err == nil {
			err = x.press(ctx, stroke)
			begun = begun || terminal.Typed(err) != fault.InputNone
		}
		if err != nil && !begun {
			return x.back(err)
		}
		if err != nil {
			return x.doubt(ctx, fault.CleanLine(err.Error()))
		}
		crashpoint.At("interaction_stroke")
		if stroke.Submits {
			return x.advance(ctx)
		}
		if err := x.follow(ctx); err != nil {
			return x.doubt(ctx, fault.CleanLine(err.Error()))
		}
	}
	return x.doubt(ctx, "the page did not come to the answer in the strokes that it needs")
}

func (x *answering) press(ctx context.Context, s agent.Stroke) error {
	if s.Paste != "" {
		return x.desk.Tmux.Paste(ctx, x.s.pane, s.Paste)
	}
	return x.desk.Tmux.Press(ctx, x.s.pane, s.Key)
}

var errPageLeft = errors.New("the page left while it was being answered")

// look reads the page anew; errPageLeft where it is not the step's any more.
func (x *answering) look(ctx context.Context) error {
	_, r, err := x.desk.glimpse(ctx, x.s)
	if err != nil {
		return err
	}
	if r.State != agent.Question || r.Prompt == nil || r.Prompt.Page == nil ||
		printOf(*r.Prompt, x.shown.call, x.s.pane, x.s.proc) != x.row.PromptFingerprint {
		return errPageLeft
	}
	x.shown.prompt = *r.Prompt
	return nil
}

// follow waits until the page shows what the last stroke did.
func (x *answering) follow(ctx context.Context) error {
	before := *x.shown.prompt.Page
	for deadline := time.Now().Add(landWait); ; {
		err := x.look(ctx)
		if now := x.shown.prompt.Page; err == nil && (now.Selected != before.Selected || now.Field != before.Field || now.Typed != before.Typed) {
			return nil
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = errors.New("a key changed nothing on the page")
			}
			return err
		}
		if err := sleep(ctx, draftPoll); err != nil {
			return err
		}
	}
}

// stands insists that the page shows the answer, the same in two looks settleGap
// apart, directly before the key that submits it.
func (x *answering) stands(ctx context.Context) error {
	for i := range 2 {
		if i > 0 {
			if err := sleep(ctx, settleGap); err != nil {
				return err
			}
		}
		if err := x.look(ctx); err != nil {
			return err
		}
		if stroke, err := x.stroke(); err != nil || !stroke.Submits {
			return fmt.Errorf("the page does not keep showing the answer: %w", errors.Join(err, errPageLeft))
		}
	}
	return nil
}

// advance commits that everything was pressed and waits for the page to move on.
func (x *answering) advance(ctx context.Context) (Outcome, error) {
	d := x.desk
	if err := d.Store.InteractionSent(ctx, x.hold.lease, x.row.ID); err != nil {
		return x.doubt(ctx, fault.CleanLine(err.Error()))
	}
	unmoved := false
	for deadline := time.Now().Add(advanceWait); time.Now().Before(deadline); {
		moved, err := x.moved(ctx, &unmoved)
		if moved {
			if err := d.Store.InteractionAdvanced(ctx, x.hold.lease, x.row.ID); err != nil {
				d.Log.Warn("store that a step moved on", "interaction", x.row.ID, "err", err) // its observer does
			}
			return x.result(ctx, "")
		}
		if err != nil {
			d.Log.Warn("look for the next step", "interaction", x.row.ID, "err", err)
		}
		if err := sleep(ctx, acceptPoll); err != nil {
			break
		}
	}
	if unmoved {
		return x.doubt(ctx, "the key that submits was pressed and the page did not move on")
	}
	return x.result(ctx, "the answer was typed; what follows is not seen yet")
}

// moved reports whether the page has left: another one is shown, the agent works
// or waits elsewhere, or its records hold the answer.
func (x *answering) moved(ctx context.Context, unmoved *bool) (bool, error) {
	pctx, cancel := probe(ctx)
	defer cancel()
	p, err := x.s.adapter.Progress(pctx, x.who.task, agent.Position{})
	if err == nil {
		open := false
		for _, c := range waiting(p) {
			open = open || c.ID == x.shown.call.ID
		}
		if !open {
			return true, nil
		}
	}
	_, r, err := x.desk.glimpse(pctx, x.s)
	if err != nil {
		return false, err
	}
	*unmoved = false
	switch {
	case r.State == agent.Question && r.Prompt != nil && r.Prompt.Page != nil:
		same := printOf(*r.Prompt, x.shown.call, x.s.pane, x.s.proc) == x.row.PromptFingerprint
		*unmoved = same
		return !same, nil
	case r.State == agent.Working || r.State == agent.Approval:
		return true, nil
	}
	return false, nil
}

// back takes the reservation back: nothing was typed.
func (x *answering) back(cause error) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	f, ok := fault.As(cause)
	if !ok {
		f = fault.New(fault.InputNotStarted, "answer %s: %w", x.row.ID, cause)
	}
	if err := x.desk.Store.ReturnInteraction(ctx, x.hold.lease, x.row.ID); err != nil {
		x.desk.Log.Warn("take an answer back", "interaction", x.row.ID, "err", err)
		f.Retry = false
		return Outcome{}, f.WithHint("look at status before anything else: the attempt's record could not be removed")
	}
	f.Retry = true
	return Outcome{}, f.WithHint("call status again, then answer")
}

// doubt ends the answer for good: some of it may have been typed.
func (x *answering) doubt(ctx context.Context, why string) (Outcome, error) {
	if err := x.desk.Store.DoubtInteraction(ctx, x.hold.lease, x.row.ID, why, nil); err != nil && !fault.Is(err, fault.InteractionMismatch) {
		x.desk.Log.Warn("put an answer in doubt", "interaction", x.row.ID, "err", err) // recovery does
	}
	return x.result(ctx, why)
}

// result answers with what the Store proves.
func (x *answering) result(ctx context.Context, why string) (Outcome, error) {
	row, err := x.desk.Store.Interaction(ctx, x.row.ID)
	if err != nil {
		return Outcome{}, fault.New(fault.SubmissionUncertain, "answer %s: the outcome could not be stored: %w", x.row.ID, err).
			WithInput(fault.InputPossible).WithHint("look at status; do not answer again")
	}
	v, err := parseInteraction(row)
	if err != nil {
		return Outcome{}, err
	}
	r := answerResult(row, v, x.who.routed)
	r.Reason = why
	return Outcome{Body: r, Failed: r.Status != answerResponded}, nil
}

func answerResult(row store.Interaction, v InteractionView, routed bool) RespondInteractionResult {
	r := RespondInteractionResult{
		Status: answerUncertain, InteractionID: row.ID, TurnID: row.TurnID, WatchID: row.WatchID, Step: v.Step,
		DoNotRetry: true, TerminalInput: string(fault.InputPossible), Next: Next{"status"},
	}
	if row.State == store.InteractionAwaiting || row.State == store.InteractionResolved {
		r.Status, r.DoNotRetry, r.TerminalInput = answerResponded, false, string(fault.InputSent)
		if routed {
			r.Next = Next{"yield"}
		}
	}
	return r
}
