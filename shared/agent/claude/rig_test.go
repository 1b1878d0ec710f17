package claude_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// rig is a real Claude Code in real tmux panes, with a scripted model.
type rig struct {
	testing.TB
	ctx     context.Context
	binary  string
	home    string // HOME
	work    string
	socket  string
	url     string
	tmux    *terminal.Tmux
	adapter *claude.Adapter
	once    sync.Once
}

// rigKey is no secret: the scripted model ignores it. Its last 20 characters are
// approved in the configuration.
const rigKey = "rig-key-of-no-value-000000000"

// newRig makes a home and a work tree and serves a model; nothing runs yet. The
// test is skipped where the environment names no binary of the version.
func newRig(t *testing.T, version string) *rig {
	t.Helper()
	name := "DRAWBRIDGE_CLAUDE_" + strings.ReplaceAll(version, ".", "_")
	binary := os.Getenv(name)
	if binary == "" {
		t.Skipf("%s does not name a Claude Code %s", name, version)
	}
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("no tmux")
	}
	dir, err := os.MkdirTemp("", "drawbridge-claude")
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
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	model := httptest.NewServer(http.HandlerFunc(serveModel))
	t.Cleanup(model.Close)
	t.Cleanup(model.CloseClientConnections)
	set, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	r := &rig{TB: t, ctx: ctx, binary: binary, home: filepath.Join(dir, "home"), work: filepath.Join(dir, "w.ö rk"), socket: filepath.Join(dir, "s"), url: model.URL}
	for _, d := range []string{r.home, r.work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config, err := json.Marshal(map[string]any{
		"hasCompletedOnboarding": true, "theme": "dark",
		"projects":              map[string]any{r.work: map[string]any{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}},
		"customApiKeyResponses": map[string]any{"approved": []string{rigKey[len(rigKey)-20:]}, "rejected": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.home, ".claude.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	r.tmux = terminal.New(terminal.Options{Sockets: []string{r.socket}})
	r.adapter = claude.New(claude.Options{Rules: set})
	t.Cleanup(r.stop)
	return r
}

// stop ends the tmux server and waits for the agents: they still write files when
// their terminal goes.
func (r *rig) stop() {
	out, _ := exec.Command("tmux", "-S", r.socket, "list-panes", "-a", "-F", "#{pane_pid}").Output()
	_ = exec.Command("tmux", "-S", r.socket, "kill-server").Run()
	for _, field := range strings.Fields(string(out)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && syscall.Kill(pid, 0) == nil; {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (r *rig) tm(args ...string) string {
	r.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", r.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TERM=xterm"} // with CI=true it would draw without any style
	out, err := cmd.CombinedOutput()
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

// start runs Claude Code in a new pane and waits until it is ready.
func (r *rig) start(args ...string) *pane {
	r.Helper()
	p := r.launch(r.work, args...)
	p.ready()
	return p
}

func (r *rig) launch(dir string, args ...string) *pane {
	r.Helper()
	id := r.tm("new-session", "-d", "-P", "-F", "#{pane_id}", "-x", "120", "-y", "40", "-c", dir,
		"-e", "HOME="+r.home, "-e", "LANG=C.UTF-8", "-e", "ANTHROPIC_BASE_URL="+r.url, "-e", "ANTHROPIC_API_KEY="+rigKey,
		"-e", "DISABLE_AUTOUPDATER=1", "-e", "DISABLE_TELEMETRY=1", "-e", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "-e", "CLAUDE_CODE_MAX_RETRIES=1",
		strings.Join(append([]string{"exec", r.binary, "--permission-mode", "manual"}, args...), " "))
	// Everything ends when this test process is gone without having cleaned up.
	r.once.Do(func() {
		r.tm("run-shell", "-b", fmt.Sprintf(`while [ -e /proc/%[1]d ] && ! grep -q '^State:.Z' /proc/%[1]d/status; do sleep 1; done
(sleep 2; rm -rf %[2]s) & tmux -S %[3]s kill-server`, os.Getpid(), filepath.Dir(r.home), r.socket))
	})
	return &pane{r, id}
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
		return agent.Reading{State: agent.Unknown, Name: err.Error()}
	}
	screen, err := p.tmux.Settled(p.ctx, p.look(), 120*time.Millisecond, 2*time.Second)
	if err != nil {
		return agent.Reading{State: agent.Unknown, Name: err.Error()}
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

// ready waits for an empty composer and a process that says it is idle.
func (p *pane) ready() {
	p.Helper()
	p.until(120*time.Second, func() string {
		got := p.reading()
		if got.State != agent.Idle || !got.Composer.Empty {
			return fmt.Sprintf("pane is %s (%s), not idle:\n%s", got.State, got.Name, p.text())
		}
		if id := p.identity(); id.Activity != agent.ActivityIdle {
			return fmt.Sprintf("the process is %s (%s): %s", id.State, id.Activity, id.Reason)
		}
		return ""
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

func (p *pane) identity() agent.Identity {
	p.Helper()
	id, err := p.adapter.Identify(p.ctx, p.proc())
	if err != nil {
		p.Fatal(err)
	}
	return id
}

func (p *pane) press(k terminal.Key) {
	p.Helper()
	if err := p.tmux.Press(p.ctx, p.look(), k); err != nil {
		p.Fatal(err)
	}
}

// command types a closed command.
func (p *pane) command(text string) {
	p.Helper()
	p.tm("send-keys", "-t", p.id, "-l", text)
	p.until(20*time.Second, func() string {
		if strings.Contains(p.text(), text) {
			return ""
		}
		return "the command is not shown:\n" + p.text()
	})
	time.Sleep(500 * time.Millisecond) // the popup of commands settles
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

// send prepares, anchors, pastes, proves the draft, submits and waits for the
// acceptance.
func (p *pane) send(text string) sent {
	p.Helper()
	s := p.enter(text)
	begin := time.Now()
	p.until(60*time.Second, func() string {
		var err error
		if s.acc, s.verdict, err = p.adapter.Accept(p.ctx, s.anchor, s.pre); err != nil {
			p.Fatal(err)
		}
		s.took = time.Since(begin)
		if s.verdict == agent.Pending {
			return "not accepted:\n" + p.text()
		}
		return ""
	})
	return s
}

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
	if err := p.tmux.Paste(p.ctx, p.look(), pre.Typed, terminal.LineFeeds); err != nil {
		p.Fatal(err)
	}
	p.until(15*time.Second, func() string {
		got := p.reading()
		if got.State == agent.Idle && p.adapter.Landed(got.Composer, pre) {
			return ""
		}
		return fmt.Sprintf("draft of %d characters not proven: %s %s %+v\n%s", len([]rune(pre.Typed)), got.State, got.Name, got.Composer, p.text())
	})
	p.press(terminal.Enter)
	return sent{pre: pre, anchor: anchor}
}

// follow reads a task until it has an end.
func (r *rig) follow(task agent.Task) agent.Progress {
	r.Helper()
	var p agent.Progress
	var at agent.Position
	r.until(90*time.Second, func() string {
		var err error
		if p, err = r.adapter.Progress(r.ctx, task, at); err != nil {
			r.Fatal(err)
		}
		at = p.Checkpoint
		if p.State == agent.Open {
			return fmt.Sprintf("the turn has no end: %+v", p)
		}
		return ""
	})
	return p
}

// waiting reads a task until a call waits for a person.
func (p *pane) waiting(task agent.Task) agent.Call {
	p.Helper()
	var out agent.Call
	p.until(60*time.Second, func() string {
		got, err := p.adapter.Progress(p.ctx, task, agent.Position{})
		if err != nil {
			p.Fatal(err)
		}
		if got.Waiting == nil {
			return fmt.Sprintf("no waiting call: %+v\n%s", got, p.text())
		}
		out = *got.Waiting
		return ""
	})
	return out
}

// shows waits for a state of the screen.
func (p *pane) shows(want agent.State) agent.Reading {
	p.Helper()
	var got agent.Reading
	p.until(30*time.Second, func() string {
		if got = p.reading(); got.State != want {
			return fmt.Sprintf("the screen is %s (%s), not %s:\n%s", got.State, got.Name, want, p.text())
		}
		return ""
	})
	return got
}

var messageNumber atomic.Int64

// serveModel is the scripted model. A request answers with its own text, or does
// what it says behind SCN=.
func serveModel(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodHead:
		return
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		_, _ = w.Write([]byte(`{"input_tokens":10}`))
		return
	case r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/messages"):
		http.NotFound(w, r)
		return
	}
	var req struct {
		Tools    []struct{ Name string }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The newest request of the user, and whether tools were answered since.
	text, answered := "", false
	for i := len(req.Messages) - 1; i >= 0 && text == ""; i-- {
		if req.Messages[i].Role != "user" {
			continue
		}
		var blocks []struct{ Type, Text string }
		if json.Unmarshal(req.Messages[i].Content, &blocks) != nil {
			var s string
			_ = json.Unmarshal(req.Messages[i].Content, &s)
			blocks = append(blocks, struct{ Type, Text string }{"text", s})
		}
		here := false
		for _, b := range blocks {
			switch {
			case b.Type == "tool_result":
				here = true
			case b.Type == "text" && !strings.HasPrefix(strings.TrimSpace(b.Text), "<system-reminder>") && !strings.HasPrefix(b.Text, "[Request interrupted"):
				text = b.Text
			}
		}
		answered = answered || here && text == "" // a refusal is sent together with the next request
	}
	out := reply{w: w, id: fmt.Sprintf("msg_%d", messageNumber.Add(1))}
	scene, arg, _ := strings.Cut(text[max(0, strings.Index(text, "SCN=")):], ":")
	arg = strings.TrimSpace(arg)
	switch {
	case len(req.Tools) == 0 || !strings.Contains(text, "SCN="):
		short := strings.TrimSpace(text)
		if i := strings.LastIndexByte(short, '\n'); i >= 0 {
			short = short[i+1:]
		}
		out.say("end_turn", "answer to "+short)
	case answered:
		out.say("end_turn", "after the tool")
	case scene == "SCN=E400":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"type":"error","error":{"type":"invalid_request_error","message":"scripted bad request"}}`))
	case scene == "SCN=HANG":
		out.begin()
		<-r.Context().Done()
	case scene == "SCN=SLOW":
		out.begin()
		out.block(0, map[string]any{"type": "text", "text": ""})
		for n := 0; n < 300 && r.Context().Err() == nil; n++ {
			out.delta(0, map[string]any{"type": "text_delta", "text": fmt.Sprintf("word %d. ", n)})
			time.Sleep(100 * time.Millisecond)
		}
	case scene == "SCN=BASH":
		out.call("Bash", map[string]any{"command": arg, "description": "scripted"})
	case scene == "SCN=ASK":
		out.call("AskUserQuestion", map[string]any{"questions": []any{map[string]any{
			"question": "Which database?", "header": "Database", "multiSelect": false,
			"options": []any{map[string]any{"label": "SQLite", "description": "One file"}, map[string]any{"label": "Postgres", "description": "A server"}},
		}}})
	}
}

// reply writes one streamed message.
type reply struct {
	w  http.ResponseWriter
	id string
}

func (o reply) event(kind string, v map[string]any) {
	v["type"] = kind
	data, _ := json.Marshal(v)
	fmt.Fprintf(o.w, "event: %s\ndata: %s\n\n", kind, data)
	o.w.(http.Flusher).Flush()
}

func (o reply) begin() {
	o.w.Header().Set("Content-Type", "text/event-stream")
	o.event("message_start", map[string]any{"message": map[string]any{
		"id": o.id, "type": "message", "role": "assistant", "content": []any{}, "model": "claude-scripted",
		"stop_reason": nil, "stop_sequence": nil, "usage": map[string]any{"input_tokens": 10, "output_tokens": 1},
	}})
}

func (o reply) block(n int, b map[string]any) {
	o.event("content_block_start", map[string]any{"index": n, "content_block": b})
}

func (o reply) delta(n int, d map[string]any) {
	o.event("content_block_delta", map[string]any{"index": n, "delta": d})
}

func (o reply) end(stop string) {
	o.event("content_block_stop", map[string]any{"index": 0})
	o.event("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 5}})
	o.event("message_stop", map[string]any{})
}

func (o reply) say(stop, text string) {
	o.begin()
	o.block(0, map[string]any{"type": "text", "text": ""})
	o.delta(0, map[string]any{"type": "text_delta", "text": text})
	o.end(stop)
}

func (o reply) call(name string, input map[string]any) {
	o.begin()
	o.block(0, map[string]any{"type": "tool_use", "id": "toolu_" + o.id, "name": name, "input": map[string]any{}})
	data, _ := json.Marshal(input)
	o.delta(0, map[string]any{"type": "input_json_delta", "partial_json": string(data)})
	o.end("tool_use")
}
