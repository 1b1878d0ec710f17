package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/outboxd/internal/seed"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const (
	session = "trusted-session-id"
	limit   = 40 * time.Second // for a condition that must come true
)

// world is one Store directory, looked at by the test.
type world struct {
	t    *testing.T
	dir  string
	home string
	*store.Store
}

// newWorld makes an empty Store and lets the test run beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldAlone(t)
}

// newWorldAlone is newWorld for a test that measures.
func newWorldAlone(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(context.Background(), store.Options{Dir: filepath.Join(dir, "store"), Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &world{t: t, dir: filepath.Join(dir, "store"), home: dir, Store: s}
}

// daemon is one outboxd process, as a bridge would start it.
type daemon struct {
	t        *testing.T
	cmd      *exec.Cmd
	lifeline *os.File
	ended    chan struct{}
	once     sync.Once
	out      bytes.Buffer
	notify   *net.UnixConn
}

// start runs outboxd on the Profile's relay with extra variables.
func (w *world) start(h *fakehost.Host, session string, extra ...string) *daemon {
	w.t.Helper()
	env := slices.Concat(fakehost.Environ(session), h.Capture(session).Relay(), extra)
	return w.launch(env, nil)
}

func (w *world) launch(env, args []string) *daemon {
	w.t.Helper()
	return w.launchTo(nil, env, args)
}

// launchTo starts outboxd with stderr as given; nil collects it.
func (w *world) launchTo(stderr *os.File, env, args []string) *daemon {
	w.t.Helper()
	program := testkit.BuildProgram(w.t, "outboxd", "drawbridge_crashpoints")
	read, write, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	socket := filepath.Join(w.t.TempDir(), "n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		w.t.Fatal(err)
	}
	d := &daemon{t: w.t, lifeline: write, ended: make(chan struct{}), notify: notify}
	d.cmd = exec.Command(program, append([]string{"serve", "-store-dir", w.dir, "-log-level", "debug", "-log-format", "text"}, args...)...)
	d.cmd.Env = slices.Concat(env, []string{"HOME=" + w.home, "DRAWBRIDGE_LIFELINE_FD=3", "NOTIFY_SOCKET=" + socket})
	d.cmd.ExtraFiles = []*os.File{read}
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	if stderr != nil {
		d.cmd.Stdout, d.cmd.Stderr = stderr, stderr
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	read.Close()
	go func() {
		d.cmd.Wait()
		close(d.ended)
	}()
	w.t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.ended
		d.cut()
		notify.Close()
		if w.t.Failed() {
			w.t.Logf("outboxd %d:\n%s", d.cmd.Process.Pid, d.out.String())
		}
	})
	return d
}

// cut ends the lifeline, as the end of bridge does.
func (d *daemon) cut() { d.once.Do(func() { d.lifeline.Close() }) }

// told waits until the daemon has said text on its notification socket.
func (d *daemon) told(text string) *daemon {
	d.t.Helper()
	d.notify.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, 4096)
	for {
		n, err := d.notify.Read(buf)
		if err != nil {
			d.t.Fatalf("outboxd did not say %q: %v", text, err)
		}
		if strings.Contains(string(buf[:n]), text) {
			return d
		}
	}
}

// exits waits for the end and demands the status; -1 is death by a signal.
func (d *daemon) exits(want int) {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(limit):
		d.t.Fatalf("outboxd does not end")
	}
	if got := d.cmd.ProcessState.ExitCode(); got != want {
		d.t.Errorf("outboxd ended with %d, want %d", got, want)
	}
}

func (d *daemon) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func (w *world) becomes(delivery, status string) store.Callback {
	w.t.Helper()
	var row store.Callback
	eventually(w.t, delivery+" is "+status, func() bool {
		row = seed.Read(w.t, w.Store, delivery)
		return row.Status == status
	})
	return row
}

// free demands that no lease of an outboxd is held.
func (w *world) free() {
	w.t.Helper()
	rows, err := w.Leases(context.Background(), "outboxd/")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Live {
			w.t.Errorf("a lease is still held: %+v", r)
		}
	}
}
