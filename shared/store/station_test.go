package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// host of the stationd of these tests.
const host = "box"

// stationWorld is a Store with an acting stationd, an owner and one station.
type stationWorld struct {
	*world
	main  *store.Lease
	owner store.Principal
	st    store.Station
}

func sum(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

func newStationWorld(t testing.TB) *stationWorld {
	t.Helper()
	w := &stationWorld{world: newWorld(t)}
	w.main = w.lease(store.StationdLease(host))
	w.owner = w.principal("ann")
	var err error
	w.st, _, err = w.CreateStation(ctx, w.main, store.NewStation{PrincipalID: w.owner.ID, Profile: "agent", Spec: []byte(`{"name":"x"}`)})
	w.ok(err)
	return w
}

func (w *stationWorld) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *stationWorld) principal(name string) store.Principal {
	w.t.Helper()
	p, err := w.AddPrincipal(ctx, w.main, store.NewPrincipal{Org: "local", Name: name, SecretSHA256: sum("secret of " + name)})
	w.ok(err)
	return p
}

func (w *stationWorld) begin() store.StationAttempt {
	w.t.Helper()
	a, err := w.BeginAttempt(ctx, w.main, w.st.ID, store.NewAttempt{Provider: "local", Host: host, TTL: time.Hour})
	w.ok(err)
	return a
}

// launch brings a new attempt to launching, with an active lease.
func (w *stationWorld) launch() store.StationAttempt {
	w.t.Helper()
	a := w.begin()
	_, err := w.WorkspaceAcquired(ctx, w.main, a.LeaseID, store.Acquired{HostRef: "h", Workdir: "/w", BootID: "boot-a"})
	w.ok(err)
	a, err = w.LaunchAttempt(ctx, w.main, w.st.ID, a.Number, store.Launch{CommandHash: "hash", Workdir: ".", RuntimeDir: "/r",
		Containment: "pidns", Egress: "netns", Document: []byte(`{"argv":[]}`)})
	w.ok(err)
	return a
}

// ready brings a new attempt to ready.
func (w *stationWorld) ready() store.StationAttempt {
	w.t.Helper()
	a := w.launch()
	_, err := w.RecordShim(ctx, w.main, w.st.ID, a.Number, store.Shim{BootID: "boot-a", PID: 10, Start: 100})
	w.ok(err)
	_, err = w.RecordDaemon(ctx, w.main, w.st.ID, a.Number, store.Daemon{PID: 11, Start: 101, PGID: 11, Port: 8080})
	w.ok(err)
	a, err = w.AttemptIsReady(ctx, w.main, w.st.ID, a.Number)
	w.ok(err)
	return a
}

// end stops an attempt and writes its document.
func (w *stationWorld) end(a store.StationAttempt, reason string) store.StationAttempt {
	w.t.Helper()
	_, _, err := w.RequestStop(ctx, w.main, w.st.ID, a.Number, reason, w.owner.ID)
	w.ok(err)
	_, err = w.AttemptIsStopping(ctx, w.main, w.st.ID, a.Number)
	w.ok(err)
	a, err = w.EndAttempt(ctx, w.main, w.st.ID, a.Number, store.AttemptEnd{Exit: []byte(`{"code":0}`), Cleanup: []byte(`{"result":"clean"}`),
		Document: []byte(`{"attempt":` + fmt.Sprint(a.Number) + `}`)})
	w.ok(err)
	return a
}

func (w *stationWorld) release(a store.StationAttempt) {
	w.t.Helper()
	_, err := w.BeginRelease(ctx, w.main, a.LeaseID)
	w.ok(err)
	_, err = w.WorkspaceReleased(ctx, w.main, a.LeaseID, []byte(`{"result":"clean"}`))
	w.ok(err)
}

func (w *stationWorld) ticket(text string, uses int64) store.Ticket {
	w.t.Helper()
	k, err := w.IssueTicket(ctx, w.main, store.NewTicket{SecretSHA256: sum(text), Issuer: w.owner.ID, PrincipalID: w.owner.ID,
		StationID: w.st.ID, Prefix: "/v1", MaxUses: uses})
	w.ok(err)
	return k
}

func (w *stationWorld) kinds() (all []string) {
	w.t.Helper()
	events, err := w.StationEvents(ctx, w.st.ID, 0, 1000)
	w.ok(err)
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return all
}

