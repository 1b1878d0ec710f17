package store

import (
	"context"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// turnDelays are the waits after a Turn's failed attempts.
var turnDelays = []time.Duration{5 * time.Second, 15 * time.Second, 60 * time.Second, 60 * time.Second}

// claimNext is the callback that a claim takes. The two conditions on the Turn and
// on the Watch stay apart: as one OR they read the whole table. A bare parameter
// beside several indexes makes SQLite compile the statement anew at each call, to
// look at its value; an expression does not.
const claimNext = `
SELECT ` + callbackCols + `
FROM callbacks c
WHERE c.status IN ('pending','retry_wait') AND c.route_profile_id = :profile || ''`

const claimDue = `
  AND (c.status = 'pending' OR c.next_attempt_at NOT BETWEEN :now + 1 AND :now + :clock_back)
  AND NOT EXISTS (SELECT 1 FROM callbacks b WHERE b.turn_id = c.turn_id AND b.status = 'claimed')
  AND NOT EXISTS (SELECT 1 FROM callbacks b INDEXED BY callback_open_watch WHERE b.watch_id = c.watch_id
    AND (b.status = 'pending' OR b.status = 'claimed' OR b.status = 'retry_wait') AND b.rowid < c.rowid)
ORDER BY coalesce(c.last_attempt_at, c.created_at), c.delivery_id
LIMIT 1`

// Hot statements have no RETURNING: SQLite makes a temporary table for it, which
// costs more than the statement ([measured] 1.1 ms against 0.1 ms for a claim).
var (
	callbackNext = define(claimNext + ` AND c.route_controller_session_id = :session || ''` + claimDue)

	callbackNextBound = define(claimNext + claimDue)

	callbackClaim = define(`
UPDATE callbacks
SET status = 'claimed', attempts = attempts + 1, attempt_id = :attempt, claim_holder = :lease_holder, claim_epoch = :lease_epoch,
  claim_expires_at = :boot + :ttl, transport_started_at = NULL, last_attempt_at = max(coalesce(last_attempt_at, 0), :now),
  updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND status IN ('pending','retry_wait') AND ` + held)

	attemptInsert = define(`
INSERT INTO callback_attempts(delivery_id, number, attempt_id, holder, claim_epoch, claimed_at)
VALUES (:delivery, :number, :attempt, :lease_holder, :lease_epoch, :now)`)

	// The claim lives its time from the start marker, so that no child outlives it.
	callbackStart = define(`
UPDATE callbacks
SET transport_started_at = :now, claim_expires_at = max(claim_expires_at, :boot + :ttl), updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND status = 'claimed' AND attempt_id = :attempt AND transport_started_at IS NULL
  AND claim_expires_at > :boot AND ` + held)

	attemptStarted = define(`
UPDATE callback_attempts
SET started_at = :started
WHERE attempt_id = :attempt AND ended_at IS NULL`)

	callbackSettle = define(`
UPDATE callbacks
SET status = :status, attempt_id = NULL, claim_expires_at = NULL, next_attempt_at = :next,
  accepted_at = :accepted, acceptance_id = :acceptance, last_error_code = :code,
  superseded_at = :superseded, superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND status = 'claimed' AND attempt_id = :attempt`)

	callbackLate = define(`
UPDATE callbacks
SET status = 'accepted', accepted_at = max(updated_at, :now), acceptance_id = :acceptance, last_error_code = NULL,
  updated_at = max(updated_at, :now)
WHERE delivery_id = :delivery AND status IN ('uncertain','retry_wait')
RETURNING ` + callbackCols)

	attemptByID = define(`
SELECT delivery_id, number, attempt_id, holder, claim_epoch, claimed_at, coalesce(started_at, 0), coalesce(ended_at, 0),
  coalesce(disposition, ''), coalesce(error_code, ''), coalesce(acceptance_id, ''), evidence_json
FROM callback_attempts
WHERE attempt_id = :attempt`)

	attemptEnd = define(`
UPDATE callback_attempts
SET started_at = coalesce(started_at, :started), ended_at = max(claimed_at, coalesce(started_at, :started, 0), :now), disposition = :disposition, error_code = :code,
  acceptance_id = :acceptance, evidence_json = :evidence
WHERE attempt_id = :attempt AND ended_at IS NULL`)

	watchSettledAt = define(`SELECT updated_at FROM watches WHERE watch_id = :watch AND status <> 'active'`)

	callbacksClaimed = define(`
SELECT ` + callbackCols + `
FROM callbacks
WHERE status = 'claimed'`)
)

// ClaimCallback takes the callback of the family that waits longest and may be
// tried now, under the outboxd's lease: never two of one Turn, and those of one
// Watch in order. ok is false when there is none. A row of an older Profile
// revision is claimed too; it is to be settled as PermanentFailure without
// MarkStarted. ttl is raised to ClaimTTLLeast.
func (s *Store) ClaimCallback(ctx context.Context, l *Lease, f RouteFamily, ttl time.Duration) (c Callback, ok bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		if l == nil {
			return t.guard(l)
		}
		st := callbackNext
		if f.RouteBound {
			st = callbackNextBound
		}
		c, ok, err = first(t, scanCallback, st, "now", t.now, "clock_back", clockBack.Milliseconds(),
			"profile", f.ProfileID, "session", f.ControllerSessionID)
		if err != nil {
			return err
		}
		if !ok {
			return t.guard(l)
		}
		attempt := t.newID()
		n, err := t.exec(callbackClaim, append(t.under(l), "delivery", c.DeliveryID, "attempt", attempt,
			"ttl", max(ttl, ClaimTTLLeast).Milliseconds(), "now", t.now)...)
		if err != nil {
			return err
		}
		if n == 0 { // the row was read in this transaction: it is the lease
			return leaseGone(l)
		}
		if c, err = t.callback(c.DeliveryID); err != nil {
			return err
		}
		_, err = t.exec(attemptInsert, append(t.under(l), "delivery", c.DeliveryID, "number", c.Attempts, "attempt", attempt, "now", t.now)...)
		return err
	})
	if err != nil {
		return Callback{}, false, err
	}
	if ok {
		crashpoint.At("callback_claimed")
	}
	return c, ok, nil
}

