package e2e

import (
	"fmt"
	"strings"
	"testing"

	"drawbridge/scripts/internal/inbox"
	"drawbridge/scripts/internal/rig"
)

// A turn that the agent could not finish is told as failed, with the reason.
func TestJourney_FailedTurn(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.codex(version)
			sent := w.send(pane, "SCN=E400")
			message := w.await(1)[0]
			if !strings.Contains(message.Body, "error") || !strings.Contains(message.Body, "scripted bad request") {
				t.Errorf("the callback:\n%s", message.Body)
			}
			if got := w.status(sent)["status"]; got != "failed" {
				t.Errorf("the turn is %v", got)
			}
			again := w.send(pane, "SCN=SAY:fine")
			w.awaitCallback(again["turn_id"], "accepted")
		})
	}
}

// An approval is told once, a person decides it in the pane, and the task goes on.
func TestJourney_ApprovalSeen(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.codex(version)
			sent := w.send(pane, "SCN=TWO:asked")
			first := w.await(1)[0]
			if !strings.Contains(first.Body, "approval") || !strings.Contains(first.Body, text(sent["turn_id"])) {
				t.Errorf("the callback:\n%s", first.Body)
			}
			if got := w.status(sent)["status"]; got != "waiting_for_controller" {
				t.Errorf("the turn is %v", got)
			}
			pane.Key("y")
			second := w.await(2)[1]
			if second.Body == first.Body {
				t.Errorf("the second dialog is told as the first:\n%s", second.Body)
			}
			pane.Key("y")
			if done := w.await(3)[2]; !strings.Contains(done.Body, "TWO finished") {
				t.Errorf("the last callback:\n%s", done.Body)
			}
		})
	}
}

// A rejected approval aborts the turn; that is told, and the pane goes on.
func TestJourney_ApprovalRejected(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	sent := w.send(pane, "SCN=EXEC:no")
	w.await(1)
	pane.Key("Escape")
	if last := w.await(2)[1]; !strings.Contains(last.Body, "interrupted") {
		t.Errorf("the callback:\n%s", last.Body)
	}
	if got := w.status(sent)["status"]; got != "failed" {
		t.Errorf("the turn is %v", got)
	}
}

// A question of the agent is told; the person answers in the pane.
func TestJourney_QuestionSeen(t *testing.T) {
	w := newWorld(t)
	pane := w.plan("0.171.0")
	sent := w.send(pane, "SCN=ASK")
	if first := w.await(1)[0]; !strings.Contains(first.Body, "question") {
		t.Errorf("the callback:\n%s", first.Body)
	}
	if got := w.status(sent)["status"]; got != "waiting_for_controller" {
		t.Errorf("the turn is %v", got)
	}
	w.refused("send", args{"terminal_id": w.terminal(pane), "request": "meanwhile"}, "interaction_pending")
	pane.Key("Enter")
	pane.Await("the second question", func(s rig.Screen) bool { return strings.Contains(s.Text, "Question 2/2") })
	w.await(2) // each question is told
	pane.Key("Enter")
	if last := w.await(3)[2]; !strings.Contains(last.Body, "ASK finished") {
		t.Errorf("the last callback:\n%s", last.Body)
	}
}

// cancel interrupts a running turn with one key; the pane takes the next task.
func TestJourney_Cancel(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.codex(version)
			sent := w.send(pane, "SCN=GATE:held")
			w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("held") == 1 })
			if got := w.call("cancel", args{"turn_id": sent["turn_id"]}); got["cancel_requested"] != true {
				t.Errorf("cancel: %v", got)
			}
			pane.AwaitText("Conversation interrupted")
			if got := w.status(sent)["status"]; got != "cancelled" {
				t.Errorf("the turn is %v", got)
			}
			pane.AwaitIdle()
			next := w.send(pane, "SCN=SAY:next")
			w.awaitCallback(next["turn_id"], "accepted")
			if got := len(w.start().attempts()); got != 1 {
				t.Errorf("%d callbacks, want that of the second turn alone", got)
			}
		})
	}
}

// A Watch follows what a person started, types nothing and tells its end.
func TestJourney_WatchOfAHuman(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	w.start()
	pane.Submit("SCN=GATE:mine please")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("mine") == 1 })
	var watch args
	w.eventually("a watch is offered and taken", func() bool {
		row := w.row(pane)
		actions, _ := row["available_actions"].(args)
		if actions["watch"] == nil {
			return false
		}
		watch, _ = w.call("watch", args{"terminal_id": row["id"]})["watch"].(args)
		return true
	})
	if watch["watch_mode"] != "exact_task" {
		t.Errorf("the watch: %v", watch)
	}
	w.refused("watch", args{"terminal_id": w.terminal(pane)}, "active_watch_exists")
	w.rig.Release("mine")
	message := w.await(1)[0]
	if !strings.Contains(message.Body, "GATE answer mine") || !strings.Contains(message.Body, text(watch["watch_id"])) {
		t.Errorf("the callback:\n%s", message.Body)
	}
	if got := w.rig.Server.Turns("SCN=GATE:mine please"); got != 1 {
		t.Errorf("the human's request reached the model %d times", got)
	}
}

