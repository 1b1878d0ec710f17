package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/outboxd/internal/seed"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// Proves core 19.38 and the crash rows 14 to 17 of core §13: at each point, what
// the next outboxd makes of the row, and that the Host saw at most one call for
// a row with a start marker. Proves core 19.62 for outboxd: rows by fixtures, no
// other program.
func TestCrash_EachPoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point    string
		status   string
		calls    int // that the Host saw in the end
		attempts int64
	}{
		{"callback_claimed", store.CallbackAccepted, 1, 2},
		{"callback_started", store.CallbackUncertain, 0, 1},
		{"callback_child_running", store.CallbackUncertain, 1, 1},
		{"callback_child_ended", store.CallbackUncertain, 1, 1},
		{"callback_settled", store.CallbackAccepted, 1, 1},
		{"callback_outcome_committed", store.CallbackAccepted, 1, 1},
	} {
		t.Run(c.point, func(t *testing.T) {
			w, h := newWorld(t), fakehost.New(t)
			row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
			w.start(h, session, "DRAWBRIDGE_TEST_EXIT_AT="+c.point).exits(crashpoint.ExitCode)
			if c.point == "callback_child_running" { // the child goes on by itself
				eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
			}
			next := w.start(h, session).told("READY=1")
			got := w.becomes(row.DeliveryID, c.status)
			other := seed.Turn(t, w.Store, h.Capture(session).Route, "2", "body")
			w.becomes(other.DeliveryID, store.CallbackAccepted) // the next one works, and did not touch the row again
			if n := h.CallsFor(row.DeliveryID); n != c.calls || got.Attempts != c.attempts {
				t.Errorf("%d calls and %d attempts, want %d and %d", n, got.Attempts, c.calls, c.attempts)
			}
			next.cut()
			next.exits(0)
			w.free()
		})
	}
}

// The same by SIGKILL while the child runs; its answer comes too late for anybody.
func TestCrash_KilledDuringTheChild(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	d := w.start(h, session)
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	d.signal(syscall.SIGKILL)
	d.exits(-1)
	w.start(h, session).told("READY=1")
	if got := w.becomes(row.DeliveryID, store.CallbackUncertain); got.LastErrorCode != store.CodeClaimExpired {
		t.Errorf("got %s", got.LastErrorCode)
	}
	h.Open("go")
	eventually(t, "the orphan ends", func() bool { _, err := process.Stat(h.Calls()[0].PID); return err != nil })
	if n := len(h.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// A stop lets a running callback end and starts no other; exit 0, lease free.
// Proves core 19.59 for outboxd.
func TestStop_FinishesTheRunningCallback(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*daemon){
		"lifeline": (*daemon).cut,
		"SIGTERM":  func(d *daemon) { d.signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			w, h := newWorld(t), fakehost.New(t)
			h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
			row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
			d := w.start(h, session)
			eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
			stop(d)
			d.told("STOPPING=1")
			later := seed.Turn(t, w.Store, h.Capture(session).Route, "2", "body")
			h.Open("go")
			d.exits(0)
			if got := seed.Read(t, w.Store, row.DeliveryID).Status; got != store.CallbackAccepted {
				t.Errorf("the running one: got %s", got)
			}
			if got := seed.Read(t, w.Store, later.DeliveryID); got.Status != store.CallbackPending || got.Attempts != 0 {
				t.Errorf("the later one: got %s, attempt %d", got.Status, got.Attempts)
			}
			w.free()
		})
	}
}

// The bridge is killed while a callback runs: lifeline and stderr break at once,
// and the callback is still finished and settled.
func TestStop_StderrIsGoneToo(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := w.launchTo(write, slices.Concat(fakehost.Environ(session), h.Capture(session).Relay()), nil)
	write.Close()
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	read.Close()
	d.cut()
	d.told("STOPPING=1")
	h.Open("go")
	d.exits(0)
	if got := seed.Read(t, w.Store, row.DeliveryID).Status; got != store.CallbackAccepted {
		t.Errorf("got %s", got)
	}
	w.free()
}

