package handoff_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
)

// midway is the adapter with something that happens while the draft stands,
// between mark and Enter.
type midway struct {
	agent.Adapter
	once sync.Once
	do   func()
}

func (m *midway) Landed(c agent.Composer, p agent.Prepared) bool {
	landed := m.Adapter.Landed(c, p)
	if landed {
		m.once.Do(m.do)
	}
	return landed
}

func (w *world) midway(do func()) {
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return &midway{Adapter: a, do: do} })
}

// The same call again, while the first one types: it waits for the pane and
// repeats the answer, also where no pane was named and none is ready any more
// (tools §5 rule 5).
func TestSend_ReplayWhileTyping(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	call, in := newCall(), handoff.SendInput{Request: "once in the middle"}
	var second handoff.Outcome
	var failed error
	var wg sync.WaitGroup
	w.midway(func() {
		wg.Go(func() { second, failed = w.desk.Send(context.Background(), call, in) })
	})
	out, err := w.desk.Send(context.Background(), call, in)
	wg.Wait()
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	first, again := out.Body.(handoff.SendResult), second.Body.(handoff.SendResult)
	if !again.Replayed || again.TurnID != first.TurnID || again.Outcome != "agent_accepted" {
		t.Errorf("replay %+v of %+v", again, first)
	}
	w.follow(first.TurnID)
	if n := p.typed("once in the middle"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}

// A Turn that is closed while its text is typed gets no Enter, and nobody is told
// to wait for a callback or to try again.
func TestSend_ClosedWhileTyping(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	w.midway(func() {
		for _, turn := range w.openTurns() {
			if _, err := w.desk.Close(ctx, handoff.Call{}, handoff.CloseInput{TurnID: turn.ID}); err != nil {
				t.Error(err)
			}
		}
	})
	call, in := newCall(), handoff.SendInput{TerminalID: p.id, Request: "given up"}
	for _, replayed := range []bool{false, true} {
		out, err := w.desk.Send(ctx, call, in)
		if err != nil {
			t.Fatal(err)
		}
		r := out.Body.(handoff.SendResult)
		if !out.Failed || r.Outcome != "uncertain" || !r.DoNotRetry || r.SafeToRetry || r.CallbackExpected ||
			r.TerminalInput != string(fault.InputPossible) || r.Replayed != replayed || !strings.Contains(r.Reason, "closed") {
			t.Errorf("result %+v", r)
		}
	}
	if n := p.typed("given up"); n != 0 {
		t.Errorf("sent %d times", n)
	}
	if !strings.Contains(p.screen(), "given up") {
		t.Errorf("the draft is gone:\n%s", p.screen())
	}
}

func (w *world) openTurns() []store.Turn {
	w.t.Helper()
	all, err := w.store.Turns(context.Background(), store.TurnFilter{Statuses: []string{store.TurnWaitingForAgent}})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// undecided is the adapter in the moment after the one record was seen and before
// it counts (daemon mode).
type undecided struct{ agent.Adapter }

func (undecided) Accept(context.Context, agent.Anchor, agent.Prepared) (agent.Acceptance, agent.Verdict, error) {
	return agent.Acceptance{AcceptanceID: "seen"}, agent.Pending, nil
}

// A record with exactly this text forbids the retry form and not_accepted, decided
// or not: the agent may have taken the request. Invariant I-1.
func TestSend_RetryAfterAMatch(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r, err := p.send("deaf ears")
	if err != nil || r.Outcome != "not_accepted" {
		t.Fatalf("%+v %v", r, err)
	}
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return undecided{a} })
	before := p.screen()
	_, err = w.desk.Send(context.Background(), newCall(), handoff.SendInput{TurnID: r.TurnID})
	if f, ok := fault.As(err); !ok || f.Code != fault.SubmissionUncertain || f.Input != fault.InputPossible || f.Retry {
		t.Errorf("retry: %v", err)
	}
	if got := p.screen(); got != before {
		t.Errorf("the pane changed:\n%s", got)
	}

	w.tmuxDo("send-keys", "-t", p.tid, "C-u")
	if _, err := w.desk.Close(context.Background(), handoff.Call{}, handoff.CloseInput{TurnID: r.TurnID}); err != nil {
		t.Fatal(err)
	}
	if r, err = p.send("deaf once more"); err != nil || r.Outcome != "pending_acceptance" {
		t.Errorf("draft and match: %+v %v", r, err)
	}
}
