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

	"drawbridge/shared/crashpoint"
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

// Proves broker 18.17: a crash between the commit of the reservation and the call
// leaves the request spent, its row interrupted, and the provider untouched; the next
// brokerd serves the grant on, at the same port.
func TestCrash_AfterTheReservation(t *testing.T) {
	w := newWorld(t)
	d := w.serve("DRAWBRIDGE_TEST_EXIT_AT=request_reserved")
	g := w.lend(func(n *store.NewGrant) { n.Request.MaxRequests = 2 })
	if _, err := g.send(t.Context(), body); err == nil {
		t.Error("an answer came")
	}
	d.exits(crashpoint.ExitCode)
	if g.now().State != store.GrantActive || w.seen() != 0 {
		t.Errorf("got %s, the provider saw %d", g.now().State, w.seen())
	}
	w.serve()
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted}) {
		t.Errorf("got %v", got)
	}
	g.post(200)
	g.post(429)
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted, "completed"}) || w.seen() != 1 {
		t.Errorf("got %v, the provider saw %d", got, w.seen())
	}
}

// The same by SIGKILL while the answer streams.
func TestCrash_KilledInAStream(t *testing.T) {
	w := newWorld(t)
	begun := w.held(t)
	d := w.serve()
	g := w.lend(nil)
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	d.signal(syscall.SIGKILL).exits(-1)
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the cut stream looks whole")
	}
	w.script(nil)
	w.serve()
	g.post(200)
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted, "completed"}) {
		t.Errorf("got %v", got)
	}
}

// A crash at each further point: what the next brokerd makes of the grant.
func TestCrash_EachPoint(t *testing.T) {
	for _, tc := range []struct {
		point string
		state string // in the end
		posts int    // 200s that the grant gives under the next brokerd
	}{
		{"budget_prepared", store.GrantActive, 1},
		{"grant_activated", store.GrantActive, 1},
		{"request_settled", store.GrantActive, 1},
		{"grant_closing", store.GrantRevoked, 0},
		{"grant_closed", store.GrantRevoked, 0},
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t)
			d := w.serve("DRAWBRIDGE_TEST_EXIT_AT=" + tc.point)
			g := w.ask(nil)
			switch tc.point {
			case "request_settled", "grant_closing", "grant_closed":
				g.Grant = g.becomes(store.GrantActive)
				if resp, err := g.send(t.Context(), body); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			if tc.state == store.GrantRevoked {
				if _, err := w.RequestClose(t.Context(), g.ID, store.CloseRevoked); err != nil {
					t.Fatal(err)
				}
			}
			d.exits(crashpoint.ExitCode)
			w.serve()
			g.Grant = g.becomes(tc.state)
			if tc.posts > 0 {
				g.post(200)
			} else {
				g.post401(t)
			}
		})
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

// Proves broker 18.32: SIGTERM with a running stream.
func TestStop_InAStream(t *testing.T) {
	w := newWorld(t)
	begun := w.held(t)
	d := w.serve()
	g, waiting := w.lend(nil), w.lend(nil)
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	begin := time.Now()
	d.signal(syscall.SIGTERM).told("STOPPING=1").exits(0)
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("took %v", took)
	}
	for _, l := range []lent{g, waiting} {
		if got := l.now(); got.State != store.GrantClosed || got.CloseReason != "broker_shutdown" {
			t.Errorf("got %s, %q", got.State, got.CloseReason)
		}
	}
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestAborted}) {
		t.Errorf("got %v", got)
	}
	w.serve()
	if _, err := w.AwaitGrant(t.Context(), g.ID, time.Second); !fault.Is(err, fault.GrantClosed) {
		t.Errorf("a restart revived it: %v", err)
	}
}

