package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/redact"
)

const (
	secret   = `test-credential"with\marks-0123456789`
	patience = 10 * time.Second
	fixed    = `{"error":{"message":"Provider capability request refused"}}`
)

// bound is a request that the grants of the tests allow.
const bound = `{"model":"gpt-5.5","input":[{"type":"message","content":[{"type":"input_text","text":"hello"}]}],"stream":true}`

// ledger keeps rows in memory under the rules of a Ledger.
type ledger struct {
	mu      sync.Mutex
	grants  map[[32]byte]upstream.Grant
	active  map[string]bool
	most    map[string]int64
	used    map[string]int64
	rows    []upstream.Evidence
	counts  map[string]upstream.Count
	commits int
	fail    error
	hold    chan struct{} // a commit waits for it
}

func newLedger() *ledger {
	return &ledger{
		grants: map[[32]byte]upstream.Grant{}, active: map[string]bool{}, most: map[string]int64{}, used: map[string]int64{},
		counts: map[string]upstream.Count{},
	}
}

func (l *ledger) Lookup(_ context.Context, sum [32]byte) (upstream.Grant, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok := l.grants[sum]
	return g, ok && l.active[g.ID], l.fail
}

func (l *ledger) Commit(_ context.Context, b upstream.Batch) ([]upstream.Answer, error) {
	l.mu.Lock()
	hold := l.hold
	l.mu.Unlock()
	if hold != nil {
		<-hold
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits++
	if l.fail != nil {
		return nil, l.fail
	}
	for _, e := range b.Settled {
		for i := range l.rows {
			if l.rows[i].GrantID == e.GrantID && l.rows[i].Seq == e.Seq && l.rows[i].Outcome == upstream.Reserved {
				l.rows[i] = e
			}
		}
	}
	for _, c := range b.Counts {
		sum := l.counts[c.GrantID]
		l.counts[c.GrantID] = upstream.Count{GrantID: c.GrantID, Received: sum.Received + c.Received, Refused: sum.Refused + c.Refused}
	}
	var out []upstream.Answer
	for _, d := range b.Drafts {
		id := d.Grant.ID
		switch {
		case !l.active[id]:
			out = append(out, upstream.Answer{Refused: upstream.Capability})
		case l.used[id] >= l.most[id]:
			out = append(out, upstream.Answer{Refused: upstream.Budget})
		default:
			l.used[id]++
			d.Evidence.Seq = l.used[id]
			l.rows = append(l.rows, d.Evidence)
			out = append(out, upstream.Answer{Seq: d.Evidence.Seq})
		}
	}
	return out, nil
}

func (l *ledger) setFail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *ledger) setActive(id string, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active[id] = active
}

// world is a broker on loopback with a scripted provider behind it.
type world struct {
	t       *testing.T
	ledger  *ledger
	journal *upstream.Journal
	handler *upstream.Handler
	meter   *upstream.Meter
	url     string // of the broker
	addr    string
	client  *http.Client
	logs    *logs

	provider *httptest.Server
	mu       sync.Mutex
	serve    http.HandlerFunc
	seen     []seen

	grant upstream.Grant
	token string
}

// seen is a request that reached the provider.
type seen struct {
	target string
	header http.Header
	body   []byte
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type option func(*upstream.Options, *upstream.Grant)

// newWorld starts a broker with one active grant of 1,000 requests.
func newWorld(t *testing.T, options ...option) *world {
	t.Helper()
	w := &world{t: t, ledger: newLedger(), logs: &logs{}, meter: upstream.NewMeter()}
	w.provider = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.seen = append(w.seen, seen{r.RequestURI, r.Header, body})
		serve := w.serve
		w.mu.Unlock()
		if serve == nil {
			sse(rw, event(10, 5, 3))
			return
		}
		serve(rw, r)
	}))
	transport := upstream.NewTransport(upstream.TransportOptions{})
	grant := upstream.Grant{
		ID: "bg_1", Model: "gpt-5.5", Kind: upstream.APIKey, Origin: upstream.OriginAPI, RunID: "r1",
		ExpiresAt: time.Now().Add(time.Hour).UnixMilli(),
	}
	log := slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.journal = upstream.NewJournal(w.ledger, log)
	opt := upstream.Options{
		Ledger: w.ledger, Journal: w.journal, Transport: transport, TestOrigin: w.provider.URL, Log: log, Meter: w.meter,
		Credentials: func(context.Context, upstream.Grant) (upstream.Credential, error) {
			return upstream.Credential{Secret: redact.NewSecret(secret), AccountID: "acct-1"}, nil
		},
	}
	for _, o := range options {
		o(&opt, &grant)
	}
	w.grant, w.token = w.lend(grant, 1000)
	var err error
	if w.handler, err = upstream.NewHandler(opt); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	w.url = "http://" + w.addr
	server := upstream.Server(w.handler)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.journal.Run(ctx) }()
	go func() { ended <- server.Serve(w.handler.Listen(l)) }()
	own := &http.Transport{DisableCompression: true}
	w.client = &http.Client{Transport: own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		own.CloseIdleConnections()
		_ = server.Close()
		stop()
		<-ended
		<-ended
		transport.CloseIdleConnections()
		w.provider.CloseClientConnections()
		w.provider.Close()
		if text := w.logs.String(); strings.Contains(text, secret) || strings.Contains(text, w.token) || strings.Contains(text, "hello") {
			t.Errorf("the log holds a secret:\n%s", text)
		}
	})
	return w
}

