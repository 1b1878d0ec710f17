package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/scripts/internal/modelserver"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const (
	lentSecret = "test-lent-credential-0123456789"
	lendWait   = 60 * time.Second
	turnWait   = 3 * time.Minute
)

// lender is a brokerd of its own Store, with the rig's model server as the provider.
type lender struct {
	t   *testing.T
	rig *rig.Rig
	dir string // of the Store
	*store.Store
	cmd *exec.Cmd
}

// newLender starts brokerd and waits until it serves; listen are its flags for
// that, on loopback without any.
func newLender(t *testing.T, listen ...string) *lender {
	t.Helper()
	needAgents(t)
	r := rig.New(t)
	l := &lender{t: t, rig: r, dir: filepath.Join(r.Dir, "store")}
	socket := filepath.Join(testkit.RuntimeDir(t), "n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	var log bytes.Buffer
	if len(listen) == 0 {
		listen = []string{"-listen", "127.0.0.1", "-advertise-host", "127.0.0.1"}
	}
	l.cmd = exec.Command(testkit.BuildProgram(t, "brokerd"), append([]string{"serve", "-store-dir", l.dir, "-log-level", "debug",
		"-test-upstream", r.URL}, listen...)...)
	l.cmd.Env = []string{"HOME=" + r.Home(), "NOTIFY_SOCKET=" + socket}
	l.cmd.Stderr = &log
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.cmd.Process.Signal(syscall.SIGTERM)
		if err := l.cmd.Wait(); err != nil {
			t.Errorf("brokerd: %v", err)
		}
		if t.Failed() {
			t.Logf("brokerd:\n%s", log.String())
		}
		if strings.Contains(log.String(), lentSecret) {
			t.Error("the log of brokerd holds the credential")
		}
	})
	notify.SetReadDeadline(time.Now().Add(lendWait))
	for buf := make([]byte, 256); ; {
		n, err := notify.Read(buf)
		if err != nil {
			t.Fatalf("brokerd is not ready: %v", err)
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			break
		}
	}
	if l.Store, err = store.Open(t.Context(), store.Options{Dir: l.dir, Program: "test", ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Store.Close() })
	return l
}

// capability is what `brokerd grant` prints.
type capability struct {
	BaseURL    string `json:"base_url"`
	Capability string `json:"capability"`
	GrantID    string `json:"grant_id"`
}

func (l *lender) grant(args ...string) (c capability) {
	l.t.Helper()
	auth := filepath.Join(l.rig.Dir, "auth.json")
	if err := os.WriteFile(auth, []byte(`{"OPENAI_API_KEY":"`+lentSecret+`"}`), 0o600); err != nil {
		l.t.Fatal(err)
	}
	out := l.brokerd(append([]string{"grant", "-auth-file", auth, "-model", rig.Model, "-base-path", "/v1"}, args...)...)
	if err := json.Unmarshal(out, &c); err != nil {
		l.t.Fatalf("%s: %v", out, err)
	}
	return c
}

func (l *lender) brokerd(args ...string) []byte {
	l.t.Helper()
	cmd := exec.Command(testkit.BuildProgram(l.t, "brokerd"), append(args, "-store-dir", l.dir)...)
	cmd.Env = []string{"HOME=" + l.rig.Home()}
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("brokerd %v: %v", args, err)
	}
	return out
}

