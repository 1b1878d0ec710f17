package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"drawbridge/scripts/internal/modelserver"
	"drawbridge/scripts/internal/rig"
)

// callbackHead begins every callback that is typed.
const callbackHead = "drawbridge callback (a program wrote this, not the user):"

// told counts how often a callback about the Turn reached the Host's model.
func (h *realHost) told(turn string) (n int) {
	for _, r := range h.w.rig.Server.Requests() {
		if r.Kind == modelserver.Turn && r.Step == 0 && strings.HasPrefix(r.Text, callbackHead) && strings.Contains(r.Text, turn) {
			n++
		}
	}
	return n
}

// turnSent waits until the Host has sent a Turn, and gives its id.
func (h *realHost) turnSent(pane *rig.Pane, request string) string {
	h.w.t.Helper()
	turn := ""
	h.w.eventually("the task reaches its agent", func() bool { return h.w.rig.Server.Turns(request) == 1 })
	h.w.eventually("the Turn is known", func() bool {
		for _, t := range h.operator("list", "-all")["unavailable_managed_turns"].([]any) {
			if row, _ := t.(args); text(row["request"]) == request {
				turn = text(row["turn_id"])
			}
		}
		for _, row := range objects(h.operator("list")["terminals"]) {
			managed, _ := row["managed"].(args)
			current, _ := managed["current_turn"].(args)
			if pid, _ := row["pid"].(float64); int(pid) == pane.PID && text(current["request"]) == request {
				turn = text(current["turn_id"])
			}
		}
		return turn != ""
	})
	return turn
}

// Claude Code in a pane is the Host under the bundled Profile, and is called back
// there: the text is typed into the pane that holds the session that asked, once,
// and only when it is idle.
func TestHosts_ClaudePane(t *testing.T) {
	w := newWorld(t)
	worker := w.codex("0.171.0")
	h := &realHost{w: w, page: "claude-code.md", dir: w.rig.Tree()}
	session := uuid.NewString()
	host := w.rig.Claude(claudeVersion, rig.ClaudeOptions{
		Session: session, Dir: h.dir, Args: h.claudeArgs("claude --mcp-config", "builtin-claude-code"),
	})
	t.Cleanup(host.Close) // its bridge ends with it
	const request = "SCN=GATE:worker"
	host.Submit(ask(terminalID(worker), request))
	turn := h.turnSent(worker, request)
	host.AwaitText("CALLS finished")
	w.rig.Release("worker")
	w.eventually("the Host's model is told", func() bool { return h.told(turn) == 1 })
	host.AwaitText("GATE answer worker")
	host.AwaitIdle()
	h.accepted(turn)

	// The session changes under the bridge: what is for the old one stays out of
	// the new one.
	const next = "SCN=GATE:late"
	host.Submit(ask(terminalID(worker), next))
	late := h.turnSent(worker, next)
	host.AwaitIdle()
	host.Submit("/clear")
	w.eventually("another session is in the pane", func() bool {
		now, ok := host.Registered()
		return ok && now.SessionID != session
	})
	w.rig.Release("late")
	w.eventually("the callback waits", func() bool {
		c, _ := h.operator("status", late)["callback"].(args)
		return c["status"] == "retry_wait"
	})
	if n := h.told(late); n != 0 {
		t.Errorf("the new session was told %d times of a task of the old one", n)
	}
	if n := h.told(turn); n != 1 {
		t.Errorf("the Host was told %d times, want once", n)
	}
}

// Codex in a pane is the Host under the bundled Profile: the pane is that of the
// process that started the bridge.
func TestHosts_CodexPane(t *testing.T) {
	w := newWorld(t)
	worker := w.codex("0.171.0")
	h := &realHost{w: w, page: "codex.md", dir: w.rig.Tree()}
	host := w.rig.Codex("0.171.0", rig.CodexOptions{Dir: h.dir, Config: h.server("builtin-codex")})
	t.Cleanup(host.Close)
	const request = "SCN=GATE:worker"
	host.Submit(ask(terminalID(worker), request))
	turn := h.turnSent(worker, request)
	host.AwaitText("CALLS finished")
	host.AwaitIdle()
	w.rig.Release("worker")
	w.eventually("the Host's model is told", func() bool { return h.told(turn) == 1 })
	h.accepted(turn)
	host.AwaitIdle()
	if n := h.told(turn); n != 1 {
		t.Errorf("the Host was told %d times, want once", n)
	}
}

// accepted waits until the Turn's callback is settled as accepted.
func (h *realHost) accepted(turn string) {
	h.w.t.Helper()
	h.w.eventually("the callback is accepted", func() bool {
		c, _ := h.operator("status", turn)["callback"].(args)
		return c["status"] == "accepted"
	})
}

// operator runs a tool from a shell, as a person beside the Host does.
func (h *realHost) operator(tool string, more ...string) args {
	h.w.t.Helper()
	raw := output(h.w.t, h.w, filepath.Join(h.w.bin, "bridge"), append([]string{tool, "-json", "-store-dir", h.w.store,
		"-runtime-dir", h.w.runtime, "-tmux-socket", h.w.rig.Socket}, more...)...)
	var out args
	decode(h.w.t, raw, &out)
	return out
}

// server is the block of the page for Codex's configuration with the Profile, and
// with what only a test needs.
func (h *realHost) server(profile string) string {
	h.w.t.Helper()
	var env []string
	for name, value := range h.settings() {
		env = append(env, fmt.Sprintf("%s = %q", name, value))
	}
	return strings.Replace(h.block("toml", `"`+profile+`"`), "env = { ", "env = { "+strings.Join(env, ", ")+", ", 1)
}
