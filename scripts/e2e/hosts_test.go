package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/scripts/internal/modelserver"
	"drawbridge/scripts/internal/rig"
)

// hostWait bounds one run of a real Host, from its start to its exit.
const hostWait = 3 * time.Minute

// A realHost is a coding agent that is the Host: it reads its configuration from
// the page about it, starts bridge by itself and leaves as it always does.
type realHost struct {
	w       *world
	page    string // docs/hosts/…
	profile string
	inbox   string
	dir     string // where it works
}

// newRealHost makes the Profile by the command of the page.
func newRealHost(w *world, page, profile, box string) *realHost {
	w.t.Helper()
	h := &realHost{w: w, page: page, profile: filepath.Join(w.rig.Dir, profile), dir: w.rig.Tree()}
	h.inbox = filepath.Join(w.rig.Home(), ".local/share/drawbridge", box)
	script := h.block("sh", "connector profile") + "\n" + h.block("sh", "bridge doctor")
	// The page leaves out what only a test has: a Store of its own.
	script = strings.ReplaceAll(script, "bridge doctor", "bridge doctor -store-dir '"+w.store+"'")
	output(w.t, w, "/bin/bash", "-euc", script)
	if info, err := os.Stat(h.profile); err != nil || info.Size() == 0 {
		w.t.Fatalf("%s made no Profile: %v", page, err)
	}
	return h
}

// block gives the one block of the page in a language that holds text, with this
// world's paths.
func (h *realHost) block(language, text string) string {
	h.w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "docs", "hosts", h.page))
	if err != nil {
		h.w.t.Fatal(err)
	}
	var found []string
	for _, part := range strings.Split(string(raw), "```"+language+"\n")[1:] {
		if block, _, _ := strings.Cut(part, "```"); strings.Contains(block, text) {
			found = append(found, block)
		}
	}
	if len(found) != 1 {
		h.w.t.Fatalf("%d blocks of %s hold %q", len(found), h.page, text)
	}
	block := strings.ReplaceAll(found[0], "/abs/path/bin", h.w.bin)
	return strings.ReplaceAll(block, "/abs/path", h.w.rig.Dir)
}

// settings are those of bridge that only a test needs.
func (h *realHost) settings() map[string]string {
	return map[string]string{"BRIDGE_STORE_DIR": h.w.store, "BRIDGE_RUNTIME_DIR": h.w.runtime, "BRIDGE_TMUX_SOCKET": h.w.rig.Socket}
}

// run starts the Host and gives the lines that it printed.
func (h *realHost) run(env []string, program string, argv ...string) []string {
	h.w.t.Helper()
	cmd := exec.Command(program, argv...)
	cmd.Dir, cmd.Env = h.dir, env
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		h.w.t.Fatal(err)
	}
	late := time.AfterFunc(hostWait, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		h.w.t.Fatalf("%s: %v\nstdout: %s\nstderr: %s", filepath.Base(program), err, tail(stdout.String(), 30), tail(stderr.String(), 30))
	}
	return strings.Split(strings.TrimSpace(stdout.String()), "\n")
}

// letters reads the Host's inbox.
func (h *realHost) letters() []args {
	h.w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.inbox, "messages.jsonl"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		h.w.t.Fatal(err)
	}
	var out []args
	for line := range strings.Lines(string(raw)) {
		var l args
		decode(h.w.t, []byte(line), &l)
		out = append(out, l)
	}
	return out
}

// ask is what the Host is told: list the panes and send one a task.
func ask(terminal, request string) string {
	return modelserver.Calls("mcp__drawbridge",
		modelserver.ToolCall{Tool: "agent_knock_knock_list"},
		modelserver.ToolCall{Tool: "agent_knock_knock_send", Args: args{"terminal_id": terminal, "request": request}})
}

// codexHost is the real Codex as the Host, set up by docs/hosts/codex.md.
func codexHost(w *world) *realHost { return newRealHost(w, "codex.md", "codex.json", "codex-inbox") }

// exec runs codex exec with the configuration of the page.
func (h *realHost) exec(prompt string) []string {
	h.w.t.Helper()
	exe, err := rig.CodexPath("0.171.0")
	if err != nil {
		h.w.t.Fatal(err)
	}
	home := filepath.Join(h.w.rig.Dir, "homes", "host-codex")
	if err := os.MkdirAll(home, 0o700); err != nil {
		h.w.t.Fatal(err)
	}
	config := fmt.Sprintf("model = %q\nmodel_provider = \"rig\"\ncheck_for_update_on_startup = false\n"+
		"[analytics]\nenabled = false\n[model_providers.rig]\nname = \"rig\"\nbase_url = %q\nenv_key = \"RIG_KEY\"\nwire_api = \"responses\"\n"+
		"requires_openai_auth = false\nsupports_websockets = false\n%s", rig.Model, h.w.rig.URL, h.server("/abs/path/codex.json"))
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		h.w.t.Fatal(err)
	}
	return h.run([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.w.rig.Home(), "LANG=C.UTF-8", "CODEX_HOME=" + home, "RIG_KEY=none",
	}, exe, "exec", "--json", "--skip-git-repo-check", prompt)
}

