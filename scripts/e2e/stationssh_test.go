package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"drawbridge/scripts/internal/demostation"
	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/testkit"
)

const sshd = "/usr/sbin/sshd"

// The story of scripts/demo station where the lease is another machine's: a private
// sshd on loopback, with a pinned key.
//
// Proves station 17.Z4
func TestStation_OverSSH(t *testing.T) {
	t.Parallel()
	needHarness(t, rig.SandboxAgent)
	far := newFar(t)
	demoStation(t, demostation.Options{Bin: stationBin(t), Harness: rig.SandboxAgent, Provider: "far", Providers: far.file})
}

// The line to that machine breaks while a client follows events: its stream breaks
// off, and is not ended as if it were whole; the daemon lives on. When the line is
// back, the same process answers, the same ticket opens, and the events go on after
// the last one that was seen.
//
// Proves station 17.Z4
func TestStation_CutLine(t *testing.T) {
	t.Parallel()
	far := newFar(t)
	h := newHarnessStation(t, stationrig.Options{Args: []string{"-providers", "providers.json"}, Files: map[string]string{"providers.json": far.file}})
	s := h.Start(h.with(stationrig.Spec{"provider": "far"}))
	before := s.Status()
	space, err := stationrig.Namespace(before.Detail.DaemonPID)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Client("ada")
	stream := c.Stream("/events?every=50ms")
	last := stationrig.ID(stream.Until("id: 5"))

	far.line.set(false)
	for {
		event, ok := stream.Next()
		if !ok {
			break
		}
		if strings.Contains(event, `"final":true`) {
			t.Errorf("the stream says that the station has ended: %s", event)
		}
	}
	if a, err := c.Try(t.Context(), "GET", "/health", ""); err == nil && a.Status < 500 {
		t.Errorf("without a line the daemon answers: %d %s", a.Status, a.Text(200))
	}
	far.line.set(true)
	s.Until("the daemon answers again", func() bool {
		a, err := c.Try(t.Context(), "GET", "/health", "")
		return err == nil && a.Status == 200
	})
	if after := s.Status(); after.Detail.DaemonPID != before.Detail.DaemonPID || after.Attempt != 1 || after.State != "running" {
		t.Errorf("before %+v, after %+v", before, after)
	}
	again := c.Stream("/events?every=50ms", "Last-Event-ID: "+last)
	if event, _ := again.Next(); stationrig.ID(event) != "6" {
		t.Errorf("after event %s comes %q", last, event)
	}
	s.End()
	if rest := again.Rest(); len(rest) == 0 || !strings.Contains(rest[len(rest)-1], `"final":true`) {
		t.Errorf("the stream ended with %q", rest)
	}
	if left := stationrig.Members(space); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
	if e := evidenceOf(s); e.Stop.Reason != "operator_stop" || e.Stop.Cleanup.Result == "failed" {
		t.Errorf("%+v", e.Stop)
	}
	for _, name := range []string{"leases", "run"} {
		if left, err := os.ReadDir(filepath.Join(far.dir, name)); err != nil || len(left) > 0 {
			t.Errorf("%s of the far machine: %d entries, %v", name, len(left), err)
		}
	}
}

// far is a machine that is reached over SSH.
type far struct {
	dir  string // of its leases
	file string // of providers
	line *line
}

// newFar starts a private sshd on loopback, in a mount namespace of its own where it
// has a /run to write to.
func newFar(t *testing.T) *far {
	t.Helper()
	testkit.Need(t, sshd, "ssh-keygen", "unshare")
	dir := testkit.RuntimeDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, key := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	conf := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nLogLevel ERROR\n",
		address.Port, at("host"), at("user.pub"))
	if err := os.WriteFile(at("conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{sshd, "-D", "-e", "-f", at("conf")}
	if os.Getuid() == 0 { // who its users' shells are on this machine is not tested, and may be slow
		script := `mount -t tmpfs tmpfs /run && mkdir /run/sshd && { ! [ -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc; } && exec "$@"`
		args = append([]string{"unshare", "--mount", "sh", "-euc", script, "sh"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", said.String())
		}
	})
	f := &far{dir: at("far"), line: newLine(t, address.String())}
	testkit.EventuallyNil(t, callWait, func() error {
		c, err := net.Dial("tcp", address.String())
		if err == nil {
			c.Close()
		}
		return err
	})
	f.file = f.providers(t, at("host.pub"), at("user"))
	return f
}

func (f *far) providers(t *testing.T, hostKey, keyFile string) string {
	t.Helper()
	key, err := os.ReadFile(hostKey)
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	file, err := json.Marshal(map[string]any{"providers": []any{map[string]any{
		"name": "far", "kind": "ssh", "host": "127.0.0.1", "port": f.line.port(), "user": me.Username,
		"hostKey": strings.TrimSpace(string(key)), "keyFile": keyFile, "dir": f.dir,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(file)
}

// line passes connections on while it is whole.
type line struct {
	net.Listener
	mu    sync.Mutex
	whole bool
	open  map[net.Conn]bool
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &line{Listener: l, whole: true, open: map[net.Conn]bool{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { n.pass(near, to) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.set(false)
		work.Wait()
	})
	return n
}

func (n *line) port() int {
	_, port, _ := net.SplitHostPort(n.Addr().String())
	number, _ := strconv.Atoi(port)
	return number
}

// pass joins a connection with a new one, until either ends or the line is cut.
func (n *line) pass(near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	n.mu.Lock()
	whole := n.whole
	if whole {
		n.open[near], n.open[far] = true, true
	}
	n.mu.Unlock()
	if !whole {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(near, far); near.Close() })
	_, _ = io.Copy(far, near)
	far.Close()
	back.Wait()
	n.mu.Lock()
	delete(n.open, near)
	delete(n.open, far)
	n.mu.Unlock()
}

// set cuts the line, with everything that passes, or makes it whole again.
func (n *line) set(whole bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.whole = whole
	if !whole {
		for c := range n.open {
			c.Close()
		}
	}
}
