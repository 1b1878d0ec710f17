package codex_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// TestReal_InProcess drives one in-process TUI of each version through what the
// seam promises.
func TestReal_InProcess(t *testing.T) {
	for _, version := range []string{"0.171.0", "0.148.0"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, version, false)
			p := r.start()
			proc := p.proc()
			if proc.Version != version || proc.Class != agent.Tested || proc.Mode != agent.InProcess || proc.Home != r.home || proc.Cwd != r.work {
				t.Fatalf("process %+v", proc)
			}
			// 0.148.0 draws its composer before it has a thread.
			var id agent.Identity
			var err error
			r.until(20*time.Second, func() string {
				id, err = r.adapter.Identify(r.ctx, proc)
				if err != nil || id.State != agent.Resolved || id.Activity != agent.ActivityIdle || len(id.Files) != 0 {
					return fmt.Sprintf("before the first message: %+v, %v", id, err)
				}
				return ""
			})

			// First message: its rollout appears only now.
			s := p.send("first hello")
			if s.verdict != agent.Accepted || s.acc.NativeThreadID != id.ThreadID {
				t.Fatalf("first message: %s %+v", s.verdict, s.acc)
			}
			t.Logf("first message accepted %v after Enter", s.took)
			if got := r.follow(s.acc.Task); got.State != agent.Completed || got.Text != `answer to "first hello"` {
				t.Fatalf("first turn: %+v", got)
			}

			p.ready()
			s = p.send("tabs\tand\n\n  日本語 👍🏽 e\u0301 lines\n\tend")
			t.Logf("second message accepted %v after Enter", s.took)
			if got := r.follow(s.acc.Task); s.verdict != agent.Accepted || got.State != agent.Completed {
				t.Fatalf("second turn: %s %+v", s.verdict, got)
			}

			// Last words that would open a popup are defused and arrive as prepared.
			for _, text := range []string{"look at @wor", "use $imagegen"} {
				p.ready()
				s = p.send(text)
				if got := r.follow(s.acc.Task); s.verdict != agent.Accepted || got.State != agent.Completed {
					t.Fatalf("%s: %s %+v", text, s.verdict, got)
				}
			}

			p.ready()
			s = p.send("please SCN=E500")
			if got := r.follow(s.acc.Task); got.State != agent.Failed || got.Error == "" {
				t.Fatalf("failed turn: %+v", got)
			}

			p.ready()
			s = p.send("please SCN=EXEC:" + r.work + "/../x")
			var open agent.Progress
			r.until(30*time.Second, func() string {
				if open, err = r.adapter.Progress(r.ctx, s.acc.Task, agent.Position{}); err != nil {
					t.Fatal(err)
				}
				if open.Waiting == nil {
					return fmt.Sprintf("no waiting call: %+v\n%s", open, p.text())
				}
				return ""
			})
			if w := *open.Waiting; w.Kind != "run_command" || w.Command != "touch "+r.work+"/../x" {
				t.Fatalf("waiting call %+v", w)
			}
			if task, ok, err := r.adapter.Current(r.ctx, p.proc()); err != nil || !ok || task.TurnID != s.acc.Task.TurnID || task.Start != s.acc.Task.Start {
				t.Fatalf("current task %+v, %v, %v", task, ok, err)
			}
			if _, err := r.adapter.Anchor(r.ctx, p.proc()); err == nil {
				t.Fatal("an anchor was given while a turn is open")
			}
			r.until(20*time.Second, func() string {
				if got := p.reading(); got.State != agent.Approval {
					return fmt.Sprintf("no dialog: %s", got.State)
				}
				return ""
			})
			p.press(terminal.Escape)
			if got := r.follow(s.acc.Task); got.State != agent.Aborted {
				t.Fatalf("rejected turn: %+v", got)
			}

			// A conversation cleared: two locks, so a provisional send.
			p.ready()
			p.command("/clear")
			time.Sleep(time.Second)
			p.ready()
			r.until(20*time.Second, func() string {
				id, err := r.adapter.Identify(r.ctx, p.proc())
				if err != nil || id.State != agent.Ambiguous || len(id.Files) != 1 {
					return fmt.Sprintf("after /clear: %+v, %v", id, err)
				}
				return ""
			})
			s = p.send("first hello")
			if s.verdict != agent.Accepted || s.anchor.ThreadID != "" || s.acc.NativeThreadID == id.ThreadID {
				t.Fatalf("after /clear: %s %+v", s.verdict, s.acc)
			}
			r.follow(s.acc.Task)

			// The process dies in mid-turn.
			p.ready()
			s = p.send("please SCN=SLOW:60")
			p.tm("kill-pane", "-t", p.id)
			if got := r.follow(s.acc.Task); got.State != agent.Lost {
				t.Fatalf("turn of a dead process: %+v", got)
			}
		})
	}
}

