package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"drawbridge/scripts/internal/inbox"
)

// bridge ends at each step of a submission, and is started again by its Host.
// The text is typed at most once, nothing is repeated, and the Turn ends as the
// crash table says. A Turn that reached the agent is called back once.
//
// Proves core 19.15: §13 rows 1-7.
func TestCrash_BridgeInSubmission(t *testing.T) {
	for _, tc := range []struct {
		point  string
		status string // where the Turn ends
		turns  int    // how often the model got the request
		called bool   // the Turn's end is told by a lifecycle callback
	}{
		{"prepared", "closed", 0, false},          // row 2
		{"terminal_recorded", "closed", 0, false}, // row 3
		{"input_marked", "stalled", 0, false},     // row 4
		{"text_pasted", "stalled", 0, false},      // row 4: the draft stands
		{"text_injected", "stalled", 0, false},    // row 5, Enter not sent
		{"enter_pressed", "idle", 1, true},        // row 5, Enter sent: acceptance is found
		{"enter_dispatched", "idle", 1, true},     // row 6
		{"agent_accepted", "idle", 1, true},       // row 7
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t, withCrash("bridge", tc.point))
			pane := w.codex("0.171.0")
			h := w.start()
			const request = "SCN=SAY:crashed"
			terminal := w.terminal(pane)
			ctx, cancel := context.WithTimeout(t.Context(), callWait)
			defer cancel()
			if _, err := h.Call(ctx, "send", args{"terminal_id": terminal, "request": request}); err == nil {
				t.Fatalf("send was answered; bridge did not end at %s", tc.point)
			}
			<-h.Exited()
			next := w.again(h)

			var turn args
			w.eventually("the turn is "+tc.status, func() bool {
				turn = onlyTurn(next.call("list", args{"all": true}))
				return turn != nil && next.call("status", args{"turn_id": turn["turn_id"]})["summary"].(args)["status"] == tc.status
			})
			if got := w.rig.Server.Turns(request); got != tc.turns {
				t.Errorf("the request reached the model %d times, want %d", got, tc.turns)
			}
			if tc.called {
				w.await(1)
			}
			if got := lifecycle(next); got != tc.called {
				t.Errorf("a lifecycle callback came: %v, want %v", got, tc.called)
			}
			// The pane is usable again once the record is closed.
			if tc.status == "stalled" {
				next.call("close", args{"turn_id": turn["turn_id"]})
			}
			if tc.turns == 0 && tc.status == "closed" {
				sent := w.send(pane, "SCN=SAY:after")
				w.awaitCallback(sent["turn_id"], "accepted")
			}
		})
	}
}

// watchd ends at each of its commits: the next one goes on, and the Host is
// called once. Proves core §13 rows 8 and 9.
func TestCrash_WatchdAtCompletion(t *testing.T) {
	for _, point := range []string{"completion_claimed", "approval_notified"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t, withCrash("watchd", point))
			pane := w.codex("0.171.0")
			request := "SCN=SAY:claimed"
			if point == "approval_notified" {
				request = "SCN=EXEC:claimed"
			}
			sent := w.send(pane, request)
			if point == "approval_notified" {
				w.await(1)
				pane.Key("y")
				w.await(2)
			} else {
				w.await(1)
			}
			w.eventually("the turn is idle", func() bool { return w.status(sent)["status"] == "idle" })
			want := 1
			if point == "approval_notified" {
				want = 2
			}
			time.Sleep(time.Second) // a doubled callback would come now
			if got := len(w.start().attempts()); got != want {
				t.Errorf("the callback executable was started %d times, want %d", got, want)
			}
		})
	}
}

// cancel sends its key and bridge dies before it can write that: the monitor
// ends the Turn by the agent's own record. Proves core §13 row 12.
func TestCrash_CancelSent(t *testing.T) {
	w := newWorld(t, withCrash("bridge", "interrupt_sent"))
	pane := w.codex("0.171.0")
	h := w.start()
	sent := w.send(pane, "SCN=GATE:cancelled")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("cancelled") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), callWait)
	defer cancel()
	if _, err := h.Call(ctx, "cancel", args{"turn_id": sent["turn_id"]}); err == nil {
		t.Fatal("cancel was answered")
	}
	<-h.Exited()
	w.again(h)
	w.eventually("the turn is failed", func() bool { return w.status(sent)["status"] == "failed" })
	w.await(1)
}

// close is committed before bridge dies: nothing is left to do. Row 13.
func TestCrash_CloseCommitted(t *testing.T) {
	w := newWorld(t, withCrash("bridge", "close_committed"))
	pane := w.codex("0.171.0")
	h := w.start()
	sent := w.send(pane, "SCN=GATE:closed")
	ctx, cancel := context.WithTimeout(t.Context(), callWait)
	defer cancel()
	if _, err := h.Call(ctx, "close", args{"turn_id": sent["turn_id"]}); err == nil {
		t.Fatal("close was answered")
	}
	<-h.Exited()
	w.again(h)
	if got := w.status(sent)["status"]; got != "closed" {
		t.Errorf("the turn is %v", got)
	}
	w.rig.Release("closed")
	pane.AwaitText("GATE answer closed")
	if got := len(w.start().attempts()); got != 0 {
		t.Errorf("a closed turn was called back %d times", got)
	}
	pane.AwaitIdle()
	next := w.send(pane, "SCN=SAY:next")
	w.awaitCallback(next["turn_id"], "accepted")
}

// onlyTurn finds the one Turn that list knows, wherever it stands.
func onlyTurn(list args) args {
	for _, u := range objects(list["unavailable_managed_turns"]) {
		return u
	}
	for _, row := range objects(list["terminals"]) {
		for _, b := range objects(row["blocking_turns"]) {
			return b
		}
		if m, ok := row["managed"].(args); ok {
			if cur, ok := m["current_turn"].(args); ok {
				return cur
			}
			if recent, ok := m["recent_turn"].(args); ok {
				return recent
			}
		}
	}
	return nil
}

// lifecycle reports whether any callback but a stall's was started.
func lifecycle(h *host) bool {
	h.w.t.Helper()
	messages, err := inbox.Messages(h.Inbox())
	if err != nil {
		h.w.t.Fatal(err)
	}
	for _, m := range messages {
		if !strings.Contains(m.Body, " is stalled: ") {
			return true
		}
	}
	return false
}

// status gives the summary of the Turn of a send.
func (w *world) status(sent args) args {
	w.t.Helper()
	summary, _ := w.call("status", args{"turn_id": sent["turn_id"]})["summary"].(args)
	return summary
}
