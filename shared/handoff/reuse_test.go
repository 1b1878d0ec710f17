package handoff_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// reborn ends the tmux server with all that runs in it and starts agents anew
// under the same socket, pane ids and session names: what a reader who looks at
// names alone cannot tell apart.
func (w *world) reborn(old ...*pane) []*pane {
	w.t.Helper()
	w.tmuxDo("kill-server")
	testkit.Eventually(w.t, patience, func() bool {
		return exec.Command("tmux", "-N", "-S", w.socket, "list-sessions").Run() != nil
	}, "the server ends")
	names := make([]string, len(old))
	for i, p := range old {
		names[i] = filepath.Base(filepath.Dir(p.home))
	}
	var out []*pane
	for i, o := range old {
		p := w.agent()
		if p.tid != o.tid {
			w.t.Fatalf("pane %s came again as %s", o.tid, p.tid)
		}
		w.tmuxDo("rename-session", "-t", p.tid, names[i])
		for _, r := range w.list().Terminals {
			if r.Workspace == p.work {
				p.id = r.ID
			}
		}
		out = append(out, p)
	}
	return out
}

// A tmux server ends with its agents, and the next one gives out the same pane
// ids. Nothing that belongs to the old panes reads or types into the new ones:
// the Turn is stalled, for its agent is proven dead, the Watch ends, and both
// panes take new work at once.
func TestReuse_PaneIDsOfANewServer(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	worked, watched := w.agent(), w.agent()
	r := worked.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	watched.human("mine hold:" + filepath.Join(w.dir, "never"))
	watched.waitWorking()
	v, err := watched.watch()
	if err != nil {
		t.Fatal(err)
	}
	m, release := w.monitor(r.TurnID)
	defer release()
	oldPane := m.Pane()

	fresh := w.reborn(worked, watched)
	if got := w.capture(oldPane); got != nil {
		t.Errorf("the pane of the old server shows %q", got.Text)
	}
	fresh[0].unchanged("what follows the old pane", func() {
		fresh[1].unchanged("what follows the old pane", func() {
			w.watchUntil(m, r.TurnID, store.TurnStalled)
			if row := w.lookout(v.ID); row.Status != store.WatchInvalidated || row.CompletionText != "" {
				t.Errorf("watch %+v", row)
			}
			longer := 5.0
			for name, call := range map[string]func() error{
				"status": func() error { _, err := w.desk.Status(ctx, handoff.StatusInput{TurnID: r.TurnID}); return err },
				"recover": func() error {
					if got := w.desk.Recover(ctx, ""); got.Status != "done" || got.Changed != 0 {
						t.Errorf("recover: %+v", got)
					}
					return nil
				},
			} {
				if err := call(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			for name, call := range map[string]func() error{
				"renew": func() error {
					_, err := w.desk.Renew(ctx, handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID, Minutes: &longer})
					return err
				},
				"cancel": func() error {
					_, err := w.desk.Cancel(ctx, handoff.Call{}, handoff.CancelInput{TurnID: r.TurnID})
					return err
				},
				"send to the old terminal id": func() error { _, err := worked.send("to the dead"); return err },
				"send to the old session": func() error {
					_, err := w.desk.Send(ctx, newCall(), handoff.SendInput{SessionID: r.SessionID, Request: "to the dead"})
					return err
				},
				"watch of the old terminal id": func() error { _, err := watched.watch(); return err },
			} {
				if f, ok := fault.As(call()); !ok || f.Code == fault.Internal || f.Input != "" && f.Input != fault.InputNone {
					t.Errorf("%s: %v", name, f)
				}
			}
		})
	})
	if rows := w.callbacks(r.TurnID); len(rows) != 1 || rows[0].Kind != "stall" {
		t.Errorf("callbacks %+v", rows)
	}
	for i, p := range fresh {
		if turn := w.follow(p.mustSend([]string{"one", "two"}[i]).TurnID); turn.Status != store.TurnIdle {
			t.Errorf("the new pane's turn is %s", turn.Status)
		}
	}
	if got := w.turn(r.TurnID); got.Status != store.TurnStalled {
		t.Errorf("the old turn is %s", got.Status)
	}
	if _, err := w.desk.Close(ctx, handoff.Call{}, handoff.CloseInput{TurnID: r.TurnID}); err != nil {
		t.Error(err)
	}
	if n, err := w.store.RepairFences(ctx); n != 0 || err != nil {
		t.Errorf("%d fences had to be repaired: %v", n, err)
	}
}

// The server is replaced between a send's proofs and its first byte: nothing is
// typed, and the submission is undone.
func TestReuse_InTheMiddleOfASend(t *testing.T) {
	w := newWorld(t)
	b := w.bend()
	p := w.agent()
	var fresh []*pane
	b.anchored = func() {
		b.anchored = nil
		fresh = w.reborn(p)
	}
	_, err := p.send("to whom")
	f, ok := fault.As(err)
	if !ok || f.Input != fault.InputNone && f.Input != "" {
		t.Errorf("send: %v", err)
	}
	if got := fresh[0].keys(); got != "" {
		t.Errorf("typed %q", got)
	}
	turns, err := w.store.Turns(context.Background(), store.TurnFilter{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, turn := range turns {
		if turn.Status != store.TurnClosed {
			t.Errorf("the turn is %s", turn.Status)
		}
	}
	b.read = func(r agent.Reading) agent.Reading { return r }
	w.follow(fresh[0].mustSend("now it goes").TurnID)
}
