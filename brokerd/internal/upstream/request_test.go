package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/redact"
)

// Proves broker 18.1: without the capability of a grant that serves, the answer is the
// fixed one, before any of the body was there.
func TestCapability(t *testing.T) {
	w := newWorld(t)
	other, otherToken := w.lend(upstream.Grant{ID: "bg_2", Model: "x", Kind: upstream.APIKey, Origin: upstream.OriginAPI, ExpiresAt: w.grant.ExpiresAt}, 1)
	w.ledger.setActive(other.ID, false)
	_, late := w.lend(upstream.Grant{ID: "bg_3", Model: "gpt-5.5", Kind: upstream.APIKey, Origin: upstream.OriginAPI, ExpiresAt: time.Now().UnixMilli()}, 1)
	unknown, _ := redact.NewCapability()
	for _, tc := range []struct{ name, line string }{
		{"none", "X-Nothing: 1"},
		{"empty", "Authorization:"},
		{"scheme alone", "Authorization: Bearer"},
		{"unknown", "Authorization: Bearer " + unknown.Reveal()},
		{"truncated", "Authorization: Bearer " + w.token[:63]},
		{"longer", "Authorization: Bearer " + w.token + "0"},
		{"capitals", "Authorization: Bearer " + strings.ToUpper(w.token)},
		{"not hex", "Authorization: Bearer " + strings.Repeat("z", 64)},
		{"two spaces", "Authorization: Bearer  " + w.token},
		{"tab", "Authorization: Bearer\t" + w.token},
		{"of a grant that is closed", "Authorization: Bearer " + otherToken},
		{"of a grant that has expired", "Authorization: Bearer " + late},
		{"lower case scheme", "Authorization: bearer " + w.token},
		{"another scheme", "Authorization: Basic " + w.token},
		{"bare", "Authorization: " + w.token},
		{"list", "Authorization: Bearer " + w.token + ", Bearer " + w.token},
		{"two", "Authorization: Bearer " + w.token + "\r\nAuthorization: Bearer " + w.token},
		{"two, one of them wrong", "Authorization: Bearer " + w.token + "\r\nauthorization: Bearer " + unknown.Reveal()},
		{"api key", "X-Api-Key: " + w.token},
		{"api key besides", "Authorization: Bearer " + w.token + "\r\nX-Api-Key: 1"},
		{"cookie", "Cookie: capability=" + w.token},
		{"cookie besides", "Authorization: Bearer " + w.token + "\r\nCookie: a=b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Now()
			a, tail := w.raw("POST /responses HTTP/1.1\r\nHost: b\r\n" + tc.line + "\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
			w.refused(a, upstream.Capability)
			if tail != "" || !a.last {
				t.Errorf("the connection goes on with %q", tail)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %v: it waits for the body", took)
			}
		})
	}
	if n := len(w.requests()); n > 0 || w.counts() != (upstream.Count{}) {
		t.Errorf("%d requests reached the provider, counts are %+v", n, w.counts())
	}
	if a := w.post("/responses", bound); a.status != 200 {
		t.Errorf("with the capability: %+v", a)
	}
}

// Proves broker 18.2: the capability counts in one place only. (Headers are in
// TestCapability.)
func TestCapability_InQuery(t *testing.T) {
	w := newWorld(t)
	a, _ := w.raw("POST /responses?capability=" + w.token + " HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n")
	w.refused(a, upstream.Capability)
	a, _ = w.raw("POST /responses?Authorization=Bearer%20" + w.token + " HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n")
	w.refused(a, upstream.Capability)
	w.refused(w.post("/responses?capability="+w.token, bound), upstream.Target)
	if len(w.requests()) > 0 {
		t.Error("a request was forwarded")
	}
}

