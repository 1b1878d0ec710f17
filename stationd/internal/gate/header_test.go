package gate_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/gate"
)

// Proves station 17.H1: of forty headers the daemon sees those of the list, and
// what the gate sets.
func TestGate_RequestHeaders(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) {
		b.HeaderAllow = []string{"x-harness-mode"}
		b.Credential = bearer(t, "bearer", "daemon-own-credential")
	})
	pass := http.Header{
		"Accept": {"application/json"}, "Accept-Language": {"de"}, "Content-Type": {"text/plain"}, "Content-Encoding": {"x-none"},
		"If-Match": {`"a"`}, "If-None-Match": {`"b"`}, "If-Modified-Since": {"Mon, 30 Nov 2026 00:00:00 GMT"},
		"If-Unmodified-Since": {"Mon, 30 Nov 2026 00:00:00 GMT"}, "Range": {"bytes=0-1"}, "Last-Event-Id": {"41"}, "X-Request-Id": {"r1"},
		"Idempotency-Key": {"k1"}, "Mcp-Session-Id": {"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"}, "Mcp-Protocol-Version": {"2025-11-25"},
		"X-Harness-Mode": {"plain"},
	}
	drop := http.Header{
		"Connection": {"keep-alive, X-Dropped"}, "X-Dropped": {"1"}, "Keep-Alive": {"5"},
		"Proxy-Authorization": {"Basic eDp5"}, "Proxy-Connection": {"x"}, "Te": {"trailers"}, "Forwarded": {"for=1.2.3.4"},
		"X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"https"}, "X-Real-Ip": {"1.2.3.4"}, "Via": {"1.1 x"},
		"Cf-Connecting-Ip": {"1.2.3.4"}, "Cf-Access-Jwt-Assertion": {"x"}, "X-Amz-Security-Token": {"x"}, "X-Goog-Api-Key": {"x"},
		"X-Goog-Iap-Jwt-Assertion": {"x"}, "X-Azure-Fdid": {"x"}, "Drawbridge-Anything": {"x"}, "Referer": {"http://x/"},
		"X-Api-Key": {"x"}, "Api-Key": {"x"}, "X-Auth-Token": {"x"}, "X-Csrf-Token": {"x"}, "Openai-Organization": {"x"},
		"Accept-Encoding": {"gzip"}, "User-Agent": {"curl/8"}, "X-Idempotency-Key": {"x"}, "Pragma": {"x"}, "Priority": {"u=1"},
	}
	r := w.request("POST", "/v1", strings.NewReader("hello"))
	maps.Copy(r.Header, pass)
	maps.Copy(r.Header, drop)
	if n := len(r.Header); n < 40 {
		t.Fatalf("%d headers", n)
	}
	if a := w.send(r); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	saw := w.daemon.requests()[0]
	want := pass.Clone()
	want.Set("User-Agent", "drawbridge-bridge/1")
	want.Set("Accept-Encoding", "identity")
	want.Set("Authorization", "Bearer daemon-own-credential")
	want.Set("Content-Length", "5")
	if diff := cmp.Diff(want, saw.Header); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if saw.Host != fmt.Sprint("127.0.0.1:", theDaemon) {
		t.Errorf("Host %s", saw.Host)
	}
}

// Proves station 17.H3: a credential in a header that would pass is refused before
// the daemon is contacted.
func TestGate_CredentialInHeader(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.HeaderAllow = []string{"X-Extra"} })
	for name, value := range map[string]string{
		"X-Request-Id":    w.ticket,
		"X-Extra":         "Bearer " + w.bearer,
		"Accept":          "text/plain; x=" + w.ticket,
		"Last-Event-Id":   w.bearer,
		"Mcp-Session-Id":  w.ticket,
		"Idempotency-Key": "sk-" + strings.Repeat("x", 30),
		"Accept-Language": "AKIAIOSFODNN7EXAMPLE",
		"Range":           "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
	} {
		r := w.request("GET", "/v1", nil)
		r.Header[name] = []string{value}
		w.refused(w.send(r), http.StatusBadRequest, "header_refused")
	}
	for name, values := range map[string][]string{
		"Accept":        {"a", "b"},
		"X-Extra":       {strings.Repeat("x", 4097)},
		"Last-Event-Id": {strings.Repeat("x", 1025)},
	} {
		r := w.request("GET", "/v1", nil)
		r.Header[name] = values
		w.refused(w.send(r), http.StatusBadRequest, "header_refused")
	}
	w.untouched()
}

