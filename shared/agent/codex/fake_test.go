package codex_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

// The test binary under the name codex is a fake Codex: a real process with real
// descriptors, a real terminal and a real listening socket, that does what its
// test tells it over a unix socket.
func TestMain(m *testing.M) {
	if exe, err := os.Executable(); err == nil && filepath.Base(exe) == "codex" {
		os.Exit(fakeCodex(filepath.Dir(exe), os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func fakeCodex(dir string, args []string) int {
	if len(args) == 1 && args[0] == "--version" {
		version, err := os.ReadFile(filepath.Join(dir, "version"))
		if err != nil {
			return 1
		}
		if f, err := os.OpenFile(filepath.Join(dir, "asked"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			fmt.Fprintln(f, "x")
			f.Close()
		}
		fmt.Printf("codex-cli %s\n", version)
		return 0
	}
	conn, err := net.Dial("unix", os.Getenv("FAKE_ORDERS"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(conn, os.Getpid())
	f := &fake{files: map[string]*os.File{}, threads: map[string]string{}}
	orders := bufio.NewReader(conn)
	for {
		line, err := orders.ReadString('\n')
		if err != nil {
			return 0
		}
		answer := f.obey(strings.Fields(line))
		fmt.Fprintln(conn, answer)
	}
}

type fake struct {
	mu      sync.Mutex
	files   map[string]*os.File
	threads map[string]string // thread → port; "" for none
	active  string            // the thread that thread/read calls active
	calls   int
}

func (f *fake) obey(words []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch words[0] {
	case "open": // PATH…
		for _, path := range words[1:] {
			file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
			if err != nil {
				return err.Error()
			}
			f.files[path] = file
		}
	case "lock": // PATH…
		for _, path := range words[1:] {
			file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
			if err == nil {
				err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			}
			if err != nil {
				return err.Error()
			}
			f.files[path] = file
		}
	case "close":
		f.files[words[1]].Close()
		delete(f.files, words[1])
	case "listen":
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err.Error()
		}
		go http.Serve(l, http.NotFoundHandler()) //nolint:errcheck // ends with the process
		return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	case "serve": // SOCKET
		l, err := net.Listen("unix", words[1])
		if err != nil {
			return err.Error()
		}
		go http.Serve(l, http.HandlerFunc(f.control)) //nolint:errcheck // ends with the process
	case "thread": // THREAD [PORT]
		f.threads[words[1]] = strings.Join(words[2:], "")
	case "active": // THREAD
		f.active = words[1]
	case "calls":
		return strconv.Itoa(f.calls)
	default:
		return "no such order"
	}
	return "ok"
}

// control is the daemon's control socket.
func (f *fake) control(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		_, data, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		var req struct {
			ID     *int64
			Method string
			Params struct{ ThreadID string }
		}
		if json.Unmarshal(data, &req) != nil || req.ID == nil {
			continue
		}
		f.mu.Lock()
		f.calls++
		var result any
		switch req.Method {
		case "initialize":
			result = map[string]any{"userAgent": "fake"}
		case "thread/loaded/list":
			var list []string
			for t := range f.threads {
				list = append(list, t)
			}
			result = map[string]any{"data": list, "nextCursor": nil}
		case "thread/read":
			status := "idle"
			if f.active == req.Params.ThreadID {
				status = "active"
			}
			result = map[string]any{"thread": map[string]any{"id": req.Params.ThreadID, "status": map[string]any{"type": status}}}
		case "mcpServerStatus/list":
			servers := []any{}
			if port := f.threads[req.Params.ThreadID]; port != "" {
				servers = append(servers, map[string]any{"name": "codex_tui", "httpOrigin": "http://127.0.0.1:" + port})
			}
			result = map[string]any{"data": servers}
		}
		f.mu.Unlock()
		answer := map[string]any{"id": *req.ID, "result": result}
		if result == nil {
			answer = map[string]any{"id": *req.ID, "error": map[string]any{"code": -32600, "message": "no"}}
		}
		notice, _ := json.Marshal(map[string]any{"method": "thread/status/changed", "params": map[string]any{}})
		_ = conn.Write(r.Context(), websocket.MessageText, notice)
		out, _ := json.Marshal(answer)
		if conn.Write(r.Context(), websocket.MessageText, out) != nil {
			return
		}
	}
}

// world is one CODEX_HOME with an adapter that looks at it.
type world struct {
	*testing.T
	ctx     context.Context
	exe     string
	home    string
	cwd     string
	adapter *codex.Adapter
	rules   *rule.Set
}

func newWorld(t *testing.T, version string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ctx: ctx, exe: filepath.Join(dir, "bin", "codex"), home: filepath.Join(dir, "home"), cwd: filepath.Join(dir, "work")}
	for _, d := range []string{filepath.Dir(w.exe), w.cwd, filepath.Join(w.home, "thread-writer-locks"), filepath.Join(w.home, "sessions"), filepath.Join(w.home, "app-server-daemon"), filepath.Join(w.home, "app-server-control")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Link(self, w.exe) != nil {
		data, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.exe, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(w.exe), "version"), []byte(version), 0o600); err != nil {
		t.Fatal(err)
	}
	if w.rules, err = rule.Load(""); err != nil {
		t.Fatal(err)
	}
	w.adapter = codex.New(codex.Options{Rules: w.rules, Control: true, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))})
	return w
}

// member is one fake process and how to give it orders.
type member struct {
	*world
	cmd    *exec.Cmd
	pid    int
	orders net.Conn
	answer *bufio.Reader
	pane   terminal.Pane
	master *os.File
	port   string
}

// run starts the fake with args; in a terminal of its own, below a shell, when
// inPane.
func (w *world) run(inPane bool, argv0 string, args ...string) *member {
	w.Helper()
	l, err := net.Listen("unix", filepath.Join(w.TempDir(), "o"))
	if err != nil {
		w.Fatal(err)
	}
	defer l.Close()
	m := &member{world: w}
	env := []string{"CODEX_HOME=" + w.home, "HOME=" + w.cwd, "FAKE_ORDERS=" + l.Addr().String(), "PATH=/usr/bin:/bin"}
	if inPane {
		script := "exec_codex() { \"$CODEX\" \"$@\"; }; exec_codex \"$@\"; :"
		m.cmd = exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
		m.cmd.Env = append(env, "CODEX="+w.exe)
	} else {
		m.cmd = &exec.Cmd{Path: w.exe, Args: append([]string{argv0}, args...), Env: env}
	}
	m.cmd.Dir = w.cwd
	if inPane {
		master, tty, err := pty.Open()
		if err != nil {
			w.Fatal(err)
		}
		m.master = master
		m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = tty, tty, tty
		m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		m.pane = terminal.Pane{ID: "%1", TTY: tty.Name(), Width: 120, Height: 40}
		defer tty.Close()
	} else {
		m.cmd.Stderr = os.Stderr
		m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	if err := m.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	m.pane.PID = m.cmd.Process.Pid
	l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // a unix socket takes one
	if m.orders, err = l.Accept(); err != nil {
		w.Fatal(err)
	}
	m.answer = bufio.NewReader(m.orders)
	line, err := m.answer.ReadString('\n')
	if err != nil {
		w.Fatal(err)
	}
	if m.pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(m.end)
	return m
}

// end kills the fake (its shell follows) and waits.
func (m *member) end() {
	if m.orders == nil {
		return
	}
	m.orders.Close()
	m.orders = nil
	_ = syscall.Kill(m.pid, syscall.SIGKILL)
	_ = m.cmd.Wait()
	if m.master != nil {
		m.master.Close()
	}
}

// tell gives one order and returns the answer.
func (m *member) tell(words ...string) string {
	m.Helper()
	if _, err := fmt.Fprintln(m.orders, strings.Join(words, " ")); err != nil {
		m.Fatal(err)
	}
	line, err := m.answer.ReadString('\n')
	if err != nil {
		m.Fatal(err)
	}
	line = strings.TrimSpace(line)
	if _, err := strconv.Atoi(line); line != "ok" && err != nil {
		m.Fatalf("order %v: %s", words, line)
	}
	return line
}

// tui is a TUI in a pane.
func (w *world) tui(args ...string) *member {
	w.Helper()
	return w.run(true, "", args...)
}

// daemon is the background server of the home, with its pid file and socket.
func (w *world) daemon() *member {
	w.Helper()
	m := w.run(false, w.exe, "app-server", "--listen", "unix://", "--managed-daemon")
	inc, err := process.Of(m.pid)
	if err != nil {
		w.Fatal(err)
	}
	data := fmt.Sprintf(`{"pid":%d,"processStartTime":"x","processIdentity":{"bootId":%q,"startTicks":%d},"executableIdentity":{}}`, m.pid, inc.BootID, inc.Start)
	if err := os.WriteFile(filepath.Join(w.home, "app-server-daemon", "daemon.pid"), []byte(data), 0o600); err != nil {
		w.Fatal(err)
	}
	real := filepath.Join(w.TempDir(), "c")
	m.tell("serve", real)
	if err := os.Symlink(real, filepath.Join(w.home, "app-server-control", "app-server-control.sock")); err != nil {
		w.Fatal(err)
	}
	return m
}

func (m *member) proc() agent.Process {
	m.Helper()
	proc, err := m.adapter.Find(m.ctx, m.pane)
	if err != nil {
		m.Fatal(err)
	}
	return proc
}

// thread is one conversation and the writer of its rollout.
type thread struct {
	*world
	id      string
	path    string
	ordinal int
	at      func() time.Time
}

// newThread makes a thread of today; nothing is on disk yet.
func (w *world) newThread() *thread {
	w.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	return w.threadAt(id, time.Now())
}

func (w *world) threadAt(id string, at time.Time) *thread {
	w.Helper()
	dir := filepath.Join(w.home, "sessions", at.UTC().Format("2006/01/02"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.Fatal(err)
	}
	return &thread{world: w, id: id, path: filepath.Join(dir, "rollout-"+at.UTC().Format("2006-01-02T15-04-05")+"-"+id+".jsonl"), at: time.Now}
}

func (t *thread) lock() string {
	return filepath.Join(t.home, "thread-writer-locks", t.id+".lock")
}

// write appends records with the next ordinals.
func (t *thread) write(kind string, payload map[string]any) {
	t.Helper()
	line, err := json.Marshal(map[string]any{"timestamp": t.at().UTC().Format("2006-01-02T15:04:05.000Z"), "ordinal": t.ordinal, "type": kind, "payload": payload})
	if err != nil {
		t.Fatal(err)
	}
	t.ordinal++
	t.raw(string(line) + "\n")
}

func (t *thread) raw(text string) {
	t.Helper()
	f, err := os.OpenFile(t.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(f, text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func (t *thread) meta() {
	t.Helper()
	t.write("session_meta", map[string]any{"id": t.id, "session_id": t.id, "cwd": t.cwd, "cli_version": "0.171.0", "source": "cli", "originator": "codex-tui", "timestamp": t.at().UTC().Format(time.RFC3339Nano)})
}

func (t *thread) started() (turn string) {
	t.Helper()
	turn = uuid.Must(uuid.NewV7()).String()
	t.write("event_msg", map[string]any{"type": "task_started", "turn_id": turn, "started_at": t.at().Unix()})
	return turn
}

func (t *thread) user(turn, text string) {
	t.Helper()
	// the same text in the shape that must not be used
	t.write("response_item", map[string]any{"type": "message", "role": "user", "content": []any{map[string]any{"type": "input_text", "text": text}}})
	t.write("event_msg", map[string]any{"type": "item_completed", "thread_id": t.id, "turn_id": turn, "item": map[string]any{
		"type": "UserMessage", "id": uuid.Must(uuid.NewV7()).String(), "content": []any{map[string]any{"type": "text", "text": text, "text_elements": []any{}}}}})
}

func (t *thread) complete(turn, text string) {
	t.Helper()
	t.write("event_msg", map[string]any{"type": "task_complete", "turn_id": turn, "last_agent_message": text, "started_at": t.at().Unix(), "completed_at": t.at().Unix(), "duration_ms": 5})
}

// turn writes one whole turn.
func (t *thread) turn(text string) (id string) {
	t.Helper()
	id = t.started()
	t.user(id, text)
	t.complete(id, "answer to "+text)
	return id
}

func (w *world) prepare(text string) agent.Prepared {
	w.Helper()
	p, err := w.adapter.Prepare(text)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (m *member) anchor() agent.Anchor {
	m.Helper()
	a, err := m.adapter.Anchor(m.ctx, m.proc())
	if err != nil {
		m.Fatal(err)
	}
	return a
}

// verdict polls while the answer is Pending, at most d.
func (w *world) verdict(anchor agent.Anchor, p agent.Prepared, d time.Duration) (agent.Acceptance, agent.Verdict) {
	w.Helper()
	end := time.Now().Add(d)
	for {
		acc, v, err := w.adapter.Accept(w.ctx, anchor, p)
		if v != agent.Pending || time.Now().After(end) {
			if v == agent.Pending && err != nil {
				w.Fatal(err)
			}
			return acc, v
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func fileID(fi os.FileInfo) agent.FileID {
	st := fi.Sys().(*syscall.Stat_t)
	return agent.FileID{Dev: st.Dev, Ino: st.Ino}
}

// fuzzAdapter is shared by the fuzz targets.
var fuzzAdapter = sync.OnceValue(func() *codex.Adapter {
	set, err := rule.Load("")
	if err != nil {
		panic(err)
	}
	return codex.New(codex.Options{Rules: set})
})()
