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
	w.eventually("the callback is settled", func() bool {
		return object(w.call("status", args{"turn_id": turn})["callback"])["status"] == "accepted"
	})
	if got := w.rig.Server.Turns(request); got != 1 {
		t.Errorf("the request reached the model %d times, want once", got)
	}
	if got := len(w.start().attempts()); got != 1 {
		t.Errorf("the callback executable was started %d times, want once", got)
	}
}
