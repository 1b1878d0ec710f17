package handoff_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

func TestMain(m *testing.M) {
	if scripted.Wanted() {
		os.Exit(scripted.Main())
	}
	if text := os.Getenv(actorVariable); text != "" {
		os.Exit(actor(text))
	}
	testkit.Leak(m)
}

const (
	controller = "trusted-session-id"
	patience   = 60 * time.Second // with other tests beside this one
)

// A world is one Store, one tmux server with scripted agents, and a Desk.
type world struct {
	t      *testing.T
	desk   *handoff.Desk
	store  *store.Store
	tmux   *terminal.Tmux
	bin    string   // folder of the agent's executable
	env    []string // further variables of agents
	socket string
	dir    string
	runDir string
	seq    int
}

// newWorld makes a world and lets the test run beside others: nearly all that a test
// here does is to wait for a screen, and no two worlds have anything in common.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	testkit.Need(t, "tmux")
	w := &world{t: t, bin: t.TempDir(), dir: t.TempDir(), runDir: testkit.RuntimeDir(t)}
	sockets := testkit.RuntimeDir(t) // short path
	w.socket = filepath.Join(sockets, "s")
	if _, err := scripted.Install(w.bin); err != nil {
		t.Fatal(err)
	}
	w.tmux = terminal.New(terminal.Options{Sockets: []string{w.socket}})
	w.store = w.openStore(testkit.StoreDir(t))
	w.desk = w.newDesk(w.store)
	return w
}

func (w *world) openStore(dir string) *store.Store {
	w.t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: dir, Program: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return s
}

// newDesk makes a Desk whose keeper, bell and file watcher run until the test
// ends; bend may put something before its adapter.
func (w *world) newDesk(s *store.Store, bend ...func(agent.Adapter) agent.Adapter) *handoff.Desk {
	w.t.Helper()
	rules, err := rule.Load("")
	if err != nil {
		w.t.Fatal(err)
	}
	route, err := callback.ParseRoute([]byte(`{"schema":"agent-knock-knock/callback-route","version":1,"transport":"command_json_v1","profile_id":"p","profile_revision":"1","controller_session_id":"` + controller + `","capabilities":{"wake":true,"respond":true}}`))
	if err != nil {
		w.t.Fatal(err)
	}
	var adapter agent.Adapter = codex.New(codex.Options{Rules: rules})
	for _, f := range bend {
		adapter = f(adapter)
	}
	keeper, watcher := store.NewKeeper(s, nil), files.New(nil)
	w.run(keeper.Run)
	w.run(watcher.Run)
	return handoff.New(handoff.Options{
		Store: s, Leases: keeper, Tmux: w.tmux, Files: watcher,
		Agents:     []agent.Adapter{adapter},
		RuntimeDir: w.runDir, Controller: controller, Route: &route,
		Log: slog.New(slog.DiscardHandler),
	})
}

// run runs an actor until the test ends.
func (w *world) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
}

// A pane holds one scripted agent.
type pane struct {
	w    *world
	id   string // terminal id
	tid  string // tmux pane id
	home string
	work string
}

// agent starts a scripted agent in a pane of its own and waits until list can
// send to it.
func (w *world) agent(size ...string) *pane {
	w.t.Helper()
	w.seq++
	name := "a" + string(rune('0'+w.seq))
	p := &pane{w: w, home: filepath.Join(w.dir, name, "home"), work: filepath.Join(w.dir, name, "work")}
	for _, d := range []string{p.home, p.work} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	width, height := "100", "30"
	if len(size) == 2 {
		width, height = size[0], size[1]
	}
	args := []string{"-f", "/dev/null", "new-session", "-d", "-P", "-F", "#{pane_id}", "-s", name, "-x", width, "-y", height, "-c", p.work}
	for _, e := range append([]string{"CODEX_HOME=" + p.home, "PATH=" + w.bin + ":" + os.Getenv("PATH"), scripted.KeysVariable + "=" + p.keysFile()}, w.env...) {
		args = append(args, "-e", e)
	}
	out := w.tmuxDo(append(args, "exec "+filepath.Join(w.bin, scripted.Name))...)
	p.tid = strings.TrimSpace(out)
	if w.seq == 1 {
		w.t.Cleanup(func() { _ = exec.Command("tmux", "-S", w.socket, "kill-server").Run() })
	}
	testkit.EventuallyNil(w.t, patience, func() error {
		l := w.list()
		for _, r := range l.Terminals {
			if strings.Contains(r.ID, ":"+name+":") && r.Actions["send"].Tool != "" {
				p.id = r.ID
				return nil
			}
		}
		b, _ := json.MarshalIndent(l.Terminals, "", " ")
		return fmt.Errorf("agent %s is not ready: %s %v", name, b, l.Scan)
	})
	return p
}