// Proves broker 18.30 and 18.23 for a request: the row alone decides.
func TestCapability_Peer(t *testing.T) {
	for cidr, ok := range map[string]bool{"127.0.0.0/8": true, "172.30.0.0/16": false, "::/0": false, "0.0.0.0/0": true} {
		w := newWorld(t, func(_ *upstream.Options, g *upstream.Grant) { g.Remote = prefix(cidr) })
		a := w.post("/responses", bound)
		if ok && a.status != 200 {
			t.Errorf("%s: %+v", cidr, a)
		}
		if !ok {
			w.refused(a, upstream.Capability)
		}
	}
}

// A thousand wrong capabilities leave nothing behind: no row, one line in the log, and
// the right one works beside them.
func TestCapability_Thousand(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 125 {
				token, _ := redact.NewCapability()
				r := w.request("/responses", strings.NewReader(bound), "Authorization", "Bearer "+token.Reveal())
				resp, err := w.client.Do(r)
				if err != nil {
					t.Errorf("%v", err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				if resp.Body.Close(); err != nil || resp.StatusCode != 401 || string(body) != fixed {
					t.Errorf("status %d, body %q, %v", resp.StatusCode, body, err)
				}
			}
		})
	}
	for range 20 {
		if a := w.post("/responses", bound); a.status != 200 {
			t.Errorf("the right one: %+v", a)
		}
	}
	all.Wait()
	if n := len(w.rows()); n != 20 || len(w.requests()) != 20 {
		t.Errorf("%d rows, %d requests forwarded", n, len(w.requests()))
	}
	if n := strings.Count(w.logs.String(), "without a capability"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	var metrics strings.Builder
	if err := w.meter.WriteText(&metrics); err != nil || !strings.Contains(metrics.String(), `drawbridge_broker_refusals_total{code="capability"} 1000`) {
		t.Errorf("%v, metrics are\n%s", err, metrics.String())
	}
}

// Proves broker 18.3 and 18.4: only the exact targets, as they were sent.
func TestTarget(t *testing.T) {
	for base, targets := range map[string]map[string]string{ // target to what the provider sees, "" is refused
		"": {
			"/responses": "/responses", "/responses/compact": "/responses/compact",
			"/responses/": "", "/responses?x=1": "", "/responses?": "", "//responses": "", "/v1/responses": "", "/%72esponses": "", "/responses/../responses": "",
			"/./responses": "", "/responses/compact/": "", "/responses/compac": "", "/responses%2Fcompact": "", "/Responses": "", "/": "", "*": "",
			"http://broker/responses": "", "https://api.openai.com/v1/responses": "", "/responses#x": "", "/responses;x": "", "/models": "",
		},
		"/v1": {
			"/v1/responses": "/responses", "/v1/responses/compact": "/responses/compact",
			"/responses": "", "/responses/compact": "", "/v1": "", "/v1/v1/responses": "", "/v1//responses": "", "/V1/responses": "",
		},
	} {
		w := newWorld(t, func(_ *upstream.Options, g *upstream.Grant) { g.BasePath = base })
		for target, want := range targets {
			before := len(w.requests())
			a, _ := w.raw(w.head(target, "Content-Type: application/json", fmt.Sprint("Content-Length: ", len(bound))) + bound)
			got := ""
			if now := w.requests(); len(now) > before {
				got = now[before].target
			}
			if got != want {
				t.Errorf("%q below %q reached the provider as %q, want %q", target, base, got, want)
			}
			if want == "" {
				w.refused(a, upstream.Target)
			} else if a.status != 200 {
				t.Errorf("%q: %+v", target, a)
			}
		}
	}
	w := newWorld(t)
	for _, line := range []string{"GET /responses HTTP/1.1", "PUT /responses HTTP/1.1", "CONNECT api.openai.com:443 HTTP/1.1", "OPTIONS * HTTP/1.1", "HEAD /models HTTP/1.1", "post /responses HTTP/1.1", "POST /responses HTTP/1.0"} {
		a, _ := w.raw(line + "\r\nHost: b\r\nAuthorization: Bearer " + w.token + "\r\nConnection: close\r\n\r\n")
		if strings.HasPrefix(line, "HEAD") {
			a.body = fixed // has none
		}
		w.refused(a, upstream.Target)
	}
	if len(w.requests()) > 0 || w.counts() != (upstream.Count{}) {
		t.Error("a request was forwarded or counted")
	}
}

