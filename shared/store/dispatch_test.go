package store_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// mod gives the dispatch of a call changed by fn.
func mod(d store.NewDispatch, fn func(*store.NewDispatch)) store.NewDispatch { fn(&d); return d }

// answer is a further message of the Turn, on its pane.
func answer(n string, f *flow, kind string) store.NewDispatch {
	return mod(f.d, func(d *store.NewDispatch) {
		d.MessageID, d.ToolCallID, d.Kind, d.NewTurnID, d.TurnID = "msg-"+n, "call-"+n, kind, "", f.d.NewTurnID
	})
}

func TestPrepare_WritesEverythingAtOnce(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1")
	sub := f.sub
	now := w.Now()
	want := store.Turn{
		ID: "turn-1", SessionID: "session-1", Revision: 2, Status: store.TurnWaitingForAgent, Agent: "codex", Workspace: "/w",
		BindingID: sub.Binding.ID, BindingGeneration: 1, NativeThreadID: "thread-1", TerminalKey: "key-a", ControllerSessionID: "controller-1",
		Route: []byte(`{"r":1}`), RequestText: "do it", CurrentMessageID: "msg-1", SoftLimit: 50, HardLimit: 100,
		StartedAt: now, LastActivityAt: now, InactivityMinutes: 60, HardMinutes: 720, RetentionMinutes: 10080,
		InactivityDeadlineAt: now + 60*60_000, HardDeadlineAt: now + 720*60_000, CreatedAt: now, UpdatedAt: now,
	}
	if diff := cmp.Diff(want, sub.Turn); diff != "" {
		t.Error(diff)
	}
	if sub.Dispatch.Status != store.DispatchPrepared || sub.Dispatch.Generation != 1 || sub.Dispatch.Dispatcher != w.Holder() || sub.Replayed {
		t.Errorf("got %+v", sub.Dispatch)
	}
	if sub.Session.Status != store.SessionBound || sub.Session.CreatedBy != "attach" || sub.Binding.Generation != 1 {
		t.Errorf("got %+v %+v", sub.Session, sub.Binding)
	}
	fence, ok, err := w.Fence(ctx, "key-a")
	if err != nil || !ok || fence.RefID != "msg-1" || fence.Kind != "dispatch" || fence.LeaseEpoch != f.term.Epoch {
		t.Errorf("got fence %+v %t %v", fence, ok, err)
	}
	events, err := w.TurnEvents(ctx, "turn-1", 0)
	if err != nil || len(events) != 1 || events[0].Event != "message" || events[0].MessageID != "msg-1" {
		t.Errorf("got events %+v %v", events, err)
	}
}

