package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/callback"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit/scripted"
	"drawbridge/watchd/internal/sweep"
)

const (
	patience = 20 * time.Second
	serving  = "WATCHD_TEST_SERVES" // set: the test binary is watchd
)

func TestMain(m *testing.M) {
	switch {
	case scripted.Wanted():
		os.Exit(scripted.Main())
	case os.Getenv(serving) != "":
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// private makes a directory with a short name that goes with the test.
func private(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "db-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// eventually polls f until it gives nil.
func eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v still: %v", within, err)
		}
	}
}

// is makes a condition an error until it holds.
func is(ok bool, what string) error {
	if !ok {
		return errors.New("not so: " + what)
	}
	return nil
}

// A world is a Store and a tmux server with scripted agents, and the Desk that
// bridge would have.
type world struct {
	t       *testing.T
	dir     string
	bin     string
	socket  string
	runtime string
	root    string // Store directory
	store   *store.Store
	tmux    *terminal.Tmux
	desk    *handoff.Desk
	panes   int
	calls   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	w := &world{
		t: t, dir: t.TempDir(), bin: t.TempDir(), runtime: private(t), root: private(t),
		socket: filepath.Join(private(t), "s"),
	}
	if _, err := scripted.Install(w.bin); err != nil {
		t.Fatal(err)
	}
	w.tmux = terminal.New(terminal.Options{Sockets: []string{w.socket}})
	var err error
	if w.store, err = store.Open(t.Context(), store.Options{Dir: w.root, Program: "test"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.desk, _ = w.newDesk(nil)
	return w
}

// newDesk makes a Desk with what a Sweeper needs besides; their actors run until
// the test ends.
func (w *world) newDesk(bend func(agent.Adapter) agent.Adapter) (*handoff.Desk, *sweep.Sweeper) {
	w.t.Helper()
	rules, err := rule.Load("")
	if err != nil {
		w.t.Fatal(err)
	}
	route, err := callback.ParseRoute([]byte(`{"schema":"agent-knock-knock/callback-route","version":1,"transport":"command_json_v1","profile_id":"p","profile_revision":"1","controller_session_id":"session","capabilities":{"wake":true,"respond":true}}`))
	if err != nil {
		w.t.Fatal(err)
	}
	var adapter agent.Adapter = codex.New(codex.Options{Rules: rules})
	if bend != nil {
		adapter = bend(adapter)
	}
	s := &sweep.Sweeper{
		Store: w.store, Leases: store.NewKeeper(w.store, nil), Bell: store.NewDoorbell(w.store, nil), Files: files.New(nil),
		Tmux: w.tmux, Interval: interval, Log: slog.New(slog.DiscardHandler),
	}
	s.Desk = handoff.New(handoff.Options{
		Store: w.store, Leases: s.Leases, Bell: s.Bell, Files: s.Files, Tmux: w.tmux, Agents: []agent.Adapter{adapter},
		RuntimeDir: w.runtime, Controller: "session", Route: &route, Log: s.Log,
	})
	w.run(s.Leases.Run)
	w.run(s.Bell.Run)
	w.run(s.Files.Run)
	return s.Desk, s
}

// run runs an actor until the test ends.
func (w *world) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// A pane holds one scripted agent that works until its gate is opened.
type pane struct {
	w    *world
	name string
	tid  string
	home string
	turn string // when the work is a Turn
	look string // when it is watched: the Watch
}

func (w *world) agent() *pane {
	w.t.Helper()
	w.panes++
	p := &pane{w: w, name: fmt.Sprintf("a%d", w.panes)}
	p.home = filepath.Join(w.dir, p.name)
	if err := os.Mkdir(p.home, 0o700); err != nil {
		w.t.Fatal(err)
	}
	p.tid = strings.TrimSpace(w.tmuxDo("-f", "/dev/null", "new-session", "-d", "-P", "-F", "#{pane_id}", "-s", p.name, "-x", "100", "-y", "30", "-c", w.dir,
		"-e", "CODEX_HOME="+p.home, "-e", "PATH="+w.bin+":"+os.Getenv("PATH"), "exec "+filepath.Join(w.bin, scripted.Name)))
	if w.panes == 1 {
		w.t.Cleanup(func() { _ = exec.Command("tmux", "-S", w.socket, "kill-server").Run() })
	}
	return p
}

func (w *world) tmuxDo(args ...string) string {
	w.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", w.socket}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// offered waits until list offers a tool for the pane and gives the terminal id.
func (p *pane) offered(tool string) (id string) {
	p.w.t.Helper()
	eventually(p.w.t, patience, func() error {
		out, err := p.w.desk.List(p.w.t.Context(), handoff.ListInput{})
		if err != nil {
			return err
		}
		l := out.Body.(handoff.ListResult)
		for _, r := range l.Terminals {
			if strings.Contains(r.ID, ":"+p.name+":") && r.Actions[tool].Tool != "" {
				id = r.ID
				return nil
			}
		}
		return fmt.Errorf("%s is not offered for %s: %+v", tool, p.name, l.Terminals)
	})
	return id
}

func (p *pane) gate() string { return p.home + ".gate" }

func (p *pane) open() {
	p.w.t.Helper()
	if err := os.WriteFile(p.gate(), nil, 0o600); err != nil {
		p.w.t.Fatal(err)
	}
}

// working starts an agent that works on a Turn.
func (w *world) working() *pane {
	w.t.Helper()
	p := w.agent()
	id := p.offered("send")
	w.calls++
	call, _ := json.Marshal([]any{"instance", w.calls})
	out, err := w.desk.Send(w.t.Context(), handoff.Call{ToolCallID: "host-bridge:" + string(call), Tool: "agent_knock_knock_send"},
		handoff.SendInput{TerminalID: id, Request: p.name + " hold:" + p.gate()})
	if err != nil {
		w.t.Fatal(err)
	}
	r := out.Body.(handoff.SendResult)
	if r.Outcome != "agent_accepted" {
		w.t.Fatalf("send: %+v", r)
	}
	p.turn = r.TurnID
	return p
}

// watched starts an agent that works for a person, and a Watch of it.
func (w *world) watched() *pane {
	w.t.Helper()
	p := w.agent()
	p.offered("send")
	w.tmuxDo("send-keys", "-t", p.tid, "-l", p.name+" hold:"+p.gate())
	w.tmuxDo("send-keys", "-t", p.tid, "Enter")
	out, err := w.desk.Watch(w.t.Context(), handoff.Call{}, handoff.WatchInput{TerminalID: p.offered("watch")})
	if err != nil {
		w.t.Fatal(err)
	}
	p.look = out.Body.(map[string]any)["watch"].(handoff.WatchView).ID
	return p
}

// ended waits until the work of a pane is told as done, exactly once.
func (p *pane) ended(within time.Duration) {
	p.w.t.Helper()
	ctx := context.Background()
	eventually(p.w.t, within, func() error {
		if p.look != "" {
			row, err := p.w.store.Watch(ctx, p.look)
			if err == nil && row.Status != store.WatchCompleted {
				err = fmt.Errorf("the watch of %s is %s", p.name, row.Status)
			}
			return err
		}
		turn, err := p.w.store.Turn(ctx, p.turn)
		if err == nil && turn.Status != store.TurnIdle {
			err = fmt.Errorf("the turn of %s is %s", p.name, turn.Status)
		}
		return err
	})
	p.told(1)
}

// told wants n callbacks about the pane's work.
func (p *pane) told(n int) {
	p.w.t.Helper()
	ctx := context.Background()
	rows, err := p.w.store.TurnCallbacks(ctx, p.turn)
	if p.look != "" {
		rows, err = p.w.store.WatchCallbacks(ctx, p.look)
	}
	if err != nil || len(rows) != n {
		p.w.t.Errorf("%s: %d callbacks, want %d: %v", p.name, len(rows), n, err)
	}
}

// lines is a log for several goroutines.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) text() string {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.String()
}
