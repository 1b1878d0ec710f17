package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// A pane whose agent ended is refused, typed into never, and its finished Turn
// stays readable. A socket that is not there is told beside those that are.
func TestRefuse_AgentExited(t *testing.T) {
	w := newWorld(t, withArgs("--tmux-socket", filepath.Join(t.TempDir(), "nobody")))
	pane, other := w.codex("0.171.0"), w.codex("0.148.0")
	list := w.call("list", nil)
	scan, _ := list["terminal_scan"].(args)
	if text(scan["error"]) == "" || len(objects(list["terminals"])) != 2 {
		t.Errorf("scan %v with %d rows", scan, len(objects(list["terminals"])))
	}
	id := w.terminal(pane)
	sent := w.send(pane, "SCN=SAY:before")
	w.awaitCallback(sent["turn_id"], "accepted")
	pane.AwaitIdle()
	pane.Submit("/quit")
	w.eventually("the agent is gone", func() bool { gone, known := pane.Process.Gone(); return gone && known })
	pane.AwaitText("EXITED rc=0")
	r := w.start().try("send", args{"terminal_id": id, "request": "SCN=SAY:after"})
	if code := text(r.Data["code"]); !r.Refused || code != "terminal_changed" && code != "terminal_not_found" {
		t.Errorf("send: %s", r.Text)
	}
	if r.Data["terminal_input"] != "none" || text(r.Data["reason"]) == "" {
		t.Errorf("refusal %v", r.Data)
	}
	if after := pane.Screen().Text; strings.Contains(after, "SCN=SAY:after") {
		t.Errorf("the request was typed:\n%s", after)
	}
	if got := w.status(sent)["status"]; got != "idle" {
		t.Errorf("the finished turn is %v", got)
	}
	next := w.send(other, "SCN=SAY:other")
	w.awaitCallback(next["turn_id"], "accepted")
}

// tmux is gone in mid-turn: the Turn ends as lost, with one notification, and
// close still works.
func TestRefuse_TmuxGone(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	sent := w.send(pane, "SCN=GATE:gone")
	w.eventually("the turn runs", func() bool { return w.rig.Server.Waiting("gone") == 1 })
	pane.Kill()
	w.eventually("the turn is stalled", func() bool { return w.status(sent)["status"] == "stalled" })
	if message := w.await(1)[0]; !strings.Contains(message.Body, "stalled") {
		t.Errorf("the callback:\n%s", message.Body)
	}
	w.call("close", args{"turn_id": sent["turn_id"]})
	if got := w.status(sent)["status"]; got != "closed" {
		t.Errorf("the turn is %v", got)
	}
}
