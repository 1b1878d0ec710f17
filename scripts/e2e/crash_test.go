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
	t.Parallel()
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
	t.Parallel()
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

// bridge ends between the reservation of an answer and the proof that the question
// moved on: the question is never answered again, and the Turn goes on when the
// person at the pane has answered. Proves core §13 row 11, and core 19.57's second
// half.
func TestCrash_Answer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point string
		sent  bool // the keys reached the agent
	}{
		{"interaction_reserved", false},
		{"interaction_executing", false},
		{"interaction_sent", true},
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t, withCrash("bridge", tc.point))
			pane := w.plan("0.171.0")
			h, rows := w.start(), w.rows()
			turn := w.send(pane, "SCN=ASKONE")["turn_id"]
			w.await(1)
			step := w.asked(turn, 1)
			answer := w.option(step, text(objects(w.question(step)["options"])[1]["label"]))
			answer["question_id"] = w.question(step)["question_id"]
			call := args{"turn_id": turn, "interaction_id": step["interaction_id"], "answers": []any{answer}}
			w.lost(h, "respond_interaction", call)
			w.again(h)
			if !tc.sent {
				w.eventually("the answer is in doubt", func() bool {
					all, err := rows.Interactions(t.Context(), text(turn))
					return err == nil && len(all) == 1 && all[0].State == "response_uncertain"
				})
				if r := w.first.try("respond_interaction", call); !r.Refused {
					t.Errorf("the answer was taken again: %s", r.Text)
				}
				if pane.Screen().Idle() {
					t.Error("the question is gone although no key was sent")
				}
				pane.Key("Enter")
			}
			w.eventually("the turn is idle", func() bool { return w.status(args{"turn_id": turn})["status"] == "idle" })
			w.once()
		})
	}
}

// watchd ends right behind the commit that settles a Watch: its notification stands
// in the same commit, and is delivered once. Proves core §13 row 22.
func TestCrash_WatchSettled(t *testing.T) {
	w := newWorld(t, withCrash("watchd", "watch_settled"))
	pane := w.codex("0.171.0")
	w.start()
	pane.Submit("SCN=GATE:watched")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("watched") == 1 })
	var watch args
	w.eventually("a watch can be had", func() bool {
		watch, _ = w.first.try("watch", args{"terminal_id": w.terminal(pane)}).Data["watch"].(args)
		return watch != nil
	})
	w.rig.Release("watched")
	if message := w.await(1)[0]; !strings.Contains(message.Body, text(watch["watch_id"])) || !strings.Contains(message.Body, "GATE answer watched") {
		t.Errorf("the callback:\n%s", message.Body)
	}
	w.eventually("the next watchd is up", func() bool { return len(w.programs("watchd")) == 1 })
	w.once()
}

// bridge ends when it has used an offer up and before anything else: nothing was
// pressed, and a fresh look offers the same prompt again. Proves core §13 row 23.
func TestCrash_OfferConsumed(t *testing.T) {
	w := newWorld(t, withCrash("bridge", "offer_consumed"))
	pane := w.codex("0.171.0")
	h := w.start()
	sent := w.send(pane, "SCN=EXEC:offer")
	w.await(1)
	w.approvable(sent["turn_id"])
	w.lost(h, "approve", args{"turn_id": sent["turn_id"]})
	w.again(h)
	w.refused("approve", args{"turn_id": sent["turn_id"]}, "offer_missing")
	pane.AwaitText("Would you like to run the following command?")
	w.approvable(sent["turn_id"])
	w.call("approve", args{"turn_id": sent["turn_id"]})
	w.await(2)
	if !made(pane, "approved-offer.txt") {
		t.Error("the command did not run")
	}
	w.once()
}

// bridge ends behind Enter into a pane whose conversation the background server
// holds: the Session is bound to its thread by the same evidence that proves the
// acceptance, and until then nobody else may send there. Proves core §13 row 24.
func TestCrash_ProvisionalAccepted(t *testing.T) {
	w := newWorld(t, withCrash("bridge", "enter_dispatched"))
	pane := w.daemonCodex()
	h, rows := w.start(), w.rows()
	const request = "SCN=SAY:bound"
	w.lost(h, "send", args{"terminal_id": w.terminal(pane), "request": request})
	if turn := w.turnOf(rows, request); turn.NativeThreadID != "" || turn.Status != "waiting_for_agent" {
		t.Errorf("behind the crash the turn is %s, its thread %q", turn.Status, turn.NativeThreadID)
	}
	w.again(h)
	turn := w.becomes(rows, request, "idle")
	bindings, err := rows.Bindings(t.Context(), turn.SessionID)
	if err != nil || len(bindings) != 1 || bindings[0].NativeThreadID == "" || bindings[0].NativeThreadID != turn.NativeThreadID {
		t.Errorf("thread of the turn %q, bindings %+v: %v", turn.NativeThreadID, bindings, err)
	}
	w.await(1)
	requireOnce(t, w, request)
}

// lost calls a tool whose bridge ends before it answers.
func (w *world) lost(h *host, tool string, a args) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), callWait)
	defer cancel()
	if r, err := h.Call(ctx, tool, a); err == nil {
		w.t.Fatalf("%s was answered: %s", tool, r.Text)
	}
	<-h.Exited()
}

// once wants every delivery started once.
func (w *world) once() {
	w.t.Helper()
	seen := map[string]int{}
	for _, a := range w.start().attempts() {
		if seen[a.DeliveryID]++; seen[a.DeliveryID] > 1 {
			w.t.Errorf("delivery %s was started %d times", a.DeliveryID, seen[a.DeliveryID])
		}
	}
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
