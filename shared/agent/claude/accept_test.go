package claude_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
)

// TestAccept_First: before its first prompt a session has no transcript; all of
// the one that appears is behind the anchor.
func TestAccept_First(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	m.register("idle", nil)
	p := w.prepare("hello\nworld")
	anchor := m.anchor()
	if anchor.ThreadID != m.session || len(anchor.Files) != 0 {
		t.Fatalf("anchor %+v", anchor)
	}
	if _, v := w.accept(anchor, p); v != agent.Pending {
		t.Fatalf("before anything: %s", v)
	}
	tr := m.transcript()
	tr.raw(`{"type":"mode","mode":"normal","sessionId":"` + m.session + `"}` + "\n")
	id := tr.prompt("hello\nworld", nil)
	acc, v := w.accept(anchor, p)
	if v != agent.Accepted || acc.NativeThreadID != m.session || acc.AcceptanceID != id || acc.Source != "claude_transcript" || acc.AcceptedAt == 0 {
		t.Fatalf("%s %+v", v, acc)
	}
	if acc.Task.TurnID != id || acc.Task.Start.Path != tr.path || acc.Task.Start.Offset == 0 || acc.Metadata["prompt_id"] == "" {
		t.Errorf("task %+v, metadata %v", acc.Task, acc.Metadata)
	}
	data, err := agent.CanonicalJSON(acc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.ParseAcceptance(data); err != nil {
		t.Errorf("the evidence does not recompute: %v", err)
	}
	sum, err := anchor.Fingerprint()
	if err != nil || acc.AnchorFingerprint != sum || acc.RequestHash != p.RequestHash {
		t.Errorf("anchor %s, want %s; request %s", acc.AnchorFingerprint, sum, acc.RequestHash)
	}
}

// TestAccept_Records goes through what may follow the anchor.
// Proves core 19.17: only the anchored file and byte range counts.
func TestAccept_Records(t *testing.T) {
	const text = "do the work"
	for _, tc := range []struct {
		name  string
		write func(*transcript)
		want  agent.Verdict
	}{
		{"nothing", func(*transcript) {}, agent.Pending},
		{"exactly it", func(tr *transcript) { tr.prompt(text, nil) }, agent.Accepted},
		{"white space at its end", func(tr *transcript) { tr.prompt(text+" \n", nil) }, agent.Accepted},
		{"as a large paste", func(tr *transcript) {
			tr.prompt("\n\n<pasted_content id=\"6ac7\">\n"+text+"\n</pasted_content id=\"6ac7\">\n", nil)
		}, agent.Accepted},
		{"a large paste with more", func(tr *transcript) {
			tr.prompt("\n\n<pasted_content id=\"6ac7\">\n"+text+"\n</pasted_content id=\"6ac7\">\n\nand more", nil)
		}, agent.Pending},
		{"something before a large paste", func(tr *transcript) {
			tr.prompt("x\n\n<pasted_content id=\"6ac7\">\n"+text+"\n</pasted_content id=\"6ac7\">\n", nil)
		}, agent.Pending},
		{"a paste whose marks differ", func(tr *transcript) {
			tr.prompt("\n\n<pasted_content id=\"6ac7\">\n"+text+"\n</pasted_content id=\"6ac8\">\n", nil)
		}, agent.Pending},
		{"another text", func(tr *transcript) { tr.prompt("do the work.", nil) }, agent.Pending},
		{"a blank before it", func(tr *transcript) { tr.prompt(" "+text, nil) }, agent.Pending},
		{"twice", func(tr *transcript) { tr.turn(text); tr.prompt(text, nil) }, agent.Uncertain},
		{"behind a foreign prompt", func(tr *transcript) { tr.turn("by hand"); tr.prompt(text, nil) }, agent.Accepted},
		{"before a foreign prompt", func(tr *transcript) { tr.turn(text); tr.prompt("by hand", nil) }, agent.Accepted},
		{"queued alone", func(tr *transcript) { tr.prompt(text, map[string]any{"promptSource": "queued"}) }, agent.Accepted},
		{"queued with another", func(tr *transcript) {
			tr.prompt("by hand", map[string]any{"promptSource": "queued"})
			tr.prompt(text, map[string]any{"promptSource": "queued"})
		}, agent.Uncertain},
		{"slipped into a turn", func(tr *transcript) {
			tr.prompt("by hand", nil)
			tr.record("attachment", map[string]any{"attachment": map[string]any{"type": "queued_command", "prompt": text}})
		}, agent.Uncertain},
		{"another text slipped into a turn", func(tr *transcript) {
			tr.prompt(text, nil)
			tr.record("attachment", map[string]any{"attachment": map[string]any{"type": "queued_command", "prompt": "by hand"}})
		}, agent.Accepted},
		{"from a program", func(tr *transcript) { tr.prompt(text, map[string]any{"promptSource": "sdk"}) }, agent.Pending},
		{"from another session", func(tr *transcript) {
			tr.prompt(text, map[string]any{"promptSource": "system", "isMeta": true, "origin": map[string]any{"kind": "peer"}})
		}, agent.Pending},
		{"meta", func(tr *transcript) { tr.prompt(text, map[string]any{"isMeta": true}) }, agent.Pending},
		{"not by a person", func(tr *transcript) { tr.prompt(text, map[string]any{"origin": map[string]any{"kind": "hook"}}) }, agent.Pending},
		{"a side chain", func(tr *transcript) { tr.prompt(text, map[string]any{"isSidechain": true}) }, agent.Pending},
		{"a summary", func(tr *transcript) {
			tr.prompt(text, map[string]any{"isCompactSummary": true, "isVisibleInTranscriptOnly": true})
		}, agent.Pending},
		{"without a source", func(tr *transcript) { tr.prompt(text, map[string]any{"promptSource": nil}) }, agent.Pending},
		{"of another session", func(tr *transcript) { tr.prompt(text, map[string]any{"sessionId": uuid.NewString()}) }, agent.Pending},
		{"without an id", func(tr *transcript) { tr.prompt(text, map[string]any{"uuid": ""}) }, agent.Pending},
		{"by the model", func(tr *transcript) { tr.says("end_turn", words(text)) }, agent.Pending},
		{"a list of parts", func(tr *transcript) {
			tr.prompt(text, map[string]any{"message": map[string]any{"role": "user", "content": []any{words(text)}}})
		}, agent.Pending},
		{"in a quoted request", func(tr *transcript) {
			tr.record("api-request-blob", map[string]any{"message": map[string]any{"role": "user", "content": text}, "promptSource": "typed", "origin": map[string]any{"kind": "human"}})
		}, agent.Pending},
		{"half written", func(tr *transcript) {
			tr.prompt(text, nil)
			data, _ := os.ReadFile(tr.path)
			_ = os.WriteFile(tr.path, data[:len(data)-1], 0o600)
		}, agent.Pending},
		{"behind garbage", func(tr *transcript) { tr.raw("{\"type\":\n"); tr.prompt(text, nil) }, agent.Uncertain},
	} {
		for _, first := range []bool{true, false} {
			name := tc.name
			if !first {
				name += ", in a transcript that was there"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				m := w.self()
				m.register("idle", nil)
				tr := m.transcript()
				if !first {
					tr.turn(text) // the same text before the anchor
				}
				p := w.prepare(text)
				anchor := m.anchor()
				tc.write(tr)
				if acc, v := w.accept(anchor, p); v != tc.want {
					t.Errorf("%s, want %s: %+v", v, tc.want, acc)
				}
			})
		}
	}
}

