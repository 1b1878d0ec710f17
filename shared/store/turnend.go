package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

const retentionBatch = 100 // Turns closed in one transaction

var (
	turnsRetained = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.status = 'idle' AND t.idle_since + CAST(coalesce(:minutes, t.retention_minutes) * 60000 AS INTEGER) <= :now
  AND (:turn = '' OR t.turn_id = :turn)
ORDER BY t.idle_since
LIMIT :limit`)

	approvalsEnd = define(`
UPDATE approvals
SET state = CASE state WHEN 'notified' THEN 'cleared' ELSE state END, cleared_at = max(notified_at, :now)
WHERE turn_id = :turn AND cleared_at IS NULL AND (state = 'notified' OR state = 'consumed' OR state = 'expired' OR state = 'uncertain')`)
)

// RenewTurn goes on monitoring a stalled Turn: waiting_for_agent again, activity
// now, hard deadline unchanged, the stall's callback superseded. Refusals:
// turn_status_invalid (also detail "reason": hard_lifetime_over),
// submission_uncertain, submission_not_accepted, binding_superseded.
func (s *Store) RenewTurn(ctx context.Context, r TurnRenew) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.turn(r.TurnID)
		if err != nil {
			return err
		}
		if err := t.renewable(old); err != nil {
			return err
		}
		turn = old
		turn.Status, turn.StalledAt, turn.StalledReason, turn.StalledNotifiedAt = TurnWaitingForAgent, 0, "", 0
		turn.InactivityMinutes = orDefault(r.Minutes, old.InactivityMinutes)
		turn.LastActivityAt = t.at(old.LastActivityAt)
		turn.InactivityDeadlineAt = turn.LastActivityAt + minutes(turn.InactivityMinutes)
		if err := t.saveTurn(nil, old, &turn); err != nil {
			return err
		}
		if err := t.event(turn.ID, "renewed", turn.CurrentMessageID, nil); err != nil {
			return err
		}
		return t.supersedeLane(turn.ID, LaneNotification, "renewed")
	})
	if err == nil {
		crashpoint.At("turn_renewed")
	}
	return turn, err
}

func (t *tx) renewable(turn Turn) error {
	if err := allow(turn, "renew", TurnStalled); err != nil {
		return err
	}
	if turn.HardDeadlineAt <= t.now {
		return fault.New(fault.TurnStatusInvalid, "renew Turn %s: its hard lifetime is over", turn.ID).
			With("turn_id", turn.ID).With("status", turn.Status).With("reason", "hard_lifetime_over")
	}
	d, ok, err := first(t, scanDispatch, dispatchByMessage, "message", turn.CurrentMessageID)
	if err != nil {
		return err
	}
	switch {
	case !ok || d.ResolvedAt != 0:
		return superseded(turn.ID, "generation_replaced")
	case d.Status == DispatchNotAccepted:
		return fault.New(fault.SubmissionNotAccept, "renew Turn %s: its message was not accepted", turn.ID).With("turn_id", turn.ID)
	case d.Status != DispatchEnterDispatched && d.Status != DispatchAccepted:
		return fault.New(fault.SubmissionUncertain, "renew Turn %s: its message is %s", turn.ID, d.Status).With("turn_id", turn.ID)
	}
	b, err := t.binding(turn.BindingID)
	if err == nil && (b.ReleasedAt != 0 || b.Generation != turn.BindingGeneration) {
		return superseded(turn.ID, "binding_superseded")
	}
	return err
}

// CancelTurn records that the interrupt key was sent, under the terminal lease.
// Refusals: turn_status_invalid, active_owner (the Turn does not own the pane),
// deferred_transfer (its provisional binding is still open), binding_superseded.
func (s *Store) CancelTurn(ctx context.Context, l *Lease, c TurnCancel) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		old, err := t.owning(l, c.TurnID, "cancel")
		if err != nil {
			return err
		}
		turn = old
		turn.Status, turn.CancelledAt = TurnCancelled, t.at(old.UpdatedAt)
		if err := t.release(l, old, &turn, "cancelled"); err != nil {
			return err
		}
		if err := t.event(turn.ID, "cancelled", turn.CurrentMessageID, c.Detail); err != nil {
			return err
		}
		return t.supersedeTurn(turn.ID, "cancelled")
	})
	if err == nil {
		crashpoint.At("cancel_committed")
	}
	return turn, err
}

// Cancellable tells whether CancelTurn would refuse now, and why: to be asked
// under the terminal lease, directly before the interrupt key.
func (s *Store) Cancellable(ctx context.Context, l *Lease, turnID string) (turn Turn, err error) {
	if err := s.Writable(); err != nil {
		return turn, err
	}
	err = s.view(ctx, func(t *tx) (err error) {
		if err := t.guard(l); err != nil {
			return err
		}
		turn, err = t.owning(l, turnID, "cancel")
		return err
	})
	return turn, err
}

// owning refuses unless the Turn is at work, its pane is its own, and it stands on
// a proven binding. doing is for the refusal.
func (t *tx) owning(l *Lease, turnID, doing string) (Turn, error) {
	turn, err := t.turn(turnID)
	if err != nil {
		return turn, err
	}
	if err := allow(turn, doing, TurnWaitingForAgent, TurnRunning, TurnWaitingForController); err != nil {
		return turn, err
	}
	if l.Name != TerminalLease(turn.TerminalKey) {
		return turn, fault.New(fault.Internal, "%s Turn %s: not under the pane's terminal lease", doing, turnID)
	}
	f, ok, err := first(t, scanFence, fenceOf, "terminal", turn.TerminalKey)
	if err != nil {
		return turn, err
	}
	if !ok || f.RefID != turn.CurrentMessageID {
		return turn, fault.New(fault.ActiveOwner, "%s Turn %s: it does not own the pane", doing, turnID).With("turn_id", turnID)
	}
	b, err := t.binding(turn.BindingID)
	switch {
	case err != nil:
		return turn, err
	case b.ReleasedAt != 0:
		return turn, superseded(turnID, "binding_superseded")
	case b.NativeThreadID == "":
		return turn, fault.New(fault.DeferredTransfer, "%s Turn %s: its first binding is still open", doing, turnID).With("turn_id", turnID)
	}
	return turn, nil
}

// CloseTurn closes the record of a Turn of any status: dispatch resolved, fence
// removed, unaccepted callbacks superseded. A binding that never got its thread is
// released and its Session detached. A closed Turn is turn_status_invalid.
func (s *Store) CloseTurn(ctx context.Context, c TurnClose) (Turn, error) {
	return s.closeTurn(ctx, c, "")
}

// CloseOrphan is CloseTurn that changes nothing (dispatch_unresolved, or
// turn_status_invalid) unless expectedMessageID is still the unresolved message
// of the Turn. The Turn may be closed already.
func (s *Store) CloseOrphan(ctx context.Context, c TurnClose, expectedMessageID string) (Turn, error) {
	if expectedMessageID == "" {
		return Turn{}, fault.New(fault.InvalidArguments, "close Turn %s: no expected message", c.TurnID)
	}
	return s.closeTurn(ctx, c, expectedMessageID)
}

func (s *Store) closeTurn(ctx context.Context, c TurnClose, expected string) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.turn(c.TurnID)
		if err != nil {
			return err
		}
		if expected != "" {
			if err := t.expect(old, expected); err != nil {
				return err
			}
		}
		turn = old
		if old.Status == TurnClosed {
			if expected == "" {
				return statusInvalid(old, "close")
			}
			return t.letGo(old, expected, "closed") // its dispatch was left behind
		}
		turn.Status, turn.ClosedAt, turn.CloseReason = TurnClosed, t.at(old.UpdatedAt), c.Reason
		if err := t.release(nil, old, &turn, "closed"); err != nil {
			return err
		}
		if err := t.event(turn.ID, "closed", turn.CurrentMessageID, detailOf("reason", c.Reason)); err != nil {
			return err
		}
		if err := t.supersedeTurn(turn.ID, "closed"); err != nil {
			return err
		}
		return t.dropProvisional(old)
	})
	if err == nil {
		crashpoint.At("close_committed")
	}
	return turn, err
}

func (t *tx) expect(turn Turn, messageID string) error {
	d, ok, err := first(t, scanDispatch, dispatchByMessage, "message", messageID)
	if err != nil {
		return err
	}
	if !ok || d.TurnID != turn.ID || d.ResolvedAt != 0 || turn.CurrentMessageID != messageID {
		return fault.New(fault.DispatchUnresolved, "close Turn %s: message %.80q is not its open message", turn.ID, messageID).
			With("turn_id", turn.ID).With("message_id", turn.CurrentMessageID)
	}
	return nil
}

// CloseRetention closes Turns that are idle for longer than their retention, or
// than minutes if it is not 0; with turnID only that one. Callbacks stay.
func (s *Store) CloseRetention(ctx context.Context, turnID string, minutes float64) (closed []Turn, err error) {
	if err := s.Writable(); err != nil {
		return nil, err
	}
	pairs := []any{"turn", turnID, "minutes", orNullFloat(minutes), "now", s.Now(), "limit", int64(retentionBatch)}
	due, err := list(pool{ctx, s.rdb}, scanTurn, turnsRetained, pairs...)
	if err != nil || len(due) == 0 {
		return nil, storeError("look for idle Turns", err)
	}
	err = s.transact(ctx, func(t *tx) error {
		closed = nil
		due, err := list(t, scanTurn, turnsRetained, pairs...)
		if err != nil {
			return err
		}
		for _, old := range due {
			turn := old
			turn.Status, turn.ClosedAt, turn.CloseReason = TurnClosed, t.at(old.UpdatedAt), "idle timeout"
			if err := t.saveTurn(nil, old, &turn); err != nil {
				return err
			}
			if err := t.event(turn.ID, "closed", "", detailOf("reason", turn.CloseReason)); err != nil {
				return err
			}
			closed = append(closed, turn)
		}
		return nil
	})
	return closed, err
}

func orNullFloat(v float64) any {
	if v == 0 {
		return nil
	}
	return v
}

// release saves a Turn that reached idle, failed, cancelled or closed, and in the
// same transaction lets go of what it held: dispatch, fence, open prompts.
func (t *tx) release(l *Lease, old Turn, now *Turn, reason string) error {
	if err := t.saveTurn(l, old, now); err != nil {
		return err
	}
	if err := t.letGo(old, old.CurrentMessageID, reason); err != nil {
		return err
	}
	if _, err := t.exec(approvalsEnd, "turn", old.ID, "now", t.now); err != nil {
		return err
	}
	_, err := t.exec(interactionsClear, "turn", old.ID, "now", t.now)
	return err
}

func (t *tx) letGo(turn Turn, messageID, reason string) error {
	if _, err := t.exec(dispatchResolve, "message", messageID, "now", t.now, "reason", reason); err != nil {
		return err
	}
	_, err := t.exec(fenceDrop, "terminal", turn.TerminalKey, "ref", messageID)
	return err
}

// dropProvisional releases the binding of a closed Turn that never got its
// thread, so that the pane is free for another attach.
func (t *tx) dropProvisional(turn Turn) error {
	b, err := t.binding(turn.BindingID)
	if err != nil || b.ReleasedAt != 0 || b.NativeThreadID != "" {
		return err
	}
	sess, err := t.session(b.SessionID)
	if err != nil || sess.Status != SessionBound {
		return err
	}
	return t.detach(b)
}
