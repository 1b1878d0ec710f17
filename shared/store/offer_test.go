package store_test

import (
	"fmt"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func offer(owner, target, payload, fingerprint string) store.NewOffer {
	return store.NewOffer{Key: store.OfferKey{OwnerSession: owner, Kind: "approval", TargetType: "turn", TargetID: target},
		Payload: []byte(payload), Fingerprint: fingerprint, Life: 10 * time.Minute}
}

// Proves core 19.58: owner isolation, single use, sticky invalidation, expiry, the
// limit of 512, and none after a restart.
func TestOffer(t *testing.T) {
	mint := func(t *testing.T, w *world, offers ...store.NewOffer) {
		t.Helper()
		for _, o := range offers {
			if err := w.MintOffer(ctx, o); err != nil {
				t.Fatal(err)
			}
			w.clk.add(time.Millisecond)
		}
	}
	take := func(t *testing.T, w *world, o store.NewOffer, want fault.Code) {
		t.Helper()
		payload, err := w.ConsumeOffer(ctx, o.Key)
		if got := fault.CodeOf(err); got != want {
			t.Fatalf("got %q (%v), want %q", got, err, want)
		}
		if want == "" && string(payload) != string(o.Payload) {
			t.Fatalf("got payload %s", payload)
		}
	}
	a := offer("a", "turn-1", `{"x":1}`, "f")
	for name, run := range map[string]func(t *testing.T, w *world){
		"single use": func(t *testing.T, w *world) {
			mint(t, w, a)
			take(t, w, a, "")
			take(t, w, a, fault.OfferMissing)
		},
		"two consumers": func(t *testing.T, w *world) {
			mint(t, w, a)
			other := w.open("bridge/2/2/x")
			got := make(chan error, 2)
			for _, s := range []*store.Store{w.Store, other} {
				go func() { _, err := s.ConsumeOffer(ctx, a.Key); got <- err }()
			}
			if x, y := <-got, <-got; (x == nil) == (y == nil) {
				t.Errorf("got %v and %v", x, y)
			}
		},
		"owner isolation": func(t *testing.T, w *world) {
			mint(t, w, a)
			b := a
			b.Key.OwnerSession = "b"
			take(t, w, b, fault.OfferMissing)
			take(t, w, a, "")
		},
		"other target and kind": func(t *testing.T, w *world) {
			mint(t, w, a)
			for _, change := range []func(*store.OfferKey){
				func(k *store.OfferKey) { k.TargetID = "turn-2" }, func(k *store.OfferKey) { k.TargetType = "terminal" }, func(k *store.OfferKey) { k.Kind = "handoff" },
			} {
				b := a
				change(&b.Key)
				take(t, w, b, fault.OfferMissing)
			}
		},
		"changed fingerprint is sticky": func(t *testing.T, w *world) {
			mint(t, w, a, offer("a", "turn-1", `{"x":1}`, "g"), a, a)
			take(t, w, a, fault.OfferMissing)
			take(t, w, a, fault.OfferMissing)
			mint(t, w, a) // after the consuming attempt
			take(t, w, a, "")
		},
		"changed arguments are sticky": func(t *testing.T, w *world) {
			mint(t, w, a, offer("a", "turn-1", `{"x":2}`, "f"), a)
			take(t, w, a, fault.OfferMissing)
		},
		"no fingerprint": func(t *testing.T, w *world) {
			plain := offer("a", "turn-1", `{"x":1}`, "")
			mint(t, w, plain, plain)
			take(t, w, plain, "")
			mint(t, w, plain, a)
			take(t, w, plain, fault.OfferMissing)
		},
		"invalidation ends with its life": func(t *testing.T, w *world) {
			mint(t, w, a, offer("a", "turn-1", `{"x":1}`, "g"))
			w.clk.add(10 * time.Minute)
			mint(t, w, a)
			take(t, w, a, "")
		},
		"an invalid one does not live on": func(t *testing.T, w *world) {
			mint(t, w, a, offer("a", "turn-1", `{"x":1}`, "g"))
			w.clk.add(9 * time.Minute)
			mint(t, w, a)
			w.clk.add(time.Minute)
			mint(t, w, a)
			take(t, w, a, "")
		},
		"expired by 1 ms": func(t *testing.T, w *world) {
			mint(t, w, a) // and 1 ms passes
			w.clk.add(10*time.Minute - time.Millisecond)
			take(t, w, a, fault.OfferExpired)
			take(t, w, a, fault.OfferMissing)
		},
		"1 ms before": func(t *testing.T, w *world) {
			mint(t, w, a)
			w.clk.add(10*time.Minute - 2*time.Millisecond)
			take(t, w, a, "")
		},
		"seen again it lives on": func(t *testing.T, w *world) {
			mint(t, w, a)
			w.clk.add(9 * time.Minute)
			mint(t, w, a)
			w.clk.add(9 * time.Minute)
			take(t, w, a, "")
		},
		"the 513th pushes out the oldest": func(t *testing.T, w *world) {
			all := make([]store.NewOffer, 513)
			for i := range all {
				all[i] = offer("a", fmt.Sprint("turn-", i), `{}`, "f")
			}
			mint(t, w, offer("b", "turn-0", `{}`, "f"))
			mint(t, w, all...)
			take(t, w, all[0], fault.OfferMissing)
			take(t, w, all[1], "")
			take(t, w, all[512], "")
			take(t, w, offer("b", "turn-0", `{}`, "f"), "") // another owner's stays
		},
		"restart": func(t *testing.T, w *world) {
			b := offer("b", "turn-1", `{}`, "f")
			mint(t, w, a, b)
			if n, err := w.DeleteOffers(ctx, "a"); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			take(t, w, a, fault.OfferMissing)
			take(t, w, b, "")
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, newWorld(t)) })
	}
}
