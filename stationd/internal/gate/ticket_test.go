package gate_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/gate"
)

// Proves station 17.T1, 17.T2: a missing principal, a missing ticket, both missing,
// a viewer with a manager's ticket, and every other way of being a stranger get the
// same answer, byte for byte.
func TestGate_Strangers(t *testing.T) {
	w := newWorld(t)
	w.auth.Principal("local", "eve")
	victor := w.auth.Principal("local", "victor")
	w.auth.Role(theStation, "victor", "viewer")
	foreign := w.issue(gate.Ticket{ID: "tkt_eve", Principal: "eve"})
	unknown, _ := gate.NewTicket()
	nobody, _ := gate.NewPrincipalSecret()
	same := func(*http.Request) {}
	drop := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }
	put := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	var want http.Header
	for i, change := range [][2]func(*http.Request){
		{drop("Authorization"), same},
		{drop("Drawbridge-Ticket"), same},
		{drop("Authorization"), drop("Drawbridge-Ticket")},
		{put("Drawbridge-Ticket", unknown.Reveal()), same},
		{put("Authorization", "Bearer "+nobody.Reveal()), same},
		{put("Drawbridge-Ticket", foreign), same},
		{put("Authorization", "Bearer "+victor), same},
		{func(r *http.Request) { r.URL.Path = "/s/stn_none/a/1/v1" }, same},
		{func(r *http.Request) { r.URL.Path = "/anything" }, same},
	} {
		r := w.request("GET", "/v1", nil)
		change[0](r)
		change[1](r)
		a := w.send(r)
		w.refused(a, http.StatusUnauthorized, "unauthorized")
		a.header.Del("Date")
		if want == nil {
			want = a.header
		}
		if diff := cmp.Diff(want, a.header); diff != "" {
			t.Errorf("case %d: another answer (-first +this)\n%s", i, diff)
		}
	}
	w.untouched()
}

// Proves station 17.T3, 17.T4, 17.T5, 17.T6: a ticket of another organisation,
// owner, station, attempt or lease is a stranger's; another prefix or method is
// named. None of it takes a use.
func TestGate_Scope(t *testing.T) {
	w := newWorld(t)
	w.auth.Ready("local", "ada", "stn_two", "lse_two")
	w.auth.Role("stn_two", "ada", "owner")
	for i, tc := range []struct {
		name   string
		ticket gate.Ticket
		method string
		path   string
		status int
		code   string
	}{
		{"organisation", gate.Ticket{Org: "other"}, "GET", "/v1", 401, "unauthorized"},
		{"owner", gate.Ticket{Owner: "bob"}, "GET", "/v1", 401, "unauthorized"},
		{"station", gate.Ticket{Station: "stn_two", Attempt: 1}, "GET", "/v1", 401, "unauthorized"},
		{"attempt", gate.Ticket{Station: theStation, Attempt: 7, Lease: "lse_one"}, "GET", "/v1", 401, "unauthorized"},
		{"lease", gate.Ticket{Lease: "lse_old"}, "GET", "/v1", 401, "unauthorized"},
		{"prefix", gate.Ticket{Prefix: "/v1"}, "GET", "/v10", 403, "path_outside_prefix"},
		{"prefix, climbing", gate.Ticket{Prefix: "/v1"}, "GET", "/v1/../v2", 403, "path_outside_prefix"},
		{"method", gate.Ticket{Methods: []string{"GET"}}, "POST", "/v1", 403, "method_denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.ticket.ID = fmt.Sprint("tkt_", i)
			r := w.request(tc.method, tc.path, nil)
			r.Header.Set("Drawbridge-Ticket", w.issue(tc.ticket))
			w.refused(w.send(r), tc.status, tc.code)
		})
	}
	w.untouched()
}

// Proves station 17.T7 and 17.X5: after the stop is recorded nothing passes, also
// on a connection that is kept, though the daemon still lives.
func TestGate_Stopped(t *testing.T) {
	w := newWorld(t)
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	kept := &http.Transport{DialContext: onlyConn(c)}
	defer kept.CloseIdleConnections()
	w.client.Transport = kept
	if a := w.get("/v1"); a.status != http.StatusOK {
		t.Fatalf("status %d", a.status)
	}
	w.daemon.requests()
	w.auth.Stop(theStation, 1, "operator_stop")
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "station_stopping")
	w.stop("operator_stop")
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "station_stopping")
	w.auth.State(theStation, 1, "terminal")
	w.refused(w.get("/v1"), http.StatusGone, "station_ended")
	if saw := w.daemon.requests(); len(saw) != 0 {
		t.Errorf("the daemon saw %d requests", len(saw))
	}
}

