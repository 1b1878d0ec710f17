package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// watchUntil observes a Turn until its status is want.
func (w *world) watchUntil(m *handoff.Monitor, turn string, want string) store.Turn {
	w.t.Helper()
	return w.observeUntil(m, turn, want, func() *terminal.Screen { return w.capture(m.Pane()) })
}

// quietUntil is watchUntil without a screen: one that shows work is proof of life.
func (w *world) quietUntil(m *handoff.Monitor, turn string, want string) store.Turn {
	w.t.Helper()
	return w.observeUntil(m, turn, want, func() *terminal.Screen { return nil })
}

func (w *world) observeUntil(m *handoff.Monitor, turn string, want string, screen func() *terminal.Screen) store.Turn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := m.Observe(ctx, screen()); err != nil {
			w.t.Fatal(err)
		}
		if t := w.turn(turn); t.Status == want {
			return t
		}
		time.Sleep(50 * time.Millisecond) // the poll of a monitor
	}
	w.t.Fatalf("turn is %s, want %s", w.turn(turn).Status, want)
	return store.Turn{}
}

// An approval is told once, the human's decision in the pane is noticed, and the
// Turn goes on. Proves core 19.34's Turn side: the same prompt is told once.
func TestMonitor_ApprovalSeenAndDecidedInThePane(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("ask for it")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	for range 5 {
		if _, err := m.Observe(context.Background(), w.capture(m.Pane())); err != nil {
			t.Fatal(err)
		}
	}
	rows := w.callbacks(r.TurnID)
	if len(rows) != 1 || rows[0].EventType != "question" || !rows[0].RequiresResponse || !strings.Contains(rows[0].Body, "touch /tmp/scripted") {
		t.Fatalf("callbacks %+v", rows)
	}
	for _, row := range w.list().Terminals {
		if row.ApprovalState.Blocked != true || row.ScreenState != "awaiting_approval" {
			t.Errorf("row %+v", row)
		}
	}
	if _, err := p.send("while it asks"); !fault.Is(err, fault.ApprovalPending) {
		t.Errorf("send at an approval: %v", err)
	}

	w.tmuxDo("send-keys", "-t", p.tid, "y")
	w.watchUntil(m, r.TurnID, store.TurnIdle)
	rows = w.callbacks(r.TurnID)
	if len(rows) != 2 || rows[1].EventType != "done" && rows[0].EventType != "done" {
		t.Errorf("callbacks %+v", rows)
	}
}

// A second monitor after a crash knows the open prompt: it does not tell it
// again, nor take it for answered, which would drop a callback that still waits.
func TestMonitor_ApprovalSurvivesRestart(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("ask for it")
	m, release := w.monitor(r.TurnID)
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	release()

	again, release := w.monitor(r.TurnID)
	defer release()
	for range 3 {
		if _, err := again.Observe(context.Background(), w.capture(again.Pane())); err != nil {
			t.Fatal(err)
		}
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].Status != store.CallbackPending {
		t.Errorf("callbacks %+v", rows)
	}
	if got := w.turn(r.TurnID).Status; got != store.TurnWaitingForController {
		t.Errorf("turn is %s", got)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "Escape")
	w.watchUntil(again, r.TurnID, store.TurnFailed)
}

// The same dialog again, after it was seen to go while its call stayed open, is
// another request: the user is told again (core §11.1, notified to cleared). A
// screen that only hides the dialog is not taken for its end.
func TestMonitor_ApprovalAskedAgain(t *testing.T) {
	w := newWorld(t)
	b := w.bend()
	p := w.agent()
	r := p.mustSend("ask for it")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	shows := func(s agent.State) {
		b.read = func(agent.Reading) agent.Reading { return agent.Reading{State: s} }
		for range 3 {
			if _, err := m.Observe(context.Background(), w.capture(m.Pane())); err != nil {
				t.Fatal(err)
			}
		}
		b.read = nil
	}
	for _, hidden := range []agent.State{agent.Unknown, agent.Blocked, agent.NotReady} {
		if shows(hidden); w.turn(r.TurnID).Status != store.TurnWaitingForController {
			t.Fatalf("behind %s the dialog counts as gone", hidden)
		}
	}
	if shows(agent.Working); w.turn(r.TurnID).Status == store.TurnWaitingForController {
		t.Fatal("an agent at work still waits")
	}
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	rows := w.callbacks(r.TurnID)
	if len(rows) != 2 || rows[0].DeliveryID == rows[1].DeliveryID {
		t.Fatalf("callbacks %+v", rows)
	}
	if a, b := rows[0].Status, rows[1].Status; a+b != store.CallbackSuperseded+store.CallbackPending && a+b != store.CallbackPending+store.CallbackSuperseded {
		t.Errorf("callbacks are %s and %s", a, b)
	}
}

