package store

import (
	"context"

	"drawbridge/shared/crashpoint"
)

// NewApproval is a prompt that was seen for the first time.
type NewApproval struct {
	ApprovalID          string // "" : made by the Store
	Fingerprint         string
	ScreenDigest        string
	RequestID           string // of the transcript
	EvidenceFingerprint string
	Callback            *NewCallback // nil where the Turn has no route
	Detail              []byte       // JSON object for the event, or nil
}

// Approval is one notified prompt (core §11.1).
type Approval struct {
	ID                  string
	TurnID              string
	MessageID           string
	Fingerprint         string
	ScreenDigest        string
	RequestID           string
	EvidenceFingerprint string
	State               string // notified, reserved, consumed, cleared, expired, uncertain
	DeliveryID          string
	Decision            string
	DecidedBy           string
	PolicyRuleID        string
	NotifiedAt          int64
	ReservedAt          int64
	ConsumedAt          int64
	ClearedAt           int64
}

// NewInteraction is a questionnaire step that was proven on the screen.
type NewInteraction struct {
	InteractionID     string
	State             string // published or manual_required
	PromptFingerprint string
	SurfaceID         string
	StepIndex         int64
	StepTotal         int64
	Projection        []byte // JSON, at most 32 KiB
	Plan              []byte // JSON
	OwnerSession      string
	ProcessKey        string
	ExpiresAt         int64
	Callback          *NewCallback
	Detail            []byte
}

// Interaction is one questionnaire step (core §11.3).
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

const approvalCols = `approval_id, turn_id, message_id, fingerprint, coalesce(screen_digest, ''), coalesce(request_id, ''),
  coalesce(evidence_fingerprint, ''), state, coalesce(delivery_id, ''), coalesce(decision, ''), coalesce(decided_by, ''),
  coalesce(policy_rule_id, ''), notified_at, coalesce(reserved_at, 0), coalesce(consumed_at, 0), coalesce(cleared_at, 0)`

func scanApproval(r scanner) (a Approval, err error) {
	err = r.Scan(&a.ID, &a.TurnID, &a.MessageID, &a.Fingerprint, &a.ScreenDigest, &a.RequestID,
		&a.EvidenceFingerprint, &a.State, &a.DeliveryID, &a.Decision, &a.DecidedBy,
		&a.PolicyRuleID, &a.NotifiedAt, &a.ReservedAt, &a.ConsumedAt, &a.ClearedAt)
	return a, err
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

var (
	approvalByID = define(`
SELECT ` + approvalCols + `
FROM approvals
WHERE approval_id = :approval`)

	approvalsOf = define(`
SELECT ` + approvalCols + `
FROM approvals
WHERE turn_id = :turn
ORDER BY notified_at, rowid`)

	// the same prompt: not seen cleared yet, or the same request of the transcript
	approvalKnown = define(`
SELECT ` + approvalCols + `
FROM approvals
WHERE turn_id = :turn AND message_id = :message AND (
     (cleared_at IS NULL AND (fingerprint = :fingerprint OR screen_digest = :screen))
  OR request_id = :request OR evidence_fingerprint = :evidence)
ORDER BY rowid DESC
LIMIT 1`)

	approvalInsert = define(`
INSERT INTO approvals(approval_id, turn_id, message_id, fingerprint, screen_digest, request_id, evidence_fingerprint,
  state, delivery_id, notified_at)
VALUES (:approval, :turn, :message, :fingerprint, :screen, :request, :evidence, 'notified', :delivery, :now)`)

	// one dialog at a time: what was notified before is not seen any more
	approvalsClear = define(`
UPDATE approvals
SET state = CASE state WHEN 'notified' THEN 'cleared' ELSE state END, cleared_at = max(notified_at, :now)
WHERE turn_id = :turn AND message_id = :message AND cleared_at IS NULL
  AND (state = 'notified' OR state = 'consumed' OR state = 'expired' OR state = 'uncertain')`)

	interactionByID = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE interaction_id = :interaction`)

	interactionsOf = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE turn_id = :turn
ORDER BY created_at, rowid`)

	// also an answered one: a consumed prompt is not shown or answered again
	interactionKnown = define(`
SELECT ` + interactionCols + `
FROM interactions
WHERE turn_id = :turn AND surface_id = :surface AND prompt_fingerprint = :fingerprint AND state <> 'superseded'
ORDER BY rowid DESC
LIMIT 1`)

	interactionInsert = define(`
INSERT INTO interactions(interaction_id, turn_id, message_id, state, prompt_fingerprint, surface_id, step_index, step_total,
  projection_json, plan_json, owner_session, binding_id, binding_generation, process_key, created_at, expires_at, updated_at)
VALUES (:interaction, :turn, :message, :state, :fingerprint, :surface, :step, :steps,
  :projection, :plan, :owner, :binding, :generation, :process, :now, :expires, :now)`)

	interactionsClear = define(`
UPDATE interactions
SET state = 'superseded', updated_at = max(updated_at, :now)
WHERE turn_id = :turn AND (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required')`)

	promptsOpen = define(`
SELECT
  (SELECT count(*) FROM approvals
   WHERE turn_id = :turn AND cleared_at IS NULL AND (state = 'notified' OR state = 'reserved' OR state = 'expired' OR state = 'uncertain')) +
  (SELECT count(*) FROM interactions
   WHERE turn_id = :turn AND (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
     OR state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance'
     OR state = 'response_uncertain'))`)
)

