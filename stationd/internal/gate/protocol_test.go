package gate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/gate"
)

// Proves station 17.P8: no target but a path, no method but the list.
func TestGate_Methods(t *testing.T) {
	w := newWorld(t)
	base := gate.BridgePath(theStation, 1)
	for _, tc := range []struct {
		line   string
		status int
	}{
		{"CONNECT 127.0.0.1:80 HTTP/1.1", 405},
		{"CONNECT evil:443 HTTP/1.1", 405},
		{"CONNECT " + base + "/v1 HTTP/1.1", 405},
		{"TRACE " + base + "/v1 HTTP/1.1", 405},
		{"PROPFIND " + base + "/v1 HTTP/1.1", 405},
		{"get " + base + "/v1 HTTP/1.1", 405},
		{"OPTIONS * HTTP/1.1", 400},
		{"GET * HTTP/1.1", 400},
		{"GET http://127.0.0.1" + base + "/v1 HTTP/1.1", 400},
		{"GET http://evil/ HTTP/1.1", 400},
		{"GET evil:80 HTTP/1.1", 400},
		{"GET " + base + "/v1 HTTP/1.0", 505},
		{"PRI * HTTP/2.0", 505},
		{"GET " + base + "/v1 HTTP/2.0", 505},
	} {
		if status, all := w.rawStatus(tc.line + "\r\n" + w.credentials() + "\r\n"); status != tc.status {
			t.Errorf("%s: %q, want %d", tc.line, all, tc.status)
		}
	}
	w.untouched()
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		if a := w.send(w.request(method, "/v1", nil)); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
		if saw := w.daemon.requests(); len(saw) != 1 || saw[0].Method != method {
			t.Errorf("%s: the daemon saw %v", method, saw)
		}
	}
}

// Proves station 17.P9: a message whose length could be read in two ways is
// refused, the connection ends, and what is smuggled behind it is never seen.
func TestGate_Smuggling(t *testing.T) {
	w := newWorld(t)
	base := gate.BridgePath(theStation, 1)
	auth := strings.Replace(w.credentials(), "Connection: close\r\n", "", 1)
	smuggled := "GET " + base + "/smuggled HTTP/1.1\r\n" + auth + "\r\n"
	chunked := "0\r\n\r\n" + smuggled
	for _, tc := range []struct{ name, headers, body string }{
		{"a transfer encoding", "Transfer-Encoding: chunked\r\n", chunked},
		{"a transfer encoding and a length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", chunked},
		{"a length and a transfer encoding", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunked},
		{"an unknown transfer encoding", "Transfer-Encoding: xchunked\r\n", chunked},
		{"identity", "Transfer-Encoding: identity\r\nContent-Length: 0\r\n", smuggled},
		{"two transfer encodings", "Transfer-Encoding: gzip, chunked\r\n", chunked},
		{"two lengths", "Content-Length: 0\r\nContent-Length: 5\r\n", smuggled},
		{"a list of lengths", "Content-Length: 0, 5\r\n", smuggled},
		{"a signed length", "Content-Length: +0\r\n", smuggled},
		{"two hosts", "Host: " + w.addr + "\r\n", smuggled},
		{"a space before the colon", "Content-Length : 0\r\n", smuggled},
		{"a NUL", "X-A: a\x00b\r\n", smuggled},
		{"a line end in a value", "X-A: a\rb\r\n", smuggled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := w.raw("POST " + base + "/v1 HTTP/1.1\r\n" + auth + tc.headers + "\r\n" + tc.body)
			if strings.HasPrefix(all, "HTTP/1.1 2") || strings.Count(all, "HTTP/1.1 ") != 1 {
				t.Errorf("answers %q", all)
			}
		})
	}
	for name, text := range map[string]string{"chunked": "Transfer-Encoding: chunked\r\n", "both": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"} {
		if status, all := w.rawStatus("POST " + base + "/v1 HTTP/1.1\r\n" + auth + text + "\r\n" + chunked); status != http.StatusLengthRequired || !strings.Contains(all, "Connection: close") {
			t.Errorf("%s: %q", name, all)
		}
	}
	w.untouched()
}

