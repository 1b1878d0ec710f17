package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

// A grant as a creator asks for it and as the next reader sees it.
func TestGrant_AsAsked(t *testing.T) {
	w := newWorld(t)
	n := newGrant()
	n.RunID, n.OwnerID, n.BasePath, n.RemoteCIDR = "run-1", "owner-1", "/v1", "10.0.0.0/24"
	g, err := w.CreateGrant(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	want := n.Request
	want.MaxRequests = store.DefaultGrantRequests
	if diff := cmp.Diff(want, g.Request); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if g.State != store.GrantRequested || g.RunID != "run-1" || g.BasePath != "/v1" || g.ExpiresAt-g.CreatedAt != store.GrantLife.Milliseconds() {
		t.Errorf("got %+v", g)
	}
	found, ok, err := w.GrantByCapability(t.Context(), n.CapabilitySHA256)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if diff := cmp.Diff(g, found); diff != "" {
		t.Errorf("by capability (-want +got):\n%s", diff)
	}
}

// newGrant is the smallest that can be asked for.
func newGrant() store.NewGrant {
	_, hash := redact.NewCapability()
	return store.NewGrant{CapabilitySHA256: hash, Request: store.GrantRequest{Model: "m"}, CredentialRef: "/home/u/auth.json"}
}