// Proves broker 18.33: one brokerd for a Store, the next takes over from a dead one;
// and one whose owner has gone serves another creator's grant to its end.
func TestTwo_OneStore(t *testing.T) {
	w := newWorld(t)
	first := w.serve()
	g := w.lend(nil)
	w.start(false).exits(75)
	g.post(200)
	first.signal(syscall.SIGKILL).exits(-1)
	w.serve()
	g.post(200)
}

func TestOrphan_ServesOthers(t *testing.T) {
	w := newWorld(t)
	d := w.start(true).told("READY=1")
	mine, theirs := w.creator("kitrun/mine"), w.creator("kitrun/theirs")
	own := w.lend(func(n *store.NewGrant) { n.Creator = mine })
	other := w.lend(func(n *store.NewGrant) { n.Creator = theirs })
	d.cut()
	if err := w.Release(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if end := own.becomes(store.GrantClosed); end.CloseReason != "creator_gone" {
		t.Errorf("got %q", end.CloseReason)
	}
	other.post(200)
	late := w.lend(func(n *store.NewGrant) { n.Creator = theirs }) // it still takes up what others ask for
	late.post(200)
	for _, l := range []lent{other, late} {
		if _, err := w.RequestClose(t.Context(), l.ID, "run_ended"); err != nil {
			t.Fatal(err)
		}
	}
	d.exits(0)
	for _, l := range []lent{other, late} {
		if got := l.now(); got.CloseReason != "run_ended" {
			t.Errorf("got %q", got.CloseReason)
		}
	}
	rows, err := w.Leases(t.Context(), store.BrokerdLease())
	if err != nil || rows[0].Live {
		t.Errorf("lease: %+v, %v", rows, err)
	}
}

// A brokerd that is stopped loses its lease; when it wakes up, the Store's next one
// serves, and the old one forwards nothing more and ends.
func TestTwo_StoppedTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve()
	g := w.lend(nil)
	first.signal(syscall.SIGSTOP)
	eventually(t, "the lease is over", func() bool {
		rows, err := w.Leases(t.Context(), store.BrokerdLease())
		return err == nil && !rows[0].Live
	})
	second := w.serve()
	if end := g.becomes(store.GrantClosed); end.CloseReason != "endpoint_lost" {
		t.Errorf("got %q", end.CloseReason)
	}
	other := w.lend(nil)
	first.signal(syscall.SIGCONT)
	first.exits(75)
	g.BaseURL = other.BaseURL
	g.post401(t)
	other.post(200)
	second.signal(syscall.SIGTERM).exits(0)
}

// A sibling with nothing lent ends with its owner, and leaves a wish that came too
// late to the next one.
func TestOrphan_NothingLent(t *testing.T) {
	w := newWorld(t)
	d := w.start(true).told("READY=1")
	d.signal(syscall.SIGINT) // meant for its owner
	w.lend(nil).close()
	d.cut()
	d.exits(0)
	late := w.ask(nil)
	if late.now().State != store.GrantRequested {
		t.Errorf("got %s", late.now().State)
	}
	w.serve()
	late.becomes(store.GrantActive)
}

func (l lent) close() store.Grant {
	l.w.t.Helper()
	if _, err := l.w.RequestClose(context.Background(), l.ID, "run_ended"); err != nil {
		l.w.t.Fatal(err)
	}
	g, err := l.w.AwaitClosed(context.Background(), l.ID, store.CloseWait)
	if err != nil {
		l.w.t.Fatal(err)
	}
	return g
}

// creator takes a lease as a kitrun does.
func (w *world) creator(name string) *store.Lease {
	w.t.Helper()
	l, err := w.Acquire(context.Background(), name, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// A grant whose endpoint the next brokerd does not have is closed and says so.
func TestCrash_EndpointLost(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(nil)
	d.signal(syscall.SIGKILL).exits(-1)
	w.serve("-listen", "unix:"+filepath.Join(w.home, "s", "b.sock"))
	if end := g.becomes(store.GrantClosed); end.CloseReason != "endpoint_lost" {
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
