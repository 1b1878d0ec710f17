package station_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
	"drawbridge/stationd/internal/supervise"
)

// earlier is a stationd in a process of its own, on the directory of a world whose
// own stationd is closed.
type earlier struct {
	*world
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr bytes.Buffer
	last   told
}

// told is a line of teststationd.
type told struct{ Did, Station, Bridge, Ticket string }

// began starts an earlier stationd with a spec, that ends at a crash point ("" for
// none).
func (w *world) began(p program, point string, args ...string) *earlier {
	w.Helper()
	w.close()
	e := &earlier{world: w}
	path := testkit.BuildProgram(w, "stationd/internal/teststationd", "drawbridge_crashpoints")
	e.cmd = exec.Command(path, append([]string{"-dir", w.options.Dir, "-shim", w.options.Shim, "-principal", w.ann.ID}, args...)...)
	e.cmd.Env = []string{"DRAWBRIDGE_TEST_EXIT_AT=" + point, "PATH=/usr/bin:/bin"}
	e.cmd.Stderr = &e.stderr
	stdin, err := e.cmd.StdinPipe()
	w.ok(err)
	stdout, err := e.cmd.StdoutPipe()
	w.ok(err)
	e.stdin, e.stdout = stdin, bufio.NewScanner(stdout)
	w.ok(e.cmd.Start())
	w.Cleanup(e.kill)
	_, err = stdin.Write(append(p.json(), '\n'))
	w.ok(err)
	return e
}

// until reads lines up to one; false when it ended before.
func (e *earlier) until(did string) bool {
	for e.stdout.Scan() {
		if json.Unmarshal(e.stdout.Bytes(), &e.last) == nil && e.last.Did == did {
			return true
		}
	}
	return false
}

// kill ends it with SIGKILL, and reaps it.
func (e *earlier) kill() {
	if e.cmd.ProcessState == nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	}
}

// ready waits until its station is ready.
func (e *earlier) ready() station.Started {
	e.Helper()
	if !e.until("ready") {
		e.kill()
		e.Fatalf("not ready: %s", e.stderr.String())
	}
	return e.started()
}

// started is the station as a later stationd sees it.
func (e *earlier) started() station.Started {
	return station.Started{Station: store.Station{ID: e.last.Station}, Attempt: 1, Bridge: e.last.Bridge}
}

// Proves station 17.M10 (its credential included): a stationd that is
// killed while its attempt is ready leaves it running; the next one adopts it: the same
// daemon, its credential and its tickets, and the gate answers.
func TestRecover_Adopts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.began(w.spec("-guard", "bearer", "-guard-env", "HARNESS_TOKEN", "-print", "line", "-repeat", "1000000", "-every", "20ms").
		with("daemonAuth", map[string]any{"mode": "env:HARNESS_TOKEN", "inject": "bearer"}), "")
	s := e.ready()
	before, err := process.Of(e.cmd.Process.Pid)
	w.ok(err)
	e.kill()
	w.open()
	row := w.await(s, store.AttemptReady)
	if row.State != store.AttemptReady || !w.daemonOf(row).Alive() || before.Alive() {
		t.Fatalf("%+v", row)
	}
	if status, body := w.get(s, e.last.Ticket, "/health"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if !has(w.events(s), "adopted") {
		t.Error(w.events(s))
	}
	secret := w.credential(s)
	w.stop(s)
	f := w.document(s)
	if f.Process.Exit.Code == nil || f.Stop.Cleanup.Result != evidence.CleanupClean || strings.Join(signals(f), ",") != "group SIGTERM" || f.Logs.Dropped != 0 {
		t.Errorf("%+v %+v %+v", f.Process.Exit, f.Stop, f.Logs)
	}
	if f.Times.Resumed <= f.Times.Ready || f.Times.Resumed >= f.Times.StopRequested || f.AgentRuntime.Bridge.Requests != 1 {
		t.Errorf("%+v, %+v", f.Times, f.AgentRuntime.Bridge)
	}
	if strings.Contains(string(w.text(s)), secret) || w.find(secret) != "" {
		t.Error("the credential is kept")
	}
	w.clean(s)
}

