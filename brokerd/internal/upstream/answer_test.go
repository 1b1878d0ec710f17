package upstream_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/redact"
)

// jsonSecret is the credential as JSON writes it.
var jsonSecret = strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(secret)

// Proves broker 18.10: what the provider sees of the worker, and of the host.
func TestRequestHeaders(t *testing.T) {
	for _, kind := range []string{upstream.APIKey, upstream.AccessToken} {
		w := newWorld(t, func(o *upstream.Options, g *upstream.Grant) {
			g.Kind, g.Origin = kind, upstream.OriginFor(kind)
			o.AllowHeaders = []string{"x-extra"}
		})
		r := w.request("/responses", strings.NewReader(bound))
		for name, value := range map[string]string{
			"accept": "text/event-stream", "openai-beta": "a", "originator": "codex_exec", "session_id": "s1", "version": "0.171.0", "x-codex-turn-state": "ts",
			"session-id": "s2", "thread-id": "t", "x-client-request-id": "c", "x-codex-beta-features": "b", "x-codex-window-id": "w", "x-extra": "e",
			"x-codex-turn-metadata": "m", "user-agent": "codex", "accept-encoding": "gzip", "x-other": "o", "openai-organization": "org",
			"openai-project": "p", "x-forwarded-for": "1.1.1.1", "proxy-authorization": "x", "chatgpt-account-id": "mine", "forwarded": "for=1", "traceparent": "00",
		} {
			r.Header.Set(name, value)
		}
		if a := w.send(r); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		want := http.Header{
			"Accept": {"text/event-stream"}, "Openai-Beta": {"a"}, "Originator": {"codex_exec"}, "Session_id": {"s1"}, "Version": {"0.171.0"},
			"X-Codex-Turn-State": {"ts"}, "Session-Id": {"s2"}, "Thread-Id": {"t"}, "X-Client-Request-Id": {"c"}, "X-Codex-Beta-Features": {"b"},
			"X-Codex-Window-Id": {"w"}, "X-Extra": {"e"},
			"Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(len(bound))}, "Authorization": {"Bearer " + secret},
		}
		if kind == upstream.AccessToken {
			want["Chatgpt-Account-Id"] = []string{"acct-1"}
		}
		got := w.requests()[0].header
		if agent := got.Get("User-Agent"); !strings.HasPrefix(agent, "drawbridge-broker/") {
			t.Errorf("user-agent is %q", agent)
		}
		got.Del("User-Agent")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: headers (-want +got):\n%s", kind, diff)
		}
	}
	// Twice, too long, not printable, or with the capability in it: not passed on.
	w := newWorld(t)
	a, _ := w.raw(w.head("/responses", "Accept: a", "Accept: b", "Originator: "+strings.Repeat("x", upstream.MaxHeader+1), "Version: \xc3\xa9", "Session-Id: "+w.token,
		"Thread-Id: "+strings.Repeat("x", upstream.MaxHeader), fmt.Sprint("Content-Length: ", len(bound))) + bound)
	if a.status != 200 {
		t.Fatalf("%+v", a)
	}
	header := w.requests()[0].header
	for _, name := range []string{"Accept", "Originator", "Version", "Session-Id"} {
		if header.Values(name) != nil {
			t.Errorf("%s was passed on", name)
		}
	}
	if len(header.Get("Thread-Id")) != upstream.MaxHeader {
		t.Error("a header of the longest length was not passed on")
	}
}

func TestCheckHeader(t *testing.T) {
	for name, ok := range map[string]bool{
		"x-extra": true, "OpenAI-Something": true, "x_y": true,
		"authorization": false, "Chatgpt-Account-ID": false, "host": false, "cookie": false, "proxy-connection": false, "X-Forwarded-Host": false, "openai-organization": false,
		"openai-project": false, "accept-encoding": false, "transfer-encoding": false, "idempotency-key": false, "X-Idempotency-Key": false, "": false, "a b": false, "a:b": false, "é": false,
	} {
		if err := upstream.CheckHeader(name); (err == nil) != ok {
			t.Errorf("CheckHeader(%q) = %v", name, err)
		}
		if _, err := upstream.NewHandler(upstream.Options{AllowHeaders: []string{name}}); (err == nil) != ok {
			t.Errorf("NewHandler with %q: %v", name, err)
		}
	}
}

