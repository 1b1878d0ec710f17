package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
)

const killSignal = unix.SIGKILL

// Sweep takes down the rigs below base whose owner has died.
func Sweep(ctx context.Context, base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return fmt.Errorf("sweep %s: %w", base, err)
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			break
		}
		dir := filepath.Join(base, e.Name())
		raw, err := os.ReadFile(filepath.Join(dir, ownerFile))
		if err != nil {
			continue // not a rig, or one that is being made
		}
		var owner process.Incarnation
		if json.Unmarshal(raw, &owner) != nil {
			continue
		}
		if gone, known := owner.Gone(); !gone || !known {
			continue
		}
		if err := takeDown(dir); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// takeDown ends every process that belongs to the rig in dir and removes it.
// Only processes that can be tied to the directory are touched: the tmux server
// behind its socket, and those whose agent home lies in it.
func takeDown(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandWait)
	defer cancel()
	defer removeClaudeSockets(Members(dir))
	socket := filepath.Join(dir, "tmux")
	if _, err := os.Stat(socket); err == nil {
		cmd := exec.CommandContext(ctx, "tmux", "-S", socket, "kill-server")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		_ = cmd.Run() // the server may have ended with its last session
	}
	var left []process.Incarnation
	for deadline := time.Now().Add(exitWait); ; {
		left = Members(dir)
		if len(left) == 0 {
			break
		}
		now := time.Now()
		if now.After(deadline) {
			return fmt.Errorf("%d processes of %s do not end, the first is %s", len(left), dir, left[0])
		}
		// Agents got SIGHUP with their terminal. What is left after a moment is a
		// background server, or an agent that hangs.
		sig := unix.SIGTERM
		if deadline.Sub(now) < exitWait-5*time.Second {
			sig = unix.SIGKILL
		}
		if deadline.Sub(now) < exitWait-500*time.Millisecond {
			for _, inc := range left {
				_ = process.Signal(inc, sig) // it may have ended meanwhile
			}
			time.Sleep(4 * pollEvery)
		}
		time.Sleep(pollEvery)
	}
	removeSockets(dir)
	removeClaudeWork(dir)
	return remove(dir)
}

// removeSockets deletes what Codex's background servers kept outside their
// homes: the socket of a home is a link into a directory below /tmp.
func removeSockets(dir string) {
	links, err := filepath.Glob(filepath.Join(dir, "homes", "*", "app-server-control", "*.sock"))
	if err != nil {
		return // the pattern is right; there is no other error
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		private := filepath.Dir(target)
		if filepath.Dir(private) == fmt.Sprintf("/tmp/codex-daemon-%d", os.Getuid()) {
			_ = os.RemoveAll(private)        // remains are harmless
			_ = os.Remove(private + ".lock") // the same
		}
	}
}

// removeClaudeSockets deletes what Claude Code processes left below /tmp.
func removeClaudeSockets(members []process.Incarnation) {
	for _, inc := range members {
		if gone, known := inc.Gone(); gone && known {
			_ = os.Remove(claudeSocket(inc.PID)) // most never had one
		}
	}
}

// removeClaudeWork deletes what Claude Code kept below /tmp for the work trees of a
// rig, each below the tree's path with dashes for whatever is no letter or digit.
func removeClaudeWork(dir string) {
	slug := notPlain.ReplaceAllString(filepath.Join(dir, "trees"), "-")
	found, err := filepath.Glob(fmt.Sprintf("/tmp/claude-%d/%s-*", os.Getuid(), slug))
	if err != nil {
		return // the pattern is right; there is no other error
	}
	for _, work := range found {
		_ = os.RemoveAll(work) // remains are harmless
	}
}

var notPlain = regexp.MustCompile(`[^A-Za-z0-9]`)

// Members lists the living processes whose environment or program ties them to
// dir: CODEX_HOME or HOME below it, or a program below it (Codex copies its
// background server into its home). Programs that get HOME from Rig.Home are
// members too.
func Members(dir string) []process.Incarnation {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	prefix := dir + "/"
	var out []process.Incarnation
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if !belongs(pid, prefix) {
			continue
		}
		info, err := process.Stat(pid)
		if err != nil || info.Dead() {
			continue
		}
		if inc, err := process.Of(pid); err == nil {
			out = append(out, inc)
		}
	}
	return out
}

func belongs(pid int, prefix string) bool {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasPrefix(exe, prefix) {
		return true
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for _, name := range []string{"CODEX_HOME=", "HOME="} {
		if bytes.HasPrefix(env, []byte(name+prefix)) || bytes.Contains(env, []byte("\x00"+name+prefix)) {
			return true
		}
	}
	return false
}