// Proves broker 18.5, 18.6 and 18.7: what is compared is what is forwarded.
func TestBinding(t *testing.T) {
	for _, tc := range []struct{ name, effort, body, forwarded string }{ // forwarded "" means refused
		{"bound", "", `{"model":"gpt-5.5"}`, `{"model":"gpt-5.5"}`},
		{"another model", "", `{"model":"gpt-5"}`, ""},
		{"beginning of it", "", `{"model":"gpt-5.5-mini"}`, ""},
		{"no model", "", `{}`, ""},
		{"model null", "", `{"model":null}`, ""},
		{"model in a list", "", `{"model":["gpt-5.5"]}`, ""},
		{"key in another case", "", `{"Model":"gpt-5.5"}`, ""},
		{"value in another case", "", `{"model":"GPT-5.5"}`, ""},
		{"model deeper", "", `{"a":{"model":"gpt-5.5"}}`, ""},
		{"last of two is bound", "", `{"model":"other","model":"gpt-5.5"}`, `{"model":"gpt-5.5"}`},
		{"first of two is bound", "", `{"model":"gpt-5.5","model":"other"}`, ""},
		{"second is an escape", "", `{"model":"gpt-5.5","\u006dodel":"other"}`, ""},
		{"any effort when none is bound", "", `{"model":"gpt-5.5","reasoning":{"effort":"high"}}`, `{"model":"gpt-5.5","reasoning":{"effort":"high"}}`},
		{"bound effort", "low", `{"model":"gpt-5.5","reasoning":{"effort":"low"}}`, `{"model":"gpt-5.5","reasoning":{"effort":"low"}}`},
		{"another effort", "low", `{"model":"gpt-5.5","reasoning":{"effort":"high"}}`, ""},
		{"effort absent", "low", `{"model":"gpt-5.5"}`, ""},
		{"effort null", "low", `{"model":"gpt-5.5","reasoning":{"effort":null}}`, ""},
		{"reasoning is no object", "low", `{"model":"gpt-5.5","reasoning":"low"}`, ""},
		{"effort in the wrong place", "low", `{"model":"gpt-5.5","effort":"low"}`, ""},
		{"last of two efforts", "low", `{"model":"gpt-5.5","reasoning":{"effort":"high","effort":"low"}}`, `{"model":"gpt-5.5","reasoning":{"effort":"low"}}`},
		{"second reasoning", "low", `{"model":"gpt-5.5","reasoning":{"effort":"low"},"reasoning":{}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(_ *upstream.Options, g *upstream.Grant) { g.Effort = tc.effort })
			a := w.post("/responses", tc.body)
			if tc.forwarded == "" {
				w.refused(a, upstream.BindingMismatch)
				if n, c := len(w.rows()), w.counts(); n > 0 || c.Received != 1 || c.Refused != 1 {
					t.Errorf("%d reservations, counts %+v", n, c)
				}
			}
			got := ""
			for _, r := range w.requests() {
				got += string(r.body)
			}
			if got != tc.forwarded {
				t.Errorf("the provider got %s, want %s", got, tc.forwarded)
			}
		})
	}
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) { o.DenyMembers = []string{"background"} })
	w.refused(w.post("/responses", `{"model":"gpt-5.5","background":true}`), upstream.BindingMismatch)
	if a := w.post("/responses", `{"model":"gpt-5.5","a":{"background":true}}`); a.status != 200 {
		t.Errorf("a denied name deeper down: %+v", a)
	}
}

// Proves broker 18.8: canonical bytes, and the digests of both.
func TestForwardedBytes(t *testing.T) {
	w := newWorld(t)
	body := "{ \"z\" : 12345678901234567890,\n\"model\":\"gpt-5.5\", \"a\":[1.0, -0], \"model\":\"gpt-5.5\" }"
	want := `{"z":12345678901234567890,"model":"gpt-5.5","a":[1.0,-0]}`
	if a := w.post("/responses", body); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if got := string(w.requests()[0].body); got != want {
		t.Errorf("the provider got %s, want %s", got, want)
	}
	e := w.row()
	if e.RequestDigest != upstream.Digest([]byte(body)) || e.ForwardedRequestDigest != upstream.Digest([]byte(want)) || e.RequestBytes != int64(len(body)) {
		t.Errorf("the row is %+v", e)
	}
}

// Proves broker 18.9: sizes and encodings, by what is declared and by what comes.
func TestBody(t *testing.T) {
	w := newWorld(t)
	full := func(n int) string {
		head := `{"model":"gpt-5.5","a":"`
		return head + strings.Repeat("x", n-len(head)-2) + `"}`
	}
	chunked := func(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} } // of no known length
	for name, body := range map[string]io.Reader{"declared": strings.NewReader(full(upstream.MaxBody)), "chunked": chunked(full(upstream.MaxBody))} {
		if a := w.send(w.request("/responses", body)); a.status != 200 {
			t.Errorf("16 MiB %s: %+v", name, a)
		}
	}
	a, _ := w.raw(w.head("/responses", fmt.Sprint("Content-Length: ", upstream.MaxBody+1))) // and not a byte of it
	w.refused(a, upstream.Size)
	w.refused(w.send(w.request("/responses", chunked(full(upstream.MaxBody+1)))), upstream.Size)

	for _, tc := range []struct {
		name    string
		header  []string
		refusal upstream.Refusal
	}{
		{"gzip", []string{"Content-Encoding", "gzip"}, upstream.Encoding},
		{"zstd", []string{"Content-Encoding", "zstd"}, upstream.Encoding},
		{"two", []string{"Content-Encoding", "identity, gzip"}, upstream.Encoding},
		{"identity", []string{"Content-Encoding", "identity"}, ""},
		{"form", []string{"Content-Type", "application/x-www-form-urlencoded"}, upstream.Encoding},
		{"JSON with parameters", []string{"Content-Type", "application/json; charset=utf-8"}, ""},
		{"JSON of a kind", []string{"Content-Type", "application/problem+json"}, upstream.Encoding},
		{"nonsense", []string{"Content-Type", ";"}, upstream.Encoding},
		{"upgrade", []string{"Upgrade", "websocket", "Connection", "Upgrade"}, upstream.Encoding},
	} {
		a := w.post("/responses", bound, tc.header...)
		if tc.refusal != "" {
			w.refused(a, tc.refusal)
		} else if a.status != 200 {
			t.Errorf("%s: %+v", tc.name, a)
		}
	}
	for name, text := range map[string]string{
		"no content type":          "",
		"trailer":                  "Trailer: X-A\r\n",
		"trailer not announced":    "",
		"two content types":        "Content-Type: application/json\r\nContent-Type: application/json\r\n",
		"connection that upgrades": "Connection: keep-alive, upgrade\r\n",
	} {
		end := "0\r\n\r\n"
		if strings.HasPrefix(name, "trailer") {
			end = "0\r\nX-A: 1\r\n\r\n"
		}
		a, _ := w.raw(w.head("/responses", strings.TrimSuffix("Transfer-Encoding: chunked\r\n"+text, "\r\n")) + fmt.Sprintf("%x\r\n%s\r\n%s", len(bound), bound, end))
		if name == "no content type" {
			if a.status != 200 {
				t.Errorf("%s: %+v", name, a)
			}
			continue
		}
		w.refused(a, upstream.Encoding)
	}
	for _, body := range []string{"", "{", "[]", "nonsense", bound + bound, "{\"model\":\"gpt-5.5\",\"a\":\"\xff\"}", `{"model":"gpt-5.5","a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}"} {
		w.refused(w.post("/responses", body), upstream.Body)
	}
}

// A body that stops, ends too soon or goes on too long costs no more than its
// connection.
func TestBody_Lies(t *testing.T) {
	w := newWorld(t)
	// Declared longer than it is, and the worker goes away.
	c := w.dial()
	_, _ = io.WriteString(c, w.head("/responses", fmt.Sprint("Content-Length: ", len(bound)+100))+bound)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// Declared shorter: what is left is no request.
	c = w.dial()
	defer c.Close()
	_, _ = io.WriteString(c, w.head("/responses", fmt.Sprint("Content-Length: ", len(bound)-1))+bound)
	a, _ := w.read(c)
	w.refused(a, upstream.Body)
	// A chunk that is none.
	a, _ = w.raw(w.head("/responses", "Transfer-Encoding: chunked") + "zz\r\n")
	w.refused(a, upstream.Body)
	// Both lengths: chunks count.
	a, _ = w.raw(w.head("/responses", "Transfer-Encoding: chunked", "Content-Length: 5") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(bound), bound))
	if a.status != 200 {
		t.Errorf("both lengths: %+v", a)
	}
	if n := len(w.rows()); n != 1 {
		t.Errorf("%d reservations", n)
	}
}

// Connections that send a byte now and then keep nobody out.
func TestServer_SlowLoris(t *testing.T) {
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) { o.MaxConnections = 8 })
	for range 40 {
		c := w.dial()
		defer c.Close()
		if _, err := io.WriteString(c, "POST /responses HTTP/1.1\r\nHost: b\r\nX-A"); err != nil {
			t.Fatal(err)
		}
		if a := w.post("/responses", bound); a.status != 200 {
			t.Fatalf("beside slow ones: %+v", a)
		}
	}
}

// A connection that serves a capability is not given up for a new one.
func TestServer_Full(t *testing.T) {
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) { o.MaxConnections = 2 })
	gate, arrived := make(chan struct{}), make(chan struct{}, 2)
	w.answer(func(rw http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
		sse(rw, event(1, 1, 0))
	})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if a := w.post("/responses", bound); a.status != 200 || a.err != nil {
				t.Errorf("a request in flight: %+v", a)
			}
		})
	}
	for range 2 {
		<-arrived
	}
	c := w.dial()
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the third connection got %d bytes, %v", n, err)
	}
	close(gate)
	all.Wait()
}

// Header blocks above 64 KiB are refused.
func TestServer_HeaderBlock(t *testing.T) {
	w := newWorld(t)
	for size, status := range map[int]int{60 << 10: 200, 66 << 10: 431} {
		a, _ := w.raw(w.head("/responses", "X-A: "+strings.Repeat("a", size), fmt.Sprint("Content-Length: ", len(bound))) + bound)
		if a.status != status {
			t.Errorf("%d bytes: status %d, want %d", size, a.status, status)
		}
	}
}

// Proves broker 18.16: the third request of two is 429; of twenty at once on a budget
// of five, five are forwarded.
func TestBudget(t *testing.T) {
	w := newWorld(t)
	g := w.grant
	g.ID = "bg_two"
	_, w.token = w.lend(g, 2)
	for range 2 {
		if a := w.post("/responses", bound); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	w.refused(w.post("/responses", bound), upstream.Budget)
	if n := len(w.requests()); n != 2 {
		t.Errorf("%d requests reached the provider", n)
	}
	g.ID = "bg_five"
	_, w.token = w.lend(g, 5)
	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		time.Sleep(time.Millisecond) // an answer takes a moment
		sse(rw, event(1, 1, 0))
	})
	statuses := make(chan int, 20)
	for range 20 {
		go func() { statuses <- w.send(w.request("/responses", strings.NewReader(bound))).status }()
	}
	got := map[int]int{}
	for range 20 {
		got[<-statuses]++
	}
	if got[200] != 5 || got[429] != 15 || len(w.requests()) != 7 {
		t.Errorf("statuses %v, %d requests reached the provider", got, len(w.requests()))
	}
}

// More than 16 of one grant at once are refused, and the others of it and other grants
// go on.
func TestConcurrency(t *testing.T) {
	w := newWorld(t)
	gate, arrived := make(chan struct{}), make(chan struct{}, 32)
	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-gate
		sse(rw, event(1, 1, 0))
	})
	ended := make(chan int, upstream.MaxInFlight)
	for range upstream.MaxInFlight {
		go func() { ended <- w.send(w.request("/responses", strings.NewReader(bound))).status }()
	}
	for range upstream.MaxInFlight {
		<-arrived
	}
	a := w.post("/responses", bound)
	w.refused(a, upstream.Concurrency)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("retry-after is %q", a.header.Get("Retry-After"))
	}
	if n := w.handler.Serving(w.grant.ID); n != upstream.MaxInFlight {
		t.Errorf("%d in flight", n)
	}
	close(gate)
	for range upstream.MaxInFlight {
		if status := <-ended; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if a := w.post("/responses", bound); a.status != 200 {
		t.Errorf("afterwards: %+v", a)
	}
	if n := len(w.rows()); n != upstream.MaxInFlight+1 {
		t.Errorf("%d reservations", n)
	}
}

// Proves broker 18.18 for a request: without a commit nothing is sent.
func TestStoreFails(t *testing.T) {
	w := newWorld(t)
	if a := w.post("/responses", bound); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	w.ledger.setFail(errors.New("disk full"))
	w.refused(w.post("/responses", bound), upstream.StoreFailed)
	w.ledger.setFail(nil)
	if n := len(w.requests()); n != 1 {
		t.Errorf("%d requests reached the provider", n)
	}
	if a := w.post("/responses", bound); a.status != 200 {
		t.Errorf("afterwards: %+v", a)
	}
	rows := w.rows()
	if len(rows) != 2 || rows[0].Outcome != upstream.Completed { // its end was kept while the Store failed
		t.Errorf("rows are %+v", rows)
	}
}

// Proves broker 18.31: one body for all refusals.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	statuses := map[upstream.Refusal]int{
		upstream.Body: 400, upstream.Capability: 401, upstream.Target: 403, upstream.BindingMismatch: 403, upstream.Size: 413, upstream.Encoding: 415,
		upstream.Budget: 429, upstream.Concurrency: 429, upstream.Unreachable: 502, upstream.StoreFailed: 503,
	}
	for refusal, status := range statuses {
		if refusal.Status() != status {
			t.Errorf("%s is %d, want %d", refusal, refusal.Status(), status)
		}
	}
	g := w.grant
	g.ID = "bg_none"
	_, none := w.lend(g, 0)
	w.answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	answers := []answered{
		w.post("/responses", "{"), w.post("/responses", bound, "Authorization", "x"), w.post("/x", bound), w.post("/responses", "{}"),
		w.post("/responses", bound, "Content-Encoding", "br"), w.post("/responses", bound, "Authorization", "Bearer "+none), w.post("/responses", bound),
	}
	a, _ := w.raw(w.head("/responses", "Content-Length: 99999999"))
	answers = append(answers, a)
	w.ledger.setFail(errors.New("read-only"))
	answers = append(answers, w.post("/responses", bound))
	w.ledger.setFail(nil)
	got := map[int]bool{}
	for _, a := range answers {
		got[a.status] = true
		if a.body != fixed || a.header.Get("Content-Type") != "application/json" || a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Drawbridge-Refusal") == "" {
			t.Errorf("%+v", a)
		}
	}
	w.post("/responses", "{") // of each kind, one line of the log
	for _, code := range []string{"body", "target", "binding_mismatch", "encoding", "size"} {
		if n := strings.Count(w.logs.String(), "requests of a grant are refused\" grant_id=bg_1 code="+code+" "); n != 1 {
			t.Errorf("%d lines of the log say %s", n, code)
		}
	}
	want := map[int]bool{400: true, 401: true, 403: true, 413: true, 415: true, 429: true, 502: true, 503: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}

// Proves broker 18.26 and 18.27 for the transport: a credential goes to its own origin
// only, and a real one to no test origin.
func TestCredentials(t *testing.T) {
	with := func(c upstream.Credential, err error) option {
		return func(o *upstream.Options, _ *upstream.Grant) {
			o.Credentials = func(context.Context, upstream.Grant) (upstream.Credential, error) { return c, err }
		}
	}
	row := func(kind, origin string) option {
		return func(_ *upstream.Options, g *upstream.Grant) { g.Kind, g.Origin = kind, origin }
	}
	for _, tc := range []struct {
		name    string
		option  option
		refusal upstream.Refusal
	}{
		{"key to the other origin", row(upstream.APIKey, upstream.OriginChatGPT), upstream.Unreachable},
		{"token to the other origin", row(upstream.AccessToken, upstream.OriginAPI), upstream.Unreachable},
		{"origin from elsewhere", row(upstream.APIKey, "https://example.test/v1"), upstream.Unreachable},
		{"no origin, no kind", row("", ""), upstream.Unreachable},
		{"real credential", with(upstream.Credential{Secret: redact.NewSecret("sk-real-credential")}, nil), upstream.Unreachable},
		{"none", with(upstream.Credential{}, nil), upstream.Unreachable},
		{"unreadable", with(upstream.Credential{}, errors.New("gone")), upstream.Unreachable},
		{"closed", with(upstream.Credential{}, fmt.Errorf("kind changed: %w", upstream.ErrClosed)), upstream.Capability},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.option)
			w.refused(w.post("/responses", bound), tc.refusal)
			if len(w.requests()) > 0 || len(w.rows()) > 0 {
				t.Error("it was forwarded or paid for")
			}
		})
	}
	for value, want := range map[string]string{
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "http://[::1]:8080": "http://[::1]:8080", "http://127.0.0.1:8080/v1": "http://127.0.0.1:8080/v1",
		"https://127.0.0.1:8080": "", "http://localhost:8080": "", "http://127.0.0.1": "", "http://10.0.0.1:80": "", "http://0.0.0.0:80": "", "http://127.0.0.1:0": "",
		"http://user@127.0.0.1:80": "", "http://127.0.0.1:80/x": "", "http://127.0.0.1:80?x": "", "http://127.0.0.1:80#x": "", "127.0.0.1:80": "", "": "", "http://[::1%25lo]:80": "",
		"http://127.0.0.1:80/": "", "http://127.1:80": "", "http://[::ffff:127.0.0.1]:80": "",
	} {
		if got, err := upstream.ParseTestOrigin(value); got != want || (err != nil) != (want == "") {
			t.Errorf("ParseTestOrigin(%q) = %q, %v, want %q", value, got, err, want)
		}
	}
}

// A mistake of ours is an error in the log, without the words of the request, ends only
// its own connection, and leaves the lane of its grant free.
func TestRequest_Panic(t *testing.T) {
	var mended atomic.Bool
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) {
		o.Credentials = func(context.Context, upstream.Grant) (upstream.Credential, error) {
			if !mended.Load() {
				panic("a mistake")
			}
			return upstream.Credential{Secret: redact.NewSecret(secret)}, nil
		}
	})
	if resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound))); err == nil {
		resp.Body.Close()
		t.Errorf("answered %s", resp.Status)
	}
	if text := w.logs.String(); !strings.Contains(text, `level=ERROR msg="request panicked" panic="a mistake"`) {
		t.Errorf("the log says\n%s", text)
	}
	mended.Store(true)
	if got := w.post("/responses", bound); got.status != http.StatusOK || w.handler.Serving(w.grant.ID) > 0 {
		t.Errorf("the next one is %d", got.status)
	}
}
