package store

import (
	"bytes"
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

var bindingTurns = define(`
SELECT count(*)
FROM turns
WHERE session_id = :session AND binding_id = :binding AND turn_id <> :turn`)

// AcceptDispatch stores the proof that the agent took exactly this request, under
// the terminal lease or the message's monitor lease. A provisional binding gets
// its thread, once. The same proof again changes nothing.
//
// Errors that change nothing: submission_uncertain (the evidence does not
// recompute, or names another thread than the binding), submission_unfenced (the
// thread belongs to another live Session), binding_superseded,
// turn_status_invalid.
func (s *Store) AcceptDispatch(ctx context.Context, l *Lease, a Acceptance) (sub Submission, err error) {
	if a.Check == nil || a.NativeThreadID == "" || a.Evidence == nil {
		return sub, fault.New(fault.Internal, "accept message %s: evidence, thread or check is missing", a.MessageID)
	}
	err = s.transact(ctx, func(t *tx) error {
		d, err := t.openDispatch(l, a.MessageID)
		if err != nil {
			return err
		}
		if err := a.Check(d, a.Evidence); err != nil {
			return fault.New(fault.SubmissionUncertain, "accept message %s: %w", a.MessageID, err).WithInput(fault.InputPossible)
		}
		switch d.Status {
		case DispatchAccepted:
			if !bytes.Equal(d.Acceptance, a.Evidence) {
				return stageConflict(d, "accept")
			}
			t.silent = true
			sub, err = submission(t, a.MessageID)
			return err
		case DispatchTextInjected, DispatchEnterDispatched:
		default:
			return stageConflict(d, "accept")
		}
		if err := t.bindThread(d, a.NativeThreadID); err != nil {
			return err
		}
		if err := t.accept(l, d, a); err != nil {
			return err
		}
		sub, err = submission(t, a.MessageID)
		return err
	})
	if err == nil {
		crashpoint.At("agent_accepted")
	}
	return sub, err
}

func (t *tx) accept(l *Lease, d Dispatch, a Acceptance) error {
	old := d
	if d.Status == DispatchTextInjected { // Enter was pressed, its record was lost
		if err := t.answered(l, d); err != nil {
			return err
		}
	}
	d.Status, d.LastProvenStage = DispatchAccepted, DispatchAccepted
	d.NativeThreadID, d.Acceptance, d.AcceptedAt = a.NativeThreadID, a.Evidence, t.at(d.PreparedAt)
	if err := t.saveDispatch(l, old, d); err != nil {
		return err
	}
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return err
	}
	next := turn
	next.NativeThreadID = a.NativeThreadID
	next.LastActivityAt = t.at(turn.LastActivityAt)
	next.InactivityDeadlineAt = next.LastActivityAt + minutes(turn.InactivityMinutes)
	if err := t.saveTurn(l, turn, &next); err != nil {
		return err
	}
	return t.event(d.TurnID, "agent_accepted", d.MessageID, nil)
}

// bindThread gives a provisional binding its thread and checks a full one.
func (t *tx) bindThread(d Dispatch, thread string) error {
	b, err := t.binding(d.BindingID)
	if err != nil {
		return err
	}
	if b.ReleasedAt != 0 {
		return superseded(d.TurnID, "binding_superseded")
	}
	if b.NativeThreadID == thread {
		return nil
	}
	if b.NativeThreadID != "" {
		return fault.New(fault.SubmissionUncertain, "accept message %s: the evidence names another thread than the binding", d.MessageID).
			WithInput(fault.InputPossible)
	}
	err = t.must(bindingThread, "binding", b.ID, "thread", thread, "now", t.now)
	if violated(err) != "" {
		return fault.New(fault.SubmissionUnfenced, "accept message %s: its thread belongs to another Session", d.MessageID).
			With("turn_id", d.TurnID).WithInput(fault.InputSent)
	}
	if err != nil {
		return err
	}
	return t.must(sessionTouch, "session", b.SessionID, "now", t.now)
}

// SettleDispatch ends a submission without acceptance: not_accepted with proof
// from enter_dispatched, uncertain from any stage after the mark. The Turn becomes
// stalled, the fence stays, nobody retries. The callback is inserted unless this
// stall was notified before.
func (s *Store) SettleDispatch(ctx context.Context, l *Lease, r Settlement) (sub Submission, err error) {
	return s.settle(ctx, l, r, canSettle)
}

// InvalidateAcceptance turns an acceptance whose stored evidence does not
// recompute into uncertain. Settlement.Status is taken to be uncertain.
func (s *Store) InvalidateAcceptance(ctx context.Context, l *Lease, r Settlement) (Submission, error) {
	r.Status = DispatchUncertain
	return s.settle(ctx, l, r, func(d Dispatch, _ string) bool { return d.Status == DispatchAccepted })
}

