package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Response is an answer that is about to be typed. Nothing of what it says is
// stored but its kind and the ids that it names.
type Response struct {
	InteractionID string
	MessageID     string // of the tool call (tools §5)
	Fingerprint   string // of the page as it was seen under the terminal lease
	OwnerSession  string
	Kind          string
	QuestionID    string
	OptionID      string // of a choice
	Seal          string // tells a repeated call from another one without keeping the answer
}

// OpenResponse is a page whose answer has no outcome yet.
type OpenResponse struct {
	Interaction Interaction
	TerminalKey string
}

var (
	interactionByAnswer = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE answer_message_id = :message`)

	interactionReserve = define(`
UPDATE interactions
SET state = 'reserved', answer_message_id = :message, last_proven_stage = 'reserved', updated_at = max(updated_at, :now),
  plan_json = json_set(plan_json, '$.kind', :kind, '$.question_id', :question, '$.option_id', :option, '$.seal', :seal)
WHERE interaction_id = :interaction AND (state = 'pending' OR state = 'published') AND ` + held)

	interactionMove = define(`
UPDATE interactions
SET state = :to, last_proven_stage = :stage, updated_at = max(updated_at, :now)
WHERE interaction_id = :interaction AND state = :from AND ` + held)

	// no input began: the page is open as before, and the call may be made again
	interactionReturn = define(`
UPDATE interactions
SET state = CASE WHEN json_extract(plan_json, '$.event') IS NULL THEN 'pending' ELSE 'published' END,
  answer_message_id = NULL, last_proven_stage = NULL, updated_at = max(updated_at, :now)
WHERE interaction_id = :interaction AND state = :from AND ` + held)

	// the same page, consumed by an earlier answer
	interactionSpent = define(`
SELECT count(*)
FROM interactions
WHERE coalesce(turn_id,watch_id) = :subject AND surface_id = :surface AND prompt_fingerprint = :fingerprint
  AND (state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance' OR state = 'resolved' OR state = 'response_uncertain')`)

	// open pages of the same questionnaire, the one that may be answered first:
	// Turns before Watches, then the newer claim, then session, then owner
	interactionResponders = define(`
SELECT interaction_id
FROM interactions
WHERE (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
    OR state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance'
    OR state = 'response_uncertain')
  AND (state = 'pending' OR state = 'published' OR state = 'reserved' OR state = 'executing')
  AND surface_id = :surface AND prompt_fingerprint = :fingerprint
ORDER BY turn_id IS NULL, created_at DESC, owner_session, coalesce(turn_id, watch_id)
LIMIT 1`)

	interactionsUnderWay = define(`
SELECT interaction_id
FROM interactions
WHERE (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
    OR state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance'
    OR state = 'response_uncertain')
  AND (state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance')
ORDER BY created_at, interaction_id`)

	supersedeEvent = define(`
UPDATE callbacks
SET status = 'superseded', attempt_id = NULL, claim_expires_at = NULL,
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE turn_id = :turn AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait') AND message_id = :event`)

	// One that is being delivered may still end accepted.
	supersedeWatchQuestion = define(`
UPDATE callbacks
SET status = 'superseded',
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE watch_id = :watch AND status IN ('pending','retry_wait') AND kind = 'interaction'`)
)

// AnsweredInteraction gives the page that a tool call answered, if it did.
func (s *Store) AnsweredInteraction(ctx context.Context, messageID string) (Interaction, bool, error) {
	row, ok, err := first(pool{ctx, s.rdb}, scanInteraction, interactionByAnswer, "message", messageID)
	return row, ok, storeError("look for an answer", err)
}

// ReserveInteraction records, under the pane's terminal lease and before the first
// key, that a page is being answered. Whatever becomes of the answer, this page is
// never answered by another one, unless ReturnInteraction proves that nothing was
// typed.
//
// Refusals: interaction_mismatch (gone, of another owner, or another responder
// comes first), response_not_allowed (manual, or answered before), offer_changed
// (another page is shown), expired; of a Turn turn_status_invalid, active_owner,
// deferred_transfer, binding_superseded; of a Watch watch_conflict and what
// refuses a Watch on an owned pane.
func (s *Store) ReserveInteraction(ctx context.Context, l *Lease, r Response) (row Interaction, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		old, err := t.interaction(r.InteractionID)
		if err != nil {
			return err
		}
		if err := t.respondable(l, old, r); err != nil {
			return err
		}
		err = t.must(interactionReserve, append(t.under(l), "interaction", old.ID, "message", r.MessageID, "kind", r.Kind,
			"question", r.QuestionID, "option", orNull(r.OptionID), "seal", r.Seal, "now", t.now)...)
		switch violated(err) {
		case "":
		case "interactions.answer_message_id":
			return fault.New(fault.IdempotencyConflict, "answer %s: this call answered another page", old.ID)
		default:
			return spent(old)
		}
		if err == nil && old.TurnID != "" {
			err = t.event(old.TurnID, "interaction_reserved", old.MessageID, detailOf("interaction_id", old.ID, "kind", r.Kind))
		}
		if err != nil {
			return err
		}
		row, err = t.interaction(old.ID)
		return err
	})
	if err != nil {
		return Interaction{}, err
	}
	crashpoint.At("interaction_reserved")
	return row, nil
}

