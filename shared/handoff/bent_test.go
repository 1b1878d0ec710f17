package handoff_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// bent is the adapter with an eye or a hand of the test's own.
type bent struct {
	agent.Adapter
	progress func(agent.Progress) agent.Progress
	read     func(agent.Reading) agent.Reading
	anchored func() // called when an anchor was taken, under the terminal lease
	class    agent.Class
}

func (b *bent) Find(ctx context.Context, p terminal.Pane) (agent.Process, error) {
	proc, err := b.Adapter.Find(ctx, p)
	if err == nil && b.class != "" {
		proc.Class = b.class
	}
	return proc, err
}

func (b *bent) Progress(ctx context.Context, t agent.Task, from agent.Position) (agent.Progress, error) {
	p, err := b.Adapter.Progress(ctx, t, from)
	if err == nil && b.progress != nil {
		p = b.progress(p)
	}
	return p, err
}

func (b *bent) Read(version string, s terminal.Screen) agent.Reading {
	r := b.Adapter.Read(version, s)
	if b.read != nil {
		r = b.read(r)
	}
	return r
}

func (b *bent) Anchor(ctx context.Context, p agent.Process) (agent.Anchor, error) {
	a, err := b.Adapter.Anchor(ctx, p)
	if b.anchored != nil {
		b.anchored()
	}
	return a, err
}

// bend makes the world's Desk one whose adapter is bent.
func (w *world) bend() *bent {
	w.t.Helper()
	b := &bent{}
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { b.Adapter = a; return b })
	return b
}

// observe looks n times at a Turn with its screen, and wants it to stay open.
func (w *world) observe(m *handoff.Monitor, turn string, n int) {
	w.t.Helper()
	for i := range n {
		o, err := m.Observe(context.Background(), w.capture(m.Pane()))
		if err != nil || o.Done {
			w.t.Fatalf("observation %d: %+v %v", i, o, err)
		}
	}
	if got := w.turn(turn); got.Status == store.TurnIdle || got.ClosedAt != 0 || len(w.callbacks(turn)) != 0 {
		w.t.Fatalf("turn %+v, callbacks %+v", got, w.callbacks(turn))
	}
}

// Proves core 19.24: a completion that reads otherwise each time is none; the
// first two equal readings are.
func TestMonitor_TwoEqualReadings(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	n, steady := 0, false
	b.progress = func(p agent.Progress) agent.Progress {
		if n++; p.State == agent.Completed && !steady {
			p.Fingerprint = fmt.Sprintf("%s-%d", p.Fingerprint, n%2)
		}
		return p
	}
	r := p.mustSend("say hello")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: say hello") }, "the answer")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.observe(m, r.TurnID, 20)
	steady = true
	w.watchUntil(m, r.TurnID, store.TurnIdle)
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].EventType != "done" {
		t.Errorf("callbacks %+v", rows)
	}
}

// Proves core 19.25: a screen that shows an idle agent, again and again, is no
// end of a task that has none on record.
func TestMonitor_IdleScreenIsNoEnd(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	gate := filepath.Join(w.dir, "gate")
	r := p.mustSend("work hold:" + gate)
	b.read = func(agent.Reading) agent.Reading {
		return agent.Reading{State: agent.Idle, Composer: agent.Composer{Seen: true, Empty: true}}
	}
	m, release := w.monitor(r.TurnID)
	w.observe(m, r.TurnID, 20)
	release()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s", turn.Status)
	}
}

// An agent that wrote its answer and died is done, not stalled, although nobody
// looked before it was gone. Proves core 19.29.
func TestMonitor_DeadAgentWithACompletion(t *testing.T) {
	w := newWorld(t)
	p, _ := w.agent(), w.agent() // the second keeps the tmux server alive
	r := p.mustSend("say goodbye")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: say goodbye") }, "the answer")
	w.tmuxDo("kill-pane", "-t", p.tid)
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s (%s)", turn.Status, turn.StalledReason)
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].EventType != "done" || rows[0].Lane != store.LaneLifecycle {
		t.Errorf("callbacks %+v", rows)
	}
}

