package claude_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/terminal"
)

func TestFind(t *testing.T) {
	w := newWorld(t)
	m := w.start("--permission-mode", "manual")
	m.register("idle", nil)
	got := m.find()
	want := agent.Process{
		Agent: agent.Claude, Inc: m.inc(), Exe: w.exe, Version: tested, Class: agent.Tested,
		Home: w.home, HomeID: got.HomeID, Cwd: w.cwd, Mode: agent.InProcess,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
	if got.HomeID == (agent.FileID{}) {
		t.Error("no home id")
	}
	if alive, known := w.adapter.Alive(w.ctx, got); !alive || !known {
		t.Errorf("alive %v, known %v", alive, known)
	}
	m.end()
	if alive, known := w.adapter.Alive(w.ctx, got); alive || !known {
		t.Errorf("dead, but alive %v, known %v", alive, known)
	}
}

func TestFind_Refusals(t *testing.T) {
	w := newWorld(t)
	m, other := w.start(), w.start()
	m.register("idle", nil)
	for _, tc := range []struct {
		name string
		edit func(*terminal.Pane)
		want error
	}{
		{"another terminal", func(q *terminal.Pane) { q.TTY = other.pane.TTY }, agent.ErrNoAgent},
		{"no such terminal", func(q *terminal.Pane) { q.TTY = "/dev/pts/nothing" }, agent.ErrNoAgent},
		{"dead pane", func(q *terminal.Pane) { q.Dead = true }, agent.ErrNoAgent},
		{"no process", func(q *terminal.Pane) { q.PID = 0 }, agent.ErrNoAgent},
		{"a process of another tree", func(q *terminal.Pane) { q.PID = other.pane.PID }, agent.ErrNoAgent},
		{"an ancestor of two", func(q *terminal.Pane) { q.PID = os.Getpid() }, agent.ErrSeveralAgents},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := m.pane
			tc.edit(&q)
			if got, err := w.adapter.Find(w.ctx, q); !errors.Is(err, tc.want) {
				t.Errorf("Find = %+v, %v, want %v", got, err, tc.want)
			}
		})
	}
	for _, args := range [][]string{{"-p", "do it"}, {"--model", "x", "--print"}, {"mcp", "serve"}, {"agents", "--json"}} {
		if got, err := w.adapter.Find(w.ctx, w.start(args...).pane); !errors.Is(err, agent.ErrNoAgent) {
			t.Errorf("%v: %+v, %v", args, got, err)
		}
	}
}

// TestFind_Registry: an entry counts only for the very process, and one that does
// not fit its pane, directory or kind makes a process that nothing is typed into.
func TestFind_Registry(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	for _, tc := range []struct {
		name    string
		over    map[string]any
		version string
		class   agent.Class
		state   agent.IdentityState
	}{
		{"fits", nil, tested, agent.Tested, agent.Resolved},
		{"started outside tmux", map[string]any{"tmux": nil}, tested, agent.Tested, agent.Resolved},
		{"of an earlier process with this pid", map[string]any{"procStart": "17"}, "", agent.Refused, agent.Unavailable},
		{"in another pane", map[string]any{"tmux": "f:@9.%91"}, tested, agent.Refused, agent.Resolved},
		{"in another directory", map[string]any{"cwd": "/srv"}, tested, agent.Refused, agent.Unavailable},
		{"not interactive", map[string]any{"kind": "print"}, tested, agent.Refused, agent.Unavailable},
		{"a newer version", map[string]any{"version": "2.1.999"}, "2.1.999", agent.Untested, agent.Resolved},
		{"an old version", map[string]any{"version": "1.0.3"}, "1.0.3", agent.Refused, agent.Resolved},
		{"no version", map[string]any{"version": "next"}, "next", agent.Refused, agent.Resolved},
		{"the other tested version", map[string]any{"version": "2.1.263"}, "2.1.263", agent.Tested, agent.Resolved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m.register("idle", tc.over)
			got := m.find()
			if got.Version != tc.version || got.Class != tc.class {
				t.Errorf("version %q, class %s, want %q, %s", got.Version, got.Class, tc.version, tc.class)
			}
			if id := m.identify(); id.State != tc.state {
				t.Errorf("identity %+v, want %s", id, tc.state)
			}
		})
	}
}

