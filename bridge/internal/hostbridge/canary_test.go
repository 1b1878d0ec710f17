package hostbridge_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/callback"
	"drawbridge/shared/profile"
	"drawbridge/shared/store"
)

// fill writes two Turns, one of them done, and a Watch into the Store that the
// bridge will open. Every column that grants something, or names a place, holds
// a canary.
func (w *world) fill() {
	w.t.Helper()
	ctx := context.Background()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	db, err := store.Open(ctx, store.Options{Dir: w.path("marksdir/store"), Program: "CANARY-holder"})
	must(err)
	defer db.Close()
	starter, err := profile.Parse(profile.Starter())
	must(err)
	captured, err := profile.Capture(starter, profile.Source{}, "my-agent", "1.8.0", []string{"MY_AGENT_SESSION_ID=" + sessionValue})
	must(err)
	route, err := callback.ParseRoute(captured.Route.Canonical())
	must(err)
	secret := func(what string) []byte {
		return fmt.Appendf(nil, `{"version":1,"token":"CANARY-%s","path":"/h/.codex/sessions/CANARY-%s.jsonl"}`, what, what)
	}
	for _, n := range []string{"1", "2"} {
		term, err := db.Acquire(ctx, store.TerminalLease("CANARY-key-"+n), store.TerminalTTL)
		must(err)
		sub, err := db.PrepareDispatch(ctx, term, store.NewDispatch{
			MessageID: "msg-" + n, ToolCallID: "call-CANARY-" + n, Kind: store.KindTask, NewTurnID: "turn-" + n,
			Attach: store.Attach{
				NewSessionID: "session-" + n, NativeThreadID: "thread-" + n, Agent: "codex", Workspace: "/w",
				Binding: store.NewBinding{
					TerminalID: "terminal:v2:tmux:codex:work:0." + n + ":77" + n, TerminalKey: "CANARY-key-" + n, IncarnationKey: "CANARY-incarnation-" + n,
					Endpoint: secret("endpoint"), PID: 770, Evidence: "CANARY-evidence",
				},
			},
			ControllerSessionID: route.ControllerSessionID, Route: route.Canonical(), RequestText: "count the planks",
			BodyHash: "CANARY-body-" + n, RequestHash: "CANARY-request-" + n, Anchor: secret("anchor"),
		})
		must(err)
		id := "msg-" + n
		must(db.MarkInput(ctx, term, id))
		must(db.TextInjected(ctx, term, id))
		must(db.EnterDispatched(ctx, term, id))
		sub, err = db.AcceptDispatch(ctx, term, store.Acceptance{
			MessageID: id, NativeThreadID: "thread-" + n, Evidence: secret("acceptance"),
			Check: func(store.Dispatch, []byte) error { return nil },
		})
		must(err)
		if n == "1" {
			mon, err := db.Acquire(ctx, store.MonitorLease(sub.Turn.ID, id), store.LeaseTTL)
			must(err)
			env := callback.TurnEnvelope(route, callback.TurnSource(sub.Session.ID, sub.Turn.ID), callback.Event{
				ID: callback.TerminalMessageID(sub.Turn.ID, id, "CANARY-print", "success"), Type: callback.EventDone, Body: "twelve planks",
			})
			_, err = db.ClaimCompletion(ctx,
				store.Monitor{TurnID: sub.Turn.ID, MessageID: id, BindingGeneration: sub.Turn.BindingGeneration, Lease: mon},
				store.Completion{Fingerprint: "CANARY-print", Outcome: store.OutcomeSuccess, Detail: secret("detail"), Callback: &store.NewCallback{
					DeliveryID: env.DeliveryID, IdempotencyKey: env.IdempotencyKey, Lane: callback.LaneLifecycle, Kind: "completion", MessageID: env.Event.ID,
					EventType: env.Event.Type, Body: env.Event.Body, Envelope: env.Canonical(), RouteTransport: route.Transport,
					RouteProfileID: route.ProfileID, RouteProfileRevision: route.ProfileRevision, RouteControllerSessionID: route.ControllerSessionID,
				}})
			must(err)
			must(db.Release(ctx, mon))
		} else {
			mon, err := db.Acquire(ctx, store.MonitorLease(sub.Turn.ID, id), store.LeaseTTL)
			must(err)
			ref := store.Monitor{TurnID: sub.Turn.ID, MessageID: id, BindingGeneration: sub.Turn.BindingGeneration, Lease: mon}
			_, _, err = db.ApprovalNotified(ctx, ref, store.NewApproval{
				Fingerprint: "CANARY-approval", ScreenDigest: "CANARY-screen", RequestID: "CANARY-call", EvidenceFingerprint: "CANARY-shown", Detail: secret("asked"),
			})
			must(err)
			_, _, err = db.QuestionNotified(ctx, ref, store.NewInteraction{
				InteractionID: "interaction-1", State: "manual_required", PromptFingerprint: "CANARY-prompt", SurfaceID: "CANARY-surface", StepIndex: 1, StepTotal: 1,
				Projection: []byte(`{"kind":"questionnaire","state":"manual_required"}`), Plan: secret("plan"), OwnerSession: route.ControllerSessionID,
				ProcessKey: "CANARY-process", ExpiresAt: time.Now().Add(time.Hour).UnixMilli(),
			})
			must(err)
			must(db.Release(ctx, mon))
		}
		must(db.Release(ctx, term))
	}
	term, err := db.Acquire(ctx, store.TerminalLease("CANARY-watched"), store.TerminalTTL)
	must(err)
	_, err = db.CreateWatch(ctx, term, store.NewWatch{
		WatchID: "terminal-watch-1", Agent: "codex", Mode: store.ModeTerminalActivity, TerminalID: "terminal:v2:tmux:codex:work:0.9:779",
		TerminalKey: "CANARY-watched", Endpoint: secret("place"), Workspace: "/w", BindingToken: "CANARY-binding", IdentityFingerprint: "CANARY-identity",
		Anchor: secret("watch"), AnchorFingerprint: "CANARY-anchor", Checkpoint: secret("checkpoint"),
		ControllerSessionID: route.ControllerSessionID, Route: route.Canonical(), Lifetime: time.Hour.Milliseconds(),
	})
	must(err)
	must(db.Release(ctx, term))
}