// Approvals lists the prompts of a Turn, the oldest first.
func (s *Store) Approvals(ctx context.Context, turnID string) ([]Approval, error) {
	all, err := list(pool{ctx, s.rdb}, scanApproval, approvalsOf, "turn", turnID)
	return all, storeError("list approvals", err)
}

// Interactions lists the questionnaire steps of a Turn, the oldest first.
func (s *Store) Interactions(ctx context.Context, turnID string) ([]Interaction, error) {
	all, err := list(pool{ctx, s.rdb}, scanInteraction, interactionsOf, "turn", turnID)
	return all, storeError("list interactions", err)
}

// ApprovalNotified records a prompt at first sight: Turn to
// waiting_for_controller, approval row and callback, one transaction. A prompt
// that is known (same request of the transcript or evidence, same fingerprint or
// screen not yet seen cleared) comes back with false and changes nothing.
func (s *Store) ApprovalNotified(ctx context.Context, m Monitor, a NewApproval) (row Approval, inserted bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		known, ok, err := first(t, scanApproval, approvalKnown, "turn", m.TurnID, "message", m.MessageID, "fingerprint", a.Fingerprint,
			"screen", orNull(a.ScreenDigest), "request", orNull(a.RequestID), "evidence", orNull(a.EvidenceFingerprint))
		if err != nil || ok {
			row, t.silent = known, true
			return err
		}
		if _, err := t.exec(approvalsClear, "turn", m.TurnID, "message", m.MessageID, "now", t.now); err != nil {
			return err
		}
		if err := t.waitForController(m, old, "approval_notified", a.Detail, a.Callback); err != nil {
			return err
		}
		if a.ApprovalID == "" {
			a.ApprovalID = t.newID()
		}
		delivery := ""
		if a.Callback != nil {
			delivery = a.Callback.DeliveryID
		}
		if _, err := t.exec(approvalInsert, "approval", a.ApprovalID, "turn", m.TurnID, "message", m.MessageID,
			"fingerprint", a.Fingerprint, "screen", orNull(a.ScreenDigest), "request", orNull(a.RequestID),
			"evidence", orNull(a.EvidenceFingerprint), "delivery", orNull(delivery), "now", t.now); err != nil {
			return err
		}
		inserted = true
		row, err = only(t, scanApproval, "approval", a.ApprovalID, approvalByID, "approval", a.ApprovalID)
		return err
	})
	if err != nil {
		return Approval{}, false, err
	}
	if inserted {
		crashpoint.At("approval_notified")
	}
	return row, inserted, nil
}

