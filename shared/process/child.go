package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of Run where a field of Spec is zero.
const (
	DefaultMaxOutput = 1 << 20
	DefaultTimeout   = 30 * time.Second
	DefaultWaitDelay = 2 * time.Second
)

// Limit says which bound ended a child.
type Limit string

// The limits. None means that the child ended by itself.
const (
	None         Limit = ""
	TimedOut     Limit = "timeout"
	StdoutTooBig Limit = "stdout"
	StderrTooBig Limit = "stderr"
	Cancelled    Limit = "cancelled" // the context ended
)

// Spec describes one bounded child.
type Spec struct {
	Path      string        // absolute path of the executable; nothing is looked up
	Args      []string      // arguments after the program's name
	Env       []string      // the whole environment, "NAME=value"; nil is empty, never inherited
	Dir       string        // working directory; "" means "/"
	Stdin     []byte        // written and then closed
	MaxStdout int           // bytes; 0 means DefaultMaxOutput
	MaxStderr int           // bytes; 0 means DefaultMaxOutput
	Expect    int           // bytes of stdout that will probably come; only a matter of memory
	Timeout   time.Duration // from the start; 0 means DefaultTimeout
	WaitDelay time.Duration // how long output may come after the exit; 0 means DefaultWaitDelay

	// Complete, when set, is asked after the child has exited and a descendant
	// still holds its stdout: true means that the answer is whole and Run need
	// not wait for more.
	Complete func(stdout []byte) bool

	// Started, when set, is called once the child runs, before anything is
	// waited for. It must not block.
	Started func(Incarnation)
}

// Result is how a child ended.
//
// Err is set when the child never ran (a *StartError) or when the operating
// system lost track of it; Ran tells the two apart. A child that ran and failed
// has no Err: see Exit, Signal and Limit.
type Result struct {
	Ran     bool
	Exit    int    // exit status; -1 when it ended by a signal or never ran
	Signal  string // "SIGKILL"; "" when it exited
	Limit   Limit  // the first bound that was hit; the group was killed unless the child had exited before
	Held    bool   // a descendant still held stdout or stderr when Run returned
	Stdout  []byte // at most MaxStdout bytes
	Stderr  []byte // at most MaxStderr bytes
	Elapsed time.Duration
	Err     error
}

// OK reports whether the child ran to its end and exited with status 0.
func (r Result) OK() bool { return r.Ran && r.Err == nil && r.Limit == None && r.Exit == 0 }

// StartError means that the program never ran.
type StartError struct {
	Path string
	Err  error
}

// Error names the executable and the reason, never an argument.
func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v", e.Path, e.Err) }

// Unwrap gives the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Unavailable reports whether the executable is missing or not allowed, which
// does not change by trying again; other start errors (no memory, too many
// processes, file being written) may.
func (e *StartError) Unavailable() bool {
	for _, no := range []error{unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM} {
		if errors.Is(e.Err, no) {
			return true
		}
	}
	return false
}

