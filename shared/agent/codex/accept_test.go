package codex_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
)

// inProcess is one TUI with one thread, its rollout open when it has turns.
func inProcess(t *testing.T, turns ...string) (*member, *thread) {
	t.Helper()
	w := newWorld(t, "0.171.0")
	p, th := w.tui(), w.newThread()
	p.tell("lock", th.lock())
	if len(turns) > 0 {
		th.meta()
		p.tell("open", th.path)
	}
	for _, text := range turns {
		th.turn(text)
	}
	return p, th
}

func TestAccept_InProcess(t *testing.T) {
	p, th := inProcess(t, "hello")
	pre := p.prepare(" do it\n")
	anchor := p.anchor()
	if anchor.ThreadID != th.id || len(anchor.Files) != 1 || anchor.Files[0].Ordinal != int64(th.ordinal-1) {
		t.Fatalf("anchor %+v", anchor)
	}
	if acc, v := p.verdict(anchor, pre, 0); v != agent.Pending || acc.AcceptanceID != "" {
		t.Fatalf("before anything: %s %+v", v, acc)
	}
	turn := th.started()
	if _, v := p.verdict(anchor, pre, 0); v != agent.Pending {
		t.Fatalf("turn began: %s", v)
	}
	th.user(turn, "do it")
	acc, v := p.verdict(anchor, pre, 0)
	if v != agent.Accepted || acc.NativeThreadID != th.id || acc.Task.TurnID != turn || acc.RequestHash != pre.RequestHash || acc.AcceptanceID == "" || acc.AcceptedAt == 0 {
		t.Fatalf("%s %+v", v, acc)
	}
	// The evidence recomputes and the task starts at the turn's first record.
	blob, err := agent.CanonicalJSON(acc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.ParseAcceptance(blob); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(th.path)
	if err != nil || !strings.Contains(strings.SplitN(string(data[acc.Task.Start.Offset:]), "\n", 2)[0], "task_started") {
		t.Errorf("task starts at %d: %v", acc.Task.Start.Offset, err)
	}
	// A second equal request in another turn: no longer one.
	th.complete(turn, "x")
	th.turn("do it")
	if _, v := p.verdict(anchor, pre, 0); v != agent.Uncertain {
		t.Errorf("twice the same text: %s", v)
	}
}

// Proves core 19.17: only the anchored file and byte range are searched.
func TestAccept_OnlyAnchored(t *testing.T) {
	for _, tc := range []struct {
		name string
		act  func(p *member, th *thread)
		want agent.Verdict
	}{
		{"nothing but the earlier equal request", func(*member, *thread) {}, agent.Pending},
		{"the same text in another file of the home", func(p *member, _ *thread) {
			other := p.newThread()
			other.meta()
			other.turn("do it")
		}, agent.Pending},
		{"the same text in another file that the process opens", func(p *member, _ *thread) {
			other := p.newThread()
			other.meta()
			other.turn("do it")
			p.tell("open", other.path)
		}, agent.Pending},
		{"another text", func(_ *member, th *thread) { th.turn("do it!") }, agent.Pending},
		{"a text that only contains it", func(_ *member, th *thread) { th.turn("please do it") }, agent.Pending},
		{"the shape of a compacted record", func(_ *member, th *thread) {
			turn := th.started()
			th.write("compacted", map[string]any{"message": "x", "replacement_history": []any{map[string]any{"type": "message", "role": "user", "content": []any{map[string]any{"type": "input_text", "text": "do it"}}}}})
			th.complete(turn, "")
		}, agent.Pending},
		{"a record that names another thread", func(p *member, th *thread) {
			turn := th.started()
			forged := *th
			forged.id = p.newThread().id
			forged.user(turn, "do it")
			th.ordinal = forged.ordinal
		}, agent.Pending},
		{"our request with a skill that Codex added", func(_ *member, th *thread) {
			turn := th.started()
			th.write("event_msg", map[string]any{"type": "item_completed", "thread_id": th.id, "turn_id": turn, "item": map[string]any{
				"type": "UserMessage", "id": "x", "content": []any{map[string]any{"type": "text", "text": "do it"}, map[string]any{"type": "skill", "name": "it", "path": "/s/SKILL.md"}}}})
		}, agent.Accepted},
		{"half a line", func(_ *member, th *thread) {
			turn := th.started()
			at := *th
			at.user(turn, "do it")
			cut(th.path, -10)
		}, agent.Pending},
		{"our request", func(_ *member, th *thread) { th.turn("do it") }, agent.Accepted},
		{"a bad line in the middle", func(_ *member, th *thread) { th.raw("{\"type\":\n"); th.turn("do it") }, agent.Uncertain},
		{"the file is shorter", func(_ *member, th *thread) { cut(th.path, -100) }, agent.Uncertain},
		{"the file is gone", func(_ *member, th *thread) { os.Remove(th.path) }, agent.Uncertain},
		{"another file in its place", func(_ *member, th *thread) {
			data, _ := os.ReadFile(th.path)
			os.Remove(th.path)
			os.WriteFile(th.path, data, 0o600)
			th.turn("do it")
		}, agent.Uncertain},
		{"rewritten in place", func(_ *member, th *thread) {
			data, _ := os.ReadFile(th.path)
			os.WriteFile(th.path, []byte(strings.Repeat("x", len(data)+100)), 0o600)
		}, agent.Uncertain},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, th := inProcess(t, "hello", "do it")
			anchor := p.anchor()
			tc.act(p, th)
			if acc, v := p.verdict(anchor, p.prepare("do it"), 0); v != tc.want {
				t.Errorf("%s, want %s (%+v)", v, tc.want, acc)
			}
		})
	}
}

