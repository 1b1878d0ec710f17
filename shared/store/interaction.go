package store

import (
	"context"
	"encoding/json"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// States of an interaction (core §11.3).
const (
	InteractionCandidate  = "candidate"        // looks like a question, seen once
	InteractionPending    = "pending"          // proven, told to nobody: there is no route
	InteractionPublished  = "published"        // proven and told
	InteractionManual     = "manual_required"  // only the person at the pane may answer
	InteractionReserved   = "reserved"         // an answer is about to be typed
	InteractionExecuting  = "executing"        // its keys may have begun
	InteractionAwaiting   = "awaiting_advance" // its keys were sent
	InteractionResolved   = "resolved"         // the page moved on
	InteractionSuperseded = "superseded"       // gone without an answer of ours
	InteractionUncertain  = "response_uncertain"
)

// SurfaceGone is the stage of an answered or doubted page that is not shown any
// more: it keeps no Turn waiting.
const SurfaceGone = "surface_gone"

// NewInteraction is a page of a questionnaire as it was proven on the screen.
type NewInteraction struct {
	InteractionID     string
	State             string // candidate, published or manual_required
	PromptFingerprint string
	SurfaceID         string // the questionnaire: equal for all its pages, and in every Store
	StepIndex         int64
	StepTotal         int64
	Projection        []byte // JSON, at most 32 KiB
	Plan              []byte // JSON object
	OwnerSession      string
	ProcessKey        string
	ExpiresAt         int64
	Callback          *NewCallback
	Detail            []byte
}

// Interaction is one page of a questionnaire (core §11.3).
type Interaction struct {
	ID                string
	TurnID            string
	WatchID           string
	MessageID         string
	State             string
	PromptFingerprint string
	SurfaceID         string
	StepIndex         int64
	StepTotal         int64
	Projection        []byte
	Plan              []byte
	OwnerSession      string
	BindingID         string
	BindingGeneration int64
	ProcessKey        string
	AnswerMessageID   string
	LastProvenStage   string
	CreatedAt         int64
	ExpiresAt         int64
	UpdatedAt         int64
}

const interactionCols = `interaction_id, coalesce(turn_id, ''), coalesce(watch_id, ''), coalesce(message_id, ''), state,
  prompt_fingerprint, surface_id, step_index, step_total, projection_json, plan_json, owner_session,
  coalesce(binding_id, ''), coalesce(binding_generation, 0), process_key, coalesce(answer_message_id, ''),
  coalesce(last_proven_stage, ''), created_at, expires_at, updated_at`

func scanInteraction(r scanner) (i Interaction, err error) {
	err = r.Scan(&i.ID, &i.TurnID, &i.WatchID, &i.MessageID, &i.State,
		&i.PromptFingerprint, &i.SurfaceID, &i.StepIndex, &i.StepTotal, &i.Projection, &i.Plan, &i.OwnerSession,
		&i.BindingID, &i.BindingGeneration, &i.ProcessKey, &i.AnswerMessageID,
		&i.LastProvenStage, &i.CreatedAt, &i.ExpiresAt, &i.UpdatedAt)
	return i, err
}

// interactionLeave is what becomes of a page that is not shown any more: one that
// nobody answered is superseded, one whose keys were sent has moved on. A reserved
// one belongs to whoever types.
const interactionLeave = `
UPDATE interactions
SET state = CASE state WHEN 'awaiting_advance' THEN 'resolved' WHEN 'response_uncertain' THEN state ELSE 'superseded' END,
  last_proven_stage = CASE WHEN state = 'awaiting_advance' OR state = 'response_uncertain' THEN 'surface_gone' ELSE last_proven_stage END,
  updated_at = max(updated_at, :now)
`

const interactionLeaves = ` AND (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
    OR state = 'awaiting_advance' OR state = 'response_uncertain' AND coalesce(last_proven_stage, '') <> 'surface_gone')`

var (
	interactionByID = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE interaction_id = :interaction`)

	interactionsOf = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE turn_id = :turn
ORDER BY created_at, rowid`)

	interactionsOfWatch = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE watch_id = :watch
ORDER BY created_at, rowid`)

	// also an answered one: a consumed prompt is not shown or answered again
	interactionKnown = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE turn_id = :turn AND surface_id = :surface AND prompt_fingerprint = :fingerprint AND state <> 'superseded'
ORDER BY rowid DESC
LIMIT 1`)

	interactionKnownWatch = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE watch_id = :watch AND surface_id = :surface AND prompt_fingerprint = :fingerprint AND state <> 'superseded'
