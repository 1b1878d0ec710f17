package store

import (
	"context"
	"strings"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Activation is what a brokerd decided about a requested grant.
type Activation struct {
	EndpointID     string
	CredentialKind string // api_key, access_token
}

var (
	grantActivate = define(`
UPDATE broker_grants
SET state = 'active', endpoint_id = :endpoint, credential_kind = :kind, revision = revision + 1
WHERE grant_id = :grant AND state = 'requested' AND close_requested_at IS NULL AND expires_at > :now AND budget_id IS NOT NULL
  AND ` + held)

	grantRefuse = define(`
UPDATE broker_grants
SET state = 'refused', refusal_code = :code, closed_at = max(created_at, :now), revision = revision + 1
WHERE grant_id = :grant AND state = 'requested' AND ` + held)

	grantClosing = define(`
UPDATE broker_grants
SET state = 'closing', close_requested_at = coalesce(close_requested_at, :now), close_reason = coalesce(close_reason, :reason),
  revision = revision + 1
WHERE grant_id = :grant AND state = 'active' AND ` + held)

	grantWithdrawn = define(`
UPDATE broker_grants
SET state = CASE coalesce(close_reason, :reason) WHEN 'expired' THEN 'expired' WHEN 'revoked' THEN 'revoked' ELSE 'closed' END,
  close_requested_at = coalesce(close_requested_at, :now), close_reason = coalesce(close_reason, :reason),
  closed_at = max(created_at, :now), revision = revision + 1
WHERE grant_id = :grant AND state = 'requested' AND ` + held)

	grantClosed = define(`
UPDATE broker_grants
SET state = CASE close_reason WHEN 'expired' THEN 'expired' WHEN 'revoked' THEN 'revoked' ELSE 'closed' END,
  closed_at = max(created_at, :now), revision = revision + 1
WHERE grant_id = :grant AND state = 'closing' AND ` + held)

	requestsAborted = define(`
UPDATE broker_requests
SET outcome = 'aborted_by_close', ended_at = max(started_at, :now),
  evidence = json_set(evidence, '$.outcome', 'aborted_by_close', '$.ended_at', max(started_at, :now))
WHERE grant_id = :grant AND outcome = 'reserved'`)

	requestsInterrupted = define(`
UPDATE broker_requests
SET outcome = 'interrupted', ended_at = max(started_at, :now),
  evidence = json_set(evidence, '$.outcome', 'interrupted', '$.ended_at', max(started_at, :now))
WHERE outcome = 'reserved'`)
)

// ActivateGrant makes a requested grant serve, under the brokerd's lease and after
// its budget was prepared. grant_closed when it was withdrawn or its time is over.
func (s *Store) ActivateGrant(ctx context.Context, l *Lease, id string, a Activation) (g Grant, err error) {
	g, err = s.moveGrant(ctx, l, id, "activate", grantActivate, "endpoint", a.EndpointID, "kind", a.CredentialKind)
	if err == nil {
		crashpoint.At("grant_activated")
	}
	return g, err
}

// Refusal is why a brokerd does not take up a grant, for its creator.
type Refusal struct {
	Code fault.Code
	Why  string // one line without secret and path; "": the log of brokerd alone says it
	Hint string // one line, what to do; may be empty
}

// RefuseGrant ends a requested grant. The reason is the grant's last event.
func (s *Store) RefuseGrant(ctx context.Context, l *Lease, id string, r Refusal) (g Grant, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if g, err = t.moveGrant(l, id, "refuse", grantRefuse, "code", string(r.Code)); err != nil || r.Why == "" {
			return err
		}
		_, err := t.exec(brokerEventInsert, "grant", id, "code", string(r.Code), "detail", r.Why+"\n"+r.Hint, "now", t.now)
		return err
	})
	return g, err
}

