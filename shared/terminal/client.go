package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// errNotStarted is in the chain of run's error when no client ran at all.
var errNotStarted = errors.New("tmux client not started")

// output is what one client left behind.
type output struct {
	out  []byte
	diag []byte // standard error
	code int    // exit status; -1 when it did not end by itself
}

// reason gives one line that says why a client is not content.
func (o output) reason() string {
	if s := fault.CleanLine(string(o.diag)); s != "" {
		return s
	}
	return fmt.Sprintf("tmux exited with status %d", o.code)
}

// unreached reports whether the client says that it never reached a server:
// then no command of it was run.
func (o output) unreached() bool {
	return o.code > 0 && len(o.out) == 0 &&
		(bytes.HasPrefix(o.diag, []byte("no server running on ")) || bytes.HasPrefix(o.diag, []byte("error connecting to ")))
}

// script runs tmux commands that draw about as many screens. What one screen took
// the last time says how much is to be expected now.
func (t *Tmux) script(ctx context.Context, socket, commands string, screens int) (output, error) {
	o, err := t.start(ctx, process.Spec{Stdin: []byte(commands), Expect: screens * int(t.screen.Load())}, socket, "source-file", "-")
	if err == nil && screens > 0 {
		t.screen.Store(int64(len(o.out)/screens + spareOutput))
	}
	return o, err
}

// run runs one tmux client to its end. An exit status is not an error; a client
// that did not start, or did not end by itself within its bounds, is. What it
// wrote until then is in the output in either case.
func (t *Tmux) run(ctx context.Context, socket string, stdin []byte, args ...string) (output, error) {
	return t.start(ctx, process.Spec{Stdin: stdin}, socket, args...)
}

func (t *Tmux) start(ctx context.Context, spec process.Spec, socket string, args ...string) (output, error) {
	path, err := t.find()
	if err != nil {
		return output{code: -1}, err
	}
	if socket != "" {
		args = append([]string{"-N", "-u", "-S", socket}, args...)
	}
	spec.Path, spec.Args, spec.Env = path, args, t.env
	spec.Dir = "/" // the client tells it to the server, so it must exist
	spec.MaxStdout, spec.MaxStderr = maxOutput, maxDiagnostic
	spec.Timeout, spec.WaitDelay = clientTimeout, clientGrace
	res := process.Run(ctx, spec)
	o := output{out: res.Stdout, diag: res.Stderr, code: res.Exit}
	var start *process.StartError
	switch {
	case ctx.Err() != nil && !res.Ran:
		return o, fmt.Errorf("%w: %w", errNotStarted, context.Cause(ctx))
	case errors.As(res.Err, &start) && start.Unavailable():
		t.forget(path)
		return o, fmt.Errorf("%w: %w: %w", errNotStarted, ErrNoTmux, res.Err)
	case !res.Ran:
		return o, fmt.Errorf("%w: %w", errNotStarted, res.Err)
	case res.Err != nil:
		return o, fmt.Errorf("wait for tmux: %w", res.Err)
	case res.Limit == process.Cancelled:
		return o, fmt.Errorf("wait for tmux: %w", context.Cause(ctx))
	case res.Limit != process.None:
		return o, fmt.Errorf("wait for tmux: it passed its bound of %s", res.Limit)
	case res.Signal != "":
		return o, fmt.Errorf("wait for tmux: it ended by %s", res.Signal)
	}
	return o, nil
}

// find gives the absolute path of the program, looked up once.
func (t *Tmux) find() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path != "" {
		return t.path, nil
	}
	path, err := exec.LookPath(t.program)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w: %w", errNotStarted, ErrNoTmux, err)
	}
	t.path = path
	return path, nil
}

// forget makes the next find look again: the program may have moved.
func (t *Tmux) forget(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == path {
		t.path = ""
	}
}

// environment picks what a client needs. It carries no TMUX, no TMUX_TMPDIR and
// no secret: a client hands its whole environment to the server.
func environment(environ []string) []string {
	var env []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "HOME" || name == "LANG" || strings.HasPrefix(name, "LC_") {
			env = append(env, kv)
		}
	}
	return append(env, "TERM=dumb")
}

// clientFault turns run's error into one for the border. Nothing was typed.
func clientFault(doing string, err error) error {
	switch {
	case errors.Is(err, ErrNoTmux):
		return fault.New(fault.ObservationUnavail, "%s: %w", doing, err).
			WithHint("install tmux 3.2 or newer, or put it on PATH").Safe()
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fault.New(fault.ObservationUnavail, "%s: %w", doing, err).Safe()
}
