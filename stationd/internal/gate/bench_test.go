package gate_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"drawbridge/stationd/internal/gate"
)

// report gives the quantiles that the bounds of the gate speak of.
func report(b *testing.B, name string, took []time.Duration) {
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) }
	b.ReportMetric(at(0.5), name+"-p50-µs")
	b.ReportMetric(at(0.99), name+"-p99-µs")
}

// BenchmarkGate_Request measures requests through the gate and, in turn with them,
// the same ones straight to the daemon.
func BenchmarkGate_Request(b *testing.B) {
	w := newWorld(b)
	w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
		w.daemon.requests()
		_, _ = io.WriteString(rw, `{"ok":true}`)
	})
	straight := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.toBack(ctx) }}
	defer straight.CloseIdleConnections()
	through := w.request("GET", "/v1/health", nil)
	direct := through.Clone(b.Context())
	direct.URL.Path = "/v1/health"
	once := func(rt http.RoundTripper, r *http.Request) time.Duration {
		begin := time.Now()
		resp, err := rt.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b.Fatalf("status %d", resp.StatusCode)
		}
		return time.Since(begin)
	}
	var ours, base []time.Duration
	for b.Loop() {
		ours = append(ours, once(w.client.Transport, through))
		base = append(base, once(straight, direct))
	}
	report(b, "gate", ours)
	report(b, "direct", base)
}

// BenchmarkGate_Event measures the way of an event from the daemon to the client.
func BenchmarkGate_Event(b *testing.B) {
	w := newWorld(b)
	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	s := w.open(w.request("GET", "/events", nil))
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		source.send(b, "data: {\"type\":\"delta\",\"text\":\"hello\"}\n\n")
		s.event()
		took = append(took, time.Since(begin))
	}
	report(b, "event", took)
}

// BenchmarkGate_Streams opens 500 streams, and measures what they hold and how
// long an event to each of them takes, all at once. Clients and daemon share the
// process, so the memory is an upper bound of the gate's.
func BenchmarkGate_Streams(b *testing.B) {
	const streams = 500
	w := newWorld(b, func(_ *gate.Options, bridge *gate.Bridge) {
		bridge.Limits = gate.Limits{Requests: streams, Streams: streams, TicketStreams: streams}
	})
	var mu sync.Mutex
	var all []chan string
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		e := newEvents()
		mu.Lock()
		all = append(all, e.write)
		mu.Unlock()
		e.ServeHTTP(rw, r)
	})
	before := heap()
	open := make([]*stream, streams)
	for i := range open {
		open[i] = w.open(w.request("GET", "/events", nil))
	}
	held := heap() - before
	var worst time.Duration
	for n := 0; b.Loop(); n++ {
		event := fmt.Sprintf("data: %d\n\n", n)
		begin := time.Now()
		var wg sync.WaitGroup
		for _, source := range all {
			wg.Go(func() { source <- event })
		}
		for _, s := range open {
			wg.Go(func() { s.event() })
		}
		wg.Wait()
		worst = max(worst, time.Since(begin))
	}
	b.ReportMetric(float64(held)/(1<<20), "MiB")
	b.ReportMetric(float64(worst.Milliseconds()), "worst-ms")
}

// heap is what is in use, stacks included.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
