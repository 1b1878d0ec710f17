package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/station"
)

const (
	patience = 20 * time.Second
	spec     = `{"name":"n","profile":"agent","bridge":{}}`

	// visitorVariable makes the test binary somebody who asks the socket that it names.
	visitorVariable = "CONTROL_TEST_VISITOR"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(visitorVariable); path != "" {
		_, err := control.NewClient(path).List(context.Background())
		fmt.Print(fault.CodeOf(err))
		os.Exit(0)
	}
	testkit.Leak(m)
}

// world is a Store with a Server on it, and the client of the user of the test, who
// is the one that runs stationd.
type world struct {
	t *testing.T
	*control.Client
	Store   *store.Store
	lease   *store.Lease
	dir     string // runtime directory
	me      store.Principal
	manager *manager
	log     *lines
	stop    func() // the Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: testkit.StoreDir(t), Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	lease, err := s.Acquire(t.Context(), store.StationdLease("here"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	me, err := s.EnsurePeer(t.Context(), lease, "me", int64(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, Store: s, lease: lease, dir: testkit.RuntimeDir(t), me: me, log: &lines{}}
	w.manager = &manager{world: w}
	w.Client = control.NewClient(w.socket())
	w.serve()
	return w
}

func (w *world) socket() string { return filepath.Join(w.dir, control.Socket) }

// serve runs the Server until the test ends or stop is called.
func (w *world) serve() {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	bell := store.NewDoorbell(w.Store, log)
	server := control.New(control.Options{
		RuntimeDir: w.dir, Store: w.Store, Bell: bell, Manager: w.manager, GatePort: 4711, Log: log,
		Redactor: redact.New(redact.Options{Paths: map[string]string{"/private/place": "<state>"}}),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	ready := make(chan struct{})
	work.Go(func() { _ = bell.Run(ctx) })
	work.Go(func() {
		if err := server.Run(ctx, func() { close(ready) }); err != nil {
			w.t.Errorf("serve: %v", err)
		}
	})
	w.stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
	})
	w.t.Cleanup(w.stop)
	<-ready
}

// manager does to the Store what the real one would, and nothing else.
type manager struct {
	*world
	standby bool
	logs    func(ctx context.Context, id string, n int64, follow bool, emit func(string, []byte) error) error
	fail    error
	asked   []string
}

func (m *manager) Lease() *store.Lease {
	if m.standby {
		return nil
	}
	return m.lease
}

func (m *manager) Start(ctx context.Context, by store.Principal, q station.StartRequest) (station.Started, error) {
	if m.fail != nil {
		return station.Started{}, m.fail
	}
	st, _, err := m.Store.CreateStation(ctx, m.lease, store.NewStation{PrincipalID: by.ID, Profile: "agent", Spec: q.Spec, Key: q.Key})
	if err != nil {
		return station.Started{}, err
	}
	return m.begin(ctx, st.ID)
}

func (m *manager) begin(ctx context.Context, id string) (station.Started, error) {
	st, err := m.Store.Station(ctx, id)
	if err != nil {
		return station.Started{}, err
	}
	if st.CurrentAttempt == 0 || st.State == store.StationStopped {
		_, err = m.Store.BeginAttempt(ctx, m.lease, id, store.NewAttempt{Provider: "local", Host: "here", TTL: time.Hour, Idle: time.Minute})
		if err != nil {
			return station.Started{}, err
		}
	}
	st, err = m.Store.Station(ctx, id)
	return station.Started{Station: st, Attempt: st.CurrentAttempt, Bridge: gate.BridgePath(id, int(st.CurrentAttempt))}, err
}

func (m *manager) Replace(ctx context.Context, _ store.Principal, id string) (station.Started, error) {
	return m.begin(ctx, id)
}