// cut changes the length of a file by n bytes.
func cut(path string, n int64) {
	fi, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, fi.Size()+n)
	}
	if err != nil {
		panic(err)
	}
}

func TestAccept_FirstMessage(t *testing.T) {
	p, th := inProcess(t)
	// A thread of three days ago whose first message comes now: its rollout appears
	// in that day's directory.
	old := p.threadAt(th.id, time.Now().AddDate(0, 0, -3))
	anchor := p.anchor()
	if anchor.ThreadID != th.id || len(anchor.Files) != 0 {
		t.Fatalf("anchor %+v", anchor)
	}
	old.meta()
	p.tell("open", old.path)
	old.turn("do it")
	if acc, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Accepted || acc.Task.Start.Path != old.path {
		t.Errorf("%s %+v", v, acc)
	}
}

func TestAccept_ProcessEnded(t *testing.T) {
	p, th := inProcess(t)
	anchor := p.anchor()
	th.meta()
	p.tell("open", th.path)
	th.turn("do it")
	p.end()
	if acc, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Accepted {
		t.Errorf("found by its directory: %s %+v", v, acc)
	}
}

func TestAccept_Steer(t *testing.T) {
	p, th := inProcess(t, "hello")
	anchor := p.anchor()
	data, _ := os.ReadFile(th.path)
	turn := th.started() // before the anchor in truth
	anchor.Files[0].Offset = size(th.path)
	if len(data) == 0 {
		t.Fatal("no rollout")
	}
	th.user(turn, "do it")
	if acc, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Uncertain {
		t.Errorf("text that joined an older turn: %s %+v", v, acc)
	}
}

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		panic(err)
	}
	return fi.Size()
}

func TestAnchor_NoThreadYet(t *testing.T) {
	w := newWorld(t, "0.148.0")
	if _, err := w.adapter.Anchor(w.ctx, w.tui().proc()); !fault.Is(err, fault.TerminalNotIdle) {
		t.Errorf("%v", err)
	}
}

func TestAnchor_OpenTurn(t *testing.T) {
	p, th := inProcess(t, "hello")
	turn := th.started()
	th.user(turn, "work")
	if _, err := p.adapter.Anchor(p.ctx, p.proc()); !fault.Is(err, fault.TerminalNotIdle) {
		t.Errorf("with an open turn: %v", err)
	}
	th.complete(turn, "done")
	if _, err := p.adapter.Anchor(p.ctx, p.proc()); err != nil {
		t.Errorf("after its end: %v", err)
	}
	// A turn that a dead process left open is not ours.
	th.at = func() time.Time { return time.Now().Add(-time.Hour) }
	th.started()
	if _, err := p.adapter.Anchor(p.ctx, p.proc()); err != nil {
		t.Errorf("with a turn of a dead process: %v", err)
	}
}

// A provisional send: the process holds two threads (after /clear).
func TestAccept_Provisional(t *testing.T) {
	p, th := inProcess(t, "do it")
	second := p.newThread()
	p.tell("lock", second.lock())
	anchor := p.anchor()
	if anchor.ThreadID != "" || len(anchor.Files) != 1 {
		t.Fatalf("anchor %+v", anchor)
	}
	second.meta()
	p.tell("open", second.path)
	second.turn("do it")
	acc, v := p.verdict(anchor, p.prepare("do it"), 0)
	if v != agent.Accepted || acc.NativeThreadID != second.id {
		t.Errorf("%s %+v", v, acc)
	}
	th.turn("do it")
	if _, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Uncertain {
		t.Errorf("in both threads: %s", v)
	}
}

