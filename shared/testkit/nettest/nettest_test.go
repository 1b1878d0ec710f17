package nettest_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/nettest"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// In the network of a test there is nothing but what the test puts there.
func TestWorld(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 || links[0].Name != "lo" {
		t.Fatalf("got interfaces %v at first, want only lo", links)
	}
	world := nettest.NewWorld(t, "pub", "203.0.113.254/24", "203.0.113.1/24", "203.0.113.53/24")
	service := world.TCP(t, "203.0.113.1:80")
	nettest.Dial(t, service.Addr)
	if got := service.Hits(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}

	names := world.Names(t, "203.0.113.53:53", net.IPv4(203, 0, 113, 7))
	nettest.Resolver(t, "203.0.113.53")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true}
	got, err := resolver.LookupHost(ctx, "planks.example.org")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"203.0.113.7"}, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if names.Hits() == 0 {
		t.Error("the name server saw no question")
	}
}
