package handoff_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// explanation gives what Explain says of the pane.
func (p *pane) explanation() handoff.Explanation {
	p.w.t.Helper()
	e, err := p.w.desk.Explain(context.Background(), p.id)
	if err != nil {
		p.w.t.Fatal(err)
	}
	return e
}

func typing(t *testing.T, e handoff.Explanation, what string) handoff.Typing {
	t.Helper()
	for _, x := range e.Typing {
		if x.What == what {
			return x
		}
	}
	t.Fatalf("nothing is said of %s: %+v", what, e.Typing)
	return handoff.Typing{}
}

// A pane is explained by id and by short ref, with and without a Store, and
// nothing is typed or written by it.
func TestExplain_Live(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	before := w.events()
	e := p.explanation()
	if e.Source != "live" || e.State != "idle" || !e.Stable || e.Rule == "" || len(e.Evidence) == 0 || e.Class != "tested" {
		t.Errorf("explanation %+v", e)
	}
	if s := typing(t, e, "send"); !s.Allowed || s.Code != "" || len(s.Keys) == 0 {
		t.Errorf("send: %+v", s)
	}
	rows := 0
	for _, ev := range e.Evidence {
		rows += len(ev.Rows)
	}
	if rows == 0 {
		t.Error("no proof shows its rows")
	}
	again, err := w.desk.Explain(context.Background(), terminal.ShortRef(p.id))
	if err != nil || again.Terminal != p.id {
		t.Errorf("by short ref: %s, %v", again.Terminal, err)
	}
	bare := handoff.New(handoff.Options{Tmux: w.tmux, Agents: w.desk.Agents, RuntimeDir: w.runDir, Log: slog.New(slog.DiscardHandler), NewID: func() string { return "" }})
	if e, err = bare.Explain(context.Background(), p.id); err != nil || e.State != "idle" {
		t.Errorf("without a Store: %+v, %v", e, err)
	}
	if keys := p.keys(); keys != "" {
		t.Errorf("explain typed %q", keys)
	}
	if after := w.events(); after != before {
		t.Errorf("explain wrote: %s, before %s", after, before)
	}
	for target, code := range map[string]fault.Code{
		"@0000000000": fault.TerminalNotFound, "turn-1": fault.WrongIDKind, p.id + "9": fault.TerminalChanged,
	} {
		if _, err := w.desk.Explain(context.Background(), target); !fault.Is(err, code) {
			t.Errorf("%s: %v, want %s", target, err, code)
		}
	}
}

// events is a digest of the Store: its rows that a look could change.
func (w *world) events() string {
	w.t.Helper()
	info, err := w.store.Info(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(w.store.Dir(), "bell"))
	if err != nil {
		w.t.Fatal(err)
	}
	return info.ID + " " + string(raw)
}

// What forbids a send is named: a Turn that owns the pane, a draft, an open dialog.
func TestExplain_Refusals(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	r := p.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	testkit.EventuallyNil(t, patience, func() error {
		if s := p.explanation().State; s != "working" {
			return fault.New(fault.Internal, "the pane is %s", s)
		}
		return nil
	})
	e := p.explanation()
	if s := typing(t, e, "send"); s.Allowed || s.Code != "terminal_not_idle" {
		t.Errorf("at work: %+v", s)
	}
	if !strings.Contains(e.Owner, r.TurnID) {
		t.Errorf("owner %q, want %s", e.Owner, r.TurnID)
	}
	if c := typing(t, e, "cancel"); !c.Allowed {
		t.Errorf("cancel: %+v", c)
	}

	q := w.agent()
	w.tmuxDo("send-keys", "-t", q.tid, "-l", "half a thought")
	testkit.EventuallyNil(t, patience, func() error {
		if s := typing(t, q.explanation(), "send"); s.Code != "composer_not_empty" {
			return fault.New(fault.Internal, "with a draft: %+v", s)
		}
		return nil
	})
	if e := q.explanation(); e.Composer == nil || e.Composer.Draft != "half a thought" {
		t.Errorf("composer %+v", e.Composer)
	}
}