// lend makes an active grant with a capability of its own.
func (w *world) lend(g upstream.Grant, most int64) (upstream.Grant, string) {
	token, sum := redact.NewCapability()
	g.SHA256 = sum
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.ledger.grants[sum], w.ledger.active[g.ID], w.ledger.most[g.ID] = g, true, most
	return g, token.Reveal()
}

func (w *world) answer(f http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serve = f
}

func (w *world) requests() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]seen(nil), w.seen...)
}

// rows gives the rows after all that was handed over is written.
func (w *world) rows() []upstream.Evidence {
	w.t.Helper()
	if err := w.journal.Flush(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return append([]upstream.Evidence(nil), w.ledger.rows...)
}

// row gives the one row there is, once it is settled.
func (w *world) row() upstream.Evidence {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if rows := w.rows(); len(rows) == 1 && rows[0].Outcome != upstream.Reserved {
			return rows[0]
		} else if time.Now().After(end) {
			w.t.Fatalf("rows are %+v, want one that is settled", rows)
		}
	}
}

func (w *world) counts() upstream.Count {
	w.rows()
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return w.ledger.counts[w.grant.ID]
}

// answered is an answer that was read whole.
type answered struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
	last   bool  // the connection ends with it
}

// post sends a request with the capability.
func (w *world) post(target, body string, header ...string) answered {
	w.t.Helper()
	return w.send(w.request(target, strings.NewReader(body), header...))
}

func (w *world) request(target string, body io.Reader, header ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequest(http.MethodPost, w.url+target, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func (w *world) send(r *http.Request) answered {
	w.t.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(body), err, resp.Close}
}

// stream sends a request with a capability and gives the answer behind its first
// event.
func (w *world) stream(first, token string) io.Reader {
	w.t.Helper()
	resp, err := w.client.Do(w.request("/responses", strings.NewReader(bound), "Authorization", "Bearer "+token))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	got := make([]byte, len(first))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != first {
		w.t.Fatalf("the stream begins with %q, %v", got, err)
	}
	return resp.Body
}

// refused checks that an answer is the given refusal.
func (w *world) refused(a answered, r upstream.Refusal) {
	w.t.Helper()
	got := fmt.Sprint(a.status, a.header.Get("X-Drawbridge-Refusal"), a.header.Get("Content-Type"), a.header.Get("Cache-Control"), a.body)
	want := fmt.Sprint(r.Status(), string(r), "application/json", "no-store", fixed)
	if got != want {
		w.t.Errorf("answer is %s, want %s", got, want)
	}
}

// raw writes bytes as they are and reads the answer to them. tail is what comes behind
// it, to the end of the connection.
func (w *world) raw(text string) (a answered, tail string) {
	w.t.Helper()
	c := w.dial()
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	return w.read(c)
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) read(c net.Conn) (a answered, tail string) {
	w.t.Helper()
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		w.t.Fatalf("read the answer: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	a = answered{resp.StatusCode, resp.Header, string(body), err, resp.Close}
	if resp.Close {
		rest, err := io.ReadAll(in)
		if errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("the connection does not end: %v", err)
		}
		tail = string(rest)
	}
	return a, tail
}

// head writes the beginning of a request.
func (w *world) head(target string, lines ...string) string {
	return "POST " + target + " HTTP/1.1\r\nHost: broker\r\nAuthorization: Bearer " + w.token + "\r\n" + strings.Join(append(lines, "", ""), "\r\n")
}

// sse answers with events.
func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e)
		_ = http.NewResponseController(w).Flush()
	}
}

// event is a completed event.
func event(input, output, cached int) string {
	return fmt.Sprintf("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-5.5-2026\",\"usage\":"+
		"{\"input_tokens\":%d,\"output_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d}}}}\n\n", input, output, cached)
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
