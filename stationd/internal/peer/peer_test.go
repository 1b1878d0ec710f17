package peer_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/peer"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("PEER_TEST_DIAL"); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.Read(make([]byte, 1)) // until the test closes
		os.Exit(0)
	}
	testkit.Leak(m)
}

// accept gives the peer of the next connection, which lives until the test ends.
func accept(t *testing.T, l net.Listener) peer.Peer {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p, err := peer.Of(c.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	path := filepath.Join(testkit.RuntimeDir(t), "x.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := l.(*net.UnixListener).SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return l, path
}

func TestOf(t *testing.T) {
	l, path := listen(t)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := accept(t, l)
	if p.UID != os.Getuid() || p.PID != os.Getpid() || !p.Near() {
		t.Errorf("peer %+v, near %v", p, p.Near())
	}
	if (peer.Peer{}).Near() || (peer.Peer{PID: 1 << 30}).Near() {
		t.Error("a process that is not there is near")
	}
}

// Proves station 17.L14 for the check itself: a process of the same uid in another
// network namespace reaches a socket by its path and is told apart.
func TestPeer_Near_OtherNamespace(t *testing.T) {
	testkit.Need(t, "unshare")
	l, path := listen(t)
	flags := []string{"-n"}
	if os.Getuid() != 0 {
		flags = []string{"-U", "-r", "-n"}
	}
	if out, err := exec.Command("unshare", append(flags, "true")...).CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no network namespaces here, and CI=true: %v %s", err, out)
		}
		t.Skipf("no network namespaces here: %v %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", append(flags, self)...)
	cmd.Env = append(os.Environ(), "PEER_TEST_DIAL="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // after the connection is closed
	if p := accept(t, l); p.Near() || p.UID != os.Getuid() {
		t.Errorf("peer %+v is near", p)
	}
}
