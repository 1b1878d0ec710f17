package e2e

import (
	"testing"
	"time"

	"drawbridge/scripts/internal/inbox"
)

// A Host that takes seconds over a callback holds up no Watch: the Watch's end is
// seen and stored while the callback still runs. Proves core 19.47; the Profile
// of the example Host gives its executable 8 s, the test wants a quarter of that.
func TestCallback_SlowHost(t *testing.T) {
	w := newWorld(t)
	h := w.start()
	slow, watched := w.codex("0.171.0"), w.codex("0.171.0")
	watched.Submit("SCN=GATE:beside please")
	w.eventually("the human's task runs", func() bool { return w.rig.Server.Waiting("beside") == 1 })
	var watch args
	w.eventually("a watch is offered and taken", func() bool {
		row := w.row(watched)
		actions, _ := row["available_actions"].(args)
		if actions["watch"] == nil {
			return false
		}
		watch, _ = w.call("watch", args{"terminal_id": row["id"]})["watch"].(args)
		return true
	})
	h.script(inbox.Hang)
	sent := w.send(slow, "SCN=SAY:slowly")
	w.eventually("the Host takes its time", func() bool { return len(h.attempts()) == 1 })
	w.rig.Release("beside")
	watched.AwaitText("GATE answer beside")
	began := time.Now()
	w.eventually("the watch is completed", func() bool {
		got, _ := w.call("status", args{"watch_id": watch["watch_id"]})["watch"].(args)
		return got["status"] == "completed"
	})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the end of the watched task was seen after %v", took)
	}
	w.await(1) // the Watch's own callback; the first one still runs
	w.awaitCallback(sent["turn_id"], "claimed")
	w.awaitCallback(sent["turn_id"], "uncertain") // and is never repeated
}
