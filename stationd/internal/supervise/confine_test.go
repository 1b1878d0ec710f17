package supervise_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// Proves station 17.L5 for the shim: the daemon's environment is the launch's and
// nothing else.
//
// Proves station 17.L10, 17.L11: with run_as, who the daemon is, and whom
// it sees.
func TestDaemon_Is(t *testing.T) {
	w := newWorld(t).start()
	started := w.launch()
	var env map[string]string
	w.get("/environment", &env)
	if diff := cmp.Diff(map[string]string{"STATION_ID": "stn_test", "HOME": w.spec.Home, "TMPDIR": w.spec.Temp}, env); diff != "" {
		t.Error(diff)
	}
	var p struct {
		PID, PPID, UID, GID int
		Groups              []int
		Dir, Network        string
		NoNewPrivs          string `json:"no_new_privs"`
		Capabilities        string
		Processes           []string
	}
	w.get("/process", &p)
	uid, gid := os.Getuid(), os.Getgid()
	if w.spec.RunAs != nil {
		uid, gid = daemon, daemon
		if len(p.Groups) != 0 {
			t.Errorf("groups %v", p.Groups)
		}
	}
	if p.UID != uid || p.GID != gid || p.NoNewPrivs != "1" || strings.Trim(p.Capabilities, "0") != "" || p.PID != started.Inner || p.PPID != 1 || p.Dir != w.spec.Workspace {
		t.Errorf("%+v, want uid %d, gid %d", p, uid, gid)
	}
	if own, _ := os.Readlink("/proc/self/ns/net"); p.Network == own {
		t.Error("the daemon is in the network of its supervisor")
	}
	if diff := cmp.Diff([]string{"1", fmt.Sprint(started.Inner)}, p.Processes); diff != "" {
		t.Error(diff)
	}
	if got := w.ask("/read", "path", "/proc/self/limits"); !strings.Contains(fmt.Sprint(got.Value), "4096                 4096                 files") {
		t.Errorf("limits: %v", got)
	}
}

