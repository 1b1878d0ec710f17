package codex_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/process"
)

// recorded is one turn of a real rollout (testdata of package agent).
type recorded struct {
	*world
	name  string
	lines [][]byte
	task  agent.Task
}

// record puts a recorded rollout into a home, none of its lines yet, and makes
// the task of its turn. The holder is this test.
func (w *world) record(t *testing.T, path string) *recorded {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{world: w, name: strings.TrimSuffix(filepath.Base(path), ".jsonl"), lines: bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))}
	r.lines[len(r.lines)-1] = append(r.lines[len(r.lines)-1], '\n')
	thread, turn := "", ""
	for _, line := range r.lines {
		var rec struct {
			Payload struct {
				Type, ThreadID, TurnID string
			}
		}
		line = bytes.ReplaceAll(bytes.ReplaceAll(line, []byte(`"thread_id"`), []byte(`"ThreadID"`)), []byte(`"turn_id"`), []byte(`"TurnID"`))
		if err := json.Unmarshal(line, &rec); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		if turn == "" && rec.Payload.Type == "task_started" {
			turn = rec.Payload.TurnID
		}
		if thread == "" {
			thread = rec.Payload.ThreadID
		}
	}
	if turn == "" {
		t.Fatalf("%s: no turn in it", r.name)
	}
	version := strings.SplitN(r.name, "-", 2)[0]
	th := w.newThread()
	if err := os.WriteFile(th.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(th.path)
	if err != nil {
		t.Fatal(err)
	}
	id := fileID(fi)
	r.task = agent.Task{Version: 1, ThreadID: thread, TurnID: turn,
		Process: agent.Process{Agent: agent.Codex, Inc: process.Self(), Version: version, Home: w.home, Mode: agent.InProcess},
		Start:   agent.Position{Path: th.path, File: id, ThreadID: thread, Ordinal: -1}}
	return r
}

