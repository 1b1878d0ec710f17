package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/rig"
)

// Four panes whose conversations one background server holds.
//
// The same text goes to all four at once: each is accepted exactly once and each
// Turn is called back once. Then one pane is cleared by its person and takes a
// task in its new thread. Then a pane is killed in mid-turn: the background
// server goes on, and the Turn ends as if nothing had been.
//
// One home for all steps: every start of the server copies 300 MB.
func TestDaemon_FourPanes(t *testing.T) {
	w := newWorld(t)
	var panes []*rig.Pane
	for range 4 {
		panes = append(panes, w.daemonCodex())
	}
	h := w.start()
	ids := make([]string, len(panes))
	for i, p := range panes {
		ids[i] = w.terminal(p)
	}
	accepted := 0

	t.Run("equal text at once", func(t *testing.T) {
		const request = "SCN=SAY:the_same"
		results := make([]demohost.Result, len(ids))
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), callWait)
				defer cancel()
				r, err := h.Call(ctx, "send", args{"terminal_id": id, "request": request})
				if err != nil {
					t.Errorf("send %d: %v", i, err)
				}
				results[i] = r
			})
		}
		wg.Wait()
		turns := map[string]bool{}
		for i, r := range results {
			if r.Data["submission_outcome"] != "agent_accepted" {
				t.Errorf("send %d: %s", i, r.Text)
			}
			turns[text(r.Data["turn_id"])] = true
		}
		if len(turns) != len(ids) {
			t.Fatalf("%d turns for %d sends", len(turns), len(ids))
		}
		accepted += len(ids)
		messages := w.await(accepted)
		for id := range turns {
			n := 0
			for _, m := range messages {
				if strings.Contains(m.Body, id) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%s has %d callbacks", id, n)
			}
		}
		if got := w.rig.Server.Turns(request); got != len(ids) {
			t.Errorf("the request reached the model %d times", got)
		}
	})

	t.Run("after clear", func(t *testing.T) {
		pane := panes[0]
		pane.AwaitIdle()
		before := managed(w.row(pane))["native_thread_id"]
		pane.Submit("/clear")
		pane.AwaitIdle()
		sent := w.send(pane, "SCN=SAY:cleared")
		w.awaitCallback(sent["turn_id"], "accepted")
		accepted++
		if after := managed(w.row(pane))["native_thread_id"]; after == before || after == nil {
			t.Errorf("thread before %v, after %v", before, after)
		}
	})

	t.Run("one thread in two panes", func(t *testing.T) {
		owner, guest := panes[1], panes[2]
		owner.AwaitIdle()
		guest.AwaitIdle()
		thread := text(managed(w.row(owner))["native_thread_id"])
		if thread == "" {
			t.Fatal("the owner's thread is not known")
		}
		guest.Submit("/resume " + thread)
		guest.AwaitText("Use session directory") // the panes have work trees of their own
		guest.Key("Enter")
		guest.AwaitText("the same")
		guest.AwaitIdle()
		r := h.try("send", args{"terminal_id": w.terminal(guest), "request": "SCN=SAY:shared"})
		// The request lands in a thread that the owner's Session holds: it is sent
		// once, and nobody is told that it can be followed.
		if r.Data["submission_outcome"] != "unfenced" || r.Data["do_not_retry"] != true {
			t.Errorf("send: %s", r.Text)
		}
		if got := w.rig.Server.Turns("SCN=SAY:shared"); got != 1 {
			t.Errorf("the request reached the model %d times", got)
		}
		h.call("close", args{"turn_id": r.Data["turn_id"]})
	})

	t.Run("pane killed in mid-turn", func(t *testing.T) {
		pane := panes[3]
		pane.AwaitIdle()
		sent := w.send(pane, "SCN=GATE:orphan")
		w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("orphan") == 1 })
		pane.Kill()
		w.rig.Release("orphan")
		w.awaitCallback(sent["turn_id"], "accepted")
		if got := w.status(sent)["status"]; got != "idle" {
			t.Errorf("the turn is %v", got)
		}
	})
}

// Without the control socket equal texts at once cannot be told apart: nothing is
// typed twice, and nobody is told what is not proven.
func TestDaemon_ControlOff(t *testing.T) {
	w := newWorld(t, withArgs("--codex-control", "off"))
	pane := w.daemonCodex()
	sent := w.send(pane, "SCN=SAY:plain")
	w.awaitCallback(sent["turn_id"], "accepted")
	again := w.send(pane, "SCN=SAY:again")
	w.awaitCallback(again["turn_id"], "accepted")
	if got := w.rig.Server.Turns("SCN=SAY:plain"); got != 1 {
		t.Errorf("the request reached the model %d times", got)
	}
}

func managed(row args) args {
	m, _ := row["managed"].(args)
	return m
}
