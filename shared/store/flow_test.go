package store_test

import (
	"testing"

	"drawbridge/shared/store"
)

func TestFlow_SendToCallback(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "").accept("thread-1")
	if got := f.sub.Binding.NativeThreadID; got != "thread-1" {
		t.Fatalf("binding has thread %q", got)
	}
	m := f.monitor()
	if _, err := w.TurnRunning(ctx, m, store.Activity{At: w.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := w.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: "x", Callback: callback("q", store.LaneLifecycle, "question")}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if got := f.turn().Status; got != store.TurnWaitingForController {
		t.Fatal(got)
	}
	if _, err := w.ApprovalCleared(ctx, m); err != nil {
		t.Fatal(err)
	}
	turn, err := w.ClaimCompletion(ctx, m, completion("1"))
	if err != nil {
		t.Fatal(err)
	}
	if turn.Status != store.TurnIdle {
		t.Fatal(turn.Status)
	}
	if _, ok, err := w.Fence(ctx, "key-a"); ok || err != nil {
		t.Fatal(ok, err)
	}
	l := w.lease(store.OutboxdLease("profile", "controller-1"))
	c, ok, err := w.ClaimCallback(ctx, l, family, 0)
	if err != nil || !ok || c.DeliveryID != "delivery-1" {
		t.Fatal(c, ok, err)
	}
	if err := w.MarkStarted(ctx, l, c.DeliveryID, c.AttemptID); err != nil {
		t.Fatal(err)
	}
	c, err = w.SettleCallback(ctx, store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: store.Accepted, AcceptanceID: "acc"})
	if err != nil || c.Status != store.CallbackAccepted {
		t.Fatal(c, err)
	}
	events, err := w.TurnEvents(ctx, "turn-1", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		t.Log(e.Event, string(e.Detail))
	}
}
