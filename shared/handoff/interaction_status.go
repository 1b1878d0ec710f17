package handoff

import (
	"context"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
)

// askedOfTurn gives the step that a Turn waits with, if it waits with one. Where s
// shows now exactly that step and this controller session may answer it, the offer
// is minted and the action added.
func (d *Desk) askedOfTurn(ctx context.Context, t store.Turn, s *sighting, acts Actions) (*InteractionView, error) {
	if !t.Blocks() {
		return nil, nil
	}
	rows, err := d.Store.Interactions(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	return d.asked(ctx, asker{turnID: t.ID}, rows, s, acts)
}

// askedOfWatch adds to the view of a Watch what askedOfTurn gives.
func (d *Desk) askedOfWatch(ctx context.Context, v *WatchView) error {
	if v.Status != store.WatchActive || v.Mode != store.ModeExactTask {
		return nil
	}
	rows, err := d.Store.WatchInteractions(ctx, v.ID)
	if err != nil || len(rows) == 0 {
		return err
	}
	who := asker{watchID: v.ID}
	if err := d.resolveAsker(ctx, &who); err != nil {
		return nil //nolint:nilerr // it settled meanwhile
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	s, screen, err := d.captureAt(pctx, who.at)
	if err != nil {
		s = nil // not to be seen: shown, but not to be answered
	} else {
		s.read(&screen)
	}
	v.Interaction, err = d.asked(ctx, who, rows, s, v.Actions)
	return err
}

// asked gives the newest step of rows that still matters, and mints its offer.
func (d *Desk) asked(ctx context.Context, who asker, rows []store.Interaction, s *sighting, acts Actions) (*InteractionView, error) {
	row, state := openStep(rows)
	if state == "" {
		return nil, nil
	}
	v, err := parseInteraction(row)
	if err != nil {
		return nil, err
	}
	v.State = state
	if state != store.InteractionPending {
		v.Capabilities.Respond = false
		return &v, nil
	}
	life := min(offerInteractionLife, time.UnixMilli(row.ExpiresAt).Sub(d.now()))
	if row.OwnerSession != d.Controller || life <= 0 || s == nil || s.reading.State != agent.Question || s.reading.Prompt == nil {
		return &v, nil
	}
	if who.task.TurnID == "" {
		if err := d.resolveAsker(ctx, &who); err != nil {
			return &v, nil //nolint:nilerr // it can be shown, not answered
		}
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	p, err := s.adapter.Progress(pctx, who.task, agent.Position{})
	if err != nil || len(waiting(p)) == 0 {
		return &v, nil //nolint:nilerr // likewise
	}
	x := d.surfaceOf(s.adapter, s.proc, s.pane, who.task, s.reading, waiting(p))
	if x.print != row.PromptFingerprint || x.step.Manual != "" || d.Store.Writable() != nil {
		return &v, nil
	}
	err = d.Store.MintOffer(ctx, store.NewOffer{
		Key:     d.interactionKey(who.kind(), who.id(), row.ID),
		Payload: canonical(interactionOffer{row.ID, row.PromptFingerprint}), Fingerprint: row.PromptFingerprint,
		Life: life,
	})
	if err != nil {
		return nil, err
	}
	acts["respond_interaction"] = Action{
		Tool:            toolName("respond_interaction"),
		Arguments:       map[string]any{who.kind() + "_id": who.id(), "interaction_id": row.ID},
		MissingRequired: []string{"answers"}, RequiresUserIntent: true, RequiresFreshStatus: true,
	}
	return &v, nil
}

// openStep gives the newest step that still matters, with its public state.
func openStep(rows []store.Interaction) (row store.Interaction, state string) {
	for _, r := range rows {
		switch r.State {
		case store.InteractionPending, store.InteractionPublished:
			row, state = r, store.InteractionPending
		case store.InteractionManual:
			row, state = r, store.InteractionManual
		case store.InteractionUncertain:
			if r.LastProvenStage != store.SurfaceGone {
				row, state = r, store.InteractionUncertain
			}
		}
	}
	return row, state
}