// refusal is the fault that the creator of a refused grant gets.
func (s *Store) refusal(ctx context.Context, g Grant) error {
	events, err := s.BrokerEvents(ctx, g.ID)
	if err != nil {
		return err
	}
	f := fault.New(fault.Code(g.RefusalCode), "take out grant %s: brokerd refuses it", g.ID).
		WithHint("the log of brokerd says why").With("grant_id", g.ID)
	for _, e := range events {
		if e.Code == g.RefusalCode {
			why, hint, _ := strings.Cut(e.Detail, "\n")
			f.Message, f.Hint = f.Message+": "+why, hint
		}
	}
	return f
}

// WithdrawGrant ends a grant that was never active.
func (s *Store) WithdrawGrant(ctx context.Context, l *Lease, id, reason string) (Grant, error) {
	return s.moveGrant(ctx, l, id, "withdraw", grantWithdrawn, "reason", reason)
}

// BeginClose makes an active grant closing; its capability opens nothing from this
// commit on. A reason that was given before stays.
func (s *Store) BeginClose(ctx context.Context, l *Lease, id, reason string) (g Grant, err error) {
	g, err = s.moveGrant(ctx, l, id, "close", grantClosing, "reason", reason)
	if err == nil {
		crashpoint.At("grant_closing")
	}
	return g, err
}

// FinishClose ends a closing grant; its rows that are still open are aborted_by_close.
// The state says how it ended: closed, expired or revoked.
func (s *Store) FinishClose(ctx context.Context, l *Lease, id string) (g Grant, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if _, err := t.exec(requestsAborted, "grant", id, "now", t.now); err != nil {
			return err
		}
		g, err = t.moveGrant(l, id, "close", grantClosed)
		return err
	})
	if err == nil {
		crashpoint.At("grant_closed")
	}
	return g, err
}

// InterruptRequests marks the rows that a dead brokerd left reserved. Their
// reservations stay spent.
func (s *Store) InterruptRequests(ctx context.Context, l *Lease) (n int64, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		n, err = t.exec(requestsInterrupted, "now", t.now)
		return err
	})
	return n, err
}

// CreatorGone reports whether the creator of a grant is proven to be gone: its
// lease was given back, or its process has ended. An operator is never gone. A
// lease that ran out while its process lives, as one that is stopped, proves
// nothing; of a process that cannot be seen from here only time tells.
func (s *Store) CreatorGone(ctx context.Context, g Grant) (bool, error) {
	if g.Creator == "" {
		return false, nil
	}
	row, ok, err := first(pool{ctx, s.rdb}, scanLease, leaseRow, "name", g.Creator)
	if err != nil {
		return false, storeError("read lease", err)
	}
	boot, bootID := s.opt.Boot()
	if !ok || row.Holder == "" || row.BootID != bootID {
		return true, nil
	}
	gone, known := s.opt.Gone(row.Holder)
	if known {
		return gone, nil
	}
	return row.ExpiresAt <= boot, nil
}

// moveGrant runs one statement that moves one grant, in a transaction of its own.
func (s *Store) moveGrant(ctx context.Context, l *Lease, id, doing string, st stmt, pairs ...any) (g Grant, err error) {
	err = s.transact(ctx, func(t *tx) error {
		g, err = t.moveGrant(l, id, doing, st, pairs...)
		return err
	})
	return g, err
}

func (t *tx) moveGrant(l *Lease, id, doing string, st stmt, pairs ...any) (Grant, error) {
	if l == nil {
		return Grant{}, t.guard(l)
	}
	n, err := t.exec(st, append(append(t.under(l), "grant", id, "now", t.now), pairs...)...)
	if err != nil {
		return Grant{}, err
	}
	g, err := t.grant(id)
	if err != nil || n == 1 {
		return g, err
	}
	if err := t.guard(l); err != nil {
		return g, err
	}
	return g, grantOver(doing, g)
}

// grantOver says that a grant does not allow a move.
func grantOver(doing string, g Grant) error {
	state := g.State
	if g.CloseRequestedAt != 0 && g.Open() {
		state = "about to close"
	}
	return fault.New(fault.GrantClosed, "%s grant %s: it is %s", doing, g.ID, state).With("grant_id", g.ID)
}
