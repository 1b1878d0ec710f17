package sibling

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"time"

	"drawbridge/shared/process"
)

// outputWait is how long a dead child's output is read on, in case one of its
// own children still holds it.
const outputWait = time.Second

// Child is one running process of a sibling. One goroutine at a time uses it;
// after Release nobody does.
type Child struct {
	cmd      *exec.Cmd
	pid      int
	inc      process.Incarnation
	lifeline *os.File // write end; close-on-exec, in no other process
	output   *output
	reaped   bool
	how      string
}

// PID is the process, as Notify names the sender of a message.
func (c *Child) PID() int { return c.pid }

// Wait gives how the child ended; ended is false when ctx was done first.
func (c *Child) Wait(ctx context.Context) (how string, ended bool) {
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

// ExitCode is the status with which the child ended; -1 as long as Wait has not
// said so, and when a signal ended it.
func (c *Child) ExitCode() int {
	if !c.reaped || c.cmd.ProcessState == nil {
		return -1
	}
	return c.cmd.ProcessState.ExitCode()
}

// CutLifeline tells the child to drain and exit. It may be called more than once.
func (c *Child) CutLifeline() { c.lifeline.Close() }

// Release cuts the lifeline and frees everything but the process itself: one that
// still drains is left to its own deadline.
func (c *Child) Release() {
	c.CutLifeline()
	if !c.reaped { // its last words are not waited for
		c.cmd.Process.Release()
		c.output.end(0)
		return
	}
	c.output.end(outputWait)
}
