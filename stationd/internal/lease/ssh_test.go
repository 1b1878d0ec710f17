package lease_test

import (
	"os"
	"path/filepath"
	"testing"

	"drawbridge/shared/testkit/nettest"
	"drawbridge/stationd/internal/lease"
)

// A lease over SSH has the same story as one of this machine.
//
// Proves station 17.Z4 for the provider.
func TestSSH(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	p := h.provider(t)
	if err := p.Describe().Check(); err != nil {
		t.Fatal(err)
	}
	l := must[lease.Lease](t)(p.Acquire(t.Context(), request))
	story(t, p, l)
	for _, dir := range []string{"leases", "run"} {
		if left, err := os.ReadDir(filepath.Join(h.remote.Dir, dir)); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if left, err := os.ReadDir(h.scratch); err == nil && len(left) != 0 {
		t.Errorf("left here: %v", left)
	}
	if err := p.Release(t.Context(), l, empty); err != nil {
		t.Errorf("once more: %v", err)
	}
	if n := h.line.count(); n != 1 {
		t.Errorf("%d connections for one lease", n)
	}
}