// A bridge that stops lets nothing through, whatever the Store says yet.
func TestGate_StoppedAlone(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), stopTime)
	defer cancel()
	if err := w.route.Stop(ctx, "launch_failed"); err != nil {
		t.Fatal(err)
	}
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "station_stopping")
	w.untouched()
	if err := w.route.Close(ctx, "launch_failed"); err != nil {
		t.Fatal(err)
	}
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "station_not_ready")
	w.untouched()
}

// Proves station 17.T8: the ticket of a replaced attempt opens neither attempt.
func TestGate_Replaced(t *testing.T) {
	w := newWorld(t)
	w.stop("attempt_replaced")
	w.auth.State(theStation, 1, "terminal")
	w.auth.Ready("local", "ada", theStation, "lse_new")
	next := w.bridge
	next.Attempt = 2
	if _, err := w.gate.Open(next); err != nil {
		t.Fatal(err)
	}
	w.refused(w.get("/v1"), http.StatusUnauthorized, "attempt_replaced")
	r := w.request("GET", "", nil)
	r.URL.Path = gate.BridgePath(theStation, 2) + "/v1"
	w.refused(w.send(r), http.StatusUnauthorized, "attempt_replaced")
	w.untouched()
}

// Proves station 17.T9 (gate side): a ticket whose lease is not the attempt's any
// more opens nothing.
func TestGate_LeaseLost(t *testing.T) {
	w := newWorld(t)
	w.auth.Lease(theStation, 1, "")
	w.refused(w.get("/v1"), http.StatusUnauthorized, "unauthorized")
	w.untouched()
}

// Proves station 17.T10: who loses the right loses the next request and the open
// stream; others keep theirs.
func TestGate_Revoked(t *testing.T) {
	for name, revoke := range map[string]func(*world){
		"revoked":  func(w *world) { w.auth.RevokePrincipal("ada") },
		"lowered":  func(w *world) { w.auth.Role(theStation, "ada", "viewer") },
		"no role":  func(w *world) { w.auth.Role(theStation, "ada", "") },
		"a ticket": func(w *world) { w.auth.RevokeTicket(theTicket) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			source := newEvents()
			w.daemon.handle(source.ServeHTTP)
			bob := w.auth.Principal("local", "bob")
			w.auth.Role(theStation, "bob", "owner")
			r := w.request("GET", "/events", nil)
			r.Header.Set("Authorization", "Bearer "+bob)
			r.Header.Set("Drawbridge-Ticket", w.issue(gate.Ticket{ID: "tkt_bob", Principal: "bob"}))
			mine, other := w.open(w.request("GET", "/events", nil)), w.open(r)
			begin := time.Now()
			revoke(w)
			if got := mine.rest(); got != last("ready", "access_revoked", "false") {
				t.Errorf("the stream ended with %q", got)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			<-source.gone
			if a := w.get("/v1"); a.status != http.StatusUnauthorized {
				t.Errorf("the next request: %d %s", a.status, a.body)
			}
			source.send(t, "data: on\n\n")
			if got := other.event(); got != "data: on\n\n" {
				t.Errorf("the other stream got %q", got)
			}
		})
	}
}

