package store_test

import (
	"fmt"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// change is a plain switch of pane a to a new thread.
func change(n string, fn ...func(*store.NewTransition)) store.NewTransition {
	tr := store.NewTransition{
		ID: "trans-" + n, ToolCallID: "tcall-" + n, Operation: store.OpNewThread, InputPossible: true,
		TerminalID: "terminal:v2:tmux:codex:a", TerminalKey: "key-a", IncarnationKey: "inc-a", Agent: "codex", Workspace: "/w",
		TargetID: "target-" + n, Before: []byte(`{"thread":"thread-1"}`), AdapterVersion: "0.171.0", Command: "fp",
	}
	for _, f := range fn {
		f(&tr)
	}
	return tr
}

func proofOf(id, thread string) store.Verification {
	return store.Verification{ID: id, Thread: thread, Evidence: []byte(`{"source":"test"}`), Binding: dispatch("x", "a", "").Attach.Binding}
}

// bound gives a Session that is bound to pane a and idle.
func (w *world) idleSession() store.Session {
	w.t.Helper()
	f := w.prepare("1", "a", "thread-1").accept("thread-1")
	if _, err := w.ClaimCompletion(ctx, f.monitor(), completion("1")); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Release(ctx, f.term); err != nil {
		w.t.Fatal(err)
	}
	return w.session("session-1")
}

func (w *world) session(id string) store.Session {
	w.t.Helper()
	s, err := w.Session(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func from(s store.Session) func(*store.NewTransition) {
	return func(n *store.NewTransition) { n.SourceID, n.SourceRevision = s.ID, s.Revision }
}

func (w *world) begin(l *store.Lease, n store.NewTransition) store.Transition {
	w.t.Helper()
	tr, replayed, err := w.PrepareTransition(ctx, l, n)
	if err != nil || replayed {
		w.t.Fatalf("prepare: %v, replayed %v", err, replayed)
	}
	return tr
}

func (w *world) fenced(want string) {
	w.t.Helper()
	f, ok, err := w.Fence(ctx, "key-a")
	if err != nil || ok != (want != "") || f.RefID != want {
		w.t.Errorf("fence %+v %v %v, want %q", f, ok, err, want)
	}
}

// The whole way of core §10: each move, the Sessions, the fence.
func TestTransition_NewThread(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	tr := w.begin(l, change("1", from(src)))
	w.fenced("trans-1")
	if s := w.session(src.ID); s.Status != store.SessionTransitioning || s.Revision != src.Revision+1 || s.LastTransitionID != "trans-1" {
		t.Errorf("source %+v", s)
	}
	// Nothing else may begin in the pane or with the Session meanwhile.
	if _, err := w.PrepareDispatch(ctx, l, dispatch("9", "a", "")); !fault.Is(err, fault.LifecycleUnresolved) {
		t.Errorf("a submission: %v", err)
	}
	if _, _, err := w.PrepareTransition(ctx, l, change("2")); !fault.Is(err, fault.LifecycleUnresolved) {
		t.Errorf("another transition: %v", err)
	}
	for _, step := range []struct {
		do   func() (store.Transition, error)
		want string
	}{
		{func() (store.Transition, error) { return w.MarkDispatching(ctx, l, tr.ID) }, store.TransitionDispatching},
		{func() (store.Transition, error) { return w.TransitionTyped(ctx, l, tr.ID) }, store.TransitionSubmitted},
		{func() (store.Transition, error) { return w.VerifyTransition(ctx, l, proofOf(tr.ID, "thread-2")) }, store.TransitionVerified},
	} {
		got, err := step.do()
		if err != nil || got.Status != step.want {
			t.Fatalf("got %s, %v; want %s", got.Status, err, step.want)
		}
		w.fenced("trans-1")
	}
	got, err := w.CommitTransition(ctx, l, tr.ID)
	if err != nil || got.Status != store.TransitionCommitted || got.TargetThread != "thread-2" {
		t.Fatal(got, err)
	}
	w.fenced("")
	if s := w.session(src.ID); s.Status != store.SessionDetached {
		t.Errorf("source %+v", s)
	}
	target := w.session("target-1")
	if target.Status != store.SessionBound || target.CreatedBy != store.OpNewThread || target.PreviousSessionID != src.ID || target.LastTransitionID != tr.ID {
		t.Errorf("target %+v", target)
	}
	all, err := w.Bindings(ctx, target.ID)
	if err != nil || len(all) != 1 || all[0].NativeThreadID != "thread-2" || all[0].Generation != 1 || all[0].ReleasedAt != 0 || all[0].IncarnationKey != "inc-a" {
		t.Errorf("bindings %+v %v", all, err)
	}
	if old, err := w.Bindings(ctx, src.ID); err != nil || old[0].ReleasedAt == 0 {
		t.Errorf("bindings of the source %+v %v", old, err)
	}
	again, replayed, err := w.PrepareTransition(ctx, l, change("1", from(src)))
	if err != nil || !replayed || again.Status != store.TransitionCommitted {
		t.Errorf("the same call: %+v %v %v", again, replayed, err)
	}
	if _, err := w.CommitTransition(ctx, l, tr.ID); !fault.Is(err, fault.TransitionConflict) {
		t.Errorf("a second commit: %v", err)
	}
}

// A Session whose thread comes back gets its next binding.
func TestTransition_ResumeBindsAgain(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	w.commit(l, change("1", from(src)), "thread-2")
	old := w.session(src.ID)
	resume := change("2", from(w.session("target-1")), func(n *store.NewTransition) {
		n.Operation, n.TargetID, n.TargetRevision, n.TargetThread = store.OpResumeThread, old.ID, old.Revision, "thread-1"
	})
	w.commit(l, resume, "thread-1")
	all, err := w.Bindings(ctx, old.ID)
	if err != nil || len(all) != 2 || all[1].Generation != 2 || all[1].ReleasedAt != 0 {
		t.Errorf("bindings %+v %v", all, err)
	}
	if s := w.session(old.ID); s.Status != store.SessionBound {
		t.Errorf("target %+v", s)
	}
	known, err := w.ThreadSessions(ctx, "codex", "thread-1")
	if err != nil || len(known) != 1 || known[0].Session.ID != old.ID || known[0].Binding.Generation != 2 {
		t.Errorf("sessions of the thread %+v %v", known, err)
	}
}

func (w *world) commit(l *store.Lease, n store.NewTransition, thread string) {
	w.t.Helper()
	tr := w.begin(l, n)
	w.typed(l, tr.ID)
	if _, err := w.VerifyTransition(ctx, l, proofOf(tr.ID, thread)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.CommitTransition(ctx, l, tr.ID); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) typed(l *store.Lease, id string) {
	w.t.Helper()
	if _, err := w.MarkDispatching(ctx, l, id); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.TransitionTyped(ctx, l, id); err != nil {
		w.t.Fatal(err)
	}
}

// Proves core 19.13 for transitions: every move from every status, exhaustively.
func TestTransition_MovesExhaustively(t *testing.T) {
	moves := []string{"mark", "typed", "verify", "reconciled", "commit", "abort", "revert", "doubt"}
	allowed := map[string]string{
		"prepared mark": "dispatching", "prepared abort": "aborted",
		"dispatching typed": "submitted", "dispatching abort": "aborted", "dispatching revert": "aborted", "dispatching doubt": "uncertain",
		"submitted verify": "verified", "submitted reconciled": "verified", "submitted revert": "aborted", "submitted doubt": "uncertain",
		"uncertain reconciled": "verified", "uncertain revert": "aborted",
		"verified commit": "committed", "verified revert": "aborted",
	}
	w := newWorld(t)
	l := w.lease(store.TerminalLease("key-a"))
	do := func(move, id string) error {
		var err error
		v := proofOf(id, "thread-"+id)
		switch move {
		case "mark":
			_, err = w.MarkDispatching(ctx, l, id)
		case "typed":
			_, err = w.TransitionTyped(ctx, l, id)
		case "verify":
			_, err = w.VerifyTransition(ctx, l, v)
		case "reconciled":
			v.Reconciled = true
			_, err = w.VerifyTransition(ctx, l, v)
		case "commit":
			_, err = w.CommitTransition(ctx, l, id)
		case "abort":
			_, err = w.AbortTransition(ctx, l, id, "why")
		case "revert":
			_, err = w.RevertTransition(ctx, l, id, "why")
		case "doubt":
			_, err = w.DoubtTransition(ctx, l, id, "why")
		}
		return err
	}
	paths := map[string][]string{
		"prepared": nil, "dispatching": {"mark"}, "submitted": {"mark", "typed"}, "uncertain": {"mark", "doubt"},
		"verified": {"mark", "typed", "verify"}, "committed": {"mark", "typed", "verify", "commit"}, "aborted": {"abort"},
	}
	n, bound := 0, ""
	for status, path := range paths {
		for _, move := range moves {
			n++
			row := change(fmt.Sprint(n))
			if bound != "" {
				s := w.session(bound)
				row.SourceID, row.SourceRevision = s.ID, s.Revision
			}
			tr := w.begin(l, row)
			for _, m := range path {
				if err := do(m, tr.ID); err != nil {
					t.Fatalf("%s: %s: %v", status, m, err)
				}
			}
			err := do(move, tr.ID)
			got, readErr := w.Transition(ctx, tr.ID)
			if readErr != nil {
				t.Fatal(readErr)
			}
			want, ok := allowed[status+" "+move]
			if !ok {
				want = status
			}
			if got.Status != want || (err == nil) != ok {
				t.Errorf("%s + %s: %s, %v; want %s", status, move, got.Status, err, want)
			}
			if !ok && !fault.Is(err, fault.TransitionConflict) {
				t.Errorf("%s + %s: %v", status, move, err)
			}
			w.settle(l, got)
			if done, _ := w.Transition(ctx, tr.ID); done.Status == store.TransitionCommitted {
				bound = done.TargetID
			}
			w.fenced("")
		}
	}
}

// settle ends a transition whatever its status.
func (w *world) settle(l *store.Lease, tr store.Transition) {
	w.t.Helper()
	var err error
	switch tr.Status {
	case store.TransitionPrepared:
		_, err = w.AbortTransition(ctx, l, tr.ID, "test")
	case store.TransitionDispatching, store.TransitionSubmitted, store.TransitionUncertain, store.TransitionVerified:
		_, err = w.RevertTransition(ctx, l, tr.ID, "test")
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// An abort gives the source back, and the pane.
func TestTransition_AbortRestores(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	tr := w.begin(l, change("1", from(src)))
	if _, err := w.AbortTransition(ctx, l, tr.ID, "the pane changed"); err != nil {
		t.Fatal(err)
	}
	w.fenced("")
	s := w.session(src.ID)
	if s.Status != store.SessionBound || s.DetachedAt != 0 {
		t.Errorf("source %+v", s)
	}
	if all, err := w.Bindings(ctx, src.ID); err != nil || all[0].ReleasedAt != 0 {
		t.Errorf("bindings %+v %v", all, err)
	}
	if _, err := w.PrepareDispatch(ctx, l, dispatch("2", "a", "thread-1")); err != nil {
		t.Errorf("a submission afterwards: %v", err)
	}
}

// Proves core 19.51: an adoption passes prepared, verified, committed, and there
// is no move in which it types.
func TestTransition_AdoptionNeverTypes(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	tr := w.begin(l, change("1", from(src), func(n *store.NewTransition) {
		n.ToolCallID, n.Operation, n.Origin, n.InputPossible, n.TargetThread = "", store.OpAdopt, "human_observed", false, "thread-2"
	}))
	if _, err := w.MarkDispatching(ctx, l, tr.ID); !fault.Is(err, fault.TransitionConflict) {
		t.Errorf("the mark: %v", err)
	}
	if _, err := w.VerifyTransition(ctx, l, proofOf(tr.ID, "thread-2")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CommitTransition(ctx, l, tr.ID); err != nil {
		t.Fatal(err)
	}
	if s := w.session("target-1"); s.CreatedBy != "human_observed" || s.Status != store.SessionBound {
		t.Errorf("target %+v", s)
	}
}

// Proves core 19.52: whoever has the thread meanwhile keeps it; there are never
// two owners, before input and at the commit.
func TestTransition_ThreadTakenElsewhere(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	w.prepare("7", "b", "thread-7").accept("thread-7")
	l := w.lease(store.TerminalLease("key-a"))
	want := func(n *store.NewTransition) { n.Operation, n.TargetThread = store.OpResumeThread, "thread-7" }
	if _, _, err := w.PrepareTransition(ctx, l, change("1", from(src), want)); !fault.Is(err, fault.TransitionConflict) {
		t.Errorf("prepare: %v", err)
	}
	w.fenced("")
	if s := w.session(src.ID); s.Status != store.SessionBound || s.Revision != src.Revision {
		t.Errorf("source %+v", s)
	}
	tr := w.begin(l, change("2", from(src)))
	w.typed(l, tr.ID)
	if _, err := w.VerifyTransition(ctx, l, proofOf(tr.ID, "thread-8")); err != nil {
		t.Fatal(err)
	}
	w.prepare("8", "c", "thread-8").accept("thread-8")
	if _, err := w.CommitTransition(ctx, l, tr.ID); !fault.Is(err, fault.TransitionConflict) {
		t.Errorf("commit: %v", err)
	}
	w.fenced("trans-2")
	if s := w.session(src.ID); s.Status != store.SessionTransitioning {
		t.Errorf("source %+v", s)
	}
}

func TestTransition_Refusals(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	for name, c := range map[string]struct {
		row  store.NewTransition
		code fault.Code
	}{
		"the bound Session is not named":    {change("1"), fault.TransitionConflict},
		"another Session is named":          {change("1", func(n *store.NewTransition) { n.SourceID, n.SourceRevision = "session-x", 1 }), fault.TransitionConflict},
		"the Session changed":               {change("1", func(n *store.NewTransition) { n.SourceID, n.SourceRevision = src.ID, src.Revision-1 }), fault.SessionConflict},
		"the target exists":                 {change("1", from(src), func(n *store.NewTransition) { n.TargetID = src.ID }), fault.TransitionConflict},
		"the target does not exist":         {change("1", from(src), func(n *store.NewTransition) { n.TargetRevision = 3 }), fault.TransitionConflict},
		"the target is bound":               {change("1", from(src), func(n *store.NewTransition) { n.TargetID, n.TargetRevision = src.ID, src.Revision }), fault.SessionConflict},
		"an unbound process names a source": {change("1", from(src), func(n *store.NewTransition) { n.IncarnationKey = "inc-z" }), fault.TransitionConflict},
	} {
		if _, _, err := w.PrepareTransition(ctx, l, c.row); !fault.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		w.fenced("")
	}
	if err := w.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	busy := w.prepare("5", "a", "thread-1")
	if _, _, err := w.PrepareTransition(ctx, busy.term, change("1", from(w.session(src.ID)))); !fault.Is(err, fault.DispatchUnresolved) {
		t.Errorf("an open submission: %v", err)
	}
}

// A process that lost the lease moves nothing, and only the one that prepared may
// record what was typed.
func TestTransition_Fenced(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	tr := w.begin(l, change("1", from(src)))
	other := w.open("bridge/2/2/y")
	if err := w.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	next := w.leaseOf(other, store.TerminalLease("key-a"))
	if _, err := w.MarkDispatching(ctx, l, tr.ID); !fault.Is(err, fault.LeaseLost) {
		t.Errorf("the old holder: %v", err)
	}
	if _, err := other.MarkDispatching(ctx, next, tr.ID); !fault.Is(err, fault.LeaseLost) {
		t.Errorf("the next holder: %v", err)
	}
	if _, err := other.AbortTransition(ctx, next, tr.ID, "recovery"); err != nil {
		t.Errorf("recovery: %v", err)
	}
}

// A fence that is missing comes back, and one of a settled transition goes.
func TestTransition_FenceRepaired(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	l := w.lease(store.TerminalLease("key-a"))
	w.begin(l, change("1", from(src)))
	must(t, w.raw(), `DELETE FROM terminal_fences`)
	if n, err := w.RepairFences(ctx); err != nil || n != 1 {
		t.Errorf("repaired %d, %v", n, err)
	}
	w.fenced("trans-1")
	open, err := w.OpenTransitions(ctx)
	if err != nil || len(open) != 1 || open[0].TerminalFree || open[0].DispatcherGone {
		t.Errorf("open %+v %v", open, err)
	}
	w.gone["bridge/1/1/x"] = true
	if open, err = w.OpenTransitions(ctx); err != nil || len(open) != 1 || !open[0].DispatcherGone || !open[0].TerminalFree {
		t.Errorf("open %+v %v", open, err)
	}
}

func TestDetachSession(t *testing.T) {
	w := newWorld(t)
	src := w.idleSession()
	b, err := w.Bindings(ctx, src.ID)
	if err != nil {
		t.Fatal(err)
	}
	l := w.lease(store.TerminalLease("key-a"))
	for name, try := range map[string]func() error{
		"another revision": func() error { _, err := w.DetachSession(ctx, l, src.ID, src.Revision+1, b[0].ID); return err },
		"another Session":  func() error { _, err := w.DetachSession(ctx, l, "session-x", 1, b[0].ID); return err },
	} {
		if err := try(); !fault.Is(err, fault.SessionConflict) && !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := w.DetachSession(ctx, l, src.ID, src.Revision, b[0].ID)
	if err != nil || got.Status != store.SessionDetached {
		t.Fatal(got, err)
	}
	if _, err := w.DetachSession(ctx, l, src.ID, got.Revision, b[0].ID); !fault.Is(err, fault.SessionConflict) {
		t.Errorf("again: %v", err)
	}
	busy := w.prepare("2", "b", "thread-9")
	if _, err := w.DetachSession(ctx, busy.term, "session-2", w.session("session-2").Revision, busy.sub.Binding.ID); !fault.Is(err, fault.SessionBusy) {
		t.Errorf("with an open Turn: %v", err)
	}
}
