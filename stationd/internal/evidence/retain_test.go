package evidence_test

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/evidence"
)

// world is a Store with an acting stationd and a clock.
type world struct {
	*store.Store
	t     *testing.T
	lease *store.Lease
	owner store.Principal
	now   atomic.Int64
	state string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, state: t.TempDir()}
	w.now.Store(1_770_000_000_000)
	s, err := store.Open(t.Context(), store.Options{Dir: testkit.StoreDir(t), Program: "stationd", Now: func() time.Time { return time.UnixMilli(w.now.Load()) }})
	w.ok(err)
	w.Store = s
	t.Cleanup(func() { _ = s.Close() })
	w.lease, err = s.Acquire(t.Context(), store.StationdLease("here"), store.LeaseTTL)
	w.ok(err)
	w.owner, err = s.AddPrincipal(t.Context(), w.lease, store.NewPrincipal{Org: "local", Name: "ann", SecretSHA256: sha256.Sum256([]byte("x"))})
	w.ok(err)
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) station() store.Station {
	w.t.Helper()
	st, _, err := w.CreateStation(context.Background(), w.lease, store.NewStation{PrincipalID: w.owner.ID, Profile: "agent", Spec: []byte(`{}`)})
	w.ok(err)
	return st
}

// begin starts an attempt that has a log.
func (w *world) begin(st store.Station) store.StationAttempt {
	w.t.Helper()
	a, err := w.BeginAttempt(context.Background(), w.lease, st.ID, store.NewAttempt{Provider: "local", Host: "here", TTL: time.Hour})
	w.ok(err)
	_, err = w.WorkspaceAcquired(context.Background(), w.lease, a.LeaseID, store.Acquired{HostRef: "h", Workdir: "/w", BootID: "b"})
	w.ok(err)
	l, err := evidence.OpenLogs(evidence.LogDir(w.state, st.ID, a.Number), redactor(w.t))
	w.ok(err)
	put(w.t, l, "stdout", 0, "hello\n")
	w.ok(l.Close())
	return a
}

// end ends it, and gives its lease back.
func (w *world) end(a store.StationAttempt) {
	w.t.Helper()
	ctx := context.Background()
	_, _, err := w.RequestStop(ctx, w.lease, a.StationID, a.Number, store.StopOperator, w.owner.ID)
	w.ok(err)
	_, err = w.AttemptIsStopping(ctx, w.lease, a.StationID, a.Number)
	w.ok(err)
	rows := w.rows(a)
	doc, why := evidence.Document(evidence.FactsOf(rows), redactor(w.t))
	w.ok(why)
	_, err = w.EndAttempt(ctx, w.lease, a.StationID, a.Number, store.AttemptEnd{Cleanup: []byte(`{}`), Document: doc})
	w.ok(err)
	_, err = w.BeginRelease(ctx, w.lease, a.LeaseID)
	w.ok(err)
	_, err = w.WorkspaceReleased(ctx, w.lease, a.LeaseID, []byte(`{}`))
	w.ok(err)
}

func (w *world) rows(a store.StationAttempt) evidence.Rows {
	w.t.Helper()
	st, err := w.Station(context.Background(), a.StationID)
	w.ok(err)
	a, err = w.StationAttempt(context.Background(), a.StationID, a.Number)
	w.ok(err)
	tickets, count, err := w.Tickets(context.Background(), a.StationID, a.Number)
	w.ok(err)
	chain, err := w.StationChain(context.Background(), a.StationID)
	w.ok(err)
	return evidence.Rows{Station: st, Attempt: a, Tickets: tickets, TicketCount: count, Chain: chain}
}

func (w *world) retention() evidence.Retention {
	return evidence.Retention{Store: w.Store, Lease: func() *store.Lease { return w.lease }, StateDir: w.state,
		Now: func() time.Time { return time.UnixMilli(w.now.Load()) }}
}

func (w *world) pass(d time.Duration) { w.now.Add(d.Milliseconds()) }

func (w *world) hasLog(a store.StationAttempt) bool {
	_, err := stored(w.t, evidence.LogDir(w.state, a.StationID, a.Number))
	return err == nil
}

