package broker_test

import (
	"os"
	"path/filepath"
	"testing"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// The content of an anchor is a format that outlives this program: members, order
// and hash are fixed (broker §10).
func TestAnchor_Content(t *testing.T) {
	b := store.Budget{ID: "bb_1", RequestBindingDigest: "sha256:00", Model: "m", UpstreamOrigin: "https://api.openai.com/v1", MaxRequests: 5}
	for effort, want := range map[string]string{
		// sha256 of {"version":1,"request_binding_digest":"sha256:00","model":"m","reasoning_effort":null,"upstream_origin":"https://api.openai.com/v1","max_requests":5}
		"":    `{"version":1,"binding_digest":"e547a681a9b5c03ba0f8dc94dbbd70316012faf1feab8dfaa2439f7e48a8abb7","store_id":"s","budget_id":"bb_1"}` + "\n",
		"low": `{"version":1,"binding_digest":"7ece838d3470cd3e1c646a4279ad8f5cf1688e9c4fa221425d45821e43cc95c3","store_id":"s","budget_id":"bb_1"}` + "\n",
	} {
		b.ReasoningEffort = effort
		got, _, _, err := broker.Anchor("s", b)
		if err != nil || string(got) != want {
			t.Errorf("effort %q: got %s, %v, want %s", effort, got, err, want)
		}
	}
}

// An anchor is written once, and private.
func TestAnchor_WrittenOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b := store.Budget{ID: "bb_1", AnchorPath: filepath.Join(dir, "l.json")}
	want, write, check, err := broker.Anchor("s", b)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(); !fault.Is(err, fault.BudgetIntegrity) {
		t.Errorf("absent: got %v", err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	if err := write(); !fault.Is(err, fault.BudgetIntegrity) {
		t.Errorf("twice: got %v", err)
	}
	got, err := os.ReadFile(b.AnchorPath)
	st, statErr := os.Stat(b.AnchorPath)
	if err != nil || statErr != nil || string(got) != string(want) || st.Mode() != 0o600 {
		t.Errorf("got %s, %v", got, st.Mode())
	}
	_, _, other, err := broker.Anchor("another", b)
	if err != nil {
		t.Fatal(err)
	}
	if err := other(); !fault.Is(err, fault.BudgetIntegrity) {
		t.Errorf("another Store: got %v", err)
	}
}