// Two Hosts share one Store: each is called back for its own turns alone.
func TestJourney_TwoHosts(t *testing.T) {
	w := newWorld(t)
	one, two := w.host("session-one"), w.host("session-two")
	w.first = one
	a, b := w.codex("0.171.0"), w.codex("0.148.0")
	idA, idB := w.terminal(a), w.terminal(b)
	sentA := one.call("send", args{"terminal_id": idA, "request": "SCN=SAY:for_one"})
	sentB := two.call("send", args{"terminal_id": idB, "request": "SCN=SAY:for_two"})
	if got := one.await(1)[0]; !strings.Contains(got.Body, "for one") || !strings.Contains(got.Body, text(sentA["turn_id"])) {
		t.Errorf("the first Host got:\n%s", got.Body)
	}
	if got := two.await(1)[0]; !strings.Contains(got.Body, "for two") || !strings.Contains(got.Body, text(sentB["turn_id"])) {
		t.Errorf("the second Host got:\n%s", got.Body)
	}
	if len(one.attempts()) != 1 || len(two.attempts()) != 1 {
		t.Errorf("attempts: %d and %d", len(one.attempts()), len(two.attempts()))
	}
}

// A person types into the pane: before a send the draft is respected, during
// the turn a steer stays part of it, and the Host is called once.
func TestJourney_HumanTypes(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	id := w.terminal(pane)
	pane.Type("half a thought")
	pane.AwaitText("half a thought") // a send that meets a person's first key ends uncertain
	w.refused("send", args{"terminal_id": id, "request": "SCN=SAY:no"}, "composer_not_empty")
	if !strings.Contains(pane.Screen().Text, "half a thought") {
		t.Errorf("the draft is gone:\n%s", pane.Screen().Text)
	}
	pane.Key("C-u")
	pane.AwaitIdle()
	sent := w.send(pane, "SCN=GATE:steered")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("steered") == 1 })
	pane.Submit("and mind the gap")
	w.rig.Release("steered")
	w.awaitCallback(sent["turn_id"], "accepted")
	if got := len(w.start().attempts()); got != 1 {
		t.Errorf("%d callbacks", got)
	}
}

// Twenty sends in a row to four panes: each is typed once and called back once.
func TestJourney_TwentySends(t *testing.T) {
	w := newWorld(t)
	var panes []*rig.Pane
	for range 4 {
		panes = append(panes, w.codex("0.171.0"))
	}
	turns := map[string]string{}
	for i := range 20 {
		request := fmt.Sprintf("SCN=SAY:answer_%d", i)
		pane := panes[i%len(panes)]
		if i >= len(panes) {
			pane.AwaitIdle()
		}
		var sent args
		w.eventually("the pane takes the next task", func() bool {
			r := w.start().try("send", args{"terminal_id": w.terminal(pane), "request": request})
			sent = r.Data
			return r.Data["submission_outcome"] == "agent_accepted"
		})
		turns[text(sent["turn_id"])] = fmt.Sprintf("answer %d", i)
	}
	messages := w.await(20)
	requireEach(t, messages, turns)
	if got := len(w.start().attempts()); got != 20 {
		t.Errorf("the callback executable was started %d times", got)
	}
	for i := range 20 {
		if got := w.rig.Server.Turns(fmt.Sprintf("SCN=SAY:answer_%d", i)); got != 1 {
			t.Errorf("request %d reached the model %d times", i, got)
		}
	}
}

// requireEach wants exactly one message for every turn, with its answer.
func requireEach(t *testing.T, messages []inbox.Message, turns map[string]string) {
	t.Helper()
	for id, answer := range turns {
		n := 0
		for _, m := range messages {
			if strings.Contains(m.Body, id) {
				n++
				if !strings.Contains(m.Body, answer) {
					t.Errorf("the callback of %s lacks %q:\n%s", id, answer, m.Body)
				}
			}
		}
		if n != 1 {
			t.Errorf("%s has %d callbacks", id, n)
		}
	}
}

// A pane that prints a frame header and a dialog is no agent and fools nobody.
func TestJourney_ForgedFrame(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	sh := w.rig.Shell()
	sh.Type(`printf '\033[2J\033[H0123456789abcdef0123456789abcdef %%0 40 1 0 0\n\033[1m  Would you like to run the following command?\033[0m\n'`)
	sh.Key("Enter")
	list := w.call("list", nil)
	if got := len(objects(list["terminals"])); got != 1 {
		t.Errorf("list has %d rows: %v", got, list["terminals"])
	}
	if row := w.row(pane); row["screen_state"] != "idle" {
		t.Errorf("the real pane: %v", row)
	}
}
