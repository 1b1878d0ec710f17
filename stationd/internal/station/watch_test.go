package station_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
	"drawbridge/stationd/internal/supervise"
)

// Proves station 17.V2 (TTL): the time of an attempt ends it, however busy it is.
func TestTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(w.spec().with("ttl", "3s", "idle", "3s"))
	row := w.ended(s)
	if row.StopReason != store.StopTTL || row.StopBy != "stationd" || row.StopAt < row.TTLDeadline-100 {
		t.Errorf("%+v", row)
	}
	if f := w.document(s); f.Stop.Reason != store.StopTTL || f.Limits.TTL != "3s" {
		t.Errorf("%+v", f.Stop)
	}
	w.clean(s)
}

// Proves station 17.M6, 17.V2 (idle): only clients keep an attempt from being idle;
// probes of its health, its heartbeat and looking at its status do not.
func TestIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const idle = 2500 * time.Millisecond
	s := w.ready(w.spec().with("idle", idle.String()))
	ticket := w.ticket(s)
	var last int64
	for began := time.Now(); time.Since(began) < 2*idle; time.Sleep(idle / 10) {
		last = w.Store.Now()
		if status, body := w.get(s, ticket, "/health"); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	row := w.await(s, store.AttemptReady)
	for row.Live() {
		status, err := w.Store.StationStatus(t.Context(), s.Station.ID)
		w.ok(err)
		row = status.Attempt
		time.Sleep(20 * time.Millisecond)
	}
	if quiet := row.StopAt - last; row.StopReason != store.StopIdle || quiet < idle.Milliseconds()-100 || quiet > idle.Milliseconds()+slack {
		t.Errorf("%s after %d ms", row.StopReason, quiet)
	}
	if row.HeartbeatAt <= row.ActivityAt {
		t.Errorf("heartbeat %d, activity %d", row.HeartbeatAt, row.ActivityAt)
	}
	w.ended(s)
	w.document(s)
	w.clean(s)
}

// Proves station 17.M7: a lease that is not prolonged is lost at its own end, while the
// shim answers; a shim that does not answer is lost after three beats, while the lease
// is prolonged. Two columns, two reasons.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		p := &faulty{expires: 3 * time.Second, heartbeat: func() error { return errors.New("no answer") }}
		w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
		s := w.ready(w.spec())
		ticket := w.ticket(s)
		acquired := w.workspace(s).HeartbeatAt
		row := w.ended(s)
		l := w.workspace(s)
		if row.StopReason != store.StopLeaseLost || row.StopAt < l.ExpiresAt || l.HeartbeatAt != acquired || row.HeartbeatAt <= acquired {
			t.Errorf("%s at %d, lease until %d, beats %d and %d", row.StopReason, row.StopAt, l.ExpiresAt, l.HeartbeatAt, row.HeartbeatAt)
		}
		if status, _ := w.get(s, ticket, "/health"); status == 200 {
			t.Error("the gate answers")
		}
		if !has(w.events(s), "lease_lost", "lease_released") {
			t.Error(w.events(s))
		}
		w.document(s)
		w.clean(s)
	})
	t.Run("shim", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.ready(w.spec())
		row := w.await(s, store.AttemptReady)
		testkit.Eventually(t, patience, func() bool {
			now, err := w.Store.StationAttempt(t.Context(), s.Station.ID, 1)
			return err == nil && now.HeartbeatAt != 0
		})
		shim, err := process.Of(int(row.ShimPID))
		w.ok(err)
		w.ok(process.Signal(shim, unix.SIGSTOP))
		row = w.ended(s)
		l := w.workspace(s)
		if row.StopReason != store.StopLost || l.HeartbeatAt <= row.HeartbeatAt {
			t.Errorf("%s, beats %d and %d", row.StopReason, row.HeartbeatAt, l.HeartbeatAt)
		}
		if f := w.document(s); f.Stop.Reason != store.StopLost || !slices.Contains(signals(f), "shim SIGKILL") || f.Stop.Cleanup.Result != evidence.CleanupForced {
			t.Errorf("%+v", f.Stop)
		}
		w.clean(s)
	})
}