func (m *manager) Stop(ctx context.Context, by store.Principal, id string) (store.StationAttempt, error) {
	if m.fail != nil {
		return store.StationAttempt{}, m.fail
	}
	st, err := m.Store.Station(ctx, id)
	if err != nil {
		return store.StationAttempt{}, err
	}
	a, _, err := m.Store.RequestStop(ctx, m.lease, id, st.CurrentAttempt, store.StopOperator, by.ID)
	return a, err
}

func (m *manager) ReleaseLease(ctx context.Context, by store.Principal, id string, force bool, reason string) (store.Workspace, error) {
	m.asked = append(m.asked, fmt.Sprint(id == "", force, reason))
	return m.Store.Workspace(ctx, id)
}

func (m *manager) Logs(ctx context.Context, id string, n int64, follow bool, emit func(string, []byte) error) error {
	return m.logs(ctx, id, n, follow, emit)
}

// begun is a station of mine with an attempt.
func (w *world) begun() string { return w.begunOf(spec) }

func (w *world) begunOf(spec string) string {
	w.t.Helper()
	started, err := w.Start(w.t.Context(), []byte(spec), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return started.StationID
}

// theirs is a station of another principal, on which I have a role, or none for "".
func (w *world) theirs(role string) string {
	w.t.Helper()
	ctx := w.t.Context()
	_, digest := gate.NewPrincipalSecret()
	p, err := w.Store.AddPrincipal(ctx, w.lease, store.NewPrincipal{Org: store.LocalOrg, Name: fmt.Sprintf("other-%s-%d", role, time.Now().UnixNano()), SecretSHA256: digest})
	if err != nil {
		w.t.Fatal(err)
	}
	st, _, err := w.Store.CreateStation(ctx, w.lease, store.NewStation{PrincipalID: p.ID, Profile: "agent", Spec: []byte(spec)})
	if err == nil && role != "" {
		err = w.Store.GrantRole(ctx, w.lease, st.ID, w.me.ID, role)
	}
	if err == nil {
		_, err = w.manager.begin(ctx, st.ID)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return st.ID
}

// end brings a station's attempt to its end with a document, and the lease to its.
func (w *world) end(id, document string) {
	w.t.Helper()
	ctx := w.t.Context()
	st, err := w.Store.Station(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	n := st.CurrentAttempt
	_, _, err = w.Store.RequestStop(ctx, w.lease, id, n, store.StopOperator, w.me.ID)
	if err == nil {
		_, err = w.Store.AttemptIsStopping(ctx, w.lease, id, n)
	}
	if err == nil {
		_, err = w.Store.EndAttempt(ctx, w.lease, id, n, store.AttemptEnd{Exit: []byte(`{"code":0,"source":"shim"}`), Cleanup: []byte(`{}`), Document: []byte(document)})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// released ends the lease of the newest attempt, cleanly or not.
func (w *world) released(id string, clean bool) {
	w.t.Helper()
	st, err := w.Store.StationStatus(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	lease := st.Attempt.LeaseID
	_, err = w.Store.BeginRelease(w.t.Context(), w.lease, lease)
	switch {
	case err != nil:
	case clean:
		_, err = w.Store.WorkspaceReleased(w.t.Context(), w.lease, lease, []byte(`{}`))
	default:
		_, err = w.Store.WorkspaceCleanupFailed(w.t.Context(), w.lease, lease, []byte(`{"result":"failed","code":"provider_unreachable"}`))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// raw sends one request as it is, and gives status and body.
func (w *world) raw(method, target, body string) (int, http.Header, string) {
	w.t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.socket())
	}}}
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://x"+target, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// visit has another process ask the socket, and gives the code that it got.
func (w *world) visit(attr *syscall.SysProcAttr) string {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe") // another user may not look into the directory of the test
	cmd.Env, cmd.SysProcAttr = []string{visitorVariable + "=" + w.socket()}, attr
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%v: %s", err, errs.String())
	}
	return out.String()
}

func wantCode(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

func errorOf(t *testing.T, body string) string {
	t.Helper()
	var o map[string]string
	if err := json.Unmarshal([]byte(body), &o); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return o["error"]
}

// lines is a log that several goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