// Proves station 17.P10: nothing turns the connection into another one.
func TestGate_Upgrades(t *testing.T) {
	w := newWorld(t)
	for name, headers := range map[string]http.Header{
		"WebSocket":        {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Key": {"x"}, "Sec-Websocket-Version": {"13"}},
		"h2c":              {"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}, "Http2-Settings": {"AAMAAABk"}},
		"Upgrade alone":    {"Upgrade": {"x"}},
		"Connection alone": {"Connection": {"keep-alive, UPGRADE"}},
		"settings alone":   {"Http2-Settings": {"x"}},
		"a key alone":      {"Sec-Websocket-Protocol": {"x"}},
	} {
		r := w.request("GET", "/v1", nil)
		for k, v := range headers {
			r.Header[k] = v
		}
		a := w.send(r)
		w.refused(a, http.StatusNotImplemented, "upgrade_unsupported")
		_ = name
	}
	// With prior knowledge the preface is a request of HTTP/2.0.
	if all := w.raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); strings.Count(all, "HTTP/") != 1 || !strings.HasPrefix(all, "HTTP/1.1 505") {
		t.Errorf("answer %q", all)
	}
	w.untouched()
}

// Proves station 17.P11: what is over a limit is refused with its status, and the
// place is free afterwards. The limits of time are in TestWait.
func TestGate_Limits(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) {
		b.Limits = gate.Limits{Body: 1000, Requests: 2, Streams: 3, TicketStreams: 2}
	})
	w.refused(w.send(w.request("POST", "/v1", strings.NewReader(strings.Repeat("x", 1001)))), http.StatusRequestEntityTooLarge, "body_too_large")
	r := w.request("GET", "/v1", nil)
	r.Header.Set("X-Long", strings.Repeat("x", 40<<10))
	if a := w.send(r); a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("long headers: %d", a.status)
	}
	w.untouched()
	if a := w.send(w.request("POST", "/v1", strings.NewReader(strings.Repeat("x", 1000)))); a.status != http.StatusOK {
		t.Errorf("at the limit: %d %s", a.status, a.body)
	}

	hold := make(chan struct{})
	w.daemon.handle(func(http.ResponseWriter, *http.Request) { <-hold })
	w.daemon.requests()
	var wg sync.WaitGroup
	for range 2 {
		r := w.request("GET", "/slow", nil)
		wg.Go(func() {
			if a, err := w.try(r); err != nil || a.status != http.StatusOK {
				t.Errorf("held: %d, %v", a.status, err)
			}
		})
	}
	eventually(t, func() bool { w.daemon.mu.Lock(); defer w.daemon.mu.Unlock(); return len(w.daemon.saw) == 2 }, "two requests run")
	used := w.auth.Consumed()
	w.refused(w.get("/v1"), http.StatusTooManyRequests, "too_many_requests")
	if w.auth.Consumed() != used {
		t.Error("the refused request took a use")
	}
	close(hold)
	wg.Wait()
	if a := w.get("/v1"); a.status != http.StatusOK {
		t.Errorf("afterwards: %d %s", a.status, a.body)
	}

	source := newEvents()
	w.daemon.handle(source.ServeHTTP)
	first := w.open(w.request("GET", "/events", nil))
	w.open(w.request("GET", "/events", nil))
	w.refused(w.get("/events"), http.StatusTooManyRequests, "too_many_streams")
	w.ticket = w.issue(gate.Ticket{ID: "tkt_next"})
	w.open(w.request("GET", "/events", nil))
	w.refused(w.get("/events"), http.StatusTooManyRequests, "too_many_streams")
	first.resp.Body.Close()
	eventually(t, func() bool {
		resp, err := w.client.Do(w.request("GET", "/events", nil))
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, "a stream's place is free")
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	for name, l := range map[string]gate.Limits{
		"body":     {Body: 64<<20 + 1},
		"negative": {Answer: -1},
		"wait":     {HeaderWait: time.Hour + 1},
		"streams":  {Streams: 1 << 20},
	} {
		b := w.bridge
		b.Station, b.Limits = "stn_other", l
		if _, err := w.gate.Open(b); !fault.Is(err, fault.BridgeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.gate.Open(w.bridge); err == nil {
		t.Error("the same bridge opens twice")
	}
}

// Proves station 17.P12: ten binary mebibytes pass both ways byte for byte.
func TestGate_Bodies(t *testing.T) {
	w := newWorld(t)
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		rw.Header().Set("Content-Type", "application/octet-stream")
		_, _ = rw.Write(body)
	})
	sent := make([]byte, 10<<20)
	_, _ = rand.Read(sent)
	a := w.send(w.request("PUT", "/blob", bytes.NewReader(sent)))
	if a.status != http.StatusOK || a.body != string(sent) {
		t.Fatalf("%d, %d bytes", a.status, len(a.body))
	}
	c := w.route.Counts()
	if c.BytesIn != 10<<20 || c.BytesOut != 10<<20 || c.Requests != 1 || c.Activity.IsZero() {
		t.Errorf("counts %+v", c)
	}
	r := w.request("PUT", "/blob", bytes.NewReader(sent[:1<<20]))
	r.Header.Set("Expect", "100-continue")
	if a := w.send(r); a.status != http.StatusOK || a.body != string(sent[:1<<20]) {
		t.Errorf("after 100-continue: %d, %d bytes", a.status, len(a.body))
	}
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "77")
		rw.Header().Set("Etag", `"x"`)
	})
	if a := w.send(w.request("HEAD", "/blob", nil)); a.status != http.StatusOK || a.header.Get("Content-Length") != "77" || a.body != "" {
		t.Errorf("HEAD: %+v", a)
	}
	for _, status := range []int{204, 304} {
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(status) })
		if a := w.get("/blob"); a.status != status || a.body != "" {
			t.Errorf("%d: %+v", status, a)
		}
	}
}