func (w *world) tmuxDo(args ...string) string {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command("tmux", append([]string{"-S", w.socket}, args...)...).CombinedOutput()
		if err == nil {
			return string(out)
		}
		// The server that ends may still take the call for which a new one is meant.
		if !strings.Contains(string(out), "server exited unexpectedly") || time.Now().After(end) {
			w.t.Fatalf("tmux %q: %v: %s", args, err, out)
		}
	}
}

func (w *world) list() handoff.ListResult {
	w.t.Helper()
	out, err := w.desk.List(context.Background(), handoff.ListInput{TerminalDebug: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Body.(handoff.ListResult)
}

var calls atomic.Int64

func newCall() handoff.Call {
	id, _ := json.Marshal([]any{"instance", calls.Add(1)})
	return handoff.Call{ToolCallID: "host-bridge:" + string(id), Tool: "agent_knock_knock_send"}
}

func (p *pane) send(text string) (handoff.SendResult, error) {
	p.w.t.Helper()
	out, err := p.w.desk.Send(context.Background(), newCall(), handoff.SendInput{TerminalID: p.id, Request: text})
	if err != nil {
		return handoff.SendResult{}, err
	}
	return out.Body.(handoff.SendResult), nil
}

func (p *pane) mustSend(text string) handoff.SendResult {
	p.w.t.Helper()
	r, err := p.send(text)
	if err != nil {
		p.w.t.Fatalf("send %q: %v\n%s", text, err, p.screen())
	}
	if r.Outcome != "agent_accepted" {
		p.w.t.Fatalf("send %q: %+v\n%s", text, r, p.screen())
	}
	return r
}

func (p *pane) screen() string {
	return p.w.tmuxDo("capture-pane", "-p", "-t", p.tid)
}

func (p *pane) keysFile() string { return filepath.Join(filepath.Dir(p.home), "keys") }

// keys is every byte that reached the pane's agent, from whomever.
func (p *pane) keys() string {
	p.w.t.Helper()
	b, err := os.ReadFile(p.keysFile())
	if err != nil && !os.IsNotExist(err) {
		p.w.t.Fatal(err)
	}
	return string(b)
}

// typed counts how often the transcript holds a user message with text.
func (p *pane) typed(text string) int {
	n := 0
	_ = filepath.WalkDir(filepath.Join(p.home, "sessions"), func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".jsonl") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			q, _ := json.Marshal(text)
			n += strings.Count(string(b), `"text":`+string(q))
		}
		return nil
	})
	return n
}

// follow drives the Turn's monitor as watchd would, until it is done.
func (w *world) follow(turn string) store.Turn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, release := w.monitor(turn)
	defer release()
	for {
		o, err := m.Observe(ctx, w.capture(m.Pane()))
		if err != nil {
			w.t.Fatal(err)
		}
		if o.Done {
			break
		}
		time.Sleep(max(o.Again, 20*time.Millisecond)) // the poll of a monitor
	}
	return w.turn(turn)
}

func (w *world) monitor(turn string) (*handoff.Monitor, func()) {
	w.t.Helper()
	ctx := context.Background()
	list, err := w.store.EligibleTurns(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range list {
		if e.Turn.ID != turn {
			continue
		}
		if e.Skip != "" {
			w.t.Fatalf("turn %s is skipped: %s", turn, e.Skip)
		}
		lease, err := w.store.Acquire(ctx, store.MonitorLease(turn, e.Dispatch.MessageID), store.LeaseTTL)
		if err != nil {
			w.t.Fatal(err)
		}
		m, err := w.desk.NewMonitor(e, lease)
		if err != nil {
			w.t.Fatal(err)
		}
		return m, func() { _ = w.store.Release(ctx, lease) }
	}
	w.t.Fatalf("turn %s is not eligible", turn)
	return nil, nil
}

func (w *world) capture(p terminal.Pane) *terminal.Screen {
	screens, err := w.tmux.Capture(context.Background(), []terminal.Pane{p})
	if err != nil {
		return nil
	}
	if s, ok := screens[p.Key()]; ok {
		return &s
	}
	return nil
}

func (w *world) turn(id string) store.Turn {
	w.t.Helper()
	t, err := w.store.Turn(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *world) callbacks(turn string) []store.Callback {
	w.t.Helper()
	rows, err := w.store.TurnCallbacks(context.Background(), turn)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}
