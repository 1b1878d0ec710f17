package codex_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/terminal"
)

func TestFind(t *testing.T) {
	w := newWorld(t, "0.171.0")
	p := w.tui()
	th := w.newThread()
	p.tell("lock", th.lock())

	got, err := w.adapter.Find(w.ctx, p.pane)
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Process{Agent: agent.Codex, Inc: got.Inc, Exe: w.exe, Version: "0.171.0", Class: agent.Tested, Home: w.home, HomeID: got.HomeID, Cwd: w.cwd, Mode: agent.InProcess}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
	if got.Inc.PID != p.pid || got.HomeID == (agent.FileID{}) {
		t.Errorf("pid %d, home %v", got.Inc.PID, got.HomeID)
	}
	for range 3 {
		p.proc()
	}
	asked, err := os.ReadFile(filepath.Join(filepath.Dir(w.exe), "asked"))
	if err != nil || bytes.Count(asked, []byte("x")) != 1 {
		t.Errorf("--version ran %d times, want once: %v", bytes.Count(asked, []byte("x")), err)
	}
}

func TestFind_Refusals(t *testing.T) {
	w := newWorld(t, "0.171.0")
	p := w.tui()
	other := w.tui()
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
			q := p.pane
			tc.edit(&q)
			if got, err := w.adapter.Find(w.ctx, q); !errors.Is(err, tc.want) {
				t.Errorf("Find = %+v, %v, want %v", got, err, tc.want)
			}
		})
	}
	t.Run("a subcommand", func(t *testing.T) {
		for _, args := range [][]string{{"exec", "do it"}, {"-m", "gpt", "app-server"}, {"mcp", "list"}, {"-c", "a=b", "queue"}} {
			if got, err := w.adapter.Find(w.ctx, w.tui(args...).pane); !errors.Is(err, agent.ErrNoAgent) {
				t.Errorf("%v: %+v, %v", args, got, err)
			}
		}
	})
	t.Run("a conversation on another server", func(t *testing.T) {
		got, err := w.adapter.Find(w.ctx, w.tui("--remote", "ws://x:1").pane)
		if err != nil || got.Class != agent.Refused {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("an upgraded binary", func(t *testing.T) {
		w := newWorld(t, "0.171.0")
		p := w.tui()
		if err := os.Remove(w.exe); err != nil {
			t.Fatal(err)
		}
		got := p.proc()
		if got.Version != "" || got.Class != agent.Refused || got.Exe != w.exe {
			t.Errorf("%+v", got)
		}
		if r := w.adapter.Read("", terminal.Screen{}); r.State != agent.Unknown {
			t.Errorf("an unknown version reads %s", r.State)
		}
	})
	t.Run("a version without a rule file", func(t *testing.T) {
		for version, want := range map[string]agent.Class{"0.1.0": agent.Refused, "0.172.0": agent.Untested, "nonsense": agent.Refused} {
			w := newWorld(t, version)
			if got := w.tui().proc(); got.Class != want {
				t.Errorf("%s: %+v", version, got)
			}
		}
	})
}

func TestFind_Mode(t *testing.T) {
	w := newWorld(t, "0.171.0")
	d := w.daemon()
	if got := w.tui().proc(); got.Mode != agent.Daemon || got.Daemon == nil || got.Daemon.PID != d.pid {
		t.Errorf("beside a daemon: %+v", got)
	}
	if got := w.tui("--no-daemon").proc(); got.Mode != agent.InProcess || got.Daemon != nil {
		t.Errorf("told not to use it: %+v", got)
	}
	p := w.tui()
	p.tell("lock", w.newThread().lock())
	if got := p.proc(); got.Mode != agent.InProcess {
		t.Errorf("with a lock of its own: %+v", got)
	}
	if alive, known := w.adapter.Alive(w.ctx, p.proc()); !alive || !known {
		t.Errorf("alive %v, known %v", alive, known)
	}
	q := w.tui()
	proc := q.proc()
	d.end()
	if alive, known := w.adapter.Alive(w.ctx, proc); alive || !known {
		t.Errorf("after the daemon's death: alive %v, known %v", alive, known)
	}
	if got := q.proc(); got.Mode != agent.InProcess {
		t.Errorf("with a dead daemon: %+v", got)
	}
}

func TestParseArgs(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		argv                  []string
		tui, noDaemon, remote bool
	}{
		{"bare", []string{"/x/codex"}, true, false, false},
		{"prompt", []string{"codex", "execute this"}, true, false, false},
		{"prompt behind a flag with a value", []string{"codex", "-m", "exec", "hello"}, true, false, false},
		{"resume", []string{"codex", "resume", "--no-daemon", "x"}, true, true, false},
		{"fork", []string{"codex", "fork"}, true, false, false},
		{"behind --", []string{"codex", "--", "exec"}, true, false, false},
		{"exec", []string{"codex", "--search", "exec", "x"}, false, false, false},
		{"exec, short", []string{"codex", "e", "x"}, false, false, false},
		{"exec behind flag=value", []string{"codex", "--model=x", "exec"}, false, false, false},
		{"daemon", []string{"codex", "app-server", "--listen", "unix://", "--managed-daemon"}, false, false, false},
		{"version", []string{"codex", "--version"}, false, false, false},
		{"remote", []string{"codex", "--remote", "ws://h:1", "hi"}, true, false, true},
		{"remote=", []string{"codex", "--remote=ws://h:1"}, true, false, true},
		{"sandbox helper", []string{"/h/tmp/arg0/codex-linux-sandbox", "--x"}, false, false, false},
		{"set-up helper", []string{"/proc/self/exe", "--codex-run-as-process-setup"}, false, false, false},
		{"none", nil, false, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tui, noDaemon, remote := codex.ParseArgs(tc.argv)
			if tui != tc.tui || noDaemon != tc.noDaemon || remote != tc.remote {
				t.Errorf("%v = %v %v %v", tc.argv, tui, noDaemon, remote)
			}
		})
	}
}

// TestList_Cost logs what one pane costs a listing.
func TestList_Cost(t *testing.T) {
	p, th := inProcess(t, "hello")
	for range 2000 {
		th.write("event_msg", map[string]any{"type": "agent_reasoning", "text": "x"})
	}
	const n = 50
	p.proc()
	begin := time.Now()
	for range n {
		p.proc()
	}
	find := time.Since(begin) / n
	proc := p.proc()
	begin = time.Now()
	for range n {
		if _, err := p.adapter.Identify(p.ctx, proc); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("find %v, identify %v", find, time.Since(begin)/n)
}