// A request that runs when its right is taken away is cut; what its daemon
// answers later reaches nobody.
func TestGate_RevokedInFlight(t *testing.T) {
	w := newWorld(t)
	arrived := make(chan struct{})
	w.daemon.handle(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	done := make(chan answer, 1)
	r := w.request("GET", "/slow", nil)
	go func() {
		a, _ := w.try(r)
		done <- a
	}()
	<-arrived
	w.auth.RevokeTicket(theTicket)
	w.refused(<-done, http.StatusBadGateway, "ticket_revoked") // not 401: it may have had its effect
}

// Proves station 17.T11: a ticket ends at its second, by the clock that the
// Authorizer has.
func TestGate_Expiry(t *testing.T) {
	clock := testkit.NewClock()
	w := newWorld(t, func(o *gate.Options, _ *gate.Bridge) { o.Now = clock.Now })
	w.auth.Now = clock.Now
	w.ticket = w.issue(gate.Ticket{ID: "tkt_short", ExpiresAt: clock.Now().Add(300 * time.Second)})
	clock.Advance(300*time.Second - time.Millisecond)
	if a := w.get("/v1"); a.status != http.StatusOK {
		t.Errorf("before: %d %s", a.status, a.body)
	}
	clock.Advance(time.Millisecond)
	w.refused(w.get("/v1"), http.StatusUnauthorized, "ticket_expired")
}

// Proves station 17.T12: a ticket is read from one header; in the address or
// Referer it is refused before anything else; nothing of it is logged or used.
func TestGate_TicketElsewhere(t *testing.T) {
	w := newWorld(t)
	const away = "0123456789abcdefghijklmnopqrstuvwxyz_-ABCDE"
	escaped := strings.NewReplacer("d", "%64", "b", "%62", "t", "%74").Replace(w.ticket)
	for _, key := range []string{"ticket", "Ticket", "TICKET", "bridge_ticket", "bridge-ticket", "station_ticket", "Drawbridge-Ticket", "drawbridge_ticket", "%74icket", "t%69cket"} {
		for _, value := range []string{w.ticket, escaped, "x", ""} {
			r := w.request("GET", "/v1?a=b&"+key+"="+value, nil)
			w.refused(w.send(r), http.StatusBadRequest, "ticket_in_url")
			r.Header.Del("Authorization")
			w.refused(w.send(r), http.StatusBadRequest, "ticket_in_url")
		}
	}
	for _, path := range []string{"/" + w.ticket, "/v1/" + escaped, "/v1?x=" + w.ticket, "/v1?x=" + w.bearer, "/v1?dbt_" + away} {
		w.refused(w.send(w.request("GET", path, nil)), http.StatusBadRequest, "ticket_in_url")
	}
	r := w.request("GET", "/v1", nil)
	r.Header.Set("Referer", "http://127.0.0.1/x?y="+escaped)
	w.refused(w.send(r), http.StatusBadRequest, "ticket_in_url")

	moved := func(f func(r *http.Request)) *http.Request {
		r := w.request("POST", "/v1", strings.NewReader("ticket="+w.ticket))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Del("Drawbridge-Ticket")
		f(r)
		return r
	}
	w.refused(w.send(moved(func(*http.Request) {})), http.StatusUnauthorized, "unauthorized")
	w.refused(w.send(moved(func(r *http.Request) {
		r.Host = strings.Replace(w.addr, "127.0.0.1", gate.HostLabel(theStation, 1), 1)
		r.Header.Set("Cookie", "Drawbridge-Ticket="+w.ticket)
	})), http.StatusUnauthorized, "unauthorized")
	w.refused(w.send(moved(func(r *http.Request) {
		r.Header["Drawbridge-Ticket"] = []string{w.ticket, w.ticket}
	})), http.StatusUnauthorized, "unauthorized")
	w.refused(w.send(moved(func(r *http.Request) { r.Header.Set("Sec-WebSocket-Protocol", w.ticket) })), http.StatusNotImplemented, "upgrade_unsupported")

	w.untouched()
	for _, secret := range []string{w.ticket, w.bearer, away} {
		if strings.Contains(w.logs.String(), secret[4:]) {
			t.Error("the log holds a secret")
		}
	}
}

// Proves station 17.T13: of fifty requests at once with a ticket for one, exactly
// one passes.
func TestGate_OneUse(t *testing.T) {
	w := newWorld(t)
	w.ticket = w.issue(gate.Ticket{ID: "tkt_once", MaxUses: 1})
	var wg sync.WaitGroup
	answers := make(chan answer, 50)
	for range 50 {
		r := w.request("POST", "/v1", strings.NewReader("{}"))
		wg.Go(func() {
			a, err := w.try(r)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		})
	}
	wg.Wait()
	close(answers)
	passed := 0
	for a := range answers {
		if a.status == http.StatusOK {
			passed++
			continue
		}
		w.refused(a, http.StatusUnauthorized, "ticket_expired")
	}
	if saw := len(w.daemon.requests()); passed != 1 || saw != 1 || w.auth.Uses("tkt_once") != 1 {
		t.Errorf("%d passed, the daemon saw %d, %d uses", passed, saw, w.auth.Uses("tkt_once"))
	}
}

// Proves station 17.T15 (gate side): the credential reaches the daemon in the
// chosen form only, and no header brings it back.
func TestGate_Credential(t *testing.T) {
	const secret = "c0ffee-c0ffee-c0ffee-c0ffee"
	for inject, want := range map[string]http.Header{
		"bearer":         {"Authorization": {"Bearer " + secret}},
		"basic:opencode": {"Authorization": {"Basic b3BlbmNvZGU6YzBmZmVlLWMwZmZlZS1jMGZmZWUtYzBmZmVl"}},
		"header:X-Own":   {"X-Own": {secret}},
	} {
		t.Run(inject, func(t *testing.T) {
			w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.Credential = bearer(t, inject, secret) })
			w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
				for name := range want {
					rw.Header().Set("Etag", r.Header.Get(name))
				}
				rw.Header().Set("X-Request-Id", "the "+secret)
			})
			a := w.get("/v1")
			saw := w.daemon.requests()
			if len(saw) != 1 {
				t.Fatalf("%d requests, %d %s", len(saw), a.status, a.body)
			}
			for _, name := range []string{"Authorization", "X-Own"} {
				if diff := cmp.Diff(want.Values(name), saw[0].Header.Values(name)); diff != "" {
					t.Errorf("%s (-want +got)\n%s", name, diff)
				}
			}
			if e, id := a.header.Get("Etag"), a.header.Get("X-Request-Id"); e != "" || id != "" {
				t.Errorf("the answer repeats it: %q, %q", e, id)
			}
			if strings.Contains(w.logs.String(), secret) {
				t.Error("the log holds it")
			}
		})
	}
}