// Proves station 17.H2, 17.H6: what would give lease content power over a browser,
// or says something of the daemon, never reaches a client; no answer sets a cookie
// or allows another origin.
func TestGate_AnswerHeaders(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.HeaderAllow = []string{"X-Harness"} })
	pass := http.Header{
		"Content-Type": {"text/html"}, "Content-Encoding": {"x-none"}, "Content-Language": {"de"}, "Content-Disposition": {"inline"},
		"Content-Range": {"bytes 0-1/2"}, "Accept-Ranges": {"bytes"}, "Cache-Control": {"max-age=1, private"}, "Etag": {`"a"`},
		"Last-Modified": {"Mon, 30 Nov 2026 00:00:00 GMT"}, "Retry-After": {"1"}, "X-Request-Id": {"r"}, "Mcp-Session-Id": {"m"}, "X-Harness": {"h"},
	}
	drop := http.Header{
		"Set-Cookie": {"a=b"}, "Clear-Site-Data": {"*"}, "Service-Worker-Allowed": {"/"}, "Alt-Svc": {"h3"}, "Strict-Transport-Security": {"max-age=1"},
		"Access-Control-Allow-Origin": {"*"}, "Access-Control-Allow-Credentials": {"true"}, "Www-Authenticate": {"Basic"}, "Server": {"x"},
		"Refresh": {"0"}, "Link": {"</x>"}, "X-Powered-By": {"x"}, "Content-Security-Policy": {"default-src *"}, "X-Content-Type-Options": {"x"},
		"Referrer-Policy": {"unsafe-url"}, "Cross-Origin-Resource-Policy": {"cross-origin"}, "Cross-Origin-Opener-Policy": {"x"}, "Keep-Alive": {"1"},
		"Proxy-Authenticate": {"x"}, "Content-Location": {"/x"}, "Nel": {"x"}, "Report-To": {"x"}, "Sourcemap": {"x"},
	}
	w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
		maps.Copy(rw.Header(), pass)
		maps.Copy(rw.Header(), drop)
		rw.Header()["Vary"] = []string{"Accept", "Accept-Language"}
		_, _ = io.WriteString(rw, "hello")
	})
	a := w.get("/v1")
	want := pass.Clone()
	want.Set("Vary", "Accept, Accept-Language")
	want.Set("Content-Length", "5")
	want.Set("X-Content-Type-Options", "nosniff")
	want.Set("Referrer-Policy", "no-referrer")
	want.Set("Content-Security-Policy", "sandbox")
	want.Set("Cross-Origin-Resource-Policy", "same-origin")
	a.header.Del("Date")
	if diff := cmp.Diff(want, a.header); diff != "" || a.body != "hello" {
		t.Errorf("%q (-want +got)\n%s", a.body, diff)
	}

	w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Content-Type"] = nil
		_, _ = io.WriteString(rw, "<html>")
	})
	a = w.get("/v1")
	if kind, cache := a.header["Content-Type"], a.header.Get("Cache-Control"); kind != nil || cache != "no-store" {
		t.Errorf("Content-Type %q, Cache-Control %q", kind, cache)
	}
	for _, path := range []string{"/v1/stations", "/v1/principals", "/metrics", "/healthz", "/"} {
		r := w.request("GET", "", nil)
		r.URL.Path = path
		a := w.send(r)
		w.refused(a, http.StatusUnauthorized, "unauthorized")
		for name := range a.header {
			if name == "Set-Cookie" || strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s answers with %s", path, name)
			}
		}
	}
}

// Answers that cannot be passed on are named, and hold nothing of the daemon.
func TestGate_AnswerRefused(t *testing.T) {
	w := newWorld(t, func(_ *gate.Options, b *gate.Bridge) { b.Limits.Answer = 100 })
	for _, tc := range []struct {
		name   string
		answer string // raw
		code   string
	}{
		{"its own 401", "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", "daemon_auth_failed"},
		{"an upgrade", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "daemon_answer_refused"},
		{"status 999", "HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", "daemon_answer_refused"},
		{"status 600", "HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n", "daemon_answer_refused"},
		{"two types", "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Type: c/d\r\nContent-Length: 0\r\n\r\n", "daemon_answer_refused"},
		{"a long value", "HTTP/1.1 200 OK\r\nX-Request-Id: " + strings.Repeat("x", 4097) + "\r\nContent-Length: 0\r\n\r\n", "daemon_answer_refused"},
		{"a compressed stream", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n", "daemon_answer_refused"},
		{"too large", "HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + strings.Repeat("x", 101), "answer_too_large"},
		{"no HTTP", "hello there, this is not HTTP\r\n\r\n", "daemon_unreachable"},
		{"nothing", "", "daemon_unreachable"},
		{"endless headers", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("x", 1<<20), "daemon_unreachable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.daemon.handle(hijack(tc.answer))
			a := w.get("/v1")
			status := http.StatusBadGateway
			w.refused(a, status, tc.code)
			if n := w.route.Counts().Refused[fault.Code(tc.code)]; n == 0 {
				t.Error("not counted")
			}
		})
	}
}

// hijack answers with raw bytes and closes.
func hijack(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, text)
	}
}

