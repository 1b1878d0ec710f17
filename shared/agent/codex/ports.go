package codex

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex/control"
)

// errNoControl means that the port proof is off or impossible.
var errNoControl = errors.New("no control socket to ask")

// owner says whose a thread is by the port proof.
type owner int

const (
	silent owner = iota // no port, nobody listens, or the listener is no living Codex
	mine                // the process of the pane
	other               // another living Codex TUI
)

// owners asks the daemon at which port the TUI of each thread listens, and /proc
// who listens there (dryrun §1.2). The daemon's own process is checked to be the
// one that serves the socket.
func (a *Adapter) owners(ctx context.Context, proc agent.Process, threads []string, timeout time.Duration) (map[string]owner, error) {
	if !a.control || proc.Mode != agent.Daemon || proc.Daemon == nil || !proc.Daemon.Alive() || !proc.Inc.Alive() {
		return nil, errNoControl
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ports, err := control.Threads(ctx, filepath.Join(proc.Home, controlSocket), proc.Daemon.PID, threads)
	if err != nil {
		return nil, err
	}
	out := map[string]owner{}
	if len(ports) == 0 {
		return out, nil
	}
	listening, err := control.Listeners()
	if err != nil {
		return nil, err
	}
	var foreign []int // living TUIs other than ours, found once
	for thread, port := range ports {
		inode := listening[port]
		if inode == 0 {
			continue
		}
		held, err := control.Holds(proc.Inc.PID, inode)
		if err != nil {
			return nil, fmt.Errorf("look for the listener of a thread: %w", err)
		}
		if held {
			out[thread] = mine
			continue
		}
		if foreign == nil {
			foreign = terminals(proc.Inc.PID)
		}
		for _, pid := range foreign {
			if held, err := control.Holds(pid, inode); err == nil && held {
				out[thread] = other
			}
		}
	}
	return out, nil
}

// ours gives the held threads that the port proof gives to the process, sorted.
func (a *Adapter) ours(ctx context.Context, proc agent.Process, held holding, timeout time.Duration) ([]string, error) {
	threads := map[string]bool{}
	for t := range held.locks {
		threads[t] = true
	}
	for t := range held.rollouts {
		threads[t] = true
	}
	if len(threads) == 0 {
		return nil, nil
	}
	owned, err := a.owners(ctx, proc, slices.Sorted(maps.Keys(threads)), timeout)
	if err != nil {
		return nil, err
	}
	var out []string
	for t, o := range owned {
		if o == mine {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return out, nil
}

// terminals lists the living Codex TUIs other than pid.
func terminals(pid int) []int {
	out := []int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return out
	}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n == pid {
			continue
		}
		if _, ok := candidate(n); ok {
			out = append(out, n)
		}
	}
	return out
}