// upTo writes the first n lines.
func (r *recorded) upTo(n int) {
	r.Helper()
	if err := os.WriteFile(r.task.Start.Path, bytes.Join(r.lines[:n], nil), 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *recorded) progress(at agent.Position) agent.Progress {
	r.Helper()
	p, err := r.adapter.Progress(r.ctx, r.task, at)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// TestProgress_Recorded follows every recorded turn of both versions line by line.
// Proves core 19.24's part here: equal evidence has equal fingerprints wherever
// the reading began, and each different one differs.
func TestProgress_Recorded(t *testing.T) {
	want := map[string]struct {
		state   agent.ProgressState
		text    string
		failure string
		waited  string // kind and command of the first call that was seen waiting
	}{
		"0.148.0-approval-approved":           {agent.Completed, "EXEC finished", "", "run_command: touch /h/rg/rig/approved-a-n148.txt"},
		"0.148.0-approval-rejected":           {agent.Aborted, "", "interrupted", "run_command: touch /h/rg/rig/approved-b-n148.txt"},
		"0.148.0-background-terminal":         {agent.Completed, "BG left a terminal running", "", ""},
		"0.148.0-compact-auto":                {agent.Completed, `ECHO "after big"`, "", ""},
		"0.148.0-compact-manual":              {agent.Completed, "", "", ""},
		"0.148.0-error-401":                   {agent.Failed, "", "401", ""},
		"0.148.0-error-500":                   {agent.Failed, "", "high demand", ""},
		"0.148.0-first-turn":                  {agent.Completed, "", "", ""},
		"0.148.0-interrupted-streaming":       {agent.Aborted, "", "interrupted", ""},
		"0.148.0-patch-approved-then-steered": {agent.Aborted, "", "interrupted", "edit_files: "},
		"0.148.0-questionnaire":               {agent.Aborted, "", "interrupted", "questionnaire: Which colour should the door be?\nWhich size?"},
		"0.148.0-steer-two-user-messages":     {agent.Completed, "", "", ""},
		"0.148.0-unicode-multiline":           {agent.Completed, "", "", ""},
		"0.148.0-user-shell":                  {agent.Completed, "", "", ""},
		"0.171.0-approval-approved":           {agent.Completed, "EXEC finished", "", "run_command"},
		"0.171.0-approval-rejected":           {agent.Aborted, "", "interrupted", "run_command"},
		"0.171.0-background-terminal":         {agent.Completed, "BG left a terminal running", "", ""},
		"0.171.0-compact-auto":                {agent.Completed, `ECHO "after big"`, "", ""},
		"0.171.0-compact-manual":              {agent.Completed, "", "", ""},
		"0.171.0-error-401":                   {agent.Failed, "", "401", ""},
		"0.171.0-error-500":                   {agent.Failed, "", "high demand", ""},
		"0.171.0-first-turn":                  {agent.Completed, "SLOW ANSWER after 4s", "", ""},
		"0.171.0-interrupted-streaming":       {agent.Aborted, "", "interrupted", ""},
		"0.171.0-mcp-approved":                {agent.Completed, "MCP finished", "", "mcp_tool"},
		"0.171.0-mcp-call":                    {agent.Completed, "MCP finished", "", "mcp_tool"},
		"0.171.0-mcp-timeout":                 {agent.Completed, "MCP finished", "", "mcp_tool"},
		"0.171.0-patch-approved":              {agent.Completed, "PATCH finished", "", "edit_files"},
		"0.171.0-questionnaire":               {agent.Completed, "ASK finished", "", "questionnaire"},
		"0.171.0-steer-two-user-messages":     {agent.Completed, "", "", ""},
		"0.171.0-unicode-multiline":           {agent.Completed, "", "", ""},
		"0.171.0-user-shell":                  {agent.Completed, "", "", ""},
	}
	paths, err := filepath.Glob(filepath.Join("..", "testdata", "codex", "rollouts", "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded rollouts: %v", err)
	}
	w := newWorld(t, "0.171.0")
	for _, path := range paths {
		r := w.record(t, path)
		t.Run(r.name, func(t *testing.T) {
			want, ok := want[r.name]
			if !ok {
				t.Fatal("a recording without an expectation")
			}
			if strings.HasSuffix(r.name, "-user-shell") {
				r.task.ThreadID = r.task.Start.ThreadID
			}
			waited, prints := "", map[string]agent.ProgressState{}
			var at agent.Position
			for n := 1; n <= len(r.lines); n++ {
				r.upTo(n)
				whole, step := r.progress(agent.Position{}), r.progress(at)
				again := r.progress(step.Checkpoint)
				if diff := cmp.Diff(whole, step); diff != "" {
					t.Fatalf("line %d: from the start and from the checkpoint differ:\n%s", n, diff)
				}
				if diff := cmp.Diff(step, again); diff != "" {
					t.Fatalf("line %d: two readings differ:\n%s", n, diff)
				}
				if step.Checkpoint.Offset < at.Offset {
					t.Fatalf("line %d: checkpoint went back", n)
				}
				at = step.Checkpoint
				if state, ok := prints[step.Fingerprint]; ok && state != step.State {
					t.Fatalf("line %d: one fingerprint for %s and %s", n, state, step.State)
				}
				prints[step.Fingerprint] = step.State
				if n < len(r.lines) && step.State != agent.Open {
					t.Fatalf("line %d of %d: %s", n, len(r.lines), step.State)
				}
				if step.Waiting != nil && waited == "" {
					waited = step.Waiting.Kind + ": " + step.Waiting.Command
				}
				if n == len(r.lines) {
					if step.State != want.state || (want.text != "" && step.Text != want.text) || !strings.Contains(step.Error, want.failure) || step.ID != r.task.TurnID || step.At.IsZero() {
						t.Errorf("at the end: %+v", step)
					}
					if (step.Error != "") != (step.State == agent.Failed || step.State == agent.Aborted) {
						t.Errorf("error %q with state %s", step.Error, step.State)
					}
				}
			}
			if !strings.HasPrefix(waited, want.waited) || (want.waited == "") != (waited == "") {
				t.Errorf("saw waiting %q, want %q", waited, want.waited)
			}
		})
	}
}

// TestProgress_Torn: whatever follows the last newline is "not yet", and a bad
// line before it breaks the rollout.
func TestProgress_Torn(t *testing.T) {
	w := newWorld(t, "0.171.0")
	r := w.record(t, filepath.Join("..", "testdata", "codex", "rollouts", "0.171.0-first-turn.jsonl"))
	whole := bytes.Join(r.lines, nil)
	for n := 0; n < len(whole); n += 97 {
		if err := os.WriteFile(r.task.Start.Path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if p := r.progress(agent.Position{}); p.State != agent.Open || p.Checkpoint.Offset > int64(n) {
			t.Fatalf("%d bytes: %+v", n, p)
		}
	}
	for i := range r.lines {
		bad := bytes.Join([][]byte{bytes.Join(r.lines[:i], nil), r.lines[i][:len(r.lines[i])/2], []byte("\n"), bytes.Join(r.lines[i+1:], nil)}, nil)
		if err := os.WriteFile(r.task.Start.Path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if p := r.progress(agent.Position{}); p.State != agent.Broken {
			t.Fatalf("line %d cut in the middle: %+v", i, p)
		}
	}
}

func TestProgress_NextBegan(t *testing.T) {
	p, th := inProcess(t, "hello")
	anchor := p.anchor()
	turn := th.started()
	th.user(turn, "do it")
	acc, _ := p.verdict(anchor, p.prepare("do it"), 0)
	first := p.follow(acc.Task, agent.Position{})
	if first.State != agent.Open {
		t.Fatalf("%+v", first)
	}
	next := th.started()
	got := p.follow(acc.Task, first.Checkpoint)
	again := p.follow(acc.Task, got.Checkpoint)
	if got.State != agent.NextBegan || got.Fingerprint != again.Fingerprint || again.State != agent.NextBegan {
		t.Errorf("%+v, %+v", got, again)
	}
	// Its own end, however late, wins.
	th.complete(turn, "late")
	if got := p.follow(acc.Task, again.Checkpoint); got.State != agent.Completed || got.Text != "late" {
		t.Errorf("%+v", got)
	}
	th.complete(next, "other")
	if got := p.follow(acc.Task, agent.Position{}); got.State != agent.Completed || got.Text != "late" {
		t.Errorf("%+v", got)
	}
}

func (w *world) follow(task agent.Task, at agent.Position) agent.Progress {
	w.Helper()
	p, err := w.adapter.Progress(w.ctx, task, at)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func TestProgress_Lost(t *testing.T) {
	p, th := inProcess(t, "hello")
	anchor := p.anchor()
	turn := th.started()
	th.user(turn, "do it")
	acc, _ := p.verdict(anchor, p.prepare("do it"), 0)
	if got := p.follow(acc.Task, agent.Position{}); got.State != agent.Open {
		t.Fatalf("%+v", got)
	}
	p.end()
	got, again := p.follow(acc.Task, agent.Position{}), p.follow(acc.Task, agent.Position{})
	if got.State != agent.Lost || got.Fingerprint != again.Fingerprint {
		t.Errorf("%+v, %+v", got, again)
	}
	// A durable completion wins over the death of the process.
	th.complete(turn, "done")
	if got := p.follow(acc.Task, got.Checkpoint); got.State != agent.Completed || got.Text != "done" {
		t.Errorf("%+v", got)
	}
}

// With the daemon, the pane's process may die and the turn goes on.
func TestProgress_Daemon(t *testing.T) {
	w := newDaemonWorld(t, 1)
	w.begin(w.threads[0], "hello")
	anchor := w.panes[0].anchor()
	turn := w.threads[0].started()
	w.threads[0].user(turn, "do it")
	acc, v := w.verdict(anchor, w.prepare("do it"), 3e9)
	if v != agent.Accepted {
		t.Fatal(v)
	}
	w.panes[0].end()
	if got := w.follow(acc.Task, agent.Position{}); got.State != agent.Open {
		t.Errorf("pane died: %+v", got)
	}
	w.daemon.end()
	if got := w.follow(acc.Task, agent.Position{}); got.State != agent.Lost {
		t.Errorf("daemon died: %+v", got)
	}
}

func TestProgress_Broken(t *testing.T) {
	for _, tc := range []struct {
		name string
		act  func(th *thread)
	}{
		{"gone", func(th *thread) { os.Remove(th.path) }},
		{"shorter", func(th *thread) { os.Truncate(th.path, 10) }},
		{"replaced", func(th *thread) {
			data, _ := os.ReadFile(th.path)
			os.Remove(th.path)
			os.WriteFile(th.path, data, 0o600)
		}},
		{"corrupt", func(th *thread) { th.raw("]\n") }},
		{"a link now", func(th *thread) {
			os.Rename(th.path, th.path+".x")
			os.Symlink(th.path+".x", th.path)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, th := inProcess(t, "hello")
			anchor := p.anchor()
			turn := th.started()
			th.user(turn, "do it")
			acc, _ := p.verdict(anchor, p.prepare("do it"), 0)
			got := p.follow(acc.Task, agent.Position{})
			tc.act(th)
			broken := p.follow(acc.Task, got.Checkpoint)
			if broken.State != agent.Broken || broken.Error == "" || strings.Contains(broken.Error, p.home) {
				t.Errorf("%+v", broken)
			}
			if again := p.follow(acc.Task, broken.Checkpoint); again.Fingerprint != broken.Fingerprint {
				t.Errorf("%+v, %+v", broken, again)
			}
		})
	}
	p, th := inProcess(t, "hello")
	anchor := p.anchor()
	th.turn("do it")
	acc, _ := p.verdict(anchor, p.prepare("do it"), 0)
	at := acc.Task.Start
	at.File.Ino++
	if _, err := p.adapter.Progress(p.ctx, acc.Task, at); err == nil {
		t.Error("a checkpoint of another file was taken")
	}
}

// Two calls wait: the dialogs come in the order of the calls.
func TestProgress_Waiting(t *testing.T) {
	p, th := inProcess(t, "hello")
	anchor := p.anchor()
	turn := th.started()
	th.user(turn, "do it")
	acc, _ := p.verdict(anchor, p.prepare("do it"), 0)
	call := func(id, args string) {
		th.write("response_item", map[string]any{"type": "function_call", "name": "exec_command", "call_id": id, "arguments": args})
	}
	output := func(id string) {
		th.write("response_item", map[string]any{"type": "function_call_output", "call_id": id, "output": "x"})
	}
	waiting := func(at agent.Position) (string, agent.Position) {
		t.Helper()
		got := p.follow(acc.Task, at)
		if got.State != agent.Open {
			t.Fatalf("%+v", got)
		}
		if got.Waiting == nil {
			return "", got.Checkpoint
		}
		return fmt.Sprint(got.Waiting.ID, " ", got.Waiting.Command), got.Checkpoint
	}
	call("plain", `{"cmd":"ls"}`)
	got, at := waiting(agent.Position{})
	if got != "" {
		t.Errorf("a command inside the sandbox waits: %s", got)
	}
	call("a", `{"cmd":"touch a","sandbox_permissions":"require_escalated"}`)
	call("b", `{"cmd":"touch b","sandbox_permissions":"require_escalated"}`)
	for _, step := range []struct {
		answered, want string
	}{{"", "a touch a"}, {"plain", "a touch a"}, {"a", "b touch b"}, {"b", ""}} {
		if step.answered != "" {
			output(step.answered)
		}
		if got, at = waiting(at); got != step.want {
			t.Errorf("after the answer to %q: waiting %q, want %q", step.answered, got, step.want)
		}
	}
	if at.Offset != size(th.path) {
		t.Errorf("checkpoint %d of %d with nothing open", at.Offset, size(th.path))
	}
}

// FuzzProgress: no bytes of a rollout make the reader crash, go back, or take a
// torn line for a whole one.
func FuzzProgress(f *testing.F) {
	for _, name := range []string{"0.171.0-first-turn", "0.171.0-approval-rejected", "0.148.0-error-500"} {
		data, err := os.ReadFile(filepath.Join("..", "testdata", "codex", "rollouts", name+".jsonl"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[len(data)-min(len(data), 1500):], uint16(300))
	}
	f.Add([]byte("{}\n{}\n"), uint16(3))
	f.Add([]byte("\n\n"), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		w := &world{T: t, ctx: t.Context(), home: t.TempDir(), adapter: fuzzAdapter}
		path := filepath.Join(w.home, "r.jsonl")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		task := agent.Task{Version: 1, ThreadID: "x", TurnID: "x", Process: agent.Process{Inc: process.Self(), Version: "0.171.0", Mode: agent.InProcess},
			Start: agent.Position{Path: path, File: fileID(fi), Ordinal: -1}}
		first := w.follow(task, agent.Position{})
		if end := first.Checkpoint.Offset; end > int64(len(data)) || (end > 0 && data[end-1] != '\n') {
			t.Fatalf("checkpoint at %d", end)
		}
		second := w.follow(task, first.Checkpoint)
		if second.Fingerprint != first.Fingerprint || second.Checkpoint.Offset < first.Checkpoint.Offset {
			t.Fatalf("%+v\n%+v", first, second)
		}
		if int(cut) < len(data) {
			if err := os.Truncate(path, int64(cut)); err != nil {
				t.Fatal(err)
			}
			if p := w.follow(task, first.Checkpoint); p.Checkpoint.Offset < first.Checkpoint.Offset {
				t.Fatalf("after the cut: %+v", p)
			}
		}
	})
}
