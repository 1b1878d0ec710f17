package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

func TestSend_Done(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("say hello")
	turn := w.follow(r.TurnID)
	if turn.Status != store.TurnIdle {
		t.Fatalf("turn is %s (%s)", turn.Status, turn.StalledReason)
	}
	if got := p.typed("say hello"); got != 1 {
		t.Errorf("typed %d times", got)
	}
	rows := w.callbacks(r.TurnID)
	if len(rows) != 1 || rows[0].EventType != "done" || !strings.Contains(rows[0].Body, "ECHO: say hello") {
		t.Errorf("callbacks %+v", rows)
	}
	if _, fenced, err := w.store.Fence(context.Background(), turn.TerminalKey); err != nil || fenced {
		t.Errorf("fence left: %v %v", fenced, err)
	}

	// The Session goes on: strict, by its id, in the same thread.
	out, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{SessionID: r.SessionID, Request: "and again"})
	if err != nil {
		t.Fatal(err)
	}
	again := out.Body.(handoff.SendResult)
	if again.SessionID != r.SessionID || !again.Delivered {
		t.Errorf("second send %+v", again)
	}
	w.follow(again.TurnID)
}

// Who cannot be called back is not told to wait for it.
func TestSend_WithoutARoute(t *testing.T) {
	w := newWorld(t)
	w.desk.Route = nil
	if r := w.agent().mustSend("first"); r.CallbackExpected || r.Next.Action != "status" {
		t.Errorf("result %+v", r)
	}
}

func TestSend_Failure(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("fail please")
	if turn := w.follow(r.TurnID); turn.Status != store.TurnFailed {
		t.Fatalf("turn is %s", turn.Status)
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].EventType != "error" || !strings.Contains(rows[0].Body, "scripted failure") {
		t.Errorf("callbacks %+v", rows)
	}
}

// Proves tools 11.10, 11.11: the same call again replays; the same id with
// another text is a conflict; neither types.
func TestSend_Replay(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	call := newCall()
	in := handoff.SendInput{TerminalID: p.id, Request: "once only"}
	first, err := w.desk.Send(context.Background(), call, in)
	if err != nil {
		t.Fatal(err)
	}
	second, err := w.desk.Send(context.Background(), call, in)
	if err != nil {
		t.Fatal(err)
	}
	a, b := first.Body.(handoff.SendResult), second.Body.(handoff.SendResult)
	if !b.Replayed || a.TurnID != b.TurnID {
		t.Errorf("replay %+v of %+v", b, a)
	}
	in.Request = "something else"
	if _, err := w.desk.Send(context.Background(), call, in); !fault.Is(err, fault.IdempotencyConflict) {
		t.Errorf("other text: %v", err)
	}
	w.follow(a.TurnID)
	if n := p.typed("once only"); n != 1 {
		t.Errorf("typed %d times", n)
	}
	if n := p.typed("something else"); n != 0 {
		t.Errorf("the other text was typed")
	}
}

// Proves tools 11.12.
func TestSend_ConcurrentlyTheSame(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	call := newCall()
	in := handoff.SendInput{TerminalID: p.id, Request: "twice at once"}
	var wg sync.WaitGroup
	got := make([]handoff.SendResult, 2)
	for i := range got {
		wg.Go(func() {
			out, err := w.desk.Send(context.Background(), call, in)
			if err != nil {
				t.Errorf("send %d: %v", i, err)
				return
			}
			got[i] = out.Body.(handoff.SendResult)
		})
	}
	wg.Wait()
	if got[0].TurnID != got[1].TurnID {
		t.Errorf("two turns: %+v %+v", got[0], got[1])
	}
	w.follow(got[0].TurnID)
	if n := p.typed("twice at once"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}

// Proves tools 11.13, 11.15, 11.16: refusals before input leave nothing behind.
func TestSend_Refused(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	if _, err := w.desk.Send(ctx, newCall(), handoff.SendInput{Request: "to whom"}); !fault.Is(err, fault.TerminalAmbiguous) && !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("no pane: %v", err)
	}
	p := w.agent()
	long := strings.Repeat("x", handoff.MaxRequest+1)
	for _, tc := range []struct {
		name string
		in   handoff.SendInput
		want fault.Code
	}{
		{"slash", handoff.SendInput{TerminalID: p.id, Request: "/clear"}, fault.NativeSlashCommand},
		{"slash after blanks", handoff.SendInput{TerminalID: p.id, Request: " \n /status x"}, fault.NativeSlashCommand},
		{"slash in capitals", handoff.SendInput{TerminalID: p.id, Request: "/Fork"}, fault.NativeSlashCommand},
		{"shell", handoff.SendInput{TerminalID: p.id, Request: " !ls"}, fault.NativeSlashCommand},
		{"blank", handoff.SendInput{TerminalID: p.id, Request: " \n\t "}, fault.InvalidArguments},
		{"too long", handoff.SendInput{TerminalID: p.id, Request: long}, fault.InvalidArguments},
		{"control character", handoff.SendInput{TerminalID: p.id, Request: "a\x1bb"}, fault.InvalidArguments},
		{"no such pane", handoff.SendInput{TerminalID: strings.Replace(p.id, ":a1:", ":zz:", 1), Request: "x"}, fault.TerminalNotFound},
		{"another process", handoff.SendInput{TerminalID: p.id + "1", Request: "x"}, fault.TerminalChanged},
		{"not a terminal id", handoff.SendInput{TerminalID: "session-1", Request: "x"}, fault.WrongIDKind},
		{"no such session", handoff.SendInput{SessionID: "session-1", Request: "x"}, fault.NotFound},
		{"no such turn", handoff.SendInput{TurnID: "turn-1"}, fault.NotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := w.desk.Send(ctx, newCall(), tc.in)
			if got := fault.CodeOf(err); got != tc.want {
				t.Errorf("code %q, want %q (%v)", got, tc.want, err)
			}
		})
	}
	if turns, err := w.store.Turns(ctx, store.TurnFilter{Limit: 10}); err != nil || len(turns) != 0 {
		t.Errorf("turns left: %v %v", turns, err)
	}
	r := p.mustSend("a /clear in the middle is text")
	w.follow(r.TurnID)
	if n := p.typed("a /clear in the middle is text"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}