// Without a bridge, by flags: the program reads the session variable itself.
func TestServe_ByFlags(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	d := w.launch(fakehost.Environ(session), []string{"--profile", h.Path, "--host", "my-agent", "--host-version", "1.8.0"})
	w.becomes(row.DeliveryID, store.CallbackAccepted)
	d.signal(syscall.SIGTERM)
	d.exits(0)
}

// A connector as docs/host-integration.md describes it: the Turns are made under
// a Profile of startup_v1, one per session; the outboxd runs under a second
// document with the same id and revision, without a session of its own, beside
// the outboxd of one of the sessions.
func TestServe_Connector(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	connector := filepath.Join(h.Dir, "connector.json")
	document := h.Document(`"driver": "environment_v1"`, `"driver": "environment_v1", "scope": "route_bound_v1"`)
	if err := os.WriteFile(connector, document, 0o600); err != nil {
		t.Fatal(err)
	}
	routes := map[string]store.Callback{}
	for _, s := range []string{"session-a", "session-b", "session-c"} {
		row := seed.Turn(t, w.Store, h.Capture(s).Route, s, "body")
		routes[row.DeliveryID] = row
	}
	env := slices.DeleteFunc(fakehost.Environ("x"), func(e string) bool { return strings.HasPrefix(e, fakehost.SessionVariable) })
	w.start(h, "session-a")
	w.launch(env, []string{"--profile", connector, "--host", "my-agent", "--host-version", "1.8.0", "--allow-route-bound"})
	for id := range routes {
		w.becomes(id, store.CallbackAccepted)
	}
	calls := h.Calls()
	if len(calls) != len(routes) {
		t.Errorf("%d calls for %d rows", len(calls), len(routes))
	}
	for _, c := range calls {
		if want := routes[c.Delivery].RouteControllerSessionID; c.Session != want {
			t.Errorf("session: got %s, want %s", c.Session, want)
		}
	}
}

// With a lifeline SIGINT and SIGHUP are for the owner: nothing happens.
func TestStop_SiblingIgnoresInterrupt(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	d := w.start(h, session).told("READY=1")
	d.signal(syscall.SIGINT)
	d.signal(syscall.SIGHUP)
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	w.becomes(row.DeliveryID, store.CallbackAccepted)
	d.signal(syscall.SIGTERM)
	d.exits(0)
}