// Proves core 19.19: each row of the preflight table.
func TestPrepare_PreflightTable(t *testing.T) {
	type given struct {
		f *flow
		d store.NewDispatch // the new call
	}
	other := func(f *flow) store.NewDispatch { // another Turn into the same pane
		return mod(dispatch("2", "a", "thread-1"), func(d *store.NewDispatch) {})
	}
	settle := func(f *flow, status string) {
		f.t.Helper()
		_, err := f.SettleDispatch(ctx, f.term, store.Settlement{MessageID: f.d.MessageID, Status: status, Code: "c", Reason: "r"})
		f.must(err)
	}
	question := func(f *flow) {
		f.t.Helper()
		_, _, err := f.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p"})
		f.must(err)
	}
	for name, c := range map[string]struct {
		given func(w *world) given
		want  fault.Code
		also  func(t *testing.T, w *world, sub store.Submission)
	}{
		"none: proceed": {func(w *world) given { return given{nil, dispatch("2", "a", "thread-1")} }, "", nil},
		"transition unresolved": {func(w *world) given {
			must(w.t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-a','transition','x',1,1,1)`)
			return given{nil, dispatch("2", "a", "thread-1")}
		}, fault.LifecycleUnresolved, nil},
		"uncertain, retry form: proceed and resolve the old": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").text()
			settle(f, store.DispatchUncertain)
			return given{f, answer("2", f, store.KindTask)}
		}, "", func(t *testing.T, w *world, sub store.Submission) {
			if sub.Turn.ID != "turn-1" || sub.Turn.Status != store.TurnWaitingForAgent || sub.Dispatch.PreviousMessageID != "msg-1" || sub.Dispatch.Generation != 2 {
				t.Errorf("got %+v", sub)
			}
			if old, _ := w.Submission(ctx, "msg-1"); old.Dispatch.ResolvedAt == 0 || old.Dispatch.Status != store.DispatchUncertain {
				t.Errorf("the old one is %+v", old.Dispatch)
			}
		}},
		"not_accepted, retry form: proceed": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").enter()
			settle(f, store.DispatchNotAccepted)
			return given{f, answer("2", f, store.KindTask)}
		}, "", nil},
		"prepared, any other": {func(w *world) given { f := w.prepare("1", "a", "thread-1"); return given{f, other(f)} }, fault.DispatchUnresolved, nil},
		"text, any other":     {func(w *world) given { f := w.prepare("1", "a", "thread-1").text(); return given{f, other(f)} }, fault.DispatchUnresolved, nil},
		"prepared, retry form": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1")
			return given{f, answer("2", f, store.KindTask)}
		}, fault.DispatchUnresolved, nil},
		"uncertain, any other": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").text()
			settle(f, store.DispatchUncertain)
			return given{f, other(f)}
		}, fault.DispatchUnresolved, nil},
		"uncertain, an answer": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").text()
			settle(f, store.DispatchUncertain)
			return given{f, answer("2", f, store.KindAnswer)}
		}, fault.DispatchUnresolved, nil},
		"not_accepted, any other": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").enter()
			settle(f, store.DispatchNotAccepted)
			return given{f, other(f)}
		}, fault.DispatchUnresolved, nil},
		"accepted, row missing": {func(w *world) given {
			must(w.t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-a','dispatch','lost',1,1,1)`)
			return given{nil, dispatch("2", "a", "thread-1")}
		}, fault.OwnerUnavailable, nil},
		"accepted, an answer: proceed": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").accept("thread-1")
			question(f)
			return given{f, answer("2", f, store.KindAnswer)}
		}, "", func(t *testing.T, w *world, sub store.Submission) {
			if sub.Turn.Status != store.TurnWaitingForController || sub.Turn.CurrentMessageID != "msg-2" || sub.Dispatch.PreviousMessageID != "msg-1" {
				t.Errorf("got %+v", sub)
			}
		}},
		"accepted, an answer that is not wanted": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").accept("thread-1")
			return given{f, answer("2", f, store.KindAnswer)}
		}, fault.TurnStatusInvalid, nil},
		"enter_dispatched, same message: replay": {func(w *world) given { f := w.prepare("1", "a", "thread-1").enter(); return given{f, f.d} }, "",
			func(t *testing.T, w *world, sub store.Submission) {
				if !sub.Replayed || sub.Dispatch.Status != store.DispatchEnterDispatched || sub.Dispatch.Generation != 1 {
					t.Errorf("got %+v", sub)
				}
			}},
		"enter_dispatched, another Turn": {func(w *world) given { f := w.prepare("1", "a", "thread-1").enter(); return given{f, other(f)} }, fault.ActiveOwner, nil},
		"accepted, another Turn": {func(w *world) given {
			f := w.prepare("1", "a", "thread-1").accept("thread-1")
			return given{f, other(f)}
		}, fault.ActiveOwner, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := c.given(w)
			term := w.termOf(g.f, g.d)
			before := dump(t, w.raw())
			pre := w.Preflight(ctx, g.d)
			if after := dump(t, w.raw()); after != before {
				t.Errorf("Preflight changed the Store")
			}
			sub, err := w.PrepareDispatch(ctx, term, g.d)
			if got := fault.CodeOf(err); got != c.want {
				t.Fatalf("got %q (%v), want %q", got, err, c.want)
			}
			if got := fault.CodeOf(pre); got != c.want {
				t.Errorf("Preflight says %q (%v), PrepareDispatch %q", got, pre, c.want)
			}
			if c.want != "" {
				if after := dump(t, w.raw()); after != before {
					t.Errorf("a refusal changed the Store:\n%s", cmp.Diff(before, after))
				}
			}
			if c.also != nil {
				c.also(t, w, sub)
			}
		})
	}
}

