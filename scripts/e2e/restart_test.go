package e2e

import (
	"strings"
	"testing"
)

// A Host that kills its bridge in mid-turn and starts it anew is called back
// once, by the new programs. Proves core 19.26: the agent ends while no program runs.
func TestRestart_HostKillsBridge(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	h := w.start()
	const request = "SCN=GATE:restart"
	sent := w.send(pane, request)
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("restart") == 1 })
	h.Kill()
	w.eventually("the siblings drain", func() bool { return len(w.programs("bridge", "watchd", "outboxd")) == 0 })

	w.rig.Release("restart") // the agent finishes while nobody looks
	pane.AwaitText("GATE answer restart")
	w.again(h)
	message := w.await(1)[0]
	if !strings.Contains(message.Body, "GATE answer restart") || !strings.Contains(message.Body, text(sent["turn_id"])) {
		t.Errorf("the callback:\n%s", message.Body)
	}
	requireOnce(t, w, request)
}

// Siblings that are killed in mid-turn are started again, and the Turn ends as if
// nothing had been.
func TestRestart_SiblingsKilled(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	const request = "SCN=GATE:siblings"
	w.send(pane, request)
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("siblings") == 1 })
	w.kill("watchd")
	w.kill("outboxd")
	w.rig.Release("siblings")
	if message := w.await(1)[0]; !strings.Contains(message.Body, "GATE answer siblings") {
		t.Errorf("the callback:\n%s", message.Body)
	}
	requireOnce(t, w, request)
}

// requireOnce wants the request typed once and one callback started.
func requireOnce(t *testing.T, w *world, request string) {
	t.Helper()
	if got := w.rig.Server.Turns(request); got != 1 {
		t.Errorf("the request reached the model %d times, want once", got)
	}
	if got := len(w.start().attempts()); got != 1 {
		t.Errorf("the callback executable was started %d times, want once", got)
	}
}