// MarkStarted commits the start marker; only when it returns nil may the child be
// spawned. lease_lost or callback_unavailable: the claim is over, spawn nothing.
func (s *Store) MarkStarted(ctx context.Context, l *Lease, deliveryID, attemptID string) error {
	err := s.transact(ctx, func(t *tx) error {
		t.silent = true
		if l == nil {
			return t.guard(l)
		}
		n, err := t.exec(callbackStart, append(t.under(l), "delivery", deliveryID, "attempt", attemptID,
			"ttl", ClaimTTLLeast.Milliseconds(), "now", t.now)...)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := t.guard(l); err != nil {
				return err
			}
			return fault.New(fault.CallbackUnavailable, "start callback %.80s: its claim is over", deliveryID)
		}
		return nil // the attempt's row learns of it when it ends or expires
	})
	if err == nil {
		crashpoint.At("callback_started")
	}
	return err
}

// SettleCallback stores the outcome of an attempt. It needs no lease: the attempt
// id is the fence, and a known outcome is worth keeping while the program drains.
// When the claim has changed (superseded, expired) only the attempt gets the
// outcome; but a late accepted of the last attempt heals a row that expired to
// uncertain. The row comes back as it stands then.
func (s *Store) SettleCallback(ctx context.Context, o Outcome) (c Callback, err error) {
	if (o.Disposition == Accepted) != (o.AcceptanceID != "") {
		return c, fault.New(fault.Internal, "settle callback %.80s: disposition %q with acceptance id %t", o.DeliveryID, o.Disposition, o.AcceptanceID != "")
	}
	err = s.transact(ctx, func(t *tx) error {
		if c, err = t.callback(o.DeliveryID); err != nil {
			return err
		}
		if c.Status != CallbackClaimed || c.AttemptID != o.AttemptID {
			c, err = t.settleLate(c, o)
			return err
		}
		next, err := t.next(c, o)
		if err != nil {
			return err
		}
		started := c.TransportStartedAt
		if c, err = t.settle(c, next); err != nil {
			return err
		}
		return t.endAttempt(o, started)
	})
	if err == nil {
		crashpoint.At("callback_settled")
	}
	return c, err
}

