package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func newWatch(n, pane string) store.NewWatch {
	return store.NewWatch{
		WatchID: "terminal-watch-" + n, Agent: "codex", Mode: store.ModeExactTask, TerminalID: "terminal-" + pane, TerminalKey: "key-" + pane,
		Endpoint: []byte(`{}`), Workspace: "/w", BindingToken: "token", IdentityFingerprint: "identity-" + n,
		Anchor: []byte(`{}`), AnchorFingerprint: "anchor-" + n, Checkpoint: []byte(`{"o":10}`), CheckpointOffset: 10,
		ControllerSessionID: "controller-1", Route: []byte(`{}`), Lifetime: time.Hour.Milliseconds(),
	}
}

// notification is one of Watch n with evidence e.
func notification(n, kind, e string) store.NewNotification {
	cb := *callback("watch-"+n+"-"+kind+"-"+e, store.LaneWatch, kind)
	return store.NewNotification{NotificationID: "notification-" + n + "-" + kind + "-" + e, Kind: kind,
		EvidenceFingerprint: fmt.Sprintf("%064s", e), ReasonCode: "reason-" + kind, Callback: cb}
}

// sweep is the watchd of a test.
type sweep struct {
	*world
	lease *store.Lease
	w     store.Watch
}

func (w *world) watch(n, pane string) *sweep {
	w.t.Helper()
	term := w.lease(store.TerminalLease("key-" + pane))
	made, err := w.CreateWatch(ctx, term, newWatch(n, pane))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.Release(ctx, term); err != nil {
		w.t.Fatal(err)
	}
	s := &sweep{world: w, w: made}
	if s.lease, err = w.Acquire(ctx, store.WatchdLease(), 30*24*time.Hour); err != nil && !fault.Is(err, fault.LeaseHeld) {
		w.t.Fatal(err)
	}
	return s
}

func (s *sweep) fence() store.WatchFence {
	return store.WatchFence{WatchID: s.w.ID, Revision: s.w.Revision, IdentityFingerprint: s.w.IdentityFingerprint,
		AnchorFingerprint: s.w.AnchorFingerprint, ObservedAt: s.Now(), Lease: s.lease}
}

func settlement(n, status, e string) store.WatchSettlement {
	return store.WatchSettlement{Status: status, Notification: notification(n, status, e)}
}

