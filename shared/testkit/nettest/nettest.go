// Package nettest gives a test a network of its own: a network namespace that it
// runs in, other namespaces that stand in for the world (a public address, the
// metadata service, a name server), and a Docker engine that lives there. What the
// test does to addresses, routes and the firewall stays inside and ends with it;
// the machine's real network is neither changed nor reached, since no device leads
// there.
//
// A test begins with
//
//	if nettest.Isolate(t) {
//		return // it ran in a process of its own
//	}
//
// It needs root, iproute2 and util-linux; without root the test skips, with
// CI=true it fails.
package nettest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/testkit"
)

// inside names the test that runs in the namespace.
const inside = "DRAWBRIDGE_NETTEST"

// Bounds of the two waits of this package.
const (
	engineWait = 90 * time.Second
	dialWait   = 5 * time.Second
)

// Isolate runs the calling test once more, alone in a new process with a network
// and a mount namespace of its own, and reports true when that has ended; there it
// brings lo up and reports false. Subtests are run there as well.
func Isolate(t *testing.T) (ran bool) {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		IP(t, "link", "set", "lo", "up")
		return false
	}
	testkit.Need(t, "ip", "nsenter")
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root can make network namespaces, and CI=true")
		}
		t.Skip("only root can make network namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run", "^" + t.Name() + "$", "-test.v"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout", time.Until(deadline).String())
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// The kernel sends the signal when the thread is gone that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("in its own network: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")):
		t.Skipf("in its own network:\n%s", out)
	}
	t.Logf("in its own network:\n%s", out)
	return true
}

// Engine starts a Docker engine in the namespace of the test and makes it the one
// that dockertest finds. It ends with the test.
func Engine(t *testing.T) (host string) {
	t.Helper()
	testkit.Need(t, "dockerd", "iptables")
	t.Setenv("DOCKER_HOST", "")
	program := testkit.BuildProgram(t, "scripts/cmd/engine")
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "DOCKER_HOST=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // closing stdin is how it is told to stop
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the engine ended with %v: %s", err, stderr.String())
		}
	})
	overdue := time.AfterFunc(engineWait, func() { _ = in.Close() })
	defer overdue.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	host, ok := strings.CutPrefix(strings.TrimSpace(line), "export DOCKER_HOST=")
	if err != nil || !ok {
		t.Fatalf("the engine did not start: %q, %v", line, err)
	}
	t.Setenv("DOCKER_HOST", host)
	return host
}

// Resolver makes address the name server of the test's namespace, for programs
// that start from now on: /etc/resolv.conf is covered by a file of its own.
func Resolver(t *testing.T, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver "+address+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	at, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("cover %s: %v", at, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Errorf("uncover %s: %v", at, err)
		}
	})
}

// A World is another network namespace, one hop away from the test's.
type World struct {
	process *exec.Cmd // keeps the namespace
}

// NewWorld makes a namespace with the addresses, all in one subnet, whose host side
// has the address gateway ("203.0.113.254/24").
func NewWorld(t *testing.T, name, gateway string, addresses ...string) *World {
	t.Helper()
	w := &World{process: exec.Command("sleep", "infinity")}
	w.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := w.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.process.Process.Kill(); _ = w.process.Wait() })
	near, far := name+"0", name+"1"
	IP(t, "link", "add", near, "type", "veth", "peer", "name", far)
	IP(t, "link", "set", far, "netns", strconv.Itoa(w.process.Process.Pid))
	IP(t, "address", "add", gateway, "dev", near)
	IP(t, "link", "set", near, "up")
	for _, address := range addresses {
		w.ip(t, "address", "add", address, "dev", far)
	}
	w.ip(t, "link", "set", "lo", "up")
	w.ip(t, "link", "set", far, "up")
	via, _, _ := strings.Cut(gateway, "/")
	w.ip(t, "route", "add", "default", "via", via)
	return w
}

func (w *World) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", w.process.Process.Pid) }

func (w *World) ip(t *testing.T, args ...string) {
	t.Helper()
	command(t, "nsenter", append([]string{"--net=" + w.namespace(), "ip"}, args...)...)
}

// IP runs ip in the test's namespace.
func IP(t *testing.T, args ...string) {
	t.Helper()
	command(t, "ip", args...)
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// do runs f on a thread that is in the namespace of w, the test's own for nil.
func (w *World) do(f func() error) error {
	if w == nil {
		return f()
	}
	ns, err := os.Open(w.namespace())
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// A Server counts who reaches it.
type Server struct {
	Addr string
	hits atomic.Int64
}

// Hits is the number of connections or datagrams so far.
func (s *Server) Hits() int64 { return s.hits.Load() }

// TCP accepts connections at address in w, the test's own namespace for nil, and
// closes them.
func (w *World) TCP(t *testing.T, address string) *Server {
	t.Helper()
	var l net.Listener
	err := w.do(func() (err error) { l, err = net.Listen("tcp4", address); return err })
	if err != nil {
		t.Fatalf("listen on %s: %v", address, err)
	}
	s := &Server{Addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.hits.Add(1)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return s
}

// Names answers every question for an IPv4 address with answer, by UDP.
func (w *World) Names(t *testing.T, address string, answer net.IP) *Server {
	t.Helper()
	var conn net.PacketConn
	err := w.do(func() (err error) { conn, err = net.ListenPacket("udp4", address); return err })
	if err != nil {
		t.Fatalf("listen on %s: %v", address, err)
	}
	s := &Server{Addr: conn.LocalAddr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			s.hits.Add(1)
			if reply, err := reply(buf[:n], answer); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() { _ = conn.Close(); serving.Wait() })
	return s
}

// reply is the answer to a question with one name (RFC 1035 §4.1).
func reply(query []byte, answer net.IP) ([]byte, error) {
	const header, typeA = 12, 1
	at := header
	for at < len(query) && query[at] != 0 {
		at += int(query[at]) + 1
	}
	end := at + 5 // the root, type, class
	if end > len(query) {
		return nil, errors.New("short question")
	}
	out := append([]byte(nil), query[:end]...)
	out[2], out[3] = 0x81, 0x80 // an answer, recursion available, no error
	copy(out[4:header], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	if int(query[at+1])<<8|int(query[at+2]) == typeA {
		out[7] = 1
		out = append(out, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
		out = append(out, answer.To4()...)
	}
	return out, nil
}

// Dial says whether the test's own namespace reaches address: a check that a
// stand-in is there before its silence is taken as proof.
func Dial(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), dialWait)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("the stand-in at %s is not there: %v", address, err)
	}
	_, _ = io.Copy(io.Discard, conn) // the server closes at once
	_ = conn.Close()
}