// An answer that breaks off, or grows over its limit, is never a whole one.
func TestGate_CutAnswer(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.Limits.Answer = 100 })
	for name, text := range map[string]string{
		"shorter than said": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"no last chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"too large":         "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 200),
	} {
		w.daemon.handle(hijack(text))
		if a, err := w.try(w.request("GET", "/v1", nil)); err == nil {
			t.Errorf("%s: a whole answer of %d bytes", name, len(a.body))
		}
	}
}

// A request whose daemon broke off is not sent a second time, whatever header
// would make a client library think that it may be.
func TestGate_NoSecondSend(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.HeaderAllow = []string{"X-Idempotency-Key"} })
	if a := w.get("/warm"); a.status != http.StatusOK { // leaves a connection to be reused
		t.Fatal(a.status)
	}
	w.daemon.requests()
	w.daemon.handle(hijack(""))
	r := w.request("POST", "/v1", nil)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("X-Idempotency-Key", "k")
	w.refused(w.send(r), http.StatusBadGateway, "daemon_unreachable")
	saw := w.daemon.requests()
	if len(saw) != 1 {
		t.Fatalf("the daemon saw %d requests", len(saw))
	}
	if diff := cmp.Diff([]string{"k"}, saw[0].Header["Idempotency-Key"]); diff != "" {
		t.Error(diff)
	}
}

