package e2e

import (
	"fmt"
	"strings"
	"testing"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/rig"
)

// The first journey with Claude Code, in both versions: a task is given, the Host
// goes on, and is called back once with the answer; the next task goes the same way.
func TestClaude_Done(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			pane := w.claude(version)
			row := w.row(pane)
			if row["agent"] != "claude" || row["screen_state"] != "idle" || row["agent_version"] != version {
				t.Fatalf("the pane's row: %v", row)
			}
			const request = "How many planks? SCN=SLOW:1/It_has_twelve."
			sent := w.give(pane, request)
			if sent["delivered"] != true || sent["callback_expected"] != true {
				t.Errorf("send: %v", sent)
			}
			message := w.await(1)[0]
			for _, want := range []string{"It has twelve.", text(sent["turn_id"]), text(sent["session_id"])} {
				if !strings.Contains(message.Body, want) {
					t.Errorf("the callback does not hold %q:\n%s", want, message.Body)
				}
			}
			requireOnce(t, w, request)
			pane.AwaitIdle()
			again := w.give(pane, "SCN=RUN:1")
			if message := w.await(2)[1]; !strings.Contains(message.Body, "RUN finished") || !strings.Contains(message.Body, text(again["turn_id"])) {
				t.Errorf("the second callback:\n%s", message.Body)
			}
		})
	}
}

// What the provider refuses is told as failed, with the reason, and the pane goes on.
func TestClaude_FailedTurn(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			sent := w.give(pane, "SCN=E400")
			message := w.await(1)[0]
			if !strings.Contains(message.Body, "scripted bad request") {
				t.Errorf("the callback:\n%s", message.Body)
			}
			if got := w.status(sent)["status"]; got != "failed" {
				t.Errorf("the turn is %v", got)
			}
			pane.AwaitIdle()
			again := w.give(pane, "SCN=SAY:fine")
			w.awaitCallback(again["turn_id"], "accepted")
		})
	}
}

// cancel interrupts an answer that has begun with one key; the pane takes the next
// task. One that has not begun leaves the request in the composer, which is told,
// and is not cleared.
func TestClaude_Cancel(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			sent := w.give(pane, "SCN=STREAM:100")
			pane.AwaitText("line 3 of the streamed answer")
			if got := w.call("cancel", args{"turn_id": sent["turn_id"]}); got["cancel_requested"] != true {
				t.Errorf("cancel: %v", got)
			}
			pane.AwaitText("Interrupted")
			w.eventually("the turn is cancelled", func() bool { return w.status(sent)["status"] == "cancelled" })
			pane.AwaitIdle()
			next := w.give(pane, "SCN=SAY:next")
			w.awaitCallback(next["turn_id"], "accepted")

			pane.AwaitIdle()
			sent = w.give(pane, "SCN=GATE:held")
			w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("held") == 1 })
			if got := w.call("cancel", args{"turn_id": sent["turn_id"]}); got["cancel_requested"] != true {
				t.Errorf("cancel: %v", got)
			}
			w.eventually("the turn is cancelled", func() bool { return w.status(sent)["status"] == "cancelled" })
			pane.AwaitStatus("idle")
			if s := pane.Screen(); !strings.Contains(s.Text, "SCN=GATE:held") || s.Composer.Empty {
				t.Errorf("the request is not in the composer:\n%s", s.Text)
			}
			w.refused("send", args{"terminal_id": w.terminal(pane), "request": "SCN=SAY:no"}, "composer_not_empty")
			if got := len(w.start().attempts()); got != 1 {
				t.Errorf("%d callbacks, want that of the finished turn alone", got)
			}
		})
	}
}

// A Watch follows what a person started, types nothing and tells its end.
func TestClaude_WatchOfAHuman(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
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
	w.rig.Release("mine")
	message := w.await(1)[0]
	if !strings.Contains(message.Body, "GATE answer mine") || !strings.Contains(message.Body, text(watch["watch_id"])) {
		t.Errorf("the callback:\n%s", message.Body)
	}
	if got := w.rig.Server.Turns("SCN=GATE:mine please"); got != 1 {
		t.Errorf("the human's request reached the model %d times", got)
	}
}

