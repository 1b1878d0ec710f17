package store

import (
	"context"
	"slices"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Monitor names the generation of a Turn that one monitor task follows. Every
// monitor move is conditional on all of it: lease_lost when the lease is not
// held any more, binding_superseded (detail "reason": generation_replaced or
// binding_superseded) when the Turn moved on. Both mean: stop at once.
type Monitor struct {
	TurnID            string
	MessageID         string
	BindingGeneration int64
	Lease             *Lease // MonitorLease(TurnID, MessageID)
}

// Activity is proof of life to be stored with a move.
type Activity struct {
	At    int64  // wall-clock ms; 0: none seen
	State []byte // monitor_json to keep, nil: unchanged
}

// Outcomes of a completion.
const (
	OutcomeSuccess = "success"
	OutcomeFailure = "failure"
)

// Completion is a proven end of the agent's turn (core §6).
type Completion struct {
	Fingerprint string
	Outcome     string // success or failure
	DeliveryID  string // claim_delivery_id; "" : the callback's
	Callback    *NewCallback
	Detail      []byte
	Activity    Activity
}

// Stall says why a Turn is taken for stalled.
type Stall struct {
	Reason   string
	Callback *NewCallback // inserted once for each stall
	Detail   []byte
}

// SkipSuperseded is the reason of a Turn whose Session was attached elsewhere.
const SkipSuperseded = "binding_superseded"

// Eligible is a Turn that wants a monitor, or the reason why it gets none.
type Eligible struct {
	Turn     Turn
	Dispatch Dispatch
	Binding  Binding
	Skip     string // "": eligible; else the reason
	Watched  bool   // somebody holds the live monitor lease
}

// CheckMonitor fails as every monitor move would, and writes nothing; it gives the
// Turn as it is.
func (s *Store) CheckMonitor(ctx context.Context, m Monitor) (turn Turn, err error) {
	if err := s.Writable(); err != nil {
		return turn, err
	}
	err = s.view(ctx, func(t *tx) (err error) {
		turn, err = t.monitored(m)
		return err
	})
	return turn, err
}

// TurnRunning records the first progress: waiting_for_agent to running. A running
// Turn is only touched.
func (s *Store) TurnRunning(ctx context.Context, m Monitor, a Activity) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		if err := allow(old, "follow", TurnCreated, TurnWaitingForAgent, TurnRunning); err != nil {
			return err
		}
		turn = old
		turn.Status = TurnRunning
		turn.touch(a)
		if old.Status != TurnRunning {
			if err := t.event(turn.ID, "running", m.MessageID, nil); err != nil {
				return err
			}
		}
		return t.saveTurn(m.Lease, old, &turn)
	})
	return turn, err
}

// TouchActivity stores proof of life, which restarts the inactivity time, and the
// monitor's own state. It rings no bell.
func (s *Store) TouchActivity(ctx context.Context, m Monitor, a Activity) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		turn = old
		turn.touch(a)
		return t.saveTurn(m.Lease, old, &turn)
	})
	return turn, err
}

// touch takes over proof of life. Time never goes back; a time that is still to
// come is cut by the caller's own clock, which is the same.
func (t *Turn) touch(a Activity) {
	if a.At > t.LastActivityAt {
		t.LastActivityAt = a.At
		t.InactivityDeadlineAt = a.At + minutes(t.InactivityMinutes)
	}
	if a.State != nil {
		t.Monitor = a.State
	}
}

// completable are the statuses from which a completion is claimed.
var completable = []string{TurnWaitingForAgent, TurnWaitingForController, TurnRunning, TurnStalled}

// ClaimCompletion records the end of the agent's turn, once: Turn idle or failed,
// dispatch resolved, fence removed, event and callback written, callbacks about a
// stall or a question superseded. The same claim again changes nothing; another
// one is completion_claim_conflict; one of a message that was not accepted is
// dispatch_unresolved.
func (s *Store) ClaimCompletion(ctx context.Context, m Monitor, c Completion) (turn Turn, err error) {
	if c.DeliveryID == "" && c.Callback != nil {
		c.DeliveryID = c.Callback.DeliveryID
	}
	err = s.transact(ctx, func(t *tx) error {
		done, err := t.claimed(m, c)
		if err != nil || done.ID != "" {
			turn, t.silent = done, true
			return err
		}
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		if err := allow(old, "complete", completable...); err != nil {
			return err
		}
		d, _, err := first(t, scanDispatch, dispatchByMessage, "message", m.MessageID)
		if err == nil && d.Status != DispatchAccepted {
			err = stageConflict(d, "complete")
		}
		if err != nil {
			return err
		}
		turn, err = t.complete(m, old, c)
		return err
	})
	if err == nil {
		crashpoint.At("completion_claimed")
	}
	return turn, err
}

// claimed gives the Turn if this very completion is claimed already, and
// completion_claim_conflict if another one is.
func (t *tx) claimed(m Monitor, c Completion) (Turn, error) {
	if err := t.guard(m.Lease); err != nil {
		return Turn{}, err
	}
	turn, err := t.turn(m.TurnID)
	if err != nil || turn.ClaimFingerprint == "" {
		return Turn{}, err
	}
	if turn.ClaimMessageID != m.MessageID || turn.ClaimFingerprint != c.Fingerprint ||
		turn.ClaimOutcome != c.Outcome || turn.ClaimDeliveryID != c.DeliveryID {
		return Turn{}, fault.New(fault.ClaimConflict, "complete Turn %s: another completion was claimed", m.TurnID).With("turn_id", m.TurnID)
	}
	return turn, nil
}

