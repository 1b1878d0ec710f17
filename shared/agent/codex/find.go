package codex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

// exeName is the base name of the native binary.
const exeName = "codex"

// subcommands are those that are not the TUI of one conversation. resume and fork
// are; any other first word is a prompt.
var subcommands = []string{
	"exec", "e", "review", "login", "logout", "mcp", "mcp-server", "plugin", "app-server", "remote-control",
	"completion", "update", "doctor", "sandbox", "debug", "apply", "a", "queue", "archive", "delete", "unarchive",
	"migrate-rollouts", "migrate-nfs-db", "cloud", "exec-server", "features", "proto", "responses-api-proxy", "stdio-to-uds", "help",
}

// valued are the flags whose value is the next argument.
var valued = []string{
	"-c", "--config", "--enable", "--disable", "--remote", "--remote-auth-token-env", "-i", "--image", "-m", "--model",
	"--local-provider", "-p", "--profile", "-s", "--sandbox", "-C", "--cd", "--add-dir", "-a", "--ask-for-approval",
}

// arguments is what an argv says.
type arguments struct {
	tui      bool // the interactive program, not a subcommand and not a helper
	noDaemon bool
	remote   bool // threads live on a server that is not ours to read
}

// parseArgs reads an argv of the codex binary. Its helpers (the command sandbox,
// apply_patch) are the same binary under another name in argv[0].
func parseArgs(argv []string) arguments {
	if len(argv) == 0 || filepath.Base(argv[0]) != exeName {
		return arguments{}
	}
	out := arguments{tui: true}
	first := ""
	for i := 1; i < len(argv); i++ {
		arg := argv[i]
		if arg == "--" {
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			if first == "" {
				first = arg
			}
			continue
		}
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--no-daemon":
			out.noDaemon = true
		case "--remote":
			out.remote = true
		case "-h", "--help", "-V", "--version":
			out.tui = false
		}
		if slices.Contains(valued, arg) {
			i++
		}
	}
	if slices.Contains(subcommands, first) {
		out.tui = false
	}
	return out
}

// Find gives the Codex TUI in the foreground of the pane (codex §1).
func (a *Adapter) Find(ctx context.Context, pane terminal.Pane) (agent.Process, error) {
	if pane.Dead || pane.PID <= 0 {
		return agent.Process{}, agent.ErrNoAgent
	}
	var found []process.Info
	var args arguments
	// What a TUI starts is never the agent of the pane, whatever it looks like: a
	// child between fork and exec has the TUI's own binary and arguments (seen), and
	// the daemon stays a child of the TUI that started it.
	err := process.Walk(pane.PID, func(info process.Info) bool {
		if ctx.Err() != nil {
			return false
		}
		p, ok := candidate(info.PID)
		if ok {
			found, args = append(found, info), p
		}
		return !ok
	})
	switch {
	case ctx.Err() != nil:
		return agent.Process{}, ctx.Err()
	case err != nil:
		return agent.Process{}, agent.ErrNoAgent
	}
	switch {
	case len(found) == 0:
		return agent.Process{}, agent.ErrNoAgent
	case len(found) > 1:
		return agent.Process{}, agent.ErrSeveralAgents
	}
	tty, err := process.Device(pane.TTY)
	if err != nil || found[0].TTY != tty || !found[0].Foreground() {
		return agent.Process{}, agent.ErrNoAgent
	}
	proc, err := a.describe(ctx, found[0], args)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return agent.Process{}, agent.ErrNoAgent // ended while we looked
	}
	return proc, err
}

// candidate reports whether pid is a TUI of Codex.
func candidate(pid int) (arguments, bool) {
	path, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "exe"))
	if err != nil || filepath.Base(strings.TrimSuffix(path, " (deleted)")) != exeName {
		return arguments{}, false
	}
	argv, err := process.Cmdline(pid)
	if err != nil {
		return arguments{}, false
	}
	args := parseArgs(argv)
	return args, args.tui
}

// describe adds version, home, directory and mode to a process.
func (a *Adapter) describe(ctx context.Context, info process.Info, args arguments) (agent.Process, error) {
	inc, err := process.Of(info.PID)
	if err != nil {
		return agent.Process{}, err
	}
	if inc.Start != info.Start {
		return agent.Process{}, agent.ErrNoAgent
	}
	proc := agent.Process{Agent: agent.Codex, Inc: inc, Mode: agent.InProcess}
	if proc.Cwd, err = process.Cwd(inc.PID); err != nil {
		return agent.Process{}, err
	}
	if proc.Home, err = home(inc.PID); err != nil {
		return agent.Process{}, err
	}
	if proc.HomeID, err = statID(proc.Home); err != nil {
		return agent.Process{}, fault.New(fault.ObservationUnavail, "read the home of the Codex process %d: %w", inc.PID, err)
	}
	exe, err := process.Exe(inc.PID)
	if err != nil {
		return agent.Process{}, err
	}
	proc.Exe = exe.Path
	if !exe.Deleted {
		proc.Version = a.version(ctx, inc.PID, exe)
	}
	_, proc.Class = a.rules.For(string(agent.Codex), proc.Version)
	if args.remote {
		proc.Class = agent.Refused // its threads are on a server that nobody here can read
		return proc, ctx.Err()
	}
	held, err := holdings(inc.PID, proc.Home)
	if err != nil {
		return agent.Process{}, err
	}
	if len(held.locks) == 0 && !args.noDaemon {
		if d, err := readDaemon(proc.Home); err == nil {
			proc.Mode, proc.Daemon = agent.Daemon, &d
		}
	}
	return proc, ctx.Err()
}

