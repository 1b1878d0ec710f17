package gate_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/stationd/internal/gate"
)

// Proves station 17.S1: an event is at the client at once, without a length,
// compression or anything else that would hold it back.
func TestStream_Prompt(t *testing.T) {
	w := newWorld(t)
	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	r := w.request("GET", "/events", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	s := w.open(r)
	h := s.resp.Header
	if h.Get("X-Accel-Buffering") != "no" || h.Get("Content-Length") != "" || h.Get("Content-Encoding") != "" || h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", h)
	}
	best := time.Hour
	for i := range 20 {
		event := fmt.Sprintf("id: %d\ndata: x\n\n", i)
		begin := time.Now()
		source.send(t, event)
		if got := s.event(); got != event {
			t.Fatalf("got %q", got)
		}
		best = min(best, time.Since(begin))
	}
	if best > 50*time.Millisecond { // the best of many, since the machine has other work
		t.Errorf("an event takes %v", best)
	}
	close(source.write)
	s.rest()
	if c := w.route.Counts(); c.Streams != 1 || c.Requests != 1 {
		t.Errorf("counts %+v", c)
	}
}

// Proves station 17.S2 and 17.S8: all kinds of streams arrive byte for byte, and a
// stream that its daemon ends just ends.
func TestStream_Bytes(t *testing.T) {
	w := newWorld(t)
	for _, tc := range append(streams, struct {
		name, text string
		events     int
	}{"large", "data: " + strings.Repeat("x", gate.MaxEvent-8) + "\n\ndata: b\n\n", 2}) {
		t.Run(tc.name, func(t *testing.T) {
			w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				step := max(1, len(tc.text)/50)
				for rest := tc.text; rest != ""; rest = rest[min(step, len(rest)):] {
					_, _ = io.WriteString(rw, rest[:min(step, len(rest))])
					_ = http.NewResponseController(rw).Flush()
				}
			})
			s := w.open(w.request("GET", "/events", nil))
			if got := s.rest(); got != tc.text {
				t.Errorf("got %d bytes %.100q, want %d", len(got), got, len(tc.text))
			}
		})
	}
}

// The type alone makes a stream, however it is written.
func TestStream_Type(t *testing.T) {
	w := newWorld(t)
	for kind, stream := range map[string]bool{
		"text/event-stream": true, "Text/Event-Stream ; charset=utf-8": true, "text/event-stream; a=1; a=2": true, "text/event-stream;;": true,
		"text/event-streams": false, "application/json; x=text/event-stream": false, "": false,
	} {
		w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["Content-Type"] = []string{kind}
			_, _ = io.WriteString(rw, "data: a\n\n")
		})
		if a := w.get("/v1"); (a.header.Get("X-Accel-Buffering") == "no") != stream || a.body != "data: a\n\n" {
			t.Errorf("%q: %+v", kind, a)
		}
	}
}

// An event over its bound ends the stream, and says so.
func TestStream_EventTooLarge(t *testing.T) {
	w := newWorld(t)
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, "data: a\n\ndata: "+strings.Repeat("x", gate.MaxEvent))
	})
	s := w.open(w.request("GET", "/events", nil))
	if got := s.rest(); got != "data: a\n\n"+last("ready", "event_too_large", "false") {
		t.Errorf("got %.200q", got)
	}
	if n := w.route.Counts().Refused["event_too_large"]; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// Proves station 17.S4: when the attempt stops, each of five streams ends within a
// second with one whole last event without an id; the half of an event is not
// delivered.
func TestStream_Stop(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.Limits.TicketStreams = 5 })
	sources := make(chan *events, 5)
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) { (<-sources).ServeHTTP(rw, r) })
	var open []*stream
	var from []*events
	for i := range 5 {
		e := newEvents()
		sources <- e
		s := w.open(w.request("GET", "/events", nil))
		e.send(t, fmt.Sprintf("id: %d\ndata: whole\n\n", i))
		if i == 2 {
			e.send(t, "id: 99\ndata: ha")
		}
		open, from = append(open, s), append(from, e)
	}
	for _, s := range open {
		s.event() // the halves are on their way, too
	}
	begin := time.Now()
	w.stop("operator_stop")
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the stop took %v", took)
	}
	for i, s := range open {
		if got := s.rest(); got != last("stopping", "operator_stop", "true") {
			t.Errorf("stream %d ended with %q", i, got)
		}
		<-from[i].gone
	}
	w.stop("ttl_expired") // again: nothing happens
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "station_stopping")
}

// The first reason counts when the change of the Store comes before the call.
func TestStream_StopSeenFirst(t *testing.T) {
	w := newWorld(t)
	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	s := w.open(w.request("GET", "/events", nil))
	w.auth.Stop(theStation, 1, "idle_expired")
	if got := s.rest(); got != last("stopping", "idle_expired", "true") {
		t.Errorf("got %q", got)
	}
}

