package store

import (
	"context"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// States of an approval (core §11.1).
const (
	ApprovalNotified  = "notified"
	ApprovalReserved  = "reserved"
	ApprovalConsumed  = "consumed"
	ApprovalCleared   = "cleared"
	ApprovalExpired   = "expired"
	ApprovalUncertain = "uncertain"
)

// Decisions, and who takes them.
const (
	DecisionApprove = "approve_once"
	DecisionReject  = "reject"
	DecidedByUser   = "user"
	DecidedByPolicy = "policy"
)

// Reservation is a decision that is about to be typed.
type Reservation struct {
	TurnID      string
	MessageID   string
	Fingerprint string
	Decision    string
	DecidedBy   string
	RuleID      string        // of the policy
	Life        time.Duration // after the notification; 0: without end
}

// OpenApproval is a decision whose outcome nobody has stored.
type OpenApproval struct {
	Approval Approval
	Turn     Turn
}

var (
	// not seen cleared: at most one, by the index approval_once
	approvalStanding = define(`
SELECT ` + approvalCols + `
FROM approvals
WHERE turn_id = :turn AND message_id = :message AND fingerprint = :fingerprint AND cleared_at IS NULL`)

	approvalReserve = define(`
UPDATE approvals
SET state = 'reserved', decision = :decision, decided_by = :by, policy_rule_id = :rule, reserved_at = max(notified_at, :now)
WHERE approval_id = :approval AND state = 'notified' AND cleared_at IS NULL AND ` + held)

	approvalConsume = define(`
UPDATE approvals
SET state = 'consumed', consumed_at = max(reserved_at, :now), cleared_at = max(reserved_at, :now)
WHERE approval_id = :approval AND state = 'reserved' AND ` + held)

	approvalDoubt = define(`
UPDATE approvals
SET state = 'uncertain'
WHERE approval_id = :approval AND state = 'reserved' AND ` + held)

	approvalExpire = define(`
UPDATE approvals
SET state = 'expired'
WHERE approval_id = :approval AND state = 'notified'`)

	approvalTold = define(`
UPDATE approvals
SET delivery_id = :delivery
WHERE approval_id = :approval AND state = 'notified' AND delivery_id IS NULL AND cleared_at IS NULL`)

	approvalsReserved = define(`
SELECT a.approval_id
FROM turns t
JOIN approvals a ON a.turn_id = t.turn_id
WHERE t.status = 'waiting_for_controller' AND a.state = 'reserved'
ORDER BY a.notified_at, a.approval_id`)

	approvalsOld = define(`
SELECT a.approval_id
FROM turns t
JOIN approvals a ON a.turn_id = t.turn_id
WHERE t.status = 'waiting_for_controller' AND t.agent = :agent
  AND a.state = 'notified' AND a.cleared_at IS NULL AND a.notified_at <= :before`)
)

// ReserveApproval records, under the pane's terminal lease and before the first
// key, that a notified prompt is being decided. From here on no second decision
// is taken for it, whatever becomes of this one.
//
// Refusals: turn_status_invalid, active_owner (the Turn does not own the pane),
// deferred_transfer, binding_superseded, offer_changed (no such prompt is open),
// expired, submission_uncertain (an earlier decision is in doubt).
func (s *Store) ReserveApproval(ctx context.Context, l *Lease, r Reservation) (row Approval, err error) {
	var late error
	err = s.transact(ctx, func(t *tx) error {
		late = nil
		if err := t.guard(l); err != nil {
			return err
		}
		turn, err := t.decidable(l, r)
		if err != nil {
			return err
		}
		row, err = t.standing(r)
		if err != nil {
			return err
		}
		if r.Life > 0 && t.now >= row.NotifiedAt+r.Life.Milliseconds() {
			late = approvalLate(turn.ID)
			return t.must(approvalExpire, "approval", row.ID)
		}
		if err := t.must(approvalReserve, append(t.under(l), "approval", row.ID, "decision", r.Decision, "by", r.DecidedBy,
			"rule", orNull(r.RuleID), "now", t.now)...); err != nil {
			return err
		}
		if err := t.event(turn.ID, "approval_reserved", r.MessageID, detailOf("decision", r.Decision, "decided_by", r.DecidedBy, "rule", r.RuleID)); err != nil {
			return err
		}
		row, err = only(t, scanApproval, "approval", row.ID, approvalByID, "approval", row.ID)
		return err
	})
	if err == nil {
		err = late
	}
	if err != nil {
		return Approval{}, err
	}
	crashpoint.At("approval_reserved")
	return row, nil
}

// decidable is the fence of a decision: the Turn waits for it, owns the pane, and
// stands on its binding.
func (t *tx) decidable(l *Lease, r Reservation) (Turn, error) {
	turn, err := t.turn(r.TurnID)
	if err != nil {
		return turn, err
	}
	if err := allow(turn, "decide an approval of", TurnWaitingForController); err != nil {
		return turn, err
	}
	if turn.CurrentMessageID != r.MessageID {
		return turn, superseded(turn.ID, "generation_replaced")
	}
	return t.owning(l, r.TurnID, "decide an approval of")
}

func (t *tx) standing(r Reservation) (Approval, error) {
	row, ok, err := first(t, scanApproval, approvalStanding, "turn", r.TurnID, "message", r.MessageID, "fingerprint", r.Fingerprint)
	switch {
	case err != nil:
		return row, err
	case !ok:
		return row, fault.New(fault.OfferChanged, "decide an approval of Turn %s: no such prompt is open", r.TurnID).With("turn_id", r.TurnID)
	}
	switch row.State {
	case ApprovalNotified:
		return row, nil
	case ApprovalExpired:
		return row, approvalLate(r.TurnID)
	case ApprovalConsumed:
		return row, fault.New(fault.OfferChanged, "decide an approval of Turn %s: it is decided", r.TurnID).With("turn_id", r.TurnID)
	}
	return row, fault.New(fault.SubmissionUncertain, "decide an approval of Turn %s: an earlier decision about this prompt is in doubt", r.TurnID).
		With("turn_id", r.TurnID).WithInput(fault.InputPossible)
}

func approvalLate(turnID string) error {
	return fault.New(fault.Expired, "decide an approval of Turn %s: it was notified too long ago", turnID).With("turn_id", turnID)
}

// ConsumeApproval records that the key of a reserved decision was sent and that
// the prompt left; the Turn goes back to waiting_for_agent and a notification
// that was not delivered yet is superseded. A Turn that has moved on meanwhile
// keeps its status.
func (s *Store) ConsumeApproval(ctx context.Context, l *Lease, approvalID string) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		row, old, err := t.reserved(l, approvalID)
		if err != nil {
			return err
		}
		if err := t.must(approvalConsume, append(t.under(l), "approval", approvalID, "now", t.now)...); err != nil {
			return err
		}
		if err := t.event(old.ID, "approval_consumed", row.MessageID, detailOf("decision", row.Decision, "decided_by", row.DecidedBy)); err != nil {
			return err
		}
		turn = old
		if old.Status != TurnWaitingForController || old.CurrentMessageID != row.MessageID {
			return nil
		}
		open, _, err := first(t, scanInt, promptsOpen, "turn", old.ID)
		if err != nil || open > 0 {
			return err
		}
		turn.Status = TurnWaitingForAgent
		turn.touch(Activity{At: t.now})
		if err := t.saveTurn(l, old, &turn); err != nil {
			return err
		}
		return t.supersedeQuestion(turn.ID, "approval_decided")
	})
	if err == nil {
		crashpoint.At("approval_consumed")
	}
	return turn, err
}

