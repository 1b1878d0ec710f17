// Package seed fills a Store with rows of the outbox, by the moves with which
// bridge and watchd make them. Only tests import it.
package seed

import (
	"context"
	"fmt"
	"testing"

	"drawbridge/shared/callback"
	"drawbridge/shared/store"
)

// Turn makes a Turn named n that is completed with body, and gives its row.
func Turn(t testing.TB, s *store.Store, route callback.Route, n, body string) store.Callback {
	t.Helper()
	ctx := context.Background()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("seed Turn %s: %s: %v", n, what, err)
		}
	}
	message := "msg-" + n
	key := "key-" + n
	term, err := s.Acquire(ctx, store.TerminalLease(key), store.TerminalTTL)
	must("terminal lease", err)
	sub, err := s.PrepareDispatch(ctx, term, store.NewDispatch{
		MessageID: message, ToolCallID: "call-" + n, Kind: store.KindTask, NewTurnID: "turn-" + n,
		Attach: store.Attach{
			NewSessionID: "session-" + n, NativeThreadID: "thread-" + n, Agent: "codex", Workspace: "/w",
			Binding: store.NewBinding{
				TerminalID: "terminal:v2:tmux:codex:" + n, TerminalKey: key, IncarnationKey: "inc-" + n,
				Endpoint: []byte(`{}`), PID: 7, Evidence: "seed",
			},
		},
		ControllerSessionID: route.ControllerSessionID, Route: route.Canonical(), RequestText: "do it",
		BodyHash: "body-" + n, RequestHash: "request-" + n, Anchor: []byte(`{}`),
	})
	must("prepare", err)
	must("mark", s.MarkInput(ctx, term, message))
	must("text", s.TextInjected(ctx, term, message))
	must("enter", s.EnterDispatched(ctx, term, message))
	sub, err = s.AcceptDispatch(ctx, term, store.Acceptance{
		MessageID: message, NativeThreadID: "thread-" + n, Evidence: []byte(`{}`),
		Check: func(store.Dispatch, []byte) error { return nil },
	})
	must("accept", err)
	mon, err := s.Acquire(ctx, store.MonitorLease(sub.Turn.ID, message), store.LeaseTTL)
	must("monitor lease", err)
	env := callback.TurnEnvelope(route, callback.TurnSource(sub.Session.ID, sub.Turn.ID), callback.Event{
		ID:   callback.TerminalMessageID(sub.Turn.ID, message, "fp-"+n, "success"),
		Type: callback.EventDone, Body: body,
	})
	_, err = s.ClaimCompletion(ctx,
		store.Monitor{TurnID: sub.Turn.ID, MessageID: message, BindingGeneration: sub.Turn.BindingGeneration, Lease: mon},
		store.Completion{Fingerprint: "fp-" + n, Outcome: store.OutcomeSuccess, Callback: Row(env, callback.LaneLifecycle, "completion")})
	must("complete", err)
	must("release", s.Release(ctx, mon, term))
	return Read(t, s, env.DeliveryID)
}

// A Watch is an active Terminal Watch.
type Watch struct {
	t     testing.TB
	s     *store.Store
	route callback.Route
	id    string
}

