package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"drawbridge/scripts/internal/rig"
)

// claudeVersion is the Claude Code that is the Host here.
const claudeVersion = "2.1.332"

// claudeHost is the real Claude Code as the Host, set up by docs/hosts/claude-code.md.
func claudeHost(w *world) *realHost {
	return newRealHost(w, "claude-code.md", "claude.json", "claude-inbox")
}

// claudeArgs gives the options of the page's command that begins so, with the
// configuration of the Profile written where the command looks for it.
func (h *realHost) claudeArgs(command, profile string) []string {
	h.w.t.Helper()
	var config struct {
		Servers map[string]struct {
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"mcpServers"`
	}
	decode(h.w.t, []byte(h.block("json", `"`+profile+`"`)), &config)
	for _, s := range config.Servers {
		for name, value := range h.settings() {
			s.Env[name] = value
		}
	}
	raw, err := json.Marshal(map[string]any{"mcpServers": config.Servers})
	if err != nil {
		h.w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.w.rig.Dir, "mcp.json"), raw, 0o600); err != nil {
		h.w.t.Fatal(err)
	}
	line, _, _ := strings.Cut(h.block("sh", command), "\n")
	words := strings.Fields(strings.TrimSuffix(line, "\\"))
	if len(words) < 5 || words[0] != "claude" {
		h.w.t.Fatalf("the command of the page: %q", line)
	}
	for i := range words {
		words[i] = strings.Trim(words[i], "'")
	}
	return words[1:]
}

// print runs claude -p with the options of the page, in a session of its own.
func (h *realHost) print(session, prompt string) []string {
	h.w.t.Helper()
	exe, err := rig.ClaudePath(claudeVersion)
	if err != nil {
		h.w.t.Fatal(err)
	}
	argv := append(h.claudeArgs("claude -p", "/abs/path/claude.json"), "--output-format", "stream-json", "--verbose", "--session-id", session, prompt)
	return h.run(h.w.rig.ClaudeEnv(h.dir), exe, argv...)
}

// printedResult finds what the Host got from a tool in the lines of claude -p: the
// result of its nth call.
func printedResult(t *testing.T, lines []string, n int) args {
	t.Helper()
	for _, line := range lines {
		var event struct {
			Type    string
			Message struct {
				Content []struct {
					Type    string
					Content json.RawMessage
					IsError bool `json:"is_error"`
				}
			}
		}
		if json.Unmarshal([]byte(line), &event) != nil || event.Type != "user" {
			continue
		}
		for _, c := range event.Message.Content {
			if c.Type != "tool_result" {
				continue
			}
			if n--; n > 0 {
				continue
			}
			var plain string
			if json.Unmarshal(c.Content, &plain) != nil {
				var blocks []struct{ Text string }
				decode(t, c.Content, &blocks)
				for _, b := range blocks {
					plain += b.Text
				}
			}
			var out args
			decode(t, []byte(plain), &out)
			if c.IsError {
				t.Fatalf("a tool failed: %s", plain)
			}
			return out
		}
	}
	t.Fatalf("no such result in:\n%s", tail(strings.Join(lines, "\n"), 30))
	return nil
}

// Claude Code is the Host: it lists, sends to another pane and exits its way
// (SIGINT, SIGTERM, SIGKILL within half a second). The task goes on, and its
// callback arrives once, in the inbox of the session that asked.
func TestHosts_ClaudePrint(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	h := claudeHost(w)
	session := uuid.NewString()
	const request = "SCN=GATE:after"
	lines := h.print(session, ask(terminalID(pane), request))

	if rows := objects(printedResult(t, lines, 1)["terminals"]); len(rows) != 1 || rows[0]["id"] != terminalID(pane) {
		t.Errorf("list answered %v", rows)
	}
	sent := printedResult(t, lines, 2)
	if sent["submission_outcome"] != "agent_accepted" {
		t.Fatalf("send answered %v", sent)
	}
	w.hostLeft()
	w.rig.Release("after")
	w.eventually("the pane's turn ends", func() bool { return pane.Screen().Idle() })

	h.deliverRest("CLAUDE_CODE_SESSION_ID="+session, "claude-code", claudeVersion, 1)
	h.requireLetter(sent, "GATE answer after")
	if got := text(h.letters()[0]["session"]); got != session {
		t.Errorf("the letter is for session %q, not %q", got, session)
	}
	if got := w.rig.Server.Turns(request); got != 1 {
		t.Errorf("the request reached the model %d times", got)
	}
}
