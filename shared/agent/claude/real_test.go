package claude_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/terminal"
)

var realVersions = []string{"2.1.332", "2.1.263"}

// TestReal drives one TUI of each version through what the seam promises.
func TestReal(t *testing.T) {
	for _, version := range realVersions {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, version)
			p := r.start()
			proc := p.proc()
			if proc.Version != version || proc.Class != agent.Tested || proc.Home != filepath.Join(r.home, ".claude") || proc.Cwd != r.work {
				t.Fatalf("process %+v", proc)
			}
			id := p.identity()
			if id.State != agent.Resolved || len(id.Files) != 0 {
				t.Fatalf("before the first prompt: %+v", id)
			}

			// First prompt: its transcript appears only now, where it was expected.
			s := p.send("first hello")
			if s.verdict != agent.Accepted || s.acc.NativeThreadID != id.ThreadID {
				t.Fatalf("first prompt: %s %+v", s.verdict, s.acc)
			}
			t.Logf("first prompt accepted %v after Enter", s.took)
			if want := filepath.Join(proc.Home, "projects", claude.Slug(r.work), id.ThreadID+".jsonl"); s.acc.Task.Start.Path != want {
				t.Errorf("transcript %s, want %s", s.acc.Task.Start.Path, want)
			}
			if got := r.follow(s.acc.Task); got.State != agent.Completed || got.Text != "answer to first hello" {
				t.Fatalf("first turn: %+v", got)
			}

			for _, tc := range []struct{ name, text string }{
				{"two lines and tabs", "tabs\tand\n\tend"},
				{"a blank line", "one\n\nthree"},
				{"other scripts", "日本語 👍🏽 👨‍👩‍👧 e\u0301 \u2126 שלום مرحبا می\u200cخواهم क्\u200dष ❤️ 1️⃣ end"},
				{"nothing to be seen", "a\u200bb\ufeffc\u200ed\u2028e\u00adf end"},
				{"other blanks", "a\u00a0b\u2003c\u3000d\u202fe end"},
				{"a wrapped line", strings.TrimSpace(strings.Repeat("wrapped words ", 30))},
				{"a word over several rows", strings.Repeat("0123456789", 40)},
				{"five lines", "a\nb\n\n\tc  \nend"},
				{"many lines", strings.TrimSpace(strings.Repeat("a line of many\n", 120))},
				{"one long line", strings.TrimSpace(strings.Repeat("long line ", 120))},
				{"a file at its end", "look at @wor"},
				{"a question mark", "? what"},
				{"a hash", "# remember"},
			} {
				p.ready()
				s = p.send(tc.text)
				if got := r.follow(s.acc.Task); s.verdict != agent.Accepted || got.State != agent.Completed {
					t.Fatalf("%s: %s %+v", tc.name, s.verdict, got)
				}
				t.Logf("%s: accepted %v after Enter", tc.name, s.took)
			}

			p.ready()
			s = p.send("please SCN=E400")
			if got := r.follow(s.acc.Task); got.State != agent.Failed || !strings.Contains(got.Error, "scripted bad request") {
				t.Fatalf("failed turn: %+v", got)
			}

			// A call that waits, refused with one Escape.
			p.ready()
			s = p.send("please SCN=BASH: touch x-" + version)
			if w := p.waiting(s.acc.Task); w.Kind != "run_command" || w.Command != "touch x-"+version || w.Cwd != r.work {
				t.Fatalf("waiting call %+v", w)
			}
			if task, ok, err := r.adapter.Current(r.ctx, p.proc()); err != nil || !ok || task.TurnID != s.acc.Task.TurnID || task.Start != s.acc.Task.Start {
				t.Fatalf("current task %+v, %v, %v", task, ok, err)
			}
			if _, err := r.adapter.Anchor(r.ctx, p.proc()); err == nil {
				t.Fatal("an anchor was given while a turn is open")
			}
			p.shows(agent.Approval)
			p.press(terminal.Escape)
			if got := r.follow(s.acc.Task); got.State != agent.Aborted {
				t.Fatalf("rejected turn: %+v", got)
			}

			// A questionnaire, answered.
			p.ready()
			s = p.send("please SCN=ASK: now")
			w := p.waiting(s.acc.Task)
			if w.Kind != "questionnaire" || len(w.Asks) != 1 || w.Asks[0].Text != "Which database?" || len(w.Asks[0].Options) != 2 {
				t.Fatalf("waiting call %+v", w)
			}
			p.shows(agent.Question)
			p.tm("send-keys", "-t", p.id, "2")
			if got := r.follow(s.acc.Task); got.State != agent.Completed || got.Text != "after the tool" {
				t.Fatalf("answered turn: %+v", got)
			}

			// Interrupted while it streams.
			p.ready()
			s = p.send("please SCN=SLOW: now")
			p.until(30*time.Second, func() string {
				if strings.Contains(p.text(), "word 3") {
					return ""
				}
				return "nothing streams:\n" + p.text()
			})
			p.press(r.adapter.Interrupt())
			if got := r.follow(s.acc.Task); got.State != agent.Aborted {
				t.Fatalf("interrupted turn: %+v", got)
			}

			// A cleared conversation is another session; the old one can be resumed.
			p.ready()
			old := id.ThreadID
			p.command("/clear")
			p.until(30*time.Second, func() string {
				if id = p.identity(); id.ThreadID == old || id.State != agent.Resolved {
					return fmt.Sprintf("after /clear: %+v", id)
				}
				return ""
			})
			p.ready()
			s = p.send("first hello")
			if got := r.follow(s.acc.Task); s.verdict != agent.Accepted || s.acc.NativeThreadID != id.ThreadID || got.State != agent.Completed {
				t.Fatalf("after /clear: %s %+v", s.verdict, s.acc)
			}
			threads, err := r.adapter.Threads(r.ctx, p.proc())
			if err != nil || len(threads) != 2 || threads[0].ID != id.ThreadID || threads[0].Live != agent.LiveHere ||
				threads[1].ID != old || threads[1].Live != agent.NotLive || threads[1].Preview != "first hello" {
				t.Fatalf("threads %+v, %v", threads, err)
			}

			// A second process on the same session: nobody is driven.
			q := r.launch(r.work, "--resume", id.ThreadID)
			p.until(60*time.Second, func() string {
				if got := p.identity(); got.State != agent.Ambiguous {
					return fmt.Sprintf("beside a second holder: %+v\n%s", got, q.text())
				}
				return ""
			})
			if err := syscall.Kill(q.proc().Inc.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			p.until(20*time.Second, func() string {
				if got := p.identity(); got.State != agent.Resolved {
					return fmt.Sprintf("after the second holder's death: %+v", got)
				}
				return ""
			})

			// The process dies in mid-turn.
			p.ready()
			s = p.send("please SCN=SLOW: now")
			if err := syscall.Kill(p.proc().Inc.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if got := r.follow(s.acc.Task); got.State != agent.Lost {
				t.Fatalf("killed in mid-turn: %+v", got)
			}
		})
	}
}