// A shim that does not answer because its machine is out of reach has missed nothing,
// until its orphan rule has ended it (station §5.3).
func TestHeartbeats_Cut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		orphan time.Duration
		mends  bool
	}{"mended": {time.Minute, true}, "for good": {5 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var down atomic.Bool
			var asked atomic.Int64
			p := &faulty{bootID: func() error {
				if !down.Load() {
					return nil
				}
				asked.Add(1)
				return fault.New(fault.ProviderUnreachable, "reach the machine: the line is cut")
			}}
			w := newWorld(t, func(o *stationtest.Options) { o.Wrap, o.Orphan = p.wrap, c.orphan })
			s := w.ready(w.spec())
			row := w.await(s, store.AttemptReady)
			shim, err := process.Of(int(row.ShimPID))
			w.ok(err)
			down.Store(true)
			w.ok(process.Signal(shim, unix.SIGSTOP)) // as a cut line has it: no answer comes
			since := w.Store.Now()
			if !c.mends {
				if row := w.ended(s); row.StopReason != store.StopLost || row.StopAt-since < 3500 {
					t.Errorf("%s after %d ms", row.StopReason, row.StopAt-since)
				}
				w.clean(s)
				return
			}
			testkit.Eventually(t, patience, func() bool { return asked.Load() > 4 })
			w.ok(process.Signal(shim, unix.SIGCONT))
			down.Store(false)
			testkit.Eventually(t, patience, func() bool {
				now, err := w.Store.StationAttempt(t.Context(), s.Station.ID, 1)
				return err == nil && now.HeartbeatAt > since+1000
			})
			if status, body := w.get(s, w.ticket(s), "/health"); status != 200 {
				t.Errorf("%d %s", status, body)
			}
			if row := w.stop(s); row.StopReason != store.StopOperator {
				t.Errorf("%+v", row)
			}
			w.clean(s)
		})
	}
}

// Proves station 17.C5 (a part of stationd that hangs): a conductor that makes no step is
// as bad as a loop that does not turn, and one that waits for a stop is not.
func TestHealthy(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	p := &faulty{}
	w := newWorld(t, func(o *stationtest.Options) {
		o.Wrap = p.wrap
		o.Adjust = func(m *station.Manager) { hurried(m); m.Stuck(3 * time.Second) }
	})
	s := w.ready(w.spec())
	time.Sleep(3500 * time.Millisecond) // nothing shall happen
	if !w.Manager.Healthy() {
		t.Error("an attempt that is ready is taken for one that hangs")
	}
	w.stop(s)
	p.startShim = func(context.Context) { <-hang }
	next := w.start(w.spec())
	testkit.Eventually(t, patience, func() bool { return !w.Manager.Healthy() })
	close(hang)
	w.await(next, store.AttemptReady)
	testkit.Eventually(t, patience, w.Manager.Healthy)
	w.stop(next)
	w.clean(next)
}

// Proves station 17.V2 (lost supervisor): a shim that is killed takes everything with
// it, and leaves a document.
func TestShimKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec(tree...))
	shim, err := process.Of(int(w.await(s, store.AttemptReady).ShimPID))
	w.ok(err)
	w.ok(process.Signal(shim, unix.SIGKILL))
	row := w.ended(s)
	f := w.document(s)
	if row.StopReason != store.StopLost || f.Process.Exit.Source != evidence.ExitUnknown || len(f.Stop.SignalPath) != 0 {
		t.Errorf("%s, %+v, %+v", row.StopReason, f.Process.Exit, f.Stop)
	}
	w.clean(s)
}

// Proves station 17.B1, 17.B2, 17.B3, 17.B5, 17.B6: a listener outside loopback, from
// the beginning or later, of the daemon or of a descendant, ends the attempt where the
// policy is strict, and is noted where it is contained; another port than the one told
// is not readiness.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags  []string
		change []any
		reason string // "": it becomes ready
		found  string // address that is noted
	}{
		"every address":          {[]string{"-host", "0.0.0.0"}, nil, store.StopLoopback, "[::]:"},
		"every IPv6 address":     {[]string{"-host", "::"}, nil, store.StopLoopback, "[::]:"},
		"a second port":          {[]string{"-also", "0.0.0.0:9999"}, nil, store.StopLoopback, ":9999"},
		"a port of a child":      {[]string{"-children", "fork", "-child-listen", "0.0.0.0:9998"}, nil, store.StopLoopback, ":9998"},
		"contained":              {[]string{"-also", "0.0.0.0:9999"}, []any{"loopback", "contained"}, "", ":9999"},
		"UDP":                    {[]string{"-udp", "0.0.0.0:9997"}, nil, "", ":9997"},
		"loopback":               {[]string{"-also", "127.0.0.1:9999"}, nil, "", ""},
		"another port than told": {[]string{"-bind", "9996"}, []any{"readiness", map[string]any{"tcp": true, "timeoutMs": 1500}}, store.StopNotReady, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			began := time.Now()
			s := w.start(w.spec(c.flags...).with(c.change...))
			row := w.await(s, store.AttemptReady)
			if c.reason == "" {
				if row.State != store.AttemptReady {
					t.Fatalf("%s for %s", row.State, row.StopReason)
				}
				row = w.stop(s)
			} else {
				row = w.ended(s)
				if row.StopReason != c.reason || row.StartedAt != 0 && c.reason == store.StopLoopback && row.StopAt-row.StartedAt > 3000+slack {
					t.Errorf("%s after %v", row.StopReason, time.Since(began))
				}
			}
			f := w.document(s)
			switch {
			case f.Loopback.Checks == 0:
				t.Error("nobody looked")
			case c.found == "" && len(f.Loopback.Findings) != 0,
				c.found != "" && (len(f.Loopback.Findings) != 1 || !strings.Contains(f.Loopback.Findings[0].Address, c.found) || f.Loopback.Findings[0].Breach != (c.reason != "")):
				t.Errorf("%+v", f.Loopback)
			}
			if got := strings.Count(strings.Join(w.events(s), " "), "listener_found"); got != len(f.Loopback.Findings) {
				t.Errorf("%d events", got)
			}
			w.clean(s)
		})
	}
}