// Proves station 17.V8 (gate side): nothing that a client or the daemon says is in
// the log, whatever becomes of a request.
func TestGate_LogsNothing(t *testing.T) {
	w := newWorld(t)
	const mark = "marked-8b1f"
	w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Request-Id", mark)
		_, _ = io.WriteString(rw, mark)
	})
	send := func(path string, change func(*http.Request)) {
		r := w.request("POST", path+"?"+mark+"="+mark, strings.NewReader(mark))
		r.Header.Set("X-Request-Id", mark)
		r.Header.Set("Referer", "http://"+mark)
		change(r)
		_, _ = w.try(r)
	}
	send("/"+mark, func(*http.Request) {})
	send("/"+mark, func(r *http.Request) { r.Header.Set("Authorization", mark) })
	send("/"+mark, func(r *http.Request) { r.Header.Set("X-Request-Id", w.ticket) })
	send("/"+mark, func(r *http.Request) { r.Header.Set("Upgrade", mark) })
	send("/"+mark, func(r *http.Request) { r.Host = mark })
	send("/"+mark, func(r *http.Request) { r.Method = strings.ToUpper(mark) })
	send("/"+mark+"%2f", func(*http.Request) {})
	send("", func(r *http.Request) { r.URL.Path = "/s/" + mark + "/a/1/" + mark })
	send("", func(r *http.Request) { r.URL.Path = "/" + mark })
	w.auth.Break(errors.New("the disk is gone"))
	send("/"+mark, func(*http.Request) {})
	w.auth.Break(nil)
	w.daemon.handle(hijack(mark))
	send("/"+mark, func(*http.Request) {})
	w.daemon.handle(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	send("/"+mark, func(*http.Request) {})
	w.raw("GET /" + mark + " HTTP/1.1\r\nHost: a\r\nHost: " + mark + "\r\n\r\n")
	w.stop("operator_stop")
	send("/"+mark, func(*http.Request) {})
	w.shutdown()
	got := w.logs.String()
	if strings.Contains(strings.ToLower(got), mark) || !strings.Contains(got, "refused=daemon_unreachable") {
		t.Errorf("the log says\n%s", got)
	}
}

func TestGate_Unreachable(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) {
		b.Dial = func(context.Context) (net.Conn, error) { return nil, errors.New("/secret/path: no such file") }
	})
	w.refused(w.get("/v1"), http.StatusBadGateway, "daemon_unreachable")
	if strings.Contains(w.logs.String(), "/secret/path") {
		t.Error("the log says where")
	}
	next := w.request("GET", "", nil)
	w.auth.Ready("local", "ada", "stn_two", "lse_two")
	w.auth.Role("stn_two", "ada", "owner")
	next.Header.Set("Drawbridge-Ticket", w.issue(gate.Ticket{ID: "tkt_two", Station: "stn_two", Attempt: 1}))
	next.URL.Path = gate.BridgePath("stn_two", 1) + "/v1"
	w.refused(w.send(next), http.StatusServiceUnavailable, "station_not_ready")
	if n := w.gate.Strangers().Refused[fault.StationNotReady]; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// Proves station 17.P2 (gate side): the gate cannot be made to listen elsewhere.
func TestListen(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "10.0.0.1:0", "example.com:80", "127.0.0.1", "", "[::ffff:10.0.0.1]:0", "localhost:0"} {
		l, err := gate.Listen(address)
		if err == nil {
			l.Close()
		}
		if !fault.Is(err, fault.ListenNotLoopback) || fault.ExitCode(err) != 2 {
			t.Errorf("%q: %v", address, err)
		}
	}
	wide := &fakeListener{&net.TCPAddr{IP: net.IPv4zero, Port: 80}}
	if _, err := gate.New(gate.Options{Listeners: []net.Listener{wide}, Authorizer: newWorld(t).auth}); !fault.Is(err, fault.ListenNotLoopback) {
		t.Errorf("a socket that somebody else opened: %v", err)
	}
	for _, address := range []string{"127.0.0.1:0", "127.9.9.9:0", "[::1]:0"} {
		l, err := gate.Listen(address)
		if err != nil && !strings.Contains(address, "::1") { // a machine may have no IPv6
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			l.Close()
		}
	}
}

type fakeListener struct{ addr net.Addr }

func (l *fakeListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (l *fakeListener) Close() error              { return nil }
func (l *fakeListener) Addr() net.Addr            { return l.addr }