// Proves station 17.H4: interim answers and trailers stop at the gate, with all
// they hold.
func TestGate_InterimAndTrailers(t *testing.T) {
	w := newWorld(t)
	w.daemon.handle(hijack("HTTP/1.1 103 Early Hints\r\nLink: </evil>\r\nSet-Cookie: a=b\r\n\r\n" +
		"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Trailer, Set-Cookie\r\n\r\n" +
		"5\r\nhello\r\n0\r\nX-Trailer: evil\r\nSet-Cookie: c=d\r\n\r\n"))
	_, all := w.rawStatus("GET " + gate.BridgePath(theStation, 1) + "/v1 HTTP/1.1\r\n" + w.credentials() + "\r\n")
	if !strings.HasPrefix(all, "HTTP/1.1 200 OK\r\n") || !strings.Contains(all, "hello") {
		t.Errorf("answer %q", all)
	}
	for _, text := range []string{"103", "evil", "Set-Cookie", "X-Interim", "Trailer"} {
		if strings.Contains(all, text) {
			t.Errorf("the client sees %s in %q", text, all)
		}
	}
}

// Proves station 17.H5: headerAllow cannot name a header of authority, of framing
// or of power over a browser.
func TestHeaderAllow(t *testing.T) {
	for _, name := range strings.Fields(`Authorization Cookie Host Connection Keep-Alive Proxy-Authorization Proxy-Anything TE Trailer
		Transfer-Encoding Upgrade Forwarded X-Forwarded-For X-Forwarded-Anything X-Real-IP Via Cf-Ray X-Amz-Date X-Goog-Api-Key X-Azure-Ref
		Drawbridge-Ticket drawbridge-anything Expect Origin Referer content-length SEC-FETCH-SITE Sec-WebSocket-Key HTTP2-Settings User-Agent
		Accept-Encoding Location Set-Cookie Clear-Site-Data Service-Worker-Allowed Alt-Svc Strict-Transport-Security
		Access-Control-Allow-Origin WWW-Authenticate Server Content-Security-Policy X_Forwarded_For Content_Length Proxy_User`) {
		if err := gate.NewHeaderList([]string{"X-Fine", name}, gate.Credential{}); !fault.Is(err, fault.HeaderNotAllowable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "a b", "x:y", "x\r\ny", "é", strings.Repeat("x", 65)} {
		if err := gate.NewHeaderList([]string{name}, gate.Credential{}); !fault.Is(err, fault.HeaderNotAllowable) {
			t.Errorf("%q: %v", name, err)
		}
	}
	own := bearer(t, "header:X-Own-Auth", "0123456789abcdef")
	for _, name := range []string{"x-own-auth", "X_Own_Auth"} {
		if err := gate.NewHeaderList([]string{name}, own); !fault.Is(err, fault.HeaderNotAllowable) {
			t.Errorf("the credential's own header as %s: %v", name, err)
		}
	}
	if err := gate.NewHeaderList([]string{"X-Fine", "x-other", "Accept"}, own); err != nil {
		t.Error(err)
	}
	if err := gate.NewHeaderList(slices.Repeat([]string{"X-A"}, 33), own); !fault.Is(err, fault.BridgeInvalid) {
		t.Error(err)
	}
}

func TestParseCredential(t *testing.T) {
	for _, inject := range []string{
		"", "none", "bearer:x", "basic", "basic:", "basic:a:b", "basic:a\nb", "header", "header:", "header:a b", "header:Host",
		"header:Content-Length", "header:Accept", "header:Transfer-Encoding", "header:Cookie", "Bearer",
	} {
		if _, err := gate.ParseCredential(inject, redact.NewSecret("x")); !fault.Is(err, fault.BridgeInvalid) {
			t.Errorf("%q: %v", inject, err)
		}
	}
	h := http.Header{}
	bearer(t, "header:authorization", "raw").Apply(h)
	if got := h.Get("Authorization"); got != "raw" {
		t.Errorf("got %q", got)
	}
}

// Proves station 17.H8: a redirect inside the daemon leads below the bridge, one
// to elsewhere is refused.
func TestGate_Redirects(t *testing.T) {
	w := newWorld(t)
	base := gate.BridgePath(theStation, 1)
	for _, tc := range []struct{ location, want string }{
		{"/v2", base + "/v2"},
		{"/v2/", base + "/v2/"},
		{"/v2?x=1&y=%2f", base + "/v2?x=1&y=%2f"},
		{"x", base + "/v1/x"},
		{"../x", base + "/x"},
		{"./x/../y", base + "/v1/y"},
		{"?z=1", base + "/v1/here?z=1"},
		{"", base + "/v1/here"},
		{"http://127.0.0.1:7070/v2", base + "/v2"},
		{"HTTP://127.0.0.1:7070", base + "/"},
		{"http://localhost:7070/v2?x", base + "/v2?x"},
		{"http://127.0.0.1:7070?x", base + "/?x"},
		{"http://127.0.0.1:7071/v2", ""},
		{"http://127.0.0.1:70701/v2", ""},
		{"http://127.0.0.1/v2", ""},
		{"https://127.0.0.1:7070/v2", ""},
		{"http://127.0.0.1:7070@evil/v2", ""},
		{"http://127.0.0.1:7070.evil/", ""},
		{"http://127.0.0.1:7070//evil/", ""},
		{"http://evil/", ""},
		{"//evil/", ""},
		{"//127.0.0.1:7070/", ""},
		{"javascript:alert(1)", ""},
		{"../../x", ""},
		{"/..", ""},
		{"/a%2fb", ""},
		{"/a\\b", ""},
		{"\\\\evil", ""},
		{"/a#b", ""},
		{"/v2?ticket=1", ""},
		{"/v2/" + w.ticket, ""},
	} {
		t.Run(tc.location, func(t *testing.T) {
			w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header()["Location"] = []string{tc.location}
				rw.WriteHeader(http.StatusFound)
			})
			a := w.get("/v1/here")
			if tc.want == "" {
				w.refused(a, http.StatusBadGateway, "redirect_outside")
				if a.header.Get("Location") != "" {
					t.Error("with a Location")
				}
				return
			}
			if got := a.header.Get("Location"); a.status != http.StatusFound || got != tc.want {
				t.Errorf("%d %s, want %s", a.status, got, tc.want)
			}
		})
	}
}

