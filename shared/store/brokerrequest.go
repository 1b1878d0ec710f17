package store

import (
	"context"
	"encoding/json"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Outcomes of a forwarded request (broker §9).
const (
	RequestReserved       = "reserved"
	RequestCompleted      = "completed"
	RequestUpstreamStatus = "upstream_status" // status 400 or above
	RequestUpstreamError  = "upstream_error"
	RequestClientGone     = "client_gone"
	RequestAborted        = "aborted_by_close"
	RequestInterrupted    = "interrupted" // found reserved by the next brokerd
)

// Fixed words of every evidence row.
const (
	IdentityBasis = "host-observed-request-to-allowlisted-openai-endpoint"
	ModelIdentity = "unverified"
)

// measuredMost keeps the sums of tokens within an integer.
const measuredMost = int64(1) << 62

// TokenUsage is what an upstream reported of one response.
type TokenUsage struct {
	InputTokens       int64  `json:"input_tokens"`
	OutputTokens      int64  `json:"output_tokens"`
	CachedInputTokens *int64 `json:"cached_input_tokens"`
}

// RequestEvidence is one forwarded request. Its JSON is what consumers of the
// evidence read, with absent things as null: unavailable is never zero.
type RequestEvidence struct {
	Seq                       int64       `json:"seq"`
	GrantID                   string      `json:"grant_id"`
	RunID                     *string     `json:"run_id"`
	OwnerID                   *string     `json:"owner_id"`
	Operation                 string      `json:"operation"`
	Model                     string      `json:"model"`
	ReasoningEffort           *string     `json:"reasoning_effort"`
	InputTextDigests          []string    `json:"input_text_digests"`
	InputTextDigestsTruncated bool        `json:"input_text_digests_truncated,omitempty"`
	RequestDigest             string      `json:"request_digest"`
	ForwardedRequestDigest    string      `json:"forwarded_request_digest"`
	RequestBytes              int64       `json:"request_bytes"`
	UpstreamOrigin            string      `json:"upstream_origin"`
	Status                    *int        `json:"status"`
	Outcome                   string      `json:"outcome"`
	ProviderIdentityBasis     string      `json:"provider_identity_basis"`
	ServerModelIdentity       string      `json:"server_model_identity"`
	TransportMode             string      `json:"transport_mode"`
	ResponseUsage             *TokenUsage `json:"response_usage"`
	ReportedModel             *string     `json:"reported_model"`
	StartedAt                 int64       `json:"started_at"`
	FirstByteAt               *int64      `json:"first_byte_at"`
	EndedAt                   *int64      `json:"ended_at"`
	ResponseBytes             int64       `json:"response_bytes"`
	ResponseTruncated         bool        `json:"response_truncated,omitempty"`
	Redactions                int64       `json:"redactions"`
}

// Unmeasured reports whether a response came and said nothing of its usage.
func (e RequestEvidence) Unmeasured() bool {
	return e.ResponseUsage == nil && e.Status != nil && *e.Status < 400
}

// GrantCount is what is added to the counters of a grant.
type GrantCount struct {
	GrantID           string
	Received, Refused int64
}

var (
	budgetReserve = define(`
UPDATE broker_budgets
SET reserved = reserved + 1
WHERE budget_id = :budget AND reserved < max_requests
  AND (max_total_tokens IS NULL OR measured_input + measured_output < max_total_tokens)`)

	grantForward = define(`
UPDATE broker_grants
SET forwarded = forwarded + 1
WHERE grant_id = :grant AND state = 'active' AND close_requested_at IS NULL AND expires_at > :now AND ` + held)

	requestInsert = define(`
INSERT INTO broker_requests(grant_id, seq, outcome, evidence, started_at)
VALUES (:grant, :seq, 'reserved', :evidence, :now)`)

	requestFinish = define(`
UPDATE broker_requests
SET outcome = :outcome, evidence = :evidence, ended_at = :ended
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

// ReserveRequest spends one request of a grant's budget and writes its evidence
// row; only when it returns nil may the upstream be called. Seq, Outcome and
// StartedAt of e are set here. A commit in doubt counts as spent.
//
// grant_closed, budget_exhausted, lease_lost; whatever else means that the Store
// could not be written.
func (s *Store) ReserveRequest(ctx context.Context, l *Lease, e RequestEvidence) (RequestEvidence, error) {
	err := s.transact(ctx, func(t *tx) error {
		t.silent = true
		if l == nil {
			return t.guard(l)
		}
		n, err := t.exec(grantForward, append(t.under(l), "grant", e.GrantID, "now", t.now)...)
		if err != nil {
			return err
		}
		g, err := t.grant(e.GrantID)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := t.guard(l); err != nil {
				return err
			}
			return grantOver("forward a request of", g)
		}
		if n, err = t.exec(budgetReserve, "budget", g.BudgetID); err != nil {
			return err
		}
		if n == 0 {
			return fault.New(fault.BudgetExhausted, "forward a request of grant %s: its budget is spent", g.ID).With("grant_id", g.ID)
		}
		e.Seq, e.Outcome, e.StartedAt = g.Forwarded, RequestReserved, t.now
		evidence, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return t.must(requestInsert, "grant", e.GrantID, "seq", e.Seq, "evidence", evidence, "now", t.now)
	})
	if err == nil {
		crashpoint.At("request_reserved")
	}
	return e, err
}

// FinishRequest stores how a reserved request ended, and what it cost; EndedAt of e
// is set here. It needs no lease: a known outcome is worth keeping while the
// program drains. written is false when the row was settled before, as by a close.
func (s *Store) FinishRequest(ctx context.Context, e RequestEvidence) (written bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		ended := max(e.StartedAt, t.now)
		e.EndedAt = &ended
		evidence, err := json.Marshal(e)
		if err != nil {
			return err
		}
		n, err := t.exec(requestFinish, "grant", e.GrantID, "seq", e.Seq, "outcome", e.Outcome, "evidence", evidence, "ended", ended)
		if err != nil || n == 0 {
			return err
		}
		written = true
		var input, output, unmeasured int64
		if u := e.ResponseUsage; u != nil {
			input, output = u.InputTokens, u.OutputTokens
		} else if e.Unmeasured() {
			unmeasured = 1
		}
		if input == 0 && output == 0 && unmeasured == 0 {
			return nil
		}
		return t.must(budgetMeasure, "grant", e.GrantID, "input", input, "output", output, "unmeasured", unmeasured, "most", measuredMost)
	})
	if err == nil {
		crashpoint.At("request_finished")
	}
	return written && err == nil, err
}

// CountRequests adds to the counters of grants, many at once.
func (s *Store) CountRequests(ctx context.Context, counts []GrantCount) error {
	if len(counts) == 0 {
		return nil
	}
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		for _, c := range counts {
			if _, err := t.exec(grantCount, "grant", c.GrantID, "received", c.Received, "refused", c.Refused); err != nil {
				return err
			}
		}
		return nil
	})
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
