package e2e

import (
	"testing"

	"drawbridge/scripts/internal/inbox"
)

// A Host that says "later" gets the same delivery again; one that says so before
// an acceptance has the message once.
func TestCallback_Retry(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	h := w.start()
	h.script(inbox.Retry)
	w.send(pane, "SCN=SAY:later")
	message := w.await(1)[0]
	attempts := h.attempts()
	if len(attempts) != 2 || attempts[0].Verdict != inbox.Retry || attempts[1].Verdict != inbox.Accepted {
		t.Errorf("attempts %+v", attempts)
	}
	for _, a := range attempts {
		if a.DeliveryID != message.DeliveryID {
			t.Errorf("an attempt for %s, the message is %s", a.DeliveryID, message.DeliveryID)
		}
	}
}

// outboxd ends at each step of a delivery: nothing is lost that was not started,
// and what was started and has no outcome is never repeated.
//
// Proves core §13 rows 14-17.
func TestCallback_OutboxdCrashes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point    string
		status   string
		attempts int // starts of the callback executable
	}{
		{"callback_claimed", "accepted", 1},      // row 15: nothing was spawned, due again
		{"callback_started", "uncertain", 0},     // row 16: the Host may have it
		{"callback_child_ended", "uncertain", 1}, // row 17: it has it, and nobody knows
		{"callback_settled", "accepted", 1},
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t, withCrash("outboxd", tc.point))
			pane := w.codex("0.171.0")
			sent := w.send(pane, "SCN=SAY:crash")
			w.awaitCallback(sent["turn_id"], tc.status)
			if got := len(w.start().attempts()); got != tc.attempts {
				t.Errorf("the callback executable was started %d times, want %d", got, tc.attempts)
			}
		})
	}
}