// ending is what becomes of a claimed row.
type ending struct {
	status       string
	code         string
	acceptanceID string
	nextAt       int64
	reason       string // superseded_reason
}

// next decides what an outcome makes of the row (core §8.2, §8.3).
func (t *tx) next(c Callback, o Outcome) (ending, error) {
	switch o.Disposition {
	case Accepted:
		return ending{status: CallbackAccepted, acceptanceID: o.AcceptanceID}, nil
	case PermanentFailure:
		return ending{status: CallbackPermanent, code: o.Code}, nil
	case Uncertain:
		return ending{status: CallbackUncertain, code: o.Code}, nil
	case RetryableFailure:
		return t.again(c, o.Code, t.delay(c))
	}
	return ending{}, fault.New(fault.Internal, "settle callback %.80s: disposition %q", c.DeliveryID, o.Disposition)
}

// delay is the wait after attempt number c.Attempts failed.
func (t *tx) delay(c Callback) time.Duration {
	n := max(c.Attempts, 1)
	if c.Lane == LaneWatch {
		if n > 5 { // 5 s doubled four times is over the most already
			return watchDelayMost
		}
		return min(watchDelayFirst<<(n-1), watchDelayMost)
	}
	return turnDelays[min(int(n), len(turnDelays))-1]
}

// again puts a row back for another attempt, unless its budget is used.
func (t *tx) again(c Callback, code string, delay time.Duration) (ending, error) {
	wait := ending{status: CallbackRetryWait, code: code, nextAt: t.now + delay.Milliseconds()}
	if c.Lane != LaneWatch {
		if c.Attempts >= MaxAttempts {
			return ending{status: CallbackExhausted, code: code}, nil
		}
		return wait, nil
	}
	at, settled, err := first(t, scanInt, watchSettledAt, "watch", c.WatchID)
	switch {
	case err != nil:
		return wait, err
	case settled && c.Kind == "approval":
		return ending{status: CallbackSuperseded, code: code, reason: "watch_settled"}, nil
	case settled && at+WatchKeepTrying.Milliseconds() <= t.now:
		return ending{status: CallbackExhausted, code: code}, nil
	}
	return wait, nil
}

func (t *tx) settle(c Callback, e ending) (Callback, error) {
	at, accepted, superseded := t.at(c.UpdatedAt), int64(0), int64(0)
	switch e.status {
	case CallbackAccepted:
		accepted = at
	case CallbackSuperseded:
		superseded = at
	}
	if err := t.must(callbackSettle, "delivery", c.DeliveryID, "attempt", c.AttemptID, "status", e.status,
		"next", e.nextAt, "accepted", orNull(accepted), "acceptance", orNull(e.acceptanceID), "code", orNull(e.code),
		"superseded", orNull(superseded), "reason", orNull(e.reason), "now", t.now); err != nil {
		return c, err
	}
	return t.callback(c.DeliveryID)
}

func (t *tx) callback(deliveryID string) (Callback, error) {
	return only(t, scanCallback, "callback", deliveryID, callbackByID, "delivery", deliveryID)
}

func (t *tx) endAttempt(o Outcome, started int64) error {
	_, err := t.exec(attemptEnd, "attempt", o.AttemptID, "started", orNull(started), "disposition", o.Disposition, "code", orNull(o.Code),
		"acceptance", orNull(o.AcceptanceID), "evidence", o.Evidence, "now", t.now)
	return err
}