func TestWatch_Create(t *testing.T) {
	w := newWorld(t)
	term := w.lease(store.TerminalLease("key-a"))
	nw := newWatch("1", "a")
	approval := notification("1", "approval", "e")
	nw.Approval = &approval
	made, err := w.CreateWatch(ctx, term, nw)
	if err != nil || made.Status != store.WatchActive || made.DeadlineAt != w.Now()+time.Hour.Milliseconds() || string(made.Warnings) != "[]" || made.Revision != 1 {
		t.Fatal(made, err)
	}
	if rows, err := w.WatchCallbacks(ctx, made.ID); err != nil || len(rows) != 1 || rows[0].Lane != store.LaneWatch || rows[0].WatchID != made.ID {
		t.Error(rows, err)
	}
	for name, change := range map[string]func(*store.NewWatch){
		"same task, another pane": func(n *store.NewWatch) { n.TerminalID, n.WatchID = "terminal-x", "terminal-watch-2" },
		"same pane, another task": func(n *store.NewWatch) { n.IdentityFingerprint, n.WatchID = "identity-x", "terminal-watch-2" },
	} {
		other := newWatch("1", "a")
		change(&other)
		_, err := w.CreateWatch(ctx, term, other)
		wantCode(t, err, fault.ActiveWatchExists)
		if e, _ := fault.As(err); e.Details["watch_id"] != made.ID {
			t.Errorf("%s: details %v", name, e.Details)
		}
	}
	_, err = w.SettleWatch(ctx, store.WatchFence{WatchID: made.ID, IdentityFingerprint: made.IdentityFingerprint, AnchorFingerprint: made.AnchorFingerprint, ObservedAt: w.Now()},
		settlement("1", store.WatchCancelled, "c"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.CreateWatch(ctx, term, newWatch("2", "a")); err != nil { // after unwatch a new one may start
		t.Error(err)
	}
}

func TestWatch_RefusedWhereWorkBelongsToATurn(t *testing.T) {
	for name, c := range map[string]struct {
		given func(w *world) *store.Lease
		want  fault.Code
	}{
		"prepared": {func(w *world) *store.Lease { return w.prepare("1", "a", "t").term }, fault.DispatchUnresolved},
		"accepted": {func(w *world) *store.Lease { return w.prepare("1", "a", "t").accept("t").term }, fault.ActiveOwner},
		"transition": {func(w *world) *store.Lease {
			must(w.t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-a','transition','x',1,1,1)`)
			return w.lease(store.TerminalLease("key-a"))
		}, fault.LifecycleUnresolved},
		"unreadable owner": {func(w *world) *store.Lease {
			must(w.t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-a','dispatch','x',1,1,1)`)
			return w.lease(store.TerminalLease("key-a"))
		}, fault.OwnerUnavailable},
		"another pane's lease": {func(w *world) *store.Lease { return w.lease(store.TerminalLease("key-b")) }, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.CreateWatch(ctx, c.given(w), newWatch("1", "a"))
			wantCode(t, err, c.want)
			if e, _ := fault.As(err); (c.want == fault.ActiveOwner || c.want == fault.DispatchUnresolved) && e.Details["turn_id"] != "turn-1" {
				t.Errorf("details %v", e.Details)
			}
		})
	}
}

func TestWatch_ObservationThatDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *store.WatchFence, o *store.Observation, s *sweep)
		want   fault.Code
	}{
		"revision":          {func(f *store.WatchFence, o *store.Observation, s *sweep) { f.Revision++ }, fault.WatchConflict},
		"identity":          {func(f *store.WatchFence, o *store.Observation, s *sweep) { f.IdentityFingerprint = "x" }, fault.WatchConflict},
		"anchor":            {func(f *store.WatchFence, o *store.Observation, s *sweep) { f.AnchorFingerprint = "x" }, fault.WatchConflict},
		"from the future":   {func(f *store.WatchFence, o *store.Observation, s *sweep) { f.ObservedAt += 1 }, fault.WatchConflict},
		"checkpoint back":   {func(f *store.WatchFence, o *store.Observation, s *sweep) { o.Offset = 9 }, fault.WatchConflict},
		"unknown":           {func(f *store.WatchFence, o *store.Observation, s *sweep) { f.WatchID = "x" }, fault.NotFound},
		"lease lost":        {func(f *store.WatchFence, o *store.Observation, s *sweep) { _ = s.Release(ctx, f.Lease) }, fault.LeaseLost},
		"past the deadline": {func(f *store.WatchFence, o *store.Observation, s *sweep) { s.clk.add(time.Hour) }, fault.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.watch("1", "a")
			f, o := s.fence(), store.Observation{Checkpoint: []byte(`{}`), Offset: 11}
			c.change(&f, &o, s)
			before := dropLeases(dump(t, w.raw()))
			_, err := w.ObserveWatch(ctx, f, o)
			wantCode(t, err, c.want)
			_, _, err = w.NotifyWatchApproval(ctx, f, o, notification("1", "approval", "e"))
			wantCode(t, err, c.want)
			done := settlement("1", store.WatchCompleted, "e")
			done.Observation = o
			_, err = w.SettleWatch(ctx, f, done)
			wantCode(t, err, c.want)
			if dropLeases(dump(t, w.raw())) != before {
				t.Error("the Store changed")
			}
		})
	}
}

// Proves core 19.33: a deadline that is reached between observing and committing
// ends the Watch as timed_out, whatever was observed.
func TestWatch_DeadlineBetweenObserveAndCommit(t *testing.T) {
	w := newWorld(t)
	s := w.watch("1", "a")
	f := s.fence()
	w.clk.add(time.Hour)
	for _, status := range []string{store.WatchCompleted, store.WatchFailed, store.WatchInvalidated} {
		_, err := w.SettleWatch(ctx, f, settlement("1", status, "e"))
		wantCode(t, err, fault.Expired)
	}
	done, err := w.SettleWatch(ctx, f, settlement("1", store.WatchTimedOut, "e"))
	if err != nil || done.Status != store.WatchTimedOut {
		t.Error(done, err)
	}
	early := w.watch("2", "b")
	early.lease = s.lease
	_, err = w.SettleWatch(ctx, early.fence(), settlement("2", store.WatchTimedOut, "e"))
	wantCode(t, err, fault.WatchConflict)
	_, err = w.SettleWatch(ctx, store.WatchFence{WatchID: early.w.ID}, settlement("2", store.WatchCompleted, "e")) // no lease
	wantCode(t, err, fault.Internal)
}

