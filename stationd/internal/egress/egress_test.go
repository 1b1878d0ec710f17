package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
)

// Proves station 17.E2: the name is looked up, its address, opened by a reviewed
// entry, is dialled for real, and bytes pass both ways.
func TestConnectReachesAnAllowedName(t *testing.T) {
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(upstream.Addr().String())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := upstream.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		text, _ := io.ReadAll(c) // until the client's half is closed
		fmt.Fprintf(c, "got %s", text)
	}()
	t.Cleanup(func() { upstream.Close(); <-ended })

	r := newRig(t, egress.Profile{
		Allow: []string{"files.test"}, Ports: []uint16{at.Port()},
		Private: []egress.Private{private("127.0.0.1/32", at.Port())},
	}, func(o *egress.Options) { o.Dial = nil })
	r.names["files.test"] = []netip.Addr{at.Addr()}

	status, c := r.connect(fmt.Sprintf("files.test:%d", at.Port()))
	if status != http.StatusOK {
		t.Fatalf("status %d: %+v", status, r.proxy.Summary())
	}
	fmt.Fprint(c, "hello")
	if err := c.(*conn).Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if string(got) != "got hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	r.stop()
	s := r.proxy.Summary()
	if want := []string{fmt.Sprintf("files.test:%d ×1", at.Port())}; !cmp.Equal(rows(s.Allowed), want) {
		t.Errorf("allowed %v, want %v", rows(s.Allowed), want)
	}
	if s.BytesUp != 5 || s.BytesDown != 9 || s.Allowed[0].BytesUp != 5 || s.Allowed[0].BytesDown != 9 {
		t.Errorf("bytes: %+v", s)
	}
}

// Proves station 17.E3
func TestOthersAreDenied(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"files.test"}}, nil)
	r.names["files.test"] = []netip.Addr{public}
	r.names["gone.test"] = nil
	for _, target := range []string{
		"other.test:443", "93.184.216.34:443", "[2606:2800:220:1::1]:443", "files.test:22", "files.test:8443",
		"other.test:443", "user:hunter2@files.test:443", "files.test", "files.test:0443", "files.test:+443", "fïles.test:443",
	} {
		if status, _ := r.connect(target); status != http.StatusForbidden && status != http.StatusBadRequest {
			t.Errorf("%s: status %d", target, status)
		}
	}
	s := r.proxy.Summary()
	want := []string{
		"2606:2800:220:1::1:443 ip_literal×1", "93.184.216.34:443 ip_literal×1",
		"files.test:22 port_denied×1", "files.test:8443 port_denied×1", "other.test:443 name_denied×2",
	}
	var got []string
	for _, line := range denied(s) {
		if !strings.Contains(line, "bad_target") {
			got = append(got, line)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("denied (-want +got):\n%s", d)
	}
	if len(r.dialled) != 0 || len(r.lookups) != 0 {
		t.Errorf("dialled %v, looked up %v", r.dialled, r.lookups)
	}
	if strings.Contains(fmt.Sprint(s), "hunter2") {
		t.Errorf("the record holds user information: %v", s)
	}
}

// Proves station 17.E6
func TestOneLookupAndAllItsAnswers(t *testing.T) {
	lan := netip.MustParseAddr("10.1.2.3")
	r := newRig(t, egress.Profile{Allow: []string{"*.d.test"}}, nil)
	r.names["mixed.d.test"] = []netip.Addr{public, lan}
	r.names["mapped.d.test"] = []netip.Addr{netip.MustParseAddr("::ffff:10.1.2.3")}
	for _, name := range []string{"mixed.d.test", "mapped.d.test"} {
		if status, _ := r.connect(name + ":443"); status != http.StatusForbidden {
			t.Errorf("%s: status %d", name, status)
		}
	}
	if len(r.dialled) != 0 {
		t.Fatalf("dialled %v", r.dialled)
	}

	// Public at the first lookup; there is no second, so what it would say is not dialled.
	r.names["turn.d.test"] = []netip.Addr{public}
	r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
	if status, _ := r.connect("turn.d.test:443"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	r.names["turn.d.test"] = []netip.Addr{lan}
	if status, _ := r.connect("turn.d.test:443"); status != http.StatusForbidden {
		t.Errorf("after rebinding: status %d", status)
	}
	if d := cmp.Diff([]netip.AddrPort{netip.AddrPortFrom(public, 443)}, r.dialled, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("dialled (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"mixed.d.test", "mapped.d.test", "turn.d.test", "turn.d.test"}, r.lookups); d != "" {
		t.Errorf("lookups (-want +got):\n%s", d)
	}
}

// The socket itself is checked: when the second look cannot be had, nothing is
// connected.
func TestTheDialerChecksAgain(t *testing.T) {
	asked := 0
	r := newRig(t, egress.Profile{Allow: []string{"files.test"}},
		func(o *egress.Options) {
			o.Dial = nil
			o.Local = func() ([]netip.Addr, error) {
				if asked++; asked > 1 {
					return nil, errors.New("the interfaces are gone")
				}
				return nil, nil
			}
		})
	r.names["files.test"] = []netip.Addr{public} // its own check asks once
	if status, _ := r.connect("files.test:443"); status != http.StatusBadGateway {
		t.Errorf("status %d", status)
	}
	if asked != 2 {
		t.Errorf("asked %d times, want before and in the dial", asked)
	}
}

// Proves station 17.E10
func TestARedirectIsANewRequest(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}}, nil)
	r.names["a.test"], r.names["b.test"] = []netip.Addr{public}, []netip.Addr{public}
	hosts := make(chan string, 4)
	r.serve(func(w http.ResponseWriter, q *http.Request) {
		hosts <- q.Host
		http.Redirect(w, q, "http://b.test/secret", http.StatusFound)
	})
	response, err := r.client().Get("http://a.test/start")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden || response.Request.URL.Host != "b.test" {
		t.Errorf("%d from %s", response.StatusCode, response.Request.URL)
	}
	if got := <-hosts; got != "a.test" || len(hosts) != 0 {
		t.Errorf("the world saw %s and %d more", got, len(hosts))
	}
	if d := cmp.Diff([]string{"b.test:80 name_denied×1"}, denied(r.proxy.Summary())); d != "" {
		t.Error(d)
	}
}

