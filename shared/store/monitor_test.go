package store_test

import (
	"errors"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// everyMonitorMove runs each monitor move with m.
func everyMonitorMove(s *store.Store, m store.Monitor) map[string]error {
	out := map[string]error{}
	_, out["check"] = s.CheckMonitor(ctx, m)
	_, out["running"] = s.TurnRunning(ctx, m, store.Activity{At: s.Now()})
	_, out["touch"] = s.TouchActivity(ctx, m, store.Activity{At: s.Now()})
	_, _, out["approval"] = s.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: "z"})
	_, out["approval cleared"] = s.ApprovalCleared(ctx, m)
	_, _, out["question"] = s.QuestionNotified(ctx, m, question("z"))
	_, out["question cleared"] = s.QuestionCleared(ctx, m)
	_, out["complete"] = s.ClaimCompletion(ctx, m, completion("z"))
	_, out["stall"] = s.StallTurn(ctx, m, store.Stall{Reason: "z"})
	return out
}

// Proves core 19.22: a monitor whose message was replaced by an answer changes
// nothing afterwards. The same for a binding that was released, a Turn that was
// closed, and a lease that was lost.
func TestMonitor_OldGenerationChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, w *world, f *flow, m *store.Monitor)
		want   fault.Code
		reason string
	}{
		"message replaced": {func(t *testing.T, w *world, f *flow, m *store.Monitor) {
			_, _, err := w.ApprovalNotified(ctx, *m, store.NewApproval{Fingerprint: "p"})
			f.must(err)
			_, err = w.PrepareDispatch(ctx, f.term, answer("2", f, store.KindAnswer))
			f.must(err)
		}, fault.BindingSuperseded, "generation_replaced"},
		"other generation": {func(t *testing.T, w *world, f *flow, m *store.Monitor) { m.BindingGeneration = 2 }, fault.BindingSuperseded, "generation_replaced"},
		"binding released": {func(t *testing.T, w *world, f *flow, m *store.Monitor) {
			must(t, w.raw(), `UPDATE bindings SET released_at = 1`)
		}, fault.BindingSuperseded, "binding_superseded"},
		"dispatch resolved": {func(t *testing.T, w *world, f *flow, m *store.Monitor) {
			must(t, w.raw(), `UPDATE dispatches SET resolved_at = 1`)
		}, fault.BindingSuperseded, "generation_replaced"},
		"closed": {func(t *testing.T, w *world, f *flow, m *store.Monitor) {
			_, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"})
			f.must(err)
		}, fault.TurnStatusInvalid, ""},
		"lease released": {func(t *testing.T, w *world, f *flow, m *store.Monitor) { f.must(w.Release(ctx, m.Lease)) }, fault.LeaseLost, ""},
		"lease over":     {func(t *testing.T, w *world, f *flow, m *store.Monitor) { w.clk.add(store.LeaseTTL) }, fault.LeaseLost, ""},
		"lease taken over": {func(t *testing.T, w *world, f *flow, m *store.Monitor) {
			w.gone[w.Holder()] = true
			w.leaseOf(w.open("watchd/2/2/x"), m.Lease.Name)
		}, fault.LeaseLost, ""},
		"no lease":    {func(t *testing.T, w *world, f *flow, m *store.Monitor) { m.Lease = nil }, fault.Internal, ""},
		"wrong lease": {func(t *testing.T, w *world, f *flow, m *store.Monitor) { m.Lease = f.term }, fault.Internal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.prepare("1", "a", "t1").accept("t1")
			m := f.monitor()
			c.change(t, w, f, &m)
			before := dump(t, w.raw())
			for move, err := range everyMonitorMove(w.Store, m) {
				if got := fault.CodeOf(err); got != c.want {
					t.Errorf("%s gives %q (%v), want %q", move, got, err, c.want)
				}
				if e, ok := fault.As(err); ok && c.reason != "" && e.Details["reason"] != c.reason {
					t.Errorf("%s has details %v, want reason %s", move, e.Details, c.reason)
				}
			}
			if dump(t, w.raw()) != before {
				t.Error("the Store changed")
			}
		})
	}
}

// Proves core 19.27 (the Store's side): proof of life moves the inactivity
// deadline and never the hard one.
func TestMonitor_ActivityMovesOnlyInactivity(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	before := f.turn()
	w.clk.add(10 * time.Second)
	if _, err := w.TouchActivity(ctx, m, store.Activity{At: w.Now(), State: []byte(`{"digest":"x"}`)}); err != nil {
		t.Fatal(err)
	}
	after := f.turn()
	if after.LastActivityAt != w.Now() || after.InactivityDeadlineAt != w.Now()+60*60_000 || after.HardDeadlineAt != before.HardDeadlineAt ||
		string(after.Monitor) != `{"digest":"x"}` {
		t.Errorf("got %+v", after)
	}
	if _, err := w.TouchActivity(ctx, m, store.Activity{At: w.Now() - 5_000}); err != nil {
		t.Fatal(err)
	}
	if got := f.turn(); got.LastActivityAt != after.LastActivityAt || string(got.Monitor) != `{"digest":"x"}` {
		t.Errorf("got %+v", got)
	}
}