// Proves station 17.L10 (without run_as).
func TestCheckUser(t *testing.T) {
	root := os.Getuid() == 0
	for name, tc := range map[string]struct {
		user *wire.User
		root bool // allow_root
		want fault.Code
	}{
		"none":     {nil, false, map[bool]fault.Code{true: fault.RunAsRequired}[root]},
		"root":     {&wire.User{}, false, fault.RootRefused},
		"nonsense": {&wire.User{UID: -1, GID: 5}, false, fault.RunAsRequired},
		"other":    {&wire.User{UID: daemon + 1, GID: daemon}, false, map[bool]fault.Code{false: fault.RunAsRequired}[root]},
	} {
		if got := fault.CodeOf(supervise.CheckUser(tc.user, tc.root)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if root && supervise.CheckUser(&wire.User{}, true) != nil {
		t.Error("allow_root is refused")
	}
	w := newWorld(t)
	if w.spec.RunAs = nil; root {
		if _, err := supervise.Start(t.Context(), w.options, w.spec); !fault.Is(err, fault.RunAsRequired) {
			t.Errorf("started: %v", err)
		}
	}
}

// Proves station 17.L6, 17.L7 for the shim: other bytes than the verified
// ones are not executed, and what was checked is what runs, whatever the name leads to
// later.
func TestDaemon_Artifact(t *testing.T) {
	t.Run("other bytes", func(t *testing.T) {
		w := newWorld(t)
		marker := filepath.Join(w.spec.Workspace, "ran")
		w.install([]byte("#!/bin/sh\ntouch " + marker + "\n"))
		if _, err := supervise.Start(t.Context(), w.options, w.spec); !fault.Is(err, fault.IntegrityFailed) {
			t.Errorf("started: %v", err)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Error("it ran")
		}
	})
	t.Run("swapped", func(t *testing.T) {
		w := newWorld(t).start()
		w.install([]byte("#!/bin/sh\nexit 9\n"))
		w.launch()
		if e := w.events.exited(); e != nil {
			t.Errorf("ended: %+v", e)
		}
	})
	t.Run("script", func(t *testing.T) {
		w := newWorld(t)
		w.spec.Artifact.SHA256 = w.install([]byte("#!/bin/sh\necho script $0 $1\nexit 4\n"))
		w.start()
		w.run(wire.Launch{Args: []string{"name", "argument"}, Env: []string{}, Dir: w.spec.Workspace})
		testkit.Eventually(t, patience, func() bool { return w.events.exited() != nil && w.events.of(wire.Stdout) != "" })
		if e := w.events.exited(); e.Code == nil || *e.Code != 4 || w.events.of(wire.Stdout) != "script "+w.exe+" argument\n" {
			t.Errorf("%+v, %q", e, w.events.of(wire.Stdout))
		}
	})
}

// A daemon that may be root is root of very little: nothing of the machine can be
// changed by its uid alone.
func TestDaemon_Root(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an ordinary user has no root to give away")
	}
	w := newWorld(t)
	w.spec.RunAs, w.options.AllowRoot = &wire.User{}, true
	if err := os.Chown(w.spec.Workspace, 0, 0); err != nil { // without capabilities root needs that
		t.Fatal(err)
	}
	w.start()
	w.launch()
	for _, path := range []string{"/proc/sys/kernel/hostname", "/etc/written"} {
		if got := w.ask("POST /write", "path", path); got.OK || !strings.Contains(got.Error, "read-only") {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := w.ask("POST /trace", "pid", "1"); got.OK {
		t.Error("the shim can be traced")
	}
	var p struct{ Capabilities string }
	w.get("/process", &p)
	if strings.Trim(p.Capabilities, "0") != "" {
		t.Errorf("capabilities %s", p.Capabilities)
	}
}

func TestDaemon_Refused(t *testing.T) {
	w := newWorld(t)
	w.spec.Artifact = nil
	w.start()
	c := w.process.Client()
	for name, l := range map[string]wire.Launch{
		"nothing":   {},
		"relative":  {Args: []string{"sh"}, Dir: w.spec.Workspace},
		"directory": {Args: []string{"/bin/sh"}, Dir: "/"},
		"file":      {Args: []string{"/bin/sh"}, Dir: w.spec.Workspace, File: "../x"},
	} {
		if _, err := c.Launch(t.Context(), l); !fault.Is(err, fault.ShimFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Signal(t.Context(), wire.Group, 15); !fault.Is(err, fault.ShimFailed) {
		t.Errorf("signal before the launch: %v", err)
	}
	if _, err := c.Launch(t.Context(), wire.Launch{Args: []string{"/nothing/there"}, Dir: w.spec.Workspace}); !fault.Is(err, fault.DaemonNotStarted) {
		t.Errorf("no program: %v", err)
	}
	if _, err := c.Launch(t.Context(), wire.Launch{Args: []string{"/bin/sh"}, Dir: w.spec.Workspace}); !fault.Is(err, fault.ShimFailed) {
		t.Errorf("launched again: %v", err)
	}
}

// socket listens on a path that anybody may connect to.
func socket(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if !strings.HasPrefix(path, "@") {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
}

// Proves station 17.L13: no socket of the machine is reached, by path or by name, and
// no private directory is listed.
func TestDaemon_Reaches(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"stationd.sock", "docker.sock", "bus", "tmux"} {
		socket(t, filepath.Join(w.dir, name))
	}
	socket(t, filepath.Join(w.spec.Runtime, wire.Egress))
	abstract := "@drawbridge-test-" + filepath.Base(w.dir)
	socket(t, abstract)
	secret := filepath.Join(w.dir, "state", "store.db")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.launch()
	for _, path := range []string{
		filepath.Join(w.dir, "stationd.sock"), filepath.Join(w.dir, "docker.sock"), filepath.Join(w.dir, "bus"), filepath.Join(w.dir, "tmux"),
		filepath.Join(w.spec.Runtime, wire.Control), filepath.Join(w.spec.Runtime, wire.In), filepath.Join(w.spec.Runtime, wire.Egress),
		"/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket", fmt.Sprintf("/tmp/tmux-%d/default", os.Getuid()), abstract,
	} {
		if got := w.ask("/dial", "network", "unix", "address", path); got.OK {
			t.Errorf("reached %s", path)
		}
	}
	for _, path := range []string{w.spec.Runtime, filepath.Join(w.dir, "state"), "/root", "/home", "/tmp", "/run"} {
		got := w.ask("/list", "path", path)
		way, _ := filepath.Rel(path, w.spec.Workspace) // only what leads to the daemon's own places
		way, _, _ = strings.Cut(way, "/")
		names, _ := json.Marshal(got.Value)
		if got.OK && !slices.Contains([]string{"[]", `["station"]`, `["` + way + `"]`}, string(names)) {
			t.Errorf("%s: %s", path, names)
		}
	}
	if got := w.ask("/read", "path", secret); got.OK {
		t.Errorf("read %v", got.Value)
	}
}

// Proves station 17.L14 for ctl.sock and in.sock: a process inside that reaches them,
// since they were bound in on purpose, is refused, with the nonce too.
func TestDaemon_BoundIn(t *testing.T) {
	w := newWorld(t).start()
	for _, name := range []string{wire.Control, wire.In} {
		if err := os.Link(filepath.Join(w.spec.Runtime, name), filepath.Join(w.spec.Workspace, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(w.spec.Runtime, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	w.launch()
	for name, send := range map[string]string{
		wire.Control: `{"id":1,"op":"hello","nonce":"` + nonce + `"}` + "\n",
		wire.In:      "GET /health HTTP/1.0\r\n\r\n",
	} {
		path := filepath.Join(w.spec.Workspace, name)
		if got := w.ask("/dial", "network", "unix", "address", path); !got.OK {
			t.Fatalf("%s is not reached: %s", name, got.Error)
		}
		if got := w.ask("/dial", "network", "unix", "address", path, "send", send); got.OK {
			t.Errorf("%s answered %v", name, got.Value)
		}
	}
}

// Proves station 17.L15: nothing can be done to the shim, nothing was left open for
// the daemon, and nothing but its own places can be written to.
func TestDaemon_Limits(t *testing.T) {
	w := newWorld(t).start()
	w.launch()
	if got := w.ask("POST /trace", "pid", "1"); got.OK {
		t.Error("the shim can be traced")
	}
	for _, path := range []string{"/proc/1/environ", "/proc/1/maps", "/proc/1/fd"} {
		if got := w.ask("/read", "path", path); got.OK {
			t.Errorf("%s can be read", path)
		}
	}
	for sig := 1; sig <= 64; sig++ {
		w.ask("POST /signal", "pid", "1", "signal", fmt.Sprint(sig)) // whether it is refused depends on the uid
	}
	if err := w.process.Client().Ping(t.Context()); err != nil {
		t.Errorf("after signals: %v", err)
	}
	for _, dir := range []string{"/", "/etc", "/usr/bin", "/tmp", "/var/tmp", "/run", wire.CredentialDir, "/dev", "/dev/shm", "/root", "/home", w.dir, w.spec.Runtime, filepath.Dir(w.exe)} {
		if got := w.ask("POST /write", "path", filepath.Join(dir, "written")); got.OK {
			t.Errorf("%s can be written to", dir)
		}
	}
	for _, path := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward"} {
		if got := w.ask("POST /write", "path", path); got.OK || !strings.Contains(got.Error, "read-only") && !strings.Contains(got.Error, "denied") {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := w.ask("POST /write", "path", w.exe); got.OK {
		t.Error("the artifact can be written to")
	}
	for _, dir := range []string{w.spec.Workspace, w.spec.Home, w.spec.Temp} {
		if got := w.ask("POST /write", "path", filepath.Join(dir, "written")); !got.OK {
			t.Errorf("%s: %s", dir, got.Error)
		}
	}
	if got := w.ask("POST /write", "path", "/dev/null"); !got.OK {
		t.Errorf("/dev/null: %s", got.Error)
	}

	const stray = 200 // a descriptor that somebody forgot to close
	if err := unix.Dup3(int(os.Stdin.Fd()), stray, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stray)
	other := newWorld(t)
	other.spec.Artifact = nil
	other.start()
	other.run(wire.Launch{Args: []string{"/bin/sh", "-c", "for fd in 0 1 2 3 4 5 6 7 8 9 11 12 200; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; cat"}, Env: []string{}, Dir: other.spec.Workspace})
	testkit.Eventually(t, patience, func() bool { return other.events.exited() != nil })
	testkit.Eventually(t, patience, func() bool { return other.events.of(wire.Stdout) == "0\n1\n2\n" }, other.events.of(wire.Stdout), other.events.of(wire.Stderr))
}

// Proves station 17.E1 for the closed namespace: nothing is reached, nothing listens
// where a proxy would, and no name is known.
func TestDaemon_ClosedNetwork(t *testing.T) {
	w := newWorld(t).start()
	w.launch()
	for _, address := range []string{"203.0.113.1:443", "10.0.0.1:80", "169.254.169.254:80", "[2001:db8::1]:443"} {
		if got := w.ask("/dial", "address", address); got.OK || !strings.Contains(got.Error, "network is unreachable") {
			t.Errorf("%s: %+v", address, got)
		}
	}
	if got := w.ask("/dial", "address", wire.ProxyAddress); got.OK || !strings.Contains(got.Error, "refused") {
		t.Errorf("the proxy's port: %+v", got)
	}
	if got := w.ask("/resolve", "name", "allowed.test"); got.OK {
		t.Errorf("a name: %+v", got)
	}
}

// With a profile the way out is the proxy's socket, although the daemon cannot see it.
func TestDaemon_Egress(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("unix", filepath.Join(w.spec.Runtime, wire.Egress))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 4)
		_, _ = c.Read(buf)
		_, _ = c.Write(append(buf, " back"...))
	}()
	defer func() { l.Close(); <-served }()
	w.spec.Egress = true
	w.start()
	w.launch()
	if got := w.ask("/dial", "address", wire.ProxyAddress, "send", "out!"); got.Value != "out! back" {
		t.Errorf("%+v", got)
	}
}
