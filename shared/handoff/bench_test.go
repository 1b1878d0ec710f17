package handoff_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// BenchmarkStatus reads an idle Turn: the Store and nothing else. scripts/bench
// compares the whole call with a bare MCP server.
func BenchmarkStatus(b *testing.B) {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: testkit.StoreDir(b), Program: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	rules, err := rule.Load("")
	if err != nil {
		b.Fatal(err)
	}
	desk := handoff.New(handoff.Options{
		Store: s, Agents: []agent.Adapter{codex.New(codex.Options{Rules: rules})}, RuntimeDir: testkit.RuntimeDir(b),
		Controller: controller, Log: slog.New(slog.DiscardHandler),
	})
	turn := idleTurn(b, s)
	// The same cancellable context that a call has: it costs the driver a goroutine.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		out, err := desk.Status(ctx, handoff.StatusInput{TurnID: turn})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := json.Marshal(out.Body); err != nil {
			b.Fatal(err)
		}
	}
}

// idleTurn makes a Turn that is completed, by the moves of bridge and watchd.
func idleTurn(b *testing.B, s *store.Store) string {
	b.Helper()
	ctx := context.Background()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	const message, key = "msg-1", "key-1"
	term, err := s.Acquire(ctx, store.TerminalLease(key), store.TerminalTTL)
	must(err)
	_, err = s.PrepareDispatch(ctx, term, store.NewDispatch{
		MessageID: message, ToolCallID: "call-1", Kind: store.KindTask, NewTurnID: "turn-1",
		Attach: store.Attach{
			NewSessionID: "session-1", NativeThreadID: "thread-1", Agent: "codex", Workspace: "/w",
			Binding: store.NewBinding{
				TerminalID: "terminal:v2:tmux:codex:1", TerminalKey: key, IncarnationKey: "inc-1", Endpoint: []byte(`{}`), PID: 7, Evidence: "bench",
			},
		},
		ControllerSessionID: controller, RequestText: "do it", BodyHash: "body", RequestHash: "request", Anchor: []byte(`{}`),
	})
	must(err)
	must(s.MarkInput(ctx, term, message))
	must(s.TextInjected(ctx, term, message))
	must(s.EnterDispatched(ctx, term, message))
	sub, err := s.AcceptDispatch(ctx, term, store.Acceptance{
		MessageID: message, NativeThreadID: "thread-1", Evidence: []byte(`{}`),
		Check: func(store.Dispatch, []byte) error { return nil },
	})
	must(err)
	mon, err := s.Acquire(ctx, store.MonitorLease(sub.Turn.ID, message), store.LeaseTTL)
	must(err)
	_, err = s.ClaimCompletion(ctx,
		store.Monitor{TurnID: sub.Turn.ID, MessageID: message, BindingGeneration: sub.Turn.BindingGeneration, Lease: mon},
		store.Completion{Fingerprint: "fp", Outcome: store.OutcomeSuccess})
	must(err)
	must(s.Release(ctx, mon, term))
	return sub.Turn.ID
}