// TestReal_Drafts proves that the composer of each version shows what the landing
// proof expects, at several sizes.
func TestReal_Drafts(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 100)
	drafts := map[string]string{
		"short": "hello", "words": long[:480], "1000": long[:1000-1] + "x", "1001": long[:1000] + "x", "5000": strings.Repeat("x y\n", 1250) + "z",
		"one word": strings.Repeat("x", 300), "wide": strings.Repeat("日本語テキスト", 20) + " end", "tabs": "a\tb\n\tindented\n\t\ttwo",
		"blank lines": "one\n\n\ntwo\n\n x", "indented": "x\n    indented four\n  two\n trailing   \nend", "a run of blanks": "a" + strings.Repeat(" ", 130) + "b",
		"emoji": strings.Repeat("👩\u200d👩\u200d👧 e\u0301 ok 👍🏽 ", 12), "edge": strings.Repeat("y", 116) + " z", "over the edge": strings.Repeat("y", 118) + " z",
		"dashes": strings.Repeat("aaaa-bbbb ", 30), "path": "see http://x.y/" + strings.Repeat("abc/", 60), "no-break": "a\u00a0b\u200bc\u2003d",
		"no width": "a\u200bb\u00adc\u200ed\ufeffe\u2060 f\u3164g", "trailing blanks": strings.Repeat("y", 116) + "     \nend", "45 lines": numbered(45), "400 lines": numbered(124),
		"question": "?", "hash": "#12 is an issue", "last word": "look at @README", "skill": "use $imagegen", "slash later": "a /status", "code": "```go\nfunc main() {\n\tprintln(\"x\")\n}\n```",
	}
	small := map[string]bool{"1000": true, "45 lines": true, "words": true, "wide": true, "tabs": true, "code": true, "trailing blanks": true, "a run of blanks": true}
	for _, version := range []string{"0.171.0", "0.148.0"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t, version, false)
			p := r.start()
			for _, size := range [][2]string{{"120", "40"}, {"80", "24"}} {
				p.tm("resize-window", "-t", p.id, "-x", size[0], "-y", size[1])
				p.ready()
				for name, text := range drafts {
					if size[0] == "80" && !small[name] {
						continue
					}
					pre, err := r.adapter.Prepare(text)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if err := r.tmux.Paste(r.ctx, p.look(), pre.Typed); err != nil {
						t.Fatal(err)
					}
					var got agent.Reading
					begin := time.Now()
					ok := false
					for !ok && time.Since(begin) < 20*time.Second { // a busy machine may paint late
						got = p.reading()
						ok = r.adapter.Landed(got.Composer, pre)
					}
					if !ok {
						t.Errorf("%s at %s: not proven: %s %s %+v\n%s", name, size[0], got.State, got.Name, got.Composer, p.text())
					}
					if got.State != agent.Idle {
						t.Errorf("%s at %s: state %s %s", name, size[0], got.State, got.Name)
					}
					wrong := pre
					wrong.Typed += "!"
					if r.adapter.Landed(got.Composer, wrong) {
						t.Errorf("%s at %s: a longer text was proven too", name, size[0])
					}
					p.clear()
				}
			}
		})
	}
}

func numbered(n int) string {
	var sb strings.Builder
	for i := range n {
		fmt.Fprintf(&sb, "line %d\n", i)
	}
	return sb.String()
}

