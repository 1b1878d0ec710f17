package broker_test

import (
	"strings"
	"testing"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// A grant whose last row cannot be written now stays closing, so that what the request
// cost is not lost; the next try ends it.
func TestClose_RowNotWritten(t *testing.T) {
	ctx := t.Context()
	s, err := store.Open(ctx, store.Options{Dir: testkit.StoreDir(t), Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Acquire(ctx, store.BrokerdLease(), store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := s.OpenEndpoints(ctx, l, []store.NewEndpoint{{BindAddress: "127.0.0.1", Port: 1, BaseURL: "http://127.0.0.1:1", TransportMode: upstream.Live}})
	if err != nil {
		t.Fatal(err)
	}
	_, hash := redact.NewCapability()
	g, err := s.CreateGrant(ctx, store.NewGrant{CapabilitySHA256: hash, CredentialRef: "/auth.json", Request: store.GrantRequest{Model: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.PrepareBudget(ctx, l, g.ID, upstream.OriginAPI); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ActivateGrant(ctx, l, g.ID, store.Activation{EndpointID: endpoints[0].ID, CredentialKind: upstream.APIKey}); err != nil {
		t.Fatal(err)
	}
	row := upstream.Evidence{GrantID: g.ID, Outcome: upstream.Reserved, StartedAt: 1}
	draft := store.RequestDraft{GrantID: g.ID, Evidence: row.JSON(), StartedAt: 1}
	if _, err := s.CommitRequests(ctx, l, store.RequestBatch{Drafts: []store.RequestDraft{draft}}); err != nil {
		t.Fatal(err)
	}

	b, journal, err := broker.WithFailingJournal(s, l, 1)
	if err != nil {
		t.Fatal(err)
	}
	row.Seq, row.Outcome, row.ResponseUsage = 1, upstream.Completed, &upstream.Usage{InputTokens: 10, OutputTokens: 5}
	journal.Settle(row)
	if _, ended, err := b.End(ctx, g.ID, "run_ended"); err == nil || ended {
		t.Errorf("with a row that is not written: ended %v, %v", ended, err)
	}
	if g, err = s.Grant(ctx, g.ID); err != nil || g.State != store.GrantClosing {
		t.Errorf("the grant is %s, %v", g.State, err)
	}
	if g, ended, err := b.End(ctx, g.ID, "run_ended"); err != nil || !ended || g.State != store.GrantClosed || g.MeasuredInput != 10 || g.MeasuredOutput != 5 {
		t.Errorf("again: %+v, ended %v, %v", g, ended, err)
	}
	rows, err := s.Evidence(ctx, g.ID)
	if err != nil || len(rows) != 1 || !strings.Contains(string(rows[0]), `"outcome":"completed"`) {
		t.Errorf("rows are %s, %v", rows, err)
	}
}
