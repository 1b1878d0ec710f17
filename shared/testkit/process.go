package testkit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// processPatience bounds the waits for a process, on a machine that does much else.
const processPatience = 90 * time.Second

// Process is a program that a test has started.
type Process struct {
	Cmd            *exec.Cmd
	Stdout, Stderr *Buffer       // what it has written; nil where Cmd has its own
	Ended          chan struct{} // closed when it has ended and what it wrote is read
	tb             testing.TB
}

// Start starts a command. What of its output leads nowhere goes into buffers, and
// unless it has attributes of its own it leads a process group. It is killed at the end of
// the test; of a test that failed its output is logged.
func Start(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{Cmd: cmd, Stdout: &Buffer{}, Stderr: &Buffer{}, Ended: make(chan struct{}), tb: tb}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Stderr
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.Ended)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.Ended
		if tb.Failed() {
			tb.Logf("%.2000v\nstdout:\n%.2000s\nstderr:\n%.4000s", cmd.Args, p.Stdout, p.Stderr)
		}
	})
	return p
}

// Exits waits for the end and demands the status; -1 is death by a signal.
func (p *Process) Exits(want int) *Process {
	p.tb.Helper()
	select {
	case <-p.Ended:
	case <-time.After(processPatience):
		p.tb.Fatalf("%.300v does not end", p.Cmd.Args)
	}
	if got := p.Cmd.ProcessState.ExitCode(); got != want {
		p.tb.Errorf("%.300v ended with %d, want %d", p.Cmd.Args, got, want)
	}
	return p
}

// Signal sends a signal to a process that has not ended.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		p.tb.Fatal(err)
	}
}

// Says waits until stderr holds text.
func (p *Process) Says(text string) {
	p.tb.Helper()
	Eventually(p.tb, processPatience, func() bool { return strings.Contains(p.Stderr.String(), text) }, "stderr says", text)
}

// Buffer can be read while it is written.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what has been written so far.
func (b *Buffer) String() string { return string(b.Bytes()) }

// Bytes is a copy of what has been written so far.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

// Len is how much has been written so far.
func (b *Buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Len()
}

// PutProgram gives a program another home, where it finds its siblings beside itself.
func PutProgram(tb testing.TB, program, path string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if os.Link(program, path) == nil {
		return
	}
	data, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(path, data, 0o700)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
