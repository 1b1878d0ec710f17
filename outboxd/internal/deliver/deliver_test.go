package deliver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/outboxd/internal/deliver"
	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/outboxd/internal/seed"
	"drawbridge/shared/callback"
	"drawbridge/shared/store"
)

const (
	session = "trusted-session-id"
	poll    = 10 * time.Millisecond
	limit   = 20 * time.Second // for a condition that must come true
)

func TestMain(m *testing.M) {
	fakehost.Main()
	goleak.VerifyTestMain(m)
}

func TestCourier_Delivers(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "the result")
	w.start(h, session)
	got := w.becomes(row.DeliveryID, store.CallbackAccepted)
	if got.AcceptanceID != "acceptance-1" || got.Attempts != 1 || got.TransportStartedAt == 0 {
		t.Errorf("got %+v", got)
	}
	calls := h.Calls()
	if len(calls) != 1 || calls[0].Session != session || calls[0].Delivery != row.DeliveryID || calls[0].Message != row.MessageID ||
		calls[0].Key != row.IdempotencyKey || calls[0].BodyLength != len("the result") {
		t.Errorf("got calls %+v", calls)
	}
	attempts, err := w.Attempts(context.Background(), row.DeliveryID)
	if err != nil || len(attempts) != 1 {
		t.Fatal(attempts, err)
	}
	a := attempts[0]
	if a.StartedAt == 0 || a.EndedAt == 0 || a.Disposition != store.Accepted || string(a.Evidence) != `{"transport":"command_json_v1","status":0,"signal":""}` {
		t.Errorf("got attempt %+v with evidence %s", a, a.Evidence)
	}
}

// A row that is inserted while the courier waits is delivered by the doorbell.
func TestCourier_WakesByBell(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	w.start(h, session)
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "b")
	w.becomes(row.DeliveryID, store.CallbackAccepted)
}

// Proves core 19.39 and core 19.44: the waits are 5, 15, 60, 60 s, the sixth attempt
// never happens, and each attempt is the same delivery.
func TestCourier_RetryBudget(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "retry"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	c := w.start(h, session)
	w.becomes(row.DeliveryID, store.CallbackRetryWait)
	for i, wait := range []time.Duration{5 * time.Second, 15 * time.Second, 60 * time.Second, 60 * time.Second} {
		w.forward(c, wait-time.Millisecond)
		if n := len(h.Calls()); n != i+1 {
			t.Fatalf("%v after attempt %d: %d calls", wait-time.Millisecond, i+1, n)
		}
		w.forward(c, time.Millisecond)
		eventually(t, fmt.Sprintf("attempt %d", i+2), func() bool { return len(h.Calls()) == i+2 })
		want := store.CallbackRetryWait
		if i == 3 {
			want = store.CallbackExhausted
		}
		eventually(t, "the attempt is settled", func() bool {
			r := seed.Read(t, w.Store, row.DeliveryID)
			return r.Attempts == int64(i+2) && r.Status == want
		})
	}
	w.forward(c, 24*time.Hour)
	calls := h.Calls()
	if len(calls) != 5 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, call := range calls[1:] {
		first := calls[0]
		first.PID, call.PID = 0, 0
		if d := cmp.Diff(first, call); d != "" {
			t.Errorf("an attempt differs (-first +other):\n%s", d)
		}
	}
	got := seed.Read(t, w.Store, row.DeliveryID)
	got.Status, got.Attempts, got.LastErrorCode = row.Status, row.Attempts, row.LastErrorCode
	if d := cmp.Diff(row.NewCallback, got.NewCallback); d != "" {
		t.Errorf("the row changed (-before +after):\n%s", d)
	}
}

// forward moves the clocks and lets passes happen. Up to an hour it goes in steps
// that a lease survives; a longer jump ends the lease, which is taken again.
func (w *world) forward(c *courier, d time.Duration) {
	w.t.Helper()
	const step = 4 * time.Second
	if d > time.Hour {
		w.clock.Advance(d)
		c.pass()
		return
	}
	for d > 0 {
		s := min(d, step)
		w.clock.Advance(s)
		d -= s
		c.pass()
	}
}

