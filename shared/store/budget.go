package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Budget is the row that reservations are counted on: one of its own for most
// grants, one for all sessions of a registered run.
type Budget struct {
	ID                   string
	RequestBindingDigest string // "": of one grant
	Model                string
	ReasoningEffort      string
	UpstreamOrigin       string
	MaxRequests          int64
	MaxTotalTokens       int64 // 0: no ceiling
	Reserved             int64
	MeasuredInput        int64
	MeasuredOutput       int64
	Unmeasured           int64
	AnchorPath           string
	CreatedAt            int64
}

const budgetCols = `budget_id, coalesce(request_binding_digest, ''), model, coalesce(reasoning_effort, ''), upstream_origin, max_requests,
  coalesce(max_total_tokens, 0), reserved, measured_input, measured_output, unmeasured_responses, coalesce(anchor_path, ''), created_at`

func scanBudget(r scanner) (b Budget, err error) {
	err = r.Scan(&b.ID, &b.RequestBindingDigest, &b.Model, &b.ReasoningEffort, &b.UpstreamOrigin, &b.MaxRequests,
		&b.MaxTotalTokens, &b.Reserved, &b.MeasuredInput, &b.MeasuredOutput, &b.Unmeasured, &b.AnchorPath, &b.CreatedAt)
	return b, err
}

var (
	budgetByID = define(`
SELECT ` + budgetCols + `
FROM broker_budgets
WHERE budget_id = :budget`)

	budgetByDigest = define(`
SELECT ` + budgetCols + `
FROM broker_budgets
WHERE request_binding_digest = :digest`)

	budgetInsert = define(`
INSERT INTO broker_budgets(budget_id, request_binding_digest, model, reasoning_effort, upstream_origin, max_requests, max_total_tokens,
  anchor_path, created_at)
VALUES (:budget, :digest, :model, :effort, :origin, :max_requests, :max_tokens, :anchor, :now)`)

	grantBudget = define(`
UPDATE broker_grants
SET budget_id = :budget, revision = revision + 1
WHERE grant_id = :grant AND state = 'requested' AND ` + held)
)

// PrepareBudget gives a requested grant its budget, before it is activated: one of
// its own, or that of its registered run. made reports that the budget was made
// for this grant, now or before a crash, so that its anchor may still be missing.
//
// budget_missing, budget_exists and budget_binding_mismatch as broker §10 has them.
func (s *Store) PrepareBudget(ctx context.Context, l *Lease, id, origin string) (b Budget, made bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		g, err := t.grant(id)
		if err != nil {
			return err
		}
		if g.State != GrantRequested {
			return grantOver("prepare the budget of", g)
		}
		if b, made, err = t.budgetFor(g, origin); err != nil {
			return err
		}
		if g.BudgetID == b.ID {
			return t.guard(l)
		}
		_, err = t.moveGrant(l, id, "prepare the budget of", grantBudget, "budget", b.ID)
		return err
	})
	if err == nil {
		crashpoint.At("budget_prepared")
	}
	return b, made, err
}

func (t *tx) budgetFor(g Grant, origin string) (b Budget, made bool, err error) {
	r := g.Request
	switch {
	case g.BudgetID != "": // prepared before, by a brokerd that died since
		if b, err = only(t, scanBudget, "budget", g.BudgetID, budgetByID, "budget", g.BudgetID); err != nil {
			return b, false, err
		}
		return b, r.Initialize && b.Reserved == 0, budgetFits(b, r, origin)
	case r.RequestBindingDigest == "":
		b, err = t.makeBudget(r, origin)
		return b, true, err
	}
	b, ok, err := first(t, scanBudget, budgetByDigest, "digest", r.RequestBindingDigest)
	switch {
	case err != nil:
		return b, false, err
	case ok && r.Initialize:
		return b, false, fault.New(fault.BudgetExists, "initialise the budget of grant %s: it exists, with %d of %d requests spent", g.ID, b.Reserved, b.MaxRequests).
			WithHint("leave --initialize out to go on with it")
	case ok:
		return b, false, budgetFits(b, r, origin)
	case !r.Initialize:
		return b, false, fault.New(fault.BudgetMissing, "resume the budget of grant %s: this Store has none of that digest", g.ID).
			WithHint("the first session of a run is asked for with --initialize")
	}
	b, err = t.makeBudget(r, origin)
	return b, true, err
}

func (t *tx) makeBudget(r GrantRequest, origin string) (Budget, error) {
	id := "bb_" + t.newID()
	if _, err := t.exec(budgetInsert, "budget", id, "digest", orNull(r.RequestBindingDigest), "model", r.Model,
		"effort", orNull(r.ReasoningEffort), "origin", origin, "max_requests", r.MaxRequests, "max_tokens", orNull(r.MaxTotalTokens),
		"anchor", orNull(r.LedgerFile), "now", t.now); err != nil {
		return Budget{}, err
	}
	return only(t, scanBudget, "budget", id, budgetByID, "budget", id)
}

// budgetFits refuses a session that asks for something else than the run's first.
func budgetFits(b Budget, r GrantRequest, origin string) error {
	for _, c := range []struct {
		what string
		same bool
	}{
		{"model", b.Model == r.Model},
		{"reasoning_effort", b.ReasoningEffort == r.ReasoningEffort},
		{"upstream_origin", b.UpstreamOrigin == origin},
		{"max_requests", b.MaxRequests == r.MaxRequests},
		{"max_total_tokens", b.MaxTotalTokens == r.MaxTotalTokens},
		{"ledger_file", b.AnchorPath == r.LedgerFile},
	} {
		if !c.same {
			return fault.New(fault.BudgetMismatch, "use budget %s: %s differs from what it was made for", b.ID, c.what).With("field", c.what)
		}
	}
	return nil
}

// Budget gives one budget, or not_found.
func (s *Store) Budget(ctx context.Context, id string) (Budget, error) {
	return only(pool{ctx, s.rdb}, scanBudget, "budget", id, budgetByID, "budget", id)
}
