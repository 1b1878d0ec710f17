package claude_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/process"
)

// recording is one recorded transcript (testdata of package agent) in a world
// whose process is this test.
type recording struct {
	*member
	path  string
	lines [][]byte
}

// record puts a recorded transcript into a home, none of its lines yet.
func (w *world) recording(name string) *recording {
	w.Helper()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "claude", "transcripts", name+".jsonl"))
	if err != nil {
		w.Fatal(err)
	}
	r := &recording{member: w.self(), path: filepath.Join(w.home, "t.jsonl")}
	if r.lines = bytes.SplitAfter(data, []byte("\n")); len(r.lines[len(r.lines)-1]) == 0 {
		r.lines = r.lines[:len(r.lines)-1]
	}
	if last := len(r.lines) - 1; !bytes.HasSuffix(r.lines[last], []byte("\n")) {
		r.lines[last] = append(bytes.Clone(r.lines[last]), '\n')
	}
	if err := os.WriteFile(r.path, nil, 0o600); err != nil {
		w.Fatal(err)
	}
	return r
}

// task is the turn of the nth prompt of the recording, from 0, and the number of
// lines up to its own.
func (r *recording) task(version string, nth int) (agent.Task, int) {
	r.Helper()
	fi, err := os.Stat(r.path)
	if err != nil {
		r.Fatal(err)
	}
	var at int64
	for i, line := range r.lines {
		var rec struct {
			Type, UUID, SessionID, PromptSource string
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			r.Fatal(err)
		}
		if rec.Type == "user" && rec.PromptSource != "" {
			if nth--; nth < 0 {
				r.session = rec.SessionID
				return agent.Task{Version: 1, ThreadID: rec.SessionID, TurnID: rec.UUID,
					Process: agent.Process{Agent: agent.Claude, Inc: process.Self(), Version: version, Home: r.home, Mode: agent.InProcess},
					Start:   agent.Position{Path: r.path, File: fileID(fi), ThreadID: rec.SessionID, Offset: at, Ordinal: -1}}, i + 1
			}
		}
		at += int64(len(line))
	}
	r.Fatalf("no such prompt in it")
	return agent.Task{}, 0
}

// upTo writes the first n lines.
func (r *recording) upTo(n int) {
	r.Helper()
	if err := os.WriteFile(r.path, bytes.Join(r.lines[:n], nil), 0o600); err != nil {
		r.Fatal(err)
	}
}

