package handoff_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// A program that dies between reservation and outcome leaves a decision in doubt:
// told once, never made again, and over when the prompt is gone. Proves core 19.53
// and §13 row 10 within one process.
func TestApprove_InDoubt(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := p.asked("doubt run:touch_a")
	w.status(turn)
	row := w.approvals(turn)[0]
	key := w.turn(turn).TerminalKey
	dead, err := w.store.Acquire(ctx, store.TerminalLease(key), store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.ReserveApproval(ctx, dead, store.Reservation{
		TurnID: turn, MessageID: row.MessageID, Fingerprint: row.Fingerprint, Decision: "approve_once", DecidedBy: "user",
	}); err != nil {
		t.Fatal(err)
	}
	if st := w.status(turn); st.Terminal.Approval.Approvable || !strings.Contains(st.Terminal.Approval.Reason, "on its way") {
		t.Errorf("approval state %+v", st.Terminal.Approval)
	}
	if err := w.store.Release(ctx, dead); err != nil {
		t.Fatal(err)
	}
	p.unchanged("recovery", func() {
		if r := w.desk.Recover(ctx, ""); r.Changed != 1 || len(r.Problems) != 0 {
			t.Errorf("recovery %+v", r)
		}
		if st := w.status(turn); st.Terminal.Approval.Approvable || !strings.Contains(st.Terminal.Approval.Reason, "in doubt") {
			t.Errorf("approval state %+v", st.Terminal.Approval)
		}
	})
	p.refusedApprove(handoff.ApproveInput{TurnID: turn}, fault.SubmissionUncertain) // with the first offer
	p.refusedApprove(handoff.ApproveInput{TurnID: turn}, fault.OfferMissing)
	if rows := w.callbacks(turn); len(rows) != 2 || rows[1].EventType != "blocked" || !strings.Contains(rows[1].Body, "in doubt") {
		t.Errorf("callbacks %+v", rows)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "-l", "y")
	if got := w.follow(turn); got.Status != store.TurnIdle {
		t.Errorf("turn is %s", got.Status)
	}
}

// An offer that is shown, and then the decision of another program is in doubt: the
// key is not sent. Proves core 19.53 for the caller who already holds an offer.
func TestApprove_OfferMeetsDoubt(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := p.asked("doubt run:touch_a")
	w.status(turn)
	row := w.approvals(turn)[0]
	l, err := w.store.Acquire(ctx, store.TerminalLease(w.turn(turn).TerminalKey), store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.ReserveApproval(ctx, l, store.Reservation{
		TurnID: turn, MessageID: row.MessageID, Fingerprint: row.Fingerprint, Decision: "approve_once", DecidedBy: "user",
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	p.refusedApprove(handoff.ApproveInput{TurnID: turn}, fault.SubmissionUncertain)
}

// The operator's policy decides what it names, by the same path and without a
// question; what it does not name is asked. Proves core 19.56's execution.
func TestPolicy_Decides(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	path := policyPath(t, oneRule(p.work, []string{"touch", "a.txt"}))
	pol, err := handoff.LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	o := w.desk.Options
	o.Policy = pol
	w.desk = handoff.New(o)
	turn := p.mustSend("auto run:touch_a.txt run:touch_b.txt").TurnID
	m, release := w.monitor(turn)
	w.lookUntil(m, func() bool { return len(w.callbacks(turn)) > 0 })
	release()
	rows := w.approvals(turn)
	if len(rows) != 2 || rows[0].State != "consumed" || rows[0].DecidedBy != "policy" || rows[0].PolicyRuleID != "r1" || rows[1].State != "notified" {
		t.Fatalf("approvals %+v", rows)
	}
	if cbs := w.callbacks(turn); len(cbs) != 1 || cbs[0].EventType != "question" || !strings.Contains(cbs[0].Body, "touch b.txt") {
		t.Errorf("callbacks %+v", cbs)
	}
	if n := strings.Count(p.keys(), "y"); n != 1 {
		t.Errorf("%d keys in %q", n, p.keys())
	}
	w.status(turn)
	if _, err := w.approve(handoff.ApproveInput{TurnID: turn}); err != nil {
		t.Fatal(err)
	}
	w.follow(turn)

	// A policy whose file was changed since approves nothing more.
	if err := os.WriteFile(path, []byte(`{"enabled":true,"rules":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	turn = p.asked("again run:touch_a.txt")
	p.unchanged("a withdrawn policy", func() {
		if a := w.approvals(turn); len(a) != 1 || a[0].State != "notified" {
			t.Errorf("approvals %+v", a)
		}
		if cbs := w.callbacks(turn); len(cbs) != 1 || cbs[0].EventType != "question" {
			t.Errorf("callbacks %+v", cbs)
		}
	})
}

// A prompt that was decided and is shown again, without having been seen to go, is
// neither told nor answered a second time. Proves core 19.55 for the answer.
func TestApprove_ConsumedStands(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	gate := w.dir + "/gate"
	turn := p.asked("stands run:touch_a hold:" + gate)
	var kept agent.Reading
	b.read = func(r agent.Reading) agent.Reading {
		if r.State == agent.Approval {
			kept = r
		}
		return r
	}
	var call []agent.Call
	b.progress = func(p agent.Progress) agent.Progress {
		if len(p.Calls) > 0 {
			call = p.Calls
		}
		return p
	}
	in := handoff.ApproveInput{TurnID: turn}
	w.status(turn)
	if _, err := w.approve(in); err != nil {
		t.Fatal(err)
	}
	b.read = func(agent.Reading) agent.Reading { return kept }
	b.progress = func(p agent.Progress) agent.Progress {
		p.Calls, p.Waiting = call, &call[0]
		return p
	}
	m, release := w.monitor(turn)
	for range 10 {
		if _, err := m.Observe(context.Background(), w.capture(m.Pane())); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if rows := w.callbacks(turn); len(rows) != 1 {
		t.Errorf("callbacks %+v", rows)
	}
	if rows := w.approvals(turn); len(rows) != 1 || rows[0].State != store.ApprovalConsumed {
		t.Errorf("approvals %+v", rows)
	}
	if a := w.status(turn).Terminal.Approval; a.Approvable || !strings.Contains(a.Reason, "decided") {
		t.Errorf("approval state %+v", a)
	}
	p.unchanged("approve again", func() {
		if res, err := w.approve(in); err != nil || !res.AlreadyApproved {
			t.Errorf("%+v %v", res, err)
		}
	})
	b.read, b.progress = nil, nil
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.follow(turn)
}

// Proves tools 11.26: an offer that was used, that ran out, or that 512 younger ones
// pushed out decides nothing.
func TestApprove_OfferGone(t *testing.T) {
	w := newWorld(t)
	var late atomic.Int64
	s, err := store.Open(context.Background(), store.Options{
		Dir: testkit.StoreDir(t), Program: "test", Now: func() time.Time { return time.Now().Add(time.Duration(late.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.store = s
	w.desk = w.newDesk(s)
	p := w.agent()
	turn := p.asked("gone run:touch_a")
	in := handoff.ApproveInput{TurnID: turn}

	w.status(turn)
	late.Store(int64(10 * time.Minute))
	p.refusedApprove(in, fault.OfferExpired)
	p.refusedApprove(in, fault.OfferMissing)

	w.status(turn)
	late.Add(int64(time.Millisecond)) // so that it is the oldest
	for i := range store.OfferLimit {
		if err := s.MintOffer(context.Background(), store.NewOffer{
			Key:     store.OfferKey{OwnerSession: controller, Kind: "approval", TargetType: "turn", TargetID: "turn-other-" + strings.Repeat("x", i)},
			Payload: []byte(`{}`), Fingerprint: "f", Life: 10 * time.Minute,
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.refusedApprove(in, fault.OfferMissing)

	w.status(turn)
	if _, err := w.approve(in); err != nil {
		t.Fatal(err)
	}
	w.follow(turn)
}
