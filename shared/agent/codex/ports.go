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

// dial connects to the daemon of a process; what serves the socket is checked to
// be that very daemon. It is an error to ask for a process that is gone.
func (a *Adapter) dial(ctx context.Context, proc agent.Process) (*control.Client, error) {
	if !a.control || proc.Mode != agent.Daemon || proc.Daemon == nil || !proc.Daemon.Alive() || !proc.Inc.Alive() {
		return nil, errNoControl
	}
	return control.Dial(ctx, filepath.Join(proc.Home, controlSocket), proc.Daemon.PID)
}

// owners asks the daemon at which port the TUI of each thread listens, and /proc
// who listens there (dryrun §1.2).
func owners(ctx context.Context, c *control.Client, proc agent.Process, threads []string) (map[string]owner, error) {
	ports, err := c.Ports(ctx, threads)
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

// whose gives the owners of a few threads, for a decision.
func (a *Adapter) whose(ctx context.Context, proc agent.Process, threads []string) (map[string]owner, error) {
	ctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	c, err := a.dial(ctx, proc)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return owners(ctx, c, proc, threads)
}

// ours gives the held threads that the port proof gives to the process, sorted,
// and whether the daemon says of one of them that it works.
func (a *Adapter) ours(ctx context.Context, proc agent.Process, held holding, timeout time.Duration) (threads []string, active bool, err error) {
	all := map[string]bool{}
	for t := range held.locks {
		all[t] = true
	}
	for t := range held.rollouts {
		all[t] = true
	}
	if len(all) == 0 {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := a.dial(ctx, proc)
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	owned, err := owners(ctx, c, proc, slices.Sorted(maps.Keys(all)))
	if err != nil {
		return nil, false, err
	}
	for t, o := range owned {
		if o != mine {
			continue
		}
		threads = append(threads, t)
		if status, err := c.Status(ctx, t); err == nil && status.Type == control.Active {
			active = true
		}
	}
	slices.Sort(threads)
	return threads, active, nil
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