// daemonWorld is a home with a daemon and n panes, each with a thread of its own.
type daemonWorld struct {
	*world
	daemon  *member
	panes   []*member
	threads []*thread
}

func newDaemonWorld(t *testing.T, n int) *daemonWorld {
	t.Helper()
	w := &daemonWorld{world: newWorld(t, "0.171.0")}
	w.daemon = w.world.daemon()
	for range n {
		p := w.tui()
		p.port = p.tell("listen")
		w.panes = append(w.panes, p)
		w.threads = append(w.threads, w.thread(p))
	}
	return w
}

// proven is an anchor with the port proof of n threads. A busy daemon may answer
// too late for one; the adapter then does without, as it must.
func (w *daemonWorld) proven(p *member, n int) (a agent.Anchor) {
	w.Helper()
	testkit.Eventually(w.T, 20*time.Second, func() bool {
		a = p.anchor()
		return len(a.Threads) == n
	})
	return a
}

// thread loads a new thread for a pane.
func (w *daemonWorld) thread(p *member) *thread {
	w.Helper()
	th := w.newThread()
	w.daemon.tell("lock", th.lock())
	w.daemon.tell("thread", th.id, p.port)
	return th
}

// begin opens the rollout of a thread and writes its first turn.
func (w *daemonWorld) begin(th *thread, text string) {
	w.Helper()
	th.meta()
	w.daemon.tell("open", th.path)
	th.turn(text)
}