// Proves station 17.M5, 17.M15, 17.V2: without a stationd the shim ends everything when
// the time is over, or when nobody came; the next stationd records which.
func TestRecover_ShimAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change []any
		orphan string
		want   string
	}{
		"time over": {[]any{"ttl", "4s", "idle", "4s"}, "1m", store.StopTTL},
		"orphaned":  {nil, "1s", store.StopLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &faulty{}
			w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
			e := w.began(w.spec(tree...).with(c.change...), "", "-orphan", c.orphan)
			s := e.ready()
			e.kill()
			testkit.Eventually(t, patience, func() bool { return w.alive() == 0 })
			w.open()
			if row := w.ended(s); row.StopReason != c.want {
				t.Errorf("%+v", row)
			}
			if f := w.document(s); len(f.Stop.SignalPath) != 0 || !slices.Contains(p.called(), "kill") { // the proof, and the cgroup
				t.Errorf("%+v, %v", f.Stop, p.called())
			}
			w.clean(s)
		})
	}
}

// Proves station 17.M12, 17.V2 (reboot): where the row's boot is another, the shim that
// it names gets no signal, although it is the one that was started: its daemon lives on.
func TestRecover_Rebooted(t *testing.T) {
	t.Parallel()
	p := &faulty{}
	w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
	e := w.began(w.spec(), "", "-orphan", "5m")
	s := e.ready()
	e.kill()
	row, err := w.rowOf(s)
	w.ok(err)
	shim, err := process.Of(int(row.ShimPID))
	w.ok(err)
	end := func() error {
		_, err := supervise.Kill(context.Background(), supervise.Options{Cgroup: supervise.CgroupParent()}, row.RuntimeDir, shim)
		return err
	}
	t.Cleanup(func() { _ = end() })
	inside := w.daemonOf(row)
	w.change("UPDATE station_attempts SET supervisor_boot_id='11111111-2222-3333-4444-555555555555'")
	w.open()
	if row := w.ended(s); row.StopReason != store.StopRebooted {
		t.Errorf("%+v", row)
	}
	if f := w.document(s); len(f.Stop.SignalPath) != 0 {
		t.Errorf("%+v", f.Stop)
	}
	testkit.Eventually(t, patience, func() bool { return slices.Contains(p.called(), "release") })
	if called := p.called(); !shim.Alive() || !inside.Alive() || has(called, "kill") || has(called, "end") || has(called, "adopt") {
		t.Errorf("shim %v, daemon %v, asked %v", shim.Alive(), inside.Alive(), called)
	}
	w.ok(end()) // as a real boot would have
	testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceReleased })
	w.clean(s)
}

// change alters rows while no stationd runs.
func (w *world) change(statement string) {
	w.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(w.options.Dir, "store", "store.db"))
	w.ok(err)
	defer db.Close()
	done, err := db.ExecContext(w.Context(), statement)
	w.ok(err)
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		w.Fatal(n, err)
	}
}

// Proves station 17.M11, 17.M12, 17.V2 (reboot): what a row names is not signalled when
// the process of that number is another, or was on another boot; the reasons differ,
// and the lease is released.
func TestRecover_Stranger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		boot  string
		start int64 // added to the stranger's
		want  string
	}{
		"another start": {process.BootID(), 1, store.StopLost},
		"another boot":  {"11111111-2222-3333-4444-555555555555", 0, store.StopRebooted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &faulty{}
			w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
			e := w.began(w.spec(), "attempt_launching")
			if e.until("ready") {
				t.Fatal("it did not end")
			}
			e.kill()
			stranger := exec.Command("sleep", "60")
			w.ok(stranger.Start())
			defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
			inc, err := process.Of(stranger.Process.Pid)
			w.ok(err)
			w.names(e.started(), store.Shim{BootID: c.boot, PID: int64(inc.PID), Start: int64(inc.Start) + c.start})
			w.open()
			s := e.started()
			if row := w.ended(s); row.StopReason != c.want {
				t.Errorf("%+v", row)
			}
			if !inc.Alive() || slices.ContainsFunc(p.called(), func(c string) bool { return c == "kill" || c == "end" || c == "adopt" }) {
				t.Errorf("%v", p.called())
			}
			if f := w.document(s); len(f.Stop.SignalPath) != 0 || f.Process.ShimPID != int64(inc.PID) {
				t.Errorf("%+v", f)
			}
			w.clean(s)
		})
	}
}

// names writes a shim into the row of an attempt, as the stationd before would have.
func (w *world) names(s station.Started, shim store.Shim) {
	w.Helper()
	db, err := store.Open(w.Context(), store.Options{Dir: w.options.Dir + "/store", Program: "stationd"})
	w.ok(err)
	defer db.Close()
	l, err := db.Await(w.Context(), store.StationLease(s.Station.ID), store.LeaseTTL, patience)
	w.ok(err)
	_, err = db.RecordShim(w.Context(), l, s.Station.ID, 1, shim)
	w.ok(err)
	w.ok(db.Release(w.Context(), l))
}

