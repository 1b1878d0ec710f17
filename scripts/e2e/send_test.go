package e2e

import (
	"strings"
	"testing"
)

// The first journey: a Host sends a task to a real Codex, goes on, and is called
// back once with the answer.
func TestSend_Done(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")

	row := w.row(pane)
	if row["agent"] != "codex" || row["screen_state"] != "idle" {
		t.Fatalf("the pane's row: %v", row)
	}
	const request = "How many planks? SCN=SLOW:1/It_has_twelve."
	sent := w.send(pane, request)
	if sent["delivered"] != true || sent["callback_expected"] != true {
		t.Errorf("send: %v", sent)
	}
	turn := text(sent["turn_id"])

	message := w.await(1)[0]
	for _, want := range []string{"It has twelve.", turn, text(sent["session_id"])} {
		if !strings.Contains(message.Body, want) {
			t.Errorf("the callback does not hold %q:\n%s", want, message.Body)
		}
	}
	if message.Session != "session-one" {
		t.Errorf("the callback is for session %q", message.Session)
	}
	w.awaitCallback(turn, "accepted")
	if got := w.rig.Server.Turns(request); got != 1 {
		t.Errorf("the request reached the model %d times, want once", got)
	}
	if got := len(w.start().attempts()); got != 1 {
		t.Errorf("the callback executable was started %d times, want once", got)
	}
}

// The same where Codex hands its conversations to its background server, which is
// its default: the thread is known only by the record that accepts the request.
func TestSend_DoneDaemon(t *testing.T) {
	w := newWorld(t)
	pane := w.daemonCodex()
	w.send(pane, "SCN=SAY:from_the_daemon")
	if message := w.await(1)[0]; !strings.Contains(message.Body, "from the daemon") {
		t.Errorf("the callback does not hold the answer:\n%s", message.Body)
	}
}

// What must not be typed is refused, and nothing is typed.
func TestSend_Refusals(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	terminal := w.terminal(pane)
	before := pane.Screen().Text
	for _, tc := range []struct {
		name string
		a    args
		code string
	}{
		{"a native command", args{"terminal_id": terminal, "request": "/status"}, "native_slash_command"},
		{"a native command after blanks", args{"terminal_id": terminal, "request": " \n /clear now"}, "native_slash_command"},
		{"a shell escape", args{"terminal_id": terminal, "request": "!ls"}, "native_slash_command"},
		{"a blank request", args{"terminal_id": terminal, "request": "  \n"}, "invalid_arguments"},
		{"another kind of id", args{"turn_id": terminal}, "wrong_id_kind"},
		{"a pane that is not there", args{"terminal_id": "terminal:v2:tmux:codex:nowhere:0.0:1", "request": "hello"}, "terminal_not_found"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refusal := w.refused("send", tc.a, tc.code)
			if refusal["terminal_input"] != "none" {
				t.Errorf("terminal_input %v, want none", refusal["terminal_input"])
			}
		})
	}
	if after := pane.Screen().Text; after != before {
		t.Errorf("the screen changed:\n%s", after)
	}
	// A draft of a person is never cleared, and never sent along.
	pane.Type("my own draft")
	pane.AwaitText("my own draft")
	w.refused("send", args{"terminal_id": terminal, "request": "SCN=SAY:no"}, "composer_not_empty")
	if s := pane.Screen(); !strings.Contains(s.Text, "my own draft") {
		t.Errorf("the draft is gone:\n%s", s.Text)
	}
	if n := w.rig.Server.Turns("SCN=SAY:no"); n != 0 {
		t.Errorf("a refused request reached the model %d times", n)
	}
}

// With two panes that could take it, a send without a target is refused.
func TestSend_Ambiguous(t *testing.T) {
	w := newWorld(t, withArgs("--log-level", "debug"))
	w.codex("0.171.0")
	w.codex("0.148.0")
	w.refused("send", args{"request": "SCN=SAY:no"}, "terminal_ambiguous")
	if n := w.rig.Server.Turns("SCN=SAY:no"); n != 0 {
		t.Errorf("the request reached the model %d times", n)
	}
}