func TestAccept_Daemon(t *testing.T) {
	t.Parallel()
	const wait = 3 * time.Second
	t.Run("one match", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		anchor := w.proven(w.panes[0], 1)
		if len(anchor.Threads) != 1 || anchor.Threads[0] != w.threads[0].id || anchor.ThreadID != "" {
			t.Fatalf("anchor %+v", anchor)
		}
		w.begin(w.threads[0], "do it")
		if acc, v := w.verdict(anchor, w.prepare("do it"), 0); v != agent.Pending || acc.AcceptanceID == "" {
			t.Errorf("at once: %s %+v, want pending with the match (a second pane may take the same text)", v, acc)
		}
		acc, v := w.verdict(anchor, w.prepare("do it"), wait)
		if v != agent.Accepted || acc.NativeThreadID != w.threads[0].id {
			t.Errorf("%s %+v", v, acc)
		}
	})
	t.Run("equal texts in both panes", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		anchors := []agent.Anchor{w.proven(w.panes[0], 1), w.proven(w.panes[1], 1)}
		for _, th := range w.threads {
			w.begin(th, "do it")
		}
		for i, anchor := range anchors {
			acc, v := w.verdict(anchor, w.prepare("do it"), wait)
			if v != agent.Accepted || acc.NativeThreadID != w.threads[i].id {
				t.Errorf("pane %d: %s %+v", i, v, acc)
			}
		}
		off := codex.New(codex.Options{Rules: w.rules})
		if _, v, _ := off.Accept(w.ctx, anchors[0], w.prepare("do it")); v != agent.Accepted {
			t.Errorf("with the proof taken at the anchor: %s", v)
		}
		anchors[0].Threads = nil
		if _, v, _ := off.Accept(w.ctx, anchors[0], w.prepare("do it")); v != agent.Uncertain {
			t.Errorf("without any proof: %s", v)
		}
	})
	t.Run("accepted in a thread that another pane owns", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		w.begin(w.threads[1], "hello")
		anchor := w.panes[0].anchor()
		w.threads[1].turn("do it")
		if acc, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Shared || acc.NativeThreadID != w.threads[1].id {
			t.Errorf("%s %+v", v, acc)
		}
		// The owner is gone: the map says nothing of the living.
		w.panes[1].end()
		if _, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Accepted {
			t.Errorf("after the owner's death: %s", v)
		}
	})
	t.Run("after clear", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		w.begin(w.threads[0], "do it")
		next := w.thread(w.panes[0])
		anchor := w.proven(w.panes[0], 2)
		if len(anchor.Threads) != 2 {
			t.Errorf("anchor %+v", anchor)
		}
		w.begin(next, "do it")
		if acc, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Accepted || acc.NativeThreadID != next.id {
			t.Errorf("%s %+v", v, acc)
		}
	})
	t.Run("an old thread resumed meanwhile", func(t *testing.T) {
		w := newDaemonWorld(t, 1)
		old := w.threadAt(uuid.Must(uuid.NewV7()).String(), time.Now().AddDate(0, -1, 0))
		old.at = func() time.Time { return time.Now().Add(-time.Hour) }
		old.meta()
		old.turn("do it")
		anchor := w.panes[0].anchor()
		w.daemon.tell("lock", old.lock())
		w.daemon.tell("open", old.path)
		w.daemon.tell("thread", old.id, w.panes[0].port)
		if acc, v := w.verdict(anchor, w.prepare("do it"), 500*time.Millisecond); v != agent.Pending {
			t.Errorf("an equal request of an hour ago: %s %+v", v, acc)
		}
		old.at = time.Now
		old.turn("do it")
		if acc, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Accepted || acc.NativeThreadID != old.id {
			t.Errorf("%s %+v", v, acc)
		}
	})
	t.Run("a TUI without the daemon takes the same text", func(t *testing.T) {
		w := newDaemonWorld(t, 1)
		alone, th := w.tui("--no-daemon"), w.newThread()
		alone.tell("lock", th.lock())
		anchor := w.panes[0].anchor()
		th.meta()
		alone.tell("open", th.path)
		th.turn("do it")
		if acc, v := w.verdict(anchor, w.prepare("do it"), 500*time.Millisecond); v != agent.Pending {
			t.Errorf("%s %+v", v, acc)
		}
	})
	t.Run("a file of the inventory is gone", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		w.begin(w.threads[0], "hello")
		w.begin(w.threads[1], "hello")
		anchor := w.panes[0].anchor()
		if err := os.Remove(w.threads[1].path); err != nil {
			t.Fatal(err)
		}
		w.threads[0].turn("do it")
		if _, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Uncertain {
			t.Error(v)
		}
	})
	t.Run("a pane whose own thread has an open turn", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		w.begin(w.threads[0], "hello")
		turn := w.threads[0].started()
		w.threads[0].user(turn, "work")
		if _, err := w.adapter.Anchor(w.ctx, w.panes[0].proc()); !fault.Is(err, fault.TerminalNotIdle) {
			t.Errorf("its own: %v", err)
		}
		if _, err := w.adapter.Anchor(w.ctx, w.panes[1].proc()); err != nil {
			t.Errorf("the other's: %v", err)
		}
		if task, ok, err := w.adapter.Current(w.ctx, w.panes[0].proc()); err != nil || !ok || task.TurnID != turn {
			t.Errorf("current task %+v %v %v", task, ok, err)
		}
		if _, ok, err := w.adapter.Current(w.ctx, w.panes[1].proc()); err != nil || ok {
			t.Errorf("current task of the other pane: %v %v", ok, err)
		}
		off := codex.New(codex.Options{Rules: w.rules})
		if _, ok, err := off.Current(w.ctx, w.panes[0].proc()); err != nil || ok {
			t.Errorf("current task without a proof: %v %v", ok, err)
		}
	})
	t.Run("a turn that the daemon knows before its record", func(t *testing.T) {
		w := newDaemonWorld(t, 2)
		w.daemon.tell("active", w.threads[0].id)
		if _, err := w.adapter.Anchor(w.ctx, w.panes[0].proc()); !fault.Is(err, fault.TerminalNotIdle) {
			t.Errorf("its own: %v", err)
		}
		if _, err := w.adapter.Anchor(w.ctx, w.panes[1].proc()); err != nil {
			t.Errorf("the other's: %v", err)
		}
	})
	t.Run("the daemon ended", func(t *testing.T) {
		w := newDaemonWorld(t, 1)
		proc, anchor := w.panes[0].proc(), w.panes[0].anchor()
		w.begin(w.threads[0], "do it")
		w.daemon.end()
		if _, err := w.adapter.Anchor(w.ctx, proc); !fault.Is(err, fault.TerminalChanged) {
			t.Errorf("anchor: %v", err)
		}
		if _, v := w.verdict(anchor, w.prepare("do it"), wait); v != agent.Accepted {
			t.Errorf("what was accepted before: %s", v)
		}
	})
}

