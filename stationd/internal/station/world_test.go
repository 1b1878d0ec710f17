package station_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const (
	patience = 40 * time.Second
	daemon   = 54321 // uid and gid that nobody has
)

// world is one stationd with a Store of its own, and ann who owns its stations.
type world struct {
	testing.TB
	*stationtest.Stationd
	options stationtest.Options
	ann     store.Principal
	secret  string // ann's
	log     *journal
	closed  bool
}

// hurried is the pace of tests.
func hurried(m *station.Manager) {
	m.Hurry(20*time.Millisecond, time.Second, 200*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond)
}

func newWorld(t testing.TB, change ...func(*stationtest.Options)) *world {
	t.Helper()
	w := &world{TB: t, log: &journal{}}
	w.options = stationtest.Options{
		Dir: testkit.RuntimeDir(t), Shim: testkit.BuildStatic(t, "stationd/shim"), Adjust: hurried,
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&w.options)
	}
	w.open()
	var digest gate.Digest
	secret, digest := gate.NewPrincipalSecret()
	p, err := w.Store.AddPrincipal(t.Context(), w.Manager.Lease(), store.NewPrincipal{Org: store.LocalOrg, Name: "ann", SecretSHA256: digest})
	w.ok(err)
	w.ann, w.secret = p, secret.Reveal()
	t.Cleanup(func() {
		w.close()
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

// open starts the stationd, and waits until it has recovered.
func (w *world) open() {
	w.Helper()
	s, err := stationtest.Open(context.Background(), w.options)
	w.ok(err)
	w.Stationd, w.closed = s, false
	select {
	case <-s.Manager.Recovered():
	case <-time.After(patience):
		w.Fatal("not recovered", w.log.String())
	}
}

// close ends the stationd as its operator does.
func (w *world) close() {
	w.Helper()
	if w.closed {
		return
	}
	w.closed = true
	if err := w.Close(); err != nil {
		w.Error(err)
	}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err, "\n", w.log)
	}
}

// program is a spec as JSON has it.
type program map[string]any

// spec runs the harness with flags, with a bridge; change it before it is started.
func (w *world) spec(flags ...string) program {
	w.Helper()
	path := testkit.BuildProgram(w, "stationd/internal/testharness", "netgo", "osusergo")
	data, err := os.ReadFile(path)
	w.ok(err)
	sum := sha256.Sum256(data)
	p := program{
		"name": "test", "profile": "agent", "command": map[string]any{"argv": append([]string{"harness", "-port", "{port}"}, flags...)},
		"harness":   map[string]any{"name": "harness", "artifact": map[string]any{"path": path, "sha256": hex.EncodeToString(sum[:])}},
		"readiness": map[string]any{"http_path": "/health", "timeoutMs": 15000}, "bridge": map[string]any{},
		"graceMs": 1000,
	}
	if os.Getuid() == 0 {
		p["run_as"] = map[string]any{"uid": daemon, "gid": daemon}
	}
	return p
}

// uid is whom daemons run as here.
func uid() int {
	if os.Getuid() == 0 {
		return daemon
	}
	return os.Getuid()
}

func (p program) with(pairs ...any) program {
	out := program{}
	for k, v := range p {
		out[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(out, pairs[i].(string))
		} else {
			out[pairs[i].(string)] = pairs[i+1]
		}
	}
	return out
}

func (p program) json() []byte {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return data
}

// start begins a station.
func (w *world) start(p program) station.Started {
	w.Helper()
	s, err := w.Manager.Start(w.Context(), w.ann, station.StartRequest{Spec: p.json()})
	w.ok(err)
	return s
}

// ready begins a station and waits until it is ready.
func (w *world) ready(p program) station.Started {
	w.Helper()
	s := w.start(p)
	if row := w.await(s, store.AttemptReady); row.State != store.AttemptReady {
		w.Fatalf("%s for %s: %s", row.State, row.StopReason, w.log)
	}
	return s
}

// await waits for a state, or the end.
func (w *world) await(s station.Started, states ...string) store.StationAttempt {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	row, err := w.Manager.Await(ctx, s.Station.ID, s.Attempt, states...)
	if err != nil {
		w.Fatalf("%v: %s for %q\n%s", err, row.State, row.StopReason, w.log)
	}
	return row
}

// ended waits for the end.
func (w *world) ended(s station.Started) store.StationAttempt {
	w.Helper()
	return w.await(s, store.AttemptTerminal)
}