// Proves station 17.E11: the bytes of both directions.
func TestByteLimitsCutTheTunnel(t *testing.T) {
	for name, limits := range map[string]egress.Limits{"down": {BytesDown: 1000}, "up": {BytesUp: 1000}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, egress.Profile{Allow: []string{"a.test"}, Limits: limits}, nil)
			r.names["a.test"] = []netip.Addr{public}
			r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
			status, c := r.connect("a.test:443")
			if status != http.StatusOK {
				t.Fatal(status)
			}
			_, _ = c.Write(make([]byte, 3000))
			got, _ := io.ReadAll(c) // ends without an end of the client's
			if len(got) > 1000 {
				t.Errorf("%d bytes came back", len(got))
			}
			if status, _ := r.connect("a.test:443"); status != http.StatusForbidden {
				t.Errorf("a tunnel after the limit: status %d", status)
			}
			r.stop()
			s := r.proxy.Summary()
			if d := cmp.Diff([]string{"a.test:443 limit×1", "a.test:443 limit×1"}, denied(s)); d != "" {
				t.Error(d)
			}
			if s.Denied[0].Decision != egress.Cut || s.Denied[1].Decision != egress.Denied {
				t.Errorf("decisions: %v", s.Denied)
			}
			if spent := map[string]int64{"down": s.BytesDown, "up": s.BytesUp}[name]; spent != 1000 {
				t.Errorf("spent %d", spent)
			}
		})
	}
}

// Proves station 17.E11: tunnels at once, and new ones a second.
func TestTunnelLimits(t *testing.T) {
	now := time.Now()
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}, Limits: egress.Limits{Tunnels: 2, NewPerSecond: 3}},
		func(o *egress.Options) { o.Now = func() time.Time { return now } })
	r.names["a.test"] = []netip.Addr{public}
	r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
	connect := func(want int) net.Conn {
		t.Helper()
		status, c := r.connect("a.test:443")
		if status != want {
			t.Fatalf("status %d, want %d", status, want)
		}
		return c
	}
	first := connect(200)
	connect(200)
	connect(403) // two are open; it takes no token
	first.Close()
	eventually(t, "the place is free again", func() bool {
		status, _ := r.connect("a.test:443")
		return status == 200
	})
	if got := r.proxy.Summary().Allowed[0].Count; got != 3 {
		t.Errorf("%d tunnels within a second", got)
	}
	connect(403)
}

// An idle tunnel is cut.
func TestSilenceEndsATunnel(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}, Limits: egress.Limits{IdleMS: 20}}, nil)
	r.names["a.test"] = []netip.Addr{public}
	r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
	_, c := r.connect("a.test:443")
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("read %q, %v", got, err)
	}
	r.stop()
	if d := cmp.Diff([]string{"a.test:443 idle×1"}, denied(r.proxy.Summary())); d != "" {
		t.Error(d)
	}
}

// Proves station 17.E12
func TestStopClosesTunnels(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}}, nil)
	r.names["a.test"] = []netip.Addr{public}
	r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
	const tunnels, size = 5, 100_000
	var open []net.Conn
	for range tunnels {
		status, c := r.connect("a.test:443")
		if status != http.StatusOK {
			t.Fatal(status)
		}
		go func() { _, _ = c.Write(make([]byte, size)) }()
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	r.proxy.Refuse()
	if status, _ := r.connect("a.test:443"); status != http.StatusForbidden {
		t.Errorf("a new tunnel during the stop: status %d", status)
	}
	if _, err := open[0].Write([]byte("x")); err != nil {
		t.Errorf("an open tunnel before the end: %v", err)
	}
	if _, err := io.ReadFull(open[0], make([]byte, 1)); err != nil {
		t.Errorf("an open tunnel before the end: %v", err)
	}
	begin := time.Now()
	r.stop()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("stop took %v", took)
	}
	for _, c := range open {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("an open tunnel after the end: %d, %v", n, err)
		}
	}
	s := r.proxy.Summary()
	if want := int64(tunnels*size + 1); s.BytesUp != want || s.BytesDown != want || s.Allowed[0].BytesUp != want {
		t.Errorf("totals %d up, %d down, want %d", s.BytesUp, s.BytesDown, want)
	}
}