// TestProgress_Recorded follows every recorded turn of both versions line by line.
// Proves core 19.24's part here: equal evidence has equal fingerprints wherever
// the reading began, and each different one differs.
func TestProgress_Recorded(t *testing.T) {
	type expect struct {
		name    string
		nth     int
		state   agent.ProgressState
		text    string
		failure string
		waited  string // kind and command of the calls that were seen waiting
	}
	cases := []expect{
		{"2.1.332-new-session-head", 0, agent.Completed, "Hello from the scripted model", "", ""},
		{"2.1.332-new-session-head", 1, agent.Open, "", "", ""},
		{"2.1.332-prompt-two-lines", 0, agent.Completed, "after", "", ""},
		{"2.1.332-prompt-mixed-typed-and-pasted", 0, agent.Completed, "OK from scripted model", "", ""},
		{"2.1.332-prompt-pasted-twice-expanded", 0, agent.Completed, "OK from scripted model", "", ""},
		{"2.1.332-approved-bash", 0, agent.Completed, "The command has finished.", "", "run_command touch /srv/demo/alpha/approved-1.txt"},
		{"2.1.332-approved-edit", 0, agent.Completed, "after", "", "edit_files /srv/demo/alpha/new.txt"},
		{"2.1.332-approved-write", 0, agent.Completed, "after", "", "edit_files /srv/demo/alpha/new.txt"},
		{"2.1.332-mcp-tool-approved", 0, agent.Completed, "done", "", "mcp_tool drawbridge.akk_echo"},
		{"2.1.332-rejected-bash-esc", 0, agent.Aborted, "", "Request interrupted by user for tool use", "run_command touch /srv/demo/alpha/rejected-esc.txt"},
		{"2.1.332-rejected-bash-no", 0, agent.Aborted, "", "Request interrupted by user for tool use", "run_command touch /srv/demo/alpha/rejected-4.txt"},
		{"2.1.332-rejected-webfetch", 0, agent.Aborted, "", "Request interrupted by user for tool use", "fetch http://127.0.0.1:9/x"},
		{"2.1.332-two-bash-first-approved-second-rejected", 0, agent.Aborted, "", "Request interrupted by user for tool use", "run_command touch a1, run_command touch a2"},
		{"2.1.332-ask-single-other", 0, agent.Completed, "thanks", "", "questionnaire Which database should we use?"},
		{"2.1.332-ask-multi-answered", 0, agent.Completed, "thanks", "", "questionnaire Which checks should run?\nWhich branch?"},
		{"2.1.332-ask-cancelled", 0, agent.Aborted, "", "Request interrupted by user for tool use", "questionnaire Which checks should run?\nWhich branch?"},
		{"2.1.332-plan-approved", 0, agent.Completed, "executing", "", "edit_files /srv/demo/home/.claude/plans/plan-it-do-tool-write-file-path-srv-demo-inherited-truffle.md, plan # Plan\\n\\n1. Do A\\n2. Do B\\n"},
		{"2.1.332-plan-rejected", 0, agent.Aborted, "", "Request interrupted by user for tool use", "plan # Plan\n\n1. Do A\n2. Do B\n"},
		{"2.1.332-api-error-400", 0, agent.Failed, "", "API Error: 400 scripted bad request", ""},
		{"2.1.332-api-error-529-gave-up", 0, agent.Failed, "", "API Error: Repeated 529 Overloaded errors. The API is at capacity — this is usually temporary. Try again in a moment. If it persists, check your inference gateway (127.0.0.1:18191).", ""},
		{"2.1.332-interrupted-streaming", 0, agent.Aborted, "", "Request interrupted by user", ""},
		{"2.1.332-interrupted-with-queued-prompt", 0, agent.Aborted, "", "Request interrupted by user", ""},
		{"2.1.332-interrupted-with-queued-prompt", 1, agent.Completed, "OK from scripted model", "", ""},
		{"2.1.332-interrupted-before-output", 0, agent.Aborted, "", "Request interrupted by user", ""},
		{"2.1.332-queued-mid-turn-delivered", 0, agent.Completed, "ok", "", "run_command sleep 6; touch /srv/demo/alpha/steer.txt"},
		{"2.1.332-peer-message-received", 0, agent.Completed, "OK from scripted model", "", ""},
		{"2.1.332-after-clear-and-outside-resume", 0, agent.Completed, "OK from scripted model", "", ""},
		{"2.1.332-pasted-multiline-rejected", 0, agent.Aborted, "", "Request interrupted by user for tool use", "run_command echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb cccccccccccccccccccccccccccccccc > out.txt && \\\ncat <<EOF >> out.txt\nsecond line\nEOF\nls -la"},
		{"2.1.263-session", 0, agent.Completed, "Hello", "", ""},
		{"2.1.263-session", 1, agent.Aborted, "", "Request interrupted by user for tool use", "edit_files /srv/demo/alpha/oldw.txt"},
		{"2.1.263-session", 2, agent.Aborted, "", "Request interrupted by user for tool use", "questionnaire Which database should we use?"},
		{"2.1.263-session", 3, agent.Completed, "thanks", "", ""},
		{"2.1.263-session", 4, agent.Aborted, "", "Request interrupted by user for tool use", "run_command touch /srv/demo/alpha/old1.txt"},
		{"2.1.263-session", 5, agent.Completed, "words 0. words 1. words 2. words 3. words 4. words 5. ", "", ""},
	}
	fingerprints := map[string]string{}
	for _, tc := range cases {
		t.Run(fmt.Sprintf("%s-%d", tc.name, tc.nth), func(t *testing.T) {
			w := newWorld(t)
			r := w.recording(tc.name)
			version, _, _ := strings.Cut(tc.name, "-")
			task, first := r.task(version, tc.nth)
			r.register("waiting", map[string]any{"waitingFor": "permission prompt"})
			var waited []string
			var at agent.Position
			digests := map[string]bool{}
			ended := -1
			for n := first; n <= len(r.lines); n++ {
				r.upTo(n)
				p := w.progress(task, at)
				if p.Checkpoint.Offset < at.Offset {
					t.Fatalf("line %d: the checkpoint goes back", n)
				}
				if p.State == agent.Open && p.Digest != "" {
					digests[p.Digest] = true
				}
				if p.Waiting != nil {
					now := p.Waiting.Kind + " " + p.Waiting.Command
					if len(waited) == 0 || waited[len(waited)-1] != now {
						waited = append(waited, now)
					}
					if p.Waiting.ID == "" || p.Waiting.Cwd == "" || len(p.Calls) == 0 {
						t.Errorf("line %d: call %+v", n, p.Waiting)
					}
				}
				if p.State != agent.Open && ended < 0 {
					ended = n
				}
				at = p.Checkpoint
			}
			if got := strings.Join(waited, ", "); got != tc.waited {
				t.Errorf("waited for %q, want %q", got, tc.waited)
			}
			if len(digests) < 2 && tc.state != agent.Open {
				t.Errorf("%d digests on the way", len(digests))
			}

			r.register("idle", nil)
			fresh, again := w.progress(task, agent.Position{}), w.progress(task, at)
			if diff := cmp.Diff(fresh, again); diff != "" {
				t.Errorf("read from the start and from the checkpoint (-start +checkpoint):\n%s", diff)
			}
			if fresh.State != tc.state || fresh.Text != tc.text || fresh.Error != tc.failure {
				t.Errorf("%+v", fresh)
			}
			if tc.state != agent.Open && (fresh.ID != task.TurnID || fresh.At.IsZero()) {
				t.Errorf("id %q at %v", fresh.ID, fresh.At)
			}
			if before, ok := fingerprints[fresh.Fingerprint]; ok {
				t.Errorf("the fingerprint of %s", before)
			}
			fingerprints[fresh.Fingerprint] = t.Name()
		})
	}
}

