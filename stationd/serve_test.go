package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
)

// happened is when the first event of a kind stands in a station's chain, in Unix
// milliseconds; the test fails when there is none.
func happened(t *testing.T, s *store.Store, id, kind string) int64 {
	t.Helper()
	all, err := s.StationEvents(t.Context(), id, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Kind == kind {
			return e.At
		}
	}
	t.Fatalf("no event %s in %v", kind, all)
	return 0
}

// The commands and the bridge, end to end: a client with a ticket reaches the daemon,
// its output is in the log, and after the stop nothing runs.
func TestServe_Story(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	started := w.start("-print", "hello from the daemon")
	st := w.status(started.StationID)
	if st.State != "running" || st.Supervisor != "live" || st.Command != "live" || st.Role != "owner" || st.Detail.Bridge == nil {
		t.Fatalf("got %+v", st)
	}
	v := w.visitor(started.StationID)
	if status, body := w.get(v, started.Bridge.URL+"/health"); status != 200 || body != `{"ok":true}`+"\n" {
		t.Errorf("got %d %s", status, body)
	}
	if status, body := w.get(visitor{}, started.Bridge.URL+"/health"); status != 401 {
		t.Errorf("without a ticket: %d %s", status, body)
	}
	testkit.Eventually(t, limit, func() bool { return strings.Contains(w.must("logs", started.StationID), "hello from the daemon") })
	shim, daemon := w.incarnation(st.Detail.ShimPID), w.incarnation(st.Detail.DaemonPID)
	following := make(chan string, 1)
	go func() {
		out, _, _ := w.stationd("logs", "-f", started.StationID)
		following <- out
	}()
	w.must("stop", started.StationID, "-wait")
	if shim.Alive() || daemon.Alive() {
		t.Error("processes are left")
	}
	if out := <-following; !strings.Contains(out, "hello from the daemon") {
		t.Errorf("followed %q", out)
	}
	if st := w.status(started.StationID); st.State != "stopped" || *st.StopReason != "operator_stop" || *st.LeaseState != "released" || st.Cleanup != "done" {
		t.Errorf("got %+v", st)
	}
	if out := w.must("evidence", "verify", started.StationID); !strings.Contains(out, "1 documents checked") {
		t.Errorf("got %s", out)
	}
	if status, _ := w.get(v, started.Bridge.URL+"/health"); status != 401 && status != 410 {
		t.Errorf("after the stop: %d", status)
	}
	var next control.Started
	w.answer(&next, "start", "-replace", started.StationID, "-wait")
	if next.Attempt != 2 || next.StationID != started.StationID {
		t.Errorf("got %+v", next)
	}
	if out := w.must("list"); !strings.Contains(out, started.StationID) || strings.Count(out, "\n") != 2 {
		t.Errorf("got %s", out)
	}
	var refused control.Started
	out, _, status := w.stationd("start", "-f", w.write("bad.json", `{"name":"n","modelAccess":{"provider":"x"}}`), "-json")
	if status != 1 || !strings.Contains(out, `"error":"model_access_not_available"`) {
		t.Errorf("status %d, %s, %+v", status, out, refused)
	}
}

// Proves station 17.C5: READY comes after recovery and with the control socket, and
// STOPPING before anything is stopped.
func TestServe_Notifies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve()
	started := w.start("-deaf") // its end takes the whole grace
	v := w.visitor(started.StationID)
	shim := w.incarnation(w.status(started.StationID).Detail.ShimPID)
	first.signal(syscall.SIGKILL).exits(-1)
	if !shim.Alive() {
		t.Fatal("the attempt died with its stationd")
	}
	s := w.store()
	second := w.launch(false, nil)
	if ready, adopted := second.at("READY=1"), happened(t, s, started.StationID, "adopted"); ready < adopted {
		t.Errorf("ready %d ms before recovery", adopted-ready)
	}
	if st := w.status(started.StationID); st.Detail.AttemptState != "ready" || !shim.Alive() {
		t.Errorf("got %+v", st.Detail)
	}
	// The gate has another port now, and the ticket is good for the attempt.
	if status, body := w.get(v, w.status(started.StationID).Detail.Bridge.URL+"/health"); status != 200 {
		t.Errorf("the old ticket: %d %s", status, body)
	}
	second.signal(syscall.SIGTERM)
	stopping := second.at("STOPPING=1")
	second.exits(0)
	if ended := happened(t, s, started.StationID, "ended"); stopping >= ended {
		t.Errorf("stopping %d ms after the end of the attempt", stopping-ended)
	}
	if said := second.heard(); second.count("READY=1") != 1 || slices.Index(said, "STOPPING=1") < slices.Index(said, "READY=1") {
		t.Errorf("said %v", said)
	}
	a, err := s.StationAttempt(t.Context(), started.StationID, 1)
	if err != nil || a.State != store.AttemptTerminal || a.StopReason != store.StopShutdown {
		t.Errorf("got %+v, %v", a, err)
	}
	w.gone(shim)
	if _, err := os.Lstat(w.path("run", control.Socket)); !os.IsNotExist(err) {
		t.Errorf("the control socket stays: %v", err)
	}
}