// TestReal_Daemon drives four panes of one home with the background daemon
// (dryrun §1).
func TestReal_Daemon(t *testing.T) {
	r := newRig(t, "0.171.0", true)
	var panes []*pane
	for range 4 {
		panes = append(panes, r.launch())
	}
	for _, p := range panes {
		p.ready()
	}
	for _, p := range panes {
		proc := p.proc()
		if proc.Mode != agent.Daemon || proc.Daemon == nil || proc.Daemon.PID == proc.Inc.PID {
			t.Fatalf("process %+v", proc)
		}
		id, err := r.adapter.Identify(r.ctx, proc)
		if err != nil || id.State == agent.Resolved || id.ThreadID != "" {
			t.Fatalf("identity %+v, %v", id, err)
		}
		// A loaded machine may miss the bound of the port map: that costs the proof only.
		var anchor agent.Anchor
		for range 20 {
			begin := time.Now()
			if anchor, err = r.adapter.Anchor(r.ctx, proc); err != nil {
				t.Fatal(err)
			}
			t.Logf("anchor with port map in %v, threads of the pane %d", time.Since(begin), len(anchor.Threads))
			if len(anchor.Threads) > 0 {
				break
			}
		}
		if len(anchor.Threads) != 1 {
			t.Fatalf("a fresh pane owns %v", anchor.Threads)
		}
	}

	accepted := func(t *testing.T, sents []sent) {
		t.Helper()
		threads := map[string]bool{}
		for i := range sents {
			r.await(&sents[i])
			if sents[i].verdict != agent.Accepted {
				t.Fatalf("pane %d: %s", i, sents[i].verdict)
			}
			threads[sents[i].acc.NativeThreadID] = true
			if own := sents[i].anchor.Threads; len(own) > 0 && own[len(own)-1] != sents[i].acc.NativeThreadID {
				t.Errorf("pane %d: accepted in %s, owns %v", i, sents[i].acc.NativeThreadID, own)
			}
			if got := r.follow(sents[i].acc.Task); got.State != agent.Completed {
				t.Errorf("pane %d: %+v", i, got)
			}
			t.Logf("pane %d: decided %v after Enter", i, sents[i].took)
		}
		if len(threads) != len(sents) {
			t.Fatalf("%d threads accepted %d requests", len(threads), len(sents))
		}
	}
	all := func(t *testing.T, text func(i int) string) {
		t.Helper()
		var sents []sent
		for i, p := range panes {
			p.ready()
			pre, err := r.adapter.Prepare(text(i))
			if err != nil {
				t.Fatal(err)
			}
			anchor, err := r.adapter.Anchor(r.ctx, p.proc())
			if err != nil {
				t.Fatal(err)
			}
			p.land(pre)
			sents = append(sents, sent{pre: pre, anchor: anchor})
		}
		for _, p := range panes {
			p.press(terminal.Enter)
		}
		accepted(t, sents)
	}
	t.Run("different texts at once", func(t *testing.T) { all(t, func(i int) string { return fmt.Sprintf("different %d", i) }) })
	t.Run("equal text at once", func(t *testing.T) { all(t, func(int) string { return "the very same" }) })
	t.Run("equal text again", func(t *testing.T) { all(t, func(int) string { return "the very same" }) })
	t.Run("after clear", func(t *testing.T) {
		for _, p := range panes[:2] {
			p.command("/clear")
		}
		time.Sleep(2 * time.Second)
		all(t, func(int) string { return "the very same" })
	})
	var first string
	t.Run("current turn", func(t *testing.T) {
		s := panes[0].send("please SCN=SLOW:4")
		first = s.acc.NativeThreadID
		if s.verdict != agent.Accepted {
			t.Fatal(s.verdict)
		}
		task, ok, err := r.adapter.Current(r.ctx, panes[0].proc())
		if err != nil || !ok || task.TurnID != s.acc.Task.TurnID {
			t.Errorf("current task %+v, %v, %v", task, ok, err)
		}
		if _, ok, _ := r.adapter.Current(r.ctx, panes[1].proc()); ok {
			t.Error("an idle pane has a current turn")
		}
		if _, err := r.adapter.Anchor(r.ctx, panes[0].proc()); err == nil {
			t.Error("an anchor was given while a turn is open")
		}
		if got := r.follow(s.acc.Task); got.State != agent.Completed {
			t.Errorf("%+v", got)
		}
	})
	t.Run("one thread in two panes", func(t *testing.T) {
		if first == "" {
			t.Skip("no thread")
		}
		p := panes[1]
		p.ready()
		p.command("/resume " + first)
		time.Sleep(3 * time.Second)
		p.ready()
		s := p.send("in the other pane's thread")
		if s.verdict != agent.Shared || s.acc.NativeThreadID != first {
			t.Errorf("verdict %s, thread %s, want shared %s", s.verdict, s.acc.NativeThreadID, first)
		}
		if s.verdict == agent.Shared {
			r.follow(s.acc.Task)
		}
	})
	t.Run("terminal dies in mid-turn", func(t *testing.T) {
		p := panes[2]
		p.ready()
		s := p.send("please SCN=SLOW:5")
		p.tm("kill-pane", "-t", p.id)
		if got := r.follow(s.acc.Task); got.State != agent.Completed || got.Text != "slow answer" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("without the control socket", func(t *testing.T) {
		set, err := rule.Load("")
		if err != nil {
			t.Fatal(err)
		}
		with := r.adapter
		defer func() { r.adapter = with }()
		r.adapter = codex.New(codex.Options{Rules: set})
		p := panes[3]
		p.ready()
		s := p.send("alone and unique")
		if s.verdict != agent.Accepted || len(s.anchor.Threads) != 0 {
			t.Errorf("%s %v", s.verdict, s.anchor.Threads)
		}
	})
}