// What of the answer's head reaches the worker (broker §8).
func TestResponseHeaders(t *testing.T) {
	w := newWorld(t)
	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		h := rw.Header()
		for name, value := range map[string]string{
			"Content-Type": "text/event-stream; charset=utf-8", "X-Request-Id": "req_1", "Openai-Processing-Ms": "12", "X-Codex-Turn-State": "state", "Retry-After": "3",
			"Set-Cookie": "a=b", "Server": "provider", "X-Ratelimit-Remaining": "1", "Cf-Ray": "x", "Cache-Control": "public", "Openai-Organization": "org",
		} {
			h.Set(name, value)
		}
		rw.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(rw, "slow down")
	})
	a := w.post("/responses", bound)
	if a.status != 429 || a.body != "slow down" {
		t.Errorf("%+v", a)
	}
	if server := a.header.Get("Server"); !strings.HasPrefix(server, "drawbridge-broker/") {
		t.Errorf("server is %q", server)
	}
	a.header.Del("Server")
	a.header.Del("Date")
	want := http.Header{
		"Content-Type": {"text/event-stream; charset=utf-8"}, "X-Request-Id": {"req_1"}, "Openai-Processing-Ms": {"12"}, "X-Codex-Turn-State": {"state"},
		"Retry-After": {"3"}, "Cache-Control": {"no-store"},
	}
	if diff := cmp.Diff(want, a.header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if e := w.row(); e.Outcome != upstream.UpstreamStatus || *e.Status != 429 {
		t.Errorf("row %+v", e)
	}

	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Request-Id", "for "+secret)
		rw.Header().Set("X-Codex-Turn-State", `"`+jsonSecret+`"`)
		rw.Header()["Content-Type"] = nil
		rw.WriteHeader(http.StatusOK)
	})
	a = w.post("/responses", bound)
	if a.status != 200 || a.header.Values("X-Request-Id") != nil || a.header.Values("X-Codex-Turn-State") != nil || a.header.Values("Content-Type") != nil {
		t.Errorf("%+v", a)
	}
}

// Proves broker 18.11: whatever the provider cuts its answer into, the credential does
// not come through.
func TestRedaction(t *testing.T) {
	w := newWorld(t)
	text := "data: {\"a\":\"" + jsonSecret + "\"} and " + secret + secret + " and " + secret[:len(secret)-1] + "\n\n"
	want := "data: {\"a\":\"" + upstream.RedactedWord + "\"} and " + upstream.RedactedWord + upstream.RedactedWord + " and " + secret[:len(secret)-1] + "\n\n"
	for cut := range len(text) {
		w.answer(func(rw http.ResponseWriter, _ *http.Request) { sse(rw, text[:cut], text[cut:]) })
		if a := w.post("/responses", bound); a.body != want || a.err != nil {
			t.Fatalf("cut at %d: %q, %v", cut, a.body, a.err)
		}
	}
	var bytewise []string
	for i := range len(text) {
		bytewise = append(bytewise, text[i:i+1])
	}
	w.answer(func(rw http.ResponseWriter, _ *http.Request) { sse(rw, bytewise...) })
	if a := w.post("/responses", bound); a.body != want {
		t.Fatalf("byte by byte: %q", a.body)
	}
	rows := w.rows()
	if e := rows[len(rows)-1]; e.Redactions != 3 || e.ResponseBytes != int64(len(text)) {
		t.Errorf("row %+v", e)
	}
	if !strings.Contains(w.logs.String(), "credential_echoed_by_upstream") {
		t.Error("the log does not say so")
	}

	// In what is kept of the answer neither.
	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		sse(rw, `data: {"type":"response.completed","response":{"model":"`+jsonSecret+`","usage":{"input_tokens":1,"output_tokens":1}}}`+"\n\n")
	})
	w.post("/responses", bound)
	rows = w.rows()
	if e := rows[len(rows)-1]; e.ReportedModel == nil || *e.ReportedModel != upstream.RedactedWord {
		t.Errorf("row %s", e.JSON())
	}
}

