package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// human types into a pane as a person does.
func (p *pane) human(text string) {
	p.w.t.Helper()
	p.w.tmuxDo("send-keys", "-t", p.tid, "-l", text)
	time.Sleep(50 * time.Millisecond) // a person's pause before Enter
	p.w.tmuxDo("send-keys", "-t", p.tid, "Enter")
}

func (p *pane) watch() (handoff.WatchView, error) {
	p.w.t.Helper()
	out, err := p.w.desk.Watch(context.Background(), handoff.Call{}, handoff.WatchInput{TerminalID: p.id})
	if err != nil {
		return handoff.WatchView{}, err
	}
	return out.Body.(map[string]any)["watch"].(handoff.WatchView), nil
}

// waitWorking waits until list offers a watch of the pane.
func (p *pane) waitWorking() {
	p.w.t.Helper()
	testkit.Eventually(p.w.t, patience, func() bool {
		for _, r := range p.w.list().Terminals {
			if r.ID == p.id {
				_, ok := r.Actions["watch"]
				return ok
			}
		}
		return false
	}, "a watch is offered")
}

// lookout drives a Watch as watchd would until it settles.
func (w *world) lookout(id string) store.Watch {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lease, err := w.store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = w.store.Release(context.Background(), lease) }()
	row, err := w.store.Watch(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := w.desk.NewLookout(row, lease)
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		screen := w.capture(l.Pane())
		o, err := l.Observe(ctx, screen, screen == nil)
		if err != nil {
			w.t.Fatal(err)
		}
		if o.Done {
			break
		}
		time.Sleep(50 * time.Millisecond) // the poll
	}
	row, err = w.store.Watch(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// A Watch follows exactly the task that a human started. Proves tools 11.20 and
// core 19.35: nothing is typed.
func TestWatch_ExactTask(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	if _, err := p.watch(); !fault.Is(err, fault.ActionNotAdvertised) {
		t.Errorf("watch of an idle pane: %v", err)
	}
	gate := filepath.Join(w.dir, "gate")
	p.human("mine hold:" + gate)
	p.waitWorking()
	if p.row().Actions["watch"].Tool == "" {
		t.Error("watch is not advertised")
	}
	route := w.desk.Route
	w.desk.Route = nil // as at a shell: nobody could be told
	if p.row().Actions["watch"].Tool != "" {
		t.Error("watch is advertised to who cannot be called back")
	}
	w.desk.Route = route
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	if v.Mode != store.ModeExactTask || v.Confidence != "exact" || v.NativeThread == "" {
		t.Errorf("watch %+v", v)
	}
	_, err = p.watch()
	if f, ok := fault.As(err); !ok || f.Code != fault.ActiveWatchExists || f.Details["watch_id"] != v.ID {
		t.Errorf("second watch: %v", err)
	}
	before := p.screen()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	row := w.lookout(v.ID)
	if row.Status != store.WatchCompleted || !strings.Contains(row.CompletionText, "ECHO: mine") {
		t.Errorf("watch %+v", row)
	}
	rows, err := w.store.WatchCallbacks(context.Background(), v.ID)
	if err != nil || len(rows) != 1 || rows[0].EventType != "completed" {
		t.Errorf("callbacks %+v %v", rows, err)
	}
	if strings.Count(p.screen(), "mine") < strings.Count(before, "mine") {
		t.Error("the pane lost text")
	}
	out, err := w.desk.Unwatch(context.Background(), handoff.Call{}, handoff.UnwatchInput{WatchID: v.ID})
	if err != nil || out.Body.(map[string]any)["watch"].(handoff.WatchView).Status != store.WatchCompleted {
		t.Errorf("unwatch of a settled watch: %v", err)
	}
}

// Unwatch ends it, the task goes on, and a new Watch may start.
func TestWatch_Unwatch(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	p.human("mine hold:" + filepath.Join(w.dir, "never"))
	p.waitWorking()
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.desk.Unwatch(context.Background(), handoff.Call{}, handoff.UnwatchInput{WatchID: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Body.(map[string]any)["watch"].(handoff.WatchView); got.Status != store.WatchCancelled || got.Settlement.Reason != "manual_cancel" {
		t.Errorf("watch %+v", got)
	}
	if _, err := p.watch(); err != nil {
		t.Errorf("watch again: %v", err)
	}
	if _, err := w.desk.Unwatch(context.Background(), handoff.Call{}, handoff.UnwatchInput{WatchID: "turn-1"}); !fault.Is(err, fault.WrongIDKind) {
		t.Errorf("unwatch of a turn: %v", err)
	}
}

// The pane goes away: the Watch is invalidated once.
func TestWatch_PaneGone(t *testing.T) {
	w := newWorld(t)
	p, other := w.agent(), w.agent()
	p.human("mine hold:" + filepath.Join(w.dir, "never"))
	p.waitWorking()
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	w.tmuxDo("kill-pane", "-t", p.tid)
	if row := w.lookout(v.ID); row.Status != store.WatchInvalidated {
		t.Errorf("watch %+v", row)
	}
	_ = other
}

// Proves tools 11.19: work of a Turn is not watched; the refusal names the Turn.
func TestWatch_OfATurn(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	_, err := p.watch()
	if f, ok := fault.As(err); !ok || f.Code != fault.ActiveOwner || f.Details["turn_id"] != r.TurnID {
		t.Errorf("watch: %v", err)
	}
}

// An approval in a watched pane is told once, with no approval tool.
func TestWatch_Approval(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	p.human("ask mine")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Would you like") }, "dialog")
	p.waitWorking()
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	if v.Callback.Pending != 1 {
		t.Errorf("watch %+v", v)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "y")
	if row := w.lookout(v.ID); row.Status != store.WatchCompleted {
		t.Errorf("watch %+v", row)
	}
	notes, err := w.store.WatchNotifications(context.Background(), v.ID)
	if err != nil || len(notes) != 2 || notes[0].Kind != "approval" || notes[1].Kind != "completed" {
		t.Errorf("notifications %+v %v", notes, err)
	}
}
