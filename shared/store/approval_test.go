package store_test

import (
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// asked is a Turn with one notified prompt.
func (w *world) asked() *flow {
	w.t.Helper()
	f := w.prepare("1", "a", "").accept("thread-1")
	if _, ok, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{
		ApprovalID: "approval-1", Fingerprint: "print-1", RequestID: "call-1", Callback: callback("q", store.LaneLifecycle, "question"),
	}); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
	return f
}

func (f *flow) reservation() store.Reservation {
	return store.Reservation{
		TurnID: "turn-1", MessageID: f.d.MessageID, Fingerprint: "print-1", Decision: store.DecisionApprove, DecidedBy: store.DecidedByPolicy, RuleID: "r1",
	}
}

func (f *flow) approval() store.Approval {
	f.t.Helper()
	all, err := f.Approvals(ctx, "turn-1")
	if err != nil || len(all) != 1 {
		f.t.Fatal(all, err)
	}
	return all[0]
}

// notified → reserved → consumed: the Turn goes on, its question is superseded, and
// the prompt counts as gone. Proves core §11.1's table, the way of a decision.
func TestApproval_Decided(t *testing.T) {
	w := newWorld(t)
	f := w.asked()
	row, err := w.ReserveApproval(ctx, f.term, f.reservation())
	f.must(err)
	if row.State != store.ApprovalReserved || row.Decision != "approve_once" || row.DecidedBy != "policy" || row.PolicyRuleID != "r1" || row.ReservedAt == 0 {
		t.Errorf("reserved %+v", row)
	}
	if got := f.turn().Status; got != store.TurnWaitingForController {
		t.Errorf("the turn is %s before the outcome", got)
	}
	// A monitor that finds the call answered meanwhile does not take the Turn on.
	turn, err := w.ApprovalCleared(ctx, f.monitor())
	f.must(err)
	if turn.Status != store.TurnWaitingForController || f.approval().State != store.ApprovalReserved {
		t.Errorf("cleared under a reservation: %s %+v", turn.Status, f.approval())
	}
	if open, err := w.ReservedApprovals(ctx); err != nil || len(open) != 1 || open[0].Approval.ID != "approval-1" || open[0].Turn.ID != "turn-1" {
		t.Error(open, err)
	}
	turn, err = w.ConsumeApproval(ctx, f.term, row.ID)
	f.must(err)
	if got := f.approval(); turn.Status != store.TurnWaitingForAgent || got.State != store.ApprovalConsumed || got.ConsumedAt == 0 || got.ClearedAt == 0 {
		t.Errorf("consumed: turn %s, %+v", turn.Status, got)
	}
	if rows, err := w.TurnCallbacks(ctx, "turn-1"); err != nil || len(rows) != 1 || rows[0].Status != store.CallbackSuperseded {
		t.Error(rows, err)
	}
	if open, err := w.ReservedApprovals(ctx); err != nil || len(open) != 0 {
		t.Error(open, err)
	}
	// The same request is not notified again.
	if _, inserted, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "print-1", RequestID: "call-1"}); err != nil || inserted {
		t.Error(inserted, err)
	}
}