// Proves broker 18.12: nothing but the beginning of a credential is held back.
func TestNoHoldBack(t *testing.T) {
	w := newWorld(t)
	pause := make(chan struct{})
	events := []string{"data: one\n\n", "data: two\r\n\r\n", ": x", "data: test", secret[:20], "no more.", "data: " + secret}
	visible := []string{"data: one\n\n", "data: two\r\n\r\n", ": x", "data: ", "test", secret[:20] + "no more.", "data: " + upstream.RedactedWord}
	w.answer(func(rw http.ResponseWriter, r *http.Request) {
		for _, e := range events {
			sse(rw, e)
			select {
			case <-pause:
			case <-r.Context().Done():
			}
		}
	})
	resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound))) // the head is there before any event
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i, want := range visible {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("after event %d came %q, %v, want %q", i, got, err, want)
		}
		pause <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("behind the last came %q, %v", rest, err)
	}
}

// Proves broker 18.13: redirects and packed answers are 502, and nobody goes there.
func TestUnfit(t *testing.T) {
	reached := make(chan struct{}, 100)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"301": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.URL, http.StatusMovedPermanently)
		},
		"302": func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, elsewhere.URL, http.StatusFound) },
		"307": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"308": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "/elsewhere", http.StatusPermanentRedirect)
		},
		"gzip": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(rw, "packed")
		},
		"br and identity": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["Content-Encoding"] = []string{"identity", "br"}
		},
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"nonsense": func(rw http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "nonsense "+secret+"\r\n\r\n")
				_ = c.Close()
			}
		},
		"switch": func(rw http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
				_ = c.Close()
			}
		},
		"no status": func(rw http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 042 What\r\nContent-Length: 0\r\n\r\n")
				_ = c.Close()
			}
		},
		"endless head": func(rw http.ResponseWriter, _ *http.Request) {
			for i := range 200 {
				rw.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.answer(answer)
			w.refused(w.post("/responses", bound), upstream.Unreachable)
			if e := w.row(); e.Outcome != upstream.UpstreamError || e.ResponseUsage != nil || e.EndedAt == nil {
				t.Errorf("row %+v", e)
			}
			if n := len(w.requests()); n != 1 {
				t.Errorf("%d requests reached the provider: it is not asked again", n)
			}
			if len(reached) > 0 {
				t.Error("the target of a redirect was reached")
			}
			if text := w.logs.String(); strings.Count(text, "the provider failed a request") != 1 || strings.Contains(text, "nonsense") {
				t.Errorf("the log does not say what was wrong, or quotes it:\n%s", text)
			}
		})
	}
	w := newWorld(t) // a 304 without a place to go is passed on
	w.answer(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNotModified) })
	if a := w.post("/responses", bound); a.status != 304 {
		t.Errorf("%+v", a)
	}
	w = newWorld(t)
	w.provider.Close()
	w.refused(w.post("/responses", bound), upstream.Unreachable) // nobody listens
	w.rows()
	if text := w.logs.String(); !strings.Contains(text, `why="no connection: connection refused"`) {
		t.Errorf("the log does not say what was wrong:\n%s", text)
	}
}

// deadlines is an answer that notes until when it must be taken.
type deadlines struct {
	*httptest.ResponseRecorder
	write time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = at
	return nil
}

// roundTrip answers in the place of a provider.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// lateEnd is a body whose end comes long after its last byte.
type lateEnd struct{ rest io.Reader }

func (l lateEnd) Read(p []byte) (int, error) {
	n, err := l.rest.Read(p)
	if err == io.EOF {
		time.Sleep(2 * time.Minute)
	}
	return n, err
}