// TestFind_Starting: a process that has not registered is shown and not ready.
func TestFind_Starting(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	if err := os.RemoveAll(filepath.Join(w.home)); err != nil { // very first start
		t.Fatal(err)
	}
	got := m.find()
	if got.Version != "" || got.Class != agent.Refused || got.Home != w.home {
		t.Fatalf("%+v", got)
	}
	if id := m.identify(); id.State != agent.Unavailable || id.Reason == "" {
		t.Errorf("%+v", id)
	}
	if r := w.adapter.Read("", terminal.Screen{Pane: m.pane}); r.State != agent.NotReady || len(r.Evidence) == 0 {
		t.Errorf("an empty screen reads %+v", r)
	}
	trust, err := os.ReadFile("../testdata/claude/screens/trust-dialog.2.1.332.ansi")
	if err != nil {
		t.Fatal(err)
	}
	if r := w.adapter.Read("", terminal.Screen{Pane: m.pane, Text: trust}); r.State != agent.Blocked || r.Name != "trust" {
		t.Errorf("the trust dialog reads %s %q", r.State, r.Name)
	}
	if _, err := w.adapter.Anchor(w.ctx, got); err == nil {
		t.Error("an anchor for a process that is starting")
	}
}

// TestFind_HalfWritten: the registry is rewritten in place. A reader meets an
// empty or cut file, reads it again, and never takes it for absence.
func TestFind_HalfWritten(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	m.register("idle", nil)
	whole, err := os.ReadFile(m.registryFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"", "{", string(whole[:len(whole)/2])} {
		if err := os.WriteFile(m.registryFile(), []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(8 * time.Millisecond)
			_ = os.WriteFile(m.registryFile(), whole, 0o600)
		}()
		if got := m.find(); got.Version != tested {
			t.Errorf("after %q: %+v", part, got)
		}
		<-done
	}

	if err := os.WriteFile(m.registryFile(), whole[:20], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := m.find(); got.Version != tested { // known from before
		t.Errorf("a file that stays cut: %+v", got)
	}
	if id, err := w.adapter.Identify(w.ctx, agent.Process{Agent: agent.Claude, Inc: m.inc(), Version: tested, Home: w.home, Cwd: w.cwd}); err == nil {
		t.Errorf("a file that stays cut gives %+v", id)
	}
	fresh := newWorld(t)
	fresh.home, fresh.cwd = w.home, w.cwd
	if got, err := fresh.adapter.Find(w.ctx, m.pane); err == nil {
		t.Errorf("a file that was never whole gives %+v", got)
	}
}

// TestIdentify_Ambiguous: a session that is open in two living processes belongs
// to neither.
func TestIdentify_Ambiguous(t *testing.T) {
	w := newWorld(t)
	m, other := w.start(), w.start()
	m.register("idle", nil)
	other.register("idle", map[string]any{"tmux": nil})
	if id := m.identify(); id.State != agent.Resolved || id.ThreadID != m.session || id.Activity != agent.ActivityIdle {
		t.Fatalf("alone: %+v", id)
	}
	other.session = strings.ToUpper(m.session)
	other.register("idle", map[string]any{"tmux": nil})
	for _, x := range []*member{m, other} {
		if id := x.identify(); id.State != agent.Ambiguous || id.ThreadID != "" {
			t.Errorf("shared: %+v", id)
		}
		if _, err := w.adapter.Anchor(w.ctx, x.find()); err == nil {
			t.Error("an anchor for a session that two processes hold")
		}
	}
	other.write(other.registryFile(), map[string]any{"pid": other.pid, "kind": "daemon"}) // no session at all
	if id := m.identify(); id.State != agent.Resolved {
		t.Errorf("beside a process without a session: %+v", id)
	}
	other.register("idle", map[string]any{"tmux": nil})
	if err := os.WriteFile(other.registryFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := w.adapter.Identify(w.ctx, m.proc()); err == nil {
		t.Errorf("beside a file that stays cut: %+v", id)
	}
	other.register("idle", map[string]any{"tmux": nil})
	other.end() // killed: its file stays
	if id := m.identify(); id.State != agent.Resolved {
		t.Errorf("after the other's death: %+v", id)
	}
}

func TestIdentify_Activity(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	for _, tc := range []struct {
		status string
		over   map[string]any
		want   agent.Activity
		anchor bool
	}{
		{"", nil, agent.ActivityUnknown, false},
		{"idle", nil, agent.ActivityIdle, true},
		{"busy", nil, agent.ActivityWorking, false},
		{"waiting", map[string]any{"waitingFor": "permission prompt"}, agent.ActivityWorking, false},
		{"waiting", map[string]any{"waitingFor": "input needed"}, agent.ActivityWorking, false},
		{"waiting", map[string]any{"waitingFor": "dialog open"}, agent.ActivityUnknown, false},
		{"dreaming", nil, agent.ActivityUnknown, false},
	} {
		m.register(tc.status, tc.over)
		if id := m.identify(); id.State != agent.Resolved || id.Activity != tc.want {
			t.Errorf("%s %v: %+v, want %s", tc.status, tc.over, id, tc.want)
		}
		if a, err := w.adapter.Anchor(w.ctx, m.proc()); (err == nil) != tc.anchor {
			t.Errorf("%s %v: anchor %+v, %v", tc.status, tc.over, a, err)
		}
	}
}

// TestTranscriptPath: where a session's transcript is, and the one search for it.
func TestTranscriptPath(t *testing.T) {
	for cwd, want := range map[string]string{
		"/srv/demo/alpha":          "-srv-demo-alpha",
		"/srv/demo/we.ird_na me-ü": "-srv-demo-we-ird-na-me--",
		"/srv/demo/We.Ird/9":       "-srv-demo-We-Ird-9",
	} {
		if got := claude.Slug(cwd); got != want {
			t.Errorf("Slug(%q) = %q, want %q", cwd, got, want)
		}
	}
	w := newWorld(t)
	m := w.self()
	m.register("idle", nil)
	if id := m.identify(); len(id.Files) != 0 {
		t.Fatalf("before the first prompt: %+v", id)
	}
	tr := m.transcript()
	right := tr.path
	if got := w.adapter.Dirs(m.proc()); len(got) == 0 || got[0] != right {
		t.Errorf("Dirs %v, want %s first", got, right)
	}
	tr.path = filepath.Join(w.home, "projects", "-shortened-1f", m.session+".jsonl")
	tr.turn("one")
	if id := m.identify(); len(id.Files) != 1 || id.Files[0].Path != tr.path {
		t.Errorf("in another directory: %+v", id)
	}
	tr.path = filepath.Join(w.home, "projects", "-another", m.session+".jsonl")
	tr.turn("one")
	if id := m.identify(); id.State != agent.Unavailable {
		t.Errorf("two of that name: %+v", id)
	}
	tr.path = right
	tr.turn("one")
	id := m.identify()
	fi, err := os.Stat(right)
	if err != nil || len(id.Files) != 1 || id.Files[0].Path != right || id.Files[0].Offset != fi.Size() || id.State != agent.Resolved {
		t.Errorf("where it belongs: %+v, %v", id, err)
	}
	if got := w.adapter.Dirs(m.proc()); !cmp.Equal(got, []string{right}) {
		t.Errorf("Dirs %v, want the file alone", got)
	}
}

func TestInteractive(t *testing.T) {
	for line, want := range map[string]bool{
		"claude": true, "claude --permission-mode manual --session-id X": true, "claude fix the update script": true,
		"claude --resume X": true, "claude -c": true, "claude -- -p": true,
		"claude -p hello": false, "claude --print": false, "claude update": false, "claude mcp list": false, "claude --version": false,
	} {
		if got := claude.Interactive(strings.Fields(line)); got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
	for _, tc := range []struct {
		comm, exe string
		want      bool
	}{
		{"claude", "/x/node_modules/@anthropic-ai/claude-code/bin/claude.exe", true},
		{"claude-old", "/x/node_modules/@anthropic-ai/claude-code/bin/claude.exe", true},
		{"claude", "/x/node_modules/@anthropic-ai/claude-code-linux-x64/claude", true},
		{"2.1.332", "/home/u/.local/share/claude/versions/2.1.332", true},
		{"claude", "/usr/bin/node", true},
		{"node", "/usr/bin/node", false},
		{"codex", "/x/codex", false},
		{"vim", "/home/u/versions/vim", false},
	} {
		if got := claude.Program(tc.comm, tc.exe); got != tc.want {
			t.Errorf("%s %s: %v, want %v", tc.comm, tc.exe, got, tc.want)
		}
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(`{"pid":1,"sessionId":"7677dd46-2da1-48c7-9806-316ea0e1a4b6","procStart":"1"}`))
	f.Add([]byte(`{"pid":"1"}`))
	f.Add([]byte("{\"pid\":1,\"cwd\":\"\\ud83d\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		session, err := claude.ParseEntry(data)
		if err != nil {
			return
		}
		if _, err := uuid.Parse(session); err != nil || session != strings.ToLower(session) {
			t.Errorf("session %q", session)
		}
	})
}
