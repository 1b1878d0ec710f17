package handoff_test

import (
	"context"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// An answer inside a Turn goes the way of a send: once, with a receipt of its own,
// and followed to its end. Proves tools 11.13 for respond where it would type.
func TestRespond(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := p.mustSend("first").TurnID
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: first") }, "the answer")
	call := newCall()
	call.Tool = "agent_knock_knock_respond"
	in := handoff.RespondInput{TurnID: turn, Request: "the second one"}
	p.unchanged("an answer that nobody waits for", func() {
		if _, err := w.desk.Respond(ctx, call, in); !fault.Is(err, fault.TurnStatusInvalid) {
			t.Errorf("respond: %v", err)
		}
	})
	w.waitForController(turn)
	if a := w.status(turn).Actions["respond"]; a.Arguments["turn_id"] != turn {
		t.Errorf("action %+v", a)
	}
	p.unchanged("a command", func() {
		for _, text := range []string{"/clear", " \n /status x", " !ls", "  "} {
			if _, err := w.desk.Respond(ctx, newCall(), handoff.RespondInput{TurnID: turn, Request: text}); err == nil {
				t.Errorf("%q is typed", text)
			}
		}
	})
	out, err := w.desk.Respond(ctx, call, in)
	if err != nil {
		t.Fatal(err)
	}
	r := out.Body.(handoff.SendResult)
	if r.TurnID != turn || r.Outcome != "agent_accepted" || r.Message.Type != "answer" || r.Replayed {
		t.Errorf("result %+v", r)
	}
	p.unchanged("the same call again", func() {
		out, err := w.desk.Respond(ctx, call, in)
		if err != nil || !out.Body.(handoff.SendResult).Replayed {
			t.Errorf("again: %+v %v", out, err)
		}
		in.Request = "something else"
		if _, err := w.desk.Respond(ctx, call, in); !fault.Is(err, fault.IdempotencyConflict) {
			t.Errorf("another text: %v", err)
		}
	})
	got := w.follow(turn)
	if got.Status != store.TurnIdle || got.ResponseRoundsUsed != 1 {
		t.Errorf("turn %+v", got)
	}
	if n := p.typed("the second one"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}

// An answer does not go into the thread that a person switched the pane to.
func TestRespond_PaneShowsAnotherThread(t *testing.T) {
	w := newWorld(t)
	thread := ""
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return elsewhere{a.(agent.Native), &thread} })
	p := w.agent()
	turn := p.mustSend("first").TurnID
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: first") }, "the answer")
	w.waitForController(turn)
	thread = foreign
	if a := w.status(turn).Actions["respond"]; a.Tool != "" {
		t.Errorf("advertised: %+v", a)
	}
	p.unchanged("an answer", func() {
		_, err := w.desk.Respond(context.Background(), newCall(), handoff.RespondInput{TurnID: turn, Request: "the second one"})
		if !fault.Is(err, fault.TerminalChanged) {
			t.Errorf("respond: %v", err)
		}
	})
}

// A dialog is not answered with words.
func TestRespond_AtAnApproval(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := p.asked("ask me")
	p.unchanged("an answer", func() {
		_, err := w.desk.Respond(context.Background(), newCall(), handoff.RespondInput{TurnID: turn, Request: "yes"})
		if !fault.Is(err, fault.ApprovalPending) {
			t.Errorf("respond: %v", err)
		}
	})
}

// waitForController makes a Turn wait without any prompt, as for an agent that
// asked in words.
func (w *world) waitForController(turn string) {
	w.t.Helper()
	ctx := context.Background()
	t := w.turn(turn)
	lease, err := w.store.Acquire(ctx, store.MonitorLease(turn, t.CurrentMessageID), store.LeaseTTL)
	if err != nil {
		w.t.Fatal(err)
	}
	_, _, err = w.store.QuestionNotified(ctx,
		store.Monitor{TurnID: turn, MessageID: t.CurrentMessageID, BindingGeneration: t.BindingGeneration, Lease: lease},
		store.NewInteraction{
			InteractionID: "i-" + turn, State: "resolved", PromptFingerprint: "p", SurfaceID: "s", StepIndex: 1, StepTotal: 1,
			Projection: []byte(`{}`), Plan: []byte(`{}`), OwnerSession: controller, ProcessKey: "k", ExpiresAt: 1,
		})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.store.Release(ctx, lease); err != nil {
		w.t.Fatal(err)
	}
}