// A shim that lives and does not answer is killed.
func TestRecover_Silent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.began(w.spec(tree...), "")
	s := e.ready()
	e.kill()
	row, err := w.rowOf(s)
	w.ok(err)
	w.ok(process.Signal(process.Incarnation{PID: int(row.ShimPID), BootID: row.BootID, Start: uint64(row.ShimStart), Namespace: process.Self().Namespace}, unix.SIGSTOP))
	w.open()
	row = w.ended(s)
	if f := w.document(s); row.StopReason != store.StopLost || strings.Join(signals(f), ",") != "shim SIGKILL" || f.Stop.Cleanup.Result != evidence.CleanupForced {
		t.Errorf("%s, %+v", row.StopReason, f.Stop)
	}
	w.clean(s)
}

// What an earlier stationd could not end, and this one can, has not failed: the document
// says so, and the lease is given back at once.
func TestRecover_CleanupFailed(t *testing.T) {
	t.Parallel()
	var stuck atomic.Bool
	stuck.Store(true)
	p := &faulty{end: func() ([]supervise.Left, bool) { return []supervise.Left{{PID: 4711, Name: "stuck"}}, stuck.Load() }}
	w := newWorld(t, func(o *stationtest.Options) {
		o.Wrap, o.OnExit = p.wrap, station.OnExitKeep
		o.Adjust = func(m *station.Manager) {
			m.Hurry(20*time.Millisecond, time.Second, time.Second, time.Hour, time.Hour)
		}
	})
	s := w.ready(w.spec())
	_, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID)
	w.ok(err)
	testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceFailed })
	w.close()
	stuck.Store(false)
	w.open()
	w.ended(s)
	if f := w.document(s); f.Stop.Cleanup.Result != evidence.CleanupForced || len(f.Stop.Cleanup.Left) != 0 || f.Stop.Cleanup.LeaseRelease != evidence.LeasePending {
		t.Errorf("%+v", f.Stop)
	}
	w.clean(s)
}

// rowOf reads a row while no stationd runs.
func (w *world) rowOf(s station.Started) (store.StationAttempt, error) {
	w.Helper()
	db, err := store.Open(w.Context(), store.Options{Dir: w.options.Dir + "/store", Program: "stationd", ReadOnly: true})
	w.ok(err)
	defer db.Close()
	return db.StationAttempt(w.Context(), s.Station.ID, 1)
}

// Proves station 17.M13, 17.X1, 17.V2: killed at every step of a start and of a stop,
// the next stationd brings the attempt to ready or leaves nothing of it alive; there is
// one document, an unbroken chain, and the lease is released. A stop is durable before
// the first signal.
func TestRecover_EveryStep(t *testing.T) {
	t.Parallel()
	starting := []string{"attempt_begun", "workspace_acquired", "lease_acquired", "workspace_synced", "artifact_obtained", "attempt_launching",
		"shim_started", "shim_recorded", "daemon_launched", "daemon_recorded", "bridge_opened", "attempt_ready"}
	stopping := []string{"stop_requested", "attempt_stopping", "term_sent", "daemon_killed", "shim_ended", "evidence_built", "attempt_ended",
		"lease_releasing", "workspace_released", "lease_released"}
	for _, point := range crashPoints(t) {
		if !slices.Contains(slices.Concat(starting, stopping), point) {
			t.Errorf("nobody is killed at %s", point)
		}
	}
	adopted := []string{"daemon_launched", "daemon_recorded", "bridge_opened", "attempt_ready"}
	for _, point := range slices.Concat(starting, stopping) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := w.began(w.spec("-children", "setsid,fork"), point, "-stop")
			e.until("stopped")
			e.kill()
			if code := e.cmd.ProcessState.ExitCode(); code != crashpoint.ExitCode {
				t.Fatalf("it ended with %d: %s", code, e.stderr.String())
			}
			s := e.started()
			if s.Station.ID == "" { // it ended before it could tell
				s = w.only()
			}
			before, err := w.rowOf(s)
			w.ok(err)
			if point == "stop_requested" || point == "attempt_stopping" {
				if before.Desired != store.WantStopping || w.alive() == 0 || len(before.Cleanup) != 0 {
					t.Errorf("%s, %d live, %s", before.Desired, w.alive(), before.Cleanup)
				}
			}
			w.open()
			row := w.await(s, store.AttemptReady)
			if slices.Contains(adopted, point) {
				if row.State != store.AttemptReady || !has(w.events(s), "adopted", "ready") {
					t.Fatalf("%s for %s: %v", row.State, row.StopReason, w.events(s))
				}
				if status, body := w.get(s, w.ticket(s), "/health"); status != 200 {
					t.Errorf("%d %s", status, body)
				}
				row = w.stop(s)
			} else if row = w.ended(s); before.StopReason != "" && row.StopReason != before.StopReason {
				t.Errorf("%s became %s", before.StopReason, row.StopReason)
			} else if before.State == store.AttemptPreparing && row.StopReason != store.StopLaunch {
				t.Errorf("preparing ended for %s", row.StopReason)
			}
			testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceReleased })
			testkit.Eventually(t, patience, func() bool { return w.alive() == 0 })
			if f := w.document(s); f.Stop.Reason != row.StopReason {
				t.Errorf("%+v", f.Stop)
			}
			check, err := w.Store.VerifyStation(t.Context(), s.Station.ID)
			if err != nil || len(check.Flaws) != 0 || check.Documents != 1 {
				t.Errorf("%+v, %v", check, err)
			}
			w.clean(s)
			next, err := w.Manager.Replace(t.Context(), w.ann, s.Station.ID)
			w.ok(err)
			if row := w.await(next, store.AttemptReady); next.Attempt != 2 || row.State != store.AttemptReady {
				t.Errorf("the next attempt: %s for %s", row.State, row.StopReason)
			}
		})
	}
}

