package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

// untested is an adapter of a version without fixtures.
type untested struct{ agent.Native }

func (u untested) Find(ctx context.Context, p terminal.Pane) (agent.Process, error) {
	proc, err := u.Native.Find(ctx, p)
	proc.Class = agent.Untested
	return proc, err
}

// A version whose screens were never recorded gets no native command, unless the
// operator says so.
func TestNative_VersionPolicy(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	desk := w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return untested{a.(agent.Native)} })
	w.desk = desk
	ctx := context.Background()
	for name, try := range map[string]func() error{
		"native_inspect":      func() error { _, err := p.inspect(); return err },
		"identify_foreground": func() error { _, err := p.identify(); return err },
		"new_thread":          func() error { _, err := p.newThread(newCall()); return err },
		"resume_thread":       func() error { _, err := p.resume(foreign); return err },
		"list_resumable_threads": func() error {
			_, err := desk.ListResumableThreads(ctx, newCall(), handoff.ListResumableThreadsInput{TerminalID: p.id})
			return err
		},
	} {
		if err := try(); !fault.Is(err, fault.VersionUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"native_inspect", "new_thread", "list_resumable_threads"} {
		if p.row().Actions[name].Tool != "" {
			t.Errorf("%s is advertised", name)
		}
	}
	if p.keys() != "" {
		t.Errorf("typed %q", p.keys())
	}
	desk.Untested = handoff.UntestedAll
	if _, err := p.inspect(); err != nil {
		t.Errorf("with the operator's word: %v", err)
	}
}

// A first submission that never got its thread leaves no Session behind that could
// conflict with the pane, once its Turn is closed.
func TestClose_LeavesNoOrphan(t *testing.T) {
	w := newWorld(t)
	w.env = []string{scripted.ThreadsVariable + "=2"}
	p := w.agent("100", "40")
	sent, err := p.send("drop")
	if err != nil {
		t.Fatal(err)
	}
	if row := p.row(); row.Management == "conflict" || row.Actions["new_thread"].Tool != "" {
		t.Errorf("while it is open: %+v", row)
	}
	if _, err := w.desk.Close(context.Background(), newCall(), handoff.CloseInput{TurnID: sent.TurnID}); err != nil {
		t.Fatal(err)
	}
	if row := p.row(); row.Management != "unmanaged" || row.Actions["new_thread"].Tool == "" {
		t.Errorf("afterwards: %+v", row)
	}
}

// A switch whose process has ended is given up at close, by that alone.
func TestClose_TransitionOfAGonePane(t *testing.T) {
	w := newWorld(t)
	mute := filepath.Join(w.dir, "mute")
	w.env = []string{scripted.MuteVariable + "=" + mute}
	p := w.agent("100", "40")
	first := p.done("first")
	if err := os.WriteFile(mute, []byte("status"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := p.newThread(newCall())
	if err != nil || got.Status != "uncertain" {
		t.Fatalf("got %+v %v", got, err)
	}
	pid := p.row().PID
	inc, err := process.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	w.agent() // tmux lives on
	w.tmuxDo("kill-pane", "-t", p.tid)
	testkit.Eventually(t, patience, func() bool { gone, known := inc.Gone(); return gone && known })
	l := w.list()
	if len(l.Transitions) != 1 || l.Transitions[0].ID != got.Transition {
		t.Fatalf("transitions of gone panes %+v", l.Transitions)
	}
	act := l.Transitions[0].Actions["close"].Arguments
	out, err := w.desk.Close(context.Background(), newCall(), handoff.CloseInput{
		TurnID: act["conversation_id"].(string), ExpectedTransitionID: act["expected_transition_id"].(string),
	})
	if res := body[handoff.CloseResult](t, out, err); res.Outcome != store.TransitionAborted || !res.Resolved {
		t.Errorf("close %+v", res)
	}
	if all := w.list().Transitions; len(all) != 0 {
		t.Errorf("left %+v", all)
	}
	if s := w.sessionOf(first.SessionID); s.Status != store.SessionBound {
		t.Errorf("source %+v", s)
	}
}

// contended is an adapter that finds a thread open elsewhere from the nth look on.
type contended struct {
	agent.Native
	from int
	seen *int
}

func (c contended) Threads(ctx context.Context, proc agent.Process) ([]agent.Thread, error) {
	all, err := c.Native.Threads(ctx, proc)
	if *c.seen++; *c.seen >= c.from {
		for i := range all {
			all[i].Live = agent.LiveElsewhere
		}
	}
	return all, err
}

// Proves core 19.52: a thread that becomes active elsewhere after the first look
// is refused before input, or ends in doubt; there are never two owners.
func TestResumeThread_TakenMeanwhile(t *testing.T) {
	t.Parallel()
	for from, want := range map[int]string{2: "refused", 4: "uncertain"} {
		t.Run(want, func(t *testing.T) {
			w := newWorld(t)
			seen := -1 << 20
			w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return contended{a.(agent.Native), from, &seen} })
			p := w.agent("100", "40")
			copyThread(t, p, w.turn(p.done("first").TurnID).NativeThreadID, foreign)
			seen = 0
			keys := p.keys()
			got, err := p.resume(foreign)
			if want == "refused" {
				if !fault.Is(err, fault.IdentityUnverified) || p.keys() != keys {
					t.Errorf("got %+v %v", got, err)
				}
				p.unfenced()
				return
			}
			if err != nil || got.Status != "uncertain" || strings.Count(p.keys(), "/resume") != 1 {
				t.Errorf("got %+v %v", got, err)
			}
			bound, err := w.store.Bound(context.Background())
			if err != nil || len(bound) != 1 || bound[0].Binding.NativeThreadID == foreign {
				t.Errorf("bound %+v %v", bound, err)
			}
			if _, err := p.send("second"); !fault.Is(err, fault.LifecycleUnresolved) {
				t.Errorf("a send: %v", err)
			}
		})
	}
}
