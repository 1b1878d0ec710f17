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

const approvalCols = `approval_id, turn_id, message_id, fingerprint, coalesce(screen_digest, ''), coalesce(request_id, ''),
  coalesce(evidence_fingerprint, ''), state, coalesce(delivery_id, ''), coalesce(decision, ''), coalesce(decided_by, ''),
  coalesce(policy_rule_id, ''), notified_at, coalesce(reserved_at, 0), coalesce(consumed_at, 0), coalesce(cleared_at, 0)`

func scanApproval(r scanner) (a Approval, err error) {
	err = r.Scan(&a.ID, &a.TurnID, &a.MessageID, &a.Fingerprint, &a.ScreenDigest, &a.RequestID,
		&a.EvidenceFingerprint, &a.State, &a.DeliveryID, &a.Decision, &a.DecidedBy,
		&a.PolicyRuleID, &a.NotifiedAt, &a.ReservedAt, &a.ConsumedAt, &a.ClearedAt)
	return a, err
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

	promptsOpen = define(`
SELECT
  (SELECT count(*) FROM approvals
   WHERE turn_id = :turn AND cleared_at IS NULL AND (state = 'notified' OR state = 'reserved' OR state = 'expired' OR state = 'uncertain')) +
  (SELECT count(*) FROM interactions
   WHERE turn_id = :turn AND (state = 'pending' OR state = 'published' OR state = 'manual_required'
     OR state = 'reserved' OR state = 'executing'
     OR state = 'response_uncertain' AND coalesce(last_proven_stage, '') <> 'surface_gone'))`)
)

// Approvals lists the prompts of a Turn, the oldest first.
func (s *Store) Approvals(ctx context.Context, turnID string) ([]Approval, error) {
	all, err := list(pool{ctx, s.rdb}, scanApproval, approvalsOf, "turn", turnID)
	return all, storeError("list approvals", err)
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