// TestAccept_OtherFile: the same text in another session's transcript, and a file
// that is not the anchored one any more. Proves core 19.17.
func TestAccept_OtherFile(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	m.register("idle", nil)
	tr := m.transcript()
	tr.turn("before")
	p := w.prepare("do the work")
	anchor := m.anchor()
	other := *tr
	other.path = filepath.Join(filepath.Dir(tr.path), uuid.NewString()+".jsonl")
	other.prompt("do the work", nil)
	if _, v := w.accept(anchor, p); v != agent.Pending {
		t.Fatalf("in another file: %s", v)
	}
	for _, tc := range []struct {
		name string
		do   func()
	}{
		{"shorter", func() { _ = os.Truncate(tr.path, anchor.Files[0].Offset-1) }},
		{"replaced", func() {
			data, _ := os.ReadFile(tr.path)
			_ = os.WriteFile(tr.path+".new", data, 0o600)
			_ = os.Rename(tr.path+".new", tr.path)
		}},
		{"gone", func() { _ = os.Remove(tr.path) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.do()
			if _, v := w.accept(anchor, p); v != agent.Uncertain {
				t.Errorf("%s, want uncertain", v)
			}
		})
	}
}

func TestAccept_Reach(t *testing.T) {
	w := newWorld(t)
	w.adapter.SetReach(4096)
	m := w.self()
	m.register("idle", nil)
	p := w.prepare("do the work")
	anchor := m.anchor()
	tr := m.transcript()
	tr.turn(strings.Repeat("x", 5000))
	tr.prompt("do the work", nil)
	if _, v := w.accept(anchor, p); v != agent.Uncertain {
		t.Errorf("beyond the limit: %s, want uncertain", v)
	}
}