func (t *tx) complete(m Monitor, old Turn, c Completion) (Turn, error) {
	turn := old
	turn.touch(c.Activity)
	turn.ClaimMessageID, turn.ClaimFingerprint, turn.ClaimOutcome = m.MessageID, c.Fingerprint, c.Outcome
	turn.ClaimDeliveryID, turn.ClaimedAt = c.DeliveryID, t.at(old.UpdatedAt)
	switch c.Outcome {
	case OutcomeSuccess:
		turn.Status, turn.IdleSince = TurnIdle, turn.ClaimedAt
	case OutcomeFailure:
		turn.Status = TurnFailed
	default:
		return turn, fault.New(fault.Internal, "complete Turn %s: outcome %q", old.ID, c.Outcome)
	}
	if err := t.release(m.Lease, old, &turn, "completed"); err != nil {
		return turn, err
	}
	if err := t.event(turn.ID, "completed", m.MessageID, orDetail(c.Detail, "outcome", c.Outcome)); err != nil {
		return turn, err
	}
	if err := t.supersedeTurn(turn.ID, "completed"); err != nil {
		return turn, err
	}
	if c.Callback == nil {
		return turn, nil
	}
	return turn, t.insertCallback(*c.Callback, turn.ID, "")
}

// StallTurn takes a Turn for stalled, with one callback for each stall.
func (s *Store) StallTurn(ctx context.Context, m Monitor, st Stall) (turn Turn, err error) {
	err = s.transact(ctx, func(t *tx) error {
		old, err := t.monitored(m)
		if err != nil {
			return err
		}
		if err := allow(old, "stall", TurnCreated, TurnWaitingForAgent, TurnRunning); err != nil {
			return err
		}
		turn, err = t.stall(m.Lease, old, st)
		return err
	})
	if err == nil {
		crashpoint.At("turn_stalled")
	}
	return turn, err
}

// stall moves a Turn to stalled, or leaves a stalled one there, and notifies
// unless this stall was notified before.
func (t *tx) stall(l *Lease, old Turn, st Stall) (Turn, error) {
	turn := old
	if old.Status != TurnStalled {
		turn.Status, turn.StalledAt, turn.StalledReason, turn.StalledNotifiedAt = TurnStalled, t.at(old.UpdatedAt), st.Reason, 0
		if err := t.event(turn.ID, "stalled", turn.CurrentMessageID, orDetail(st.Detail, "reason", st.Reason)); err != nil {
			return turn, err
		}
	}
	notify := st.Callback != nil && turn.StalledNotifiedAt == 0
	if notify {
		turn.StalledNotifiedAt = t.at(old.UpdatedAt)
	}
	if err := t.saveTurn(l, old, &turn); err != nil || !notify {
		return turn, err
	}
	return turn, t.insertCallback(*st.Callback, turn.ID, "")
}

// monitored is the fence of every monitor move: lease, message, binding
// generation, and a Turn that is not released.
func (t *tx) monitored(m Monitor) (Turn, error) {
	if err := t.guard(m.Lease); err != nil {
		return Turn{}, err
	}
	if m.Lease.Name != MonitorLease(m.TurnID, m.MessageID) {
		return Turn{}, fault.New(fault.Internal, "monitor Turn %s under lease %s", m.TurnID, leaseKind(m.Lease.Name))
	}
	turn, err := t.turn(m.TurnID)
	if err != nil {
		return turn, err
	}
	if turn.CurrentMessageID != m.MessageID || turn.BindingGeneration != m.BindingGeneration {
		return turn, superseded(turn.ID, "generation_replaced")
	}
	if err := allow(turn, "monitor", blockingStatuses...); err != nil {
		return turn, err
	}
	d, ok, err := first(t, scanDispatch, dispatchByMessage, "message", m.MessageID)
	if err != nil {
		return turn, err
	}
	if !ok || d.ResolvedAt != 0 {
		return turn, superseded(turn.ID, "generation_replaced")
	}
	b, err := t.binding(turn.BindingID)
	if err == nil && b.ReleasedAt != 0 {
		return turn, superseded(turn.ID, "binding_superseded")
	}
	return turn, err
}

func orDetail(detail []byte, pairs ...string) []byte {
	if detail != nil {
		return detail
	}
	return detailOf(pairs...)
}

// reason says why no monitor belongs to the Turn, "" if one does.
func (e Eligible) reason(openPrompt bool) string {
	switch {
	case e.Dispatch.MessageID == "":
		return "no_current_message"
	case e.Dispatch.ResolvedAt != 0 || !slices.Contains(monitorable, e.Dispatch.Status):
		return "dispatch_" + e.Dispatch.Status
	case e.Binding.ReleasedAt != 0 || e.Binding.Generation != e.Turn.BindingGeneration:
		return SkipSuperseded
	case e.Turn.HardDeadlineAt == 0 || e.Turn.InactivityDeadlineAt == 0:
		return "no_deadlines"
	case e.Turn.Status == TurnWaitingForController && !openPrompt:
		return "waiting_for_controller"
	}
	return ""
}

// monitorable are the dispatch statuses that a monitor follows (core §6).
var monitorable = []string{DispatchPrepared, DispatchTextInjected, DispatchEnterDispatched, DispatchAccepted}
