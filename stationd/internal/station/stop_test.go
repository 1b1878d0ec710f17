package station_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
	"drawbridge/stationd/internal/supervise"
)

// tree is a daemon that ignores TERM, with descendants of every kind that do.
var tree = []string{"-deaf", "-children", "plain,setsid,fork,stopped,respawn"}

// Proves station 17.X3, 17.X5: a deaf daemon dies with all its descendants at grace and
// at most a second; evidence shows both signals; meanwhile the gate refuses.
func TestStop_Deaf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec(tree...).with("graceMs", 2000))
	ticket := w.ticket(s)
	testkit.Eventually(t, patience, func() bool { return w.alive() >= 5 }, "descendants")
	row, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID)
	if err != nil || row.Desired != store.WantStopping {
		t.Fatalf("%+v, %v", row, err)
	}
	status, body := w.get(s, ticket, "/health")
	if living := w.alive(); status != http.StatusServiceUnavailable || living == 0 {
		t.Errorf("%d %s while %d live", status, body, living)
	}
	row = w.ended(s)
	f := w.document(s)
	if got := strings.Join(signals(f), ","); got != "group SIGTERM,all SIGKILL" || f.Stop.Cleanup.Result != evidence.CleanupForced {
		t.Errorf("%s, %s", got, f.Stop.Cleanup.Result)
	}
	if took := f.Stop.SignalPath[1].At - f.Stop.SignalPath[0].At; took < 2000 || took > 3000+slack {
		t.Errorf("killed %d ms after TERM", took)
	}
	if e := f.Process.Exit; e.Signal != "SIGKILL" || e.Source != evidence.ExitFromShim {
		t.Errorf("%+v", e)
	}
	if again, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID); err != nil || again.StopAt != row.StopAt || again.State != store.AttemptTerminal {
		t.Errorf("%+v, %v", again, err)
	}
	w.clean(s)
}

// slack is what a busy machine may add to a time.
const slack = 2000

// Proves station 17.X4: the lease is released after the last process is gone and after
// the evidence.
func TestStop_LeaseLast(t *testing.T) {
	t.Parallel()
	var w *world
	var s station.Started
	var atRelease error
	p := &faulty{release: func() error {
		row, err := w.Store.StationAttempt(context.Background(), s.Station.ID, 1)
		_, noEvidence := w.Store.StationEvidence(context.Background(), s.Station.ID, 1)
		if n := w.alive(); err != nil || row.Live() || noEvidence != nil || n != 0 {
			atRelease = errors.Join(err, noEvidence, errors.New("too early: "+row.State))
		}
		return nil
	}}
	w = newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
	s = w.ready(w.spec("-children", "plain,setsid,fork"))
	w.stop(s)
	if atRelease != nil {
		t.Error(atRelease)
	}
	if got := strings.Join(p.called(), " "); got != "acquire start end release" {
		t.Error(got)
	}
	w.clean(s)
}

// A lease that its provider does not take back is kept, and tried again.
func TestStop_ReleaseFails(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	fails := true
	p := &faulty{release: func() error {
		mu.Lock()
		defer mu.Unlock()
		if fails {
			return fault.New(fault.ProviderUnreachable, "it is away")
		}
		return nil
	}}
	w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
	s := w.ready(w.spec())
	w.stop(s)
	if l := w.workspace(s); l.State != store.WorkspaceFailed || !strings.Contains(string(l.Cleanup), string(fault.ProviderUnreachable)) {
		t.Errorf("%s %s", l.State, l.Cleanup)
	}
	mu.Lock()
	fails = false
	mu.Unlock()
	testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceReleased })
	w.clean(s)
}