// Proves core 19.34: the same approval seen 1,000 times gives one notification,
// two fingerprints two.
func TestWatch_ApprovalIsNotifiedOnce(t *testing.T) {
	w := newWorld(t)
	s := w.watch("1", "a")
	for i := range 1000 {
		var inserted bool
		var err error
		s.w, inserted, err = w.NotifyWatchApproval(ctx, s.fence(), store.Observation{}, notification("1", "approval", "e1"))
		if err != nil || inserted != (i == 0) {
			t.Fatal(i, inserted, err)
		}
	}
	_, inserted, err := w.NotifyWatchApproval(ctx, s.fence(), store.Observation{}, notification("1", "approval", "e2"))
	if err != nil || !inserted {
		t.Fatal(inserted, err)
	}
	all, err := w.WatchNotifications(ctx, s.w.ID)
	if err != nil || len(all) != 2 || all[1].Ord != 2 {
		t.Error(all, err)
	}
	if rows, err := w.WatchCallbacks(ctx, s.w.ID); err != nil || len(rows) != 2 {
		t.Error(rows, err)
	}
}

// Settling supersedes approvals that wait; one that is being delivered may still
// end accepted, and becomes superseded instead of waiting for a retry.
func TestWatch_SettlingSupersedesWaitingApprovals(t *testing.T) {
	for name, end := range map[string]struct{ disposition, want string }{
		"accepted": {store.Accepted, store.CallbackAccepted}, "failed": {store.RetryableFailure, store.CallbackSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.watch("1", "a")
			for _, e := range []string{"e1", "e2"} {
				var err error
				if s.w, _, err = w.NotifyWatchApproval(ctx, s.fence(), store.Observation{}, notification("1", "approval", e)); err != nil {
					t.Fatal(err)
				}
			}
			l := w.lease(store.OutboxdLease("profile", "controller-1"))
			c, ok, err := w.ClaimCallback(ctx, l, family, 0)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if err := w.MarkStarted(ctx, l, c.DeliveryID, c.AttemptID); err != nil {
				t.Fatal(err)
			}
			done := settlement("1", store.WatchCompleted, "d")
			done.CompletionText, done.CompletionID, done.CompletionAt = strings.Repeat("ü", 4000), "c", 5
			settled, err := w.SettleWatch(ctx, s.fence(), done)
			if err != nil || settled.CompletionText == "" || settled.SettledReason != "reason-completed" {
				t.Fatal(err)
			}
			o := store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: end.disposition}
			if end.disposition == store.Accepted {
				o.AcceptanceID = "a"
			}
			if _, err := w.SettleCallback(ctx, o); err != nil {
				t.Fatal(err)
			}
			rows, err := w.WatchCallbacks(ctx, s.w.ID)
			if err != nil || len(rows) != 3 || rows[0].Status != end.want || rows[1].Status != store.CallbackSuperseded || rows[2].Status != store.CallbackPending {
				t.Error(rows, err)
			}
			// a settled Watch is final
			_, err = w.SettleWatch(ctx, store.WatchFence{WatchID: s.w.ID, IdentityFingerprint: s.w.IdentityFingerprint, AnchorFingerprint: s.w.AnchorFingerprint,
				ObservedAt: w.Now()}, settlement("1", store.WatchCancelled, "x"))
			wantCode(t, err, fault.WatchConflict)
			if e, _ := fault.As(err); e.Details["status"] != store.WatchCompleted {
				t.Errorf("details %v", e.Details)
			}
		})
	}
}