func TestAccept_Limits(t *testing.T) {
	p, th := inProcess(t, "hello")
	p.adapter.SetReach(64 << 10)
	anchor := p.anchor()
	for range 65 {
		th.write("event_msg", map[string]any{"type": "agent_reasoning", "text": strings.Repeat("x", 1000)})
	}
	th.turn("do it")
	if _, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Uncertain {
		t.Errorf("behind what is searched: %s", v)
	}
	p, th = inProcess(t, "hello")
	anchor = p.anchor()
	th.raw(`{"type":"` + strings.Repeat("x", codex.RecordLimit) + "\"}\n")
	if _, v := p.verdict(anchor, p.prepare("do it"), 0); v != agent.Uncertain {
		t.Errorf("one record over 16 MiB: %s", v)
	}
}

// TestAccept_LongJoined: an old thread, longer than what is searched, is resumed
// and takes the request at its end.
func TestAccept_LongJoined(t *testing.T) {
	w := newDaemonWorld(t, 1)
	w.adapter.SetReach(64 << 10)
	old := w.threadAt(uuid.Must(uuid.NewV7()).String(), time.Now().AddDate(0, -1, 0))
	old.at = func() time.Time { return time.Now().Add(-time.Hour) }
	old.meta()
	old.turn("do it")
	for range 200 {
		old.write("event_msg", map[string]any{"type": "agent_reasoning", "text": strings.Repeat("x", 1000)})
	}
	anchor := w.panes[0].anchor()
	w.daemon.tell("lock", old.lock())
	w.daemon.tell("open", old.path)
	old.at = time.Now
	old.turn("do it")
	if acc, v := w.verdict(anchor, w.prepare("do it"), 3*time.Second); v != agent.Accepted || acc.NativeThreadID != old.id {
		t.Errorf("%s %+v", v, acc)
	}
}

func TestDirs(t *testing.T) {
	p, th := inProcess(t, "hello")
	dirs := p.adapter.Dirs(p.proc())
	want := map[string]bool{filepath.Dir(th.path): true}
	for _, d := range []time.Time{time.Now(), time.Now().Add(24 * time.Hour)} {
		want[filepath.Join(p.home, "sessions", d.UTC().Format("2006/01/02"))] = true
		want[filepath.Join(p.home, "sessions", d.Local().Format("2006/01/02"))] = true
	}
	for _, d := range dirs {
		delete(want, d)
	}
	if len(want) > 0 {
		t.Errorf("dirs %v lack %v", dirs, want)
	}
}

func TestIdentify(t *testing.T) {
	t.Run("nothing held", func(t *testing.T) {
		w := newWorld(t, "0.171.0")
		id, err := w.adapter.Identify(w.ctx, w.tui().proc())
		if err != nil || id.State != agent.Unavailable {
			t.Errorf("%+v %v", id, err)
		}
	})
	t.Run("before the first message", func(t *testing.T) {
		p, th := inProcess(t)
		id, err := p.adapter.Identify(p.ctx, p.proc())
		if err != nil || id.State != agent.Resolved || id.ThreadID != th.id || id.Activity != agent.ActivityIdle || len(id.Files) != 0 {
			t.Errorf("%+v %v", id, err)
		}
	})
	t.Run("idle, working, idle", func(t *testing.T) {
		p, th := inProcess(t, "hello")
		check := func(want agent.Activity) {
			t.Helper()
			id, err := p.adapter.Identify(p.ctx, p.proc())
			if err != nil || id.State != agent.Resolved || id.Activity != want || len(id.Files) != 1 || id.Files[0].Offset != size(th.path) {
				t.Errorf("%+v %v, want %s", id, err, want)
			}
		}
		check(agent.ActivityIdle)
		turn := th.started()
		check(agent.ActivityWorking)
		th.user(turn, "x")
		check(agent.ActivityWorking)
		for range 3000 { // more than one chunk backwards
			th.write("event_msg", map[string]any{"type": "agent_reasoning", "text": strings.Repeat("x", 100)})
		}
		check(agent.ActivityWorking)
		th.complete(turn, "")
		check(agent.ActivityIdle)
	})
	t.Run("a corrupt rollout", func(t *testing.T) {
		p, th := inProcess(t, "hello")
		th.started()
		th.raw("nonsense\n")
		if id, err := p.adapter.Identify(p.ctx, p.proc()); err == nil && id.Activity != agent.ActivityUnknown {
			t.Errorf("%+v", id)
		}
	})
	t.Run("two threads", func(t *testing.T) {
		p, _ := inProcess(t, "hello")
		p.tell("lock", p.newThread().lock())
		id, err := p.adapter.Identify(p.ctx, p.proc())
		if err != nil || id.State != agent.Ambiguous || id.ThreadID != "" || id.Activity != agent.ActivityUnknown || len(id.Files) != 1 {
			t.Errorf("%+v %v", id, err)
		}
	})
	t.Run("with the daemon", func(t *testing.T) {
		w := newDaemonWorld(t, 1)
		w.begin(w.threads[0], "hello")
		id, err := w.adapter.Identify(w.ctx, w.panes[0].proc())
		if err != nil || id.State != agent.Ambiguous || id.ThreadID != "" || len(id.Files) != 1 {
			t.Errorf("%+v %v", id, err)
		}
		if got := w.daemon.tell("calls"); got != "0" {
			t.Errorf("identify made %s calls on the control socket", got)
		}
	})
	t.Run("the process ended", func(t *testing.T) {
		p, _ := inProcess(t, "hello")
		proc := p.proc()
		p.end()
		id, err := p.adapter.Identify(p.ctx, proc)
		if err != nil || id.State != agent.Unavailable {
			t.Errorf("%+v %v", id, err)
		}
	})
}