// Proves station 17.X6, 17.V2: what cannot be ended is named, the attempt stays stopping
// and the lease is not released; after the last try the attempt ends with that in its
// evidence, and only force, with a reason, lets the lease go.
func TestStop_Unkillable(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"tries run out": 20 * time.Millisecond, "force ends the tries": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &faulty{end: func() ([]supervise.Left, bool) { return []supervise.Left{{PID: 4711, Name: "stuck"}}, true }}
			w := newWorld(t, func(o *stationtest.Options) {
				o.Wrap = p.wrap
				o.Adjust = func(m *station.Manager) {
					m.Hurry(20*time.Millisecond, time.Second, time.Second, pause, time.Hour)
				}
			})
			s := w.ready(w.spec())
			_, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID)
			w.ok(err)
			testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceFailed })
			lease := w.workspace(s).LeaseID
			if pause == time.Hour {
				row, err := w.Store.StationAttempt(t.Context(), s.Station.ID, 1)
				if err != nil || row.State != store.AttemptStopping || !strings.Contains(string(row.Cleanup), "stuck") {
					t.Errorf("%s %s", row.State, row.Cleanup)
				}
			} else {
				w.ended(s)
				if _, err := w.Manager.ReleaseLease(t.Context(), w.ann, lease, false, ""); !fault.Is(err, fault.CleanupFailed) {
					t.Errorf("without force: %v", err)
				}
			}
			if _, err := w.Manager.ReleaseLease(t.Context(), w.ann, lease, true, ""); !fault.Is(err, fault.ForceReason) {
				t.Errorf("without a reason: %v", err)
			}
			l, err := w.Manager.ReleaseLease(t.Context(), w.ann, lease, true, "the machine is scrapped")
			if err != nil || l.State != store.WorkspaceReleased {
				t.Errorf("%+v, %v", l, err)
			}
			if f := w.document(s); f.Stop.Cleanup.Result != evidence.CleanupFailed || len(f.Stop.Cleanup.Left) != 1 || f.Stop.Cleanup.Left[0].PID != 4711 || f.Stop.Cleanup.LeaseRelease != evidence.LeaseKept {
				t.Errorf("%+v", f.Stop)
			}
			all, err := w.Store.StationEvents(t.Context(), s.Station.ID, 0, 1000)
			w.ok(err)
			if last := all[len(all)-1]; last.Kind != "lease_forced" || !strings.Contains(string(last.Detail), "the machine is scrapped") {
				t.Errorf("%s %s", last.Kind, last.Detail)
			}
			if slices.Contains(p.called(), "release") {
				t.Error("the provider was told to release it")
			}
		})
	}
}

// A shim that nobody reaches holds the end of its attempt up no longer than the tries
// last: there is a document then, and the lease is given back when the proof is to be had.
func TestStop_Away(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	p := &faulty{away: away.Load}
	w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
	s := w.ready(w.spec())
	shim, err := process.Of(int(w.await(s, store.AttemptReady).ShimPID))
	w.ok(err)
	away.Store(true)
	w.ok(process.Signal(shim, unix.SIGSTOP))
	t.Cleanup(func() { _ = process.Signal(shim, unix.SIGKILL) })
	w.stop(s)
	if f := w.document(s); f.Stop.Cleanup.Result != evidence.CleanupFailed || f.Stop.Cleanup.LeaseRelease != evidence.LeaseKept {
		t.Errorf("%+v", f.Stop)
	}
	away.Store(false)
	testkit.Eventually(t, patience, func() bool { return w.workspace(s).State == store.WorkspaceReleased })
	w.clean(s)
}