// A drain that may not last ends with 70, and the row with its marker is never
// sent again.
func TestStop_DrainDeadline(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	env := slices.Concat(fakehost.Environ(session), h.Capture(session).Relay())
	d := w.launch(env, []string{"-drain-timeout", "200ms"})
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	d.signal(syscall.SIGTERM)
	d.exits(70)
	w.start(h, session).told("READY=1")
	w.becomes(row.DeliveryID, store.CallbackUncertain)
	h.Open("go")
	if n := len(h.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Proves core 19.42 with processes: one delivers, the other stands by and takes
// over at once when the first one ends or is killed.
func TestTwo_OneFamily(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(session).Route
	first := w.start(h, session).told("STATUS=delivering")
	second := w.start(h, session).told("STATUS=standby").told("READY=1")
	a := seed.Turn(t, w.Store, route, "a", "body")
	w.becomes(a.DeliveryID, store.CallbackAccepted)
	first.signal(syscall.SIGKILL)
	first.exits(-1)
	begin := time.Now()
	second.told("STATUS=delivering")
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("a dead holder was replaced after %v", d)
	}
	b := seed.Turn(t, w.Store, route, "b", "body")
	w.becomes(b.DeliveryID, store.CallbackAccepted)
	for _, row := range []store.Callback{a, b} {
		if n := h.CallsFor(row.DeliveryID); n != 1 {
			t.Errorf("%d calls for %s", n, row.TurnID)
		}
	}
}

// Many rows, two processes, and the one that delivers is killed again and again:
// no row is started twice once its marker stands, and none is lost.
func TestTwo_KilledUnderLoad(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", SleepBefore: 20})
	route := h.Capture(session).Route
	var rows []store.Callback
	for i := range 24 {
		rows = append(rows, seed.Turn(t, w.Store, route, fmt.Sprint(i), "body"))
	}
	done := func() int {
		n := 0
		for _, r := range rows {
			if !seed.Read(t, w.Store, r.DeliveryID).Open() {
				n++
			}
		}
		return n
	}
	pair := []*daemon{w.start(h, session).told("READY=1"), w.start(h, session).told("READY=1")}
	for _, at := range []int{4, 10, 16} {
		eventually(t, fmt.Sprintf("%d rows are settled", at), func() bool { return done() >= at })
		pair[0].signal(syscall.SIGKILL)
		pair[0].exits(-1)
		pair = []*daemon{pair[1], w.start(h, session)}
	}
	eventually(t, "all rows are settled", func() bool { return done() == len(rows) })
	uncertain := 0
	for _, r := range rows {
		got := seed.Read(t, w.Store, r.DeliveryID)
		attempts, err := w.Attempts(context.Background(), r.DeliveryID)
		if err != nil {
			t.Fatal(err)
		}
		started := 0
		for _, a := range attempts {
			if a.StartedAt != 0 {
				started++
			}
		}
		calls := h.CallsFor(r.DeliveryID)
		switch {
		case got.Status == store.CallbackUncertain:
			uncertain++
		case got.Status != store.CallbackAccepted || calls != 1:
			t.Errorf("%s: %s with %d calls", r.TurnID, got.Status, calls)
		}
		if started > 1 || calls > started {
			t.Errorf("%s: %d markers, %d calls", r.TurnID, started, calls)
		}
	}
	t.Logf("%d of %d rows are uncertain after three kills", uncertain, len(rows))
}

// Proves core 19.41 with a process that is stopped while its child runs: the
// lease goes to another, the row does not.
func TestPaused_RowIsNotTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("long: waits for the end of a lease")
	}
	w, h := newWorld(t), fakehost.New(t, "8000", "30000")
	h.Script(fakehost.Script{Word: "accepted", WaitFor: "go"})
	row := seed.Turn(t, w.Store, h.Capture(session).Route, "1", "body")
	paused := w.start(h, session)
	eventually(t, "the call", func() bool { return len(h.Calls()) == 1 })
	paused.signal(syscall.SIGSTOP)
	second := w.start(h, session).told("STATUS=standby")
	second.told("STATUS=delivering") // after the lease of 15 s
	other := seed.Turn(t, w.Store, h.Capture(session).Route, "2", "body")
	h.Script(fakehost.Script{Word: "accepted"}, other.DeliveryID)
	w.becomes(other.DeliveryID, store.CallbackAccepted) // it works
	if got := seed.Read(t, w.Store, row.DeliveryID); got.Status != store.CallbackClaimed || got.Attempts != 1 {
		t.Errorf("while the claim lives: got %s, attempt %d", got.Status, got.Attempts)
	}
	h.Open("go")
	paused.signal(syscall.SIGCONT)
	w.becomes(row.DeliveryID, store.CallbackAccepted)
	if n := h.CallsFor(row.DeliveryID); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Proves host-profile 15.27 and host-profile 15.37 through the program: what the child sees,