// respondable refuses an answer to a page that is not this caller's to answer now.
func (t *tx) respondable(l *Lease, row Interaction, r Response) error {
	mismatch := func(why string) error {
		return fault.New(fault.InteractionMismatch, "answer %s: %s", row.ID, why).With("interaction_id", row.ID).Safe()
	}
	switch row.State {
	case InteractionPending, InteractionPublished:
	case InteractionManual, InteractionCandidate:
		return fault.New(fault.ResponseNotAllowed, "answer %s: only the person at the pane may", row.ID).With("interaction_id", row.ID).Safe()
	case InteractionSuperseded:
		return mismatch("it is not asked any more")
	default:
		return spent(row)
	}
	switch {
	case row.OwnerSession != r.OwnerSession:
		return mismatch("another controller session owns it")
	case row.PromptFingerprint != r.Fingerprint:
		return fault.New(fault.OfferChanged, "answer %s: the pane shows another page", row.ID).With("interaction_id", row.ID).Safe()
	case row.ExpiresAt <= t.now:
		return fault.New(fault.Expired, "answer %s: it is past its life", row.ID).With("interaction_id", row.ID).Safe()
	}
	if row.TurnID != "" {
		turn, err := t.owning(l, row.TurnID, "answer a question of")
		if err == nil {
			err = allow(turn, "answer a question of", TurnWaitingForController)
		}
		if err == nil && (turn.CurrentMessageID != row.MessageID || turn.BindingID != row.BindingID || turn.BindingGeneration != row.BindingGeneration) {
			err = superseded(turn.ID, "generation_replaced")
		}
		if err != nil {
			return err
		}
	} else if err := t.watchAnswers(l, row); err != nil {
		return err
	}
	n, _, err := first(t, scanInt, interactionSpent, "subject", row.TurnID+row.WatchID, "surface", row.SurfaceID, "fingerprint", row.PromptFingerprint)
	if err == nil && n > 0 {
		err = spent(row)
	}
	if err != nil {
		return err
	}
	best, _, err := first(t, scanString, interactionResponders, "surface", row.SurfaceID, "fingerprint", row.PromptFingerprint)
	if err == nil && best != row.ID {
		err = mismatch("another one of the same question is answered first")
	}
	return err
}

// watchAnswers refuses unless the row's Watch is active, on this pane, and no Turn
// owns the pane.
func (t *tx) watchAnswers(l *Lease, row Interaction) error {
	w, err := t.watch(row.WatchID)
	if err != nil {
		return err
	}
	switch {
	case w.Status != WatchActive:
		return watchConflict(w, "it is "+w.Status)
	case w.Mode != ModeExactTask:
		return watchConflict(w, "it follows no exact task")
	case l.Name != TerminalLease(w.TerminalKey):
		return fault.New(fault.Internal, "answer %s: not under the pane's terminal lease", row.ID)
	}
	return t.unowned(w.TerminalKey)
}

// spent says that a page was answered before, or that an answer to it is in doubt.
func spent(row Interaction) error {
	f := fault.New(fault.ResponseNotAllowed, "answer %s: it was answered before (%s)", row.ID, row.State).
		With("interaction_id", row.ID).With("state", row.State).WithHint("look at status; a page is answered once")
	if row.State == InteractionUncertain {
		f = f.WithHint("an earlier answer may have been typed: the person at the pane must look")
	}
	return f
}

// ExecuteInteraction is committed immediately before the first key of a reserved
// answer. An error means: press nothing.
func (s *Store) ExecuteInteraction(ctx context.Context, l *Lease, id string) error {
	return s.moveInteraction(ctx, l, id, "interaction_executing", func(t *tx, row Interaction) error {
		return t.moved(l, row, InteractionExecuting, InteractionExecuting, InteractionReserved)
	})
}

// ReturnInteraction takes a reservation back of which it is proven that nothing
// was typed.
func (s *Store) ReturnInteraction(ctx context.Context, l *Lease, id string) error {
	return s.moveInteraction(ctx, l, id, "interaction_returned", func(t *tx, row Interaction) error {
		if row.State != InteractionReserved && row.State != InteractionExecuting {
			return interactionConflict(row)
		}
		return t.must(interactionReturn, append(t.under(l), "interaction", row.ID, "from", row.State, "now", t.now)...)
	})
}