// Three panes in one directory, of one home, are told apart by what each process
// registers: every request reaches its own pane.
func TestClaude_ThreePanesOneDirectory(t *testing.T) {
	w := newWorld(t)
	panes := []*rig.Pane{w.claude("2.1.332")}
	for range 2 {
		panes = append(panes, w.rig.Claude("2.1.332", rig.ClaudeOptions{Home: panes[0].Home, Dir: panes[0].Dir}))
	}
	turns := map[string]string{}
	for i, pane := range panes {
		sent := w.give(pane, fmt.Sprintf("SCN=SAY:from_pane_%d", i))
		turns[text(sent["turn_id"])] = fmt.Sprintf("from pane %d", i)
	}
	requireEach(t, w.await(len(panes)), turns)
	for i, pane := range panes {
		pane.AwaitText(fmt.Sprintf("from pane %d", i))
		if got := w.rig.Server.Turns(fmt.Sprintf("SCN=SAY:from_pane_%d", i)); got != 1 {
			t.Errorf("request %d reached the model %d times", i, got)
		}
	}
	if n := len(w.rig.Server.Threads()); n != len(panes) {
		t.Errorf("the requests reached %d sessions: %v", n, w.rig.Server.Threads())
	}
}

// A long request is shown by the agent as a mark in place of the text, and still
// reaches the model as it is.
func TestClaude_LongRequests(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			for i, tc := range []struct{ name, request string }{
				{"three lines", "SCN=SAY:lines\nof three\nrows"},
				{"four lines", "SCN=SAY:lines\nof\nfour\nrows"},
				{"800 characters", padded(800)},
				{"801 characters", padded(801)},
				{"wide and combined", "SCN=SAY:wide 漢字 e\u0301 👩‍💻 ende"},
				{"tabs and blanks", "  SCN=SAY:blanks\n\tindented\n    four"},
				{"many lines", "SCN=SAY:many\n" + strings.Repeat("a row of text with a few words\n", 60) + "end"},
			} {
				pane.AwaitIdle()
				sent := w.give(pane, tc.request)
				if message := w.await(i + 1)[i]; !strings.Contains(message.Body, text(sent["turn_id"])) {
					t.Errorf("%s: the callback:\n%s", tc.name, message.Body)
				}
				if got := len(w.rig.Server.Threads()); got != 1 {
					t.Errorf("%s: %d sessions", tc.name, got)
				}
			}
			if got := w.rig.Server.Turns("SCN=SAY:lines\nof\nfour\nrows"); got != 1 {
				t.Errorf("the pasted request reached the model %d times as it is", got)
			}
		})
	}
}

// give gives the pane a task. On a busy machine the pane may not stand still in
// time, which may be tried again, and the agent may record the task later than a
// call waits; the record must come.
func (w *world) give(p *rig.Pane, request string) args {
	w.t.Helper()
	var r demohost.Result
	id := w.terminal(p)
	w.eventually("the pane takes a task", func() bool {
		r = w.start().try("send", args{"terminal_id": id, "request": request})
		return r.Data["code"] != "terminal_not_idle" || r.Data["safe_to_retry"] != true
	})
	switch r.Data["submission_outcome"] {
	case "agent_accepted":
	case "pending_acceptance":
		w.eventually("the task is accepted", func() bool { return w.rig.Server.Turns(request) == 1 })
	default:
		w.t.Fatalf("send: %s", r.Text)
	}
	return r.Data
}

// padded is one line of n characters that asks for an answer.
func padded(n int) string {
	const head = "SCN=SAY:long "
	return head + strings.Repeat("0123456789", n)[:n-len(head)]
}

// A person types into the pane: before a send the draft is respected; what is
// typed during the turn is the agent's next one, and not the Host's.
func TestClaude_HumanTypes(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
	id := w.terminal(pane)
	pane.Type("half a thought")
	pane.AwaitText("half a thought")
	w.refused("send", args{"terminal_id": id, "request": "SCN=SAY:no"}, "composer_not_empty")
	pane.Key("C-u")
	pane.AwaitIdle()
	sent := w.give(pane, "SCN=GATE:mine")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("mine") == 1 })
	pane.Submit("SCN=SAY:for_the_human")
	pane.AwaitText("Queued")
	w.rig.Release("mine")
	w.awaitCallback(sent["turn_id"], "accepted")
	pane.AwaitText("for the human")
	pane.AwaitIdle()
	messages := w.await(1)
	if !strings.Contains(messages[0].Body, "GATE answer mine") || strings.Contains(messages[0].Body, "for the human") {
		t.Errorf("the callback:\n%s", messages[0].Body)
	}
	if got := len(w.start().attempts()); got != 1 {
		t.Errorf("%d callbacks", got)
	}
}