func TestAccept_Bent(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	m.register("idle", nil)
	p := w.prepare("do the work")
	anchor := m.anchor()
	m.transcript().prompt("do the work", nil)
	bent := p
	bent.Expected = "something else"
	if _, v := w.accept(anchor, bent); v != agent.Pending {
		t.Errorf("a text that is not the hashed one: %s", v)
	}
	for name, edit := range map[string]func(*agent.Anchor){
		"version": func(a *agent.Anchor) { a.Version = 2 },
		"thread":  func(a *agent.Anchor) { a.ThreadID = "" },
		"files":   func(a *agent.Anchor) { a.Files = make([]agent.Position, 2) },
		"rules":   func(a *agent.Anchor) { a.Process.Version = "1.0.0" },
	} {
		b := anchor
		edit(&b)
		if _, v, err := w.adapter.Accept(w.ctx, b, p); err == nil || v != agent.Pending {
			t.Errorf("%s: %s, %v", name, v, err)
		}
	}
}

// TestCurrent gives the turn that a Watch follows: the last prompt, by whomever,
// while the process works.
func TestCurrent(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	m.register("idle", nil)
	tr := m.transcript()
	current := func() (agent.Task, bool) {
		t.Helper()
		task, ok, err := w.adapter.Current(w.ctx, m.proc())
		if err != nil {
			t.Fatal(err)
		}
		return task, ok
	}
	if _, ok := current(); ok {
		t.Error("idle without a transcript")
	}
	tr.turn("one")
	id := tr.prompt("two", nil)
	if _, ok := current(); ok {
		t.Error("idle by its own word")
	}
	m.register("busy", nil)
	if task, ok := current(); !ok || task.TurnID != id || task.ThreadID != m.session {
		t.Errorf("at work: %+v, %v", task, ok)
	}
	m.register("waiting", map[string]any{"waitingFor": "permission prompt"})
	if _, ok := current(); !ok {
		t.Error("waiting for an approval")
	}
	tr.says("end_turn", words("answer"))
	tr.interrupted()
	m.register("busy", nil) // a command of its own runs
	if task, ok := current(); ok {
		t.Errorf("after the end: %+v", task)
	}
	id = tr.prompt("Another Claude session sent a message: x", map[string]any{"promptSource": "system", "isMeta": true})
	if task, ok := current(); !ok || task.TurnID != id {
		t.Errorf("by another session: %+v, %v", task, ok)
	}
	tr.prompt("from a program", map[string]any{"promptSource": "sdk"})
	if task, ok := current(); !ok || task.TurnID != id {
		t.Errorf("beside a program on the same file: %+v, %v", task, ok)
	}
}