// stop asks for the end and waits for it.
func (w *world) stop(s station.Started) store.StationAttempt {
	w.Helper()
	_, err := w.Manager.Stop(w.Context(), w.ann, s.Station.ID)
	w.ok(err)
	return w.ended(s)
}

// document is the evidence of an attempt, as far as tests read it.
func (w *world) document(s station.Started) (f evidence.Facts) {
	w.Helper()
	w.ok(json.Unmarshal(w.text(s), &f))
	return f
}

func (w *world) text(s station.Started) []byte {
	w.Helper()
	e, err := w.Store.StationEvidence(w.Context(), s.Station.ID, s.Attempt)
	w.ok(err)
	return e.Document
}

// workspace is the lease of an attempt.
func (w *world) workspace(s station.Started) store.Workspace {
	w.Helper()
	row, err := w.Store.StationAttempt(w.Context(), s.Station.ID, s.Attempt)
	w.ok(err)
	l, err := w.Store.Workspace(w.Context(), row.LeaseID)
	w.ok(err)
	return l
}

// events are the kinds of a station's events, in order.
func (w *world) events(s station.Started) (kinds []string) {
	w.Helper()
	all, err := w.Store.StationEvents(w.Context(), s.Station.ID, 0, 1000)
	w.ok(err)
	for _, e := range all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// signals are the signals of a document, "target SIGNAL".
func signals(f evidence.Facts) (all []string) {
	for _, s := range f.Stop.SignalPath {
		all = append(all, s.Target+" "+s.Signal)
	}
	return all
}

// ticket issues one for a station.
func (w *world) ticket(s station.Started) string {
	w.Helper()
	k, digest := gate.NewTicket()
	_, err := w.Store.IssueTicket(w.Context(), w.Manager.Lease(), store.NewTicket{
		SecretSHA256: digest, Issuer: w.ann.ID, PrincipalID: w.ann.ID, StationID: s.Station.ID, Prefix: "/"})
	w.ok(err)
	return k.Reveal()
}

// client is without connections to share.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

// open sends a request through the gate.
func (w *world) request(s station.Started, ticket, method, path string) *http.Response {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, "http://"+w.Address+s.Bridge+path, nil)
	w.ok(err)
	r.Header.Set("Authorization", "Bearer "+w.secret)
	r.Header.Set(gate.TicketHeader, ticket)
	answer, err := client.Do(r)
	w.ok(err)
	w.Cleanup(func() { answer.Body.Close() })
	return answer
}

// get reads a path through the gate.
func (w *world) get(s station.Started, ticket, path string) (status int, body string) {
	w.Helper()
	answer := w.request(s, ticket, http.MethodGet, path)
	data, err := io.ReadAll(answer.Body)
	w.ok(err)
	return answer.StatusCode, string(data)
}

// clean checks that nothing of an attempt is left: no process, no directory, and the
// lease given back.
func (w *world) clean(s station.Started) {
	w.Helper()
	if l := w.workspace(s); l.State != store.WorkspaceReleased {
		w.Errorf("the lease is %s: %s", l.State, l.Cleanup)
	}
	if n := w.alive(); n != 0 {
		w.Errorf("%d processes live", n)
	}
	for _, dir := range []string{filepath.Join(w.options.Dir, "run"), filepath.Join(stationtest.State(w.options.Dir), "leases")} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			w.Errorf("left: %v, %v", left, err)
		}
	}
}

// alive counts processes of the daemon's user that run something below this world.
func (w *world) alive() (n int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if exe, err := os.Readlink(dir + "/exe"); err == nil && strings.HasPrefix(exe, w.options.Dir) {
			n++
		}
	}
	return n
}

// daemonOf names the daemon of an attempt.
func (w *world) daemonOf(row store.StationAttempt) process.Incarnation {
	w.Helper()
	inc, err := process.Of(int(row.DaemonPID))
	w.ok(err)
	return inc
}

// find gives a file below the world's directory that holds a text, "" for none.
func (w *world) find(text string) (found string) {
	w.Helper()
	w.ok(filepath.WalkDir(w.options.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), text) {
			found = path
		}
		return err
	}))
	return found
}

// journal keeps what was logged.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// has reports whether a list holds all of some words.
func has(list []string, words ...string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !slices.Contains(list, word) })
}
