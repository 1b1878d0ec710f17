package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// commandWait bounds one helper command (tmux, git).
const commandWait = 20 * time.Second

// Size of every pane: that of the recorded screens.
const (
	Width  = 120
	Height = 40
)

// startTmux starts the private server with one shell that keeps it alive.
func (r *Rig) startTmux() {
	r.tb.Helper()
	if _, err := r.tmux("new-session", "-d", "-s", "keep", "-x", "80", "-y", "24", "-c", r.Dir, "exec sleep 86400"); err != nil {
		r.tb.Fatalf("rig: start tmux: %v", err)
	}
}

// Tmux runs one tmux command on the private server and gives its output.
func (r *Rig) Tmux(args ...string) string {
	r.tb.Helper()
	out, err := r.tmux(args...)
	if err != nil {
		r.tb.Fatalf("rig: %v", err)
	}
	return out
}

func (r *Rig) tmux(args ...string) (string, error) {
	return r.run(r.Dir, "tmux", append([]string{"-u", "-S", r.Socket, "-f", "/dev/null"}, args...)...)
}

// run starts one helper with the rig's environment.
func (r *Rig) run(dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandWait) // clean-ups run after the test's context
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, r.environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// environment is what panes and helpers get: nothing of a Host, no key, a home
// of the rig's own.
func (r *Rig) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + r.Home(),
		"SHELL=/bin/bash", "TERM=xterm-256color", "LANG=C.UTF-8",
		"GIT_CONFIG_NOSYSTEM=1",
	}
}
