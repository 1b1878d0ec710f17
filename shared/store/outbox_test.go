package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// outbox is the outboxd of a test.
type outbox struct {
	*world
	lease *store.Lease
	f     store.RouteFamily
}

func (w *world) outbox() *outbox {
	w.t.Helper()
	l, err := w.Acquire(ctx, store.OutboxdLease("profile", "controller-1"), 365*24*time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return &outbox{w, l, family}
}

// claim gives the next callback, or "".
func (o *outbox) claim() store.Callback {
	o.t.Helper()
	c, ok, err := o.ClaimCallback(ctx, o.lease, o.f, 0)
	if err != nil {
		o.t.Fatal(err)
	}
	if ok != (c.DeliveryID != "") {
		o.t.Fatalf("ok %t with %+v", ok, c)
	}
	return c
}

func (o *outbox) started() store.Callback {
	o.t.Helper()
	c := o.claim()
	if err := o.MarkStarted(ctx, o.lease, c.DeliveryID, c.AttemptID); err != nil {
		o.t.Fatal(err)
	}
	return c
}

func (o *outbox) settle(c store.Callback, disposition string) store.Callback {
	o.t.Helper()
	out := store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: disposition, Code: "code", Evidence: []byte(`{"e":1}`)}
	if disposition == store.Accepted {
		out.AcceptanceID, out.Code = "acceptance", ""
	}
	row, err := o.SettleCallback(ctx, out)
	if err != nil {
		o.t.Fatal(err)
	}
	return row
}

// done makes a completed Turn with its callback in the outbox.
func (w *world) done(n string) {
	w.t.Helper()
	w.prepare(n, "pane-"+n, "t"+n).accept("t" + n).finish(n)
}

// Proves core 19.39: retries after 5, 15, 60 and 60 s, and no sixth attempt.
func TestCallback_TurnBudget(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	for i, wait := range []time.Duration{5, 15, 60, 60} {
		c := o.settle(o.started(), store.RetryableFailure)
		if c.Status != store.CallbackRetryWait || c.NextAttemptAt != w.Now()+int64(wait)*1000 || c.Attempts != int64(i+1) || c.LastErrorCode != "code" {
			t.Fatalf("after attempt %d: %+v", i+1, c)
		}
		if due, ok, err := w.NextDue(ctx, family); err != nil || !ok || due != c.NextAttemptAt {
			t.Fatal(due, ok, err)
		}
		w.clk.add(wait*time.Second - time.Millisecond)
		if c := o.claim(); c.DeliveryID != "" {
			t.Fatalf("attempt %d began too early", i+2)
		}
		w.clk.add(time.Millisecond)
	}
	c := o.settle(o.started(), store.RetryableFailure)
	if c.Status != store.CallbackExhausted || c.Attempts != 5 {
		t.Fatalf("after attempt 5: %+v", c)
	}
	w.clk.add(365 * 24 * time.Hour / 2)
	if c := o.claim(); c.DeliveryID != "" {
		t.Error("a sixth attempt")
	}
	attempts, err := w.Attempts(ctx, "delivery-1")
	if err != nil || len(attempts) != 5 || attempts[4].Number != 5 || attempts[0].EndedAt == 0 || attempts[0].StartedAt == 0 || string(attempts[0].Evidence) != `{"e":1}` {
		t.Error(attempts, err)
	}
	if _, ok, _ := w.NextDue(ctx, family); ok {
		t.Error("something is due")
	}
}

func TestCallback_WatchDelays(t *testing.T) {
	w := newWorld(t)
	s := w.watch("1", "a")
	if _, err := w.SettleWatch(ctx, s.fence(), settlement("1", store.WatchCompleted, "e")); err != nil {
		t.Fatal(err)
	}
	o := w.outbox()
	for i, wait := range []int64{5, 10, 20, 40, 60, 60, 60} {
		c := o.settle(o.started(), store.RetryableFailure)
		if c.Status != store.CallbackRetryWait || c.NextAttemptAt-w.Now() != wait*1000 {
			t.Fatalf("after attempt %d: %s in %d ms", i+1, c.Status, c.NextAttemptAt-w.Now())
		}
		w.clk.add(time.Duration(wait) * time.Second)
	}
	w.clk.add(7*24*time.Hour - 10*time.Minute) // still inside
	if c := o.settle(o.started(), store.RetryableFailure); c.Status != store.CallbackRetryWait {
		t.Fatalf("got %+v", c)
	}
	w.clk.add(time.Hour)
	if c := o.settle(o.started(), store.RetryableFailure); c.Status != store.CallbackExhausted {
		t.Fatalf("got %+v", c)
	}
}

