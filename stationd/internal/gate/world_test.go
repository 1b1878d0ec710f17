package gate_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/gate/gatetest"
)

// Names of the usual world.
const (
	theStation = "stn_one"
	theTicket  = "tkt_one"
	theDaemon  = 7070 // its port, in a namespace that is not there
	stopTime   = 5 * time.Second
)

// world is a gate with one ready attempt, the daemon behind it, and a manager
// with a ticket for everything.
type world struct {
	testing.TB
	auth   *gatetest.Authority
	gate   *gate.Gate
	route  *gate.Route
	daemon *daemon
	bridge gate.Bridge
	addr   string // of the gate, host:port
	dial   dialer // to the gate
	toBack dialer // to the daemon
	logs   *logs
	client *http.Client
	bearer string
	ticket string

	shutdown func() // ends the gate and waits
}

// daemon is a plain HTTP server that keeps what it saw.
type daemon struct {
	mu      sync.Mutex
	handler http.HandlerFunc
	saw     []*http.Request
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.saw = append(d.saw, r)
	h := d.handler
	d.mu.Unlock()
	if h != nil {
		h(w, r)
	}
}

// handle sets what the daemon does next.
func (d *daemon) handle(h http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handler = h
}

// requests gives what the daemon saw since the last call.
func (d *daemon) requests() []*http.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	saw := d.saw
	d.saw = nil
	return saw
}

// logs keeps what the gate logged.
type logs struct {
	mu sync.Mutex
	b  strings.Builder
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

// setting changes a world before it starts.
type setting func(*gate.Options, *gate.Bridge)

func newWorld(tb testing.TB, settings ...setting) *world {
	tb.Helper()
	front, err := gate.Listen(gate.DefaultListen)
	if err != nil {
		tb.Fatal(err)
	}
	back, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return newWorldOn(tb, front, back, dialTCP(front), dialTCP(back), settings...)
}

type dialer = func(context.Context) (net.Conn, error)

func dialTCP(l net.Listener) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// newWorldOn has the gate at front and the daemon at back.
func newWorldOn(tb testing.TB, front, back net.Listener, toFront, toBack dialer, settings ...setting) *world {
	tb.Helper()
	w := &world{TB: tb, auth: gatetest.New(), daemon: &daemon{}, logs: &logs{}, addr: front.Addr().String(), dial: toFront, toBack: toBack}
	serveDaemon(tb, back, w.daemon)
	opts := gate.Options{
		Listeners: []net.Listener{front}, Authorizer: w.auth, Changes: w.auth.Changes(),
		Log: slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	w.bridge = gate.Bridge{
		Station: theStation, Attempt: 1, Port: theDaemon, Dial: toBack,
	}
	for _, s := range settings {
		s(&opts, &w.bridge)
	}
	w.people()
	w.start(opts)
	var err error
	if w.route, err = w.gate.Open(w.bridge); err != nil {
		tb.Fatal(err)
	}
	return w
}

// people fills the authority.
func (w *world) people() {
	w.auth.Ready("local", "ada", theStation, "lse_one")
	w.bearer = w.auth.Principal("local", "ada")
	w.auth.Role(theStation, "ada", "manager")
	w.ticket = w.issue(gate.Ticket{ID: theTicket})
}

// issue fills in what a test does not say.
func (w *world) issue(t gate.Ticket) string {
	w.Helper()
	if t.Principal == "" {
		t.Principal = "ada"
	}
	if t.Station == "" {
		t.Station, t.Attempt = theStation, 1
	}
	if t.Prefix == "" {
		t.Prefix = "/"
	}
	if t.ExpiresAt.IsZero() {
		t.ExpiresAt = time.Now().Add(time.Hour)
	}
	return w.auth.Issue(t)
}

// start runs the gate until the test ends.
func (w *world) start(opts gate.Options) {
	w.Helper()
	g, err := gate.New(opts)
	if err != nil {
		w.Fatal(err)
	}
	w.gate = g
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	transport := &http.Transport{
		DisableCompression: true,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) },
	}
	w.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	w.shutdown = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("the gate ended with %v", err)
		}
	})
	w.Cleanup(func() {
		transport.CloseIdleConnections()
		w.shutdown()
	})
}

// serveDaemon runs h on l until the test ends.
func serveDaemon(tb testing.TB, l net.Listener, h http.Handler) {
	server := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	tb.Cleanup(func() { server.Close(); <-done })
}

// request makes an authorised request to the daemon's path.
func (w *world) request(method, path string, body io.Reader) *http.Request {
	w.Helper()
	r, err := http.NewRequest(method, "http://"+w.addr+gate.BridgePath(theStation, 1)+path, body)
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.bearer)
	r.Header.Set("Drawbridge-Ticket", w.ticket)
	return r
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// send does a request and reads the whole answer.
func (w *world) send(r *http.Request) answer {
	w.Helper()
	a, err := w.try(r)
	if err != nil {
		w.Fatal(err)
	}
	return a
}