// InteractionSent is committed when all keys of an answer were pressed: the Turn
// goes back to waiting_for_agent unless another prompt is open, and the page's own
// callback is superseded if it was not accepted yet.
func (s *Store) InteractionSent(ctx context.Context, l *Lease, id string) error {
	return s.moveInteraction(ctx, l, id, "interaction_sent", func(t *tx, row Interaction) error {
		if err := t.moved(l, row, InteractionAwaiting, "submitted", InteractionExecuting); err != nil {
			return err
		}
		if row.WatchID != "" {
			_, err := t.exec(supersedeWatchQuestion, "watch", row.WatchID, "reason", "answered", "now", t.now)
			return err
		}
		old, err := t.turn(row.TurnID)
		if err != nil {
			return err
		}
		if _, err := t.exec(supersedeEvent, "turn", old.ID, "event", row.event(), "reason", "answered", "now", t.now); err != nil {
			return err
		}
		if err := t.event(old.ID, "interaction_answered", row.MessageID, detailOf("interaction_id", row.ID)); err != nil {
			return err
		}
		open, _, err := first(t, scanInt, promptsOpen, "turn", old.ID)
		if err != nil || open > 0 || old.Status != TurnWaitingForController || old.CurrentMessageID != row.MessageID {
			return err
		}
		turn := old
		turn.Status = TurnWaitingForAgent
		turn.touch(Activity{At: t.now})
		return t.saveTurn(l, old, &turn)
	})
}

// InteractionAdvanced is committed when the page was seen to move on after its
// keys. One that its observer saw first is resolved already.
func (s *Store) InteractionAdvanced(ctx context.Context, l *Lease, id string) error {
	return s.moveInteraction(ctx, l, id, "interaction_advanced", func(t *tx, row Interaction) error {
		if row.State == InteractionResolved {
			t.silent = true
			return nil
		}
		return t.moved(l, row, InteractionResolved, SurfaceGone, InteractionAwaiting)
	})
}

// DoubtInteraction ends an answer whose outcome is not known: the page is never
// answered again, and the person at the pane decides. A Turn that went on waiting
// for its agent waits for its controller again. cb tells so; nil where the
// caller's own answer does.
func (s *Store) DoubtInteraction(ctx context.Context, l *Lease, id, reason string, cb *NewCallback) error {
	return s.moveInteraction(ctx, l, id, "interaction_doubted", func(t *tx, row Interaction) error {
		stage := row.LastProvenStage
		if err := t.moved(l, row, InteractionUncertain, stage, InteractionReserved, InteractionExecuting, InteractionAwaiting); err != nil {
			return err
		}
		if row.TurnID == "" {
			return nil
		}
		old, err := t.turn(row.TurnID)
		if err != nil {
			return err
		}
		if err := t.event(old.ID, "interaction_uncertain", row.MessageID, detailOf("interaction_id", row.ID, "reason", reason)); err != nil {
			return err
		}
		if old.CurrentMessageID != row.MessageID {
			return nil
		}
		if old.Status == TurnWaitingForAgent || old.Status == TurnRunning {
			turn := old
			turn.Status = TurnWaitingForController
			if err := t.saveTurn(l, old, &turn); err != nil {
				return err
			}
		}
		if cb == nil || !old.Blocks() {
			return nil
		}
		return t.insertCallback(*cb, old.ID, "")
	})
}

// OpenResponses lists the answers without an outcome. Who takes the pane's
// terminal lock and still finds one there that was not sent knows that its program
// is gone.
func (s *Store) OpenResponses(ctx context.Context) (all []OpenResponse, err error) {
	err = s.view(ctx, func(t *tx) error {
		ids, err := list(t, scanString, interactionsUnderWay)
		if err != nil {
			return err
		}
		for _, id := range ids {
			row, err := t.interaction(id)
			if err != nil {
				return err
			}
			key, err := t.paneOf(row)
			if err != nil {
				return err
			}
			all = append(all, OpenResponse{row, key})
		}
		return nil
	})
	return all, storeError("list answers", err)
}

// moveInteraction runs one move of a page under the lease of its pane.
func (s *Store) moveInteraction(ctx context.Context, l *Lease, id, point string, move func(*tx, Interaction) error) error {
	err := s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		row, err := t.interaction(id)
		if err != nil {
			return err
		}
		key, err := t.paneOf(row)
		if err != nil {
			return err
		}
		if l.Name != TerminalLease(key) {
			return fault.New(fault.Internal, "move %s: not under the pane's terminal lease", row.ID)
		}
		return move(t, row)
	})
	if err == nil {
		crashpoint.At(point)
	}
	return err
}

// moved changes the state if it is one of from.
func (t *tx) moved(l *Lease, row Interaction, to, stage string, from ...string) error {
	for _, f := range from {
		if row.State == f {
			return t.must(interactionMove, append(t.under(l), "interaction", row.ID, "to", to, "stage", orNull(stage), "from", f, "now", t.now)...)
		}
	}
	return interactionConflict(row)
}

func (t *tx) paneOf(row Interaction) (string, error) {
	if row.TurnID != "" {
		turn, err := t.turn(row.TurnID)
		return turn.TerminalKey, err
	}
	w, err := t.watch(row.WatchID)
	return w.TerminalKey, err
}

func interactionConflict(row Interaction) error {
	return fault.New(fault.InteractionMismatch, "move %s: it is %s", row.ID, row.State).With("interaction_id", row.ID).With("state", row.State)
}
