package store_test

import (
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// finish ends the flow's Turn well and frees the pane.
func (f *flow) finish(n string) *flow {
	f.t.Helper()
	_, err := f.ClaimCompletion(ctx, f.monitor(), completion(n))
	f.must(err)
	return f.must(f.Release(ctx, f.term, f.mon))
}

// Proves core 19.11: the indexes reject a second live binding of a Session, of a
// process and of a thread.
func TestBinding_OneLiveForSessionProcessThread(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "thread-1")
	db := w.raw()
	must(t, db, `INSERT INTO sessions VALUES ('s2',1,'codex','/w','bound','attach',NULL,NULL,NULL,1,1,NULL,NULL)`)
	insert := func(session string, generation int, incarnation, thread string) error {
		_, err := db.Exec(`INSERT INTO bindings VALUES ('b'||?1||?2,?1,?2,'codex','t','k',?3,'{}',?4,1,NULL,NULL,NULL,'e',1,1,NULL)`,
			session, generation, incarnation, thread)
		return err
	}
	for index, err := range map[string]error{
		"bindings.session_id":                       insert("session-1", 2, "inc-x", "thread-x"),
		"bindings.incarnation_key":                  insert("s2", 1, "inc-a", "thread-x"),
		"bindings.agent, bindings.native_thread_id": insert("s2", 1, "inc-x", "thread-1"),
	} {
		if err == nil || !strings.Contains(err.Error(), index) {
			t.Errorf("a second live binding gives %v, want a broken %s", err, index)
		}
	}
	if err := insert("s2", 1, "inc-x", "thread-x"); err != nil {
		t.Error(err)
	}
	// the move says which Session is in the way
	d := mod(dispatch("2", "b", "thread-1"), func(d *store.NewDispatch) {})
	_, err := w.PrepareDispatch(ctx, w.lease(store.TerminalLease("key-b")), d)
	wantCode(t, err, fault.SessionConflict)
	if e, _ := fault.As(err); e.Details["session_id"] != "session-1" {
		t.Errorf("details are %v", e.Details)
	}
}