// ApprovalCleared records that no prompt is seen any more: open rows are cleared,
// a question that was not delivered yet is superseded, and the Turn goes back to
// waiting_for_agent unless a questionnaire is open.
func (s *Store) ApprovalCleared(ctx context.Context, m Monitor) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) (err error) {
		turn, err = t.promptGone(m, approvalsClear)
		return err
	})
	return turn, err
}

// QuestionNotified records a questionnaire step at first sight, like
// ApprovalNotified.
func (s *Store) QuestionNotified(ctx context.Context, m Monitor, q NewInteraction) (row Interaction, inserted bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		known, ok, err := first(t, scanInteraction, interactionKnown, "turn", m.TurnID, "surface", q.SurfaceID, "fingerprint", q.PromptFingerprint)
		if err != nil || ok {
			row, t.silent = known, true
			return err
		}
		if _, err := t.exec(interactionsClear, "turn", m.TurnID, "now", t.now); err != nil {
			return err
		}
		if err := t.waitForController(m, old, "question_notified", q.Detail, q.Callback); err != nil {
			return err
		}
		if _, err := t.exec(interactionInsert, "interaction", q.InteractionID, "turn", m.TurnID, "message", m.MessageID, "state", q.State,
			"fingerprint", q.PromptFingerprint, "surface", q.SurfaceID, "step", q.StepIndex, "steps", q.StepTotal,
			"projection", q.Projection, "plan", q.Plan, "owner", q.OwnerSession, "binding", old.BindingID,
			"generation", old.BindingGeneration, "process", q.ProcessKey, "now", t.now, "expires", q.ExpiresAt); err != nil {
			return err
		}
		inserted = true
		row, err = only(t, scanInteraction, "interaction", q.InteractionID, interactionByID, "interaction", q.InteractionID)
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
// ApprovalCleared.
func (s *Store) QuestionCleared(ctx context.Context, m Monitor) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) (err error) {
		turn, err = t.promptGone(m, interactionsClear)
		return err
	})
	return turn, err
}

// waitForController moves the Turn, or leaves it waiting for a further prompt.
func (t *tx) waitForController(m Monitor, old Turn, event string, detail []byte, cb *NewCallback) error {
	if err := allow(old, "notify", TurnWaitingForAgent, TurnRunning, TurnWaitingForController); err != nil {
		return err
	}
	turn := old
	turn.Status = TurnWaitingForController
	turn.touch(Activity{At: t.now})
	if err := t.saveTurn(m.Lease, old, &turn); err != nil {
		return err
	}
	if err := t.event(turn.ID, event, m.MessageID, detail); err != nil || cb == nil {
		return err
	}
	return t.insertCallback(*cb, turn.ID, "")
}

// promptGone clears prompts of one kind and lets the Turn go on when none of any
// kind is left.
func (t *tx) promptGone(m Monitor, clear stmt) (Turn, error) {
	old, err := t.monitored(m)
	if err != nil {
		return old, err
	}
	changed, err := t.exec(clear, "turn", m.TurnID, "message", m.MessageID, "now", t.now)
	if err != nil {
		return old, err
	}
	open, _, err := first(t, scanInt, promptsOpen, "turn", m.TurnID)
	if err != nil || open > 0 || old.Status != TurnWaitingForController {
		t.silent = changed == 0
		return old, err
	}
	turn := old
	turn.Status = TurnWaitingForAgent
	turn.touch(Activity{At: t.now})
	if err := t.saveTurn(m.Lease, old, &turn); err != nil {
		return turn, err
	}
	if err := t.event(turn.ID, "prompt_gone", m.MessageID, nil); err != nil {
		return turn, err
	}
	return turn, t.supersedeQuestion(turn.ID, "prompt_gone")
}