func TestRolloutName(t *testing.T) {
	const id = "01a22d4b-097a-7861-b15d-c60dc04fc688"
	for _, tc := range []struct {
		name, thread string
		ok           bool
	}{
		{"rollout-2026-11-30T16-30-22-" + id + ".jsonl", id, true},
		{"rollout-2026-11-30T16-30-22-" + strings.ToUpper(id) + ".jsonl", id, true},
		{"rollout-" + id + ".jsonl", "", false},
		{"rollout-x" + id + ".jsonl", "", false},
		{"rollout-2026-" + id + ".jsonl (deleted)", "", false},
		{"rollout-2026-01a22d4b-097a-7861-b15d-c60dc04fc68z.jsonl", "", false},
		{id + ".jsonl", "", false},
		{"rollout-.jsonl", "", false},
		{"", "", false},
	} {
		thread, ok := codex.RolloutName(tc.name)
		if ok != tc.ok || (ok && thread != tc.thread) {
			t.Errorf("%q = %q, %v", tc.name, thread, ok)
		}
	}
}

func TestFindLock(t *testing.T) {
	const table = "1: FLOCK  ADVISORY  WRITE 19859 fe:01:1234 0 EOF\n" +
		"1: -> FLOCK  ADVISORY  WRITE 20000 fe:01:1234 0 EOF\n2: POSIX  ADVISORY  READ 77 00:1a:99 128 128\nrubbish\n"
	dev := func(major, minor uint64) uint64 { return (major&0xfff)<<8 | minor&0xff } // small numbers only
	for _, tc := range []struct {
		dev, ino uint64
		want     int
	}{{dev(0xfe, 1), 1234, 19859}, {dev(0, 0x1a), 99, 77}, {dev(0xfe, 2), 1234, 0}, {dev(0xfe, 1), 1, 0}} {
		if got := codex.FindLock(table, tc.dev, tc.ino); got != tc.want {
			t.Errorf("%x %d = %d, want %d", tc.dev, tc.ino, got, tc.want)
		}
	}
}

func FuzzParseDaemon(f *testing.F) {
	f.Add([]byte(`{"pid":19859,"processStartTime":"Mon Nov 30 16:30:17 2026","processIdentity":{"bootId":"04b83d79-3b6b-4e02-a52c-c5410cf8edca","startTicks":114179},"executableIdentity":{"digest":[166,161]}}`))
	f.Add([]byte(`{"pid":1,"processIdentity":{"bootId":"x","startTicks":1}}`))
	f.Add([]byte(`{"pid":-4,"processIdentity":{"bootId":"x","startTicks":1}}`))
	f.Add([]byte(`{"pid":2,"processIdentity":null}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		pid, boot, start, err := codex.ParseDaemon(data)
		if err == nil && (pid <= 1 || boot == "" || start == 0) {
			t.Errorf("%q = %d %q %d", data, pid, boot, start)
		}
	})
}

func ExampleAdapter_Prepare() {
	a := codex.New(codex.Options{})
	for _, text := range []string{"  fix it \n", "!rm x", "see @README"} {
		p, err := a.Prepare(text)
		fmt.Printf("%q %v\n", p.Typed, err)
	}
	// Output:
	// "fix it" <nil>
	// "" prepare a request: text that begins with ! is a command of Codex itself, not a request
	// "see @README ." <nil>
}