// toolResult finds what the Host got from a tool in the events of codex exec.
func toolResult(t *testing.T, lines []string, tool string) args {
	t.Helper()
	for _, line := range lines {
		var event struct {
			Type string
			Item struct {
				Type, Tool, Status string
				Result             struct {
					Structured args `json:"structured_content"`
				}
				Error any
			}
		}
		if json.Unmarshal([]byte(line), &event) != nil || event.Type != "item.completed" || event.Item.Tool != tool {
			continue
		}
		if event.Item.Status != "completed" {
			t.Fatalf("%s is %s: %s", tool, event.Item.Status, line)
		}
		return event.Item.Result.Structured
	}
	t.Fatalf("no result of %s", tool)
	return nil
}

// Codex is the Host: it lists, sends to another pane and exits its way, which
// kills the bridge's process group within milliseconds. The task that was
// accepted goes on, and its callback arrives once: by the siblings that outlive
// the bridge, or by the bridge that the next run starts.
func TestHosts_CodexExec(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	h := codexHost(w)
	const request = "SCN=GATE:after"
	lines := h.exec(ask(terminalID(pane), request))

	if rows := objects(toolResult(t, lines, "agent_knock_knock_list")["terminals"]); len(rows) != 1 || rows[0]["id"] != terminalID(pane) {
		t.Errorf("list answered %v", rows)
	}
	sent := toolResult(t, lines, "agent_knock_knock_send")
	if sent["submission_outcome"] != "agent_accepted" {
		t.Fatalf("send answered %v", sent)
	}
	w.hostLeft()
	w.rig.Release("after")
	w.eventually("the pane's turn ends", func() bool { return pane.Screen().Idle() })

	// The Host comes again, as the next run of the same user.
	lines = h.exec(ask(terminalID(pane), "SCN=SAY:second"))
	again := toolResult(t, lines, "agent_knock_knock_send")
	if again["submission_outcome"] != "agent_accepted" {
		t.Fatalf("the second send answered %v", again)
	}
	h.deliverRest("CODEX_BRIDGE_SESSION=my-codex", "codex", "0.171.0", 2)
	h.requireLetter(sent, "GATE answer after")
	h.requireLetter(again, "second")
	for _, text := range []string{request, "SCN=SAY:second"} {
		if got := w.rig.Server.Turns(text); got != 1 {
			t.Errorf("%s reached the model %d times", text, got)
		}
	}
}

// hostLeft requires that the bridge is gone with its Host, and waits for the end
// of the siblings: what comes after is not their doing.
func (w *world) hostLeft() {
	w.t.Helper()
	if got := w.programs("bridge"); len(got) != 0 {
		w.t.Errorf("a bridge outlives its Host: %v", got)
	}
	w.rig.Eventually(drainWait, "the end of the siblings", func() bool { return len(w.programs("watchd", "outboxd")) == 0 })
}

// deliverRest waits until n letters are in the inbox. What the siblings of a Host
// that has gone did not get to is done by watchd and outboxd as an operator runs
// them.
func (h *realHost) deliverRest(session, host, version string, n int) {
	w := h.w
	w.t.Helper()
	w.eventually("the siblings end", func() bool { return len(h.letters()) >= n || len(w.programs("watchd", "outboxd")) == 0 })
	if len(h.letters()) >= n {
		return
	}
	w.t.Logf("%d of %d letters were delivered by the Host's own siblings", len(h.letters()), n)
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.rig.Home(), session}
	common := []string{"serve", "-store-dir", w.store, "-runtime-dir", w.runtime}
	for name, more := range map[string][]string{
		"watchd":  nil,
		"outboxd": {"--profile", h.profile, "--host", host, "--host-version", version},
	} {
		cmd := exec.Command(filepath.Join(w.bin, name), append(append([]string{}, common...), more...)...)
		cmd.Env, cmd.Dir = env, w.rig.Dir
		if err := cmd.Start(); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() {
			_ = cmd.Process.Signal(unix.SIGTERM) // it may have ended
			_ = cmd.Wait()                       // by the signal, if it came before the program was ready for it
		})
	}
	w.eventually(fmt.Sprintf("%d letters", n), func() bool { return len(h.letters()) >= n })
}

// requireLetter wants exactly one letter about a sent Turn, with the answer.
func (h *realHost) requireLetter(sent args, answer string) {
	h.w.t.Helper()
	n := 0
	for _, l := range h.letters() {
		if body := text(l["body"]); strings.Contains(body, text(sent["turn_id"])) {
			n++
			if !strings.Contains(body, answer) {
				h.w.t.Errorf("the letter about %v:\n%s", sent["turn_id"], body)
			}
		}
	}
	if n != 1 {
		h.w.t.Errorf("%d letters about %v: %v", n, sent["turn_id"], h.letters())
	}
}

// terminalID is the id that list gives a pane, known before any list.
func terminalID(p *rig.Pane) string {
	return fmt.Sprintf("terminal:v2:tmux:%s:%s:%d", p.Agent, p.Target, p.PID)
}