// A stream that ends long after its last event ends whole: the time to take its end is
// counted from there.
func TestLateEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := newLedger()
		token, sum := redact.NewCapability()
		ledger.grants[sum] = upstream.Grant{ID: "bg_1", SHA256: sum, Model: "gpt-5.5", Kind: upstream.APIKey, Origin: upstream.OriginAPI,
			ExpiresAt: time.Now().Add(time.Hour).UnixMilli()}
		ledger.active["bg_1"], ledger.most["bg_1"] = true, 1
		h, err := upstream.NewHandler(upstream.Options{
			Ledger: ledger, Journal: upstream.NewJournal(ledger, nil),
			Credentials: func(context.Context, upstream.Grant) (upstream.Credential, error) {
				return upstream.Credential{Secret: redact.NewSecret(secret)}, nil
			},
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(lateEnd{strings.NewReader("data: a\n\n")})}, nil
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/responses", strings.NewReader(bound))
		r.Header.Set("Authorization", "Bearer "+token.Reveal())
		rec := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(rec, r)
		if rec.Code != 200 || rec.Body.String() != "data: a\n\n" || !rec.write.After(time.Now()) {
			t.Errorf("status %d, body %q, to be taken until %s, and it is %s", rec.Code, rec.Body, rec.write, time.Now())
		}
	})
}

// Proves broker 18.14: the environment names a proxy, and it is not asked.
func TestNoProxyFromEnvironment(t *testing.T) {
	asked := make(chan struct{}, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	defer proxy.Close()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	transport := upstream.NewTransport(upstream.TransportOptions{})
	if transport.Proxy != nil {
		t.Error("the transport looks for a proxy") // the environment is not asked for loopback, so this is the proof
	}
	w := newWorld(t)
	if a := w.post("/responses", bound); a.status != 200 || len(asked) > 0 {
		t.Errorf("%+v, %d requests at the proxy", a, len(asked))
	}
	if !transport.DisableCompression || transport.TLSClientConfig.MinVersion < 0x0303 {
		t.Error("the transport unpacks, or speaks an old TLS")
	}
}

// Statuses of the provider are passed on as they are, and the row says so.
func TestStatuses(t *testing.T) {
	for _, status := range []int{200, 201, 400, 401, 403, 404, 429, 500, 502, 503, 529} {
		w := newWorld(t)
		w.answer(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, `{"error":"x"}`)
		})
		a := w.post("/responses", bound)
		if a.status != status || a.body != `{"error":"x"}` || a.err != nil || a.header.Get("X-Drawbridge-Refusal") != "" {
			t.Errorf("%d: %+v", status, a)
		}
		want := upstream.Completed
		if status >= 400 {
			want = upstream.UpstreamStatus
		}
		if e := w.row(); e.Outcome != want || *e.Status != status {
			t.Errorf("%d: row %+v", status, e)
		}
	}
}

// A provider that breaks off, or says a length that is not true, is seen to have done so.
func TestUpstreamCut(t *testing.T) {
	raw := func(text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, text)
				_ = c.Close()
			}
		}
	}
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	for _, tc := range []struct {
		name, text, body, outcome string
		cut                       bool
	}{
		{"between chunks", head + "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n", "data: a\n\n", upstream.UpstreamError, true},
		{"in a chunk", head + "Transfer-Encoding: chunked\r\n\r\nff\r\ndata: a\n\n", "data: a\n\n", upstream.UpstreamError, true},
		{"before the first byte", head + "Transfer-Encoding: chunked\r\n\r\n", "", upstream.UpstreamError, true},
		{"shorter than declared", head + "Content-Length: 100\r\n\r\ndata: a\n\n", "data: a\n\n", upstream.UpstreamError, true},
		{"longer than declared", head + "Content-Length: 9\r\n\r\ndata: a\n\ndata: more", "data: a\n\n", upstream.Completed, false},
		{"to the end of the connection", head + "\r\ndata: a\n\n", "data: a\n\n", upstream.Completed, false},
		{"in the middle of a credential", head + "Content-Length: 100\r\n\r\ndata: " + secret[:20], "data: ", upstream.UpstreamError, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.answer(raw(tc.text))
			a := w.post("/responses", bound)
			if a.status != 200 || a.body != tc.body || (a.err != nil) != tc.cut {
				t.Errorf("%+v, want %q, cut %v", a, tc.body, tc.cut)
			}
			if e := w.row(); e.Outcome != tc.outcome || e.EndedAt == nil {
				t.Errorf("row %+v", e)
			}
		})
	}
}

