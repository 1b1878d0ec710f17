package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// turnMoves are the pairs of core §5.1.
var turnMoves = map[string][]string{
	store.TurnRunning:              {store.TurnCreated, store.TurnWaitingForAgent},
	store.TurnWaitingForController: {store.TurnWaitingForAgent, store.TurnRunning},
	store.TurnWaitingForAgent:      {store.TurnCreated, store.TurnWaitingForController, store.TurnStalled},
	store.TurnIdle:                 {store.TurnWaitingForAgent, store.TurnWaitingForController, store.TurnRunning, store.TurnStalled},
	store.TurnFailed:               {store.TurnWaitingForAgent, store.TurnWaitingForController, store.TurnRunning, store.TurnStalled},
	store.TurnStalled:              {store.TurnCreated, store.TurnWaitingForAgent, store.TurnRunning},
	store.TurnCancelled:            {store.TurnWaitingForAgent, store.TurnRunning, store.TurnWaitingForController},
	store.TurnClosed: {store.TurnCreated, store.TurnRunning, store.TurnWaitingForAgent, store.TurnWaitingForController,
		store.TurnIdle, store.TurnStalled, store.TurnFailed, store.TurnCancelling, store.TurnCancelled},
}

// Proves core 19.13 (schema): whoever writes, no pair of statuses outside the
// tables of §4 and §5.1 is stored.
func TestMoves_EveryPairInTheSchema(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1")
	db := w.raw()
	try := func(table, from, to string) error {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		for _, s := range []string{`DROP TRIGGER turns_moves`, `DROP TRIGGER sessions_moves`, `DROP TRIGGER turns_forward`, `DROP TRIGGER sessions_forward`} {
			if _, err := tx.Exec(s); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tx.Exec(fmt.Sprintf(`UPDATE %s SET status = ?`, table), from); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(triggers(t, store.Migrations()[0], "turns_moves") + triggers(t, store.Migrations()[0], "sessions_moves")); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(fmt.Sprintf(`UPDATE %s SET status = ?, revision = revision + 1`, table), to)
		return err
	}
	for _, from := range store.TurnStatuses() {
		for _, to := range store.TurnStatuses() {
			want := from == to || slices.Contains(turnMoves[to], from)
			if err := try("turns", from, to); (err == nil) != want {
				t.Errorf("Turn %s to %s: %v, want allowed %t", from, to, err, want)
			}
		}
	}
	sessions := map[string][]string{
		store.SessionTransitioning: {store.SessionBound},
		store.SessionBound:         {store.SessionTransitioning, store.SessionDetached},
		store.SessionDetached:      {store.SessionTransitioning, store.SessionBound},
	}
	all := []string{store.SessionBound, store.SessionDetached, store.SessionTransitioning, store.SessionQuarantined}
	for _, from := range all {
		for _, to := range all {
			want := from == to || to == store.SessionQuarantined || slices.Contains(sessions[to], from)
			if err := try("sessions", from, to); (err == nil) != want {
				t.Errorf("Session %s to %s: %v, want allowed %t", from, to, err, want)
			}
		}
	}
}

// Proves core 19.13 (moves): each move from each status either is in the table or
// is refused and changes nothing.
func TestMoves_EveryMoveFromEveryStatus(t *testing.T) {
	moves := map[string]struct {
		to   string
		move func(f *flow) error
	}{
		"running": {store.TurnRunning, func(f *flow) error {
			_, err := f.TurnRunning(ctx, f.monitor(), store.Activity{At: f.Now()})
			return err
		}},
		"approval": {store.TurnWaitingForController, func(f *flow) error {
			_, _, err := f.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p"})
			return err
		}},
		"question": {store.TurnWaitingForController, func(f *flow) error {
			_, _, err := f.QuestionNotified(ctx, f.monitor(), question(f.d.MessageID))
			return err
		}},
		"success": {store.TurnIdle, func(f *flow) error {
			_, err := f.ClaimCompletion(ctx, f.monitor(), store.Completion{Fingerprint: "x", Outcome: store.OutcomeSuccess, DeliveryID: "d"})
			return err
		}},
		"failure": {store.TurnFailed, func(f *flow) error {
			_, err := f.ClaimCompletion(ctx, f.monitor(), store.Completion{Fingerprint: "x", Outcome: store.OutcomeFailure, DeliveryID: "d"})
			return err
		}},
		"stall": {store.TurnStalled, func(f *flow) error {
			_, err := f.StallTurn(ctx, f.monitor(), store.Stall{Reason: "r"})
			return err
		}},
		"renew": {store.TurnWaitingForAgent, func(f *flow) error {
			_, err := f.RenewTurn(ctx, store.TurnRenew{TurnID: f.sub.Turn.ID})
			return err
		}},
		"cancel": {store.TurnCancelled, func(f *flow) error {
			_, err := f.CancelTurn(ctx, f.term, store.TurnCancel{TurnID: f.sub.Turn.ID})
			return err
		}},
		"close": {store.TurnClosed, func(f *flow) error {
			_, err := f.CloseTurn(ctx, store.TurnClose{TurnID: f.sub.Turn.ID})
			return err
		}},
		"orphan": {store.TurnClosed, func(f *flow) error {
			_, err := f.CloseOrphan(ctx, store.TurnClose{TurnID: f.sub.Turn.ID}, f.d.MessageID)
			return err
		}},
	}
	// what a move may begin from, where that is less than the table of statuses
	from := map[string][]string{
		"renew":    {store.TurnStalled},
		"running":  {store.TurnCreated, store.TurnWaitingForAgent, store.TurnRunning},
		"approval": {store.TurnWaitingForAgent, store.TurnRunning, store.TurnWaitingForController},
		"question": {store.TurnWaitingForAgent, store.TurnRunning, store.TurnWaitingForController},
		"orphan":   append(slices.Clone(turnMoves[store.TurnClosed]), store.TurnClosed),
	}
	w, n := newWorld(t), 0
	db := w.raw()
	for name, m := range moves {
		for _, status := range store.TurnStatuses() {
			allowed := turnMoves[m.to]
			if own, ok := from[name]; ok {
				allowed = own
			}
			n++
			id := fmt.Sprint(n)
			f := w.prepare(id, id, "t"+id).accept("t" + id)
			f.monitor()
			must(t, db, `DROP TRIGGER turns_moves`)
			must(t, db, `UPDATE turns SET revision = revision + 1, status = '`+status+`' WHERE turn_id = '`+f.sub.Turn.ID+`'`)
			must(t, db, triggers(t, store.Migrations()[0], "turns_moves"))
			before := dump(t, db)
			err := m.move(f)
			if want := slices.Contains(allowed, status); (err == nil) != want {
				t.Errorf("%s from %s: %v, want allowed %t", name, status, err, want)
			}
			if err != nil {
				if !fault.Is(err, fault.TurnStatusInvalid) {
					t.Errorf("%s from %s: %v, want turn_status_invalid", name, status, err)
				} else if e, _ := fault.As(err); e.Details["status"] != status {
					t.Errorf("%s from %s: details %v", name, status, e.Details)
				}
				if dump(t, db) != before {
					t.Errorf("%s from %s changed the Store", name, status)
				}
				continue
			}
			want := m.to
			if got := f.turn().Status; got != want {
				t.Errorf("%s from %s gives %s, want %s", name, status, got, want)
			}
		}
	}
}

// triggers cuts one trigger out of a migration.
func triggers(t *testing.T, migration, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(migration, "CREATE TRIGGER "+name+" ")
	if !ok {
		t.Fatalf("no trigger %s", name)
	}
	body, _, _ := strings.Cut(rest, "END;")
	return "CREATE TRIGGER " + name + " " + body + "END;"
}

func question(n string) store.NewInteraction {
	return store.NewInteraction{InteractionID: "interaction-" + n, State: "published", PromptFingerprint: "q" + n, SurfaceID: "s", StepIndex: 1, StepTotal: 1,
		Projection: []byte(`{}`), Plan: []byte(`{}`), OwnerSession: "controller-1", ProcessKey: "p", ExpiresAt: 1}
}

// Proves tools 11.31: no renewal past the hard lifetime, of an uncertain submission,
// or without the process.
func TestRenew(t *testing.T) {
	stalled := func(t *testing.T) (*world, *flow) {
		w := newWorld(t)
		f := w.prepare("1", "a", "t1").accept("t1")
		w.clk.add(61 * time.Minute)
		f.mon = nil
		_, err := f.StallTurn(ctx, f.monitor(), store.Stall{Reason: "inactivity", Callback: callback("s", store.LaneNotification, "error")})
		return w, f.must(err)
	}
	t.Run("restarts inactivity only", func(t *testing.T) { // Proves core 19.27 (renew)
		w, f := stalled(t)
		hard := f.turn().HardDeadlineAt
		turn, err := w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1", Minutes: 5})
		if err != nil || turn.Status != store.TurnWaitingForAgent || turn.HardDeadlineAt != hard || turn.LastActivityAt != w.Now() ||
			turn.InactivityDeadlineAt != w.Now()+5*60_000 || turn.StalledAt != 0 || turn.StalledReason != "" || turn.StalledNotifiedAt != 0 {
			t.Errorf("got %+v %v", turn, err)
		}
		if cb, err := w.Callback(ctx, "delivery-s"); err != nil || cb.Status != store.CallbackSuperseded {
			t.Error(cb, err)
		}
		_, err = w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
		wantCode(t, err, fault.TurnStatusInvalid)
	})
	t.Run("hard lifetime is over", func(t *testing.T) {
		w, _ := stalled(t)
		w.clk.add(12 * time.Hour)
		_, err := w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
		wantCode(t, err, fault.TurnStatusInvalid)
		if e, _ := fault.As(err); e.Details["reason"] != "hard_lifetime_over" {
			t.Error(e.Details)
		}
	})
	t.Run("submission uncertain", func(t *testing.T) {
		w := newWorld(t)
		f := w.prepare("1", "a", "t1").text()
		_, err := w.SettleDispatch(ctx, f.term, store.Settlement{MessageID: "msg-1", Status: store.DispatchUncertain})
		f.must(err)
		_, err = w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
		wantCode(t, err, fault.SubmissionUncertain)
	})
	t.Run("not accepted", func(t *testing.T) {
		w := newWorld(t)
		f := w.prepare("1", "a", "t1").enter()
		_, err := w.SettleDispatch(ctx, f.term, store.Settlement{MessageID: "msg-1", Status: store.DispatchNotAccepted})
		f.must(err)
		_, err = w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
		wantCode(t, err, fault.SubmissionNotAccept)
	})
	t.Run("binding released", func(t *testing.T) {
		w, _ := stalled(t)
		must(t, w.raw(), `UPDATE bindings SET released_at = 1`)
		_, err := w.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
		wantCode(t, err, fault.BindingSuperseded)
	})
}

// Proves tools 11.33: close supersedes what was not accepted and keeps what was.
func TestClose_SupersedesUnacceptedCallbacks(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	_, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p", Callback: callback("q", store.LaneLifecycle, "question")})
	f.must(err)
	l := w.lease(store.OutboxdLease("profile", "controller-1"))
	c, _, err := w.ClaimCallback(ctx, l, family, 0)
	f.must(err)
	f.must(w.MarkStarted(ctx, l, c.DeliveryID, c.AttemptID))
	_, err = w.SettleCallback(ctx, store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: store.Accepted, AcceptanceID: "a"})
	f.must(err)
	_, err = w.ApprovalCleared(ctx, f.monitor())
	f.must(err)
	_, err = w.StallTurn(ctx, f.monitor(), store.Stall{Reason: "r", Callback: callback("s", store.LaneNotification, "error")})
	f.must(err)
	turn, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1", Reason: "why"})
	if err != nil || turn.CloseReason != "why" || turn.ClosedAt == 0 {
		t.Error(turn, err)
	}
	rows, err := w.TurnCallbacks(ctx, "turn-1")
	if err != nil || len(rows) != 2 || rows[0].Status != store.CallbackAccepted || rows[1].Status != store.CallbackSuperseded || rows[1].SupersededReason != "closed" {
		t.Error(rows, err)
	}
	_, err = w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"})
	wantCode(t, err, fault.TurnStatusInvalid)
}

