package scripted_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

func TestMain(m *testing.M) {
	if scripted.Wanted() {
		os.Exit(scripted.Main())
	}
	os.Exit(m.Run())
}

const patience = 20 * time.Second

// A stage is one look-alike of Claude Code in a pane, seen through the product's
// own adapter.
type stage struct {
	t       *testing.T
	tmux    *terminal.Tmux
	adapter *claude.Adapter
	pane    terminal.Pane
	socket  string
	proc    agent.Process
	dir     string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	testkit.Need(t, "tmux")
	dir := t.TempDir()
	exe, err := scripted.InstallClaude(dir)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(testkit.RuntimeDir(t), "s")
	out, err := exec.Command("tmux", "-u", "-S", socket, "-f", "/dev/null", "new-session", "-d", "-s", "a", "-x", "100", "-y", "30", "-c", dir,
		"-e", "HOME="+dir, "exec "+exe).CombinedOutput()
	if err != nil {
		t.Fatalf("tmux: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", socket, "kill-server").Run() })
	s := &stage{t: t, dir: dir, socket: socket, tmux: terminal.New(terminal.Options{Sockets: []string{socket}}), adapter: claude.New(claude.Options{Rules: rules})}
	s.eventually("the agent is found", func() bool {
		list, err := s.tmux.Panes(t.Context())
		if err != nil || len(list.Panes) != 1 {
			return false
		}
		s.pane = list.Panes[0]
		s.proc, err = s.adapter.Find(t.Context(), s.pane)
		return err == nil && s.proc.Version == scripted.ClaudeVersion
	})
	s.await("an idle pane", func(r agent.Reading) bool { return r.State == agent.Idle })
	return s
}

func (s *stage) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not so within %s; the screen:\n%s", what, patience, s.screen().Text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *stage) screen() terminal.Screen {
	s.t.Helper()
	out, err := s.tmux.CaptureOne(context.Background(), s.pane)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// await polls until the product reads the screen so.
func (s *stage) await(what string, ok func(agent.Reading) bool) agent.Reading {
	s.t.Helper()
	var last agent.Reading
	s.eventually(what, func() bool { last = s.adapter.Read(s.proc.Version, s.screen()); return ok(last) })
	return last
}

func (s *stage) press(k terminal.Key) {
	s.t.Helper()
	if err := s.tmux.Press(s.t.Context(), s.pane, k); err != nil {
		s.t.Fatal(err)
	}
}

// send types a request as handoff does, and gives its task.
func (s *stage) send(request string) agent.Task {
	s.t.Helper()
	p, err := s.adapter.Prepare(request)
	if err != nil {
		s.t.Fatal(err)
	}
	var anchor agent.Anchor
	s.eventually("the pane can be anchored", func() bool {
		anchor, err = s.adapter.Anchor(s.t.Context(), s.proc)
		return err == nil
	})
	var how []terminal.PasteOption
	if p.LineFeeds {
		how = append(how, terminal.LineFeeds)
	}
	if err := s.tmux.Paste(s.t.Context(), s.pane, p.Typed, how...); err != nil {
		s.t.Fatal(err)
	}
	s.await("the request in the composer", func(r agent.Reading) bool { return s.adapter.Landed(r.Composer, p) })
	s.press(terminal.Enter)
	var acc agent.Acceptance
	s.eventually("the acceptance", func() bool {
		var v agent.Verdict
		acc, v, err = s.adapter.Accept(s.t.Context(), anchor, p)
		return err == nil && v == agent.Accepted
	})
	return acc.Task
}

// ends waits for the end of a task.
func (s *stage) ends(task agent.Task, want agent.ProgressState) agent.Progress {
	s.t.Helper()
	var p agent.Progress
	s.eventually("the turn is "+string(want), func() bool {
		var err error
		p, err = s.adapter.Progress(s.t.Context(), task, agent.Position{})
		return err == nil && p.State == want
	})
	return p
}