func (s *Store) settle(ctx context.Context, l *Lease, r Settlement, can func(Dispatch, string) bool) (sub Submission, err error) {
	err = s.transact(ctx, func(t *tx) error {
		d, err := t.openDispatch(l, r.MessageID)
		if err != nil {
			return err
		}
		if !can(d, r.Status) {
			return stageConflict(d, "settle")
		}
		old := d
		if d.Status == DispatchAccepted { // what was proven is not proven any more
			d.LastProvenStage = DispatchEnterDispatched
		}
		d.Status, d.ErrorCode, d.SettledAt = r.Status, r.Code, t.at(d.PreparedAt)
		if err := t.saveDispatch(l, old, d); err != nil {
			return err
		}
		if err := t.answered(l, d); err != nil { // an answer whose Enter is in doubt
			return err
		}
		turn, err := t.turn(d.TurnID)
		if err != nil {
			return err
		}
		if err := t.event(turn.ID, "submission_"+r.Status, d.MessageID, detailOf("code", r.Code)); err != nil {
			return err
		}
		if _, err := t.stall(l, turn, Stall{Reason: r.Reason, Callback: r.Callback}); err != nil {
			return err
		}
		sub, err = submission(t, r.MessageID)
		return err
	})
	if err == nil {
		crashpoint.At("dispatch_settled")
	}
	return sub, err
}

// AbortDispatch ends an attempt of which nothing was typed (core §5.5), under the
// terminal lease: dispatch aborted, fence removed, a binding made for it released
// and its Session detached, Turn closed. Only if it returns nil is the attempt
// safe to retry. An aborted answer or retry puts the Turn back where it was.
func (s *Store) AbortDispatch(ctx context.Context, l *Lease, messageID, code string) (sub Submission, err error) {
	err = s.transact(ctx, func(t *tx) error {
		d, err := t.openDispatch(l, messageID)
		if err != nil {
			return err
		}
		if d.Status != DispatchPrepared || d.InputMayHaveStarted {
			return stageConflict(d, "abort")
		}
		old := d
		d.Status, d.SafeToRetry, d.ErrorCode = DispatchAborted, true, code
		d.SettledAt = t.at(d.PreparedAt)
		d.ResolvedAt, d.ResolvedReason = d.SettledAt, "submission_aborted"
		if err := t.saveDispatch(l, old, d); err != nil {
			return err
		}
		if err := t.event(d.TurnID, "submission_aborted", messageID, detailOf("code", code)); err != nil {
			return err
		}
		if d.follows() {
			err = t.restore(l, d)
		} else {
			err = t.abortTurn(l, d)
		}
		if err != nil {
			return err
		}
		sub, err = submission(t, messageID)
		return err
	})
	if err == nil {
		crashpoint.At("dispatch_aborted")
	}
	return sub, err
}

// follows reports whether the dispatch took the place of an earlier one of the
// same Turn. A second attempt under one message id names itself as previous.
func (d Dispatch) follows() bool {
	return d.PreviousMessageID != "" && d.PreviousMessageID != d.MessageID
}

// abortTurn closes the Turn of an aborted first dispatch.
func (t *tx) abortTurn(l *Lease, d Dispatch) error {
	if _, err := t.exec(fenceDrop, "terminal", d.TerminalKey, "ref", d.MessageID); err != nil {
		return err
	}
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return err
	}
	next := turn
	next.Status, next.CloseReason, next.ClosedAt = TurnClosed, "submission_aborted", t.at(turn.UpdatedAt)
	if err := t.saveTurn(l, turn, &next); err != nil {
		return err
	}
	b, err := t.binding(d.BindingID)
	if err != nil || b.ReleasedAt != 0 {
		return err
	}
	others, _, err := first(t, scanInt, bindingTurns, "session", b.SessionID, "binding", b.ID, "turn", turn.ID)
	if err != nil || others > 0 {
		return err // the binding is older than this attempt
	}
	return t.detach(b)
}

// restore gives the Turn back to the dispatch before an aborted answer or retry.
func (t *tx) restore(l *Lease, d Dispatch) error {
	previous, err := only(t, scanDispatch, "message", d.PreviousMessageID, dispatchByMessage, "message", d.PreviousMessageID)
	if err != nil {
		return err
	}
	if err := t.must(dispatchReopen, "message", previous.MessageID); err != nil {
		return err
	}
	if err := t.fence(l, previous); err != nil {
		return err
	}
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return err
	}
	next := turn
	next.CurrentMessageID = previous.MessageID
	if d.Kind == KindTask { // the retry form began from stalled
		next.Status, next.StalledAt, next.StalledReason = TurnStalled, t.at(turn.UpdatedAt), "submission_aborted"
	}
	return t.saveTurn(l, turn, &next)
}

// fence makes the dispatch the unresolved operation of its pane.
func (t *tx) fence(l *Lease, d Dispatch) error {
	_, err := t.exec(fencePut, "terminal", d.TerminalKey, "kind", "dispatch", "ref", d.MessageID,
		"generation", d.Generation, "epoch", l.Epoch, "now", t.now)
	return err
}