// What listens has to be seen (station §7.2): a shim that answers and does not say it is
// complained of once, and where the policy is strict its attempt ends as with a shim that
// does not answer.
func TestLoopback_Blind(t *testing.T) {
	t.Parallel()
	const complaint = "what listens cannot be looked at"
	for _, policy := range []string{"strict", "contained"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var blind atomic.Bool
			p := &faulty{blind: blind.Load}
			w := newWorld(t, func(o *stationtest.Options) { o.Wrap = p.wrap })
			s := w.ready(w.spec().with("loopback", policy))
			blind.Store(true)
			if policy == "strict" {
				if row := w.ended(s); row.StopReason != store.StopLost {
					t.Errorf("%+v", row)
				}
				if n := strings.Count(w.log.String(), complaint); n != 1 {
					t.Errorf("%d complaints", n)
				}
				w.clean(s)
				return
			}
			testkit.Eventually(t, patience, func() bool { return strings.Contains(w.log.String(), complaint) })
			time.Sleep(3 * supervise.CheckEvery) // nothing shall happen
			blind.Store(false)
			testkit.Eventually(t, patience, func() bool { return strings.Contains(w.log.String(), "can be looked at again") })
			blind.Store(true)
			testkit.Eventually(t, patience, func() bool { return strings.Count(w.log.String(), complaint) == 2 })
			if row := w.stop(s); row.StopReason != store.StopOperator {
				t.Errorf("%+v", row)
			}
			w.clean(s)
		})
	}
}

// Proves station 17.E1 (at the level of a station): without a profile nothing
// leads out and evidence says so.
func TestNoWayOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	ticket := w.ticket(s)
	for _, address := range []string{"1.1.1.1:443", "10.0.0.1:80", "169.254.169.254:80"} {
		if status, body := w.get(s, ticket, "/dial?address="+address); status != 200 || !strings.Contains(body, "network is unreachable") {
			t.Errorf("%s: %d %s", address, status, body)
		}
	}
	if _, body := w.get(s, ticket, "/dial?address=127.0.0.1:3128"); !strings.Contains(body, "refused") {
		t.Error(body)
	}
	w.stop(s)
	if f := w.document(s); f.Egress.Profile != "none" || len(f.Egress.Allowed)+len(f.Egress.Denied) != 0 {
		t.Errorf("%+v", f.Egress)
	}
	w.clean(s)
}

// Proves station 17.V4, 17.E3 (at the level of a station): with a profile a daemon finds
// the proxy, which is there before it; what was refused stands in evidence.
func TestWayOut(t *testing.T) {
	t.Parallel()
	profiles, err := egress.Parse([]byte(`{"profiles":[{"name":"some","allow":["*.allowed.invalid"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *stationtest.Options) { o.Egress = profiles })
	s := w.ready(w.spec().with("egressProfile", "some"))
	ticket := w.ticket(s)
	for range 3 {
		if status, body := w.get(s, ticket, "/fetch?url=http://other.invalid/"); status != 200 || !strings.Contains(body, "403") {
			t.Errorf("%d %s", status, body)
		}
	}
	w.get(s, ticket, "/fetch?url=http://a.allowed.invalid/")
	w.get(s, ticket, "/fetch?url=http://10.1.2.3/")
	w.stop(s)
	f := w.document(s)
	denied := map[string]int64{}
	for _, row := range f.Egress.Denied {
		denied[row.Host+" "+string(row.Code)] = row.Count
	}
	if f.Egress.Profile != "some" || denied["other.invalid name_denied"] != 3 || denied["a.allowed.invalid dns_failed"] != 1 || denied["10.1.2.3 ip_literal"] != 1 || len(denied) != 3 {
		t.Errorf("%+v", f.Egress)
	}
	w.clean(s)
}

// The streams of an attempt that stops end with its reason, and the daemon's output is
// kept to its last line.
func TestStop_Streams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec("-flood", "300000"))
	answer := w.request(s, w.ticket(s), http.MethodGet, "/events?every=20ms")
	ended := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(answer.Body)
		ended <- string(data)
	}()
	testkit.Eventually(t, patience, func() bool { // all of the flood is kept while it runs
		var n int
		w.ok(w.Manager.Logs(context.Background(), s.Station.ID, 1, false, func(_ string, text []byte) error { n += len(text); return nil }))
		return n >= 300_000
	})
	w.stop(s)
	if text := <-ended; !strings.HasSuffix(strings.TrimSpace(text), `"reason":"operator_stop","final":true}`) {
		t.Errorf("%.300q", text)
	}
	if f := w.document(s); f.Logs.Dropped != 0 || f.Logs.Bytes < 300_000 || f.AgentRuntime.Bridge.Streams != 1 {
		t.Errorf("%+v, %+v", f.Logs, f.AgentRuntime.Bridge)
	}
	w.clean(s)
}
