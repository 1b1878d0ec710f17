package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// A grant from the wish to its end, with one request in between.
func TestServe_OneGrant(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(func(n *store.NewGrant) { n.RunID, n.BasePath = "run-1", "/v1" })
	if g.CredentialKind != "api_key" || g.TransportMode != "mocked-test-only" || !strings.HasSuffix(g.BaseURL, "/v1") {
		t.Errorf("got %+v", g.Grant)
	}
	g.post(200)
	if got := w.request(0).Header.Get("Authorization"); got != "Bearer "+secret {
		t.Errorf("the provider saw %q", got)
	}
	if got := g.outcomes(); !slices.Equal(got, []string{"completed"}) {
		t.Errorf("got %v", got)
	}
	row := g.rows()[0]
	for member, want := range map[string]any{
		"seq": 1.0, "grant_id": g.ID, "run_id": "run-1", "owner_id": nil, "model": model, "reported_model": "model-a-real",
		"server_model_identity": "unverified", "transport_mode": "mocked-test-only", "status": 200.0,
		"response_usage": map[string]any{"input_tokens": 10.0, "output_tokens": 5.0, "cached_input_tokens": nil},
	} {
		if diff := cmp.Diff(want, row[member]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", member, diff)
		}
	}
	if _, err := w.RequestClose(t.Context(), g.ID, "run_ended"); err != nil {
		t.Fatal(err)
	}
	g.post(401)
	end := g.becomes(store.GrantClosed)
	if end.CloseReason != "run_ended" || end.Received != 1 || end.Forwarded != 1 || end.MeasuredInput != 10 {
		t.Errorf("got %+v", end)
	}
	d.signal(syscall.SIGTERM).told("STOPPING=1").exits(0)
	if ends, err := w.Endpoints(t.Context()); err != nil || len(ends) != 0 {
		t.Errorf("endpoints: %+v, %v", ends, err)
	}
}

// Proves broker 18.16: with two requests the third is 429 and the provider saw two;
// of twenty at once on a budget of five the provider sees exactly five.
func TestServe_Budget(t *testing.T) {
	w := newWorld(t)
	w.serve()
	two := w.lend(func(n *store.NewGrant) { n.Request.MaxRequests = 2 })
	two.post(200)
	two.post(200)
	if code := two.post(429); code != "budget" || w.seen() != 2 {
		t.Errorf("refused as %q, the provider saw %d", code, w.seen())
	}
	five := w.lend(func(n *store.NewGrant) { n.Request.MaxRequests = 5 })
	var mu sync.Mutex
	got := map[int]int{}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			for { // more than 16 at once are told to come again
				resp, err := five.send(context.Background(), body)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.Header.Get("X-Drawbridge-Refusal") == "concurrency" {
					continue
				}
				mu.Lock()
				got[resp.StatusCode]++
				mu.Unlock()
				return
			}
		})
	}
	wait.Wait()
	if got[200] != 5 || got[429] != 15 || w.seen() != 7 {
		t.Errorf("answers %v, the provider saw %d", got, w.seen())
	}
}

// What an answer cost counts before the next request, however soon that comes: at the
// ceiling of tokens, and after an answer that does not say what it cost.
func TestServe_Measured(t *testing.T) {
	w := newWorld(t)
	w.serve()
	g := w.lend(func(n *store.NewGrant) { n.Request.MaxTotalTokens = 15 })
	g.post(200)
	g.post(429)
	g = w.lend(func(n *store.NewGrant) { n.Request.StrictUsage = true })
	g.post(200)
	w.script(func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Content-Type", "application/json") }) // its event is none then
	g.post(200)
	g.post(401)
	if w.seen() != 3 {
		t.Errorf("the provider saw %d", w.seen())
	}
}

// post401 asks a brokerd for a grant that is at its end, whose row still knows where.
func (l lent) post401(t *testing.T) {
	t.Helper()
	if code := l.post(401); code != "capability" {
		t.Errorf("refused as %q", code)
	}
}

// Proves broker 18.18: a Store that cannot be written is 503 before the provider
// hears anything; the grant works on when it can be written again.
func TestServe_StoreNotWritable(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(nil)
	g.post(200)
	free := d.full()
	if code := g.post(503); code != "store" || w.seen() != 1 {
		t.Errorf("refused as %q, the provider saw %d", code, w.seen())
	}
	free()
	g.post(200)
}

// Proves broker 18.22: a close during a stream ends it within seconds and the
// provider's side too; the capability is 401 then, and a second close says the same.
func TestServe_CloseInAStream(t *testing.T) {
	w := newWorld(t)
	gone := make(chan struct{})
	w.script(func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "data: {}\n\n")
		http.NewResponseController(rw).Flush()
		<-r.Context().Done()
		close(gone)
	})
	w.serve()
	g := w.lend(nil)
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := time.Now()
	if _, err := w.RequestClose(t.Context(), g.ID, "run_ended"); err != nil {
		t.Fatal(err)
	}
	end, err := w.AwaitClosed(t.Context(), g.ID, store.CloseWait)
	if took := time.Since(begin); err != nil || took > 6*time.Second {
		t.Errorf("closed after %v: %v", took, err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the cut stream looks whole")
	}
	select {
	case <-gone:
	case <-time.After(limit):
		t.Error("the provider's request goes on")
	}
	g.post401(t)
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestAborted}) {
		t.Errorf("got %v", got)
	}
	first := g.rows()
	again, err := w.RequestClose(t.Context(), g.ID, "another")
	if err != nil || again.CloseReason != end.CloseReason || again.Revision != end.Revision {
		t.Errorf("second close: %+v, %v", again, err)
	}
	if diff := cmp.Diff(first, g.rows()); diff != "" {
		t.Errorf("evidence changed (-first +second):\n%s", diff)
	}
}