// Proves core 19.40: uncertain and permanent are never tried again, by nobody.
func TestCallback_FinalIsFinal(t *testing.T) {
	for disposition, c := range map[string]struct {
		status string
		retry  fault.Code
	}{
		store.Uncertain:        {store.CallbackUncertain, fault.CallbackUncertain},
		store.PermanentFailure: {store.CallbackPermanent, fault.CallbackPermanent},
		store.Accepted:         {store.CallbackAccepted, fault.CallbackUnavailable},
	} {
		t.Run(disposition, func(t *testing.T) {
			w := newWorld(t)
			w.done("1")
			o := w.outbox()
			first := o.started()
			if got := o.settle(first, disposition); got.Status != c.status || got.AttemptID != "" {
				t.Fatalf("got %+v", got)
			}
			before := dropLeases(dump(t, w.raw()))
			w.clk.add(24 * time.Hour)
			if got := o.claim(); got.DeliveryID != "" {
				t.Error("claimed again")
			}
			if n, err := w.ExpireClaims(ctx); n != 0 || err != nil {
				t.Error(n, err)
			}
			_, _, err := w.RetryCallbackNow(ctx, "turn-1")
			wantCode(t, err, c.retry)
			_, err = w.AbandonCallback(ctx, "delivery-1")
			wantCode(t, err, fault.CallbackUnavailable)
			if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"}); err != nil {
				t.Fatal(err)
			}
			for _, late := range []string{store.Accepted, store.Uncertain, store.RetryableFailure} { // of an attempt that ended
				if got := o.settle(first, late); got.Status != c.status {
					t.Errorf("a late %s gives %s", late, got.Status)
				}
			}
			if got, err := w.Callback(ctx, "delivery-1"); err != nil || got.Status != c.status {
				t.Error(got, err)
			}
			if diff := cmp.Diff(pick(before, "callback"), pick(dump(t, w.raw()), "callback")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// pick keeps the lines of tables with a prefix.
func pick(dump, prefix string) string {
	var out []string
	for _, line := range strings.Split(dump, "\n") {
		if strings.HasPrefix(line, prefix) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// Proves core 19.41 (the Store's side): a claim outlives the longest child from
// its start marker, and is not taken over before.
func TestCallback_ClaimOutlivesTheChild(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	c := o.claim()
	w.clk.add(119 * time.Second) // paused between claim and marker
	if err := w.MarkStarted(ctx, o.lease, c.DeliveryID, c.AttemptID); err != nil {
		t.Fatal(err)
	}
	w.clk.add(60 * time.Second) // timeoutMs 30,000 and 30 s more
	if n, err := w.ExpireClaims(ctx); n != 0 || err != nil {
		t.Fatal("the claim of a running child was taken away", n, err)
	}
	if got := o.settle(c, store.Accepted); got.Status != store.CallbackAccepted {
		t.Errorf("got %+v", got)
	}
	// no marker after the claim is over
	w.done("2")
	c = o.claim()
	w.clk.add(120 * time.Second)
	wantCode(t, w.MarkStarted(ctx, o.lease, c.DeliveryID, c.AttemptID), fault.CallbackUnavailable)
	// a longer child asks for a longer claim
	w.done("3")
	if n, err := w.ExpireClaims(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	long, ok, err := w.ClaimCallback(ctx, o.lease, family, 10*time.Minute)
	boot, _ := w.clk.bootTime()
	if err != nil || !ok || long.ClaimExpiresAt != boot+600_000 {
		t.Error(long, ok, err)
	}
}

// Proves core 19.42, core 19.43 (claims): an outboxd takes only rows of its own
// route family, leaves the others untouched, and claims one of an older revision,
// which it ends permanent without a start marker.
func TestCallback_RouteFamilies(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	before := pick(dump(t, w.raw()), "callbacks")
	for _, f := range []store.RouteFamily{
		{ProfileID: "profile", ControllerSessionID: "controller-2"}, {ProfileID: "other", ControllerSessionID: "controller-1"},
		{ProfileID: "other", RouteBound: true}, {},
	} {
		if c, ok, err := w.ClaimCallback(ctx, o.lease, f, 0); ok || err != nil {
			t.Errorf("%+v claims %+v, %v", f, c, err)
		}
		if rows, err := w.OpenCallbacks(ctx, f, 0); len(rows) != 0 || err != nil {
			t.Errorf("%+v lists %+v, %v", f, rows, err)
		}
	}
	if after := pick(dump(t, w.raw()), "callbacks"); after != before {
		t.Error("a foreign row changed")
	}
	if rows, err := w.OpenCallbacks(ctx, store.RouteFamily{ProfileID: "profile", RouteBound: true}, 0); len(rows) != 1 || err != nil {
		t.Error(rows, err)
	}
	bound, ok, err := w.ClaimCallback(ctx, o.lease, store.RouteFamily{ProfileID: "profile", RouteBound: true}, 0)
	if err != nil || !ok || bound.RouteControllerSessionID != "controller-1" {
		t.Fatal(bound, ok, err)
	}
	if got := o.settle(bound, store.PermanentFailure); got.Status != store.CallbackPermanent || got.TransportStartedAt != 0 {
		t.Errorf("got %+v", got)
	}
	if a, err := w.Attempts(ctx, bound.DeliveryID); err != nil || a[0].StartedAt != 0 || a[0].Disposition != store.PermanentFailure {
		t.Error(a, err)
	}
}

// Proves core 19.44: id, key, body, envelope and route are byte-equal in every
// attempt.
func TestCallback_ContentNeverChanges(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	want := *callback("1", store.LaneLifecycle, "done")
	for range 5 {
		c := o.started()
		if diff := cmp.Diff(want, c.NewCallback); diff != "" {
			t.Fatal(diff)
		}
		o.settle(c, store.RetryableFailure)
		w.clk.add(time.Minute)
	}
	for _, column := range []string{"delivery_id", "idempotency_key", "lane", "kind", "message_id", "event_type", "body", "envelope_json",
		"route_transport", "route_profile_id", "route_profile_revision", "route_controller_session_id"} {
		if _, err := w.raw().Exec(`UPDATE callbacks SET ` + column + ` = '{"x":1}'`); err == nil {
			t.Errorf("the schema lets %s be changed", column)
		}
	}
}

// Proves core 19.45: a late accepted of the original attempt settles a row that
// expired to uncertain; of another attempt it does not, and nothing else does.
func TestCallback_LateOutcome(t *testing.T) {
	expired := func(t *testing.T) (*world, *outbox, store.Callback, store.Callback) {
		w := newWorld(t)
		w.done("1")
		o := w.outbox()
		early := o.started()
		o.settle(early, store.RetryableFailure)
		w.clk.add(5 * time.Second)
		c := o.started()
		w.clk.add(3 * time.Minute)
		if n, err := w.ExpireClaims(ctx); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if got, err := w.Callback(ctx, c.DeliveryID); err != nil || got.Status != store.CallbackUncertain || got.LastErrorCode != store.CodeClaimExpired || got.TransportStartedAt == 0 {
			t.Fatal(got, err)
		}
		return w, o, early, c
	}
	t.Run("original", func(t *testing.T) {
		_, o, _, c := expired(t)
		got := o.settle(c, store.Accepted)
		if got.Status != store.CallbackAccepted || got.AcceptanceID != "acceptance" || got.LastErrorCode != "" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("another attempt", func(t *testing.T) {
		w, o, early, _ := expired(t)
		if got := o.settle(early, store.Accepted); got.Status != store.CallbackUncertain {
			t.Errorf("got %+v", got)
		}
		_, err := w.SettleCallback(ctx, store.Outcome{DeliveryID: early.DeliveryID, AttemptID: "unknown", Disposition: store.Accepted, AcceptanceID: "a"})
		wantCode(t, err, fault.CallbackUnavailable)
	})
	for _, disposition := range []string{store.RetryableFailure, store.PermanentFailure, store.Uncertain} {
		t.Run(disposition, func(t *testing.T) {
			w, o, _, c := expired(t)
			if got := o.settle(c, disposition); got.Status != store.CallbackUncertain {
				t.Errorf("got %+v", got)
			}
			if a, err := w.Attempts(ctx, c.DeliveryID); err != nil || a[1].Disposition != disposition || a[1].EndedAt == 0 {
				t.Error(a, err)
			}
			if got := o.settle(c, store.Accepted); got.Status != store.CallbackUncertain { // its outcome is known already
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("uncertain by outcome", func(t *testing.T) {
		w := newWorld(t)
		w.done("1")
		o := w.outbox()
		c := o.started()
		o.settle(c, store.Uncertain)
		if got := o.settle(c, store.Accepted); got.Status != store.CallbackUncertain {
			t.Errorf("got %+v", got)
		}
	})
}

// Proves core 19.46: closing during a running attempt leaves superseded with the
// marker as evidence, and no later attempt.
func TestCallback_CloseDuringAnAttempt(t *testing.T) {
	for _, disposition := range []string{store.Accepted, store.RetryableFailure, store.Uncertain} {
		t.Run(disposition, func(t *testing.T) {
			w := newWorld(t)
			w.done("1")
			o := w.outbox()
			c := o.started()
			if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"}); err != nil {
				t.Fatal(err)
			}
			if got := o.settle(c, disposition); got.Status != store.CallbackSuperseded || got.TransportStartedAt == 0 || got.SupersededReason != "closed" {
				t.Errorf("got %+v", got)
			}
			if a, err := w.Attempts(ctx, c.DeliveryID); err != nil || a[0].Disposition != disposition {
				t.Error(a, err)
			}
			w.clk.add(24 * time.Hour)
			if got := o.claim(); got.DeliveryID != "" {
				t.Error("tried again")
			}
			if n, err := w.ExpireClaims(ctx); n != 0 || err != nil {
				t.Error(n, err)
			}
			_, _, err := w.RetryCallbackNow(ctx, "turn-1")
			wantCode(t, err, fault.CallbackUnavailable)
		})
	}
	// between claim and marker: nothing is spawned
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	c := o.claim()
	if _, err := w.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.MarkStarted(ctx, o.lease, c.DeliveryID, c.AttemptID), fault.CallbackUnavailable)
}

// Proves core 19.48: the notifications of one Watch go out in order, and a Watch
// whose Host fails does not starve another.
func TestCallback_WatchOrder(t *testing.T) {
	w := newWorld(t)
	a := w.watch("1", "a")
	for _, e := range []string{"e1", "e2", "e3"} {
		var err error
		if a.w, _, err = w.NotifyWatchApproval(ctx, a.fence(), store.Observation{}, notification("1", "approval", e)); err != nil {
			t.Fatal(err)
		}
		w.clk.add(time.Second)
	}
	b := w.watch("2", "b")
	b.lease = a.lease
	if _, _, err := w.NotifyWatchApproval(ctx, b.fence(), store.Observation{}, notification("2", "approval", "e")); err != nil {
		t.Fatal(err)
	}
	o := w.outbox()
	c := o.started()
	if c.DeliveryID != "delivery-watch-1-approval-e1" {
		t.Fatal(c.DeliveryID)
	}
	other := o.started() // the first Watch is busy, the second is not behind it
	if other.DeliveryID != "delivery-watch-2-approval-e" {
		t.Fatal(other.DeliveryID)
	}
	o.settle(other, store.Accepted)
	if got := o.claim(); got.DeliveryID != "" {
		t.Fatal(got.DeliveryID)
	}
	o.settle(c, store.RetryableFailure)
	if got := o.claim(); got.DeliveryID != "" {
		t.Fatal("e2 before e1 ended", got.DeliveryID)
	}
	w.clk.add(time.Minute)
	for _, want := range []string{"e1", "e2", "e3"} {
		c := o.started()
		if c.DeliveryID != "delivery-watch-1-approval-"+want {
			t.Fatal(c.DeliveryID)
		}
		o.settle(c, store.Accepted)
	}
}

func TestCallback_OneAttemptForATurnAtATime(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	_, _, err := w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p", Callback: callback("q", store.LaneLifecycle, "question")})
	f.must(err)
	_, err = w.ApprovalCleared(ctx, f.monitor())
	f.must(err)
	_, _, err = w.ApprovalNotified(ctx, f.monitor(), store.NewApproval{Fingerprint: "p2", Callback: callback("q2", store.LaneLifecycle, "question")})
	f.must(err)
	must(t, w.raw(), `INSERT INTO callbacks SELECT 'x','y','turn_notification',kind,turn_id,watch_id,message_id,event_type,0,body,envelope_json,route_transport,
		route_profile_id,route_profile_revision,route_controller_session_id,'pending',0,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,created_at,updated_at
		FROM callbacks WHERE delivery_id='delivery-q2'`)
	o := w.outbox()
	c := o.claim()
	if c.DeliveryID == "" || o.claim().DeliveryID != "" {
		t.Error("two attempts for one Turn")
	}
	o.settle(c, store.Accepted)
	if o.claim().DeliveryID == "" {
		t.Error("the second row is stuck")
	}
}

// Proves core 19.49 (rows): an equal insert changes nothing, another content under
// the same id is an error.
func TestCallback_InsertIsIdempotent(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	notify := func(fp string, cb *store.NewCallback) error {
		_, _, err := w.ApprovalNotified(ctx, m, store.NewApproval{Fingerprint: fp, Callback: cb})
		return err
	}
	cb := callback("1", store.LaneLifecycle, "question")
	if err := notify("p1", cb); err != nil {
		t.Fatal(err)
	}
	before := pick(dump(t, w.raw()), "callbacks")
	if err := notify("p2", cb); err != nil {
		t.Fatal(err)
	}
	if after := pick(dump(t, w.raw()), "callbacks"); after != before {
		t.Errorf("an equal insert changed the row:\n%s", cmp.Diff(before, after))
	}
	all := dump(t, w.raw())
	for name, change := range map[string]func(*store.NewCallback){
		"body": func(c *store.NewCallback) { c.Body = "x" }, "envelope": func(c *store.NewCallback) { c.Envelope = []byte(`{}`) },
		"route": func(c *store.NewCallback) { c.RouteProfileRevision = "2" }, "event": func(c *store.NewCallback) { c.EventType = "x" },
		"idempotency key of another": func(c *store.NewCallback) { c.DeliveryID = "other" },
	} {
		other := *cb
		change(&other)
		if err := notify("p3", &other); !fault.Is(err, fault.CallbackConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if dump(t, w.raw()) != all {
		t.Error("a conflict changed the Store")
	}
}

// Proves core 19.10 (callbacks): a wall clock that is set back delays no callback by
// more than its own delay.
func TestCallback_ClockSetBack(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	o := w.outbox()
	o.settle(o.started(), store.RetryableFailure)
	w.clk.step(-time.Hour)
	c := o.started() // due an hour ahead: only a step can do that
	if c.DeliveryID == "" {
		t.Fatal("not due")
	}
	o.settle(c, store.RetryableFailure)
	w.clk.add(15 * time.Second)
	if o.claim().DeliveryID == "" {
		t.Error("not due after its delay")
	}
}

func TestCallback_RetryNow(t *testing.T) {
	w := newWorld(t)
	_, _, err := w.RetryCallbackNow(ctx, "turn-x")
	wantCode(t, err, fault.NotFound)
	f := w.prepare("1", "a", "t1").accept("t1")
	_, _, err = w.RetryCallbackNow(ctx, "turn-1")
	wantCode(t, err, fault.CallbackUnavailable)
	f.finish("1")
	if row, recovered, err := w.RetryCallbackNow(ctx, "turn-1"); err != nil || recovered || row.Status != store.CallbackPending {
		t.Fatal(row, recovered, err)
	}
	o := w.outbox()
	c := o.started()
	_, _, err = w.RetryCallbackNow(ctx, "turn-1")
	wantCode(t, err, fault.CallbackInFlight)
	o.settle(c, store.RetryableFailure)
	w.clk.add(time.Second)
	row, recovered, err := w.RetryCallbackNow(ctx, "turn-1")
	if err != nil || recovered || row.NextAttemptAt != w.Now() || row.DeliveryID != "delivery-1" || row.Attempts != 1 {
		t.Fatal(row, recovered, err)
	}
	again := o.started()
	if again.DeliveryID != "delivery-1" || again.Attempts != 2 {
		t.Fatal(again)
	}
	o.settle(again, store.RetryableFailure)
	must(t, w.raw(), `DROP TRIGGER callback_attempts_fixed`)
	must(t, w.raw(), `UPDATE callback_attempts SET disposition = 'accepted', acceptance_id = 'found' WHERE number = 1`)
	row, recovered, err = w.RetryCallbackNow(ctx, "turn-1")
	if err != nil || !recovered || row.Status != store.CallbackAccepted || row.AcceptanceID != "found" {
		t.Error(row, recovered, err)
	}
}

func TestCallback_Abandon(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	row, err := w.AbandonCallback(ctx, "delivery-1")
	if err != nil || row.Status != store.CallbackSuperseded || row.SupersededReason != store.CodeOperatorAbandoned {
		t.Error(row, err)
	}
	_, err = w.AbandonCallback(ctx, "delivery-1")
	wantCode(t, err, fault.CallbackUnavailable)
	_, err = w.AbandonCallback(ctx, "x")
	wantCode(t, err, fault.NotFound)
}

func TestCallback_Counts(t *testing.T) {
	w := newWorld(t)
	w.done("1")
	w.done("2")
	w.outbox().claim()
	got, err := w.CallbackCounts(ctx)
	want := []store.CallbackCount{
		{ProfileID: "profile", Status: "claimed", Lane: store.LaneLifecycle, Count: 1}, {ProfileID: "profile", Status: "pending", Lane: store.LaneLifecycle, Count: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