// TestProgress_Disorder: what was written before the records that it follows from,
// even before the prompt, belongs to the turn all the same. 2.1.263 was seen to
// write the first call of a turn first.
func TestProgress_Disorder(t *testing.T) {
	for _, tc := range []struct {
		name, text, waits string
		moved             func(i int) bool // lines behind the prompt that stand before it
	}{
		{"2.1.332-approved-bash", "The command has finished.", "touch /srv/demo/alpha/approved-1.txt", nil},
		{"2.1.332-approved-bash", "The command has finished.", "", func(int) bool { return true }},
		{"2.1.332-prompt-two-lines", "after", "", func(int) bool { return true }},
		{"2.1.332-approved-edit", "after", "/srv/demo/alpha/new.txt", func(i int) bool { return i < 3 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			r := w.recording(tc.name)
			_, at := r.task("2.1.332", 0)
			before, behind := slices.Clone(r.lines[:at-1]), [][]byte{r.lines[at-1]}
			taken := false
			for i, line := range r.lines[at:] {
				call := !taken && bytes.Contains(line, []byte(`"type":"tool_use"`))
				if tc.moved != nil && tc.moved(i) || tc.moved == nil && call {
					before, taken = append(before, line), true
					continue
				}
				behind = append(behind, line)
			}
			if !taken {
				t.Fatal("nothing was moved")
			}
			r.lines = append(before, behind...)
			task, first := r.task("2.1.332", 0)
			r.register("waiting", map[string]any{"waitingFor": "permission prompt"})
			waited := ""
			for n := first; n <= len(r.lines); n++ {
				r.upTo(n)
				if p := w.progress(task, agent.Position{}); p.Waiting != nil && waited == "" {
					waited = p.Waiting.Command
				}
			}
			if waited != tc.waits {
				t.Errorf("waited for %q, want %q", waited, tc.waits)
			}
			r.register("idle", nil)
			p := w.progress(task, agent.Position{})
			if p.State != agent.Completed || p.Text != tc.text || p.Checkpoint.Offset < task.Start.Offset {
				t.Errorf("%+v", p)
			}
			if again := w.progress(task, p.Checkpoint); !cmp.Equal(p, again) {
				t.Errorf("again: %+v", again)
			}
		})
	}
}

