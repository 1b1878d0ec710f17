package store

import (
	"context"

	"drawbridge/shared/crashpoint"
)

// StallSuperseded takes a Turn for stalled whose Session was attached elsewhere
// while it was open: nobody can follow it any more, and its controller is told
// once. It is made under the monitor lease of the Turn's message. A Turn that
// stands on its binding, or is stalled already, stays as it is.
func (s *Store) StallSuperseded(ctx context.Context, l *Lease, turnID string, st Stall) (turn Turn, changed bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		changed = false
		if err := t.guard(l); err != nil {
			return err
		}
		old, err := t.turn(turnID)
		if err != nil {
			return err
		}
		if l.Name != MonitorLease(turnID, old.CurrentMessageID) {
			return superseded(turnID, "generation_replaced")
		}
		b, err := t.binding(old.BindingID)
		if err != nil {
			return err
		}
		turn = old
		if b.ReleasedAt == 0 && b.Generation == old.BindingGeneration || !blocking(old.Status) || old.Status == TurnStalled {
			t.silent = true
			return nil
		}
		if _, err := t.exec(approvalsEnd, "turn", turnID, "now", t.now); err != nil {
			return err
		}
		if _, err := t.exec(interactionsClear, "turn", turnID, "now", t.now); err != nil {
			return err
		}
		if err := t.supersedeQuestion(turnID, "binding_superseded"); err != nil {
			return err
		}
		if old.Status == TurnWaitingForController { // there is no way from here to stalled
			back := old
			back.Status = TurnWaitingForAgent
			if err := t.saveTurn(l, old, &back); err != nil {
				return err
			}
			old = back
		}
		changed = true
		turn, err = t.stall(l, old, st)
		return err
	})
	if err == nil && changed {
		crashpoint.At("superseded_stalled")
	}
	return turn, changed, err
}