// Proves core 19.27's first part: a Turn whose agent works on and on, with new
// records all the time, ends at its hard lifetime.
func TestMonitor_HardLifetimeEndsABusyTurn(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	var n atomic.Int64
	b.progress = func(p agent.Progress) agent.Progress {
		p.Digest = fmt.Sprint(p.Digest, n.Add(1)) // never quiet
		return p
	}
	quiet, hard := 0.01, 0.05 // minutes
	out, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{
		TerminalID: p.id, Request: "work hold:" + filepath.Join(w.dir, "never"), AgentTimeoutMinutes: &quiet, AgentHardTimeoutMinutes: &hard,
	})
	if err != nil {
		t.Fatal(err)
	}
	turn := w.follow(out.Body.(handoff.SendResult).TurnID)
	if turn.Status != store.TurnStalled || !strings.Contains(turn.StalledReason, "hard lifetime") {
		t.Errorf("turn is %s (%s)", turn.Status, turn.StalledReason)
	}
}

// A pane that vanishes with the task's end on record: the Watch is completed.
// Proves core 19.32, also where the end is written between the reading and the
// look for the pane.
func TestWatch_CompletionWinsOverLoss(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"the end was there": false, "the end comes during the look": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := w.bend()
			p, _ := w.agent(), w.agent()
			gate := filepath.Join(w.dir, "gate")
			p.human("mine hold:" + gate)
			p.waitWorking()
			v, err := p.watch()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: mine") }, "the answer")
			w.tmuxDo("kill-pane", "-t", p.tid)
			reads := 0
			b.progress = func(p agent.Progress) agent.Progress {
				if reads++; late && reads == 1 {
					return agent.Progress{State: agent.Open}
				}
				return p
			}
			row := w.lookout(v.ID)
			if row.Status != store.WatchCompleted || !strings.Contains(row.CompletionText, "ECHO: mine") {
				t.Errorf("watch %+v", row)
			}
			if notes, err := w.store.WatchNotifications(context.Background(), v.ID); err != nil || len(notes) != 1 || notes[0].Kind != "completed" {
				t.Errorf("notifications %+v %v", notes, err)
			}
		})
	}
}

// Proves core 19.5's second half: a send whose lease ran out while the process
// stood still, after it had proven everything, types nothing.
func TestSend_SuspendedPastTheLease(t *testing.T) {
	w := newWorld(t)
	var jump atomic.Int64
	s, err := store.Open(context.Background(), store.Options{
		Dir: testkit.StoreDir(t), Program: "test",
		Boot: func() (int64, string) { return 1_000_000 + jump.Load() + time.Now().UnixMilli(), "boot" },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.store = s
	b, p := w.bend(), w.agent()
	b.anchored = func() { jump.Add((store.TerminalTTL + time.Second).Milliseconds()) }
	before := p.keys()
	if _, err := p.send("too late"); !fault.Is(err, fault.LeaseLost) && !fault.Is(err, fault.TerminalBusy) {
		t.Errorf("send: %v", err)
	}
	b.anchored = nil
	if got := p.keys(); got != before {
		t.Errorf("typed %q", strings.TrimPrefix(got, before))
	}
	r := p.mustSend("in time")
	w.follow(r.TurnID)
}

// Proves tools 11.17: a Session whose process holds several threads cannot be
// sent to by its id, for nobody knows which one is shown; the pane itself can.
func TestSend_SessionOfSeveralThreads(t *testing.T) {
	w := newWorld(t)
	w.env = []string{"SCRIPTED_THREADS=2"}
	p := w.agent()
	r := p.mustSend("first")
	w.follow(r.TurnID)
	before := p.keys()
	_, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{SessionID: r.SessionID, Request: "second"})
	if code := fault.CodeOf(err); code != fault.IdentityUnverified && code != fault.DeferredTransfer {
		t.Errorf("send: %v", err)
	}
	if got := p.keys(); got != before {
		t.Errorf("typed %q", strings.TrimPrefix(got, before))
	}
	again := p.mustSend("third") // follows what is shown
	w.follow(again.TurnID)
	if n := p.typed("third"); n != 1 {
		t.Errorf("typed %d times", n)
	}
}