// TestProgress_Completion: an answer alone is no end, the mark of its length alone
// is none, and neither is while the process works.
func TestProgress_Completion(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	m.register("busy", nil)
	tr := m.transcript()
	task := tr.task(tr.prompt("do it", nil))
	state := func(want agent.ProgressState, when string) agent.Progress {
		t.Helper()
		p := w.progress(task, agent.Position{})
		if p.State != want {
			t.Errorf("%s: %s, want %s", when, p.State, want)
		}
		return p
	}
	state(agent.Open, "accepted")
	tr.record("attachment", map[string]any{"attachment": map[string]any{"type": "date"}})
	tr.says("tool_use", words("I look."), use("t1", "Bash", map[string]any{"command": "ls"}))
	tr.result("t1")
	tr.says("end_turn", words("one"), words("two"))
	m.register("idle", nil)
	state(agent.Open, "answered, without the mark")
	m.register("busy", nil)
	tr.record("attachment", map[string]any{"attachment": map[string]any{"type": "prompt_snapshot"}})
	tr.closes()
	state(agent.Open, "marked, and busy")
	m.register("idle", nil)
	first := state(agent.Completed, "marked and idle")
	if first.Text != "one\n\ntwo" {
		t.Errorf("text %q", first.Text)
	}
	m.register("busy", nil)
	tr.prompt("the next", nil)
	if p := state(agent.Completed, "busy with the next"); p.Fingerprint != first.Fingerprint || p.Checkpoint != first.Checkpoint {
		t.Errorf("the next prompt changes what was proven")
	}
	m.register("waiting", map[string]any{"waitingFor": "dialog open"})
	state(agent.Completed, "a panel is open")
	if err := os.Remove(m.registryFile()); err != nil {
		t.Fatal(err)
	}
	state(agent.Completed, "with the next prompt, whatever the registry says")
}