ORDER BY rowid DESC
LIMIT 1`)

	interactionInsert = define(`
INSERT INTO interactions(interaction_id, turn_id, watch_id, message_id, state, prompt_fingerprint, surface_id, step_index, step_total,
  projection_json, plan_json, owner_session, binding_id, binding_generation, process_key, created_at, expires_at, updated_at)
VALUES (:interaction, :turn, :watch, :message, :state, :fingerprint, :surface, :step, :steps,
  :projection, json_set(:plan, '$.event', :event), :owner, :binding, :generation, :process, :now, :expires, :now)`)

	interactionForget = define(`
DELETE FROM interactions
WHERE interaction_id = :interaction AND state = 'candidate'`)

	interactionsClear = define(interactionLeave + `WHERE turn_id = :turn` + interactionLeaves)

	interactionsClearWatch = define(interactionLeave + `WHERE watch_id = :watch` + interactionLeaves)
)

// Interaction gives one page, or not_found.
func (s *Store) Interaction(ctx context.Context, id string) (Interaction, error) {
	return only(pool{ctx, s.rdb}, scanInteraction, "interaction", id, interactionByID, "interaction", id)
}

// Interactions lists the pages that a Turn met, the oldest first.
func (s *Store) Interactions(ctx context.Context, turnID string) ([]Interaction, error) {
	all, err := list(pool{ctx, s.rdb}, scanInteraction, interactionsOf, "turn", turnID)
	return all, storeError("list interactions", err)
}

// WatchInteractions lists the pages that a Watch met, the oldest first.
func (s *Store) WatchInteractions(ctx context.Context, watchID string) ([]Interaction, error) {
	all, err := list(pool{ctx, s.rdb}, scanInteraction, interactionsOfWatch, "watch", watchID)
	return all, storeError("list interactions", err)
}

// QuestionSeen records what looks like a page of a questionnaire, before a second
// look has proven it. It tells nobody and moves no Turn; a page that is known
// changes nothing.
func (s *Store) QuestionSeen(ctx context.Context, m Monitor, q NewInteraction) error {
	q.State, q.Callback = InteractionCandidate, nil
	seen := false
	err := s.transact(ctx, func(t *tx) error {
		t.silent, seen = true, false
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		_, known, err := first(t, scanInteraction, interactionKnown, "turn", m.TurnID, "surface", q.SurfaceID, "fingerprint", q.PromptFingerprint)
		if err != nil || known {
			return err
		}
		seen = true
		return t.insertInteraction(q, &old, "")
	})
	if err == nil && seen {
		crashpoint.At("question_seen")
	}
	return err
}

// QuestionNotified records a page that two looks have proven: Turn to
// waiting_for_controller, row and callback, one transaction; pages that stood
// before it have left. A page that is known (an answered one, too) comes back with
// false and changes nothing. Without a callback a published page is pending.
func (s *Store) QuestionNotified(ctx context.Context, m Monitor, q NewInteraction) (row Interaction, inserted bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		inserted = false
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		known, ok, err := first(t, scanInteraction, interactionKnown, "turn", m.TurnID, "surface", q.SurfaceID, "fingerprint", q.PromptFingerprint)
		if err != nil {
			return err
		}
		if row = known; ok && known.State != InteractionCandidate {
			t.silent = true
			return nil
		}
		if ok {
			if err := t.must(interactionForget, "interaction", known.ID); err != nil {
				return err
			}
		}
		if _, err := t.exec(interactionsClear, "turn", m.TurnID, "now", t.now); err != nil {
			return err
		}
		if err := t.waitForController(m, old, "question_notified", q.Detail, q.Callback); err != nil {
			return err
		}
		if err := t.insertInteraction(q, &old, ""); err != nil {
			return err
		}
		inserted = true
		row, err = t.interaction(q.InteractionID)
		return err
	})
	if err != nil {
		return Interaction{}, false, err
	}
	if inserted {
		crashpoint.At("question_notified")
	}
	return row, inserted, nil
}

// QuestionCleared records that no questionnaire is seen any more, like
// ApprovalCleared: a page whose keys were sent is resolved, the others are
// superseded.
func (s *Store) QuestionCleared(ctx context.Context, m Monitor) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) (err error) {
		turn, err = t.promptGone(m, interactionsClear)
		return err
	})
	return turn, err
}

// WatchQuestionNotified is QuestionNotified for a Watch of one exact task: its
// callback stands in the Watch's own lane, and nothing is moved.
func (s *Store) WatchQuestionNotified(ctx context.Context, f WatchFence, q NewInteraction) (row Interaction, inserted bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		inserted = false
		w, err := t.observed(f, true)
		if err != nil {
			return err
		}
		if w.Mode != ModeExactTask {
			return fault.New(fault.Internal, "ask through Watch %s: it follows no exact task", w.ID)
		}
		known, ok, err := first(t, scanInteraction, interactionKnownWatch, "watch", w.ID, "surface", q.SurfaceID, "fingerprint", q.PromptFingerprint)
		if err != nil || ok {
			row, t.silent = known, true
			return err
		}
		if err := t.watchQuestionsLeave(w.ID); err != nil {
			return err
		}
		if err := t.insertInteraction(q, nil, w.ID); err != nil {
			return err
		}
		if q.Callback != nil {
			if err := t.insertCallback(*q.Callback, "", w.ID); err != nil {
				return err
			}
		}
		inserted = true
		row, err = t.interaction(q.InteractionID)
		return err
	})
	if err != nil {
		return Interaction{}, false, err
	}
	if inserted {
		crashpoint.At("watch_question_notified")
	}
	return row, inserted, nil
}

// WatchQuestionCleared is QuestionCleared for a Watch.
func (s *Store) WatchQuestionCleared(ctx context.Context, f WatchFence) error {
	return s.transact(ctx, func(t *tx) error {
		if _, err := t.observed(f, false); err != nil {
			return err
		}
		return t.watchQuestionsLeave(f.WatchID)
	})
}

// watchQuestionsLeave lets the open pages of a Watch leave, with what still waits
// to be told about them.
func (t *tx) watchQuestionsLeave(watchID string) error {
	if _, err := t.exec(interactionsClearWatch, "watch", watchID, "now", t.now); err != nil {
		return err
	}
	_, err := t.exec(supersedeWatchQuestion, "watch", watchID, "reason", "prompt_gone", "now", t.now)
	return err
}

func (t *tx) interaction(id string) (Interaction, error) {
	return only(t, scanInteraction, "interaction", id, interactionByID, "interaction", id)
}

// insertInteraction writes a page of a Turn (owner) or of a Watch.
func (t *tx) insertInteraction(q NewInteraction, owner *Turn, watchID string) error {
	state, event := q.State, any(nil)
	if q.Callback != nil {
		event = q.Callback.MessageID
	} else if state == InteractionPublished {
		state = InteractionPending
	}
	var turn, message, binding, generation any
	if owner != nil {
		turn, message, binding, generation = owner.ID, owner.CurrentMessageID, owner.BindingID, owner.BindingGeneration
	}
	_, err := t.exec(interactionInsert, "interaction", q.InteractionID, "turn", turn, "watch", orNull(watchID), "message", message, "state", state,
		"fingerprint", q.PromptFingerprint, "surface", q.SurfaceID, "step", q.StepIndex, "steps", q.StepTotal,
		"projection", q.Projection, "plan", q.Plan, "event", event, "owner", q.OwnerSession, "binding", binding,
		"generation", generation, "process", q.ProcessKey, "now", t.now, "expires", q.ExpiresAt)
	return err
}

// event is the id of the event that told of the page, "" without one.
func (i Interaction) event() string {
	var plan struct {
		Event string `json:"event"`
	}
	_ = json.Unmarshal(i.Plan, &plan) // our own column, checked by the schema
	return plan.Event
}