// Run starts the child in a process group of its own and blocks until it has
// ended or hit a bound. Time, cancellation, and the first byte beyond an output
// cap kill the whole group with SIGKILL. After an exit by itself nothing is
// killed, as a command may leave a service of its own behind; such a descendant
// may hold the pipes, so output is waited for WaitDelay at most, and not at all
// once Complete is satisfied.
//
// Nothing outlives Run but descendants that left the group and, if the kernel
// cannot end the child (uninterruptible sleep), one goroutine that reaps it.
func Run(ctx context.Context, spec Spec) Result {
	spec = spec.withDefaults()
	if err := ctx.Err(); err != nil {
		return never(spec, context.Cause(ctx))
	}
	if !filepath.IsAbs(spec.Path) {
		return never(spec, fmt.Errorf("path is not absolute: %w", unix.EPERM))
	}
	pipes, err := openPipes()
	if err != nil {
		return never(spec, err)
	}
	defer pipes.closeOurs()

	cmd := &exec.Cmd{
		Path: spec.Path, Args: append([]string{spec.Path}, spec.Args...),
		Env: spec.Env, Dir: spec.Dir,
		Stdin: pipes.stdin.theirs, Stdout: pipes.stdout.theirs, Stderr: pipes.stderr.theirs,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	begin := time.Now()
	err = cmd.Start()
	pipes.closeTheirs()
	if err != nil {
		return never(spec, err)
	}
	c := &child{spec: spec, pid: cmd.Process.Pid, pipes: pipes}
	if spec.Started != nil {
		if inc, err := Of(c.pid); err == nil {
			spec.Started(inc)
		}
	}
	res := c.supervise(ctx, cmd)
	res.Elapsed = time.Since(begin)
	return res
}

func (s Spec) withDefaults() Spec {
	if s.Env == nil {
		s.Env = []string{} // os/exec would inherit ours
	}
	if s.Dir == "" {
		s.Dir = "/"
	}
	if s.MaxStdout <= 0 {
		s.MaxStdout = DefaultMaxOutput
	}
	if s.MaxStderr <= 0 {
		s.MaxStderr = DefaultMaxOutput
	}
	if s.Timeout <= 0 {
		s.Timeout = DefaultTimeout
	}
	if s.WaitDelay <= 0 {
		s.WaitDelay = DefaultWaitDelay
	}
	return s
}

// never is the result of a child that did not run. os/exec prefixes its errors
// with the path; the cause alone is kept.
func never(spec Spec, err error) Result {
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return Result{Exit: -1, Err: &StartError{Path: spec.Path, Err: err}}
}

// child is one running child.
type child struct {
	spec  Spec
	pid   int
	pipes *pipes
}

// supervise owns the child from its start to the reaping.
func (c *child) supervise(ctx context.Context, cmd *exec.Cmd) Result {
	exited := make(chan error, 1)
	go func() { exited <- awaitExit(c.pid) }()

	out := newReader(c.pipes.stdout.ours, c.spec.MaxStdout)
	out.data = make([]byte, 0, min(max(c.spec.Expect, 0), c.spec.MaxStdout))
	errs := newReader(c.pipes.stderr.ours, c.spec.MaxStderr)
	go out.run()
	go errs.run()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feed(c.pipes.stdin.ours, c.spec.Stdin)
	}()

	timer := time.NewTimer(c.spec.Timeout)
	defer timer.Stop()
	res := Result{Ran: true, Exit: -1}
	var waitErr error
	select {
	case waitErr = <-exited:
	case <-timer.C:
		res.Limit = TimedOut
	case <-ctx.Done():
		res.Limit = Cancelled
	case <-out.over:
		res.Limit = StdoutTooBig
	case <-errs.over:
		res.Limit = StderrTooBig
	}
	reaped := true
	if res.Limit != None {
		c.killGroup() // the child is not reaped, so its pid still names its group
		select {
		case waitErr = <-exited:
		case <-time.After(c.spec.WaitDelay):
			reaped = false
		}
	}

	// From here on nobody writes to the child, and the readers are ours.
	c.pipes.stdin.ours.Close()
	<-fed
	out.stop()
	errs.stop()
	if res.Limit == None {
		c.collect(out, errs)
		switch {
		case out.tooBig:
			res.Limit = StdoutTooBig
		case errs.tooBig:
			res.Limit = StderrTooBig
		}
	} else {
		out.drain()
		errs.drain()
	}
	res.Stdout, res.Stderr = out.data, errs.data
	res.Held = !out.eof || !errs.eof

	switch {
	case !reaped:
		go func() { <-exited; _ = cmd.Wait() }()
		res.Err = fmt.Errorf("child %d does not end after SIGKILL", c.pid)
		return res
	case waitErr != nil:
		res.Err = fmt.Errorf("wait for child %d: %w", c.pid, waitErr)
	}
	_ = cmd.Wait() // reaps; its error only repeats the status
	if state := cmd.ProcessState; state != nil {
		res.Exit = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			res.Signal = unix.SignalName(ws.Signal())
		}
	}
	return res
}

// collect reads what is left after the child exited by itself.
func (c *child) collect(out, errs *reader) {
	deadline := time.Now().Add(c.spec.WaitDelay)
	for {
		out.drain()
		errs.drain()
		if out.tooBig || errs.tooBig || (out.eof && errs.eof) {
			return
		}
		if c.spec.Complete != nil && c.spec.Complete(out.data) {
			return
		}
		if !waitAny(deadline, out, errs) {
			return
		}
	}
}

// killGroup kills the child's group, and the child too should it have moved.
func (c *child) killGroup() {
	_ = unix.Kill(-c.pid, unix.SIGKILL)
	_ = unix.Kill(c.pid, unix.SIGKILL)
}

// awaitExit blocks until the child has ended and leaves it unreaped, so that its
// pid and group cannot be anybody else's until Run is done with them. A goroutine
// that waits in the poller costs nothing; one that stands in waitid keeps a thread,
// and the runtime looking after it, awake for as long as the child runs.
func awaitExit(pid int) error {
	if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		if waitReadable(context.Background(), fd) == nil {
			return nil
		}
	}
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