// A station from its making to a second attempt: every move once, in order.
func TestStation_Life(t *testing.T) {
	w := newStationWorld(t)
	if !strings.HasPrefix(w.st.ID, "stn_") || len(w.st.ID) != 30 || w.st.State != store.StationCreated || w.st.Owner != "ann" {
		t.Errorf("made %+v", w.st)
	}
	a := w.end(w.ready(), store.StopOperator)
	if a.State != store.AttemptTerminal || a.StopReason != store.StopOperator || a.EndedAt == 0 {
		t.Errorf("ended as %+v", a)
	}
	w.release(a)
	st, err := w.Station(ctx, w.st.ID)
	w.ok(err)
	if st.State != store.StationStopped || st.Desired != store.WantStopped || st.CurrentAttempt != 1 {
		t.Errorf("station %+v", st)
	}
	b := w.end(w.ready(), store.StopExited)
	if got, deadline := store.IDTime(b.LeaseID), b.TTLDeadline-time.Hour.Milliseconds(); got != deadline || store.IDTime("lse_x") != 0 || store.IDTime("") != 0 {
		t.Errorf("the lease's id was made at %d, the attempt began at %d", got, deadline)
	}
	if b.Number != 2 || b.LeaseID == a.LeaseID {
		t.Errorf("second attempt %+v", b)
	}
	if st, err = w.Station(ctx, w.st.ID); err != nil || st.State != store.StationFailed {
		t.Errorf("station %+v, %v", st, err)
	}
	once := []string{"attempt_begun", "lease_acquired", "launching", "shim_started", "daemon_started", "ready", "stop_requested", "stopping", "ended"}
	want := append(append(append([]string{"created"}, once...), "lease_releasing", "lease_released"), once...)
	if diff := cmp.Diff(want, w.kinds()); diff != "" {
		t.Error(diff)
	}
}

// Proves station 17.M2: of concurrent starts of one station one begins an attempt,
// the others answer attempt_exists.
func TestStation_OneOfConcurrentStarts(t *testing.T) {
	w := newStationWorld(t)
	errs := make([]error, 8)
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() {
			_, errs[i] = w.BeginAttempt(ctx, w.main, w.st.ID, store.NewAttempt{Provider: "local", Host: host, TTL: time.Hour})
		})
	}
	wait.Wait()
	began := 0
	for _, err := range errs {
		if err == nil {
			began++
		} else if !fault.Is(err, fault.AttemptExists) {
			t.Error(err)
		}
	}
	all, err := w.StationAttempts(ctx, w.st.ID)
	if began != 1 || len(all) != 1 || err != nil {
		t.Errorf("%d began, %d exist, %v", began, len(all), err)
	}
}

// Proves station 17.M3: a lease never carries two live attempts, whoever writes.
func TestStation_OneLiveAttemptOnALease(t *testing.T) {
	w := newStationWorld(t)
	a := w.ready()
	other, _, err := w.CreateStation(ctx, w.main, store.NewStation{PrincipalID: w.owner.ID, Profile: "agent", Spec: []byte(`{}`)})
	w.ok(err)
	_, err = w.raw().Exec(`INSERT INTO station_attempts(station_id, attempt, lease_id, host, state, desired_state, command_hash, workdir, launch_json,
  ttl_deadline, ttl_boot, ttl_boot_id, idle_ms) VALUES (?, 1, ?, 'box', 'preparing', 'running', '', '', '{}', 1, 1, 'b', 0)`, other.ID, a.LeaseID)
	if err == nil || !strings.Contains(err.Error(), "UNIQUE") {
		t.Errorf("a second live attempt on the lease: %v", err)
	}
}