func TestMonitor_ClaimIsOnce(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	_, _, err := w.QuestionNotified(ctx, m, question("1"))
	f.must(err)
	_, _, err = w.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: "p", Callback: callback("q", store.LaneLifecycle, "question")})
	f.must(err)
	store.FailCommit(w.Store, errors.New("disk full"))
	if _, err := w.ClaimCompletion(ctx, m, completion("1")); err == nil {
		t.Fatal("no error")
	}
	store.FailCommit(w.Store, nil)
	turn, err := w.ClaimCompletion(ctx, m, completion("1"))
	if err != nil || turn.Status != store.TurnIdle || turn.ClaimDeliveryID != "delivery-1" || turn.ClaimMessageID != "msg-1" || turn.IdleSince == 0 || turn.ClaimedAt == 0 {
		t.Fatal(turn, err)
	}
	before := dump(t, w.raw())
	if again, err := w.ClaimCompletion(ctx, m, completion("1")); err != nil || again.Status != store.TurnIdle {
		t.Error(again, err)
	}
	for name, c := range map[string]store.Completion{
		"fingerprint": {Fingerprint: "other", Outcome: store.OutcomeSuccess, DeliveryID: "delivery-1"},
		"outcome":     {Fingerprint: "fp-1", Outcome: store.OutcomeFailure, DeliveryID: "delivery-1"},
		"delivery":    {Fingerprint: "fp-1", Outcome: store.OutcomeSuccess, DeliveryID: "x"},
	} {
		_, err := w.ClaimCompletion(ctx, m, c)
		if !fault.Is(err, fault.ClaimConflict) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if dump(t, w.raw()) != before {
		t.Error("the Store changed")
	}
	rows, err := w.TurnCallbacks(ctx, "turn-1")
	if err != nil || len(rows) != 2 || rows[0].Status != store.CallbackSuperseded || rows[1].Status != store.CallbackPending {
		t.Error(rows, err)
	}
	if all, err := w.Interactions(ctx, "turn-1"); err != nil || all[0].State != "superseded" {
		t.Error(all, err)
	}
	if all, err := w.Approvals(ctx, "turn-1"); err != nil || all[0].State != "cleared" || all[0].ClearedAt == 0 {
		t.Error(all, err)
	}
	if _, err := w.raw().Exec(`UPDATE turns SET claim_fingerprint = 'x', revision = revision + 1`); err == nil {
		t.Error("the schema lets a claim be changed")
	}
}

// A completion belongs to a message that was proven to be accepted.
func TestMonitor_ClaimNeedsAcceptance(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").enter()
	_, err := w.ClaimCompletion(ctx, f.monitor(), completion("1"))
	wantCode(t, err, fault.DispatchUnresolved)
}

func TestMonitor_ClaimWithoutRoute(t *testing.T) {
	w := newWorld(t)
	f := &flow{world: w, d: mod(dispatch("1", "a", "t1"), func(d *store.NewDispatch) { d.Route = nil })}
	f.term = w.lease(store.TerminalLease("key-a"))
	var err error
	if f.sub, err = w.PrepareDispatch(ctx, f.term, f.d); err != nil || f.sub.Turn.Route != nil {
		t.Fatal(f.sub.Turn.Route, err)
	}
	f.accept("t1")
	turn, err := w.ClaimCompletion(ctx, f.monitor(), store.Completion{Fingerprint: "x", Outcome: store.OutcomeFailure, DeliveryID: "d"})
	if err != nil || turn.Status != store.TurnFailed || turn.IdleSince != 0 {
		t.Error(turn, err)
	}
}

// Proves core 19.28: one stall gives one notification, renew then stall a second.
func TestMonitor_OneNotificationForEachStall(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	_, err := w.StallTurn(ctx, m, store.Stall{Reason: "inactivity", Callback: callback("1", store.LaneNotification, "error")})
	f.must(err)
	_, err = w.StallTurn(ctx, m, store.Stall{Reason: "inactivity", Callback: callback("2", store.LaneNotification, "error")})
	wantCode(t, err, fault.TurnStatusInvalid)
	// a submission that settles while stalled does not notify again
	_, err = w.InvalidateAcceptance(ctx, m.Lease, store.Settlement{MessageID: "msg-1", Callback: callback("3", store.LaneNotification, "error")})
	f.must(err)
	if rows, err := w.TurnCallbacks(ctx, "turn-1"); err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}

	g := w.prepare("5", "b", "t5").accept("t5")
	_, err = w.StallTurn(ctx, g.monitor(), store.Stall{Reason: "inactivity", Callback: callback("6", store.LaneNotification, "error")})
	g.must(err)
	_, err = w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-5"})
	g.must(err)
	_, err = w.StallTurn(ctx, g.monitor(), store.Stall{Reason: "inactivity", Callback: callback("7", store.LaneNotification, "error")})
	g.must(err)
	rows, err := w.TurnCallbacks(ctx, "turn-5")
	if err != nil || len(rows) != 2 || rows[0].Status != store.CallbackSuperseded || rows[1].Status != store.CallbackPending {
		t.Error(rows, err)
	}
}