// TestProgress_Chain: what belongs to a turn the parents tell, not the order of
// lines.
func TestProgress_Chain(t *testing.T) {
	for _, tc := range []struct {
		name  string
		write func(tr *transcript, prompt string)
		state agent.ProgressState
		text  string
	}{
		{"another writer's turn between", func(tr *transcript, prompt string) {
			tip := tr.tip
			tr.prompt("from outside", map[string]any{"promptSource": "sdk", "entrypoint": "sdk-cli"})
			tr.says("end_turn", words("outside"))
			tr.closes()
			tr.tip = tip
			tr.says("end_turn", words("inside"))
			tr.closes()
		}, agent.Completed, "inside"},
		{"another writer's turn alone", func(tr *transcript, prompt string) {
			tr.prompt("from outside", map[string]any{"promptSource": "sdk", "entrypoint": "sdk-cli"})
			tr.says("end_turn", words("outside"))
			tr.closes()
		}, agent.Open, ""},
		{"a side chain", func(tr *transcript, prompt string) {
			tip := tr.tip
			for _, r := range []map[string]any{
				{"isSidechain": true, "message": map[string]any{"id": "x", "role": "assistant", "stop_reason": "end_turn", "content": []any{words("aside")}}},
			} {
				tr.record("assistant", r)
			}
			tr.record("system", map[string]any{"subtype": "turn_duration", "isSidechain": true})
			tr.tip = tip
		}, agent.Open, ""},
		{"a compaction in the middle", func(tr *transcript, prompt string) {
			tr.says("tool_use", use("t1", "Bash", map[string]any{"command": "ls"}))
			tip := tr.tip
			tr.tip = ""
			tr.record("system", map[string]any{"subtype": "compact_boundary", "logicalParentUuid": tip, "compactMetadata": map[string]any{"trigger": "auto"}})
			tr.record("user", map[string]any{"isCompactSummary": true, "promptSource": "system", "message": map[string]any{"role": "user", "content": "(summary)"}})
			tr.says("end_turn", words("after it"))
			tr.closes()
		}, agent.Completed, "after it"},
		{"a compaction whose parents are unknown", func(tr *transcript, prompt string) {
			tr.tip = ""
			tr.record("system", map[string]any{"subtype": "compact_boundary", "logicalParentUuid": uuid.NewString()})
			tr.says("end_turn", words("after it"))
			tr.closes()
		}, agent.Completed, "after it"},
		{"a compaction behind a foreign prompt", func(tr *transcript, prompt string) {
			tr.prompt("by hand", nil)
			tr.tip = ""
			tr.record("system", map[string]any{"subtype": "compact_boundary", "logicalParentUuid": uuid.NewString()})
			tr.says("end_turn", words("after it"))
			tr.closes()
		}, agent.NextBegan, ""},
		{"compacted afterwards by hand", func(tr *transcript, prompt string) {
			tr.says("end_turn", words("answer"))
			tr.closes()
			tip := tr.tip
			tr.tip = ""
			tr.record("system", map[string]any{"subtype": "compact_boundary", "logicalParentUuid": tip})
			tr.record("user", map[string]any{"isCompactSummary": true, "message": map[string]any{"role": "user", "content": "(summary)"}})
		}, agent.Completed, "answer"},
		{"the next prompt reuses the parent", func(tr *transcript, prompt string) {
			tr.tip = ""
			tr.prompt("by hand", nil)
		}, agent.NextBegan, ""},
		{"a turn by another session", func(tr *transcript, prompt string) {
			tr.prompt("Another Claude session sent a message: x", map[string]any{"promptSource": "system", "isMeta": true})
		}, agent.NextBegan, ""},
		{"what a hook has to say", func(tr *transcript, prompt string) {
			tr.says("end_turn", words("too early"))
			tr.prompt("Stop hook feedback: x", map[string]any{"promptSource": "system", "isMeta": true, "promptId": "p-1"})
			tr.says("end_turn", words("after it"))
			tr.closes()
		}, agent.Completed, "after it"},
		{"local commands", func(tr *transcript, prompt string) {
			tr.record("user", map[string]any{"isMeta": true, "message": map[string]any{"role": "user", "content": "<local-command-caveat>x"}})
			tr.record("user", map[string]any{"message": map[string]any{"role": "user", "content": "<command-name>/model</command-name>"}})
			tr.record("system", map[string]any{"subtype": "local_command", "content": "<local-command-stdout>"})
		}, agent.Open, ""},
		{"an answer to nothing on resume", func(tr *transcript, prompt string) {
			tr.record("assistant", map[string]any{"message": map[string]any{"id": "x", "role": "assistant", "model": "<synthetic>", "stop_reason": "stop_sequence", "content": []any{words("No response requested.")}}})
			tr.closes()
		}, agent.Open, ""},
		{"the mark alone", func(tr *transcript, prompt string) { tr.closes() }, agent.Open, ""},
		{"the mark behind a call", func(tr *transcript, prompt string) {
			tr.says("tool_use", use("t1", "Bash", map[string]any{"command": "ls"}))
			tr.closes()
		}, agent.Open, ""},
		{"stopped for another reason", func(tr *transcript, prompt string) {
			tr.says("max_tokens", words("and so"))
			tr.closes()
		}, agent.Failed, ""},
		{"it went on after an error", func(tr *transcript, prompt string) {
			tr.record("assistant", map[string]any{"isApiErrorMessage": true, "error": "unknown", "message": map[string]any{"id": "e", "role": "assistant", "model": "<synthetic>", "stop_reason": "stop_sequence", "content": []any{words("API Error: x")}}})
			tr.says("end_turn", words("after all"))
			tr.closes()
		}, agent.Completed, "after all"},
		{"a cut character in a result and in the answer", func(tr *transcript, prompt string) {
			tr.says("tool_use", use("t1", "Bash", map[string]any{"command": "ls"}))
			tr.raw(`{"parentUuid":"` + tr.tip + `","isSidechain":false,"type":"user","uuid":"u1","sessionId":"` + tr.session +
				`","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"half \ud83d"}]}}` + "\n")
			tr.raw(`{"parentUuid":"u1","isSidechain":false,"type":"assistant","uuid":"u2","sessionId":"` + tr.session +
				`","message":{"id":"m","role":"assistant","model":"x","stop_reason":"end_turn","content":[{"type":"text","text":"half \ud83d"}]}}` + "\n")
			tr.tip = "u2"
			tr.closes()
		}, agent.Completed, "half \ufffd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.self()
			tr := m.transcript()
			tr.turn("before")
			prompt := tr.prompt("do it", map[string]any{"promptId": "p-1"})
			task := tr.task(prompt)
			tc.write(tr, prompt)
			m.register("idle", nil)
			if p := w.progress(task, agent.Position{}); p.State != tc.state || p.Text != tc.text {
				t.Errorf("%s %q, want %s %q (%+v)", p.State, p.Text, tc.state, tc.text, p)
			}
		})
	}
}