func TestAttach(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world)
		attach func(*store.Attach)
		pane   string
		want   fault.Code
		// the Session, its previous one and the generation of its binding
		session, previous string
		generation        int64
		check             func(t *testing.T, w *world)
	}{
		"new pane, thread known": {nil, func(a *store.Attach) { a.NativeThreadID = "t9" }, "a", "", "session-9", "", 1, nil},
		"new pane, provisional":  {nil, func(a *store.Attach) {}, "a", "", "session-9", "", 1, nil},
		"the same thread goes on with its Session": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.NativeThreadID = "t1" }, "a", "", "session-1", "", 1, nil},
		"strict": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.SessionID, a.Revision, a.NativeThreadID = "session-1", 1, "t1" }, "a", "", "session-1", "", 1, nil},
		"strict, other revision": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.SessionID, a.Revision = "session-1", 7 }, "a", fault.SessionConflict, "", "", 0, nil},
		"strict, other thread": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.SessionID, a.NativeThreadID = "session-1", "t2" }, "a", fault.SessionConflict, "", "", 0, nil},
		"strict, other process": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.SessionID = "session-1" }, "b", fault.SessionConflict, "", "", 0, nil},
		"strict, unknown": {nil, func(a *store.Attach) { a.SessionID = "session-x" }, "a", fault.NotFound, "", "", 0, nil},
		"another thread in the process": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.NativeThreadID = "t2" }, "a", fault.SessionConflict, "", "", 0, nil},
		"another thread, follow current": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.NativeThreadID, a.Replace = "t2", true }, "a", "", "session-9", "session-1", 1,
			func(t *testing.T, w *world) {
				if s, err := w.Session(ctx, "session-1"); err != nil || s.Status != store.SessionDetached || s.DetachedAt == 0 {
					t.Error(s, err)
				}
			}},
		"thread unknown again, follow current": {
			func(w *world) { w.prepare("1", "a", "").accept("t1").finish("1") },
			func(a *store.Attach) { a.Replace = true }, "a", "", "session-9", "session-1", 1, nil},
		"back to an earlier thread": {
			func(w *world) {
				w.prepare("1", "a", "t1").accept("t1").finish("1")
				d := mod(dispatch("2", "a", "t2"), func(d *store.NewDispatch) { d.Attach.Replace = true })
				l := w.lease(store.TerminalLease("key-a"))
				if _, err := w.PrepareDispatch(ctx, l, d); err != nil {
					w.t.Fatal(err)
				}
				if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-2"}); err != nil {
					w.t.Fatal(err)
				}
				if err := w.Release(ctx, l); err != nil {
					w.t.Fatal(err)
				}
			},
			func(a *store.Attach) { a.NativeThreadID, a.Replace = "t1", true }, "a", "", "session-1", "", 2, nil},
		"the thread lives in another pane": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.NativeThreadID = "t1" }, "b", fault.SessionConflict, "", "", 0, nil},
		"the thread's old process is proven dead": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1").finish("1") },
			func(a *store.Attach) { a.NativeThreadID, a.DeadBindings = "t1", []string{"live"} }, "b", "", "session-1", "", 2, nil},
		"the dead process's Session has a Turn": {
			func(w *world) { w.prepare("1", "a", "t1").accept("t1") },
			func(a *store.Attach) { a.NativeThreadID, a.DeadBindings = "t1", []string{"live"} }, "b", fault.SessionBusy, "", "", 0, nil},
		"provisional is still open": {
			func(w *world) {
				f := w.prepare("1", "a", "")
				must(w.t, w.raw(), `DELETE FROM terminal_fences`)
				f.must(w.Release(ctx, f.term))
			},
			func(a *store.Attach) { a.Replace = true }, "a", fault.DeferredTransfer, "", "", 0, nil},
		"strict on a provisional": {
			func(w *world) {
				f := w.prepare("1", "a", "").text()
				must(w.t, w.raw(), `UPDATE turns SET status = 'closed', revision = revision + 1`)
				must(w.t, w.raw(), `DELETE FROM terminal_fences`)
				f.must(w.Release(ctx, f.term))
			},
			func(a *store.Attach) { a.SessionID = "session-1" }, "a", fault.DeferredTransfer, "", "", 0, nil},
		"in transition": {
			func(w *world) {
				w.prepare("1", "a", "t1").accept("t1").finish("1")
				must(w.t, w.raw(), `UPDATE sessions SET status = 'transitioning', revision = revision + 1`)
			},
			func(a *store.Attach) { a.NativeThreadID = "t1" }, "a", fault.LifecycleUnresolved, "", "", 0, nil},
		"quarantined": {
			func(w *world) {
				w.prepare("1", "a", "t1").accept("t1").finish("1")
				must(w.t, w.raw(), `UPDATE sessions SET status = 'quarantined', revision = revision + 1`)
			},
			func(a *store.Attach) { a.SessionID = "session-1" }, "a", fault.SessionConflict, "", "", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.before != nil {
				c.before(w)
			}
			d := mod(dispatch("9", c.pane, ""), func(d *store.NewDispatch) { c.attach(&d.Attach) })
			if len(d.Attach.DeadBindings) > 0 {
				bound, err := w.Bound(ctx)
				if err != nil || len(bound) != 1 {
					t.Fatal(bound, err)
				}
				d.Attach.DeadBindings[0] = bound[0].Binding.ID
			}
			term, err := w.Acquire(ctx, store.TerminalLease("key-"+c.pane), store.LeaseTTL)
			if err != nil {
				t.Fatal(err)
			}
			sub, err := w.PrepareDispatch(ctx, term, d)
			if got := fault.CodeOf(err); got != c.want {
				t.Fatalf("got %q (%v), want %q", got, err, c.want)
			}
			if c.want != "" {
				return
			}
			if sub.Session.ID != c.session || sub.Session.PreviousSessionID != c.previous || sub.Binding.Generation != c.generation ||
				sub.Session.Status != store.SessionBound || sub.Turn.BindingGeneration != c.generation {
				t.Errorf("got %+v\n%+v", sub.Session, sub.Binding)
			}
			if c.check != nil {
				c.check(t, w)
			}
		})
	}
}