// home gives the real path of a process's CODEX_HOME.
func home(pid int) (string, error) {
	env, err := process.Environ(pid)
	if err != nil {
		return "", err
	}
	dir := env["CODEX_HOME"]
	if dir == "" {
		if env["HOME"] == "" {
			return "", fault.New(fault.ObservationUnavail, "find the home of the Codex process %d: its environment names none", pid)
		}
		dir = filepath.Join(env["HOME"], ".codex")
	}
	if !filepath.IsAbs(dir) {
		return "", fault.New(fault.ObservationUnavail, "find the home of the Codex process %d: its CODEX_HOME is not an absolute path", pid)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fault.New(fault.ObservationUnavail, "find the home of the Codex process %d: %w", pid, err)
	}
	return real, nil
}

// exeKey names one state of one binary.
type exeKey struct {
	dev, ino uint64
	size     int64
	mtime    int64
}

// versionRun is one run of --version, shared by all who ask meanwhile.
type versionRun struct {
	done    chan struct{}
	version string
	at      time.Time
}

var versionLine = regexp.MustCompile(`^codex-cli ([0-9A-Za-z.+-]{1,64})\r?\n?$`)

// version runs the binary behind /proc/PID/exe once per state of the file, for
// whoever asks first. "" means unknown.
func (a *Adapter) version(ctx context.Context, pid int, exe process.Executable) string {
	key := exeKey{exe.Dev, exe.Ino, exe.Size, exe.MTime.UnixNano()}
	a.mu.Lock()
	run := a.versions[key]
	mine := false
	if run != nil {
		select {
		case <-run.done:
			if run.version == "" && time.Since(run.at) > versionRetry {
				run = nil
			}
		default:
		}
	}
	if run == nil {
		if len(a.versions) >= maxCached {
			clear(a.versions)
		}
		run, mine = &versionRun{done: make(chan struct{})}, true
		a.versions[key] = run
	}
	a.mu.Unlock()
	if mine {
		run.version = a.runVersion(ctx, pid)
		run.at = time.Now()
		if ctx.Err() != nil && run.version == "" { // our caller gave up: no verdict on the binary
			a.mu.Lock()
			if a.versions[key] == run {
				delete(a.versions, key)
			}
			a.mu.Unlock()
		}
		close(run.done)
	}
	select {
	case <-run.done:
		return run.version
	case <-ctx.Done():
		return ""
	}
}

// runVersion asks the binary itself. Its environment names no home, so it finds
// nothing to write to.
func (a *Adapter) runVersion(ctx context.Context, pid int) string {
	res := process.Run(ctx, process.Spec{
		Path: fmt.Sprintf("/proc/%d/exe", pid), Args: []string{"--version"},
		Env: []string{"HOME=/nonexistent", "CODEX_HOME=/nonexistent", "LANG=C"}, MaxStdout: 4 << 10, MaxStderr: 64 << 10,
		Timeout: versionTimeout, WaitDelay: 100 * time.Millisecond,
	})
	m := versionLine.FindSubmatch(res.Stdout)
	if !res.OK() || m == nil {
		a.log.Warn("ask Codex for its version", "pid", pid, "exit", res.Exit, "limit", string(res.Limit), "err", res.Err)
		return ""
	}
	return string(m[1])
}

// holder is the process that has the threads.
func holder(p agent.Process) process.Incarnation {
	if p.Mode == agent.Daemon {
		if p.Daemon == nil {
			return process.Incarnation{}
		}
		return *p.Daemon
	}
	return p.Inc
}

func fileID(fi fs.FileInfo) agent.FileID {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return agent.FileID{Dev: st.Dev, Ino: st.Ino}
	}
	return agent.FileID{}
}

func errVersion(version string) error {
	if version == "" {
		return fault.New(fault.VersionUnsupported, "read the records of Codex: its version is unknown")
	}
	return fault.New(fault.VersionUnsupported, "read the records of Codex %.32s: no rule file covers this version", version)
}