// Proves core 19.55 (the Store's side) and the rules of core §11.1 on what is not
// notified again.
func TestApproval_NotifiedOnce(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	n := 0
	notify := func(a store.NewApproval, want bool) {
		t.Helper()
		n++
		a.Callback = callback(time.Duration(n).String(), store.LaneLifecycle, "question")
		row, inserted, err := w.ApprovalNotified(ctx, m, a)
		if err != nil || inserted != want || row.ID == "" {
			t.Fatalf("%+v: inserted %t %v, want %t", a, inserted, err, want)
		}
	}
	clear := func() {
		t.Helper()
		turn, err := w.ApprovalCleared(ctx, m)
		if err != nil || turn.Status != store.TurnWaitingForAgent {
			t.Fatal(turn, err)
		}
	}
	notify(store.NewApproval{Fingerprint: "p1", ScreenDigest: "d1"}, true)
	notify(store.NewApproval{Fingerprint: "p1", ScreenDigest: "d2"}, false) // same fingerprint, not cleared
	notify(store.NewApproval{Fingerprint: "p2", ScreenDigest: "d1"}, false) // same unrepainted screen
	notify(store.NewApproval{Fingerprint: "p2", ScreenDigest: "d2"}, true)  // another prompt: the first is gone
	all, err := w.Approvals(ctx, "turn-1")
	if err != nil || len(all) != 2 || all[0].State != "cleared" || all[1].State != "notified" {
		t.Fatal(all, err)
	}
	clear()
	clear() // nothing more happens
	notify(store.NewApproval{Fingerprint: "p2", ScreenDigest: "d2", RequestID: "r1"}, true)
	clear()
	notify(store.NewApproval{Fingerprint: "p3", RequestID: "r1"}, false) // same request of the transcript
	notify(store.NewApproval{Fingerprint: "p3", EvidenceFingerprint: "e1"}, true)
	must(t, w.raw(), `UPDATE approvals SET state = 'consumed', consumed_at = 1 WHERE fingerprint = 'p3'`)
	notify(store.NewApproval{Fingerprint: "p3"}, false) // consumed and not yet seen gone
	clear()
	notify(store.NewApproval{Fingerprint: "p3", EvidenceFingerprint: "e1"}, false)
	notify(store.NewApproval{Fingerprint: "p3", EvidenceFingerprint: "e2"}, true)
	rows, err := w.TurnCallbacks(ctx, "turn-1")
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, r := range rows {
		if r.Open() {
			open++
		}
	}
	if open != 1 || len(rows) != 5 {
		t.Errorf("%d rows, %d open", len(rows), open)
	}
}

// A question that was delivered but not answered keeps its row; one still waiting
// goes when the human answered in the pane.
func TestApproval_ClearedSupersedesWhatWaits(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	_, _, err := w.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: "p", Callback: callback("q", store.LaneLifecycle, "blocked")})
	f.must(err)
	if _, _, err := w.QuestionNotified(ctx, m, question("1")); err != nil {
		t.Fatal(err)
	}
	if turn, err := w.ApprovalCleared(ctx, m); err != nil || turn.Status != store.TurnWaitingForController {
		t.Error("a questionnaire is open still", turn, err)
	}
	if turn, err := w.QuestionCleared(ctx, m); err != nil || turn.Status != store.TurnWaitingForAgent {
		t.Error(turn, err)
	}
	if cb, err := w.Callback(ctx, "delivery-q"); err != nil || cb.Status != store.CallbackSuperseded || cb.SupersededReason != "prompt_gone" {
		t.Error(cb, err)
	}
}

func TestQuestion_NotifiedOnce(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	q := question("1")
	q.Callback = callback("1", store.LaneLifecycle, "question")
	row, inserted, err := w.QuestionNotified(ctx, m, q)
	if err != nil || !inserted || row.State != "published" || row.BindingID != f.sub.Binding.ID || f.turn().Status != store.TurnWaitingForController {
		t.Fatal(row, inserted, err)
	}
	again := q
	again.InteractionID = "interaction-2"
	if row, inserted, err := w.QuestionNotified(ctx, m, again); err != nil || inserted || row.ID != "interaction-1" {
		t.Error(row, inserted, err)
	}
	next := question("3") // the next step takes the place of the first
	next.Callback = callback("3", store.LaneLifecycle, "question")
	if _, inserted, err := w.QuestionNotified(ctx, m, next); err != nil || !inserted {
		t.Error(inserted, err)
	}
	all, err := w.Interactions(ctx, "turn-1")
	if err != nil || len(all) != 2 || all[0].State != "superseded" || all[1].State != "published" {
		t.Error(all, err)
	}
	if cb, err := w.Callback(ctx, "delivery-1"); err != nil || cb.Status != store.CallbackSuperseded {
		t.Error(cb, err)
	}
}
