package store

import (
	"context"
	"encoding/json"

	"drawbridge/shared/crashpoint"
)

// Outcomes of a forwarded request that the Store itself gives; the others are the
// words of whoever forwarded it (broker §9).
const (
	RequestReserved    = "reserved"
	RequestAborted     = "aborted_by_close"
	RequestInterrupted = "interrupted" // found reserved by the next brokerd
)

// CloseUnmeasured is the reason of a grant with strict usage that got a response
// without usage.
const CloseUnmeasured = "usage_unmeasured"

// measuredMost keeps the sums of tokens within an integer.
const measuredMost = int64(1) << 62

// RequestBatch is what happened to requests of several grants, for one commit.
type RequestBatch struct {
	Settled []RequestEnd
	Counts  []GrantCount
	Drafts  []RequestDraft
}

// RequestEnd is how a reserved request ended.
type RequestEnd struct {
	GrantID    string
	Seq        int64
	Outcome    string
	Evidence   []byte // the row's JSON, complete
	EndedAt    int64
	Input      int64 // tokens, as reported
	Output     int64
	Unmeasured bool // a response came and did not say what it cost
}

// GrantCount is what is added to the counters of a grant.
type GrantCount struct {
	GrantID           string
	Received, Refused int64
}

// RequestDraft asks for a reservation. The member seq of its evidence is set here.
type RequestDraft struct {
	GrantID   string
	Evidence  []byte
	StartedAt int64
}

// Answers to a draft.
const (
	DraftReserved  = "reserved"
	DraftClosed    = "closed"    // the grant does not authorise any more
	DraftExhausted = "exhausted" // its budget is spent
	DraftFenced    = "fenced"    // the lease is lost: another brokerd serves
)

// DraftAnswer answers one draft.
type DraftAnswer struct {
	Result string
	Seq    int64 // of a reserved one, counted from 1 in each grant
}

var (
	// The first of a reservation; nothing changes unless the grant authorises and the
	// lease is held.
	budgetReserve = define(`
UPDATE broker_budgets
SET reserved = reserved + 1
WHERE budget_id = (
    SELECT budget_id
    FROM broker_grants
    WHERE grant_id = :grant AND state = 'active' AND close_requested_at IS NULL AND expires_at > :now)
  AND reserved < max_requests
  AND (max_total_tokens IS NULL OR measured_input + measured_output < max_total_tokens)
  AND ` + held)

	grantForward = define(`
UPDATE broker_grants
SET forwarded = forwarded + 1
WHERE grant_id = :grant
RETURNING forwarded`)

	draftGrant = define(`
SELECT state, coalesce(close_requested_at, 0), expires_at
FROM broker_grants
WHERE grant_id = :grant`)

	requestInsert = define(`
INSERT INTO broker_requests(grant_id, seq, outcome, evidence, started_at)
VALUES (:grant, :seq, 'reserved', json_set(:evidence, '$.seq', :seq), :started)`)

	requestSettle = define(`
UPDATE broker_requests
SET outcome = :outcome, evidence = :evidence, ended_at = max(started_at, :ended)
WHERE grant_id = :grant AND seq = :seq AND outcome = 'reserved'`)

	budgetMeasure = define(`
UPDATE broker_budgets
SET measured_input = min(:most, measured_input + :input), measured_output = min(:most, measured_output + :output),
  unmeasured_responses = unmeasured_responses + :unmeasured
WHERE budget_id = (SELECT budget_id FROM broker_grants WHERE grant_id = :grant)`)

	grantCount = define(`
UPDATE broker_grants
SET received = received + :received, refused = refused + :refused
WHERE grant_id = :grant`)

	requestsOf = define(`
SELECT evidence
FROM broker_requests
WHERE grant_id = :grant
ORDER BY seq`)
)