// Whatever state a prompt has, at most one reservation is ever taken for it, and
// nobody else than who holds the pane takes one.
func TestApproval_ReservedOnce(t *testing.T) {
	consumed := func(t *testing.T, f *flow) {
		row, err := f.ReserveApproval(ctx, f.term, f.reservation())
		f.must(err)
		_, err = f.ConsumeApproval(ctx, f.term, row.ID)
		f.must(err)
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, f *flow)
		want   fault.Code
	}{
		"another prompt": {func(t *testing.T, f *flow) { must(t, f.raw(), `UPDATE approvals SET fingerprint = 'other'`) }, fault.OfferChanged},
		"reserved": {func(t *testing.T, f *flow) {
			_, err := f.ReserveApproval(ctx, f.term, f.reservation())
			f.must(err)
		}, fault.SubmissionUncertain},
		"in doubt": {func(t *testing.T, f *flow) {
			row, err := f.ReserveApproval(ctx, f.term, f.reservation())
			f.must(err)
			f.must(f.DoubtApproval(ctx, f.term, row.ID, "why", nil))
		}, fault.SubmissionUncertain},
		"consumed": {consumed, fault.TurnStatusInvalid},
		"cleared": {func(t *testing.T, f *flow) {
			_, err := f.ApprovalCleared(ctx, f.monitor())
			f.must(err)
		}, fault.TurnStatusInvalid},
		"closed": {func(t *testing.T, f *flow) {
			_, err := f.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"})
			f.must(err)
		}, fault.TurnStatusInvalid},
		"another message":  {func(t *testing.T, f *flow) { f.d.MessageID = "msg-9" }, fault.BindingSuperseded},
		"binding released": {func(t *testing.T, f *flow) { must(t, f.raw(), `UPDATE bindings SET released_at = 1`) }, fault.BindingSuperseded},
		"fence gone":       {func(t *testing.T, f *flow) { must(t, f.raw(), `DELETE FROM terminal_fences`) }, fault.ActiveOwner},
		"lease released":   {func(t *testing.T, f *flow) { f.must(f.Release(ctx, f.term)) }, fault.LeaseLost},
		"lease over":       {func(t *testing.T, f *flow) { f.clk.add(store.TerminalTTL) }, fault.LeaseLost},
		"lease of another": {func(t *testing.T, f *flow) { f.term = f.lease(store.TerminalLease("key-b")) }, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			f := newWorld(t).asked()
			tc.change(t, f)
			before := f.approval()
			_, err := f.ReserveApproval(ctx, f.term, f.reservation())
			wantCode(t, err, tc.want)
			if got := f.approval(); got != before {
				t.Errorf("the row changed: %+v", got)
			}
		})
	}
}

// A prompt past its life is expired by the attempt, or by the sweep.
func TestApproval_Expires(t *testing.T) {
	f := newWorld(t).asked()
	f.clk.add(10 * time.Minute)
	f.term = f.lease(f.term.Name)
	r := f.reservation()
	r.Life = 10 * time.Minute
	_, err := f.ReserveApproval(ctx, f.term, r)
	wantCode(t, err, fault.Expired)
	if got := f.approval().State; got != store.ApprovalExpired {
		t.Errorf("state %s", got)
	}
	r.Life = 0
	_, err = f.ReserveApproval(ctx, f.term, r)
	wantCode(t, err, fault.Expired)

	f = newWorld(t).asked()
	if n, err := f.ExpireApprovals(ctx, "codex", time.Minute); n != 0 || err != nil {
		t.Error(n, err)
	}
	f.clk.add(time.Minute)
	for agent, want := range map[string]int{"claude": 0, "codex": 1} {
		if n, err := f.ExpireApprovals(ctx, agent, time.Minute); n != want || err != nil {
			t.Error(agent, n, err)
		}
	}
	if got := f.approval().State; got != store.ApprovalExpired {
		t.Errorf("state %s", got)
	}
}

// A decision in doubt stays the Turn's open prompt until the prompt is gone; it is
// told where nobody else says it. Proves §13 row 10 in the Store.
func TestApproval_InDoubt(t *testing.T) {
	f := newWorld(t).asked()
	row, err := f.ReserveApproval(ctx, f.term, f.reservation())
	f.must(err)
	f.must(f.DoubtApproval(ctx, f.term, row.ID, "it died", callback("d", store.LaneLifecycle, "blocked")))
	if got := f.approval(); got.State != store.ApprovalUncertain || got.ClearedAt != 0 || f.turn().Status != store.TurnWaitingForController {
		t.Errorf("%+v, turn %s", got, f.turn().Status)
	}
	if _, err := f.ConsumeApproval(ctx, f.term, row.ID); !fault.Is(err, fault.TurnStatusInvalid) {
		t.Errorf("consumed: %v", err)
	}
	if open, err := f.PromptsOpen(ctx, "turn-1"); err != nil || !open {
		t.Error(open, err)
	}
	turn, err := f.ApprovalCleared(ctx, f.monitor())
	f.must(err)
	if turn.Status != store.TurnWaitingForAgent || f.approval().ClearedAt == 0 {
		t.Errorf("turn %s, %+v", turn.Status, f.approval())
	}
}

