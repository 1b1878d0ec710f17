package store

import (
	"context"

	"drawbridge/shared/fault"
)

var (
	callbackAbandon = define(`
UPDATE callbacks
SET status = 'superseded', attempt_id = NULL, claim_expires_at = NULL,
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait')
RETURNING ` + callbackCols)

	callbackHurry = define(`
UPDATE callbacks
SET next_attempt_at = :now, updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND status = 'retry_wait'
RETURNING ` + callbackCols)

	callbackNextDue = define(`
SELECT coalesce(min(next_attempt_at), 0)
FROM callbacks
WHERE route_profile_id = :profile AND route_controller_session_id = :session AND status = 'retry_wait' AND next_attempt_at > :now`)

	callbackNextDueBound = define(`
SELECT coalesce(min(next_attempt_at), 0)
FROM callbacks
WHERE status = 'retry_wait' AND route_profile_id = :profile AND next_attempt_at > :now`)
)

// AbandonCallback is the operator's way out: an open row becomes superseded with
// reason operator_abandoned. A row that ended keeps its end.
func (s *Store) AbandonCallback(ctx context.Context, deliveryID string) (c Callback, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if c, err = t.callback(deliveryID); err != nil {
			return err
		}
		row, ok, err := first(t, scanCallback, callbackAbandon, "delivery", deliveryID, "reason", CodeOperatorAbandoned, "now", t.now)
		if err == nil && !ok {
			err = fault.New(fault.CallbackUnavailable, "abandon callback %.80s: it is %s", deliveryID, c.Status).With("status", c.Status)
		}
		if err == nil {
			c = row
		}
		return err
	})
	return c, err
}

// RetryCallbackNow makes the waiting callback of a Turn due at once; one that was
// never tried is due anyway. When an
// attempt of it was accepted after all, the row is settled with that instead
// (recovered). Refusals: callback_unavailable (no row, or it was delivered or
// superseded), callback_in_flight, callback_exhausted, callback_permanent_failure,
// callback_uncertain.
func (s *Store) RetryCallbackNow(ctx context.Context, turnID string) (c Callback, recovered bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		recovered = false
		if _, err := t.turn(turnID); err != nil {
			return err
		}
		rows, err := list(t, scanCallback, callbacksOfTurn, "turn", turnID)
		if err != nil {
			return err
		}
		var ok bool
		if c, ok = current(rows); !ok {
			return fault.New(fault.CallbackUnavailable, "retry the callback of Turn %s: it has none", turnID).With("turn_id", turnID)
		}
		if c.Status == CallbackPending { // due already
			return nil
		}
		if c.Status != CallbackRetryWait {
			return notRetryable(c)
		}
		attempts, err := list(t, scanAttempt, attemptsOf, "delivery", c.DeliveryID)
		if err != nil {
			return err
		}
		for _, a := range attempts {
			if a.Disposition == Accepted {
				recovered = true
				c, err = t.heal(c, a.AcceptanceID)
				return err
			}
		}
		c, _, err = first(t, scanCallback, callbackHurry, "delivery", c.DeliveryID, "now", t.now)
		return err
	})
	return c, recovered, err
}

// current is the callback that a question about a Turn means: an open one, that
// of the lifecycle first, else the last.
func current(rows []Callback) (c Callback, ok bool) {
	for _, r := range rows {
		if !ok || r.Open() || !c.Open() {
			if ok && c.Open() && c.Lane == LaneLifecycle {
				continue
			}
			c, ok = r, true
		}
	}
	return c, ok
}

func notRetryable(c Callback) error {
	codes := map[string]fault.Code{
		CallbackClaimed:   fault.CallbackInFlight,
		CallbackExhausted: fault.CallbackExhausted,
		CallbackPermanent: fault.CallbackPermanent,
		CallbackUncertain: fault.CallbackUncertain,
	}
	code, ok := codes[c.Status]
	if !ok {
		code = fault.CallbackUnavailable
	}
	return fault.New(code, "retry the callback of Turn %s: it is %s", c.TurnID, c.Status).
		With("turn_id", c.TurnID).With("status", c.Status).With("attempts", c.Attempts)
}

// NextDue gives the earliest time, still to come, at which a waiting row of the
// family becomes due. Rows that are due now are for ClaimCallback to tell.
func (s *Store) NextDue(ctx context.Context, f RouteFamily) (due int64, ok bool, err error) {
	st := callbackNextDue
	if f.RouteBound {
		st = callbackNextDueBound
	}
	due, _, err = first(pool{ctx, s.rdb}, scanInt, st, "profile", f.ProfileID, "session", f.ControllerSessionID, "now", s.Now())
	return due, due != 0, storeError("look for the next callback", err)
}