// A daemon that dies breaks its streams before anybody has noted the stop; the
// clients still learn of it.
func TestStream_DaemonDies(t *testing.T) {
	w := newWorld(t)
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\n\n",
	} {
		w.daemon.handle(hijack(text))
		s := w.open(w.request("GET", "/events", nil))
		if got := s.event(); got != "data: a\n\n" {
			t.Fatalf("got %q", got)
		}
		if strings.Contains(text, "chunked") {
			if rest, err := io.ReadAll(s.body); err == nil {
				t.Errorf("a broken stream ends cleanly with %q", rest)
			}
		} else if rest := s.rest(); rest != "" {
			t.Errorf("then %q", rest)
		}
	}
	w.daemon.handle(hijack("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nd\r\ndata: a\n\ndata\r\n"))
	s := w.open(w.request("GET", "/events", nil))
	s.event()
	w.stop("daemon_exited")
	if got := s.rest(); got != last("stopping", "daemon_exited", "true") {
		t.Errorf("got %q", got)
	}
}

// Proves station 17.S5: when the client leaves, the daemon knows within a second.
func TestStream_ClientLeaves(t *testing.T) {
	w := newWorld(t)
	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	s := w.open(w.request("GET", "/events", nil))
	begin := time.Now()
	s.resp.Body.Close()
	<-source.gone
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

// Proves station 17.S7: Last-Event-ID reaches the daemon as it is, and the gate
// adds no ids.
func TestStream_LastEventID(t *testing.T) {
	w := newWorld(t)
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, "data: after "+r.Header.Get("Last-Event-ID")+"\n\n")
	})
	for _, id := range []string{"41", "a b/c=%20&é;\"x\"", "password=hunter2hunter2", strings.Repeat("x", 1024)} {
		r := w.request("GET", "/events", nil)
		r.Header.Set("Last-Event-ID", id)
		s := w.open(r)
		if diff := cmp.Diff("data: after "+id+"\n\n", s.rest()); diff != "" {
			t.Error(diff)
		}
	}
}

// Proves station 17.M6 (gate side): a request and an event are activity; the
// daemon's own comments are none.
func TestStream_Activity(t *testing.T) {
	w := newWorld(t)
	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	s := w.open(w.request("GET", "/events", nil))
	before := w.route.Counts().Activity
	source.send(t, ": still here\n\n")
	s.event()
	if got := w.route.Counts().Activity; got != before {
		t.Error("a comment is an activity")
	}
	source.send(t, "data: x\n\n")
	s.event()
	eventually(t, func() bool { return w.route.Counts().Activity.After(before) }, "an event is an activity")
}

// Requests that run when the attempt stops have two seconds: one ends in time, one
// gets 502, and a begun answer is cut.
func TestGate_StopInFlight(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/quick":
			<-release
			_, _ = io.WriteString(rw, "done")
		case "/begun":
			_, _ = io.WriteString(rw, "beg")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		default:
			<-r.Context().Done()
		}
	})
	results := map[string]chan result{}
	for _, path := range []string{"/quick", "/begun", "/deaf"} {
		done := make(chan result, 1)
		results[path] = done
		r := w.request("GET", path, nil)
		go func() {
			a, err := w.try(r)
			done <- result{a, err}
		}()
	}
	eventually(t, func() bool { w.daemon.mu.Lock(); defer w.daemon.mu.Unlock(); return len(w.daemon.saw) == 3 }, "all run")
	begin := time.Now()
	var stopped sync.WaitGroup
	stopped.Go(func() { w.stop("operator_stop") })
	eventually(t, func() bool { return w.get("/v1").status == http.StatusServiceUnavailable }, "nothing new passes")
	close(release)
	if got := <-results["/quick"]; got.err != nil || got.body != "done" {
		t.Errorf("quick: %+v", got)
	}
	if got := <-results["/begun"]; got.err == nil {
		t.Errorf("begun: a whole answer %q", got.body)
	}
	got := <-results["/deaf"]
	if got.err != nil {
		t.Fatal(got.err)
	}
	w.refused(got.answer, http.StatusBadGateway, "station_stopping")
	stopped.Wait()
	if took := time.Since(begin); took < 2*time.Second || took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

type result struct {
	answer
	err error
}

// Proves station 17.X10 (gate side): the end of stationd is the end of streams, at
// once; whether it is the attempt's, too, the last event says.
func TestGate_Shutdown(t *testing.T) {
	for _, tc := range []struct {
		detach       bool
		state, final string
	}{{false, "stopping", "true"}, {true, "ready", "false"}} {
		t.Run(tc.state, func(t *testing.T) {
			w := newWorld(t, func(o *gate.Options, _ *gate.Bridge) { o.Detach = tc.detach })
			w.daemon.handle(newEvents().ServeHTTP)
			s := w.open(w.request("GET", "/events", nil))
			begin := time.Now()
			w.shutdown()
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			if got, want := s.rest(), last(tc.state, "service_shutdown", tc.final); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if _, err := w.gate.Open(w.bridge); err == nil {
				t.Error("a gate that has ended opens a bridge")
			}
		})
	}
}