// Proves tools 11.6 and host-profile 15.37 with the program: every tool, on a
// Store full of canaries, says none of them, and neither does the log.
func TestServe_NoCanary(t *testing.T) {
	w := newWorld(t)
	w.fill()
	w.start(w.args)
	w.initialize()
	w.eventually("siblings up", func() bool { return w.siblings()["watchd"] == "up" })
	turn := func(n string) string { return `"turn_id":"turn-` + n + `"` }
	calls := []string{
		"list " + `{}`, "list " + `{"all":true,"terminalDebug":true}`,
		"status {" + turn("1") + `,"trace":true}`, "status {" + turn("2") + `,"trace":true}`,
		"status " + `{"watch_id":"terminal-watch-1"}`, "status " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"send " + `{"session_id":"session-1","request":"go on"}`, "send " + `{"request":"go on"}`, "send {" + turn("2") + `}`,
		"send " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771","request":"go on"}`,
		"watch " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"respond {" + turn("1") + `,"request":"x"}`, "respond {" + turn("2") + `,"request":"x"}`,
		"approve {" + turn("1") + `}`, "approve {" + turn("2") + `}`, "approve {" + turn("2") + `,"decision":"reject"}`,
		"approve " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"respond_interaction {" + turn("2") + `,"interaction_id":"interaction-1","answers":[{"question_id":"q1","response_kind":"confirm","confirm":true}]}`,
		"respond_interaction " + `{"watch_id":"terminal-watch-1","interaction_id":"interaction-1","answers":[{"question_id":"q1","response_kind":"free_text","text":"x"}]}`,
		"native_inspect " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771","inspection":"status"}`,
		"identify_foreground " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"identify_and_send " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771","request":"go on"}`,
		"list_resumable_threads " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"new_thread " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771"}`,
		"resume_thread " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771","native_thread_id":"0198f3a1-0000-7000-8000-0123456789ab"}`,
		"reconcile_binding " + `{"terminal_id":"terminal:v2:tmux:codex:work:0.1:771","conflicting_session_id":"session-2"}`,
		"cancel {" + turn("2") + `}`, "renew {" + turn("2") + `}`, "retry_callback {" + turn("1") + `}`,
		"unwatch " + `{"watch_id":"terminal-watch-1"}`, "status " + `{"watch_id":"terminal-watch-1"}`,
		"close {" + turn("2") + `,"expected_message_id":"msg-9"}`, "close {" + turn("2") + `}`, "close {" + turn("1") + `}`,
		"status {" + turn("1") + `}`, "list " + `{"all":true}`,
	}
	said := ""
	for i, call := range calls {
		name, arguments, _ := strings.Cut(call, " ")
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"agent_knock_knock_%s","arguments":%s}}`, i, name, arguments))
		line := w.line()
		if !strings.Contains(line, fmt.Sprintf(`"id":%d`, i)) {
			t.Fatalf("%s: %s", call, line)
		}
		if strings.Contains(line, "CANARY") || strings.Contains(line, w.path("marksdir")) || strings.Contains(line, ".codex/sessions") {
			t.Errorf("%s says:\n%s", call, line)
		}
		said += line
	}
	// The rows were really shown.
	for _, want := range []string{"turn-1", "session-2", "terminal-watch-1", "count the planks"} {
		if !strings.Contains(said, want) {
			t.Errorf("no result shows %q", want)
		}
	}
	w.in.Close()
	if err := w.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if strings.Contains(w.stderr.String(), "CANARY") {
		t.Errorf("the log says:\n%s", w.stderr)
	}
}