// A Turn that ended while the key was on its way keeps its end.
func TestApproval_ConsumedBehindTheEnd(t *testing.T) {
	f := newWorld(t).asked()
	row, err := f.ReserveApproval(ctx, f.term, f.reservation())
	f.must(err)
	_, err = f.ClaimCompletion(ctx, f.monitor(), completion("1"))
	f.must(err)
	turn, err := f.ConsumeApproval(ctx, f.term, row.ID)
	f.must(err)
	if turn.Status != store.TurnIdle || f.approval().State != store.ApprovalConsumed {
		t.Errorf("turn %s, %+v", turn.Status, f.approval())
	}
}

// What a policy was to decide and did not is told once.
func TestApproval_Told(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "").accept("thread-1")
	row, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{ApprovalID: "approval-1", Fingerprint: "print-1"})
	f.must(err)
	for range 2 {
		f.must(w.ApprovalTold(ctx, f.monitor(), row.ID, *callback("q", store.LaneLifecycle, "question")))
	}
	if rows, err := w.TurnCallbacks(ctx, "turn-1"); err != nil || len(rows) != 1 || f.approval().DeliveryID != "delivery-q" {
		t.Error(rows, err)
	}
}

// A Turn whose Session was attached elsewhere is stalled and told once, whatever it
// waited for; one that stands on its binding is left alone.
func TestStallSuperseded(t *testing.T) {
	for _, waits := range []bool{false, true} {
		w := newWorld(t)
		f := w.prepare("1", "a", "").accept("thread-1")
		m := f.monitor()
		if waits {
			_, _, err := w.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: "x", Callback: callback("q", store.LaneLifecycle, "question")})
			f.must(err)
		}
		st := store.Stall{Reason: "elsewhere", Callback: callback("s", store.LaneNotification, "error")}
		if _, changed, err := w.StallSuperseded(ctx, m.Lease, "turn-1", st); err != nil || changed {
			t.Fatal(changed, err)
		}
		must(t, w.raw(), `UPDATE bindings SET released_at = 1`)
		for i := range 2 {
			turn, changed, err := w.StallSuperseded(ctx, m.Lease, "turn-1", st)
			if err != nil || changed != (i == 0) || turn.Status != store.TurnStalled || turn.StalledReason != "elsewhere" {
				t.Errorf("waits %v, %d: %v %v %s", waits, i, changed, err, turn.Status)
			}
		}
		rows, err := w.TurnCallbacks(ctx, "turn-1")
		f.must(err)
		told := 0
		for _, c := range rows {
			if c.Lane == store.LaneNotification && c.Status == store.CallbackPending {
				told++
			} else if c.Status != store.CallbackSuperseded {
				t.Errorf("callback %+v", c)
			}
		}
		if told != 1 {
			t.Errorf("told %d times", told)
		}
	}
}

// The text of an answer is kept with its message, that of a task with its Turn.
func TestMessageText(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "").accept("thread-1")
	if got, err := w.MessageText(ctx, f.sub.Dispatch); err != nil || got != f.sub.Turn.RequestText {
		t.Errorf("task: %q %v", got, err)
	}
	_, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "x"})
	f.must(err)
	d := answer("2", f, store.KindAnswer)
	d.RequestText = "the blue one"
	sub, err := w.PrepareDispatch(ctx, f.term, d)
	f.must(err)
	if got, err := w.MessageText(ctx, sub.Dispatch); err != nil || got != "the blue one" || sub.Turn.RequestText == got {
		t.Errorf("answer: %q %v", got, err)
	}
}