// A response above the bound is cut, and its row says so.
func TestResponseTruncated(t *testing.T) {
	if testing.Short() {
		t.Skip("256 MiB")
	}
	w := newWorld(t)
	w.answer(func(rw http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 1<<20)
		for r.Context().Err() == nil {
			if _, err := rw.Write(piece); err != nil {
				return
			}
		}
	})
	resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if n != upstream.MaxResponse || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if e := w.row(); !e.ResponseTruncated || e.ResponseBytes != upstream.MaxResponse || e.Outcome != upstream.UpstreamError {
		t.Errorf("row %+v", e)
	}
}

// A worker that goes away ends the request to the provider; the reservation stays spent.
func TestClientGone(t *testing.T) {
	for _, early := range []bool{true, false} {
		w := newWorld(t)
		begun, ended := make(chan struct{}), make(chan struct{})
		w.answer(func(rw http.ResponseWriter, r *http.Request) {
			if !early {
				sse(rw, "data: a\n\n")
			}
			close(begun)
			<-r.Context().Done()
			close(ended)
		})
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound)).WithContext(ctx))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		<-begun
		cancel()
		<-gone
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("the request to the provider goes on")
		}
		if e := w.row(); e.Outcome != upstream.ClientGone {
			t.Errorf("row %+v", e)
		}
	}
}

// Proves broker 18.22 for what is in flight: close cancels it, ends the connections of
// the grant, and leaves others alone.
func TestClose(t *testing.T) {
	w := newWorld(t)
	g := w.grant
	g.ID = "bg_other"
	_, other := w.lend(g, 10)
	gate := make(chan struct{})
	w.answer(func(rw http.ResponseWriter, r *http.Request) {
		sse(rw, "data: a\n\n")
		select {
		case <-r.Context().Done():
		case <-gate:
			sse(rw, event(1, 1, 0))
		}
	})
	idle := w.dial() // it carried the grant, and nothing is in flight on it
	defer idle.Close()
	_, _ = io.WriteString(idle, w.head("/responses", "Content-Length: 1")+"{")
	if a, _ := w.read(idle); a.status != 400 || a.last {
		t.Fatalf("%+v", a)
	}
	slow := w.dial() // its body does not come
	defer slow.Close()
	_, _ = io.WriteString(slow, w.head("/responses", "Content-Length: 100")+"{")

	ours, theirs := w.stream("data: a\n\n", w.token), w.stream("data: a\n\n", other)
	w.ledger.setActive(w.grant.ID, false)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	start := time.Now()
	if left := w.handler.Close(ctx, w.grant.ID); left != 0 || time.Since(start) > 2*time.Second {
		t.Errorf("%d left after %v", left, time.Since(start))
	}
	if rest, err := io.ReadAll(ours); len(rest) > 0 || err == nil {
		t.Errorf("the stream of the closed grant: %q, %v", rest, err)
	}
	for name, c := range map[string]net.Conn{"idle": idle, "slow": slow} {
		if rest, err := io.ReadAll(c); len(rest) > 0 {
			t.Errorf("the %s connection: %q, %v", name, rest, err)
		}
	}
	w.refused(w.post("/responses", bound), upstream.Capability)
	close(gate)
	if rest, err := io.ReadAll(theirs); err != nil || !strings.Contains(string(rest), "completed") {
		t.Errorf("the other grant: %q, %v", rest, err)
	}
	outcomes := map[string]string{}
	for _, e := range w.rows() {
		outcomes[e.GrantID] = e.Outcome
	}
	if diff := cmp.Diff(map[string]string{"bg_1": upstream.AbortedByClose, "bg_other": upstream.Completed}, outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if left := w.handler.Close(ctx, w.grant.ID); left != 0 {
		t.Errorf("a second close: %d left", left)
	}
}

// A close that comes while the reservation is being committed sends nothing.
func TestClose_DuringReservation(t *testing.T) {
	w := newWorld(t)
	hold := make(chan struct{})
	w.ledger.mu.Lock()
	w.ledger.hold = hold
	w.ledger.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound)))
		if err == nil {
			resp.Body.Close()
			t.Error("there was an answer")
		}
	}()
	for end := time.Now().Add(patience); w.handler.Serving(w.grant.ID) == 0; {
		if time.Now().After(end) {
			t.Fatal("the request does not come")
		}
	}
	time.Sleep(20 * time.Millisecond) // it is in the commit by now; if not, the test proves less, not something wrong
	closed := make(chan int)
	go func() { closed <- w.handler.Close(context.Background(), w.grant.ID) }()
	<-done
	close(hold)
	if left := <-closed; left != 0 {
		t.Errorf("%d left", left)
	}
	w.ledger.mu.Lock()
	w.ledger.hold = nil
	w.ledger.mu.Unlock()
	if len(w.requests()) > 0 {
		t.Error("the request was sent")
	}
	if e := w.row(); e.Outcome != upstream.AbortedByClose {
		t.Errorf("row %+v", e)
	}
}