func (s *stage) identity() agent.Identity {
	s.t.Helper()
	id, err := s.adapter.Identify(s.t.Context(), s.proc)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// What the adapter needs of Claude Code, the look-alike has: requests of every
// shape are accepted and finished.
func TestClaude_Turns(t *testing.T) {
	s := newStage(t)
	long := strings.TrimSpace(strings.Repeat("word ", 200))
	for _, request := range []string{"plain words", "two\nlines", "one\ntwo\nthree\nfour\nfive", long} {
		p := s.ends(s.send(request), agent.Completed)
		if want := "ECHO: " + request; !strings.Contains(p.Text, request) {
			t.Errorf("answer %q, want %q", p.Text, want)
		}
		s.await("an idle pane", func(r agent.Reading) bool { return r.State == agent.Idle && r.Composer.Empty })
	}
	if p := s.ends(s.send("please fail"), agent.Failed); !strings.Contains(p.Error, "scripted failure") {
		t.Errorf("the failure: %+v", p)
	}
	s.ends(s.send("late:300 lag:300 at last"), agent.Completed)
}

func TestClaude_Interrupted(t *testing.T) {
	s := newStage(t)
	gate := filepath.Join(s.dir, "gate")
	task := s.send("talk hold:" + gate)
	s.await("a working pane", func(r agent.Reading) bool { return r.State == agent.Working })
	if got := s.identity().Activity; got != agent.ActivityWorking {
		t.Errorf("activity %s", got)
	}
	s.press(terminal.Escape)
	s.ends(task, agent.Aborted)
	// Before any output the prompt comes back into the composer.
	s.send("hold:" + gate)
	s.press(terminal.Escape)
	r := s.await("the prompt again", func(r agent.Reading) bool { return r.Composer.Draft == "hold:"+gate })
	if r.Composer.Empty {
		t.Errorf("composer %+v", r.Composer)
	}
}

func TestClaude_Dialogs(t *testing.T) {
	for _, tc := range []struct {
		words, name, kind string
		approve           bool
	}{
		{"ask now", "permission-bash", "run_command", true},
		{"write now", "permission-write", "edit_files", true},
		{"fetch now", "permission-fetch", "fetch", true},
		{"plan now", "plan-approval", "plan", true},
		{"wall now", "permission-cut", "tool", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t)
			task := s.send(tc.words)
			r := s.await("the dialog", func(r agent.Reading) bool { return r.State == agent.Approval })
			if r.Name != tc.name || r.Prompt.Kind != tc.kind || (r.Prompt.Approve != nil) != tc.approve || r.Prompt.Cut == tc.approve {
				t.Fatalf("%s: %+v", r.Name, r.Prompt)
			}
			s.eventually("the call is on record", func() bool {
				p, err := s.adapter.Progress(t.Context(), task, agent.Position{})
				return err == nil && p.Waiting != nil
			})
			if !tc.approve {
				s.press(terminal.Escape)
				s.ends(task, agent.Aborted)
				return
			}
			for _, k := range r.Prompt.Approve {
				s.press(k)
			}
			s.ends(task, agent.Completed)
		})
	}
}

// Two calls of one message are asked about one after the other.
func TestClaude_BothCalls(t *testing.T) {
	s := newStage(t)
	task := s.send("both please")
	shows := func(command string) agent.Reading {
		return s.await(command, func(r agent.Reading) bool { return r.State == agent.Approval && r.Prompt.Command == command })
	}
	shows("touch /tmp/scripted-1")
	s.press(terminal.Enter)
	shows("touch /tmp/scripted-2")
	s.press(terminal.Escape)
	s.ends(task, agent.Aborted)
}

func TestClaude_Questions(t *testing.T) {
	s := newStage(t)
	task := s.send("pick one")
	r := s.await("the questionnaire", func(r agent.Reading) bool { return r.State == agent.Question })
	if p := r.Prompt.Page; p == nil || p.Text != "Which size?" || len(p.Options) < 2 || p.Options[0] != "Small" || p.Selected != 0 || !p.FreeText {
		t.Fatalf("page %+v", r.Prompt.Page)
	}
	s.press(terminal.Down)
	s.await("the second option", func(r agent.Reading) bool {
		return r.Prompt != nil && r.Prompt.Page != nil && r.Prompt.Page.Selected == 1
	})
	s.press(terminal.Enter)
	s.ends(task, agent.Completed)

	task = s.send("picks please")
	r = s.await("the first page", func(r agent.Reading) bool { return r.State == agent.Question })
	if p := r.Prompt.Page; p == nil || !p.Multi || p.Index != 1 || p.Total != 3 {
		t.Fatalf("page %+v", r.Prompt.Page)
	}
	for _, k := range []string{"1", "3", "Tab", "1"} {
		s.tmuxDo("send-keys", "-t", s.pane.ID, k)
	}
	r = s.await("the review", func(r agent.Reading) bool { return r.Prompt != nil && r.Prompt.Page != nil && r.Prompt.Page.Review })
	if !strings.Contains(r.Prompt.Page.Text, "Unit, Race") {
		t.Errorf("review %q", r.Prompt.Page.Text)
	}
	s.press(terminal.Enter)
	s.ends(task, agent.Completed)
}

func (s *stage) tmuxDo(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...).CombinedOutput(); err != nil {
		s.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
}

// The commands that change the conversation say so in the registry.
func TestClaude_Commands(t *testing.T) {
	s := newStage(t)
	s.ends(s.send("first words"), agent.Completed)
	first := s.identity().ThreadID
	run := func(text string) {
		t.Helper()
		s.tmuxDo("send-keys", "-t", s.pane.ID, "-l", text)
		s.eventually("the command is typed", func() bool { return strings.Contains(string(s.screen().Text), text) })
		s.press(terminal.Enter)
	}
	run("/status")
	s.await("the panel", func(r agent.Reading) bool { return r.State == agent.Blocked && r.Name == "status-panel" })
	s.press(terminal.Escape)
	s.await("an idle pane", func(r agent.Reading) bool { return r.State == agent.Idle })
	run("/clear")
	s.eventually("another session", func() bool { id := s.identity(); return id.ThreadID != first && id.Activity == agent.ActivityIdle })
	run("/resume " + first)
	s.eventually("the first session", func() bool { id := s.identity(); return id.ThreadID == first && id.Activity == agent.ActivityIdle })
	s.ends(s.send("words again"), agent.Completed)
	run("/exit")
	s.eventually("the end", func() bool { gone, known := s.proc.Inc.Gone(); return gone && known })
	if left, _ := filepath.Glob(filepath.Join(s.dir, ".claude", "sessions", "*")); len(left) != 0 {
		t.Errorf("the registry still holds %v", left)
	}
}