// and that nothing of it is in the log, the Store or the notifications.
func TestSecrets(t *testing.T) {
	const canary = "CANARY-session"
	w, h := newWorld(t), fakehost.New(t)
	route := h.Capture(canary).Route
	row := seed.Turn(t, w.Store, route, "1", "body")
	d := w.start(h, canary)
	w.becomes(row.DeliveryID, store.CallbackAccepted)
	h.Write([]byte("CANARY-broken"))
	row = seed.Turn(t, w.Store, route, "2", "body")
	w.becomes(row.DeliveryID, store.CallbackPermanent)
	d.cut()
	d.exits(0)
	got := h.Calls()[0]
	slices.Sort(got.Env)
	if want := []string{"MY_AGENT_TOKEN=CANARY-token", "PATH=/usr/bin:/bin"}; !slices.Equal(got.Env, want) {
		t.Errorf("the child saw %q", got.Env)
	}
	logs, err := filepath.Glob(filepath.Join(w.dir, "log", "*.ndjson"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("runtime logs: %v, %v", logs, err)
	}
	file, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"CANARY", h.Dir, "fake-host"} {
		if strings.Contains(d.out.String(), secret) || bytes.Contains(file, []byte(secret)) {
			t.Errorf("a log holds %s", secret)
		}
	}
	for _, name := range []string{"store.db", "store.db-wal"} { // the route of a row names the session, and nothing else may stand there
		data, err := os.ReadFile(filepath.Join(w.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"CANARY-token", h.Dir, "fake-host"} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %s", name, secret)
			}
		}
	}
}

// The delivering process starts a callback within milliseconds of the commit.
func TestLatency(t *testing.T) {
	w, h := newWorldAlone(t), fakehost.New(t)
	route := h.Capture(session).Route
	w.start(h, session).told("READY=1")
	var took []time.Duration
	for i := range 15 {
		row := seed.Turn(t, w.Store, route, fmt.Sprint(i), "body")
		w.becomes(row.DeliveryID, store.CallbackAccepted)
		attempts, err := w.Attempts(context.Background(), row.DeliveryID)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(attempts[0].StartedAt-row.CreatedAt)*time.Millisecond)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("commit of the row → start marker: median %v, worst %v", median, took[len(took)-1])
	if median > time.Second {
		t.Errorf("median %v: the doorbell does not work", median)
	}
}

func TestStatusAndAbandon(t *testing.T) {
	w, h := newWorld(t), fakehost.New(t)
	h.Script(fakehost.Script{Word: "retry"})
	row := seed.Turn(t, w.Store, h.Capture("CANARY-session").Route, "1", "body")
	d := w.start(h, "CANARY-session")
	w.becomes(row.DeliveryID, store.CallbackRetryWait)
	out := w.outboxd("status", "-json")
	var st struct {
		Delivering int
		Counts     []map[string]any
		Open       []map[string]any
	}
	if err := json.Unmarshal(out, &st); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if st.Delivering != 1 || len(st.Counts) != 1 || len(st.Open) != 1 || st.Open[0]["delivery_id"] != row.DeliveryID ||
		st.Open[0]["last_error_code"] != "command_json_callback_retryable_failure" {
		t.Errorf("got %s", out)
	}
	text := w.outboxd("status")
	if !bytes.Contains(text, []byte(row.DeliveryID)) {
		t.Errorf("got %s", text)
	}
	if got, want := string(w.outboxd("abandon", "--delivery", row.DeliveryID)), row.DeliveryID+" superseded\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := seed.Read(t, w.Store, row.DeliveryID); got.Status != store.CallbackSuperseded || got.SupersededReason != store.CodeOperatorAbandoned {
		t.Errorf("got %s, %s", got.Status, got.SupersededReason)
	}
	d.cut()
	d.exits(0)
	for _, text := range [][]byte{out, text, d.out.Bytes()} {
		if bytes.Contains(text, []byte("CANARY")) {
			t.Errorf("the session is shown: %s", text)
		}
	}
}

// outboxd runs a command that looks into the Store.
func (w *world) outboxd(args ...string) []byte {
	w.t.Helper()
	cmd := exec.Command(testkit.BuildProgram(w.t, "outboxd", "drawbridge_crashpoints"), append(args, "-store-dir", w.dir)...)
	cmd.Env = []string{"HOME=" + w.home}
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("outboxd %v: %v", args, err)
	}
	return out
}
