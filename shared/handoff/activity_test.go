package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
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
