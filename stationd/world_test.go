package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
)

const limit = 40 * time.Second // for a condition that must come true

func TestMain(m *testing.M) { testkit.Leak(m) }

// world is a place for one stationd: its programs, its directories, and a harness.
type world struct {
	t   *testing.T
	dir string // private, with a short path
	bin string // stationd with its shim
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: testkit.RuntimeDir(t)}
	w.bin = filepath.Join(w.dir, "bin")
	if err := os.Mkdir(w.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{
		"stationd":     testkit.BuildProgram(t, "stationd"),
		"station-shim": testkit.BuildStatic(t, "stationd/shim"),
		"testharness":  testkit.BuildStatic(t, "stationd/internal/testharness"),
	} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(w.path("bin", name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// write makes a private file.
func (w *world) write(name, content string) string {
	w.t.Helper()
	path := w.path(name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// store opens the Store of the world beside stationd.
func (w *world) store() *store.Store {
	w.t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: w.path("store"), Program: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

// environ is the whole environment of a stationd here.
func (w *world) environ(more ...string) []string {
	return append([]string{
		"HOME=" + w.dir, "PATH=" + os.Getenv("PATH"), "STATIOND_STORE_DIR=" + w.path("store"),
		"STATIOND_RUNTIME_DIR=" + w.path("run"), "STATIOND_STATE_DIR=" + w.path("state"),
	}, more...)
}

// stationd runs one command to its end.
func (w *world) stationd(args ...string) (stdout, stderr string, status int) {
	w.t.Helper()
	cmd := exec.Command(w.path("bin", "stationd"), args...)
	cmd.Env, cmd.Dir = w.environ(), w.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must is stationd that ends with 0.
func (w *world) must(args ...string) string {
	w.t.Helper()
	out, errs, status := w.stationd(args...)
	if status != 0 {
		w.t.Fatalf("stationd %v: status %d: %s", args, status, errs)
	}
	return out
}

// answer is must with -json, read into v.
func (w *world) answer(v any, args ...string) {
	w.t.Helper()
	out := w.must(append(args, "-json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		w.t.Fatalf("stationd %v: %v: %s", args, err, out)
	}
}

// spec is a file that asks for the harness with these arguments.
func (w *world) spec(args ...string) string {
	w.t.Helper()
	data, err := os.ReadFile(w.path("bin", "testharness"))
	if err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	s := map[string]any{
		"name": "harness", "profile": "agent",
		"command":   map[string]any{"argv": append([]string{"testharness", "-port", "{port}"}, args...)},
		"harness":   map[string]any{"name": "testharness", "artifact": map[string]any{"path": w.path("bin", "testharness"), "sha256": hex.EncodeToString(sum[:])}},
		"readiness": map[string]any{"http_path": "/health"},
		"bridge":    map[string]any{"pathPrefix": "/"},
		"graceMs":   1000,
	}
	if os.Geteuid() == 0 {
		s["run_as"] = map[string]any{"uid": 65534, "gid": 65534}
	}
	text, err := json.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.write(fmt.Sprintf("spec-%d.json", time.Now().UnixNano()), string(text))
}

// start starts a station and waits until it is ready.
func (w *world) start(args ...string) control.Started {
	w.t.Helper()
	var started control.Started
	w.answer(&started, "start", "-wait", "-f", w.spec(args...))
	return started
}

// status is the station as it is now.
func (w *world) status(id string) control.Status {
	w.t.Helper()
	var st control.Status
	w.answer(&st, "status", id)
	return st
}

// visitor is a principal with a secret and a ticket for a station.
type visitor struct{ id, secret, ticket string }

// visitor makes a manager of a station who comes over TCP.
func (w *world) visitor(station string) visitor {
	w.t.Helper()
	var p control.Principal
	w.answer(&p, "principal", "add", fmt.Sprintf("visitor-%d", time.Now().UnixNano()))
	w.must("member", "grant", station, p.PrincipalID, "manager")
	return visitor{p.PrincipalID, p.Secret, strings.TrimSpace(w.must("ticket", station, "-principal", p.PrincipalID))}
}

// get makes one request through the bridge.
func (w *world) get(v visitor, url string) (int, string) {
	w.t.Helper()
	status, _, body := w.request("GET", url, v)
	return status, body
}

func (w *world) request(method, url string, v visitor) (int, http.Header, string) {
	w.t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close = true
	if v != (visitor{}) {
		r.Header.Set("Authorization", "Bearer "+v.secret)
		r.Header.Set("Drawbridge-Ticket", v.ticket)
	}
	resp, err := http.DefaultClient.Do(r)
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

// child is one stationd serve.
type child struct {
	t        *testing.T
	cmd      *exec.Cmd
	lifeline *os.File // nil: an operator's
	notify   *net.UnixConn
	ended    chan struct{}
	once     sync.Once
	log      *lines

	mu   sync.Mutex
	said []string // on the notification socket, in order
	when []int64  // Unix milliseconds
}

// serve starts a stationd and waits until it is ready.
func (w *world) serve(args ...string) *child {
	w.t.Helper()
	return w.launch(false, nil, args...).told("READY=1")
}

// launch starts a stationd: with a lifeline, with more in its environment.
func (w *world) launch(sibling bool, env []string, args ...string) *child {
	w.t.Helper()
	cmd := exec.Command(w.path("bin", "stationd"), append([]string{"serve", "-log-level", "debug"}, args...)...)
	return w.run(cmd, sibling, env)
}

// run runs cmd as a stationd.
func (w *world) run(cmd *exec.Cmd, sibling bool, env []string) *child {
	w.t.Helper()
	address := &net.UnixAddr{Name: w.path(fmt.Sprintf("notify-%d", time.Now().UnixNano())), Net: "unixgram"}
	notify, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		w.t.Fatal(err)
	}
	d := &child{t: w.t, cmd: cmd, notify: notify, ended: make(chan struct{}), log: &lines{}}
	cmd.Env, cmd.Dir = w.environ(append(env, "NOTIFY_SOCKET="+address.Name)...), w.dir
	cmd.Stderr = d.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if sibling {
		r, held, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		defer r.Close()
		cmd.ExtraFiles, d.lifeline = []*os.File{r}, held
		cmd.Env = append(cmd.Env, service.LifelineVariable+"=3")
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	var hearing sync.WaitGroup
	hearing.Go(d.hear)
	go func() {
		_ = cmd.Wait()
		close(d.ended)
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // its attempts end with it
		select {
		case <-d.ended:
		case <-time.After(limit):
			_ = cmd.Process.Kill()
			<-d.ended
		}
		d.cut()
		notify.Close()
		hearing.Wait()
		if w.t.Failed() {
			w.t.Logf("stationd %d:\n%s", cmd.Process.Pid, d.log.String())
		}
	})
	return d
}

// hear collects what the daemon says on its notification socket.
func (d *child) hear() {
	buf := make([]byte, 4096)
	for {
		n, err := d.notify.Read(buf)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.said, d.when = append(d.said, strings.TrimSpace(string(buf[:n]))), append(d.when, time.Now().UnixMilli())
		d.mu.Unlock()
	}
}

// heard is what was said so far.
func (d *child) heard() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.said...)
}

// at is when something was said first.
func (d *child) at(text string) int64 {
	d.told(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.when[slices.Index(d.said, text)]
}

// count is how often something was said.
func (d *child) count(text string) (n int) {
	for _, s := range d.heard() {
		if s == text {
			n++
		}
	}
	return n
}

// told waits until the daemon has said text.
func (d *child) told(text string) *child {
	d.t.Helper()
	testkit.Eventually(d.t, limit, func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("stationd ended with %d before it said %s", d.cmd.ProcessState.ExitCode(), text)
		default:
		}
		return d.count(text) > 0
	}, text)
	return d
}

// exits waits for the end and demands the status; -1 is death by a signal.
func (d *child) exits(want int) {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(limit):
		d.t.Fatal("stationd does not end")
	}
	if got := d.cmd.ProcessState.ExitCode(); got != want {
		d.t.Errorf("stationd ended with %d, want %d", got, want)
	}
	if log := d.log.String(); want == 0 && strings.Contains(log, `"level":"ERROR"`) {
		d.t.Errorf("an ordinary end is told as an error:\n%s", log)
	}
}

func (d *child) signal(sig syscall.Signal) *child {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	return d
}

// cut ends the lifeline, as the end of whoever started it does.
func (d *child) cut() {
	d.once.Do(func() {
		if d.lifeline != nil {
			d.lifeline.Close()
		}
	})
}

// gone fails the test unless a process ends.
func (w *world) gone(inc process.Incarnation) {
	w.t.Helper()
	testkit.Eventually(w.t, limit, func() bool { return !inc.Alive() }, inc.PID)
}

// incarnation is a process that runs now.
func (w *world) incarnation(pid int64) process.Incarnation {
	w.t.Helper()
	inc, err := process.Of(int(pid))
	if err != nil {
		w.t.Fatal(err)
	}
	return inc
}

// lines is a log that another goroutine writes.
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