// Proves station 17.C5: WATCHDOG beats as often as it is asked for, while the
// supervisor's loop turns, and not a second time when it hangs.
func TestServe_Watchdog(t *testing.T) {
	w := newWorld(t)
	d := w.launch(false, []string{"WATCHDOG_USEC=400000"}).told("READY=1")
	before := d.count("WATCHDOG=1")
	testkit.Eventually(t, limit, func() bool { return d.count("WATCHDOG=1") > before+2 })

	address := &net.UnixAddr{Name: w.path("n"), Net: "unixgram"}
	c, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", address.Name)
	t.Setenv("WATCHDOG_USEC", "20000")
	said := &child{t: t, notify: c}
	var looked, healthy atomic.Int64
	healthy.Store(5) // so many looks
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(said.hear)
	work.Go(func() {
		if err := watchdog(func() bool { return looked.Add(1) <= healthy.Load() })(ctx); err != nil {
			t.Error(err)
		}
	})
	testkit.Eventually(t, limit, func() bool { return looked.Load() > 10 })
	cancel()
	testkit.Eventually(t, limit, func() bool { return said.count("WATCHDOG=1") == 5 })
	c.Close()
	work.Wait()
	if got := said.count("WATCHDOG=1"); got != 5 {
		t.Errorf("%d beats of 5 healthy looks", got)
	}
}

// Proves station 17.L13 (control socket): the daemon cannot connect to the control
// socket of the stationd that runs it, nor see the directory that it stands in.
func TestServe_DaemonCannotControl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	started := w.start()
	v := w.visitor(started.StationID)
	own := "/dial?address=127.0.0.1:" + strconv.FormatInt(w.status(started.StationID).Detail.Port, 10)
	if status, body := w.get(v, started.Bridge.URL+own); status != 200 || !strings.Contains(body, `"ok":true`) {
		t.Errorf("its own port, to see that it can look: %d %s", status, body)
	}
	for _, url := range []string{
		"/dial?network=unix&address=" + w.path("run", control.Socket), "/list?path=" + w.path("run"), "/list?path=" + w.path("state", "logs"),
		"/list?path=" + w.path("store"), "/read?path=" + w.path("store", "store.db"), "/list?path=" + w.bin,
	} {
		status, body := w.get(v, started.Bridge.URL+url)
		if status != 200 || !strings.Contains(body, `"ok":false`) {
			t.Errorf("%s: %d %s", url, status, body)
		}
	}
}

// Proves station 17.X10: when its lifeline is cut, a sibling ends all attempts within
// the drain and exits with 0; an open stream does not delay it.
func TestServe_LifelineCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.launch(true, nil).told("READY=1")
	d.signal(syscall.SIGINT) // meant for its owner
	started := w.start("-children", "setsid,fork", "-deaf")
	st := w.status(started.StationID)
	shim := w.incarnation(st.Detail.ShimPID)
	v := w.visitor(started.StationID)
	r, err := http.NewRequest("GET", started.Bridge.URL+"/events?count=1000&every=100ms", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+v.secret)
	r.Header.Set("Drawbridge-Ticket", v.ticket)
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp)
	}
	defer resp.Body.Close()
	begin := time.Now()
	d.cut()
	d.exits(0)
	if took := time.Since(begin); took > 10*time.Second { // the grace of its spec is 1 s
		t.Errorf("took %v", took)
	}
	w.gone(shim)
	a, err := w.store().StationAttempt(t.Context(), started.StationID, 1)
	if err != nil || a.State != store.AttemptTerminal || a.StopReason != store.StopShutdown {
		t.Errorf("got %+v, %v", a, err)
	}
}

// With -on-exit keep the attempts live on, and the next stationd takes them up.
func TestServe_Keep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.serve("-on-exit", "keep")
	started := w.start()
	shim := w.incarnation(w.status(started.StationID).Detail.ShimPID)
	d.signal(syscall.SIGTERM).exits(0)
	if !shim.Alive() {
		t.Fatal("the attempt ended")
	}
	w.serve()
	if st := w.status(started.StationID); st.Detail.AttemptState != "ready" || st.Detail.ShimPID != int64(shim.PID) {
		t.Errorf("got %+v", st.Detail)
	}
	w.must("stop", started.StationID, "-wait")
	w.gone(shim)
}

// A second stationd of a Store stands by, says so and no more, and takes over.
func TestServe_Standby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve()
	second := w.launch(false, nil).told("STATUS=standby")
	if second.count("READY=1") > 0 {
		t.Error("ready while another one acts")
	}
	w.must("list")
	first.signal(syscall.SIGKILL).exits(-1)
	second.told("READY=1").told("STATUS=active")
	w.must("list")
}

// A stationd that stood still for longer than its lease lets the next one have the
// control socket, stands by when it wakes up, and acts and answers again after that
// one.
func TestServe_StoodStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve()
	started := w.start()
	second := w.launch(false, nil).told("STATUS=standby")
	first.signal(syscall.SIGSTOP)
	second.told("READY=1")
	if st := w.status(started.StationID); st.Detail.AttemptState != "ready" {
		t.Errorf("got %+v", st.Detail)
	}
	first.signal(syscall.SIGCONT).told("STATUS=standby")
	w.must("list")
	second.signal(syscall.SIGKILL).exits(-1)
	testkit.Eventually(t, limit, func() bool { return first.count("STATUS=active") == 2 })
	w.must("stop", started.StationID, "-wait")
}

// Two Stores need two runtime directories.
func TestServe_TwoStores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	_, errs, status := w.stationd("serve", "-store-dir", w.path("other"), "-log-format", "text")
	if status != 69 || !strings.Contains(errs, "listener_unavailable") {
		t.Errorf("status %d, %s", status, errs)
	}
}