// Proves core 19.31: random observations never change a settled Watch, never move
// checkpoint or times back, append at most one notification per step, and end with
// exactly one outcome.
func TestWatch_Model(t *testing.T) {
	w := newWorld(t)
	sweeper, err := w.Acquire(ctx, store.WatchdLease(), 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		n := fmt.Sprint(round)
		s := w.watch(n, n)
		s.lease = sweeper
		before, count := s.w, 0
		evidence := rapid.SampledFrom([]string{"e1", "e2", "e3"})
		fence := func(rt *rapid.T) store.WatchFence {
			f := s.fence()
			f.Revision = before.Revision
			switch rapid.IntRange(0, 9).Draw(rt, "wrong") {
			case 0:
				f.Revision--
			case 1:
				f.AnchorFingerprint = "x"
			case 2:
				f.ObservedAt += 1000
			}
			return f
		}
		observation := func(rt *rapid.T) store.Observation {
			o := store.Observation{Offset: int64(rapid.IntRange(0, 50).Draw(rt, "offset")), ActivityAt: w.Now() + int64(rapid.IntRange(-9000, 9000).Draw(rt, "activity"))}
			if rapid.Bool().Draw(rt, "checkpoint") {
				o.Checkpoint = fmt.Appendf(nil, `{"o":%d}`, o.Offset)
			}
			return o
		}
		step := func(rt *rapid.T, err error) {
			after, readErr := w.Watch(ctx, s.w.ID)
			if readErr != nil {
				rt.Fatal(readErr)
			}
			all, readErr := w.WatchNotifications(ctx, s.w.ID)
			if readErr != nil {
				rt.Fatal(readErr)
			}
			outcomes := 0
			for _, x := range all {
				if x.Kind != "approval" {
					outcomes++
				}
			}
			switch {
			case before.Status != store.WatchActive && (fmt.Sprint(after) != fmt.Sprint(before) || len(all) != count || err == nil):
				rt.Fatalf("a settled Watch changed: %+v", after)
			case err != nil && (fmt.Sprint(after) != fmt.Sprint(before) || len(all) != count):
				rt.Fatalf("a refused step changed the Watch: %v", err)
			case after.CheckpointOffset < before.CheckpointOffset, after.UpdatedAt < before.UpdatedAt, after.LastActivityAt < before.LastActivityAt,
				after.CreatedAt != before.CreatedAt, after.DeadlineAt != before.DeadlineAt, after.SettledObservedAt < 0:
				rt.Fatalf("went back: %+v after %+v", after, before)
			case len(all) > count+1:
				rt.Fatalf("%d notifications in one step", len(all)-count)
			case (after.Status == store.WatchActive) != (outcomes == 0) || outcomes > 1:
				rt.Fatalf("status %s with %d outcomes", after.Status, outcomes)
			}
			before, count = after, len(all)
		}
		settle := func(status string) func(*rapid.T) {
			return func(rt *rapid.T) {
				o := settlement(n, status, evidence.Draw(rt, "evidence"))
				o.Observation = observation(rt)
				_, err := w.SettleWatch(ctx, fence(rt), o)
				step(rt, err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"observe": func(rt *rapid.T) {
				_, err := w.ObserveWatch(ctx, fence(rt), observation(rt))
				step(rt, err)
			},
			"approval": func(rt *rapid.T) {
				_, _, err := w.NotifyWatchApproval(ctx, fence(rt), observation(rt), notification(n, "approval", evidence.Draw(rt, "evidence")))
				step(rt, err)
			},
			"completed":   settle(store.WatchCompleted),
			"failed":      settle(store.WatchFailed),
			"invalidated": settle(store.WatchInvalidated),
			"timed_out":   settle(store.WatchTimedOut),
			"cancelled":   settle(store.WatchCancelled),
			"time":        func(rt *rapid.T) { w.clk.add(time.Duration(rapid.IntRange(0, 30).Draw(rt, "min")) * time.Minute) },
			"clock back":  func(rt *rapid.T) { w.clk.step(-time.Duration(rapid.IntRange(0, 30).Draw(rt, "min")) * time.Minute) },
		})
		if before.Status == store.WatchActive { // the next round's pane is another
			_, err := w.SettleWatch(ctx, store.WatchFence{WatchID: s.w.ID, IdentityFingerprint: s.w.IdentityFingerprint, AnchorFingerprint: s.w.AnchorFingerprint},
				settlement(n, store.WatchCancelled, "end"))
			step(rt, err)
		}
	})
}

func TestWatch_Reads(t *testing.T) {
	w := newWorld(t)
	w.watch("1", "a")
	s := w.watch("2", "b")
	if _, err := w.SettleWatch(ctx, store.WatchFence{WatchID: s.w.ID, IdentityFingerprint: s.w.IdentityFingerprint, AnchorFingerprint: s.w.AnchorFingerprint},
		settlement("2", store.WatchCancelled, "c")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    store.WatchFilter
		want int
	}{
		"all": {store.WatchFilter{}, 2}, "active": {store.WatchFilter{ActiveOnly: true}, 1},
		"pane": {store.WatchFilter{TerminalKey: "key-b"}, 1}, "active of pane": {store.WatchFilter{TerminalKey: "key-b", ActiveOnly: true}, 0},
		"limit": {store.WatchFilter{Limit: 1}, 1},
	} {
		if all, err := w.Watches(ctx, c.f); err != nil || len(all) != c.want {
			t.Errorf("%s: %d, %v, want %d", name, len(all), err, c.want)
		}
	}
	for _, statement := range []string{
		`UPDATE watches SET status = 'active', settled_fingerprint = NULL, revision = revision + 1 WHERE status <> 'active'`,
		`UPDATE watches SET completion_text = 'x', revision = revision + 1 WHERE status = 'active'`,
		`UPDATE watches SET route_json = '{"x":1}'`, `UPDATE watches SET deadline_at = deadline_at + 1`,
		`UPDATE watch_notifications SET kind = 'failed'`, `DELETE FROM watch_notifications`,
		`INSERT INTO watch_notifications VALUES ('x','terminal-watch-2',9,'approval','` + strings.Repeat("a", 64) + `',NULL,1)`,
	} {
		if _, err := w.raw().Exec(statement); err == nil {
			t.Errorf("the schema allows %s", statement)
		}
	}
}
