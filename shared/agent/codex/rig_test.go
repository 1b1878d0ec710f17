package codex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// rig is a real Codex in real tmux panes, with a scripted model.
type rig struct {
	testing.TB
	ctx     context.Context
	binary  string
	home    string
	work    string
	socket  string
	tmux    *terminal.Tmux
	adapter *codex.Adapter
	once    sync.Once
}

// realCodex gives the binary of one version; the test is skipped where the
// environment names none.
func realCodex(t *testing.T, version string) string {
	t.Helper()
	name := "DRAWBRIDGE_CODEX_" + strings.ReplaceAll(version, ".", "_")
	path := os.Getenv(name)
	if path == "" {
		t.Skipf("%s does not name a Codex %s", name, version)
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("no tmux")
	}
	return path
}

// newRig makes a home and a work tree and serves a model; nothing runs yet.
func newRig(t *testing.T, version string, daemon bool) *rig {
	t.Helper()
	binary := realCodex(t, version)
	cache, err := os.UserCacheDir() // not /tmp: Codex keeps its helper programs out of there
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(cache, "drawbridge-test"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Join(cache, "drawbridge-test"), "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 50 { // a process that is just ending may still write
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("%s was not removed", dir)
	})
	model := httptest.NewServer(http.HandlerFunc(serveModel))
	t.Cleanup(model.Close)
	set, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	r := &rig{TB: t, ctx: ctx, binary: binary, home: filepath.Join(dir, "home"), work: filepath.Join(dir, "work"), socket: filepath.Join(dir, "s")}
	for _, d := range []string{r.home, r.work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	features := "[features]\ndaemon_auto_start = false\n"
	if daemon || version == "0.148.0" {
		features = ""
	}
	config := fmt.Sprintf(`model = "gpt-5-codex"
model_provider = "fake"
check_for_update_on_startup = false
approval_policy = "on-request"
sandbox_mode = "workspace-write"
%s[analytics]
enabled = false
[model_providers.fake]
name = "fake"
base_url = %q
env_key = "FAKE_KEY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 1
stream_max_retries = 1
[projects.%q]
trust_level = "trusted"
`, features, model.URL+"/v1", r.work)
	if err := os.WriteFile(filepath.Join(r.home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "t"}} {
		if out, err := exec.Command("git", append([]string{"-C", r.work}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	r.tmux = terminal.New(terminal.Options{Sockets: []string{r.socket}})
	r.adapter = codex.New(codex.Options{Rules: set, Control: daemon})
	t.Cleanup(r.stop)
	return r
}

// stop ends the tmux server, and the daemon of the home by its own pid files.
func (r *rig) stop() {
	_ = exec.Command("tmux", "-S", r.socket, "kill-server").Run()
	for _, name := range []string{"daemon-updater.pid", "daemon.pid"} {
		data, err := os.ReadFile(filepath.Join(r.home, "app-server-daemon", name))
		if err != nil {
			continue
		}
		var j struct {
			PID int `json:"pid"`
		}
		if json.Unmarshal(data, &j) == nil && j.PID > 1 {
			_ = syscall.Kill(j.PID, syscall.SIGTERM)
			for n := 0; n < 100 && syscall.Kill(j.PID, 0) == nil; n++ {
				if n == 50 {
					_ = syscall.Kill(j.PID, syscall.SIGKILL)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
}

func (r *rig) tm(args ...string) string {
	r.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", r.socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		r.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// pane is one TUI.
type pane struct {
	*rig
	id string
}

// start runs Codex in a new pane and waits until it is ready.
func (r *rig) start(args ...string) *pane {
	r.Helper()
	p := r.launch(args...)
	p.ready()
	return p
}

func (r *rig) launch(args ...string) *pane {
	r.Helper()
	command := "exec " + r.binary
	if strings.HasSuffix(r.binary, ".js") {
		command = "exec node " + r.binary
	}
	id := r.tm("new-session", "-d", "-P", "-F", "#{pane_id}", "-x", "120", "-y", "40", "-c", r.work,
		"-e", "CODEX_HOME="+r.home, "-e", "FAKE_KEY=x", strings.Join(append([]string{command}, args...), " "))
	r.once.Do(r.lifeline)
	return &pane{r, id}
}

// lifeline ends everything when this test process is gone without having cleaned
// up (killed, or out of time).
func (r *rig) lifeline() {
	r.Helper()
	r.tm("run-shell", "-b", fmt.Sprintf(`while [ -e /proc/%[1]d ] && ! grep -q '^State:.Z' /proc/%[1]d/status; do sleep 1; done
kill $(sed -n 's/^{"pid":\([0-9]*\),.*/\1/p' %[2]s/home/app-server-daemon/*.pid 2>/dev/null) 2>/dev/null
(sleep 2; rm -rf %[2]s) & tmux -S %[3]s kill-server`, os.Getpid(), filepath.Dir(r.home), r.socket))
}

func (p *pane) look() terminal.Pane {
	p.Helper()
	list, err := p.tmux.Panes(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	for _, q := range list.Panes {
		if q.ID == p.id {
			return q
		}
	}
	p.Fatalf("pane %s is gone", p.id)
	return terminal.Pane{}
}

func (p *pane) reading() agent.Reading {
	p.Helper()
	proc, err := p.adapter.Find(p.ctx, p.look())
	if err != nil {
		return agent.Reading{State: agent.Unknown}
	}
	screen, err := p.tmux.Settled(p.ctx, p.look(), 120*time.Millisecond, 2*time.Second)
	if err != nil {
		return agent.Reading{State: agent.Unknown}
	}
	return p.adapter.Read(proc.Version, screen)
}

func (p *pane) text() string { return p.tm("capture-pane", "-p", "-t", p.id) }

// until polls a condition that says what is still missing.
func (r *rig) until(d time.Duration, f func() string) {
	r.Helper()
	end := time.Now().Add(d)
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			r.Fatal(why)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *pane) ready() {
	p.Helper()
	p.until(120*time.Second, func() string {
		got := p.reading()
		if got.State == agent.Idle && got.Composer.Empty {
			return ""
		}
		return fmt.Sprintf("pane is %s (%s), not idle:\n%s", got.State, got.Name, p.text())
	})
}

func (p *pane) proc() agent.Process {
	p.Helper()
	proc, err := p.adapter.Find(p.ctx, p.look())
	if err != nil {
		p.Fatal(err)
	}
	return proc
}

// land pastes a prepared request and waits for the proof that it stands there.
func (p *pane) land(pre agent.Prepared) {
	p.Helper()
	if err := p.tmux.Paste(p.ctx, p.look(), pre.Typed); err != nil {
		p.Fatal(err)
	}
	p.until(10*time.Second, func() string {
		got := p.reading()
		if p.adapter.Landed(got.Composer, pre) {
			return ""
		}
		return fmt.Sprintf("draft of %d characters not proven: %s %s %+v\n%s", len([]rune(pre.Typed)), got.State, got.Name, got.Composer, p.text())
	})
}

func (p *pane) press(k terminal.Key) {
	p.Helper()
	if err := p.tmux.Press(p.ctx, p.look(), k); err != nil {
		p.Fatal(err)
	}
}

// clear empties the composer as a person would. More keys at once than these keep
// the TUI drawing for seconds.
func (p *pane) clear() {
	p.Helper()
	for range 40 {
		p.tm("send-keys", "-t", p.id, "C-e", "C-u", "C-u", "C-u", "C-u", "C-u", "C-u", "C-u", "C-u")
		time.Sleep(50 * time.Millisecond)
		if !strings.Contains(p.text(), "Ask Codex to do anything") {
			continue
		}
		if got := p.reading(); got.Composer.Seen && got.Composer.Empty {
			return
		}
	}
	p.Fatalf("composer was not cleared:\n%s", p.text())
}

// command types a local command.
func (p *pane) command(text string) {
	p.Helper()
	p.tm("send-keys", "-t", p.id, "-l", text)
	time.Sleep(300 * time.Millisecond) // the popup of commands settles
	p.tm("send-keys", "-t", p.id, "Enter")
}

// sent is one request and what became of it.
type sent struct {
	pre     agent.Prepared
	anchor  agent.Anchor
	acc     agent.Acceptance
	verdict agent.Verdict
	took    time.Duration // Enter → decided
}

// enter prepares, anchors, pastes and submits.
func (p *pane) enter(text string) sent {
	p.Helper()
	pre, err := p.adapter.Prepare(text)
	if err != nil {
		p.Fatal(err)
	}
	anchor, err := p.adapter.Anchor(p.ctx, p.proc())
	if err != nil {
		p.Fatal(err)
	}
	p.land(pre)
	p.press(terminal.Enter)
	return sent{pre: pre, anchor: anchor}
}

// await polls for the decision.
func (r *rig) await(s *sent) {
	r.Helper()
	begin := time.Now()
	r.until(15*time.Second, func() string {
		acc, verdict, err := r.adapter.Accept(r.ctx, s.anchor, s.pre)
		if verdict == agent.Pending {
			return fmt.Sprintf("still pending: %v", err)
		}
		s.acc, s.verdict, s.took = acc, verdict, time.Since(begin)
		return ""
	})
}

func (p *pane) send(text string) sent {
	p.Helper()
	s := p.enter(text)
	p.await(&s)
	return s
}

// follow waits until the task is in a state other than Open.
func (r *rig) follow(task agent.Task) agent.Progress {
	r.Helper()
	var out agent.Progress
	var at agent.Position
	r.until(60*time.Second, func() string {
		got, err := r.adapter.Progress(r.ctx, task, at)
		if err != nil {
			r.Fatal(err)
		}
		if got.Checkpoint.Offset < at.Offset {
			r.Fatalf("checkpoint went back from %d to %d", at.Offset, got.Checkpoint.Offset)
		}
		at, out = got.Checkpoint, got
		if got.State == agent.Open {
			return "turn is still open"
		}
		return ""
	})
	return out
}

var scenario = regexp.MustCompile(`SCN=([A-Z0-9]+)(?::(\S+))?`)

// serveModel answers Responses requests by a word in the last user message.
func serveModel(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet {
		fmt.Fprint(w, `{"object":"list","data":[],"models":[]}`)
		return
	}
	data, _ := io.ReadAll(req.Body)
	var body struct {
		Input []struct {
			Type, Role string
			Content    json.RawMessage
		} `json:"input"`
	}
	_ = json.Unmarshal(data, &body)
	last, outputs := "", 0
	for _, it := range body.Input {
		switch {
		case it.Type == "message" && it.Role == "user":
			var parts []struct{ Text string }
			_ = json.Unmarshal(it.Content, &parts)
			text := ""
			for _, p := range parts {
				text += p.Text
			}
			if strings.HasPrefix(text, "<environment_context>") || strings.HasPrefix(text, "<turn_aborted>") || strings.HasPrefix(text, "# AGENTS") {
				continue
			}
			last, outputs = text, 0
		case strings.HasSuffix(it.Type, "_output"):
			outputs++
		}
	}
	name, arg := "", ""
	if m := scenario.FindStringSubmatch(last); m != nil && !strings.HasPrefix(last, "Generate a concise") {
		name, arg = m[1], m[2]
	}
	if name == "E500" {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"error":{"message":"scripted failure","type":"server_error"}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(kind string, v map[string]any) {
		v["type"] = kind
		j, _ := json.Marshal(v)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, j)
		w.(http.Flusher).Flush()
	}
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	event("response.created", map[string]any{"response": map[string]any{"id": "r" + id}})
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-req.Context().Done():
		}
	}
	say := func(text string) {
		item := map[string]any{"type": "message", "role": "assistant", "id": "m" + id, "content": []map[string]any{{"type": "output_text", "text": text}}}
		event("response.output_item.done", map[string]any{"output_index": 0, "item": item})
	}
	switch {
	case name == "SLOW":
		n, _ := strconv.Atoi(arg)
		wait(time.Duration(n) * time.Second)
		say("slow answer")
	case name == "EXEC" && outputs == 0:
		args, _ := json.Marshal(map[string]any{"cmd": "touch " + arg, "sandbox_permissions": "require_escalated", "justification": "because"})
		event("response.output_item.done", map[string]any{"output_index": 0, "item": map[string]any{"type": "function_call", "name": "exec_command", "arguments": string(args), "call_id": "c" + id}})
	default:
		say("answer to " + strconv.Quote(firstN(last, 60)))
	}
	event("response.completed", map[string]any{"response": map[string]any{"id": "r" + id, "usage": map[string]any{"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}}})
}

func firstN(s string, n int) string {
	r := []rune(s)
	return string(r[:min(n, len(r))])
}