// Proves broker 18.23 through the program: the brokerd is stopped from doing
// anything but answering, since its work on grants needs the write lock, and the
// expired grant is 401.
func TestServe_Expired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	g := w.lend(func(n *store.NewGrant) { n.Life = 2 * time.Second })
	g.post(200)
	eventually(t, "the row of the request is written", func() bool { return g.rows()[0]["outcome"] == "completed" })
	release := w.lock()
	eventually(t, "its time is over", func() bool { return time.Now().UnixMilli() > g.ExpiresAt })
	g.post401(t)
	if state := g.now().State; state != store.GrantActive {
		t.Errorf("something else ended it: %s", state)
	}
	release()
	if end := g.becomes(store.GrantExpired); end.CloseReason != store.CloseExpired {
		t.Errorf("got %q", end.CloseReason)
	}
}

// The credential is read again when its file changes; a file that lets others in
// refuses requests until it is right again; another kind of credential revokes.
func TestServe_CredentialChanges(t *testing.T) {
	w := newWorld(t)
	w.serve()
	g := w.lend(nil)
	g.post(200)
	renewed := w.write("auth.json.new", `{"OPENAI_API_KEY":"test-renewed-0123456789abcdef"}`)
	if err := os.Rename(renewed, w.auth); err != nil {
		t.Fatal(err)
	}
	g.post(200)
	if got := w.request(1).Header.Get("Authorization"); got != "Bearer test-renewed-0123456789abcdef" {
		t.Errorf("the provider saw %q", got)
	}
	if err := os.Chmod(w.auth, 0o640); err != nil {
		t.Fatal(err)
	}
	g.post(502)
	if err := os.Chmod(w.auth, 0o600); err != nil {
		t.Fatal(err)
	}
	g.post(200)
	w.write("auth.json", `{"tokens":{"access_token":"test-token-0123456789abcdef"}}`)
	g.post401(t)
	g.becomes(store.GrantRevoked)
	if w.seen() != 3 || g.now().TotalForwarded != 3 {
		t.Errorf("the provider saw %d, %d spent", w.seen(), g.now().TotalForwarded)
	}
	events, err := w.BrokerEvents(t.Context(), g.ID)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, e := range events {
		codes = append(codes, e.Code)
	}
	if want := []string{"credential_reread", "credential_permissions", "credential_kind_changed"}; !slices.Equal(codes, want) {
		t.Errorf("events: got %v, want %v", codes, want)
	}
	for _, args := range [][]string{{"status", g.ID}, {"status", g.ID, "-json"}} {
		if out, status := w.brokerd(args...); status != 0 || !strings.Contains(out, "credential_kind_changed") || !strings.Contains(out, "revoked") {
			t.Errorf("%v: got %d, %s", args, status, out)
		}
	}
}