// crashPoints are those that the package has; its comment names each.
func crashPoints(t *testing.T) (all []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	text, err := os.ReadFile("station.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := bytes.Cut(text, []byte("package station\n"))
	for _, m := range regexp.MustCompile(`crashpoint\.At\("([a-z_]+)"\)`).FindAllSubmatch(source, -1) {
		if !bytes.Contains(comment, m[1]) {
			t.Errorf("%s is not listed", m[1])
		}
		all = append(all, string(m[1]))
	}
	return all
}

// only is the one station of a Store that no stationd has open.
func (w *world) only() station.Started {
	w.Helper()
	db, err := store.Open(w.Context(), store.Options{Dir: w.options.Dir + "/store", Program: "stationd", ReadOnly: true})
	w.ok(err)
	defer db.Close()
	all, err := db.Stations(w.Context(), "")
	w.ok(err)
	if len(all) != 1 {
		w.Fatalf("%d stations", len(all))
	}
	return station.Started{Station: all[0], Attempt: 1, Bridge: "/s/" + all[0].ID + "/a/1"}
}

// A second stationd of the same host stands by, and acts when the first has ended.
func TestStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	o := w.options
	second, err := stationtest.Open(t.Context(), o)
	w.ok(err)
	defer func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 20 {
		if second.Manager.Lease() != nil || !second.Manager.Healthy() {
			t.Fatal("it acts, or is not healthy")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := second.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: w.spec().json()}); err == nil {
		t.Error("it starts a station")
	}
	w.close()
	select {
	case <-second.Manager.Recovered():
	case <-time.After(patience):
		t.Fatal("it does not act")
	}
	if row, err := second.Store.StationAttempt(t.Context(), s.Station.ID, 1); err != nil || row.StopReason != store.StopShutdown {
		t.Errorf("%+v, %v", row, err)
	}
}

// A stationd that loses the lease of its host lets everything go, and takes it up again
// when it has the lease back: nothing of the daemon's life shows it.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	before, ticket := w.await(s, store.AttemptReady), w.ticket(s)
	thief, err := store.Open(t.Context(), store.Options{Dir: w.options.Dir + "/store", Program: "stationd",
		Gone: func(string) (gone, known bool) { return true, true }})
	w.ok(err)
	defer thief.Close()
	stolen, err := thief.Acquire(t.Context(), store.StationdLease(stationtest.Host), store.LeaseTTL)
	w.ok(err)
	testkit.Eventually(t, patience, func() bool { return w.Manager.Lease() == nil })
	if _, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID); err == nil {
		t.Error("it stops a station that is not its own")
	}
	if row, err := w.Store.StationAttempt(t.Context(), s.Station.ID, 1); err != nil || row.State != store.AttemptReady || !w.daemonOf(before).Alive() {
		t.Errorf("%+v, %v", row, err)
	}
	w.ok(thief.Release(t.Context(), stolen))
	testkit.Eventually(t, patience, func() bool { return has(w.events(s), "adopted") })
	testkit.Eventually(t, patience, func() bool { status, _ := w.get(s, ticket, "/health"); return status == 200 })
	if row := w.stop(s); row.DaemonPID != before.DaemonPID || row.StopReason != store.StopOperator {
		t.Errorf("%+v", row)
	}
	w.clean(s)
}