func (w *world) termOf(f *flow, d store.NewDispatch) *store.Lease {
	if f != nil {
		return f.term
	}
	return w.lease(store.TerminalLease(d.Attach.Binding.TerminalKey))
}

func must(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// Proves tools 11.10, 11.11: the same id is replayed, another content under it refused.
func TestPrepare_RepeatedCalls(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1").accept("thread-1")
	receipt := store.Receipt{MessageID: "msg-1", Kind: store.KindTask, TerminalKey: "key-a", Agent: "codex",
		ControllerSessionID: "controller-1", BodyHash: "body-1", RequestHash: "req-1"}
	if sub, found, err := w.Replay(ctx, receipt); err != nil || !found || !sub.Replayed || sub.Dispatch.Status != store.DispatchAccepted {
		t.Fatal(sub, found, err)
	}
	before := dump(t, w.raw())
	if sub, err := w.PrepareDispatch(ctx, f.term, f.d); err != nil || !sub.Replayed || sub.Turn.ID != "turn-1" {
		t.Fatal(sub, err)
	}
	for name, change := range map[string]func(*store.NewDispatch){
		"body":       func(d *store.NewDispatch) { d.BodyHash = "x" },
		"request":    func(d *store.NewDispatch) { d.RequestHash = "x" },
		"kind":       func(d *store.NewDispatch) { d.Kind = store.KindAnswer },
		"thread":     func(d *store.NewDispatch) { d.Attach.NativeThreadID = "x" },
		"controller": func(d *store.NewDispatch) { d.ControllerSessionID = "x" },
		"agent":      func(d *store.NewDispatch) { d.Attach.Agent = "claude" },
		"session":    func(d *store.NewDispatch) { d.Attach.SessionID = "session-x" },
		"turn":       func(d *store.NewDispatch) { d.TurnID = "turn-x" },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.PrepareDispatch(ctx, f.term, mod(f.d, change))
			wantCode(t, err, fault.IdempotencyConflict)
		})
	}
	elsewhere := mod(f.d, func(d *store.NewDispatch) { d.Attach.Binding.TerminalKey = "key-b" })
	_, err := w.PrepareDispatch(ctx, w.lease(store.TerminalLease("key-b")), elsewhere)
	wantCode(t, err, fault.IdempotencyConflict)
	_, _, err = w.Replay(ctx, store.Receipt{MessageID: "msg-1", BodyHash: "x", RequestHash: "req-1"})
	wantCode(t, err, fault.IdempotencyConflict)
	if _, found, err := w.Replay(ctx, store.Receipt{MessageID: "unknown"}); found || err != nil {
		t.Error(found, err)
	}
	again := mod(dispatch("9", "c", "thread-9"), func(d *store.NewDispatch) { d.ToolCallID = "call-1" })
	_, err = w.PrepareDispatch(ctx, w.lease(store.TerminalLease("key-c")), again)
	wantCode(t, err, fault.IdempotencyConflict)
	if after := dropLeases(dump(t, w.raw())); after != dropLeases(before) {
		t.Errorf("the Store changed:\n%s", cmp.Diff(before, after))
	}
}