// NewWatch makes a Watch named n.
func NewWatch(t testing.TB, s *store.Store, route callback.Route, n string) *Watch {
	t.Helper()
	ctx := context.Background()
	key := "watch-key-" + n
	term, err := s.Acquire(ctx, store.TerminalLease(key), store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.CreateWatch(ctx, term, store.NewWatch{
		WatchID: "terminal-watch-" + n, Agent: "codex", Mode: store.ModeTerminalActivity, TerminalID: "terminal-" + n, TerminalKey: key,
		Endpoint: []byte(`{}`), Workspace: "/w", BindingToken: "token", IdentityFingerprint: "identity-" + n, Anchor: []byte(`{}`),
		AnchorFingerprint: "anchor-" + n, Checkpoint: []byte(`{}`), ControllerSessionID: route.ControllerSessionID,
		Route: route.Canonical(), Lifetime: 3_600_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx, term); err != nil {
		t.Fatal(err)
	}
	return &Watch{t, s, route, w.ID}
}

// Approval adds the i-th approval notification and gives its row.
func (w *Watch) Approval(i int) store.Callback {
	w.t.Helper()
	n := w.notification("approval", callback.EventApprovalRequired, i)
	w.sweep(func(ctx context.Context, f store.WatchFence) error {
		_, _, err := w.s.NotifyWatchApproval(ctx, f, store.Observation{}, n)
		return err
	})
	return Read(w.t, w.s, n.NotificationID)
}

// Complete settles the Watch and gives the row that says so.
func (w *Watch) Complete() store.Callback {
	w.t.Helper()
	n := w.notification("completed", callback.EventCompleted, 0)
	w.sweep(func(ctx context.Context, f store.WatchFence) error {
		_, err := w.s.SettleWatch(ctx, f, store.WatchSettlement{Status: store.WatchCompleted, Notification: n})
		return err
	})
	return Read(w.t, w.s, n.NotificationID)
}

// Tampered settles the Watch with a row that was changed, and gives its id.
func (w *Watch) Tampered(change func(*store.NewCallback)) string {
	w.t.Helper()
	n := w.notification("completed", callback.EventCompleted, 0)
	change(&n.Callback)
	w.sweep(func(ctx context.Context, f store.WatchFence) error {
		_, err := w.s.SettleWatch(ctx, f, store.WatchSettlement{Status: store.WatchCompleted, Notification: n})
		return err
	})
	return n.Callback.DeliveryID
}

// sweep makes one move as the sweeping watchd.
func (w *Watch) sweep(move func(context.Context, store.WatchFence) error) {
	w.t.Helper()
	ctx := context.Background()
	l, err := w.s.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		w.t.Fatal(err)
	}
	row, err := w.s.Watch(ctx, w.id)
	if err == nil {
		err = move(ctx, store.WatchFence{
			WatchID: w.id, Revision: row.Revision, IdentityFingerprint: row.IdentityFingerprint, AnchorFingerprint: row.AnchorFingerprint,
			ObservedAt: w.s.Now(), Lease: l,
		})
	}
	if err != nil {
		w.t.Fatalf("seed Watch %s: %v", w.id, err)
	}
	if err := w.s.Release(ctx, l); err != nil {
		w.t.Fatal(err)
	}
}

func (w *Watch) notification(kind, event string, i int) store.NewNotification {
	evidence := fmt.Sprintf("%064x", i+1)
	id := callback.WatchNotificationID(w.id, kind, evidence)
	env := callback.WatchEnvelope(w.route, callback.WatchSource(w.id, "terminal-x"), callback.Event{
		ID: id, Type: event, Body: fmt.Sprintf("%s %d", kind, i), RequiresResponse: true,
	})
	return store.NewNotification{
		NotificationID: id, Kind: kind, EvidenceFingerprint: evidence, ReasonCode: "seed", Callback: *Row(env, callback.LaneWatch, kind),
	}
}

// Row gives the columns of an envelope.
func Row(env callback.Envelope, lane, kind string) *store.NewCallback {
	return &store.NewCallback{
		DeliveryID: env.DeliveryID, IdempotencyKey: env.IdempotencyKey, Lane: lane, Kind: kind, MessageID: env.Event.ID,
		EventType: env.Event.Type, RequiresResponse: env.Event.RequiresResponse, Body: env.Event.Body, Envelope: env.Canonical(),
		RouteTransport: env.Route.Transport, RouteProfileID: env.Route.ProfileID, RouteProfileRevision: env.Route.ProfileRevision,
		RouteControllerSessionID: env.Route.ControllerSessionID,
	}
}

// Read gives a row as it stands.
func Read(t testing.TB, s *store.Store, delivery string) store.Callback {
	t.Helper()
	row, err := s.Callback(context.Background(), delivery)
	if err != nil {
		t.Fatal(err)
	}
	return row
}
