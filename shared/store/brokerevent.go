package store

import (
	"context"
	"time"
)

// GrantKeep is how long grants, their evidence and their events are kept after
// their end.
const GrantKeep = 30 * 24 * time.Hour

// purgeBatch bounds one transaction of PurgeGrants.
const purgeBatch = 500

// BrokerEvent is something that an operator may want to know of later.
type BrokerEvent struct {
	At      int64
	GrantID string // "": of brokerd itself
	Code    string
	Detail  string
}

var (
	brokerEventInsert = define(`
INSERT INTO broker_events(at, grant_id, code, detail)
VALUES (:now, :grant, :code, :detail)`)

	brokerEventsOf = define(`
SELECT at, coalesce(grant_id, ''), code, coalesce(detail, '')
FROM broker_events
WHERE grant_id = :grant
ORDER BY id`)

	purgeRequests = define(`
DELETE FROM broker_requests
WHERE (grant_id, seq) IN (
  SELECT r.grant_id, r.seq
  FROM broker_grants g
  JOIN broker_requests r ON r.grant_id = g.grant_id
  WHERE g.closed_at IS NOT NULL AND g.closed_at <= :before
  LIMIT :limit)`)

	purgeGrants = define(`
DELETE FROM broker_grants
WHERE grant_id IN (
  SELECT grant_id
  FROM broker_grants
  WHERE closed_at IS NOT NULL AND closed_at <= :before
  ORDER BY closed_at
  LIMIT :limit)
RETURNING coalesce(budget_id, '')`)

	purgeBudget = define(`
DELETE FROM broker_budgets
WHERE budget_id = :budget AND request_binding_digest IS NULL
  AND NOT EXISTS (SELECT 1 FROM broker_grants g WHERE g.budget_id = :budget)`)

	purgeEndpoints = define(`
DELETE FROM broker_endpoints
WHERE endpoint_id IN (
  SELECT e.endpoint_id
  FROM broker_endpoints e
  WHERE e.ended_at IS NOT NULL AND e.ended_at <= :before AND NOT EXISTS (SELECT 1 FROM broker_grants g WHERE g.endpoint_id = e.endpoint_id)
  LIMIT :limit)`)

	purgeEvents = define(`
DELETE FROM broker_events
WHERE id IN (
  SELECT id
  FROM broker_events
  WHERE at <= :before
  LIMIT :limit)`)
)

// NoteBroker writes a broker event. detail holds no secret and no path.
func (s *Store) NoteBroker(ctx context.Context, grantID, code, detail string) error {
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		_, err := t.exec(brokerEventInsert, "grant", orNull(grantID), "code", code, "detail", orNull(detail), "now", t.now)
		return err
	})
}

// BrokerEvents lists the events of a grant in order.
func (s *Store) BrokerEvents(ctx context.Context, grantID string) ([]BrokerEvent, error) {
	all, err := list(pool{ctx, s.rdb}, func(r scanner) (e BrokerEvent, err error) {
		err = r.Scan(&e.At, &e.GrantID, &e.Code, &e.Detail)
		return e, err
	}, brokerEventsOf, "grant", grantID)
	return all, storeError("list broker events", err)
}

// PurgeGrants removes a batch of what ended longer than GrantKeep ago: evidence
// rows first, grants without rows then, with the budgets that were theirs alone, and
// endpoints that no grant names. The budgets of registered runs stay: a ledger file
// may name them. more is true when there may be more to do.
func (s *Store) PurgeGrants(ctx context.Context, l *Lease) (more bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent, more = true, false
		if err := t.guard(l); err != nil {
			return err
		}
		limits := []any{"before", t.now - GrantKeep.Milliseconds(), "limit", int64(purgeBatch)}
		events, err := t.exec(purgeEvents, limits...)
		if err != nil {
			return err
		}
		rows, err := t.exec(purgeRequests, limits...)
		if err != nil || rows == purgeBatch {
			more = true
			return err
		}
		budgets, err := list(t, scanString, purgeGrants, limits...)
		if err != nil {
			return err
		}
		for _, id := range budgets {
			if _, err := t.exec(purgeBudget, "budget", id); err != nil {
				return err
			}
		}
		endpoints, err := t.exec(purgeEndpoints, limits...)
		more = events == purgeBatch || len(budgets) == purgeBatch || endpoints == purgeBatch
		return err
	})
	return more, err
}
