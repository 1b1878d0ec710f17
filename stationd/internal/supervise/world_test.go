package supervise_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const (
	patience = 20 * time.Second
	daemon   = 54321 // uid and gid that nobody has
	nonce    = "0123456789abcdef0123456789abcdef"
)

// world is one attempt: its directories, its shim, its daemon.
type world struct {
	testing.TB
	dir, exe string
	spec     wire.Spec
	options  supervise.Options
	process  *supervise.Process
	events   *events
}

// newWorld prepares an attempt whose artifact is the project's harness.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dir: testkit.RuntimeDir(t)}
	w.options.Shim = shim(t)
	for _, name := range []string{"run", "work", "home", "tmp", "state", "art"} {
		if err := os.Mkdir(filepath.Join(w.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(harness(t))
	if err != nil {
		t.Fatal(err)
	}
	w.exe = filepath.Join(w.dir, "art", "harness")
	sum := w.install(program)
	w.spec = wire.Spec{
		Runtime: filepath.Join(w.dir, "run"), Nonce: nonce, UID: os.Getuid(),
		Workspace: filepath.Join(w.dir, "work"), Home: filepath.Join(w.dir, "home"), Temp: filepath.Join(w.dir, "tmp"),
		Hide:     []string{filepath.Join(w.dir, "state")},
		Artifact: &wire.Artifact{Path: w.exe, SHA256: sum},
		Port:     freePort(t), Deadline: process.BootTime() + time.Minute.Milliseconds(), OrphanMS: 20_000,
	}
	if os.Getuid() == 0 {
		w.spec.RunAs = &wire.User{UID: daemon, GID: daemon}
		for _, dir := range []string{w.spec.Workspace, w.spec.Home, w.spec.Temp} {
			if err := os.Chown(dir, daemon, daemon); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

// Where the test without privileges, which cannot build, finds the two programs.
const (
	shimVariable    = "SUPERVISE_TEST_SHIM"
	harnessVariable = "SUPERVISE_TEST_HARNESS"
)

func shim(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(shimVariable); path != "" {
		return path
	}
	return testkit.BuildStatic(t, "stationd/shim")
}

func harness(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(harnessVariable); path != "" {
		return path
	}
	return testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo")
}

// install writes the artifact, and gives its digest.
func (w *world) install(program []byte) string {
	w.Helper()
	if err := os.Remove(w.exe); err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.exe, program, 0o500); err != nil {
		w.Fatal(err)
	}
	sum := sha256.Sum256(program)
	return hex.EncodeToString(sum[:])
}

// start starts the shim; it ends with the test.
func (w *world) start() *world {
	w.Helper()
	p, err := supervise.Start(w.Context(), w.options, w.spec)
	if err != nil {
		w.Fatal(err)
	}
	w.own(p)
	return w
}

// own ends p with the test, unless it ended before.
func (w *world) own(p *supervise.Process) {
	w.process, w.events = p, gather(p.Client())
	w.Cleanup(func() {
		if _, err := p.End(context.Background()); err != nil {
			w.Error(err)
		}
	})
}

// launch starts the harness with the flags, and waits until it answers.
func (w *world) launch(args ...string) wire.Started {
	w.Helper()
	started := w.run(wire.Launch{
		Args: append([]string{"harness", "-port", strconv.Itoa(w.spec.Port)}, args...), Dir: w.spec.Workspace,
		Env: []string{"STATION_ID=stn_test", "HOME=" + w.spec.Home, "TMPDIR=" + w.spec.Temp},
	})
	testkit.EventuallyNil(w, patience, func() error { _, err := w.try("/health"); return err })
	return started
}

func (w *world) run(l wire.Launch) wire.Started {
	w.Helper()
	started, err := w.process.Client().Launch(w.Context(), l)
	if err != nil {
		w.Fatal(err)
	}
	return started
}

// try gets a path of the daemon through in.sock.
func (w *world) try(path string) ([]byte, error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return w.process.Dial(ctx, wire.In) },
	}}
	method, target, ok := strings.Cut(path, " ")
	if !ok {
		method, target = http.MethodGet, path
	}
	r, err := http.NewRequestWithContext(w.Context(), method, "http://daemon"+target, strings.NewReader("text"))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// outcome is what the harness tells of a try of its own.
type outcome struct {
	OK    bool   `json:"ok"`
	Error string `json:"error"`
	Value any    `json:"value"`
}

// ask lets the daemon try something; pairs are the query.
func (w *world) ask(path string, pairs ...string) (out outcome) {
	w.Helper()
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	w.get(path+"?"+q.Encode(), &out)
	return out
}

func (w *world) get(path string, v any) {
	w.Helper()
	data, err := w.try(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		w.Fatalf("%s: %v: %s", path, err, data)
	}
}

// events gathers what a client is told.
type events struct {
	mu     sync.Mutex
	exit   *wire.End
	output map[string]string
	gaps   int64
	ended  bool
}

func gather(c *supervise.Client) *events {
	e := &events{output: map[string]string{}}
	go func() { // ends with the client
		for m := range c.Events() {
			e.mu.Lock()
			switch m.Event {
			case wire.EventExit:
				e.exit = m.Exit
			case wire.EventOutput:
				e.output[m.Stream] += string(m.Data)
				_ = c.Ack(m.Stream, m.Seq+int64(len(m.Data)))
			case wire.EventDropped:
				e.gaps += m.Bytes
			}
			e.mu.Unlock()
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended = true
	}()
	return e
}

func (e *events) of(stream string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.output[stream]
}

func (e *events) exited() *wire.End {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exit
}

func (e *events) closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// file makes an empty file in the workspace.
func (w *world) file(name string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.spec.Workspace, name), nil, 0o644); err != nil {
		w.Fatal(err)
	}
}

// freePort is a port that nobody has on the outside.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// alive counts the processes that run the artifact.
func (w *world) alive() (n int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if exe, err := os.Readlink(dir + "/exe"); err == nil && exe == w.exe {
			n++
		}
	}
	return n
}