// What must not be typed is refused, and nothing is typed. Text that only begins
// like a command or a shell line of a person is none of the Host's business.
func TestClaude_Refusals(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
	terminal := w.terminal(pane)
	for _, request := range []string{"/clear", " \n /status now", "!ls", " ! ls"} {
		if refusal := w.refused("send", args{"terminal_id": terminal, "request": request}, "native_slash_command"); refusal["terminal_input"] != "none" {
			t.Errorf("%q: terminal_input %v, want none", request, refusal["terminal_input"])
		}
	}
	after := pane.Screen().Text // rows of its own come and go
	for _, typed := range []string{"/clear", "/status", "!ls", "! ls", "\u00a0ls"} {
		if strings.Contains(after, typed) {
			t.Errorf("the screen shows %q:\n%s", typed, after)
		}
	}
	if acts, _ := w.row(pane)["available_actions"].(args); acts["send"] == nil {
		t.Error("the pane cannot be sent to any more")
	}
}

// A permission dialog is told once, a person decides it in the pane, and the task
// goes on; a second one is told as another. A rejected one ends the turn.
func TestClaude_ApprovalSeen(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			sent := w.give(pane, "SCN=TWO")
			first := w.await(1)[0]
			if !strings.Contains(first.Body, "approval") || !strings.Contains(first.Body, text(sent["turn_id"])) {
				t.Errorf("the callback:\n%s", first.Body)
			}
			if got := w.status(sent)["status"]; got != "waiting_for_controller" {
				t.Errorf("the turn is %v", got)
			}
			w.refused("send", args{"terminal_id": w.terminal(pane), "request": "meanwhile"}, "approval_pending")
			pane.Key("Enter")
			second := w.await(2)[1]
			if second.Body == first.Body {
				t.Errorf("the second dialog is told as the first:\n%s", second.Body)
			}
			pane.Key("Escape")
			if last := w.await(3)[2]; !strings.Contains(last.Body, "interrupted") {
				t.Errorf("the last callback:\n%s", last.Body)
			}
			if got := w.status(sent)["status"]; got != "failed" {
				t.Errorf("the turn is %v", got)
			}
		})
	}
}

// A question of the agent is told; the person answers in the pane.
func TestClaude_QuestionSeen(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
	sent := w.give(pane, "SCN=ASKONE")
	if first := w.await(1)[0]; !strings.Contains(first.Body, "question") {
		t.Errorf("the callback:\n%s", first.Body)
	}
	if got := w.status(sent)["status"]; got != "waiting_for_controller" {
		t.Errorf("the turn is %v", got)
	}
	pane.Key("2")
	if last := w.await(2)[1]; !strings.Contains(last.Body, "ASKONE finished") {
		t.Errorf("the last callback:\n%s", last.Body)
	}
}

// The agent ends its turn while no program of the Host runs; the new ones call back.
func TestClaude_Restart(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
	h := w.start()
	const request = "SCN=GATE:restart"
	sent := w.give(pane, request)
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("restart") == 1 })
	h.Kill()
	w.eventually("the siblings drain", func() bool { return len(w.programs("bridge", "watchd", "outboxd")) == 0 })
	w.rig.Release("restart")
	pane.AwaitText("GATE answer restart")
	w.again(h)
	message := w.await(1)[0]
	if !strings.Contains(message.Body, "GATE answer restart") || !strings.Contains(message.Body, text(sent["turn_id"])) {
		t.Errorf("the callback:\n%s", message.Body)
	}
	requireOnce(t, w, request)
}

// An agent that dies in the middle of its turn is told as stalled, once: how far it
// came is not known.
func TestClaude_AgentDies(t *testing.T) {
	w := newWorld(t)
	pane := w.claude("2.1.332")
	sent := w.give(pane, "SCN=GATE:death")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("death") == 1 })
	pane.Kill()
	if message := w.await(1)[0]; !strings.Contains(message.Body, text(sent["turn_id"])) || !strings.Contains(message.Body, "stalled") {
		t.Errorf("the callback:\n%s", message.Body)
	}
	if got := w.status(sent)["status"]; got != "stalled" {
		t.Errorf("the turn is %v", got)
	}
	w.call("close", args{"turn_id": sent["turn_id"]})
}

// Both agents serve one Host at the same time.
func TestClaude_BesideCodex(t *testing.T) {
	w := newWorld(t)
	a, b := w.claude("2.1.332"), w.codex("0.171.0")
	turns := map[string]string{
		text(w.give(a, "SCN=SAY:from_claude")["turn_id"]): "from claude",
		text(w.give(b, "SCN=SAY:from_codex")["turn_id"]):  "from codex",
	}
	requireEach(t, w.await(2), turns)
}
