package broker

import (
	"context"
	"strings"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// pass looks at every open grant once.
func (b *Broker) pass(ctx context.Context) error {
	grants, err := b.opt.Store.OpenGrants(ctx)
	if err != nil {
		return err
	}
	now := b.opt.Now().UnixMilli()
	for _, g := range grants {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		reason, err := b.over(ctx, g, now)
		if err != nil {
			return err
		}
		switch {
		case g.State == store.GrantRequested && reason != "":
			if _, err = b.opt.Store.WithdrawGrant(ctx, b.lease, g.ID, reason); err == nil {
				b.log.Info("grant withdrawn", "grant_id", g.ID, "reason", reason)
			}
		case g.State == store.GrantRequested:
			err = b.takeUp(ctx, g)
		case reason != "" || g.State == store.GrantClosing:
			b.close(g.ID, reason)
		}
		if err != nil && !fault.Is(err, fault.GrantClosed) {
			return err
		}
	}
	return nil
}

// over says why a grant has to end now, "" while it has not.
func (b *Broker) over(ctx context.Context, g store.Grant, now int64) (reason string, err error) {
	switch {
	case g.CloseRequestedAt != 0:
		return g.CloseReason, nil
	case g.ExpiresAt <= now:
		return store.CloseExpired, nil
	}
	s := b.session(g.ID)
	if s == nil && g.State == store.GrantActive { // the commit that made it active was in doubt
		return reasonDoubt, nil
	}
	if s != nil && s.tampered.Load() != 0 && s.tampered.Load()+tamperWait.Milliseconds() <= now {
		return string(fault.BudgetIntegrity), nil
	}
	gone, err := b.opt.Store.CreatorGone(ctx, g)
	if gone {
		reason = reasonCreatorGone
	}
	return reason, err
}

// takeUp makes a requested grant active, or refuses it with a code of broker §12.
// Only trouble with the Store is an error: then the grant stays requested.
func (b *Broker) takeUp(ctx context.Context, g store.Grant) error {
	s := &session{id: g.ID, credential: g.CredentialRef}
	err := b.prepare(ctx, g, s)
	if err == nil {
		b.mu.Lock() // before it is active: the first request may come at once
		b.sessions[g.ID] = s
		b.mu.Unlock()
		endpoint, _ := b.endpoint(g)
		if _, err = b.opt.Store.ActivateGrant(ctx, b.lease, g.ID, store.Activation{EndpointID: endpoint.ID, CredentialKind: s.kind}); err == nil {
			b.log.Info("grant active", "grant_id", g.ID, "run_id", g.RunID, "credential_kind", s.kind, "max_requests", g.Request.MaxRequests,
				"expires_at", g.ExpiresAt, "registered_run", s.anchor != nil)
			return nil
		}
		b.mu.Lock()
		delete(b.sessions, g.ID)
		b.mu.Unlock()
	}
	b.release(ctx, s)
	if ctx.Err() != nil || ours(err) {
		return err
	}
	code := fault.CodeOf(err)
	b.log.Warn("grant refused", "grant_id", g.ID, "run_id", g.RunID, "code", code, "err", err)
	_, err = b.opt.Store.RefuseGrant(ctx, b.lease, g.ID, b.refusal(g.ID, err))
	return err
}

// refusal is what a creator is told. The text of an error that has no code stays in
// the log.
func (b *Broker) refusal(id string, err error) store.Refusal {
	r := store.Refusal{Code: fault.CodeOf(err)}
	f, ok := fault.As(err)
	if !ok || r.Code == fault.Internal {
		return r
	}
	why := strings.TrimPrefix(f.Message, "take up grant "+id+": ")
	if b.opt.Redactor != nil {
		why = b.opt.Redactor.Text(why)
	}
	r.Why, r.Hint = fault.CleanLine(why), fault.CleanLine(f.Hint)
	return r
}

// ours reports whether an error is between brokerd and the Store, so that it may be
// gone at the next look. All others are the creator's to know: the row of one never
// keeps brokerd from the next.
func ours(err error) bool {
	switch fault.CodeOf(err) {
	case fault.StoreBusy, fault.StoreUnavailable, fault.StoreIncompatible, fault.LeaseLost, fault.GrantClosed:
		return true
	}
	return false
}

// prepare does all that a grant needs before it is active: endpoint, credential,
// origin, budget.
func (b *Broker) prepare(ctx context.Context, g store.Grant, s *session) error {
	if _, ok := b.endpoint(g); !ok {
		return fault.New(fault.ListenerUnavailable, "take up grant %s: there is no %s listener", g.ID, kindOf(g))
	}
	if err := b.openCredential(g, s); err != nil {
		return err
	}
	origin := g.Request.UpstreamOrigin
	if origin == "" {
		origin = upstream.OriginFor(s.kind)
	}
	var err error
	if s.facts, err = factsOf(g, s.kind, origin); err != nil {
		return err
	}
	if g.Request.RequestBindingDigest == "" {
		_, _, err := b.opt.Store.PrepareBudget(ctx, b.lease, g.ID, origin)
		return err
	}
	return b.registered(ctx, g, s, origin)
}

func (b *Broker) openCredential(g store.Grant, s *session) (err error) {
	if s.kind, err = b.vault.open(g.CredentialRef, g.ID); err != nil {
		return err
	}
	if b.opt.TestOrigin != "" && !b.vault.begins(g.CredentialRef, upstream.TestPrefix) {
		return fault.New(fault.OriginNotAllowed, "take up grant %s: a test upstream gets no credential but one that begins with %s", g.ID, upstream.TestPrefix).
			WithHint("use a brokerd without --test-upstream, or a test credential")
	}
	return nil
}

// checkOrigin holds the origin against the kind of credential, wherever it came
// from.
func checkOrigin(g store.Grant, kind, origin string) error {
	if origin == "" || origin != upstream.OriginFor(kind) {
		return fault.New(fault.OriginNotAllowed, "take up grant %s: this kind of credential does not go to that upstream", g.ID).
			WithHint("leave the upstream out: it follows from the credential")
	}
	return nil
}

// registered joins or begins the budget of a registered run (broker §10).
func (b *Broker) registered(ctx context.Context, g store.Grant, s *session, origin string) error {
	if err := b.own(ctx, g, s); err != nil {
		return err
	}
	if first := (anchor{path: g.Request.LedgerFile}); g.Request.Initialize && g.BudgetID == "" {
		if first.exists() {
			return fault.New(fault.BudgetExists, "initialise the budget of grant %s: its ledger file exists", g.ID).
				WithHint("leave --initialize out to go on with its budget, or name another ledger file")
		}
		if err := first.possible(); err != nil { // before there is a row: the run may try again
			return err
		}
	}
	budget, made, err := b.opt.Store.PrepareBudget(ctx, b.lease, g.ID, origin)
	if err != nil {
		return err
	}
	a, err := anchorOf(b.opt.Store.ID(), budget)
	if err != nil {
		return err
	}
	if made && !a.exists() {
		if err := a.write(); err != nil {
			return err
		}
	}
	s.anchor = &a
	return a.check()
}

// own takes the lease of the budget: it has one live session.
func (b *Broker) own(ctx context.Context, g store.Grant, s *session) error {
	l, err := b.opt.Store.Acquire(ctx, store.BudgetLease(g.Request.RequestBindingDigest), store.LeaseTTL)
	if fault.Is(err, fault.LeaseHeld) {
		return fault.New(fault.BudgetOwned, "use the budget of grant %s: another live session uses it", g.ID).Safe()
	}
	if err != nil {
		return err
	}
	_, s.unkeep = b.opt.Keeper.Keep(context.WithoutCancel(ctx), l)
	s.budget = l
	return nil
}

// endpoint gives the listener of the kind that a grant asks for.
func (b *Broker) endpoint(g store.Grant) (store.Endpoint, bool) {
	for _, e := range b.endpoints {
		if e.Kind() == kindOf(g) {
			return e, true
		}
	}
	return store.Endpoint{}, false
}

func kindOf(g store.Grant) string {
	if g.Request.Endpoint == "" {
		return store.EndpointTCP
	}
	return g.Request.Endpoint
}

// adopt takes over the grants of a brokerd that died, before anybody is served.
func (b *Broker) adopt(ctx context.Context) error {
	grants, err := b.opt.Store.OpenGrants(ctx)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if g.State == store.GrantRequested {
			continue
		}
		s := &session{id: g.ID, credential: g.CredentialRef, kind: g.CredentialKind}
		b.mu.Lock()
		b.sessions[g.ID] = s
		b.mu.Unlock()
		if g.State == store.GrantClosing || g.CloseRequestedAt != 0 {
			continue // the first pass ends it
		}
		if reason := b.resume(ctx, g, s); reason != "" {
			b.log.Warn("grant of a dead brokerd is not served on", "grant_id", g.ID, "reason", reason)
			if _, err := b.opt.Store.BeginClose(ctx, b.lease, g.ID, reason); err != nil {
				return err
			}
			continue
		}
		b.log.Info("grant of a dead brokerd is served on", "grant_id", g.ID, "run_id", g.RunID)
	}
	return nil
}