// Proves station 17.X7, 17.X8: ten stops at once with different reasons are one: one
// reason, one TERM, one document, and everybody gets the same answer.
func TestStop_Ten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	reasons := []string{store.StopOperator, store.StopReplaced, store.StopReleased, store.StopLeaseLost, store.StopTTL, store.StopIdle, store.StopExited,
		store.StopLoopback, store.StopLost, store.StopShutdown}
	answers := make([]store.StationAttempt, len(reasons))
	var all sync.WaitGroup
	for i, reason := range reasons {
		all.Go(func() {
			var err error
			if answers[i], err = w.Manager.Ask(t.Context(), s.Station.ID, reason, "by-"+reason); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	row := w.ended(s)
	for _, a := range answers {
		if a.StopReason != row.StopReason || a.StopAt != row.StopAt || a.StopBy != "by-"+row.StopReason {
			t.Errorf("%s by %s, and %s by %s", a.StopReason, a.StopBy, row.StopReason, row.StopBy)
		}
	}
	if f := w.document(s); f.Stop.Reason != row.StopReason || strings.Join(signals(f), ",") != "group SIGTERM" {
		t.Errorf("%+v", f.Stop)
	}
	w.clean(s)
}

// Proves station 17.X9: after a stop during launching nothing starts; the shim that was
// on its way is ended.
func TestStop_Launching(t *testing.T) {
	t.Parallel()
	launching, stopped := make(chan struct{}), make(chan struct{})
	p := &faulty{startShim: func(context.Context) { close(launching); <-stopped }}
	w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
	s := w.start(w.spec())
	<-launching
	row, err := w.Manager.Stop(t.Context(), w.ann, s.Station.ID)
	if err != nil || row.State != store.AttemptLaunching {
		t.Fatalf("%+v, %v", row, err)
	}
	close(stopped)
	row = w.ended(s)
	if row.DaemonPID != 0 || row.StartedAt != 0 || has(w.events(s), "daemon_started") {
		t.Errorf("%+v", row)
	}
	if f := w.document(s); f.Process.PID != 0 || f.Process.Exit.Code != nil {
		t.Errorf("%+v", f.Process)
	}
	w.clean(s)
}

// Proves station 17.M8, 17.M9, 17.V2: a daemon that ends by itself, or is killed by
// somebody, ends its attempt, with what is known of its end; nothing is started again.
func TestDaemonEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec("-children", "plain,setsid,fork"))
	w.request(s, w.ticket(s), http.MethodPost, "/exit?code=0")
	row := w.ended(s)
	f := w.document(s)
	if row.StopReason != store.StopExited || f.Process.Exit.Code == nil || *f.Process.Exit.Code != 0 {
		t.Errorf("%s, %+v", row.StopReason, f.Process.Exit)
	}
	w.clean(s)

	killed := w.ready(w.spec())
	w.ok(process.Signal(w.daemonOf(w.await(killed, store.AttemptReady)), 9))
	row = w.ended(killed)
	if f := w.document(killed); row.StopReason != store.StopExited || f.Process.Exit.Signal != "SIGKILL" || f.Process.Exit.Source != evidence.ExitFromShim {
		t.Errorf("%s, %+v", row.StopReason, f.Process.Exit)
	}
	w.clean(killed)
	for until := time.Now().Add(noneFor); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if n := w.alive(); n != 0 {
			t.Fatalf("%d processes came back", n)
		}
	}
	attempts, err := w.Store.StationAttempts(t.Context(), killed.Station.ID)
	if err != nil || len(attempts) != 1 {
		t.Errorf("%d attempts, %v", len(attempts), err)
	}
}

// noneFor is how long no new process may appear (station §17.M8).
const noneFor = 10 * time.Second

// Proves station 17.X10: at the end of stationd every attempt ends within the drain,
// whatever its grace; streams do not delay it, and get their last event.
func TestShutdown(t *testing.T) {
	t.Parallel()
	const drain = 9 * time.Second
	w := newWorld(t, func(o *stationtest.Options) { o.Drain = drain })
	deaf := w.ready(w.spec(tree...).with("graceMs", 60_000))
	streaming := w.ready(w.spec())
	answer := w.request(streaming, w.ticket(streaming), http.MethodGet, "/events?every=50ms")
	began := time.Now()
	w.close()
	if took := time.Since(began); took > drain {
		t.Errorf("it took %v", took)
	}
	stream, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(stream), `"reason":"service_shutdown","final":true`) {
		t.Errorf("%.300q, %v", stream, err)
	}
	w.open()
	for _, s := range []station.Started{deaf, streaming} {
		if row := w.ended(s); row.StopReason != store.StopShutdown {
			t.Errorf("%+v", row)
		}
		w.document(s)
		w.clean(s)
	}
}

// What is to be kept at the end of stationd runs on, and the next one has it.
func TestShutdown_Keep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *stationtest.Options) { o.OnExit = station.OnExitKeep })
	s := w.ready(w.spec())
	before, ticket := w.await(s, store.AttemptReady), w.ticket(s)
	w.close()
	if !w.daemonOf(before).Alive() {
		t.Fatal("the daemon has ended")
	}
	w.open()
	if row := w.await(s, store.AttemptReady); row.State != store.AttemptReady || row.DaemonPID != before.DaemonPID {
		t.Errorf("%+v", row)
	}
	if status, body := w.get(s, ticket, "/health"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	w.stop(s)
	w.clean(s)
}