// settleLate records an outcome whose claim is over.
func (t *tx) settleLate(c Callback, o Outcome) (Callback, error) {
	a, ok, err := first(t, scanAttempt, attemptByID, "attempt", o.AttemptID)
	if err != nil {
		return c, err
	}
	if !ok || a.DeliveryID != c.DeliveryID {
		return c, fault.New(fault.CallbackUnavailable, "settle callback %.80s: no such attempt", c.DeliveryID)
	}
	if a.EndedAt != 0 {
		t.silent = true
		return c, nil // recorded before
	}
	started := int64(0)
	if a.Number == c.Attempts { // the marker of the row is this attempt's
		started = c.TransportStartedAt
	}
	if err := t.endAttempt(o, started); err != nil {
		return c, err
	}
	if o.Disposition != Accepted || c.Status != CallbackUncertain || c.LastErrorCode != CodeClaimExpired || a.Number != c.Attempts {
		return c, nil
	}
	return t.heal(c, o.AcceptanceID)
}

func (t *tx) heal(c Callback, acceptanceID string) (Callback, error) {
	row, ok, err := first(t, scanCallback, callbackLate, "delivery", c.DeliveryID, "acceptance", acceptanceID, "now", t.now)
	if err == nil && !ok {
		err = errUnmoved
	}
	return row, err
}

// ExpireClaims ends the claims whose time is over or whose holder is proven dead:
// with a start marker the row is uncertain and never repeated, without one it is
// due again, the attempt counted.
func (s *Store) ExpireClaims(ctx context.Context) (changed int, err error) {
	if err := s.Writable(); err != nil {
		return 0, err
	}
	claimed, err := list(pool{ctx, s.rdb}, scanCallback, callbacksClaimed)
	if err != nil {
		return 0, storeError("look for expired claims", err)
	}
	over := claimed[:0]
	for _, c := range claimed {
		if s.claimOver(c) {
			over = append(over, c)
		}
	}
	if len(over) == 0 {
		return 0, nil
	}
	err = s.transact(ctx, func(t *tx) error {
		changed = 0
		for _, seen := range over {
			c, ok, err := first(t, scanCallback, callbackByID, "delivery", seen.DeliveryID)
			if err != nil {
				return err
			}
			if !ok || c.Status != CallbackClaimed || c.AttemptID != seen.AttemptID || c.ClaimExpiresAt != seen.ClaimExpiresAt ||
				c.TransportStartedAt != seen.TransportStartedAt {
				continue // it moved meanwhile
			}
			if err := t.expire(c); err != nil {
				return err
			}
			changed++
		}
		return nil
	})
	return changed, err
}

// claimOver looks at clock and process, outside of any transaction.
func (s *Store) claimOver(c Callback) bool {
	boot, bootID := s.opt.Boot()
	if c.ClaimExpiresAt <= boot {
		return true
	}
	if inc, err := holderIncarnation(c.ClaimHolder); err == nil && inc.BootID != bootID {
		return true
	}
	gone, known := s.opt.Gone(c.ClaimHolder)
	return gone && known
}

func (t *tx) expire(c Callback) error {
	if c.TransportStartedAt != 0 { // the attempt's own row stays open for a late outcome
		if _, err := t.settle(c, ending{status: CallbackUncertain, code: CodeClaimExpired}); err != nil {
			return err
		}
		_, err := t.exec(attemptStarted, "attempt", c.AttemptID, "started", c.TransportStartedAt)
		return err
	}
	e, err := t.again(c, CodeClaimExpired, 0)
	if err != nil {
		return err
	}
	if _, err := t.settle(c, e); err != nil {
		return err
	}
	return t.endAttempt(Outcome{AttemptID: c.AttemptID, Disposition: RetryableFailure, Code: CodeClaimExpired}, 0)
}