// exec runs one `codex exec` turn on a capability, as a worker has it: the
// configuration of worker §5, and the capability in a variable.
func (l *lender) exec(c capability, effort, prompt string) (events []map[string]any, dir string) {
	l.t.Helper()
	exe, err := rig.CodexPath(rig.CodexVersions[0])
	if err != nil {
		l.t.Fatal(err)
	}
	dir = l.rig.Tree()
	home := dir + ".home"
	if err := os.Mkdir(home, 0o700); err != nil {
		l.t.Fatal(err)
	}
	config := fmt.Sprintf(`model = %q
model_provider = "kontour_proxy"
model_reasoning_effort = %q
[model_providers.kontour_proxy]
name = "OpenAI via scoped host proxy"
base_url = %q
env_key = "KONTOUR_PROVIDER_CAPABILITY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 1
stream_max_retries = 1
[shell_environment_policy]
exclude = ["KONTOUR_*"]
[projects.%q]
trust_level = "trusted"
`, rig.Model, effort, c.BaseURL, dir)
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), turnWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(prompt)
	cmd.Env = []string{"HOME=" + l.rig.Home(), "PATH=" + os.Getenv("PATH"), "CODEX_HOME=" + home, "KONTOUR_PROVIDER_CAPABILITY=" + c.Capability}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.Output()
	l.t.Logf("codex exec ended: %v", err)
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e map[string]any
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			l.t.Fatalf("%s: %v", lines.Text(), err)
		}
		events = append(events, e)
	}
	return events, dir
}

// last is the last event of a type.
func last(events []map[string]any, kind string) map[string]any {
	for i := len(events) - 1; i >= 0; i-- {
		if events[i]["type"] == kind {
			return events[i]
		}
	}
	return nil
}

// Proves broker 18.34: a real Codex, through brokerd, to a scripted provider: the
// turn completes, its edit is there, and the evidence has a row for each request that
// the provider saw, with the tokens that Codex reports.
func TestBroker_RealCodex(t *testing.T) {
	l := newLender(t)
	c := l.grant("-reasoning-effort", "medium", "-run", "run-1")
	events, dir := l.exec(c, "medium", "SCN=EDIT:made")
	done := last(events, "turn.completed")
	if done == nil {
		t.Fatalf("the turn did not complete: %v", events)
	}
	if _, err := os.Stat(filepath.Join(dir, "edited-made.txt")); err != nil {
		entries, _ := os.ReadDir(dir)
		t.Errorf("the edit: %v, there is %v", err, entries)
	}
	seen := 0
	for _, r := range l.rig.Server.Requests() {
		if r.Kind == modelserver.Turn {
			seen++
		}
	}
	if seen != len(l.rig.Server.Requests()) {
		t.Errorf("other requests reached the provider: %+v", l.rig.Server.Requests())
	}
	var rows []struct {
		Seq           int
		Outcome       string
		Effort        string `json:"reasoning_effort"`
		TransportMode string `json:"transport_mode"`
		Usage         *struct {
			Input  int `json:"input_tokens"`
			Output int `json:"output_tokens"`
		} `json:"response_usage"`
	}
	if err := json.Unmarshal(l.brokerd("evidence", c.GrantID), &rows); err != nil {
		t.Fatal(err)
	}
	input, output := 0, 0
	for i, r := range rows {
		if r.Seq != i+1 || r.Outcome != "completed" || r.Usage == nil || r.TransportMode != "mocked-test-only" || r.Effort != "medium" {
			t.Fatalf("row %d: %+v", i, r)
		}
		input, output = input+r.Usage.Input, output+r.Usage.Output
	}
	usage, _ := done["usage"].(map[string]any)
	if len(rows) != seen || seen != 3 || usage["input_tokens"] != float64(input) || usage["output_tokens"] != float64(output) {
		t.Errorf("%d rows of %d and %d tokens, the provider saw %d requests, codex reports %v", len(rows), input, output, seen, usage)
	}

	// Another effort than the bound one never leaves the machine; a revoked grant
	// ends at once.
	if events, _ := l.exec(c, "low", "SCN=SAY:hello"); last(events, "turn.completed") != nil {
		t.Error("a turn with another effort completed")
	}
	if out := string(l.brokerd("revoke", c.GrantID)); out != c.GrantID+" revoked\n" {
		t.Errorf("revoke: %q", out)
	}
	if events, _ := l.exec(c, "medium", "SCN=SAY:hello"); last(events, "turn.completed") != nil {
		t.Error("a turn on a revoked grant completed")
	}
	if n := len(l.rig.Server.Requests()); n != seen {
		t.Errorf("the provider saw %d requests, want %d", n, seen)
	}
}