// TestReal_Cancelled interrupts before any output: nothing is written, and the
// text is back in the composer.
func TestReal_Cancelled(t *testing.T) {
	for _, version := range realVersions {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, version)
			p := r.start()
			s := p.send("please SCN=HANG: now")
			p.until(30*time.Second, func() string {
				if id := p.identity(); id.Activity != agent.ActivityWorking {
					return "not at work"
				}
				return ""
			})
			p.shows(agent.Working)
			p.press(terminal.Escape)
			got := r.follow(s.acc.Task)
			if got.State != agent.Aborted {
				t.Fatalf("cancelled turn: %+v", got)
			}
			t.Logf("%s; the composer: %+v", got.Error, p.reading().Composer)
		})
	}
}

// TestReal_Starting: a pane whose session has not begun is found, and is not
// ready; and one that was started from a shell is found below it.
func TestReal_Starting(t *testing.T) {
	for _, version := range realVersions {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, version)
			untrusted := filepath.Join(filepath.Dir(r.work), "untrusted")
			if err := os.Mkdir(untrusted, 0o700); err != nil {
				t.Fatal(err)
			}
			p := r.launch(untrusted)
			got := p.shows(agent.Blocked)
			proc := p.proc()
			if got.Name != "trust" || proc.Version != "" || proc.Class != agent.Refused || proc.Cwd != untrusted {
				t.Fatalf("%s %+v", got.Name, proc)
			}
			if id := p.identity(); id.State != agent.Unavailable {
				t.Fatalf("identity %+v", id)
			}
			if _, err := r.adapter.Anchor(r.ctx, proc); err == nil {
				t.Fatal("an anchor for a trust dialog")
			}
			p.press(terminal.Escape) // it exits
			p.until(30*time.Second, func() string {
				list, err := r.tmux.Panes(r.ctx)
				if err == nil && len(list.Panes) > 0 {
					return "the pane still lives"
				}
				return ""
			})

			id := r.tm("new-session", "-d", "-P", "-F", "#{pane_id}", "-x", "100", "-y", "30", "-c", r.work, "-e", "HOME="+r.home, "-e", "PS1=$ ", "sh")
			q := &pane{r, id}
			q.tm("send-keys", "-t", id, "-l", fmt.Sprintf("LANG=C.UTF-8 ANTHROPIC_BASE_URL=%s ANTHROPIC_API_KEY=%s DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 %s --permission-mode manual", r.url, rigKey, r.binary))
			q.tm("send-keys", "-t", id, "Enter")
			q.ready()
			s := q.send("from a shell")
			if got := r.follow(s.acc.Task); s.verdict != agent.Accepted || got.State != agent.Completed {
				t.Fatalf("%s %+v", s.verdict, got)
			}
		})
	}
}
