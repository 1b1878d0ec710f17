// Package sibling starts one program of drawbridge beside another: bridge starts
// watchd and outboxd, kitrun starts brokerd.
//
// A sibling is a child in a process group of its own: whoever kills the group of
// the starter does not mean it. On fd 3 it has the read end of a pipe, its
// lifeline, whose write end only the starter holds: end of file there means that
// the starter is gone in whatever way, and the sibling drains and exits. A starter
// never signals and never kills it. What it writes on stdout and stderr becomes
// lines of the starter's log, and it says by sd_notify how it is.
//
// Whether a sibling that has ended is started again is for the starter.
package sibling

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"

	"drawbridge/shared/process"
)

// lifelineFD is the descriptor at which a child finds its lifeline: the first
// one after the standard three.
const lifelineFD = 3

// Program is one sibling to run.
type Program struct {
	Name string   // watchd
	Path string   // absolute
	Args []string // without the program's name
	Env  []string // the whole environment but for what this package adds
}

// Start runs the program. What it prints goes to log; notify, which may be nil, is
// where it says how it is.
func (p Program) Start(log *slog.Logger, notify *Notify) (*Child, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open a lifeline: %w", err)
	}
	defer theirs.Close()
	out, into, err := openOutput(p.Name, log)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer into.Close()

	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir = "/"
	cmd.Env = append(append([]string{}, p.Env...), fmt.Sprintf("DRAWBRIDGE_LIFELINE_FD=%d", lifelineFD))
	if notify != nil {
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+notify.name)
	}
	// Files, not writers: exec then starts no goroutine of its own. Standard
	// output of a sibling must never reach the protocol's.
	cmd.Stdout, cmd.Stderr = into, into
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
	return &Child{cmd: cmd, pid: cmd.Process.Pid, inc: inc, lifeline: ours, output: out}, nil
}