// Proves core 19.40: nobody repeats what is uncertain or permanent.
func TestCourier_FinalIsFinal(t *testing.T) {
	for word, status := range map[string]string{"unknown": store.CallbackUncertain, "rejected": store.CallbackPermanent} {
		t.Run(word, func(t *testing.T) {
			w, h := newWorld(t), fakehost.New(t)
			h.Script(fakehost.Script{Word: word})
			row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
			c := w.start(h, session)
			w.becomes(row.DeliveryID, status)
			h.Script(fakehost.Script{Word: "accepted"})
			if _, _, err := w.RetryCallbackNow(context.Background(), row.TurnID); err == nil {
				t.Error("retry_callback took it")
			}
			w.forward(c, 24*time.Hour)
			if n := len(h.Calls()); n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// Proves core 19.42: one of two delivers for one family; two families each
// deliver their own rows only.
func TestCourier_Families(t *testing.T) {
	t.Run("one family", func(t *testing.T) {
		w, h := newWorld(t), fakehost.New(t)
		a := w.start(h, session)
		b := w.start(h, session) // ready, standing by
		row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
		w.becomes(row.DeliveryID, store.CallbackAccepted)
		if b.passes.Load() != 0 {
			t.Error("the one that stands by made a pass")
		}
		if n := len(h.Calls()); n != 1 {
			t.Errorf("%d calls", n)
		}
		a.end() // the lease is released: the other takes over
		row = seed.Turn(t, w.Store, h.Capture(session).Route, "2", "body")
		w.becomes(row.DeliveryID, store.CallbackAccepted)
	})
	t.Run("two families", func(t *testing.T) {
		w, ha := newWorld(t), fakehost.New(t)
		hb := fakehost.New(t, `"my-agent-command"`, `"other-command"`)
		rows := map[*fakehost.Host][]store.Callback{}
		foreign := seed.Turn(t, w.Store, ha.Capture("third-session").Route, "x", "body")
		for i := range 5 {
			rows[ha] = append(rows[ha], seed.Turn(t, w.Store, ha.Capture(session).Route, fmt.Sprint("a", i), "body"))
			rows[hb] = append(rows[hb], seed.Turn(t, w.Store, hb.Capture(session).Route, fmt.Sprint("b", i), "body"))
		}
		ca, cb := w.start(ha, session), w.start(hb, session)
		for h, list := range rows {
			for _, row := range list {
				w.becomes(row.DeliveryID, store.CallbackAccepted)
				if n := h.CallsFor(row.DeliveryID); n != 1 {
					t.Errorf("%d calls for %s", n, row.TurnID)
				}
			}
			if n := len(h.Calls()); n != len(list) {
				t.Errorf("%d calls, want %d", n, len(list))
			}
		}
		ca.pass()
		cb.pass()
		// Proves host-profile 15.31 (the first half): never claimed, untouched.
		if d := cmp.Diff(foreign, seed.Read(t, w.Store, foreign.DeliveryID)); d != "" {
			t.Errorf("the row of another session was touched:\n%s", d)
		}
	})
}

// Proves core 19.43.
func TestCourier_OlderRevision(t *testing.T) {
	w := newWorld(t)
	h := fakehost.New(t)
	old := h.Capture(session).Route
	row := seed.Turn(t, w.Store, old, "1", "body")
	h.Write(h.Document(`"2026.08.25-1"`, `"2026.09.01-1"`))
	w.start(h, session)
	got := w.becomes(row.DeliveryID, store.CallbackPermanent)
	if got.LastErrorCode != callback.CodeRevisionMismatch || got.TransportStartedAt != 0 {
		t.Errorf("got %s, started at %d", got.LastErrorCode, got.TransportStartedAt)
	}
	if n := len(h.Calls()); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// Proves host-profile 15.30.
func TestCourier_Drift(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	good := h.Document()
	w.start(h, session)
	n := 0
	next := func() store.Callback {
		n++
		return seed.Turn(t, w.Store, route, fmt.Sprint(n), "body")
	}
	w.becomes(next().DeliveryID, store.CallbackAccepted)
	for name, change := range map[string]func(){
		"changed":  func() { h.Write(h.Document("8000", "8001")) },
		"deleted":  func() { os.Remove(h.Path) },
		"replaced": func() { h.Write([]byte("{}")) },
		"linked": func() {
			other := filepath.Join(h.Dir, "other.json")
			if err := os.WriteFile(other, good, 0o600); err != nil {
				t.Fatal(err)
			}
			os.Remove(h.Path)
			if err := os.Symlink(other, h.Path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		calls := len(h.Calls())
		change()
		row := w.becomes(next().DeliveryID, store.CallbackPermanent)
		if row.LastErrorCode != callback.CodeRuntimeInvalid || row.TransportStartedAt != 0 || len(h.Calls()) != calls {
			t.Errorf("%s: got %s, started at %d, %d calls", name, row.LastErrorCode, row.TransportStartedAt, len(h.Calls())-calls)
		}
		h.Write(good)
		w.becomes(next().DeliveryID, store.CallbackAccepted)
	}
}

// Four at a time, and never two of one Turn or Watch.
func TestCourier_Parallel(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	watch := seed.NewWatch(t, w.Store, route, "w")
	rows := []store.Callback{watch.Approval(1), watch.Approval(2), watch.Complete()}
	for i := range 6 {
		rows = append(rows, seed.Turn(t, w.Store, route, fmt.Sprint(i), "body"))
	}
	c := w.start(h, session)
	eventually(t, "four calls", func() bool { return len(h.Calls()) == 4 })
	c.pass()
	if n := len(h.Calls()); n != 4 {
		t.Errorf("%d calls at one time", n)
	}
	h.Open("go")
	var settled []string
	for _, row := range rows[3:] {
		w.becomes(row.DeliveryID, store.CallbackAccepted)
	}
	w.becomes(rows[2].DeliveryID, store.CallbackAccepted)
	for _, call := range h.Calls() {
		if strings.HasPrefix(call.Delivery, "terminal-watch-notification-") {
			settled = append(settled, call.Delivery)
		}
	}
	// The settlement superseded both approvals before the first claim.
	if d := cmp.Diff([]string{rows[2].DeliveryID}, settled); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Proves core 19.48: in order within one Watch, and one that fails starves none.
func TestCourier_WatchOrder(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	bad := seed.NewWatch(t, w.Store, route, "bad")
	failing := bad.Approval(1)
	behind := bad.Approval(2)
	h.Script(fakehost.Script{Word: "retry"}, failing.DeliveryID)
	good := seed.NewWatch(t, w.Store, route, "good")
	var want []string
	for i := range 5 {
		want = append(want, good.Approval(i).DeliveryID)
	}
	c := w.start(h, session)
	for _, id := range want {
		w.becomes(id, store.CallbackAccepted)
	}
	w.becomes(failing.DeliveryID, store.CallbackRetryWait)
	var got []string
	for _, call := range h.Calls() {
		if call.Delivery != failing.DeliveryID {
			got = append(got, call.Delivery)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	// 5, 10, 20, 40, 60, 60 … seconds, and no limit of attempts.
	for i, wait := range []time.Duration{5, 10, 20, 40, 60, 60} {
		w.forward(c, wait*time.Second)
		eventually(t, fmt.Sprintf("attempt %d", i+2), func() bool { return seed.Read(t, w.Store, failing.DeliveryID).Attempts == int64(i+2) })
		w.becomes(failing.DeliveryID, store.CallbackRetryWait)
	}
	if n := h.CallsFor(behind.DeliveryID); n != 0 {
		t.Errorf("the notification behind was delivered %d times", n)
	}
	h.Script(fakehost.Script{Word: "accepted"}, failing.DeliveryID)
	w.forward(c, 60*time.Second)
	w.becomes(behind.DeliveryID, store.CallbackAccepted)
}

// Proves core 19.46: close during a running attempt.
func TestCourier_CloseDuringAttempt(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "retry", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	c := w.start(h, session)
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	if _, err := w.CloseTurn(context.Background(), store.TurnClose{TurnID: row.TurnID, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	h.Open("go")
	eventually(t, "the attempt ends", func() bool {
		a, err := w.Attempts(context.Background(), row.DeliveryID)
		return err == nil && len(a) == 1 && a[0].EndedAt != 0
	})
	w.forward(c, 24*time.Hour)
	got := seed.Read(t, w.Store, row.DeliveryID)
	if got.Status != store.CallbackSuperseded || len(h.Calls()) != 1 || got.TransportStartedAt == 0 {
		t.Errorf("got %s with %d calls", got.Status, len(h.Calls()))
	}
}

// Proves core 19.45: an outcome that comes after its claim is over. The clock
// jumps past the claim while the child runs, as after a long suspend.
func TestCourier_LateOutcome(t *testing.T) {
	for word, want := range map[string]string{"accepted": store.CallbackAccepted, "retry": store.CallbackUncertain, "rejected": store.CallbackUncertain} {
		t.Run(word, func(t *testing.T) {
			w, h := newWorld(t), fakehost.New(t)
			h.Script(fakehost.Script{Word: word, WaitFor: "go"})
			row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
			w.start(h, session)
			eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
			w.clock.Advance(10 * time.Minute)
			got := w.becomes(row.DeliveryID, store.CallbackUncertain)
			if got.LastErrorCode != store.CodeClaimExpired {
				t.Errorf("got %s", got.LastErrorCode)
			}
			h.Open("go")
			eventually(t, "the attempt ends", func() bool {
				a, err := w.Attempts(context.Background(), row.DeliveryID)
				return err == nil && len(a) == 1 && a[0].EndedAt != 0
			})
			w.becomes(row.DeliveryID, want)
			if n := len(h.Calls()); n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// Proves core 19.41 (the rule): while the claim lives, nobody takes the row, also
// not when its holder has lost the lease.
func TestCourier_ClaimOutlivesLease(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t, "8000", "30000")
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	w.start(h, session)
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	w.clock.Advance(60 * time.Second) // lease over, claim not
	second := w.start(h, session)
	second.pass0()
	if got := seed.Read(t, w.Store, row.DeliveryID); got.Status != store.CallbackClaimed || got.Attempts != 1 {
		t.Errorf("got %s, attempt %d", got.Status, got.Attempts)
	}
	h.Open("go")
	w.becomes(row.DeliveryID, store.CallbackAccepted)
	if n := len(h.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// pass0 gives the courier time for whatever it would do, holding the lease or not.
func (c *courier) pass0() {
	c.t.Helper()
	for range 20 {
		if _, err := c.ExpireClaims(context.Background()); err != nil {
			c.t.Fatal(err)
		}
		time.Sleep(poll)
	}
}

// On stop nothing new starts, what runs is settled, and the lease is free.
func TestCourier_Drain(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	running := seed.Turn(t, w.Store, route, "1", "body")
	c := w.start(h, session)
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	c.cancel()
	later := seed.Turn(t, w.Store, route, "2", "body")
	eventually(t, "the drain is logged", func() bool { return strings.Contains(w.log.String(), "draining") })
	rows, err := w.Leases(context.Background(), "outboxd/")
	if err != nil || len(rows) != 1 || rows[0].Holder == "" {
		t.Errorf("the lease is gone before the work: %+v, %v", rows, err)
	}
	h.Open("go")
	c.end()
	if got := seed.Read(t, w.Store, running.DeliveryID); got.Status != store.CallbackAccepted {
		t.Errorf("running: got %s", got.Status)
	}
	if got := seed.Read(t, w.Store, later.DeliveryID); got.Status != store.CallbackPending || got.Attempts != 0 {
		t.Errorf("later: got %s, attempt %d", got.Status, got.Attempts)
	}
	if rows, err = w.Leases(context.Background(), "outboxd/"); err != nil || rows[0].Holder != "" {
		t.Errorf("the lease is not released: %+v, %v", rows, err)
	}
}

// Under route_bound_v1 one courier delivers for every session, each with its own.
func TestCourier_RouteBound(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	a := seed.Turn(t, w.Store, h.Capture("session-a").Route, "1", "body")
	b := seed.Turn(t, w.Store, h.Capture("session-b").Route, "2", "body")
	h.Write(h.Document(`"driver": "environment_v1"`, `"driver": "environment_v1", "scope": "route_bound_v1"`))
	w.start(h, "ignored")
	for _, row := range []store.Callback{a, b} {
		w.becomes(row.DeliveryID, store.CallbackAccepted)
	}
	for _, call := range h.Calls() {
		want := "session-a"
		if call.Delivery == b.DeliveryID {
			want = "session-b"
		}
		if call.Session != want {
			t.Errorf("session: got %s, want %s", call.Session, want)
		}
	}
}

// A row that contradicts itself ends alone.
func TestCourier_TamperedEnvelope(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	n := 0
	insert := func(change func(*store.NewCallback)) string {
		n++
		watch := seed.NewWatch(t, w.Store, route, fmt.Sprint(n))
		return watch.Tampered(change)
	}
	bad := []string{
		insert(func(c *store.NewCallback) { c.Envelope = []byte(`{}`) }),
		insert(func(c *store.NewCallback) { c.Body += "!" }),
		insert(func(c *store.NewCallback) { c.RouteTransport = "openclaw_v1" }),
	}
	good := seed.Turn(t, w.Store, route, "good", "body")
	w.start(h, session)
	w.becomes(good.DeliveryID, store.CallbackAccepted)
	for i, want := range []string{callback.CodeEnvelopeRoute, callback.CodeEnvelopeRoute, callback.CodeTransport} {
		if got := w.becomes(bad[i], store.CallbackPermanent).LastErrorCode; got != want {
			t.Errorf("row %d: got %s, want %s", i, got, want)
		}
	}
	if n := len(h.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Proves host-profile 15.37 for outboxd: no secret, argument or session in a log
// line, and in the Store the session only where a route is.
func TestCourier_NoSecrets(t *testing.T) {
	const canary = "CANARY-session-value"
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(canary).Route
	words := []string{"accepted", "retry", "rejected", "unknown", "nonsense"}
	for i, word := range words {
		row := seed.Turn(t, w.Store, route, fmt.Sprint(i), "CANARY-body")
		h.Script(fakehost.Script{Word: word, Stderr: 100}, row.DeliveryID)
	}
	last := seed.Turn(t, w.Store, route, "silent", "CANARY-body")
	text := "CANARY-output"
	h.Script(fakehost.Script{Raw: &text, Exit: 3}, last.DeliveryID)
	c := w.start(h, canary)
	w.becomes(last.DeliveryID, store.CallbackUncertain)
	eventually(t, "all calls", func() bool { return len(h.Calls()) == len(words)+1 })
	h.Write([]byte("CANARY-profile"))
	w.becomes(seed.Turn(t, w.Store, route, "drift", "CANARY-body").DeliveryID, store.CallbackPermanent)
	c.end()
	for _, secret := range []string{"CANARY", h.Dir, "fake-host"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("the log holds %s:\n%s", secret, w.log)
		}
	}
	attempts := 0
	for i := range words {
		list, err := w.Attempts(context.Background(), h.Calls()[i].Delivery)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			attempts++
			if s := fmt.Sprintf("%+v %s", a, a.Evidence); strings.Contains(s, "CANARY") || strings.Contains(s, h.Dir) {
				t.Errorf("attempt %s", s)
			}
		}
	}
	if attempts < len(words) {
		t.Errorf("only %d attempts were looked at", attempts)
	}
	for _, name := range []string{"store.db", "store.db-wal"} {
		data, err := os.ReadFile(filepath.Join(w.dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, secret := range []string{"CANARY-token", "CANARY-secret", "CANARY-output", "fake-host", h.Dir} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %s", name, secret)
			}
		}
	}
}

// A Courier that cannot claim does not say that it delivers.
func TestCourier_SaysWhatItCan(t *testing.T) {
	w := newWorld(t)
	c := w.start(fakehost.New(t), session)
	if got := c.told(); !slices.Equal(got, []deliver.State{deliver.Delivering}) {
		t.Errorf("told %v", got)
	}
	w.clock.Advance(store.LeaseTTL + time.Second) // nobody renewed it in time: it is lost
	eventually(t, "it stands by and delivers again", func() bool {
		return slices.Equal(c.told(), []deliver.State{deliver.Delivering, deliver.Standby, deliver.Delivering})
	})
}