// What brokerd refuses to lend, by the code that the creator gets. Proves broker
// 18.24 and 18.25 through the program, 18.26 for what a creator can ask for, and
// 18.27 for the credential.
func TestServe_RefusedGrants(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for name, tc := range map[string]struct {
		credential string
		change     func(*store.NewGrant)
		code       fault.Code
	}{
		"no file":            {"", func(n *store.NewGrant) { n.CredentialRef = filepath.Join(w.home, "none") }, fault.CredentialUnavailable},
		"expired":            {`{"tokens":{"access_token":"` + jwt(time.Now().Add(-time.Minute)) + `"}}`, nil, fault.CredentialExpired},
		"soon expired":       {`{"tokens":{"access_token":"` + jwt(time.Now().Add(30*time.Second)) + `"}}`, nil, fault.CredentialExpired},
		"a real credential":  {`{"OPENAI_API_KEY":"sk-0123456789abcdef"}`, nil, fault.OriginNotAllowed},
		"key to chatgpt":     {"", func(n *store.NewGrant) { n.Request.UpstreamOrigin = "https://chatgpt.com/backend-api/codex" }, fault.OriginNotAllowed},
		"another origin":     {"", func(n *store.NewGrant) { n.Request.UpstreamOrigin = "https://example.com/v1" }, fault.OriginNotAllowed},
		"the test origin":    {"", func(n *store.NewGrant) { n.Request.UpstreamOrigin = w.URL }, fault.OriginNotAllowed},
		"token to the api":   {`{"tokens":{"access_token":"test-token-0123456789"}}`, func(n *store.NewGrant) { n.Request.UpstreamOrigin = "https://api.openai.com/v1" }, fault.OriginNotAllowed},
		"no such listener":   {"", func(n *store.NewGrant) { n.Request.Endpoint = store.EndpointUnix }, fault.ListenerUnavailable},
		"no range":           {"", func(n *store.NewGrant) { n.RemoteCIDR = "10.0.0.0/40" }, fault.InvalidArguments},
		"unknown registered": {"", w.registered("x", false), fault.BudgetMissing},
	} {
		t.Run(name, func(t *testing.T) {
			path := w.auth
			if tc.credential != "" {
				path = w.write(strings.ReplaceAll(name, " ", "-")+".json", tc.credential)
			}
			g := w.ask(func(n *store.NewGrant) {
				n.CredentialRef = path
				if tc.change != nil {
					tc.change(n)
				}
			})
			_, err := w.AwaitGrant(t.Context(), g.ID, limit)
			if !fault.Is(err, tc.code) {
				t.Errorf("got %v, want %s", err, tc.code)
			}
		})
	}
}

// Proves broker 18.30: a correct capability from another network than the grant's.
func TestServe_RemoteCIDR(t *testing.T) {
	w := newWorld(t)
	w.serve()
	far := w.lend(func(n *store.NewGrant) { n.RemoteCIDR = "10.213.77.0/24" })
	far.post401(t)
	near := w.lend(func(n *store.NewGrant) { n.RemoteCIDR = "127.0.0.0/8" })
	near.post(200)
	if w.seen() != 1 {
		t.Errorf("the provider saw %d", w.seen())
	}
}

// Proves broker 18.14: proxies of the environment have no effect.
func TestServe_NoProxyOfTheEnvironment(t *testing.T) {
	w := newWorld(t)
	w.serve("HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1", "ALL_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1")
	w.lend(nil).post(200)
}

// A thousand wrong capabilities are a thousand times the same answer, tell nobody
// anything, and the right one works among them.
func TestServe_WrongCapabilities(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i := range 1000 {
		wrong := g
		wrong.capability = strings.Repeat("0", 60) + string([]byte{hex[i>>8&15], hex[i>>4&15], hex[i&15], '0'})
		wrong.post401(t)
		if i == 500 {
			g.post(200)
		}
		if t.Failed() {
			return
		}
	}
	if got := g.now(); w.seen() != 1 || got.Refused != 0 {
		t.Errorf("the provider saw %d, %d refused", w.seen(), got.Refused)
	}
	d.signal(syscall.SIGTERM).exits(0)
	if n := strings.Count(d.out.String(), "level=WARN"); n > 3 {
		t.Errorf("%d warnings for one flood", n)
	}
}

const hex = "0123456789abcdef"

// Clients that connect and say nothing, or little by little, keep nobody else out.
func TestServe_SlowClients(t *testing.T) {
	w := newWorld(t)
	w.serve()
	g := w.lend(nil)
	for i := range 100 {
		c := w.dial(g)
		if i%2 == 0 {
			io.WriteString(c, "POST /responses HTTP/1.1\r\nHost: x\r\nX-A: ")
		}
	}
	g.post(200)
	g.post(200)
	lying := w.dial(g)
	io.WriteString(lying, "POST /responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+g.capability+"\r\nContent-Length: 4000\r\n\r\n{\"model\"")
	if err := g.close().CloseReason; err != "run_ended" { // ends the one that lies about its body, too
		t.Errorf("got %q", err)
	}
	lying.SetReadDeadline(time.Now().Add(limit))
	if _, err := io.ReadAll(lying); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection of the closed grant is open")
	}
	if w.seen() != 2 {
		t.Errorf("the provider saw %d", w.seen())
	}
}