// An agent that says in between that it does not wait, while its dialog stands
// there, is told again: what was told may have been withdrawn before it was sent.
func TestMonitor_ApprovalBehindAFlicker(t *testing.T) {
	w := newWorld(t)
	b := w.bend()
	p := w.agent()
	r := p.mustSend("ask for it")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	for told := 2; told <= 3; told++ {
		b.progress = func(p agent.Progress) agent.Progress {
			p.Waiting, p.Calls = nil, nil
			return p
		}
		if got := w.quietUntil(m, r.TurnID, store.TurnWaitingForAgent); got.ClosedAt != 0 {
			t.Fatalf("turn %+v", got)
		}
		b.progress = nil
		w.quietUntil(m, r.TurnID, store.TurnWaitingForController) // without waiting for a poll
		open := 0
		rows := w.callbacks(r.TurnID)
		for _, row := range rows {
			if row.Status == store.CallbackPending {
				open++
			}
		}
		if len(rows) != told || open != 1 {
			t.Fatalf("%d callbacks, %d of them to be sent: %+v", len(rows), open, rows)
		}
	}
	w.tmuxDo("send-keys", "-t", p.tid, "y")
	w.watchUntil(m, r.TurnID, store.TurnIdle)
}

// A dialog of whose call the agent does not say that it waits is told once it has
// stood there for a while, for the person at the pane alone; a glimpse of one is not.
func TestMonitor_ApprovalUnsaid(t *testing.T) {
	w := newWorld(t)
	b := w.bend()
	p := w.agent()
	b.progress = func(p agent.Progress) agent.Progress {
		p.Unsaid, p.Calls, p.Waiting = p.Calls, nil, nil
		return p
	}
	r := p.mustSend("ask for it")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "touch /tmp/scripted") }, "the dialog")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.observe(m, r.TurnID, 2)
	w.desk.Now = func() time.Time { return time.Now().Add(4 * time.Second) }
	b.read = func(agent.Reading) agent.Reading { return agent.Reading{State: agent.Working} }
	w.observe(m, r.TurnID, 1)
	b.read = nil
	w.observe(m, r.TurnID, 1)
	w.desk.Now = func() time.Time { return time.Now().Add(8 * time.Second) }
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	for _, screen := range []*terminal.Screen{nil, w.capture(m.Pane()), nil} {
		if _, err := m.Observe(context.Background(), screen); err != nil {
			t.Fatal(err)
		}
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].EventType != "blocked" || !strings.Contains(rows[0].Body, "touch /tmp/scripted") {
		t.Fatalf("callbacks %+v", rows)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "y")
	w.watchUntil(m, r.TurnID, store.TurnIdle)
}

// A questionnaire of which the agent does not say that it waits is told likewise.
func TestMonitor_QuestionUnsaid(t *testing.T) {
	w := newWorld(t)
	b := w.bend()
	p := w.agent()
	b.progress = func(p agent.Progress) agent.Progress {
		p.Unsaid, p.Calls, p.Waiting = p.Calls, nil, nil
		return p
	}
	r := p.mustSend("quiz for me")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.row().ApprovalState.Reason, "question") }, "the page")
	m, release := w.monitor(r.TurnID)
	defer release()
	w.observe(m, r.TurnID, 2)
	if rows := w.callbacks(r.TurnID); len(rows) != 0 {
		t.Fatalf("told at once: %+v", rows)
	}
	w.desk.Now = func() time.Time { return time.Now().Add(4 * time.Second) }
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	if _, err := m.Observe(context.Background(), w.capture(m.Pane())); err != nil {
		t.Fatal(err)
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].EventType != "question" {
		t.Fatalf("callbacks %+v", rows)
	}
	if strings.Count(p.keys(), "\r") != 1 {
		t.Errorf("keys %q", p.keys())
	}
}

// A dead agent without a durable completion is stalled. Proves core 19.28: one
// stall, one notification.
func TestMonitor_AgentDies(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	keeper := w.agent() // keeps the tmux server alive
	r := p.mustSend("quit in the middle")
	turn := w.follow(r.TurnID)
	if turn.Status != store.TurnStalled || !strings.Contains(turn.StalledReason, "ended") {
		t.Fatalf("turn is %s (%s)", turn.Status, turn.StalledReason)
	}
	rows := w.callbacks(r.TurnID)
	if len(rows) != 1 || rows[0].EventType != "error" || rows[0].Lane != store.LaneNotification {
		t.Errorf("callbacks %+v", rows)
	}
	found := false
	for _, u := range w.list().Unavailable {
		if u.TurnID != r.TurnID {
			continue
		}
		found = true
		_, renew := u.Actions["renew"]
		_, end := u.Actions["close"]
		if renew || !end {
			t.Errorf("actions of a Turn whose process ended: %v", u.Actions)
		}
	}
	if !found {
		t.Error("the Turn is not among those without a pane")
	}
	if _, err := w.desk.Renew(context.Background(), handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID}); !fault.Is(err, fault.TerminalNotFound) && !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("renew: %v", err)
	}
	_ = keeper
}

