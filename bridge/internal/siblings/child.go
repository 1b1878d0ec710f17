package siblings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"drawbridge/shared/process"
)

// lifelineFD is the descriptor at which a child finds its lifeline: the first
// one after the standard three.
const lifelineFD = 3

// outputWait is how long a dead child's output is read on, in case one of its
// own children still holds it.
const outputWait = time.Second

// child is one running process of a sibling.
type child struct {
	cmd      *exec.Cmd
	inc      process.Incarnation
	pid      int
	lifeline *os.File // write end; close-on-exec, in no other process
	output   *output
	reaped   bool
	how      string
}

// spawn runs the program. The pid is known to heard before the child can speak.
func (s *Siblings) spawn(k *kept) (*child, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open a lifeline: %w", err)
	}
	defer theirs.Close()
	out, into, err := openOutput(k.Name, s.opts.Output)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer into.Close()

	cmd := exec.Command(k.Path, k.Args...)
	cmd.Dir = "/"
	cmd.Env = append(append([]string{}, k.Env...), fmt.Sprintf("DRAWBRIDGE_LIFELINE_FD=%d", lifelineFD))
	if s.notify != nil {
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+s.notify.name)
	}
	// Files, not writers: exec then starts no goroutine of its own. Standard
	// output of a sibling must never reach the protocol's.
	cmd.Stdout, cmd.Stderr = into, into
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		ours.Close()
		into.Close()
		out.end(outputWait)
		return nil, err
	}
	inc, err := process.Of(cmd.Process.Pid)
	if err != nil {
		// It has ended already and waits to be reaped, or /proc is not readable;
		// the wait below then has to be the plain one.
		inc = process.Incarnation{}
	}
	k.ready, k.standby = s.notify == nil, false
	s.byPID[cmd.Process.Pid] = k
	return &child{cmd: cmd, inc: inc, pid: cmd.Process.Pid, lifeline: ours, output: out}, nil
}

// wait gives how the child ended; ended is false when ctx was done first.
func (c *child) wait(ctx context.Context) (how string, ended bool) {
	if c.reaped {
		return c.how, true
	}
	if !c.inc.IsZero() {
		if err := process.Wait(ctx, c.inc); err != nil {
			if ctx.Err() != nil {
				return "", false
			}
		}
	}
	err := c.cmd.Wait()
	c.reaped, c.how = true, "exit status 0"
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		c.how = exit.String()
	case err != nil:
		c.how = err.Error()
	}
	return c.how, true
}

// cutLifeline tells the child to drain and exit.
func (c *child) cutLifeline() { c.lifeline.Close() }

// release frees everything but the process itself.
func (c *child) release() {
	c.cutLifeline()
	if !c.reaped { // it still drains; its last words are not waited for
		c.cmd.Process.Release()
		c.output.end(0)
		return
	}
	c.output.end(outputWait)
}
