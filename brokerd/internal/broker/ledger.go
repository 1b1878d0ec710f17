package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// ledger is the Store as package upstream sees it.
type ledger struct{ b *Broker }

// Lookup gives an active grant that this process serves. Its row says whether it
// stands; what it opens was read and checked when it was taken up, so that nothing
// written into the Store later changes it.
func (l ledger) Lookup(ctx context.Context, capability [32]byte) (upstream.Grant, bool, error) {
	st, ok, err := l.b.opt.Store.GrantStanding(ctx, capability)
	if err != nil || !ok || !st.Authorises(l.b.opt.Now().UnixMilli()) {
		return upstream.Grant{}, false, err
	}
	s := l.b.session(st.GrantID)
	if s == nil || s.facts.ID == "" {
		return upstream.Grant{}, false, nil
	}
	return s.facts, true, nil
}

// factsOf is a grant as package upstream knows it, checked.
func factsOf(g store.Grant, kind, origin string) (upstream.Grant, error) {
	out := upstream.Grant{
		ID: g.ID, SHA256: g.CapabilitySHA256, Model: g.Request.Model, Effort: g.Request.ReasoningEffort, Kind: kind, Origin: origin,
		BasePath: g.BasePath, RunID: g.RunID, OwnerID: g.OwnerID, ExpiresAt: g.ExpiresAt, Measured: g.Request.StrictUsage || g.Request.MaxTotalTokens > 0,
	}
	if g.Request.Model == "" {
		return out, fault.New(fault.ModelRequired, "take up grant %s: it names no model", g.ID)
	}
	if g.RemoteCIDR != "" {
		var err error
		if out.Remote, err = netip.ParsePrefix(g.RemoteCIDR); err != nil {
			return out, fault.New(fault.InvalidArguments, "take up grant %s: %.60q is no range of addresses", g.ID, g.RemoteCIDR).
				WithHint("--remote-cidr takes one like 172.30.0.0/16")
		}
	}
	return out, checkOrigin(g, kind, origin)
}

// Commit writes a batch. A draft whose ledger file is not what it must be is not
// even tried, and its grant ends.
func (l ledger) Commit(ctx context.Context, batch upstream.Batch) ([]upstream.Answer, error) {
	rows := store.RequestBatch{}
	for _, e := range batch.Settled {
		end := store.RequestEnd{GrantID: e.GrantID, Seq: e.Seq, Outcome: e.Outcome, Evidence: e.JSON(), Unmeasured: e.Unmeasured()}
		if e.EndedAt != nil {
			end.EndedAt = *e.EndedAt
		}
		if u := e.ResponseUsage; u != nil {
			end.Input, end.Output = u.InputTokens, u.OutputTokens
		}
		rows.Settled = append(rows.Settled, end)
	}
	for _, c := range batch.Counts {
		rows.Counts = append(rows.Counts, store.GrantCount(c))
	}
	answers := make([]upstream.Answer, len(batch.Drafts))
	var at []int // of the drafts that are tried
	for i, d := range batch.Drafts {
		switch err := l.b.intact(ctx, d.Grant.ID); {
		case errors.Is(err, upstream.ErrClosed):
			answers[i].Refused = upstream.Capability
			continue
		case err != nil:
			answers[i].Refused = upstream.Budget
			continue
		}
		at = append(at, i)
		rows.Drafts = append(rows.Drafts, store.RequestDraft{GrantID: d.Grant.ID, Evidence: d.Evidence.JSON(), StartedAt: d.Evidence.StartedAt})
	}
	results, err := l.b.opt.Store.CommitRequests(ctx, l.b.lease, rows)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		answers[at[i]] = answer(r)
	}
	return answers, nil
}

func answer(r store.DraftAnswer) upstream.Answer {
	switch r.Result {
	case store.DraftReserved:
		return upstream.Answer{Seq: r.Seq}
	case store.DraftClosed:
		return upstream.Answer{Refused: upstream.Capability}
	case store.DraftExhausted:
		return upstream.Answer{Refused: upstream.Budget}
	}
	return upstream.Answer{Refused: upstream.StoreFailed}
}

// intact checks the ledger file of a grant that has one. When it is not what it
// must be nothing is reserved any more, and a pass ends the grant a moment later, so
// that the refusal goes out first.
func (b *Broker) intact(ctx context.Context, id string) error {
	s := b.session(id)
	switch {
	case s == nil:
		return upstream.ErrClosed
	case s.anchor == nil:
		return nil
	case s.tampered.Load() != 0:
		return fault.New(fault.BudgetIntegrity, "use the budget of grant %s: its ledger file was touched", id)
	}
	err := s.anchor.check()
	if err != nil && s.tampered.CompareAndSwap(0, b.opt.Now().UnixMilli()) {
		b.log.Error("the ledger file of a budget was touched; its grant ends", "grant_id", id, "err", err)
		b.note(ctx, id, string(fault.BudgetIntegrity), "")
	}
	return err
}

// credential gives the secret of a live grant, from memory unless its file changed.
// A file that cannot be read now refuses the request and not the grant: whoever
// renews a login may be in the middle of it.
func (b *Broker) credential(ctx context.Context, g upstream.Grant) (upstream.Credential, error) {
	s := b.session(g.ID)
	if s == nil {
		return upstream.Credential{}, upstream.ErrClosed
	}
	c, kind, ch, err := b.vault.get(s.credential, g.ID)
	switch {
	case errors.Is(err, upstream.ErrClosed):
		return c, err
	case err != nil:
		code := string(fault.CodeOf(err))
		if s.unreadable.Swap(code) != code { // said once, however often a worker asks
			b.log.Warn("credential file cannot be read again", "grant_id", g.ID, "code", code, "err", err)
			b.note(ctx, g.ID, code, "")
		}
		return c, err
	case ch.kind || kind != s.kind:
		b.log.Warn("the credential is of another kind now; the grant is revoked", "grant_id", g.ID)
		b.note(ctx, g.ID, "credential_kind_changed", "")
		if _, err := b.opt.Store.RequestClose(ctx, g.ID, store.CloseRevoked); err != nil {
			return upstream.Credential{}, err
		}
		return upstream.Credential{}, fmt.Errorf("credential of grant %s: %w", g.ID, upstream.ErrClosed)
	case ch.content:
		b.log.Info("credential file changed and was read again", "grant_id", g.ID)
		b.note(ctx, g.ID, "credential_reread", "")
	}
	s.unreadable.Store("")
	if b.opt.TestOrigin != "" && !b.vault.begins(s.credential, upstream.TestPrefix) {
		return upstream.Credential{}, fault.New(fault.OriginNotAllowed, "use the credential of grant %s: a test upstream gets none but a test credential", g.ID)
	}
	return c, nil
}

// session gives the live session of a grant, nil when there is none.
func (b *Broker) session(id string) *session {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.sessions[id]
}
