package handoff

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// RespondInput answers the agent inside the same Turn.
type RespondInput struct {
	TurnID  string `json:"turn_id"`
	Request string `json:"request"`
}

// Respond types an answer into the pane of a Turn that waits for its controller,
// once, as send types a task: with receipt, mark and proof of its own. Approvals
// and questionnaires have tools of their own.
func (d *Desk) Respond(ctx context.Context, call Call, in RespondInput) (Outcome, error) {
	if err := d.sibling(ctx, "watchd", store.WatchdLease()); err != nil {
		return Outcome{}, err
	}
	if err := checkTurnID(in.TurnID); err != nil {
		return Outcome{}, err
	}
	if err := CheckRequest(in.Request); err != nil {
		return Outcome{}, err
	}
	again := repeat{id: messageID(d.Controller, call), kind: store.KindAnswer, turn: in.TurnID, text: in.Request}
	if out, done, err := d.repeated(ctx, again, false); done || err != nil {
		return out, err
	}
	turn, at, err := d.openTurn(ctx, in.TurnID, "answer", store.TurnWaitingForController)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.unprompted(ctx, turn); err != nil {
		return Outcome{}, err
	}
	s, err := d.byPlace(ctx, at)
	if err != nil {
		return Outcome{}, err
	}
	prep, err := s.adapter.Prepare(in.Request)
	if err != nil {
		return Outcome{}, err
	}
	held, h, out, done, err := d.occupy(ctx, s, again)
	if done || err != nil {
		return out, err
	}
	defer h.release()
	if s, err = d.ready(held, s); err != nil {
		return Outcome{}, err
	}
	if err := s.promptable(); err != nil {
		return Outcome{}, err
	}
	if err := s.shows(turn, "answer"); err != nil {
		return Outcome{}, err
	}
	if err := d.unprompted(held, turn); err != nil { // it may have asked while the pane was waited for
		return Outcome{}, err
	}
	sub := submission{desk: d, hold: h, s: s, prep: prep, id: again.id}
	sub.row = store.NewDispatch{
		MessageID:           again.id,
		ToolCallID:          call.ToolCallID,
		Kind:                store.KindAnswer,
		TurnID:              in.TurnID,
		ControllerSessionID: d.Controller,
		Route:               turn.Route,
		RequestText:         in.Request,
		BodyHash:            hash([]byte(in.Request)),
		RequestHash:         prep.RequestHash,
	}
	return sub.run(held)
}

// prepared gives a Turn's dispatched message as it was typed.
func (d *Desk) prepared(a agent.Adapter, t store.Turn, x store.Dispatch) (agent.Prepared, error) {
	text := t.RequestText
	if x.Kind == store.KindAnswer {
		ctx, cancel := context.WithTimeout(context.Background(), probeTime)
		defer cancel()
		var err error
		if text, err = d.Store.MessageText(ctx, x); err != nil {
			return agent.Prepared{}, err
		}
	}
	return a.Prepare(text)
}

// unprompted refuses a Turn that waits for a decision or for a questionnaire.
func (d *Desk) unprompted(ctx context.Context, t store.Turn) error {
	rows, err := d.Store.Approvals(ctx, t.ID)
	if err != nil {
		return err
	}
	for _, a := range rows {
		if a.ClearedAt == 0 && a.State != store.ApprovalConsumed {
			return fault.New(fault.ApprovalPending, "answer %s: an approval is open", t.ID).
				With("turn_id", t.ID).WithHint("use approve").Safe()
		}
	}
	open, err := d.Store.PromptsOpen(ctx, t.ID)
	if err != nil || !open {
		return err
	}
	return fault.New(fault.InteractionPending, "answer %s: a questionnaire is open", t.ID).
		With("turn_id", t.ID).WithHint("use respond_interaction").Safe()
}