// Every recorded screen is explained, and nothing is allowed that the state
// forbids.
func TestExplainScreen_Corpus(t *testing.T) {
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	a := codex.New(codex.Options{Rules: rules})
	files, err := filepath.Glob("../agent/testdata/codex/screens/*.ansi")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d screens, %v", len(files), err)
	}
	version := regexp.MustCompile(`\.(\d+\.\d+\.\d+)(?:-daemon)?\.ansi$`)
	states := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v := version.FindStringSubmatch(file)[1]
		e := handoff.ExplainScreen(a, v, agent.Tested, terminal.Screen{Text: text, Pane: terminal.Pane{Width: 120, Height: 40}}, handoff.UntestedSend)
		name := filepath.Base(file)
		states[e.State]++
		if e.Next == "" || e.Rule == "" || len(e.Evidence) == 0 {
			t.Errorf("%s: %+v", name, e)
		}
		for _, x := range e.Typing {
			if (x.Code == "") != x.Allowed || x.Allowed != (x.Why == "") {
				t.Errorf("%s: %+v", name, x)
			}
			switch {
			case !x.Allowed:
			case x.What == "send" && (e.State != "idle" || !e.Composer.Empty), x.What == "approve" && (e.State != "approval" || e.Prompt.Cut), x.What == "cancel" && e.State != "working":
				t.Errorf("%s is %s and %s is allowed", name, e.State, x.What)
			}
		}
	}
	for _, s := range []string{"idle", "working", "approval", "question", "blocked"} {
		if states[s] == 0 {
			t.Errorf("no screen is %s: %v", s, states)
		}
	}
}

// The version policy speaks before the screen does.
func TestExplainScreen_Versions(t *testing.T) {
	rules, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	a := codex.New(codex.Options{Rules: rules})
	text, err := os.ReadFile("../agent/testdata/codex/screens/approval-exec.0.171.0.ansi")
	if err != nil {
		t.Fatal(err)
	}
	shot := terminal.Screen{Text: text, Pane: terminal.Pane{Width: 120, Height: 40}}
	for _, tt := range []struct {
		class  agent.Class
		policy handoff.Untested
		want   bool
	}{
		{agent.Tested, handoff.UntestedObserve, true},
		{agent.Untested, handoff.UntestedSend, false},
		{agent.Untested, handoff.UntestedAll, true},
		{agent.Refused, handoff.UntestedAll, false},
	} {
		e := handoff.ExplainScreen(a, "0.171.0", tt.class, shot, tt.policy)
		if x := typing(t, e, "approve"); x.Allowed != tt.want {
			t.Errorf("%s under %s: %+v", tt.class, tt.policy, x)
		}
	}
}

// The pane of a thread and of a process is exactly one, and a send for another
// thread types nothing.
func TestPane_OfThread(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	w.agent()
	w.follow(p.mustSend("first").TurnID)
	thread := p.explanation().Records.Thread
	if thread == "" {
		t.Fatal("the pane's thread is not known")
	}
	if id, err := w.desk.PaneOfThread(ctx, thread); err != nil || id != p.id {
		t.Errorf("pane of %s: %s, %v", thread, id, err)
	}
	ident, err := terminal.ParseID(p.id)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := w.desk.PaneOfProcess(ctx, []int{1, ident.PID}); err != nil || id != p.id {
		t.Errorf("pane of process %d: %s, %v", ident.PID, id, err)
	}
	for _, none := range []string{"", "00000000-0000-7000-8000-000000000000"} {
		if _, err := w.desk.PaneOfThread(ctx, none); !fault.Is(err, fault.TerminalNotFound) {
			t.Errorf("thread %q: %v", none, err)
		}
	}
	keys := p.keys()
	_, err = w.desk.Send(ctx, newCall(), handoff.SendInput{TerminalID: p.id, Request: "for another", Thread: "00000000-0000-7000-8000-000000000000"})
	if !fault.Is(err, fault.IdentityUnverified) || p.keys() != keys {
		t.Errorf("send for another thread: %v; keys %q", err, strings.TrimPrefix(p.keys(), keys))
	}
	if _, err := w.desk.Send(ctx, newCall(), handoff.SendInput{TerminalID: p.id, Request: "for this one", Thread: thread}); err != nil {
		t.Errorf("send for its thread: %v", err)
	}
}
