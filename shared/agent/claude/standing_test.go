package claude_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
)

// TestProgress_Cancelled: an interruption before any output writes nothing. What
// proves it is a process that became idle after the prompt and stays so.
func TestProgress_Cancelled(t *testing.T) {
	w := newWorld(t)
	m := w.self()
	tr := m.transcript()
	m.register("busy", nil)
	task := tr.task(tr.prompt("do it", nil))
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Fatalf("busy: %+v", p)
	}
	m.register("idle", nil)
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Errorf("just idle: %+v; the last records may be on their way", p)
	}
	w.now = func() time.Time { return time.Now().Add(claude.IdleGrace + time.Second) }
	p := w.progress(task, agent.Position{})
	if p.State != agent.Aborted || p.ID != task.TurnID || p.Fingerprint == "" {
		t.Errorf("idle for long: %+v", p)
	}
	if again := w.progress(task, agent.Position{}); again.Fingerprint != p.Fingerprint {
		t.Error("two readings differ")
	}
	m.register("idle", map[string]any{"statusUpdatedAt": time.Now().Add(-time.Hour).UnixMilli(), "updatedAt": time.Now().Add(-time.Hour).UnixMilli()})
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Errorf("idle since before the prompt: %+v", p)
	}
	m.register("idle", nil)
	tr.says(nil, words("partial"))
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Errorf("with output and no end: %+v", p)
	}
}

// TestProgress_Standing: what the process says of itself decides whether a call
// waits, and whether a turn can still end.
func TestProgress_Standing(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	m.register("busy", nil)
	tr := m.transcript()
	task := tr.task(tr.prompt("do it", nil))
	tr.says("tool_use", words("I ask."), use("q", "AskUserQuestion", map[string]any{"questions": []any{
		map[string]any{"question": "Which?", "header": "H", "multiSelect": true, "options": []any{map[string]any{"label": "A", "description": "first"}, map[string]any{"label": "B"}}},
	}}), use("b", "Bash", map[string]any{"command": "ls"}), use("n", "Novel", map[string]any{"x": 1}))
	if p := w.progress(task, agent.Position{}); p.State != agent.Open || p.Waiting != nil || len(p.Calls) != 0 || len(p.Unsaid) != 3 {
		t.Errorf("busy, so the call runs: %+v", p)
	}
	m.register("waiting", map[string]any{"waitingFor": "input needed"})
	p := w.progress(task, agent.Position{})
	if p.Waiting == nil || len(p.Calls) != 3 || p.Unsaid != nil {
		t.Fatalf("waiting: %+v", p)
	}
	want := []agent.Call{
		{ID: "q", Name: "AskUserQuestion", Kind: "questionnaire", Command: "Which?", Cwd: w.cwd, Asks: []agent.Ask{
			{ID: "1", Header: "H", Text: "Which?", Multi: true, Options: []agent.Choice{{Label: "A", Description: "first"}, {Label: "B"}}},
		}},
		{ID: "b", Name: "Bash", Kind: "run_command", Command: "ls", Cwd: w.cwd},
		{ID: "n", Name: "Novel", Cwd: w.cwd},
	}
	if diff := cmp.Diff(want, p.Calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := w.adapter.Files(task); !cmp.Equal(got, []string{tr.path, m.registryFile()}) {
		t.Errorf("Files %v", got)
	}

	// Another session in the same process: nothing more will come of this one.
	m.session = uuid.NewString()
	m.register("idle", nil)
	if p := w.progress(task, agent.Position{}); p.State != agent.Open {
		t.Errorf("just switched: %+v", p)
	}
	w.now = func() time.Time { return time.Now().Add(time.Minute) }
	if p := w.progress(task, agent.Position{}); p.State != agent.NextBegan {
		t.Errorf("in another session: %+v", p)
	}
	w.now = time.Now
	m.session = task.ThreadID
	m.register("busy", nil)

	m.end()
	p = w.progress(task, agent.Position{})
	if p.State != agent.Lost || p.Waiting != nil || p.Calls != nil || p.Fingerprint == "" {
		t.Errorf("killed: %+v", p)
	}
	tr.says("end_turn", words("late"))
	tr.closes()
	if p := w.progress(task, agent.Position{}); p.State != agent.Completed {
		t.Errorf("killed after its end was written: %+v", p)
	}
}