// dropLeases leaves out the lines of leases.
func dropLeases(dump string) string {
	var out []string
	for _, line := range strings.Split(dump, "\n") {
		if !strings.HasPrefix(line, "leases ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// An aborted attempt may be made once more under the same id, and not twice.
func TestPrepare_AbortedIsTriedOnceMore(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1")
	if _, err := w.AbortDispatch(ctx, f.term, "msg-1", "x"); err != nil {
		t.Fatal(err)
	}
	second := mod(f.d, func(d *store.NewDispatch) { d.NewTurnID = "turn-2" })
	if _, found, err := w.Replay(ctx, store.Receipt{MessageID: "msg-1", BodyHash: "body-1", RequestHash: "req-1"}); found || err != nil {
		t.Fatal(found, err)
	}
	sub, err := w.PrepareDispatch(ctx, f.term, second)
	if err != nil || sub.Replayed || sub.Turn.ID != "turn-2" || sub.Turn.SessionID != "session-1" {
		t.Fatal(sub, err)
	}
	if _, err := w.AbortDispatch(ctx, f.term, "msg-1", "x"); err != nil {
		t.Fatal(err)
	}
	sub, err = w.PrepareDispatch(ctx, f.term, mod(f.d, func(d *store.NewDispatch) { d.NewTurnID = "turn-3" }))
	if err != nil || !sub.Replayed || sub.Dispatch.Status != store.DispatchAborted {
		t.Fatal(sub, err)
	}
}

// Proves core 19.12: two sends to one Session at one time make one Turn.
func TestPrepare_TwoSendsToOneSession(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("0", "a", "thread-1").accept("thread-1")
	if _, err := w.ClaimCompletion(ctx, f.monitor(), completion("0")); err != nil {
		t.Fatal(err)
	}
	if err := w.Release(ctx, f.term); err != nil {
		t.Fatal(err)
	}
	programs := []*store.Store{w.Store, w.open("bridge/2/2/x")}
	errs := make([]error, len(programs))
	var wg sync.WaitGroup
	for i, s := range programs {
		wg.Go(func() {
			l, err := s.Await(ctx, store.TerminalLease("key-a"), store.TerminalTTL, 10*time.Second)
			if err != nil {
				errs[i] = err
				return
			}
			d := mod(dispatch([]string{"1", "2"}[i], "a", ""), func(d *store.NewDispatch) { d.Attach.SessionID = "session-0" })
			_, errs[i] = s.PrepareDispatch(ctx, l, d)
			if err := s.Release(ctx, l); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	codes := []fault.Code{fault.CodeOf(errs[0]), fault.CodeOf(errs[1])}
	slices.Sort(codes)
	if diff := cmp.Diff([]fault.Code{"", fault.SessionBusy}, codes); diff != "" {
		t.Error(diff, errs)
	}
	turns, err := w.Turns(ctx, store.TurnFilter{SessionID: "session-0", Statuses: []string{store.TurnWaitingForAgent}})
	if err != nil || len(turns) != 1 {
		t.Errorf("%d Turns, %v", len(turns), err)
	}
}

func TestPrepare_SessionBusy(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "thread-1").accept("thread-1")
	// the same thread and process seen in another pane key: the Session blocks
	d := mod(dispatch("2", "b", "thread-1"), func(d *store.NewDispatch) { d.Attach.Binding.IncarnationKey = "inc-a" })
	_, err := w.PrepareDispatch(ctx, w.lease(store.TerminalLease("key-b")), d)
	wantCode(t, err, fault.SessionBusy)
	if e, _ := fault.As(err); e.Details["turn_id"] != "turn-1" {
		t.Errorf("details are %v", e.Details)
	}
}

// Proves core 19.14: releasing a Turn removes the fence and resolves the dispatch
// in the same commit. Readers at any moment, and a commit that fails, never see
// one without the other.
func TestRelease_IsOneCommit(t *testing.T) {
	for name, release := range map[string]func(f *flow) error{
		"complete": func(f *flow) error { _, err := f.ClaimCompletion(ctx, f.monitor(), completion("1")); return err },
		"cancel": func(f *flow) error {
			_, err := f.CancelTurn(ctx, f.term, store.TurnCancel{TurnID: "turn-1"})
			return err
		},
		"close": func(f *flow) error {
			_, err := f.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1", Reason: "r"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.prepare("1", "a", "thread-1").accept("thread-1")
			f.monitor()
			db := w.raw()
			look := func() (released, resolved, fenced bool) {
				t.Helper()
				if err := db.QueryRow(`SELECT t.status NOT IN ('waiting_for_agent','running'), d.resolved_at IS NOT NULL,
					EXISTS (SELECT 1 FROM terminal_fences) FROM turns t JOIN dispatches d USING (turn_id)`).Scan(&released, &resolved, &fenced); err != nil {
					t.Fatal(err)
				}
				return released, resolved, fenced
			}
			store.FailCommit(w.Store, errors.New("disk full"))
			if err := release(f); fault.CodeOf(err) != fault.StoreUnavailable {
				t.Fatalf("got %v", err)
			}
			if released, resolved, fenced := look(); released || resolved || !fenced {
				t.Error("a failed commit left something behind")
			}
			store.FailCommit(w.Store, nil)
			stop, done := make(chan struct{}), make(chan int)
			go func() {
				n := 0
				for {
					select {
					case <-stop:
						done <- n
						return
					default:
					}
					if released, resolved, fenced := look(); released != resolved || released == fenced {
						t.Errorf("seen: released %t, resolved %t, fenced %t", released, resolved, fenced)
					}
					n++
				}
			}()
			if err := release(f); err != nil {
				t.Fatal(err)
			}
			close(stop)
			<-done
			if released, resolved, fenced := look(); !released || !resolved || fenced {
				t.Errorf("released %t, resolved %t, fenced %t", released, resolved, fenced)
			}
		})
	}
}

// Proves core 19.16: acceptance cannot be stored without evidence that recomputes.
func TestAccept_NeedsEvidence(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1").enter()
	before := dump(t, w.raw())
	for name, c := range map[string]struct {
		a    store.Acceptance
		want fault.Code
	}{
		"no check":    {store.Acceptance{MessageID: "msg-1", NativeThreadID: "thread-1", Evidence: []byte(`{}`)}, fault.Internal},
		"no evidence": {store.Acceptance{MessageID: "msg-1", NativeThreadID: "thread-1", Check: func(store.Dispatch, []byte) error { return nil }}, fault.Internal},
		"tampered": {store.Acceptance{MessageID: "msg-1", NativeThreadID: "thread-1", Evidence: []byte(`{}`),
			Check: func(d store.Dispatch, e []byte) error {
				if d.RequestHash != "req-1" || string(e) != `{}` {
					t.Errorf("check got %+v %s", d, e)
				}
				return errors.New("fingerprint does not recompute")
			}}, fault.SubmissionUncertain},
		"other thread": {acceptance("msg-1", "thread-2"), fault.SubmissionUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.AcceptDispatch(ctx, f.term, c.a)
			wantCode(t, err, c.want)
		})
	}
	if after := dump(t, w.raw()); after != before {
		t.Error("the Store changed")
	}
	if _, err := w.raw().Exec(`UPDATE dispatches SET status = 'agent_accepted'`); err == nil {
		t.Error("the schema lets a row be accepted without evidence")
	}
	f.sub, _ = w.AcceptDispatch(ctx, f.term, acceptance("msg-1", "thread-1"))
	if again, err := w.AcceptDispatch(ctx, f.term, acceptance("msg-1", "thread-1")); err != nil || again.Dispatch.Status != store.DispatchAccepted {
		t.Error(again, err)
	}
	_, err := w.AcceptDispatch(ctx, f.term, store.Acceptance{MessageID: "msg-1", NativeThreadID: "thread-1", Evidence: []byte(`{"e":2}`),
		Check: func(store.Dispatch, []byte) error { return nil }})
	wantCode(t, err, fault.DispatchUnresolved)
	// found tampered when read
	sub, err := w.InvalidateAcceptance(ctx, f.term, store.Settlement{MessageID: "msg-1", Code: "evidence_invalid", Reason: "submission_uncertain"})
	if err != nil || sub.Dispatch.Status != store.DispatchUncertain || sub.Turn.Status != store.TurnStalled || sub.Dispatch.LastProvenStage != store.DispatchEnterDispatched {
		t.Error(sub, err)
	}
}

// Proves core 19.18: only a committed abort is safe to retry.
func TestAbort_OnlyCommittedIsSafe(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1")
	store.FailCommit(w.Store, errors.New("disk full"))
	_, err := w.AbortDispatch(ctx, f.term, "msg-1", "setup_failed")
	wantCode(t, err, fault.StoreUnavailable)
	store.FailCommit(w.Store, nil)
	if sub, err := w.Submission(ctx, "msg-1"); err != nil || sub.Dispatch.SafeToRetry || sub.Dispatch.Status != store.DispatchPrepared {
		t.Fatal(sub, err)
	}
	sub, err := w.AbortDispatch(ctx, f.term, "msg-1", "setup_failed")
	if err != nil {
		t.Fatal(err)
	}
	if !sub.Dispatch.SafeToRetry || sub.Dispatch.Status != store.DispatchAborted || sub.Turn.Status != store.TurnClosed ||
		sub.Turn.CloseReason != "submission_aborted" || sub.Session.Status != store.SessionDetached || sub.Binding.ReleasedAt == 0 {
		t.Errorf("got %+v", sub)
	}
	if _, ok, _ := w.Fence(ctx, "key-a"); ok {
		t.Error("the fence stands")
	}
	// after the mark no failure is an abort
	g := w.prepare("2", "b", "thread-2").mark()
	_, err = w.AbortDispatch(ctx, g.term, "msg-2", "x")
	wantCode(t, err, fault.DispatchUnresolved)
	if e, _ := fault.As(err); e.Input != fault.InputPossible || e.Retry {
		t.Errorf("got %+v", e)
	}
}

// A binding that is older than the attempt survives an abort.
func TestAbort_KeepsAnOlderBinding(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1").accept("thread-1")
	if _, err := w.ClaimCompletion(ctx, f.monitor(), completion("1")); err != nil {
		t.Fatal(err)
	}
	sub, err := w.PrepareDispatch(ctx, f.term, dispatch("2", "a", "thread-1"))
	if err != nil || sub.Session.ID != "session-1" {
		t.Fatal(sub, err)
	}
	sub, err = w.AbortDispatch(ctx, f.term, "msg-2", "x")
	if err != nil || sub.Session.Status != store.SessionBound || sub.Binding.ReleasedAt != 0 || sub.Turn.Status != store.TurnClosed {
		t.Error(sub, err)
	}
}

// An aborted answer or retry puts the Turn back where it was.
func TestAbort_RestoresTheDispatchBefore(t *testing.T) {
	t.Run("answer", func(t *testing.T) {
		w := newWorld(t)
		f := w.prepare("1", "a", "thread-1").accept("thread-1")
		_, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p"})
		f.must(err)
		if _, err := w.PrepareDispatch(ctx, f.term, answer("2", f, store.KindAnswer)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.AbortDispatch(ctx, f.term, "msg-2", "x"); err != nil {
			t.Fatal(err)
		}
		turn := f.turn()
		fence, _, _ := w.Fence(ctx, "key-a")
		if turn.Status != store.TurnWaitingForController || turn.CurrentMessageID != "msg-1" || fence.RefID != "msg-1" {
			t.Errorf("got %+v %+v", turn, fence)
		}
	})
	t.Run("retry form", func(t *testing.T) {
		w := newWorld(t)
		f := w.prepare("1", "a", "thread-1").text()
		_, err := w.SettleDispatch(ctx, f.term, store.Settlement{MessageID: "msg-1", Status: store.DispatchUncertain})
		f.must(err)
		if _, err := w.PrepareDispatch(ctx, f.term, answer("2", f, store.KindTask)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.AbortDispatch(ctx, f.term, "msg-2", "x"); err != nil {
			t.Fatal(err)
		}
		turn := f.turn()
		if turn.Status != store.TurnStalled || turn.CurrentMessageID != "msg-1" {
			t.Errorf("got %+v", turn)
		}
		if _, err := w.PrepareDispatch(ctx, f.term, answer("3", f, store.KindTask)); err != nil {
			t.Error(err)
		}
	})
}

func TestAnswer_CountsARoundWhenEnterWasSent(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1").accept("thread-1")
	_, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p", Callback: callback("q", store.LaneLifecycle, "question")})
	f.must(err)
	d := answer("2", f, store.KindAnswer)
	if _, err := w.PrepareDispatch(ctx, f.term, d); err != nil {
		t.Fatal(err)
	}
	f.d = d
	f.text()
	if got := f.turn(); got.Status != store.TurnWaitingForController || got.ResponseRoundsUsed != 0 {
		t.Errorf("before Enter: %+v", got)
	}
	f.must(w.EnterDispatched(ctx, f.term, "msg-2"))
	if got := f.turn(); got.Status != store.TurnWaitingForAgent || got.ResponseRoundsUsed != 1 {
		t.Errorf("after Enter: %+v", got)
	}
	if cb, err := w.Callback(ctx, "delivery-q"); err != nil || cb.Status != store.CallbackSuperseded {
		t.Error(cb, err)
	}
}

// The stages come in order, each once, and only from the lease epoch that prepared.
func TestStages_InOrderAndFenced(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1")
	wantCode(t, w.TextInjected(ctx, f.term, "msg-1"), fault.DispatchUnresolved) // no mark
	wantCode(t, w.EnterDispatched(ctx, f.term, "msg-1"), fault.DispatchUnresolved)
	f.mark()
	wantCode(t, w.MarkInput(ctx, f.term, "msg-1"), fault.DispatchUnresolved)
	wantCode(t, w.EnterDispatched(ctx, f.term, "msg-1"), fault.DispatchUnresolved)
	if err := w.Release(ctx, f.term); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.TextInjected(ctx, f.term, "msg-1"), fault.LeaseLost)
	again := w.lease(store.TerminalLease("key-a")) // the same process, a new epoch
	wantCode(t, w.TextInjected(ctx, again, "msg-1"), fault.LeaseLost)
	_, err := w.SettleDispatch(ctx, again, store.Settlement{MessageID: "msg-1", Status: store.DispatchNotAccepted})
	wantCode(t, err, fault.DispatchUnresolved) // not_accepted needs Enter
	sub, err := w.SettleDispatch(ctx, again, store.Settlement{MessageID: "msg-1", Status: store.DispatchUncertain, Code: "c", Reason: "r",
		Callback: callback("s", store.LaneNotification, "error")})
	if err != nil || sub.Turn.Status != store.TurnStalled || sub.Turn.StalledReason != "r" || sub.Turn.StalledNotifiedAt == 0 ||
		sub.Dispatch.ErrorCode != "c" || sub.Dispatch.LastProvenStage != store.DispatchPrepared || sub.Dispatch.ResolvedAt != 0 {
		t.Fatalf("%+v %v", sub, err)
	}
	if fence, ok, _ := w.Fence(ctx, "key-a"); !ok || fence.RefID != "msg-1" {
		t.Error("an uncertain dispatch lost its fence")
	}
	if rows, err := w.TurnCallbacks(ctx, "turn-1"); err != nil || len(rows) != 1 {
		t.Error(rows, err)
	}
}

// A Turn that is closed while its request is typed stops the typing.
func TestStages_ClosedMeanwhile(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "thread-1")
	if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.MarkInput(ctx, f.term, "msg-1"), fault.TurnStatusInvalid)
}