// Proves tools 11.34: close with a stale message id changes nothing.
func TestCloseOrphan_OnlyTheExpectedMessage(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1").enter()
	before := dump(t, w.raw())
	_, err := w.CloseOrphan(ctx, store.TurnClose{TurnID: "turn-1", Reason: "r"}, "msg-0")
	wantCode(t, err, fault.DispatchUnresolved)
	if dump(t, w.raw()) != before {
		t.Error("the Store changed")
	}
	// a closed Turn whose dispatch was left behind
	must(t, w.raw(), `UPDATE turns SET status = 'closed', closed_at = 1, revision = revision + 1`)
	turn, err := w.CloseOrphan(ctx, store.TurnClose{TurnID: "turn-1", Reason: "r"}, "msg-1")
	if err != nil || turn.Status != store.TurnClosed {
		t.Fatal(turn, err)
	}
	if _, ok, _ := w.Fence(ctx, "key-a"); ok {
		t.Error("the fence stands")
	}
}

func TestCloseRetention(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1").accept("t1").finish("1")
	w.clk.add(time.Hour)
	w.prepare("2", "b", "t2").accept("t2").finish("2")
	step := func(turn string, minutes float64, want ...string) {
		t.Helper()
		closed, err := w.CloseRetention(ctx, turn, minutes)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range closed {
			got = append(got, c.ID)
			if c.CloseReason != "idle timeout" || c.Status != store.TurnClosed {
				t.Errorf("got %+v", c)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("closed %v, want %v", got, want)
		}
	}
	step("", 0)
	step("turn-2", 30)
	step("", 30, "turn-1")
	w.clk.add(7 * 24 * time.Hour)
	step("", 0, "turn-2")
	step("", 0)
	if cb, err := w.Callback(ctx, "delivery-1"); err != nil || cb.Status != store.CallbackPending {
		t.Error("retention superseded a callback", cb, err)
	}
}

func TestCancel_NeedsThePane(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	if _, err := w.Cancellable(ctx, f.term, "turn-1"); err != nil {
		t.Fatal(err)
	}
	_, err := w.CancelTurn(ctx, w.lease(store.TerminalLease("key-b")), store.TurnCancel{TurnID: "turn-1"})
	wantCode(t, err, fault.Internal)
	must(t, w.raw(), `UPDATE terminal_fences SET ref_id = 'other'`)
	_, err = w.CancelTurn(ctx, f.term, store.TurnCancel{TurnID: "turn-1"})
	wantCode(t, err, fault.ActiveOwner)
	_, err = w.Cancellable(ctx, f.term, "turn-1")
	wantCode(t, err, fault.ActiveOwner)
}

// Proves core 19.10 (rows): a wall clock that goes back an hour takes no row back.
func TestTime_NoRowGoesBack(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	before := f.turn()
	w.clk.step(-time.Hour)
	later := func(what string) {
		t.Helper()
		after := f.turn()
		if after.UpdatedAt < before.UpdatedAt || after.LastActivityAt < before.LastActivityAt {
			t.Errorf("%s took the row back: %+v", what, after)
		}
		before = after
	}
	_, err := w.TurnRunning(ctx, m, store.Activity{At: w.Now()})
	f.must(err)
	later("running")
	_, err = w.TouchActivity(ctx, m, store.Activity{At: w.Now() - 5, State: []byte(`{"s":1}`)})
	f.must(err)
	later("touch")
	_, err = w.ClaimCompletion(ctx, m, completion("1"))
	f.must(err)
	later("complete")
	l := w.lease(store.OutboxdLease("profile", "controller-1"))
	c, ok, err := w.ClaimCallback(ctx, l, family, 0)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.clk.step(-time.Hour)
	c, err = w.SettleCallback(ctx, store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: store.RetryableFailure, Code: "x"})
	if err != nil || c.UpdatedAt < c.CreatedAt {
		t.Fatal(c, err)
	}
	// delayed by its own delay from now, and by nothing else
	if c.NextAttemptAt != w.Now()+5_000 {
		t.Errorf("next attempt in %d ms", c.NextAttemptAt-w.Now())
	}
	w.clk.step(-time.Hour) // a due time an hour ahead can only come from such a step
	if _, ok, err := w.ClaimCallback(ctx, l, family, 0); err != nil || !ok {
		t.Error(ok, err)
	}
}