// Proves station 17.M4: each of the nine facts of a status changes while the others stay.
func TestStation_NineFacts(t *testing.T) {
	w := newStationWorld(t)
	a := w.ready()
	w.ok(w.Beat(ctx, w.main, w.st.ID, a.Number, store.Beats{Heartbeat: w.Now()}))
	facts := func() map[string]any {
		s, err := w.StationStatus(ctx, w.st.ID)
		w.ok(err)
		return map[string]any{"state": s.State, "desired": s.Desired, "attempt": s.Number, "observed": s.ObservedAt, "reason": s.StopReason,
			"lease": s.LeaseState, "supervisor": s.Supervisor, "command": s.Command, "cleanup": s.Cleanup}
	}
	for _, c := range []struct {
		sql     string
		changes string
	}{
		{`UPDATE stations SET state = 'stopping'`, "state"},
		{`UPDATE stations SET desired_state = 'stopped'`, "desired"},
		{`UPDATE station_attempts SET last_observed_at = last_observed_at + 1`, "observed"},
		{`UPDATE workspace_leases SET state = 'lost'`, "lease"},
		{`UPDATE station_attempts SET last_heartbeat_at = last_heartbeat_at - 30001`, "supervisor"},
		{`UPDATE station_attempts SET exit_json = '{}'`, "command"},
		{`UPDATE station_attempts SET stop_reason = 'operator_stop', desired_state = 'stopping'`, "reason cleanup"},
		{`UPDATE workspace_leases SET state = 'cleanup_failed'`, "lease cleanup"},
		{`UPDATE stations SET current_attempt = 7`, "attempt"},
	} {
		before := facts()
		if _, err := w.raw().Exec(c.sql); err != nil {
			t.Fatal(c.sql, err)
		}
		after := facts()
		for name := range before {
			moved := before[name] != after[name]
			if c.changes == "attempt" { // without its row the attempt's own facts are gone
				continue
			}
			if want := strings.Contains(c.changes, name); moved != want {
				t.Errorf("%s: %s changed: %t (%v, %v)", c.sql, name, moved, before[name], after[name])
			}
		}
		if c.changes == "attempt" && after["attempt"] != int64(7) {
			t.Errorf("attempt %v", after["attempt"])
		}
	}
}

// roleStationStop is a stationd that dies between the first step of a stop and the
// first signal.
func roleStationStop(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Acquire(context.Background(), store.StationLease(args[0]), store.LeaseTTL)
	if err != nil {
		return err
	}
	if _, _, err := s.RequestStop(context.Background(), l, args[0], 1, store.StopOperator, "x"); err != nil {
		return err
	}
	fmt.Println("stop requested")
	wait()
	return nil
}