func (w *world) try(r *http.Request) (answer, error) {
	resp, err := w.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// get sends an authorised GET.
func (w *world) get(path string) answer {
	w.Helper()
	return w.send(w.request("GET", path, nil))
}

// credentials are the headers of raw requests. Closing is left to the gate: a
// client that closes its side is one that left.
func (w *world) credentials() string {
	return "Host: " + w.addr + "\r\nConnection: close\r\nAuthorization: Bearer " + w.bearer + "\r\nDrawbridge-Ticket: " + w.ticket + "\r\n"
}

// raw writes bytes to the gate and reads until the gate closes.
func (w *world) raw(text string) string {
	w.Helper()
	c, err := w.dial(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(stopTime))
	if _, err := io.WriteString(c, text); err != nil {
		w.Fatal(err)
	}
	out, err := io.ReadAll(c)
	if err != nil {
		w.Fatalf("after %q: %v", out, err)
	}
	return string(out)
}

// rawStatus is the status of the first answer to raw bytes.
func (w *world) rawStatus(text string) (status int, all string) {
	w.Helper()
	all = w.raw(text)
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(all)), nil)
	if err != nil {
		w.Fatalf("no answer in %q: %v", all, err)
	}
	resp.Body.Close()
	return resp.StatusCode, all
}

// refused fails unless an answer is exactly a refusal with this code.
func (w *world) refused(a answer, status int, code string) {
	w.Helper()
	want := `{"error":"` + code + `"}`
	if a.status != status || a.body != want {
		w.Errorf("answer %d %s, want %d %s", a.status, a.body, status, want)
	}
}

// untouched fails when the daemon was contacted or a ticket used.
func (w *world) untouched() {
	w.Helper()
	if saw := w.daemon.requests(); len(saw) > 0 {
		w.Errorf("the daemon saw %s %s", saw[0].Method, saw[0].RequestURI)
	}
	if n := w.auth.Consumed(); n > 0 {
		w.Errorf("%d uses of tickets were taken", n)
	}
}

// stop ends the bridge the way a supervisor does.
func (w *world) stop(reason string) {
	w.Helper()
	w.auth.Stop(theStation, 1, reason)
	ctx, cancel := context.WithTimeout(w.Context(), stopTime)
	defer cancel()
	if err := w.route.Stop(ctx, reason); err != nil {
		w.Errorf("stop: %v", err)
	}
}

// stream is an open event stream.
type stream struct {
	*world
	resp *http.Response
	body *bufio.Reader
}

func (w *world) open(r *http.Request) *stream {
	w.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		w.Fatalf("stream: status %d", resp.StatusCode)
	}
	return &stream{w, resp, bufio.NewReader(resp.Body)}
}

// event reads up to the next blank line.
func (s *stream) event() string {
	s.Helper()
	var out strings.Builder
	for {
		line, err := s.body.ReadString('\n')
		out.WriteString(line)
		if err != nil {
			s.Fatalf("after %q: %v", out.String(), err)
		}
		if line == "\n" {
			return out.String()
		}
	}
}

// rest reads to the end of the stream.
func (s *stream) rest() string {
	s.Helper()
	out, err := io.ReadAll(s.body)
	if err != nil {
		s.Fatalf("after %q: %v", out, err)
	}
	return string(out)
}

// events is a daemon's stream whose events a test sends.
type events struct {
	write chan string
	gone  chan struct{} // closed when the daemon saw the client leave
	once  sync.Once
}

func newEvents() *events {
	return &events{write: make(chan string), gone: make(chan struct{})}
}

func (e *events) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case <-r.Context().Done():
			e.once.Do(func() { close(e.gone) })
			return
		case text, open := <-e.write:
			if !open {
				return
			}
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func (e *events) send(tb testing.TB, text string) {
	tb.Helper()
	select {
	case e.write <- text:
	case <-time.After(stopTime):
		tb.Fatal("nobody takes an event")
	}
}

// last is the terminal event.
func last(state, reason, final string) string {
	return `event: station
data: {"schema":"drawbridge/station-event","version":1,"stationId":"stn_one","attempt":1,"state":"` + state + `","reason":"` + reason + `","final":` + final + "}\n\n"
}

func bearer(tb testing.TB, inject, secret string) gate.Credential {
	tb.Helper()
	c, err := gate.ParseCredential(inject, redact.NewSecret(secret))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func eventually(tb testing.TB, cond func() bool, what string) {
	tb.Helper()
	testkit.Eventually(tb, stopTime, cond, what)
}