// DoubtApproval ends a reserved decision whose outcome is not known: no second
// key is sent for its prompt, and the user decides in the pane. cb tells so; nil
// where the caller's own answer does.
func (s *Store) DoubtApproval(ctx context.Context, l *Lease, approvalID, reason string, cb *NewCallback) error {
	err := s.transact(ctx, func(t *tx) error {
		row, turn, err := t.reserved(l, approvalID)
		if err != nil {
			return err
		}
		if err := t.must(approvalDoubt, append(t.under(l), "approval", approvalID)...); err != nil {
			return err
		}
		if err := t.event(turn.ID, "approval_uncertain", row.MessageID, detailOf("reason", reason)); err != nil {
			return err
		}
		if cb == nil || !turn.Blocks() {
			return nil
		}
		return t.insertCallback(*cb, turn.ID, "")
	})
	if err == nil {
		crashpoint.At("approval_doubted")
	}
	return err
}

func (t *tx) reserved(l *Lease, approvalID string) (Approval, Turn, error) {
	if err := t.guard(l); err != nil {
		return Approval{}, Turn{}, err
	}
	row, err := only(t, scanApproval, "approval", approvalID, approvalByID, "approval", approvalID)
	if err != nil {
		return row, Turn{}, err
	}
	turn, err := t.turn(row.TurnID)
	if err == nil && l.Name != TerminalLease(turn.TerminalKey) {
		err = fault.New(fault.Internal, "settle an approval of Turn %s: not under the pane's terminal lease", turn.ID)
	}
	if err == nil && row.State != ApprovalReserved {
		err = fault.New(fault.TurnStatusInvalid, "settle an approval of Turn %s: it is %s", turn.ID, row.State).
			With("turn_id", turn.ID).With("status", turn.Status)
	}
	return row, turn, err
}