// Edges that do not exist are refused and change nothing.
func TestStation_IllegalEdges(t *testing.T) {
	w := newStationWorld(t)
	a := w.begin()
	_, err := w.AttemptIsReady(ctx, w.main, w.st.ID, a.Number)
	wantCode(t, err, fault.AttemptState)
	_, err = w.AttemptIsStopping(ctx, w.main, w.st.ID, a.Number)
	wantCode(t, err, fault.AttemptState)
	_, err = w.EndAttempt(ctx, w.main, w.st.ID, a.Number, store.AttemptEnd{Document: []byte(`{}`)})
	wantCode(t, err, fault.AttemptState)
	_, err = w.BeginRelease(ctx, w.main, a.LeaseID)
	wantCode(t, err, fault.LeaseInUse)
	_, err = w.RecordShim(ctx, w.main, w.st.ID, a.Number, store.Shim{BootID: "b", PID: 1, Start: 1})
	wantCode(t, err, fault.AttemptState)
	_, _, err = w.RequestStop(ctx, w.main, w.st.ID, a.Number, "because", "x")
	wantCode(t, err, fault.Internal)
	got, err := w.StationAttempt(ctx, w.st.ID, a.Number)
	if diff := cmp.Diff(a, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	foreign := w.lease("something/else")
	_, _, err = w.RequestStop(ctx, foreign, w.st.ID, a.Number, store.StopOperator, "x")
	wantCode(t, err, fault.Internal)
	w.clk.add(store.LeaseTTL)
	_, _, err = w.RequestStop(ctx, w.main, w.st.ID, a.Number, store.StopOperator, "x")
	wantCode(t, err, fault.LeaseLost)
}

// Proves station 17.X1: when the process dies right behind step 1 of a stop, before
// any signal, the desired state, the reason, the revoked ticket and the event are
// durable; nothing may start afterwards.
func TestStation_StopIsDurableFirst(t *testing.T) {
	w := newStationWorld(t)
	a := w.ready()
	k := w.ticket("dbt_1", 0)
	child := start(t, "stationstop", w.dir, w.st.ID)
	child.want("stop requested")
	w.ok(child.cmd.Process.Kill())
	got, err := w.StationAttempt(ctx, w.st.ID, a.Number)
	w.ok(err)
	if got.State != store.AttemptReady || got.Desired != store.WantStopping || got.StopReason != store.StopOperator {
		t.Errorf("after the death: %s, %s, %s", got.State, got.Desired, got.StopReason)
	}
	if k, err = w.Ticket(ctx, k.ID); err != nil || k.RevokedReason != store.StopOperator {
		t.Errorf("ticket %+v, %v", k, err)
	}
	if all := w.kinds(); all[len(all)-1] != "stop_requested" {
		t.Errorf("events %v", all)
	}
}

// Proves station 17.X7, 17.X8: of ten concurrent stops one reason wins and one
// document is written; a stop after the end gives the first reason.
func TestStation_FirstReasonWins(t *testing.T) {
	w := newStationWorld(t)
	a := w.ready()
	reasons := []string{store.StopOperator, store.StopReplaced, store.StopReleased, store.StopLeaseLost, store.StopTTL,
		store.StopIdle, store.StopExited, store.StopNotReady, store.StopLoopback, store.StopShutdown}
	began, told := make([]bool, len(reasons)), make([]string, len(reasons))
	var wait sync.WaitGroup
	for i, reason := range reasons {
		wait.Go(func() {
			got, first, err := w.RequestStop(ctx, w.main, w.st.ID, a.Number, reason, "x")
			if err != nil {
				t.Error(err)
				return
			}
			began[i], told[i] = first, got.StopReason
			if _, err := w.AttemptIsStopping(ctx, w.main, w.st.ID, a.Number); err != nil && !fault.Is(err, fault.StationEnded) {
				t.Error(err)
			}
			if _, err := w.EndAttempt(ctx, w.main, w.st.ID, a.Number, store.AttemptEnd{Document: []byte(`{"by":"` + reason + `"}`)}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	won := ""
	for i := range reasons {
		if began[i] && won == "" {
			won = reasons[i]
		} else if began[i] {
			t.Errorf("both %s and %s began", won, reasons[i])
		}
	}
	for _, reason := range told {
		if reason != won {
			t.Errorf("told %s, %s won", reason, won)
		}
	}
	count := map[string]int{}
	for _, kind := range w.kinds() {
		count[kind]++
	}
	if count["stop_requested"] != 1 || count["stopping"] != 1 || count["ended"] != 1 {
		t.Errorf("events %v", count)
	}
	again, first, err := w.RequestStop(ctx, w.main, w.st.ID, a.Number, store.StopPolicy, "y")
	if err != nil || first || again.StopReason != won || again.StopBy != "x" {
		t.Errorf("after the end: %+v, %t, %v", again, first, err)
	}
	if _, err := w.raw().Exec(`UPDATE station_attempts SET stop_reason = 'policy_violation'`); err == nil {
		t.Error("the reason was changed by hand")
	}
}

// Proves station 17.T13: of fifty uses at once of a ticket for one, one passes.
func TestTicket_OneUse(t *testing.T) {
	w := newStationWorld(t)
	w.ready()
	k := w.ticket("dbt_once", 1)
	passed := make([]bool, 50)
	var wait sync.WaitGroup
	for i := range passed {
		wait.Go(func() {
			err := w.ConsumeTicket(ctx, k.ID)
			passed[i] = err == nil
			if err != nil && !fault.Is(err, fault.TicketExpired) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	n := 0
	for _, ok := range passed {
		if ok {
			n++
		}
	}
	if k, err := w.Ticket(ctx, k.ID); n != 1 || err != nil || k.Uses != 1 {
		t.Errorf("%d passed, %d uses, %v", n, k.Uses, err)
	}
}

// Proves station 17.T14: no file of the Store holds a ticket or a principal's secret.
func TestTicket_NoSecretInTheStore(t *testing.T) {
	w := newStationWorld(t)
	w.ready()
	k := w.ticket("dbt_kept_nowhere", 0)
	w.ok(w.ConsumeTicket(ctx, k.ID))
	w.ok(w.CountTicketUses(ctx, map[string]int64{k.ID: 3}))
	if _, err := w.RightBySecret(ctx, sum("secret of ann"), sum("dbt_kept_nowhere")); err != nil {
		t.Fatal(err)
	}
	files := 0
	w.ok(filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, secret := range []string{"dbt_kept_nowhere", "secret of ann"} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %q", path, secret)
			}
		}
		files++
		return err
	}))
	if k, err := w.Ticket(ctx, k.ID); files < 3 || err != nil || k.Uses != 4 {
		t.Errorf("%d files, %d uses, %v", files, k.Uses, err)
	}
}