// Proves core 19.20: the thread of a provisional binding is set once and never
// changed.
func TestProvisional_ThreadIsSetOnce(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "")
	if f.sub.Session.CreatedBy != "provisional" || f.sub.Binding.NativeThreadID != "" || f.sub.Turn.NativeThreadID != "" {
		t.Fatalf("got %+v", f.sub)
	}
	_, err := w.CancelTurn(ctx, f.term, store.TurnCancel{TurnID: "turn-1"})
	wantCode(t, err, fault.DeferredTransfer)
	f.accept("thread-1")
	if f.sub.Binding.NativeThreadID != "thread-1" || f.sub.Turn.NativeThreadID != "thread-1" || f.sub.Dispatch.NativeThreadID != "thread-1" || f.sub.Session.Revision != 2 {
		t.Errorf("got %+v", f.sub)
	}
	for _, statement := range []string{
		`UPDATE bindings SET native_thread_id = 'x'`, `UPDATE bindings SET native_thread_id = NULL`,
		`UPDATE turns SET native_thread_id = 'x', revision = revision + 1`, `UPDATE dispatches SET native_thread_id = 'x'`,
		`UPDATE bindings SET incarnation_key = 'x'`, `UPDATE bindings SET generation = 2`,
	} {
		if _, err := w.raw().Exec(statement); err == nil {
			t.Errorf("the schema allows %s", statement)
		}
	}
}

// The thread that accepted may be another Session's: nothing is bound, nothing
// written.
func TestProvisional_ThreadOfAnotherSession(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "thread-1").accept("thread-1")
	f := w.prepare("2", "b", "").enter()
	before := dump(t, w.raw())
	_, err := w.AcceptDispatch(ctx, f.term, acceptance("msg-2", "thread-1"))
	wantCode(t, err, fault.SubmissionUnfenced)
	if after := dump(t, w.raw()); after != before {
		t.Error("the Store changed")
	}
	sub, err := w.SettleDispatch(ctx, f.term, store.Settlement{MessageID: "msg-2", Status: store.DispatchUncertain, Code: "submission_unfenced"})
	if err != nil || sub.Turn.Status != store.TurnStalled {
		t.Error(sub, err)
	}
	// closing it frees the pane
	if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-2"}); err != nil {
		t.Fatal(err)
	}
	if sess, err := w.Session(ctx, "session-2"); err != nil || sess.Status != store.SessionDetached {
		t.Error(sess, err)
	}
	if _, err := w.PrepareDispatch(ctx, f.term, dispatch("3", "b", "")); err != nil {
		t.Error(err)
	}
}

func TestSessions_Reads(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1").accept("t1").finish("1")
	w.prepare("2", "b", "t2")
	bound, err := w.Bound(ctx)
	if err != nil || len(bound) != 2 {
		t.Fatal(bound, err)
	}
	for _, b := range bound {
		if (b.Session.ID == "session-2") != (b.Turn != nil && b.Turn.ID == "turn-2") || b.Binding.SessionID != b.Session.ID {
			t.Errorf("got %+v", b)
		}
	}
	for name, c := range map[string]struct {
		f    store.SessionFilter
		want int
	}{
		"all": {store.SessionFilter{}, 2}, "ids": {store.SessionFilter{IDs: []string{"session-2", "x"}}, 1},
		"status": {store.SessionFilter{Status: store.SessionDetached}, 0}, "agent": {store.SessionFilter{Agent: "claude"}, 0},
		"limit": {store.SessionFilter{Limit: 1}, 1},
	} {
		if all, err := w.Sessions(ctx, c.f); err != nil || len(all) != c.want {
			t.Errorf("%s: %d Sessions, %v, want %d", name, len(all), err, c.want)
		}
	}
	if n, err := w.SessionTurns(ctx, "session-1"); err != nil || n != 1 {
		t.Error(n, err)
	}
	if all, err := w.Bindings(ctx, "session-1"); err != nil || len(all) != 1 {
		t.Error(all, err)
	}
	_, err = w.Session(ctx, "x")
	wantCode(t, err, fault.NotFound)
}

func TestSession_Quarantine(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1").finish("1")
	_, err := w.QuarantineSession(ctx, "session-1", 7, "two live claims")
	wantCode(t, err, fault.SessionConflict)
	sess, err := w.QuarantineSession(ctx, "session-1", 1, "two live claims")
	if err != nil || sess.Status != store.SessionQuarantined || sess.QuarantineReason != "two live claims" {
		t.Fatal(sess, err)
	}
	_, err = w.QuarantineSession(ctx, "session-1", sess.Revision, "again")
	wantCode(t, err, fault.SessionConflict)
	_, err = w.PrepareDispatch(ctx, w.lease(f.term.Name), dispatch("2", "a", "t1"))
	wantCode(t, err, fault.SessionConflict)
}
