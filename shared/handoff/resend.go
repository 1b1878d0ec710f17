package handoff

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// resend is the retry form of send: one Enter for the exact draft that still
// stands in the composer, or the stored text once after proof that nothing of it
// was taken (tools §8.12). The old dispatch resolves with the new one.
func (d *Desk) resend(ctx context.Context, call Call, turnID string) (Outcome, error) {
	if err := checkTurnID(turnID); err != nil {
		return Outcome{}, err
	}
	again := repeat{id: messageID(d.Controller, call), kind: store.KindTask, turn: turnID}
	if out, done, err := d.repeated(ctx, again, false); done || err != nil {
		return out, err
	}
	turn, err := d.Store.Turn(ctx, turnID)
	if err != nil {
		return Outcome{}, err
	}
	if turn.Status != store.TurnStalled {
		return Outcome{}, fault.New(fault.TurnStatusInvalid, "retry the submission of %s: the turn is %s, not stalled", turnID, turn.Status).
			With("status", turn.Status).Safe()
	}
	_, at, err := d.turnPlace(ctx, turn)
	if err != nil {
		return Outcome{}, err
	}
	s, err := d.byPlace(ctx, at)
	if err != nil {
		return Outcome{}, err
	}
	prep, err := s.adapter.Prepare(turn.RequestText)
	if err != nil {
		return Outcome{}, err
	}
	held, h, out, done, err := d.occupy(ctx, s, again)
	if done || err != nil {
		return out, err
	}
	defer h.release()
	old, err := d.Store.Submission(held, turn.CurrentMessageID)
	if err != nil {
		return Outcome{}, err
	}
	if old.Dispatch.Kind == store.KindAnswer {
		return Outcome{}, fault.New(fault.SubmissionUncertain, "retry the submission of %s: it was an answer, which is not typed again", turnID).
			With("turn_id", turnID).WithHint("look at the pane; close the turn and send anew if the user wants it")
	}
	if s, err = d.ready(held, s); err != nil {
		return Outcome{}, err
	}
	if err := s.unblocked(); err != nil {
		return Outcome{}, err
	}
	if err := s.shows(turn, "retry the submission of"); err != nil {
		return Outcome{}, err
	}
	standing, err := d.untaken(held, s, old.Dispatch, prep)
	if err != nil {
		return Outcome{}, err
	}
	sub := submission{desk: d, hold: h, s: s, prep: prep, id: again.id, standing: standing}
	sub.row = store.NewDispatch{
		MessageID:           again.id,
		ToolCallID:          call.ToolCallID,
		Kind:                store.KindTask,
		TurnID:              turnID,
		ControllerSessionID: d.Controller,
		Route:               turn.Route,
		RequestText:         turn.RequestText,
		BodyHash:            hash([]byte(turn.RequestText)),
		RequestHash:         prep.RequestHash,
	}
	return sub.run(held)
}

// untaken proves that the agent never took the old dispatch. standing says that
// its exact draft is still in the composer.
func (d *Desk) untaken(ctx context.Context, s *sighting, old store.Dispatch, prep agent.Prepared) (standing bool, err error) {
	anchor, err := parseAnchor(old.Anchor)
	if err != nil {
		return false, err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	acc, verdict, err := s.adapter.Accept(pctx, anchor, prep)
	if err != nil {
		return false, fault.New(fault.ObservationUnavail, "retry the submission of %s: %w", old.TurnID, err).Safe()
	}
	if verdict != agent.Pending || matched(acc) || old.ErrorCode == string(fault.SubmissionUnfenced) {
		return false, fault.New(fault.SubmissionUncertain, "retry the submission of %s: the agent may have taken it", old.TurnID).
			WithHint("look at the pane; close the turn and send anew if the user wants it").WithInput(fault.InputPossible)
	}
	switch {
	case s.reading.Composer.Empty:
		return false, nil
	case s.adapter.Landed(s.reading.Composer, prep):
		return true, nil
	}
	return false, fault.New(fault.ComposerNotEmpty, "retry the submission of %s: the composer holds another draft", old.TurnID).Safe()
}
