package claude

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

// kindInteractive is the kind of a process that a person sits at.
const kindInteractive = "interactive"

// commands are the first words that make another program of it than the TUI of one
// conversation; any other first word is a prompt.
var commands = []string{
	"agents", "auth", "auto-mode", "config", "doctor", "install", "mcp", "migrate-installer", "plugin", "plugins",
	"remote-control", "setup-token", "update", "upgrade",
}

// switches are the flags that do so.
var switches = []string{"-p", "--print", "-v", "--version", "-h", "--help"}

// Find gives the Claude Code TUI in the foreground of the pane (claude §1).
//
// A process without an entry in the sessions registry is found, too, with an empty
// version: it is starting, or shows a dialog that comes before the session. One
// whose entry does not fit pane, directory or kind is found and refused.
func (a *Adapter) Find(ctx context.Context, pane terminal.Pane) (agent.Process, error) {
	if pane.Dead || pane.PID <= 0 {
		return agent.Process{}, agent.ErrNoAgent
	}
	var found []process.Info
	// What the TUI starts is never the agent of the pane: commands of its tools, and
	// a child between fork and exec.
	err := process.Walk(pane.PID, func(info process.Info) bool {
		if ctx.Err() != nil {
			return false
		}
		if candidate(info) {
			found = append(found, info)
			return false
		}
		return true
	})
	switch {
	case ctx.Err() != nil:
		return agent.Process{}, ctx.Err()
	case err != nil || len(found) == 0:
		return agent.Process{}, agent.ErrNoAgent
	case len(found) > 1:
		return agent.Process{}, agent.ErrSeveralAgents
	}
	tty, err := process.Device(pane.TTY)
	if err != nil || found[0].TTY != tty || !found[0].Foreground() {
		return agent.Process{}, agent.ErrNoAgent
	}
	proc, err := a.describe(ctx, found[0], pane)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return agent.Process{}, agent.ErrNoAgent // ended while we looked
	}
	return proc, err
}

// candidate reports whether a process is the TUI, as far as its program and its
// arguments tell.
func candidate(info process.Info) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", info.PID))
	if err != nil || !program(info.Comm, strings.TrimSuffix(exe, " (deleted)")) {
		return false
	}
	argv, err := process.Cmdline(info.PID)
	return err == nil && interactive(argv)
}

// program knows the binary of the npm package (…/claude-code/bin/claude.exe, or
// …-linux-x64/claude), the one that installs itself (…/claude/versions/2.1.332),
// and whatever is invoked as claude.
func program(comm, exe string) bool {
	switch filepath.Base(exe) {
	case "claude.exe", "claude":
		return true
	}
	dir := filepath.Dir(exe)
	return comm == "claude" || filepath.Base(dir) == "versions" && filepath.Base(filepath.Dir(dir)) == "claude"
}

// interactive reads an argv. Flags with values are not told apart: a value that is
// the name of a command only hides a pane that the registry would reveal.
func interactive(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	for _, arg := range argv[1:] {
		if arg == "--" {
			break
		}
		if slices.Contains(switches, arg) {
			return false
		}
	}
	return len(argv) < 2 || !slices.Contains(commands, argv[1])
}

// describe adds home, directory and what the registry says to a process.
func (a *Adapter) describe(ctx context.Context, info process.Info, pane terminal.Pane) (agent.Process, error) {
	inc, err := process.Of(info.PID)
	if err != nil {
		return agent.Process{}, err
	}
	if inc.Start != info.Start {
		return agent.Process{}, agent.ErrNoAgent
	}
	proc := agent.Process{Agent: agent.Claude, Inc: inc, Mode: agent.InProcess, Class: agent.Refused}
	if proc.Cwd, err = process.Cwd(inc.PID); err != nil {
		return agent.Process{}, err
	}
	if proc.Home, proc.HomeID, err = home(inc.PID, proc.Cwd); err != nil {
		return agent.Process{}, err
	}
	exe, err := process.Exe(inc.PID)
	if err != nil {
		return agent.Process{}, err
	}
	proc.Exe = exe.Path
	e, err := a.entry(ctx, proc)
	switch {
	case errors.Is(err, errAbsent) || errors.Is(err, errForeign):
		return proc, ctx.Err()
	case err != nil:
		// The version of a process never changes, so that an unreadable moment of its
		// entry does not hide the pane.
		if proc.Version = a.knownVersion(inc, ""); proc.Version == "" {
			return agent.Process{}, fault.New(fault.ObservationUnavail, "read what Claude Code registered of process %d: %w", inc.PID, err)
		}
	default:
		proc.Version = a.knownVersion(inc, e.Version)
		if e.unfit(proc, pane) != nil {
			return proc, ctx.Err() // refused
		}
	}
	_, proc.Class = a.rules.For(string(agent.Claude), proc.Version)
	return proc, ctx.Err()
}

// unfit says why an entry does not prove that the process serves the pane. The
// pane's id alone is compared: the registry does not name the tmux server.
func (e entry) unfit(proc agent.Process, pane terminal.Pane) error {
	if id := e.pane(); id != "" && id != pane.ID {
		return fmt.Errorf("the process is registered in pane %s", id)
	}
	return e.misfit(proc)
}

// misfit is unfit without a pane.
func (e entry) misfit(proc agent.Process) error {
	switch {
	case e.Kind != kindInteractive:
		return fmt.Errorf("the process is registered as %.32q, not as interactive", e.Kind)
	case e.Cwd != proc.Cwd:
		return errors.New("the process is registered with another working directory")
	}
	return nil
}

// knownVersion keeps the version of a process, or gives the one that was kept.
func (a *Adapter) knownVersion(inc process.Incarnation, version string) string {
	key := inc.String()
	a.mu.Lock()
	defer a.mu.Unlock()
	if version == "" {
		return a.versions[key]
	}
	if len(a.versions) >= maxCached {
		clear(a.versions)
	}
	a.versions[key] = version
	return version
}

// home gives the real path of a process's configuration directory, by its own
// environment. Whatever is set counts, even nothing: a path that is not absolute
// begins in the working directory [measured]. The directory may not exist yet
// while the process starts for the first time.
func home(pid int, cwd string) (string, agent.FileID, error) {
	env, err := process.Environ(pid)
	if err != nil {
		return "", agent.FileID{}, err
	}
	dir, set := env["CLAUDE_CONFIG_DIR"]
	if !set {
		if !filepath.IsAbs(env["HOME"]) {
			return "", agent.FileID{}, fault.New(fault.ObservationUnavail, "find the home of the Claude Code process %d: its environment names none", pid)
		}
		dir = filepath.Join(env["HOME"], ".claude")
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(cwd, dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Clean(dir), agent.FileID{}, nil
	}
	if err != nil {
		return "", agent.FileID{}, fault.New(fault.ObservationUnavail, "find the home of the Claude Code process %d: %w", pid, err)
	}
	fi, err := os.Stat(real)
	if err != nil {
		return "", agent.FileID{}, fault.New(fault.ObservationUnavail, "read the home of the Claude Code process %d: %w", pid, err)
	}
	return real, journal.ID(fi), nil
}