// ApprovalTold tells of a notified prompt that was stored without a callback,
// because a policy was to decide it.
func (s *Store) ApprovalTold(ctx context.Context, m Monitor, approvalID string, cb NewCallback) error {
	return s.transact(ctx, func(t *tx) error {
		if _, err := t.monitored(m); err != nil {
			return err
		}
		n, err := t.exec(approvalTold, "approval", approvalID, "delivery", cb.DeliveryID)
		if err != nil || n == 0 { // decided, gone or told meanwhile
			t.silent = true
			return err
		}
		return t.insertCallback(cb, m.TurnID, "")
	})
}

// ReservedApprovals lists the decisions without an outcome. Who takes the pane's
// terminal lock and still finds one there knows that its program is gone.
func (s *Store) ReservedApprovals(ctx context.Context) (all []OpenApproval, err error) {
	err = s.view(ctx, func(t *tx) error {
		ids, err := list(t, scanString, approvalsReserved)
		if err != nil {
			return err
		}
		for _, id := range ids {
			row, err := only(t, scanApproval, "approval", id, approvalByID, "approval", id)
			if err != nil {
				return err
			}
			turn, err := t.turn(row.TurnID)
			if err != nil {
				return err
			}
			all = append(all, OpenApproval{row, turn})
		}
		return nil
	})
	return all, storeError("list approvals", err)
}

// PromptsOpen reports whether an approval or a questionnaire of a Turn is open.
func (s *Store) PromptsOpen(ctx context.Context, turnID string) (bool, error) {
	n, _, err := first(pool{ctx, s.rdb}, scanInt, promptsOpen, "turn", turnID)
	return n > 0, storeError("look for open prompts", err)
}

// ExpireApprovals ends the notified prompts of an agent that are older than life.
func (s *Store) ExpireApprovals(ctx context.Context, agent string, life time.Duration) (expired int, err error) {
	old := func(q queryer) ([]string, error) {
		return list(q, scanString, approvalsOld, "agent", agent, "before", s.Now()-life.Milliseconds())
	}
	if ids, err := old(pool{ctx, s.rdb}); err != nil || len(ids) == 0 {
		return 0, storeError("look for old approvals", err)
	}
	err = s.transact(ctx, func(t *tx) error {
		ids, err := old(t)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := t.must(approvalExpire, "approval", id); err != nil {
				return err
			}
		}
		expired = len(ids)
		return nil
	})
	return expired, err
}