// resume readies an active grant again; the result says why it cannot go on.
func (b *Broker) resume(ctx context.Context, g store.Grant, s *session) (reason string) {
	lost := true
	for _, e := range b.endpoints {
		lost = lost && e.ID != g.EndpointID
	}
	if lost {
		return reasonEndpoint
	}
	kind := s.kind
	err := b.openCredential(g, s)
	if err == nil && s.kind != kind {
		b.note(ctx, g.ID, "credential_kind_changed", "")
		return store.CloseRevoked
	}
	if err == nil {
		s.facts, err = factsOf(g, s.kind, g.Origin)
	}
	if err == nil && g.Request.RequestBindingDigest != "" {
		err = b.rejoin(ctx, g, s)
	}
	if err == nil {
		return ""
	}
	b.log.Warn("resume a grant", "grant_id", g.ID, "err", err)
	return string(fault.CodeOf(err))
}

func (b *Broker) rejoin(ctx context.Context, g store.Grant, s *session) error {
	if err := b.own(ctx, g, s); err != nil {
		return err
	}
	budget, err := b.opt.Store.Budget(ctx, g.BudgetID)
	if err != nil {
		return err
	}
	a, err := anchorOf(b.opt.Store.ID(), budget)
	if err != nil {
		return err
	}
	s.anchor = &a
	return a.check()
}

// note writes an event; a Store that cannot take it has logged enough elsewhere.
func (b *Broker) note(ctx context.Context, grantID, code, detail string) {
	if err := b.opt.Store.NoteBroker(ctx, grantID, code, detail); err != nil {
		b.log.Warn("note an event", "grant_id", grantID, "code", code, "err", err)
	}
}