// TestProgress_Broken: a transcript that was replaced, cut or damaged, and one
// that does not begin with the turn.
func TestProgress_Broken(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(tr *transcript, task *agent.Task)
	}{
		{"gone", func(tr *transcript, _ *agent.Task) { _ = os.Remove(tr.path) }},
		{"shorter", func(tr *transcript, _ *agent.Task) { _ = os.Truncate(tr.path, 10) }},
		{"replaced", func(tr *transcript, _ *agent.Task) {
			data, _ := os.ReadFile(tr.path)
			_ = os.WriteFile(tr.path+".new", data, 0o600)
			_ = os.Rename(tr.path+".new", tr.path)
		}},
		{"damaged", func(tr *transcript, _ *agent.Task) { tr.raw("{\"type\":\"user\",\n") }},
		{"another turn there", func(_ *transcript, task *agent.Task) { task.TurnID = uuid.NewString() }},
		{"not at a line", func(_ *transcript, task *agent.Task) { task.Start.Offset++ }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.self()
			m.register("busy", nil)
			tr := m.transcript()
			tr.turn("before")
			task := tr.task(tr.prompt("do it", nil))
			open := w.progress(task, agent.Position{})
			if open.State != agent.Open {
				t.Fatalf("%+v", open)
			}
			tc.do(tr, &task)
			at := open.Checkpoint
			at.Offset = max(at.Offset, task.Start.Offset)
			p := w.progress(task, at)
			if p.State != agent.Broken || p.Error == "" || strings.Contains(p.Error, w.home) {
				t.Errorf("%+v", p)
			}
		})
	}
	w := newWorld(t)
	m := w.self()
	m.register("busy", nil)
	tr := m.transcript()
	task := tr.task(tr.prompt("do it", nil))
	other := task.Start
	other.File.Ino++
	if _, err := w.adapter.Progress(w.ctx, task, other); err == nil {
		t.Error("a checkpoint of another file is taken")
	}
	tr.raw(`{"type":"assistant","uuid":"x","parentUuid":"` + tr.tip + `"`) // not finished: not yet
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Errorf("a half line: %+v", p)
	}
}

// task is the turn of a prompt that stands in the transcript.
func (t *transcript) task(id string) agent.Task {
	t.Helper()
	data, err := os.ReadFile(t.path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(t.path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, []byte(`"uuid":"`+id+`"`))
	if at < 0 {
		t.Fatalf("no record %s", id)
	}
	start := int64(bytes.LastIndexByte(data[:at], '\n') + 1)
	return agent.Task{Version: 1, Process: t.proc(), ThreadID: t.session, TurnID: id,
		Start: agent.Position{Path: t.path, File: fileID(fi), ThreadID: t.session, Offset: start, Ordinal: -1}}
}