func TestRecorded(t *testing.T) {
	for _, tc := range []struct {
		content, request string
		want             bool
	}{
		{"a", "a", true},
		{"a\n\n", "a", true},
		{"\na", "a", false},
		{"\n\n<pasted_content id=\"7402\">\na\nb\n</pasted_content id=\"7402\">\n", "a\nb", true},
		{"<pasted_content id=\"7402\">\na\nb\n</pasted_content id=\"7402\">", "a\nb", true},
		{"\n\n<pasted_content id=\"7402\">\n\n</pasted_content id=\"7402\">\n", "", false},
		{"<pasted_content id=\"7402\">\na\n</pasted_content id=\"7402\">\n<pasted_content id=\"7403\">\nb\n</pasted_content id=\"7403\">", "a", false},
		{"<pasted_content id=\"\">\na\n</pasted_content id=\"\">", "a", false},
	} {
		if got := claude.Recorded(tc.content, tc.request); got != tc.want && tc.request != "" {
			t.Errorf("%q is %q: %v, want %v", tc.content, tc.request, got, tc.want)
		}
	}
}

func TestThreads(t *testing.T) {
	w := newWorld(t)
	m, other := w.self(), w.start()
	m.register("idle", nil)
	mine := m.transcript()
	mine.turn("my own first\nprompt")
	mine.turn("my second")
	old := &transcript{member: m, path: filepath.Join(filepath.Dir(mine.path), "11111111-2222-3333-4444-555555555555.jsonl"), at: time.Now}
	old.turn(strings.Repeat("long words ", 100))
	old.record("ai-title", map[string]any{"aiTitle": "Scripted session"})
	other.register("idle", map[string]any{"tmux": nil})
	busy := &transcript{member: m, path: filepath.Join(filepath.Dir(mine.path), other.session+".jsonl"), at: time.Now}
	busy.turn("held by another")
	empty := &transcript{member: m, path: filepath.Join(filepath.Dir(mine.path), uuid.NewString()+".jsonl"), at: time.Now}
	empty.record("user", map[string]any{"message": map[string]any{"role": "user", "content": "<command-name>/clear</command-name>"}})
	foreign := &transcript{member: m, path: filepath.Join(filepath.Dir(mine.path), uuid.NewString()+".jsonl"), at: time.Now}
	foreign.prompt("same slug, another directory", map[string]any{"cwd": "/elsewhere"})
	for i, tr := range []*transcript{old, busy, mine} {
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(tr.path, at, at); err != nil {
			t.Fatal(err)
		}
	}

	got, err := w.adapter.Threads(w.ctx, m.proc())
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		id, title, preview string
		live               agent.Liveness
	}
	var rows []row
	for _, th := range got {
		rows = append(rows, row{th.ID, th.Title, th.Preview, th.Live})
		if th.Workspace != m.proc().Cwd || th.Path == "" || th.File == (agent.FileID{}) {
			t.Errorf("%+v", th)
		}
	}
	want := []row{
		{m.session, "", "my own first prompt", agent.LiveHere},
		{other.session, "", "held by another", agent.LiveElsewhere},
		{"11111111-2222-3333-4444-555555555555", "Scripted session", "", agent.NotLive},
	}
	if len(rows) != len(want) {
		t.Fatalf("threads %+v", rows)
	}
	for i := range want {
		if want[i].preview == "" {
			if n := len([]rune(rows[i].preview)); n != 200 {
				t.Errorf("a preview of %d characters", n)
			}
			rows[i].preview = ""
		}
		if rows[i] != want[i] {
			t.Errorf("thread %d: %+v, want %+v", i, rows[i], want[i])
		}
	}
}
