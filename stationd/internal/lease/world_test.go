package lease_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const (
	patience = 30 * time.Second
	daemon   = 54321 // uid and gid that nobody has
	id       = "lse_aaaaaaaaaaaaaaaaaaaaaaaaaa"
)

var request = lease.Request{Lease: id, Station: "stn_aaaaaaaaaaaaaaaaaaaaaaaaaa", Attempt: 1, Org: "org", Owner: "owner"}

var empty = &lease.Proof{Empty: true, Cleanup: json.RawMessage(`{"result":"clean"}`)}

// user is whom daemons run as here.
func user() *launch.User {
	if os.Getuid() != 0 {
		return nil
	}
	return &launch.User{UID: daemon, GID: daemon}
}

// newLocal is a provider with directories of its own.
func newLocal(t *testing.T) (*lease.Local, place.Base) {
	t.Helper()
	dir := testkit.RuntimeDir(t)
	base := place.Base{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	p := lease.NewLocal(base, supervise.Options{Shim: testkit.BuildStatic(t, "stationd/shim")})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, base
}

// must stops the test at an error.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// acquire makes a lease that ends with the test.
func acquire(t *testing.T, p lease.Provider) lease.Lease {
	t.Helper()
	l := must[lease.Lease](t)(p.Acquire(t.Context(), request))
	t.Cleanup(func() {
		if err := p.Release(context.Background(), l, empty); err != nil {
			t.Error(err)
		}
	})
	return l
}

// machine opens a lease's machine; it is closed with the test.
func machine(t *testing.T, p lease.Provider, l lease.Lease) lease.Machine {
	t.Helper()
	m := must[lease.Machine](t)(p.Machine(t.Context(), l))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// harness is a pinned artifact: the project's own.
func harness(t *testing.T) launch.Artifact {
	t.Helper()
	path := testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo")
	return launch.Artifact{Path: path, SHA256: must[string](t)(place.FileSHA256(path))}
}

// specification is what a manager would hand over for obtained.
func specification(t *testing.T, m lease.Machine, obtained launch.Obtained) wire.Spec {
	t.Helper()
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce)
	spec := wire.Spec{
		Nonce: hex.EncodeToString(nonce), Artifact: &wire.Artifact{Path: obtained.Path, SHA256: obtained.SHA256},
		Port: must[int](t)(m.FreePort(t.Context())), Deadline: process.BootTime() + (10 * time.Minute).Milliseconds(), OrphanMS: 20_000,
	}
	if u := user(); u != nil {
		spec.RunAs = &wire.User{UID: u.UID, GID: u.GID}
	}
	return spec
}

// attempt is one shim with its daemon.
type attempt struct {
	testing.TB
	machine lease.Machine
	spec    wire.Spec
	shim    lease.Shim
	told    *told
}

// begin prepares the machine, and starts its shim and the harness.
func begin(t *testing.T, m lease.Machine, change func(*wire.Spec), args ...string) *attempt {
	t.Helper()
	if err := m.Prepare(t.Context(), user()); err != nil {
		t.Fatal(err)
	}
	obtained := must[launch.Obtained](t)(m.Obtain(t.Context(), harness(t)))
	a := &attempt{TB: t, machine: m, spec: specification(t, m, obtained)}
	if change != nil {
		change(&a.spec)
	}
	a.own(must[lease.Shim](t)(m.StartShim(t.Context(), a.spec, false)))
	a.launch(args...)
	return a
}

// own ends the shim with the test.
func (a *attempt) own(s lease.Shim) {
	a.shim, a.told = s, listen(s.Client())
	a.Cleanup(func() {
		if _, err := s.End(context.Background()); err != nil {
			a.Error(err)
		}
	})
}

func (a *attempt) launch(args ...string) {
	a.Helper()
	l := a.machine.Layout()
	started, err := a.shim.Client().Launch(a.Context(), wire.Launch{
		Args: append([]string{"harness", "-port", strconv.Itoa(a.spec.Port)}, args...), Dir: l.Workspace,
		Env: []string{"STATION_ID=stn_test", "HOME=" + l.Home, "TMPDIR=" + l.Temp},
	})
	if err != nil || started.PID == 0 {
		a.Fatalf("%+v, %v", started, err)
	}
	testkit.EventuallyNil(a, patience, func() error { _, err := a.get("/health"); return err })
}

// get asks the daemon through in.sock.
func (a *attempt) get(path string) (string, error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return a.shim.Dial(ctx, wire.In) },
	}}
	r, err := http.NewRequestWithContext(a.Context(), http.MethodGet, "http://daemon"+path, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

// told is what a client tells.
type told struct {
	mu     sync.Mutex
	exits  int
	exit   *wire.End
	output map[string]string
	ended  bool
}

// listen reads all events and acknowledges output, until the client ends.
func listen(c *supervise.Client) *told {
	e := &told{output: map[string]string{}}
	go func() {
		for m := range c.Events() {
			e.mu.Lock()
			switch m.Event {
			case wire.EventExit:
				e.exit = m.Exit
				e.exits++
			case wire.EventOutput:
				e.output[m.Stream] += string(m.Data)
				_ = c.Ack(m.Stream, m.Seq+int64(len(m.Data)))
			}
			e.mu.Unlock()
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended = true
	}()
	return e
}

func (e *told) of(stream string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.output[stream]
}

func (e *told) closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// repository makes a git work tree with a hook, a credential and a program.
func repository(t *testing.T) string {
	t.Helper()
	testkit.Need(t, "git")
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	git("init", "-q", "-b", "main")
	git("config", "user.name", "T")
	git("config", "user.email", "t@example.org")
	git("remote", "add", "origin", "https://me:hunter2hunter2@example.org/r.git")
	write(t, filepath.Join(dir, "bin", "serve"), "#!/bin/sh\nexit 0\n", 0o755)
	write(t, filepath.Join(dir, "sub", "text.txt"), "text\n", 0o644)
	write(t, filepath.Join(dir, ".git", "hooks", "post-checkout"), "#!/bin/sh\ntouch /tmp/hooked\n", 0o755)
	if err := os.Symlink("text.txt", filepath.Join(dir, "sub", "link")); err != nil {
		t.Fatal(err)
	}
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	write(t, filepath.Join(dir, "sub", "text.txt"), "text, changed\n", 0o644)
	return dir
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}