// Proves station 17.V7: logs go after 14 days, whole attempts with their events and
// evidence after 90, and the chain still verifies; what runs stays, however old.
func TestRetention(t *testing.T) {
	w := newWorld(t)
	st, running := w.station(), w.station()
	first := w.begin(st)
	w.end(first)
	live := w.begin(running)
	w.pass(10 * 24 * time.Hour)
	second := w.begin(st)
	w.end(second)
	r := w.retention()
	w.pass(4*24*time.Hour - time.Second)
	w.ok(r.Sweep(t.Context()))
	if !w.hasLog(first) || !w.hasLog(second) {
		t.Fatal("a log went too early")
	}
	w.pass(2 * time.Second)
	w.ok(r.Sweep(t.Context()))
	if w.hasLog(first) || !w.hasLog(second) || !w.hasLog(live) {
		t.Error("after 14 days only the first attempt's log goes")
	}
	_, err := w.StationEvidence(t.Context(), st.ID, first.Number)
	w.ok(err)
	w.pass(76 * 24 * time.Hour)
	w.ok(r.Sweep(t.Context()))
	if _, err := w.StationEvidence(t.Context(), st.ID, first.Number); !fault.Is(err, fault.NotFound) {
		t.Errorf("evidence after 90 days: %v", err)
	}
	if _, err := w.StationAttempt(t.Context(), st.ID, first.Number); !fault.Is(err, fault.NotFound) {
		t.Errorf("the attempt after 90 days: %v", err)
	}
	_, err = w.StationEvidence(t.Context(), st.ID, second.Number)
	w.ok(err)
	w.pass(20 * 24 * time.Hour)
	w.ok(r.Sweep(t.Context()))
	for _, id := range []string{st.ID, running.ID} {
		check, err := w.VerifyStation(t.Context(), id)
		if err != nil || len(check.Flaws) > 0 || (id == st.ID) != (check.Purged > 0) {
			t.Errorf("%+v, %v", check, err)
		}
	}
	if !w.hasLog(live) || w.hasLog(second) {
		t.Error("the log of what runs goes, or one that is over stays")
	}
	if _, err := os.Stat(filepath.Dir(evidence.LogDir(w.state, st.ID, 1))); err == nil {
		t.Error("the directory of a station without logs stays")
	}
}

// A log of an attempt that this Store does not know may be another Store's: it has its
// 14 days from its last byte.
func TestRetention_Foreign(t *testing.T) {
	w := newWorld(t)
	other := store.StationAttempt{StationID: stationID, Number: 1}
	dir := evidence.LogDir(w.state, stationID, 1)
	l := open(t, dir)
	put(t, l, "stdout", 0, "x\n")
	w.ok(l.Close())
	w.now.Store(time.Now().Add(13 * 24 * time.Hour).UnixMilli())
	w.ok(w.retention().Sweep(t.Context()))
	if !w.hasLog(other) {
		t.Error("it went early")
	}
	w.pass(2 * 24 * time.Hour)
	w.ok(w.retention().Sweep(t.Context()))
	if w.hasLog(other) {
		t.Error("it stays")
	}
}

// Retain looks again and again while this stationd acts, and ends with its context.
func TestRetain(t *testing.T) {
	w := newWorld(t)
	a := w.begin(w.station())
	w.end(a)
	r := w.retention()
	r.Every = 5 * time.Millisecond
	var acting atomic.Bool
	var asked atomic.Int64
	r.Lease = func() *store.Lease {
		asked.Add(1)
		if acting.Load() {
			return w.lease
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Retain(ctx) }()
	w.pass(15 * 24 * time.Hour)
	testkit.Eventually(t, 5*time.Second, func() bool { return asked.Load() > 3 })
	if !w.hasLog(a) {
		t.Error("a stationd that stands by removes")
	}
	acting.Store(true)
	testkit.Eventually(t, 5*time.Second, func() bool { return !w.hasLog(a) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Proves station 17.V3: of a ticket the document says ids, scope, times and uses; its
// text and its hash are not in it.
func TestFactsOf_Tickets(t *testing.T) {
	w := newWorld(t)
	st := w.station()
	a := w.begin(st)
	ctx := t.Context()
	_, err := w.LaunchAttempt(ctx, w.lease, st.ID, a.Number, store.Launch{CommandHash: "h", Workdir: ".", RuntimeDir: "/r", Containment: "pidns", Egress: "netns",
		Document: launchJSON(t)})
	w.ok(err)
	sum := sha256.Sum256([]byte("the ticket"))
	k, err := w.IssueTicket(ctx, w.lease, store.NewTicket{SecretSHA256: sum, Issuer: w.owner.ID, PrincipalID: w.owner.ID, StationID: st.ID, Prefix: "/v1"})
	w.ok(err)
	_, _, err = w.RequestStop(ctx, w.lease, st.ID, a.Number, store.StopOperator, w.owner.ID)
	w.ok(err)
	f := evidence.FactsOf(w.rows(a))
	want := evidence.Ticket{TicketID: k.ID, Issuer: w.owner.ID, PrincipalScope: w.owner.ID, PathPrefix: "/v1", IssuedAt: evidence.Time(k.IssuedAt), ExpiresAt: evidence.Time(k.ExpiresAt),
		RevokedReason: store.StopOperator}
	if f.AgentRuntime == nil || len(f.AgentRuntime.Tickets) != 1 || f.AgentRuntime.Tickets[0] != want || f.AgentRuntime.TicketCount != 1 {
		t.Errorf("%+v", f.AgentRuntime)
	}
	if f.Times.Created != evidence.Time(a.TTLDeadline-time.Hour.Milliseconds()) || f.Limits.TTL != "1h0m0s" || f.Limits.Idle != "0s" || f.Command.Mode != "argv" || f.Stop.GraceMS != 7 ||
		f.Stop.Reason != store.StopOperator || f.Process.UID != 9 || f.Process.Exit.Source != evidence.ExitUnknown || f.Events.Count == 0 {
		t.Errorf("%+v", f)
	}
	doc, why := evidence.Document(f, redactor(t))
	w.ok(why)
	scanFor(t, "document", doc, map[string]string{"the hash": string(sum[:]), "the ticket": "the ticket"})
}
