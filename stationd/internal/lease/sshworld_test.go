package lease_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/lease"
)

const sshd = "/usr/sbin/sshd"

// host is a machine with a real sshd, in the test's own network, and the line to it.
type host struct {
	remote  lease.Remote
	scratch string
	line    *cutter
}

// newHost starts sshd with keys of its own. The test runs isolated.
func newHost(t *testing.T) *host {
	t.Helper()
	testkit.Need(t, sshd)
	dir := testkit.RuntimeDir(t)
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil { // of this test's mount namespace alone
		t.Fatal(err)
	}
	if err := os.Mkdir("/run/sshd", 0o755); err != nil {
		t.Fatal(err)
	}
	own, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	if rc := filepath.Join(own, ".bashrc"); exists(rc) { // what the user's shell does on this machine is not tested, and may be slow
		if err := unix.Mount("/dev/null", rc, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	hostKey, hostFile := newKey(t, filepath.Join(dir, "host"))
	userKey, userFile := newKey(t, filepath.Join(dir, "user"))
	write(t, filepath.Join(dir, "authorized"), userKey, 0o600)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	conf := filepath.Join(dir, "sshd_config")
	write(t, conf, fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nLogLevel ERROR\n",
		address.Port, hostFile, filepath.Join(dir, "authorized")), 0o600)
	var said bytes.Buffer
	cmd := exec.Command(sshd, "-D", "-e", "-f", conf)
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
	h := &host{scratch: filepath.Join(dir, "scratch"), line: newCutter(t, address.String())}
	h.remote = lease.Remote{
		Name: "far", Kind: lease.KindSSH, Host: "127.0.0.1", Port: h.line.port, User: "root", HostKey: hostKey, KeyFile: userFile, Dir: filepath.Join(dir, "far"),
	}
	testkit.EventuallyNil(t, patience, func() error {
		conn, err := net.Dial("tcp", address.String())
		if err == nil {
			conn.Close()
		}
		return err
	})
	return h
}

// ordinary makes the user there one without privileges, whom only this test knows.
func (h *host) ordinary(t *testing.T) {
	t.Helper()
	home := filepath.Dir(h.remote.Dir)
	if err := os.Chmod(home, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.remote.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(h.remote.Dir, daemon, daemon); err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, "passwd")
	write(t, file, fmt.Sprintf("%s\nstation:x:%d:%d::%s:/bin/sh\n", strings.TrimSpace(string(known)), daemon, daemon, h.remote.Dir), 0o644)
	if err := unix.Mount(file, "/etc/passwd", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(home, "authorized"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.remote.User = "station"
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// provider is one for the host; it is closed with the test.
func (h *host) provider(t *testing.T) *lease.SSH {
	t.Helper()
	p := lease.NewSSH(h.remote, testkit.BuildStatic(t, "stationd/shim"), h.scratch, time.Minute)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// newKey makes a key pair, and gives the public line and the private file.
func newKey(t *testing.T, file string) (line, path string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(pem.EncodeToMemory(block)), 0o600)
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), file
}

// cutter passes connections on until the line is cut.
type cutter struct {
	port int
	mu   sync.Mutex
	down bool
	hold bool
	open map[net.Conn]bool
	made int
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{port: l.Addr().(*net.TCPAddr).Port, open: map[net.Conn]bool{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil || !c.enter(near, far) {
				near.Close()
				if far != nil {
					far.Close()
				}
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				work.Go(func() {
					_, _ = io.Copy(held{way[0], c}, way[1])
					near.Close()
					far.Close()
				})
			}
		}
	})
	t.Cleanup(func() { l.Close(); c.cut(); work.Wait() })
	return c
}

func (c *cutter) enter(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return false
	}
	c.made++
	for _, conn := range conns {
		c.open[conn] = true
	}
	return true
}

// cut ends all connections, and lets none be made until mend.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = true
	for conn := range c.open {
		conn.Close()
	}
	clear(c.open)
}

// stall keeps all connections, and loses what is sent.
func (c *cutter) stall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = true
}

// mend lets new connections be made that work.
func (c *cutter) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down, c.hold = false, false
}

// held is a connection to which nothing gets while the line stalls.
type held struct {
	net.Conn
	line *cutter
}

func (h held) Write(p []byte) (int, error) {
	h.line.mu.Lock()
	stalled := h.line.hold
	h.line.mu.Unlock()
	if stalled {
		return len(p), nil
	}
	return h.Conn.Write(p)
}

func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}