// CommitRequests does all of a batch in one transaction: rows that ended, then
// counts, then drafts, each of which is answered. Only when a draft is answered
// reserved may the upstream be called; an error means that nothing may be taken as
// done, and what may have been committed counts as spent. A row that was settled
// before stays as it is, so that a batch may be given again.
//
// Only drafts need the brokerd's lease: a known outcome is worth keeping while the
// program drains.
func (s *Store) CommitRequests(ctx context.Context, l *Lease, b RequestBatch) (answers []DraftAnswer, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true // a grant that is to be closed for want of usage rings
		for _, e := range b.Settled {
			if err := t.settleRequest(e); err != nil {
				return err
			}
		}
		for _, c := range b.Counts {
			if _, err := t.exec(grantCount, "grant", c.GrantID, "received", c.Received, "refused", c.Refused); err != nil {
				return err
			}
		}
		for _, d := range b.Drafts {
			a, err := t.reserveRequest(l, d)
			if err != nil {
				return err
			}
			answers = append(answers, a)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(b.Drafts) > 0 {
		crashpoint.At("request_reserved")
	}
	if len(b.Settled) > 0 {
		crashpoint.At("request_settled")
	}
	return answers, nil
}

func (t *tx) settleRequest(e RequestEnd) error {
	n, err := t.exec(requestSettle, "grant", e.GrantID, "seq", e.Seq, "outcome", e.Outcome, "evidence", e.Evidence, "ended", e.EndedAt)
	if err != nil || n == 0 {
		return err
	}
	unmeasured := int64(0)
	if e.Unmeasured {
		unmeasured = 1
	}
	if e.Input == 0 && e.Output == 0 && unmeasured == 0 {
		return nil
	}
	if err := t.must(budgetMeasure, "grant", e.GrantID, "input", e.Input, "output", e.Output, "unmeasured", unmeasured, "most", measuredMost); err != nil {
		return err
	}
	if !e.Unmeasured {
		return nil
	}
	g, err := t.grant(e.GrantID)
	if err != nil || !g.Request.StrictUsage {
		return err
	}
	n, err = t.exec(grantAskClose, "grant", g.ID, "reason", CloseUnmeasured, "now", t.now)
	t.silent = t.silent && n == 0
	return err
}

func (t *tx) reserveRequest(l *Lease, d RequestDraft) (DraftAnswer, error) {
	if l == nil {
		return DraftAnswer{}, t.guard(l)
	}
	n, err := t.exec(budgetReserve, append(t.under(l), "grant", d.GrantID, "now", t.now)...)
	if err != nil {
		return DraftAnswer{}, err
	}
	if n == 0 {
		return t.unreserved(l, d.GrantID)
	}
	seq, _, err := first(t, scanInt, grantForward, "grant", d.GrantID)
	if err != nil {
		return DraftAnswer{}, err
	}
	err = t.must(requestInsert, "grant", d.GrantID, "seq", seq, "evidence", d.Evidence, "started", d.StartedAt)
	return DraftAnswer{Result: DraftReserved, Seq: seq}, err
}

// unreserved says why a draft was not reserved.
func (t *tx) unreserved(l *Lease, grantID string) (DraftAnswer, error) {
	g, err := only(t, func(r scanner) (g Grant, err error) {
		err = r.Scan(&g.State, &g.CloseRequestedAt, &g.ExpiresAt)
		return g, err
	}, "grant", grantID, draftGrant, "grant", grantID)
	if err != nil {
		return DraftAnswer{}, err
	}
	if !g.Authorises(t.now) {
		return DraftAnswer{Result: DraftClosed}, nil
	}
	ok, _, err := first(t, scanInt, leaseHeld, t.under(l)...)
	if err != nil || ok == 0 {
		return DraftAnswer{Result: DraftFenced}, err
	}
	return DraftAnswer{Result: DraftExhausted}, nil
}

// Evidence gives the rows of a grant in order, each a JSON object.
func (s *Store) Evidence(ctx context.Context, grantID string) ([]json.RawMessage, error) {
	if _, err := s.Grant(ctx, grantID); err != nil {
		return nil, err
	}
	rows, err := list(pool{ctx, s.rdb}, func(r scanner) (e json.RawMessage, err error) {
		err = r.Scan((*[]byte)(&e))
		return e, err
	}, requestsOf, "grant", grantID)
	return rows, storeError("read evidence", err)
}