// Proves core 19.27 and tools 11.31: hard wins over inactivity; renew restarts
// only inactivity.
func TestMonitor_Lifetimes(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	tiny := 0.0005 // minutes
	out, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{TerminalID: p.id, Request: "work hold:" + gate, AgentTimeoutMinutes: &tiny})
	if err != nil {
		t.Fatal(err)
	}
	r := out.Body.(handoff.SendResult)
	m, release := w.monitor(r.TurnID)
	turn := w.quietUntil(m, r.TurnID, store.TurnStalled)
	release()
	if !strings.Contains(turn.StalledReason, "nothing moved") {
		t.Errorf("reason %q", turn.StalledReason)
	}
	longer := 5.0
	if _, err := w.desk.Renew(context.Background(), handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID, Minutes: &longer}); err != nil {
		t.Fatal(err)
	}
	if got := w.turn(r.TurnID); got.HardDeadlineAt != turn.HardDeadlineAt {
		t.Errorf("renew moved the hard deadline")
	}
	if _, err := w.desk.Renew(context.Background(), handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID}); !fault.Is(err, fault.TurnStatusInvalid) {
		t.Errorf("second renew: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s", turn.Status)
	}

	both := 0.0005
	out, err = w.desk.Send(context.Background(), newCall(), handoff.SendInput{TerminalID: p.id, Request: "more hold:" + gate + "2", AgentTimeoutMinutes: &both, AgentHardTimeoutMinutes: &both})
	if err != nil {
		t.Fatal(err)
	}
	r = out.Body.(handoff.SendResult)
	if turn := w.follow(r.TurnID); turn.Status != store.TurnStalled || !strings.Contains(turn.StalledReason, "hard lifetime") {
		t.Errorf("turn is %s (%s)", turn.Status, turn.StalledReason)
	}
	if _, err := w.desk.Renew(context.Background(), handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID}); err == nil {
		t.Error("renew past the hard lifetime was allowed")
	}
	st, err := w.desk.Status(context.Background(), handoff.StatusInput{TurnID: r.TurnID})
	if err != nil {
		t.Fatal(err)
	}
	if acts := st.Body.(handoff.TurnStatus).Actions; acts["renew"].Tool != "" || acts["close"].Tool == "" {
		t.Errorf("actions past the hard lifetime: %v", acts)
	}
}

// Proves tools 11.32: cancel sends one interrupt and leaves the pane alive.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	out, err := w.desk.Cancel(context.Background(), handoff.Call{}, handoff.CancelInput{TurnID: r.TurnID})
	if err != nil {
		t.Fatal(err)
	}
	if c := out.Body.(handoff.CancelResult); !c.Requested || c.Keys != "Escape" {
		t.Errorf("result %+v", c)
	}
	if turn := w.turn(r.TurnID); turn.Status != store.TurnCancelled {
		t.Errorf("turn is %s", turn.Status)
	}
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Conversation interrupted") }, "interrupt")
	if _, err := w.desk.Cancel(context.Background(), handoff.Call{}, handoff.CancelInput{TurnID: r.TurnID}); !fault.Is(err, fault.TurnStatusInvalid) {
		t.Errorf("second cancel: %v", err)
	}
	again := p.mustSend("still there")
	w.follow(again.TurnID)
}

// Proves tools 11.33, 11.34 and core 19.14's visible side: close supersedes what
// is not accepted, a stale message id changes nothing, the pane is free again.
func TestClose(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("ask for it")
	m, release := w.monitor(r.TurnID)
	w.watchUntil(m, r.TurnID, store.TurnWaitingForController)
	release()
	if _, err := w.desk.Close(context.Background(), handoff.Call{}, handoff.CloseInput{TurnID: r.TurnID, ExpectedMessageID: "msg-stale"}); err == nil {
		t.Error("a stale message id closed the turn")
	}
	if turn := w.turn(r.TurnID); turn.Status != store.TurnWaitingForController {
		t.Errorf("turn is %s", turn.Status)
	}
	before := p.screen()
	out, err := w.desk.Close(context.Background(), handoff.Call{}, handoff.CloseInput{TurnID: r.TurnID, Reason: "not needed"})
	if err != nil {
		t.Fatal(err)
	}
	if c := out.Body.(handoff.CloseResult); !c.Closed || !c.Resolved {
		t.Errorf("result %+v", c)
	}
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].Status != store.CallbackSuperseded {
		t.Errorf("callbacks %+v", rows)
	}
	if p.screen() != before {
		t.Error("close changed the pane")
	}
	if _, fenced, err := w.store.Fence(context.Background(), w.turn(r.TurnID).TerminalKey); err != nil || fenced {
		t.Errorf("fence left: %v %v", fenced, err)
	}
}