// A pane that cannot take a send is refused without a key.
func TestSend_PaneNotReady(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	for _, tc := range []struct {
		name string
		do   func()
		undo func()
		want fault.Code
	}{
		{"draft of a person", func() { w.tmuxDo("send-keys", "-t", p.tid, "-l", "half a thought") }, func() { w.tmuxDo("send-keys", "-t", p.tid, "C-u") }, fault.ComposerNotEmpty},
		{"synchronized panes", func() { w.tmuxDo("set-option", "-w", "-t", p.tid, "synchronize-panes", "on") }, func() { w.tmuxDo("set-option", "-w", "-t", p.tid, "synchronize-panes", "off") }, fault.TerminalNotIdle},
		{"copy mode", func() { w.tmuxDo("copy-mode", "-t", p.tid) }, func() { w.tmuxDo("send-keys", "-t", p.tid, "-X", "cancel") }, fault.TerminalNotIdle},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.do()
			defer tc.undo()
			testkit.Eventually(t, patience, func() bool {
				_, err := p.send("refused " + tc.name)
				return fault.Is(err, tc.want)
			}, "refusal "+string(tc.want))
			if n := p.typed("refused " + tc.name); n != 0 {
				t.Errorf("typed %d times", n)
			}
		})
	}
	two := w.agent()
	if _, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{Request: "to whom"}); !fault.Is(err, fault.TerminalAmbiguous) {
		t.Errorf("two panes: %v", err)
	}
	_ = two
}

// A second send to a pane whose Turn is open is refused; the first goes on.
func TestSend_Busy(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	r := p.mustSend("work hold:" + gate)
	if _, err := p.send("me too"); !fault.Is(err, fault.TerminalNotIdle) && !fault.Is(err, fault.ActiveOwner) && !fault.Is(err, fault.SessionBusy) {
		t.Errorf("second send: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s", turn.Status)
	}
	if n := p.typed("me too"); n != 0 {
		t.Errorf("typed %d times", n)
	}
}

// Enter that is not taken is proven and can be tried again by turn_id, once.
func TestSend_NotAcceptedThenRetried(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r, err := p.send("deaf ears")
	if err != nil {
		t.Fatal(err)
	}
	if r.Outcome != "not_accepted" || r.Delivered || !r.DoNotRetry {
		t.Fatalf("outcome %+v", r)
	}
	if turn := w.turn(r.TurnID); turn.Status != store.TurnStalled {
		t.Fatalf("turn is %s", turn.Status)
	}
	out, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{TurnID: r.TurnID})
	if err != nil {
		t.Fatal(err)
	}
	if again := out.Body.(handoff.SendResult); again.TurnID != r.TurnID || again.Outcome != "not_accepted" {
		t.Errorf("retry %+v", again)
	}
	if !strings.Contains(p.screen(), "deaf ears") || strings.Contains(p.screen(), "deaf earsdeaf") {
		t.Errorf("draft:\n%s", p.screen())
	}
}

// A busy machine's agent paints late what was pasted and comes late to Enter:
// neither is taken for a failure.
func TestSend_DullAgent(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	const request = "take your time paint:2500 dull:6000"
	if r, err := p.send(request); err != nil || r.Outcome != "agent_accepted" {
		t.Fatalf("%+v %v", r, err)
	}
	if n := p.typed(request); n != 1 {
		t.Errorf("typed %d times", n)
	}
}

// Proves tools 11.14: acceptance that is not seen is pending, and the monitor
// finds it later.
func TestSend_PendingThenAccepted(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r, err := p.send("slow late:7000")
	if err != nil {
		t.Fatal(err)
	}
	if r.Outcome != "pending_acceptance" || r.Delivered || !r.DoNotRetry {
		t.Fatalf("outcome %+v", r)
	}
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s: %s", turn.Status, turn.StalledReason)
	}
	if n := p.typed("slow late:7000"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}