// Proves station 17.T17: after ten refusals within a minute an address waits, also
// with the right credentials, and nothing is looked up for it.
func TestGate_Guessing(t *testing.T) {
	clock := testkit.NewClock()
	w := newWorld(t, func(o *gate.Options, _ *gate.Bridge) { o.Now = clock.Now })
	guess := func() answer {
		r := w.request("GET", "/v1", nil)
		r.Header.Del("Authorization")
		clock.Advance(time.Second)
		return w.send(r)
	}
	for range 10 {
		w.refused(guess(), http.StatusUnauthorized, "unauthorized")
	}
	w.auth.Break(errors.New("nobody asks")) // a lookup would be a 503
	a := guess()
	w.refused(a, http.StatusTooManyRequests, "too_many_failures")
	if got := a.header.Get("Retry-After"); got != "50" {
		t.Errorf("Retry-After %q", got)
	}
	w.refused(w.get("/v1"), http.StatusTooManyRequests, "too_many_failures")
	w.dial = func(ctx context.Context) (net.Conn, error) { // another name for the same machine
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).DialContext(ctx, "tcp", w.addr)
	}
	w.client.CloseIdleConnections()
	w.refused(w.get("/v1"), http.StatusTooManyRequests, "too_many_failures")
	w.auth.Break(nil)
	w.untouched()
	clock.Advance(50 * time.Second)
	if a := w.get("/v1"); a.status != http.StatusOK {
		t.Errorf("a minute later: %d %s", a.status, a.body)
	}
	for range 10 { // the old ones count as long as they are young
		guess()
	}
	w.refused(guess(), http.StatusTooManyRequests, "too_many_failures")
}

// What cannot be looked up does not pass.
func TestGate_Undecided(t *testing.T) {
	w := newWorld(t)
	w.auth.Break(errors.New("the disk is gone"))
	w.refused(w.get("/v1"), http.StatusServiceUnavailable, "gate_unavailable")
	w.untouched()
	if !strings.Contains(w.logs.String(), "the disk is gone") {
		t.Error("nobody is told why")
	}
}

// onlyConn dials one connection, once.
func onlyConn(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var once sync.Once
	return func(context.Context, string, string) (net.Conn, error) {
		err := errors.New("the connection was not kept")
		once.Do(func() { err = nil })
		return c, err
	}
}

// On a unix socket the peer's uid is the principal, and a bearer means nothing.
func TestGate_UnixSocket(t *testing.T) {
	path := filepath.Join(testkit.RuntimeDir(t), "gate.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *gate.Options, _ *gate.Bridge) { o.Listeners = append(o.Listeners, l) })
	w.addr = "localhost"
	w.dial = func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) }
	w.refused(w.get("/v1"), http.StatusUnauthorized, "unauthorized")
	w.auth.Local("ada", os.Getuid())
	r := w.request("GET", "/v1", nil)
	r.Header.Del("Authorization")
	if a := w.send(r); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.Host = "evil"
	w.refused(w.send(r), http.StatusMisdirectedRequest, "host_refused")
}

// A daemon that reaches the gate's socket by its path, with its uid, is let go
// without a word: it lives in another network namespace.
func TestGate_UnixSocketFromNamespace(t *testing.T) {
	testkit.Need(t, "unshare")
	path := filepath.Join(testkit.RuntimeDir(t), "gate.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *gate.Options, _ *gate.Bridge) { o.Listeners = append(o.Listeners, l) })
	w.auth.Local("ada", os.Getuid())
	flags := []string{"-n"}
	if os.Getuid() != 0 {
		flags = []string{"-U", "-r", "-n"}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, outside := range []bool{true, false} {
		cmd := exec.Command(self)
		if outside {
			cmd = exec.Command("unshare", append(flags, self)...)
		}
		cmd.Env = append(os.Environ(), dialVariable+"="+path)
		cmd.Stdin = strings.NewReader("GET " + gate.BridgePath(theStation, 1) + "/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nDrawbridge-Ticket: " + w.ticket + "\r\n\r\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			if outside && os.Getenv("CI") != "true" {
				t.Skipf("no network namespaces here: %v %s", err, out)
			}
			t.Fatalf("%v: %s", err, out)
		}
		if got := string(out); outside != (got == "") || !outside && !strings.HasPrefix(got, "HTTP/1.1 200 OK") {
			t.Errorf("from outside %v: %q", outside, got)
		}
	}
	if n := len(w.daemon.requests()); n != 1 {
		t.Errorf("the daemon saw %d requests", n)
	}
}