// Proves station 17.H7: a page of one station cannot use the gate for another, nor
// its own bridge from another origin.
func TestGate_Origin(t *testing.T) {
	w := newWorld(t)
	_, port, _ := strings.Cut(w.addr, ":")
	own := gate.HostLabel(theStation, 1) + ":" + port
	foreign := gate.HostLabel("stn_two", 1) + ":" + port
	for _, tc := range []struct {
		name, host, origin, mark string
		status                   int
		code                     string
	}{
		{"a client", w.addr, "", "", 200, ""},
		{"localhost", "localhost:" + port, "", "", 200, ""},
		{"IPv6", "[::1]:" + port, "", "", 200, ""},
		{"the label", own, "", "", 200, ""},
		{"the label in capitals", strings.ToUpper(own), "", "", 200, ""},
		{"a page of its own", own, "http://" + own, "same-origin", 200, ""},
		{"a navigation", own, "", "none", 200, ""},
		{"another label", foreign, "", "", 421, "host_refused"},
		{"a name that was rebound", "evil.example:" + port, "", "", 421, "host_refused"},
		{"another port", "127.0.0.1:1", "", "", 421, "host_refused"},
		{"no port", "127.0.0.1", "", "", 421, "host_refused"},
		{"a label below", "x." + own, "", "", 421, "host_refused"},
		{"a browser on the address", w.addr, "", "cross-site", 421, "host_refused"},
		{"a page on the address", w.addr, "http://" + w.addr, "same-origin", 421, "host_refused"},
		{"a page of another station, its Host", foreign, "http://" + foreign, "same-origin", 421, "host_refused"},
		{"a page of another station", own, "http://" + foreign, "cross-site", 403, "origin_refused"},
		{"a page from elsewhere", own, "https://evil.example", "cross-site", 403, "origin_refused"},
		{"another scheme", own, "https://" + own, "", 403, "origin_refused"},
		{"a sandboxed page", own, "null", "cross-site", 403, "origin_refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := w.request("GET", "/v1", nil)
			r.Host = tc.host
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			if tc.mark != "" {
				r.Header.Set("Sec-Fetch-Site", tc.mark)
			}
			a := w.send(r)
			if tc.code == "" {
				if a.status != http.StatusOK {
					t.Errorf("%d %s", a.status, a.body)
				}
				return
			}
			w.refused(a, tc.status, tc.code)
		})
	}
	if n := len(w.daemon.requests()); n != 7 {
		t.Errorf("the daemon saw %d requests", n)
	}
}