// A daemon that takes all the room does not hold up the stop: TERM comes after it.
func TestStopDoesNotWaitForRoom(t *testing.T) {
	r := newRig(t, egress.Profile{}, nil)
	for range egress.MaxConnections {
		c, err := net.Dial(r.net, r.at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000\r\n\r\nonly this")
	}
	eventually(t, "all the room is taken", func() bool {
		d := r.proxy.Summary().Denied
		return len(d) == 1 && d[0].Count == egress.MaxConnections
	})
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("the proxy waits for the daemon")
	}
}

// A request in absolute form is built anew, and what is only between two stays.
func TestPlainRequests(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}}, nil)
	r.names["a.test"] = []netip.Addr{public}
	r.serve(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		w.Header().Set("Trailer", "X-Late")
		w.Header().Set("X-Kept", "2")
		fmt.Fprintf(w, "%s %s %s %q %v %v %v", q.Method, q.Host, q.RequestURI, body, q.Header["Proxy-Authorization"], q.Header["X-Gone"], q.Header["X-Kept"])
		w.Header().Set("X-Late", "3")
	})
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://A.test:80/x%2fy?q=1;2", strings.NewReader("body"))
	request.Header.Set("Proxy-Authorization", "Basic x")
	request.Header.Set("Connection", "X-Gone")
	request.Header.Set("X-Gone", "yes")
	request.Header.Set("X-Kept", "yes")
	response, err := r.client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if want := `POST a.test /x%2fy?q=1;2 "body" [] [] [yes]`; string(got) != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if response.Header.Get("X-Kept") != "2" || len(response.Trailer) != 0 {
		t.Errorf("headers %v, trailers %v", response.Header, response.Trailer)
	}

	for _, line := range []string{
		"GET / HTTP/1.1", "GET https://a.test/ HTTP/1.1", "GET http://a.test:8080/ HTTP/1.1", "TRACE http://a.test/ HTTP/1.1", "OPTIONS * HTTP/1.1", "GET ftp://a.test/ HTTP/1.1",
	} {
		if got := raw(t, r.at, line); got != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d", line, got)
		}
	}
	if got := raw(t, r.at, "GET http://u:p@a.test/ HTTP/1.1"); got != http.StatusForbidden {
		t.Errorf("user information: status %d", got)
	}
}

// An answer that breaks off does not look whole.
func TestACutAnswerIsNotWhole(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}, Limits: egress.Limits{BytesDown: 5000}}, nil)
	r.names["a.test"] = []netip.Addr{public}
	r.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 20_000)) })
	response, err := r.client().Get("http://a.test/")
	if err != nil {
		return // cut before its head
	}
	defer response.Body.Close()
	if got, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("%d bytes and a clean end", len(got))
	}
}

// Proves station 17.E13: the refusal, and what the record says.
func TestEnforceable(t *testing.T) {
	for _, c := range []struct {
		kind     egress.Enforcement
		accepted bool
		want     fault.Code
	}{{egress.Netns, false, ""}, {egress.None, true, ""}, {egress.None, false, fault.EgressUnenforceable}, {"", true, fault.EgressUnenforceable}} {
		if got := fault.CodeOf(egress.Enforceable(c.kind, c.accepted)); got != c.want {
			t.Errorf("%q accepted=%v: %q, want %q", c.kind, c.accepted, got, c.want)
		}
	}
	p, err := egress.New(egress.Options{Profile: egress.Profile{Name: "p"}, Enforcement: egress.None})
	if err != nil || p.Summary().Enforcement != egress.None || egress.NoEgress(egress.None).Enforcement != "none" {
		t.Errorf("the summary does not say none: %v", err)
	}
}

func TestRecordIsBounded(t *testing.T) {
	r := newRig(t, egress.Profile{}, nil)
	long := strings.Repeat("a.", 120) + "test"
	for i := range 300 {
		w := discard{}
		q, _ := http.NewRequestWithContext(context.Background(), http.MethodConnect, "http://x", nil)
		q.RequestURI = fmt.Sprintf("n%d.%s:443", i, long)
		r.proxy.Serve(w, q)
	}
	s := r.proxy.Summary()
	if len(s.Denied) != 256 || s.Overflow != 44 {
		t.Errorf("%d rows, %d beyond", len(s.Denied), s.Overflow)
	}
	for _, row := range s.Denied {
		if len(row.Host) > 253 {
			t.Errorf("a name of %d bytes", len(row.Host))
		}
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// raw sends one request line and gives the status.
func raw(t *testing.T, at, line string) int {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "%s\r\nHost: x\r\nConnection: close\r\n\r\n", line)
	text, _ := io.ReadAll(c)
	status := 0
	_, _ = fmt.Sscanf(string(text), "HTTP/1.1 %d", &status)
	return status
}