// The row of a request, whole (broker §9).
func TestEvidence(t *testing.T) {
	w := newWorld(t, func(_ *upstream.Options, g *upstream.Grant) { g.OwnerID, g.Effort = "o1", "medium" })
	body := `{"model":"gpt-5.5","reasoning":{"effort":"medium"},"input":"hi"}`
	if a := w.post("/responses/compact", body); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	e := w.row()
	if e.StartedAt == 0 || e.FirstByteAt == nil || e.EndedAt == nil || *e.FirstByteAt < e.StartedAt || *e.EndedAt < *e.FirstByteAt {
		t.Errorf("times of %+v", e)
	}
	e.StartedAt, *e.FirstByteAt, *e.EndedAt = 1, 2, 3
	digest := upstream.Digest([]byte(body))
	want := `{"seq":1,"grant_id":"bg_1","run_id":"r1","owner_id":"o1","operation":"/responses/compact","model":"gpt-5.5","reasoning_effort":"medium",` +
		`"input_text_digests":["` + upstream.Digest([]byte("hi")) + `"],"request_digest":"` + digest + `","forwarded_request_digest":"` + digest + `","request_bytes":64,` +
		`"upstream_origin":"` + w.provider.URL + `","status":200,"outcome":"completed","provider_identity_basis":"host-observed-request-to-test-endpoint",` +
		`"server_model_identity":"unverified","transport_mode":"mocked-test-only","response_usage":{"input_tokens":10,"output_tokens":5,"cached_input_tokens":3},` +
		`"reported_model":"gpt-5.5-2026","started_at":1,"first_byte_at":2,"ended_at":3,"response_bytes":` + fmt.Sprint(len(event(10, 5, 3))) + `,"redactions":0}`
	if diff := cmp.Diff(want, string(e.JSON())); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if c := w.counts(); c.Received != 1 || c.Refused != 0 {
		t.Errorf("counts %+v", c)
	}
}

// Many streams at once on few connections to the provider stay apart.
func TestStreamsStayApart(t *testing.T) {
	w := newWorld(t)
	w.answer(func(rw http.ResponseWriter, r *http.Request) {
		for i := range 50 {
			sse(rw, fmt.Sprintf("data: %s-%d\n\n", r.Header.Get("Thread-Id"), i))
		}
	})
	var all sync.WaitGroup
	for n := range 12 {
		all.Go(func() {
			resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound), "Thread-Id", fmt.Sprint(n)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for i := range 50 {
				if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d-%d", n, i) || !lines.Scan() {
					t.Errorf("stream %d got %q at %d", n, lines.Text(), i)
					return
				}
			}
		})
	}
	all.Wait()
}

// The credential of a grant may change between two requests; the new one is hidden then.
func TestRedaction_AfterChange(t *testing.T) {
	now := secret
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) {
		o.Credentials = func(context.Context, upstream.Grant) (upstream.Credential, error) {
			return upstream.Credential{Secret: redact.NewSecret(now)}, nil
		}
	})
	for _, now = range []string{secret, "test-another-credential"} {
		w.answer(func(rw http.ResponseWriter, r *http.Request) { sse(rw, r.Header.Get("Authorization")) })
		if a := w.post("/responses", bound); a.body != "Bearer "+upstream.RedactedWord {
			t.Errorf("%q", a.body)
		}
	}
}
