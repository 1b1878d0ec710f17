package codex_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// saved writes a rollout of one request below home.
func saved(t *testing.T, home, dir, thread, cwd, request string, age time.Duration) string {
	t.Helper()
	path := filepath.Join(home, dir, "rollout-2026-11-30T12-00-00-"+thread+".jsonl")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"timestamp":"2026-11-30T12:00:00.000Z","ordinal":0,"type":"session_meta","payload":{"id":%q,"cwd":%q,"cli_version":"0.171.0","source":"cli"}}
{"timestamp":"2026-11-30T12:00:00.001Z","ordinal":1,"type":"event_msg","payload":{"type":"task_started","turn_id":"t"}}
{"timestamp":"2026-11-30T12:00:00.002Z","ordinal":2,"type":"event_msg","payload":{"type":"item_completed","thread_id":%q,"turn_id":"t","item":{"type":"UserMessage","id":"i","content":[{"type":"text","text":%q}]}}}
`, thread, cwd, thread, request)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	return path
}

// take holds a thread's writer lock in this process.
func take(t *testing.T, home, thread string) {
	t.Helper()
	dir := filepath.Join(home, "thread-writer-locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, thread+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
}

const threadForm = "01a22c87-235b-7c12-b45d-5b387f73b98%d"

func threadOf(n int) string { return fmt.Sprintf(threadForm, n) }

// line is what a test looks at of a thread.
type line struct {
	ID, Title, Preview string
	Archived           bool
	Live               agent.Liveness
}

func TestThreads(t *testing.T) {
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	a := codex.New(codex.Options{Rules: rules})
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	proc := agent.Process{Agent: agent.Codex, Inc: process.Self(), Version: "0.171.0", Home: home, Cwd: "/w", Mode: agent.InProcess}
	if got, err := a.Threads(context.Background(), proc); err != nil || len(got) != 0 {
		t.Fatalf("an empty home: %v %v", got, err)
	}
	day := "sessions/2026/11/30"
	saved(t, home, day, threadOf(1), "/w", "the  first\nrequest", 3*time.Hour)
	path := saved(t, home, day, threadOf(2), "/w", "the second", time.Hour)
	saved(t, home, day, threadOf(3), "/elsewhere", "not here", 0)
	saved(t, home, "archived_sessions", threadOf(4), "/w", "put away", 5*time.Hour)
	other := saved(t, home, day, threadOf(5), "/w", "another name", 0)
	if err := os.Rename(other, filepath.Join(filepath.Dir(other), "rollout-2026-11-30T12-00-00-"+threadOf(6)+".jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "session_index.jsonl"),
		[]byte(`{"id":"`+threadOf(2)+`","thread_name":"old name"}`+"\n"+`{"id":"`+threadOf(2)+`","thread_name":"the name"}`+"\nnot json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	see := func() (out []line) {
		t.Helper()
		all, err := a.Threads(context.Background(), proc)
		if err != nil {
			t.Fatal(err)
		}
		for _, th := range all {
			out = append(out, line{th.ID, th.Title, th.Preview, th.Archived, th.Live})
			if th.Workspace != "/w" || th.File == (agent.FileID{}) || th.UpdatedAt.IsZero() {
				t.Errorf("thread %+v", th)
			}
			if th.ID == threadOf(2) && th.Path != path {
				t.Errorf("path %s, want %s", th.Path, path)
			}
		}
		return out
	}
	want := []line{
		{threadOf(2), "the name", "the second", false, agent.NotLive},
		{threadOf(1), "", "the first request", false, agent.NotLive},
		{threadOf(4), "", "put away", true, agent.NotLive},
	}
	if diff := cmp.Diff(want, see()); diff != "" {
		t.Error(diff)
	}
	take(t, home, threadOf(1)) // the one thread that it holds is its current one
	want[1].Live = agent.LiveHere
	if diff := cmp.Diff(want, see()); diff != "" {
		t.Error(diff)
	}
	take(t, home, threadOf(2)) // of two, none is live elsewhere
	want[1].Live = agent.NotLive
	if diff := cmp.Diff(want, see()); diff != "" {
		t.Error(diff)
	}
	parent, err := process.Of(os.Getppid())
	if err != nil {
		t.Skip(err)
	}
	proc.Inc = parent // seen from another process, both are
	want[0].Live, want[1].Live = agent.LiveElsewhere, agent.LiveElsewhere
	if diff := cmp.Diff(want, see()); diff != "" {
		t.Error(diff)
	}
}

func TestCommand_UnknownVersion(t *testing.T) {
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	a := codex.New(codex.Options{Rules: rules})
	if c, err := a.Command("0.1.0", agent.OpNew, ""); !fault.Is(err, fault.VersionUnsupported) {
		t.Errorf("got %+v %v", c, err)
	}
	if c, err := a.Command("0.171.0", agent.OpNew, ""); err != nil || c.Text != "/clear" {
		t.Errorf("got %+v %v", c, err)
	}
}
