package claude_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

const tested = "2.1.332"

// The test binary under the name claude.exe is a fake Claude Code: a real process
// in a real terminal that lives until its test lets go of it.
func TestMain(m *testing.M) {
	if exe, err := os.Executable(); err == nil && filepath.Base(exe) == "claude.exe" {
		os.Exit(fakeClaude())
	}
	goleak.VerifyTestMain(m)
}

func fakeClaude() int {
	conn, err := net.Dial("unix", os.Getenv("FAKE_ORDERS"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(conn, os.Getpid())
	_, _ = io.Copy(io.Discard, conn)
	return 0
}

// world is one configuration directory with an adapter that looks at it.
type world struct {
	*testing.T
	ctx     context.Context
	exe     string
	home    string
	cwd     string
	now     func() time.Time
	adapter *claude.Adapter
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ctx: ctx, exe: filepath.Join(dir, "claude-code", "bin", "claude.exe"), home: filepath.Join(dir, "config"), cwd: filepath.Join(dir, "we.ird_wörk"), now: time.Now}
	for _, d := range []string{filepath.Dir(w.exe), w.cwd, filepath.Join(w.home, "sessions"), filepath.Join(w.home, "projects")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	w.adapter = claude.New(claude.Options{
		Rules: rules, Now: func() time.Time { return w.now() },
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return w
}

// member is one process that may have a session.
type member struct {
	*world
	pid     int
	pane    terminal.Pane
	cmd     *exec.Cmd
	hold    net.Conn
	master  *os.File
	session string
}

// start runs the fake in a terminal of its own, below a shell.
func (w *world) start(args ...string) *member {
	w.Helper()
	if _, err := os.Stat(w.exe); err != nil {
		self, err := os.Executable()
		if err != nil {
			w.Fatal(err)
		}
		if os.Link(self, w.exe) != nil {
			data, err := os.ReadFile(self)
			if err != nil {
				w.Fatal(err)
			}
			if err := os.WriteFile(w.exe, data, 0o755); err != nil {
				w.Fatal(err)
			}
		}
	}
	l, err := net.Listen("unix", filepath.Join(w.TempDir(), "o"))
	if err != nil {
		w.Fatal(err)
	}
	defer l.Close()
	m := &member{world: w, session: uuid.NewString()}
	m.cmd = exec.Command("/bin/sh", append([]string{"-c", "\"$CLAUDE\" \"$@\"; :", "sh"}, args...)...)
	m.cmd.Env = []string{"CLAUDE=" + w.exe, "CLAUDE_CONFIG_DIR=" + w.home, "HOME=/nonexistent", "FAKE_ORDERS=" + l.Addr().String(), "PATH=/usr/bin:/bin"}
	m.cmd.Dir = w.cwd
	master, tty, err := pty.Open()
	if err != nil {
		w.Fatal(err)
	}
	defer tty.Close()
	m.master = master
	m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = tty, tty, tty
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := m.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	m.pane = terminal.Pane{ID: "%9", PID: m.cmd.Process.Pid, TTY: tty.Name(), Width: 120, Height: 40}
	l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // a unix socket takes one
	if m.hold, err = l.Accept(); err != nil {
		w.Fatal(err)
	}
	line, err := bufio.NewReader(m.hold).ReadString('\n')
	if err != nil {
		w.Fatal(err)
	}
	if m.pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(m.end)
	return m
}

// self is the test itself as the process of a session: without a pane, and quick.
func (w *world) self() *member {
	return &member{world: w, pid: os.Getpid(), session: uuid.NewString()}
}

// end kills the fake (its shell follows) and waits.
func (m *member) end() {
	if m.hold == nil {
		return
	}
	m.hold.Close()
	m.hold = nil
	_ = syscall.Kill(m.pid, syscall.SIGKILL)
	_ = m.cmd.Wait()
	m.master.Close()
}

// inc is the process as /proc shows it.
func (m *member) inc() process.Incarnation {
	m.Helper()
	inc, err := process.Of(m.pid)
	if err != nil {
		m.Fatal(err)
	}
	return inc
}

// dir is the working directory of the process.
func (m *member) dir() string {
	m.Helper()
	if m.cmd != nil {
		return m.cwd
	}
	dir, err := os.Getwd()
	if err != nil {
		m.Fatal(err)
	}
	return dir
}

func (m *member) registryFile() string {
	return filepath.Join(m.home, "sessions", strconv.Itoa(m.pid)+".json")
}

// register writes the registry file; over replaces or, with nil, removes members.
func (m *member) register(status string, over map[string]any) {
	m.Helper()
	e := map[string]any{
		"pid": m.pid, "sessionId": m.session, "cwd": m.dir(), "startedAt": time.Now().UnixMilli(), "procStart": strconv.FormatUint(m.inc().Start, 10),
		"version": tested, "peerProtocol": 1, "kind": "interactive", "entrypoint": "cli", "tmux": "f:@9.%9",
		"messagingSocketPath": "/nonexistent", "name": "work-8f",
	}
	if status != "" {
		e["status"], e["statusUpdatedAt"], e["updatedAt"] = status, m.now().UnixMilli(), m.now().UnixMilli()
	}
	for k, v := range over {
		if v == nil {
			delete(e, k)
			continue
		}
		e[k] = v
	}
	m.write(m.registryFile(), e)
}

func (w *world) write(path string, v any) {
	w.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		w.Fatal(err)
	}
}

// find gives the process of a pane.
func (m *member) find() agent.Process {
	m.Helper()
	proc, err := m.adapter.Find(m.ctx, m.pane)
	if err != nil {
		m.Fatal(err)
	}
	return proc
}

// proc is the process as Find would give it, without a pane.
func (m *member) proc() agent.Process {
	m.Helper()
	if m.cmd != nil {
		return m.find()
	}
	return agent.Process{Agent: agent.Claude, Inc: m.inc(), Version: tested, Class: agent.Tested, Home: m.home, Cwd: m.dir(), Mode: agent.InProcess}
}

func (m *member) identify() agent.Identity {
	m.Helper()
	id, err := m.adapter.Identify(m.ctx, m.proc())
	if err != nil {
		m.Fatal(err)
	}
	return id
}

func (m *member) anchor() agent.Anchor {
	m.Helper()
	a, err := m.adapter.Anchor(m.ctx, m.proc())
	if err != nil {
		m.Fatal(err)
	}
	return a
}

func (w *world) prepare(text string) agent.Prepared {
	w.Helper()
	p, err := w.adapter.Prepare(text)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) accept(anchor agent.Anchor, p agent.Prepared) (agent.Acceptance, agent.Verdict) {
	w.Helper()
	acc, v, err := w.adapter.Accept(w.ctx, anchor, p)
	if err != nil {
		w.Fatal(err)
	}
	return acc, v
}

func (w *world) progress(task agent.Task, at agent.Position) agent.Progress {
	w.Helper()
	p, err := w.adapter.Progress(w.ctx, task, at)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// transcript is the transcript of a member and its writer.
type transcript struct {
	*member
	path string
	tip  string // last record of the chain
	at   func() time.Time
}

// transcript names the member's transcript; nothing is on disk yet.
func (m *member) transcript() *transcript {
	return &transcript{member: m, path: filepath.Join(m.home, "projects", claude.Slug(m.dir()), m.session+".jsonl"), at: time.Now}
}

func (t *transcript) raw(text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(t.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(f, text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// record appends one record behind the tip of the chain and gives its id.
func (t *transcript) record(kind string, over map[string]any) string {
	t.Helper()
	id := uuid.NewString()
	r := map[string]any{
		"parentUuid": nil, "isSidechain": false, "type": kind, "uuid": id, "timestamp": t.at().UTC().Format("2006-01-02T15:04:05.000Z"),
		"userType": "external", "entrypoint": "cli", "cwd": t.dir(), "sessionId": t.session, "version": tested,
	}
	if t.tip != "" {
		r["parentUuid"] = t.tip
	}
	for k, v := range over {
		r[k] = v
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.raw(string(line) + "\n")
	t.tip = r["uuid"].(string)
	return t.tip
}

// prompt is a request that a person typed.
func (t *transcript) prompt(text string, over map[string]any) string {
	t.Helper()
	r := map[string]any{
		"promptId": uuid.NewString(), "promptSource": "typed", "origin": map[string]any{"kind": "human"},
		"message": map[string]any{"role": "user", "content": text},
	}
	for k, v := range over {
		r[k] = v
	}
	return t.record("user", r)
}

// says is one message of the model.
func (t *transcript) says(stop any, blocks ...map[string]any) string {
	t.Helper()
	var id string
	message := "msg_" + uuid.NewString()
	for _, b := range blocks {
		id = t.record("assistant", map[string]any{"message": map[string]any{
			"id": message, "role": "assistant", "model": "claude-x", "stop_reason": stop, "content": []any{b},
		}})
	}
	return id
}

func words(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

func use(id, name string, input map[string]any) map[string]any {
	return map[string]any{"type": "tool_use", "id": id, "name": name, "input": input}
}

// result answers a call.
func (t *transcript) result(id string) string {
	t.Helper()
	return t.record("user", map[string]any{"toolUseResult": map[string]any{}, "message": map[string]any{
		"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": id, "content": "done", "is_error": false}},
	}})
}

// closes ends a turn.
func (t *transcript) closes() string {
	t.Helper()
	return t.record("system", map[string]any{"subtype": "turn_duration", "durationMs": 5, "messageCount": 3})
}

// interrupted ends a turn by a person.
func (t *transcript) interrupted() string {
	t.Helper()
	return t.record("user", map[string]any{"message": map[string]any{"role": "user", "content": []any{words("[Request interrupted by user]")}}})
}

// turn writes one whole turn.
func (t *transcript) turn(text string) string {
	t.Helper()
	id := t.prompt(text, nil)
	t.says("end_turn", words("answer to "+text))
	t.closes()
	return id
}

func fileID(fi os.FileInfo) agent.FileID {
	st := fi.Sys().(*syscall.Stat_t)
	return agent.FileID{Dev: st.Dev, Ino: st.Ino}
}
