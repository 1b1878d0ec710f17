package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// vague is the adapter where no open turn can be told: Codex's daemon without its
// control socket.
type vague struct{ agent.Adapter }

func (vague) Current(context.Context, agent.Process) (agent.Task, bool, error) {
	return agent.Task{}, false, nil
}

// A Watch without an exact task ends when the pane stood idle on two looks after
// work, says that it is a guess, and tells no text (core §7, terminal_activity).
func TestWatch_Activity(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return vague{a} })
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	p.human("mine hold:" + gate)
	p.waitWorking()
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	if v.Mode != store.ModeTerminalActivity || v.Confidence != "best_effort" || len(v.Warnings) != 1 {
		t.Errorf("watch %+v", v)
	}
	lease, err := w.store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	row, err := w.store.Watch(ctx, v.ID)
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.desk.NewLookout(row, lease)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // at work, also without a screen
		for _, look := range []bool{true, false} {
			screen := w.capture(l.Pane())
			if !look {
				screen = nil
			}
			if o, err := l.Observe(ctx, screen, false); err != nil || o.Done {
				t.Fatalf("at work: %+v %v", o, err)
			}
		}
	}
	if err := w.store.Release(ctx, lease); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end := w.lookout(v.ID)
	if end.Status != store.WatchCompleted || end.SettledReason != "terminal_activity_ended" || end.CompletionText != "" {
		t.Errorf("watch %+v", end)
	}
	rows, err := w.store.WatchCallbacks(ctx, v.ID)
	if err != nil || len(rows) != 1 || strings.Contains(rows[0].Body, "ECHO") {
		t.Errorf("callbacks %+v %v", rows, err)
	}
}

// Proof of life that was seen but not written, because the last writing was not
// long ago, counts when the inactivity time seems to be over (core §6 item 3). A
// screen that shows work is such proof.
func TestMonitor_ActivityNotWritten(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	r := p.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	var ahead time.Duration
	w.desk.Now = func() time.Time { return time.Now().Add(ahead) }
	m, release := w.monitor(r.TurnID)
	defer release()
	w.watchUntil(m, r.TurnID, store.TurnRunning)
	testkit.Eventually(t, patience, func() bool { // written, and at rest
		before := w.turn(r.TurnID).Revision
		if _, err := m.Observe(ctx, nil); err != nil {
			t.Fatal(err)
		}
		return w.turn(r.TurnID).Revision == before
	})
	written := w.turn(r.TurnID).LastActivityAt

	ahead = 2 * time.Minute
	if _, err := m.Observe(ctx, w.capture(m.Pane())); err != nil {
		t.Fatal(err)
	}
	if got := w.turn(r.TurnID).LastActivityAt; got != written {
		t.Fatalf("activity was written after two minutes: %d", got-written)
	}
	ahead = 61 * time.Minute
	if _, err := m.Observe(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if turn := w.turn(r.TurnID); turn.Status != store.TurnRunning || turn.LastActivityAt == written {
		t.Errorf("an hour after the writing the turn is %s: %s", turn.Status, turn.StalledReason)
	}
	ahead = 63 * time.Minute
	if _, err := m.Observe(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if turn := w.turn(r.TurnID); turn.Status != store.TurnStalled || !strings.Contains(turn.StalledReason, "nothing moved") {
		t.Errorf("an hour after the sight the turn is %s: %s", turn.Status, turn.StalledReason)
	}
}
