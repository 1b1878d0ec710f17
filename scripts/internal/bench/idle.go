package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"drawbridge/shared/process"
)

const (
	idleFor  = 30 * time.Second
	idleRest = 4 * time.Second // for what the preparation set in motion
	idleLook = 5 * time.Second // between two looks of the baseline: as the sweep

	idleCPU    = 1.0  // per cent of one core
	idleMemory = 90.0 // MiB
)

// idle takes what bridge, watchd and outboxd use while they watch many panes in
// which nothing happens: processor time, that of the tmux clients they start
// included, and resident memory. The baselines are a loop that looks at the same
// panes as often as the sweep does, and three bare MCP servers.
func idle(ctx context.Context, s *stand) ([]Figure, error) {
	if err := s.grow(ctx, manyPanes); err != nil {
		return nil, err
	}
	panes := s.panes[:manyPanes]
	for _, p := range panes {
		s.byHand(p)
	}
	err := each(panes, func(p *pane) error {
		_, err := s.watch(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	programs, err := s.programs()
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, idleRest); err != nil {
		return nil, err
	}
	used, base, err := s.idleCPU(ctx, programs)
	if err != nil {
		return nil, err
	}
	var ours float64
	for _, pid := range programs {
		mib, err := resident(pid)
		if err != nil {
			return nil, err
		}
		ours += mib
	}
	bare, err := s.bareMemory(len(programs))
	if err != nil {
		return nil, err
	}
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / idleFor.Seconds() }
	return []Figure{
		newFigure("idle_cpu", "% of a core", 1, share(used), share(base)).oursMost(idleCPU),
		newFigure("idle_memory", "MiB", 1, ours, bare).oursMost(idleMemory),
	}, s.settled(ctx, panes)
}

// programs finds bridge and its two siblings.
func (s *stand) programs() ([]int, error) {
	out := []int{s.host.PID()}
	tree, err := process.Descendants(s.host.PID())
	if err != nil {
		return nil, err
	}
	for _, p := range tree {
		if p.Comm == "watchd" || p.Comm == "outboxd" {
			out = append(out, p.PID)
		}
	}
	if len(out) != 3 {
		return nil, fmt.Errorf("bridge has %d siblings, not 2", len(out)-1)
	}
	return out, nil
}

// idleCPU gives the processor time of the programs over idleFor, and that of the
// baseline's clients in the same time.
func (s *stand) idleCPU(ctx context.Context, programs []int) (used, base time.Duration, err error) {
	before, err := times(programs)
	if err != nil {
		return 0, 0, err
	}
	end := time.Now().Add(idleFor)
	for time.Now().Before(end) {
		look, err := s.bareLook(ctx)
		if err != nil {
			return 0, 0, err
		}
		base += look
		if err := rest(ctx, min(idleLook, time.Until(end))); err != nil {
			return 0, 0, err
		}
	}
	after, err := times(programs)
	return after - before, base, err
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// times gives the processor time of processes and of their ended children.
func times(pids []int) (time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	var sum time.Duration
	for _, pid := range pids {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return 0, fmt.Errorf("read the processor time of %d: %w", pid, err)
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		for _, f := range fields[11:15] { // utime, stime, cutime, cstime
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the processor time of %d: %w", pid, err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// resident gives the resident memory of a process in MiB.
func resident(pid int) (float64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of %d: %w", pid, err)
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory of %d: %w", pid, err)
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("read the memory of %d: it has ended", pid)
}

// bareMemory sums the memory of n bare MCP servers that have answered once.
func (s *stand) bareMemory(n int) (sum float64, err error) {
	for range n {
		srv, err := s.spawn(exec.Command(s.opts.Self, "role", roleEcho))
		if err != nil {
			return 0, err
		}
		mib, err := resident(srv.cmd.Process.Pid)
		if err = srv.end(err); err != nil {
			return 0, err
		}
		sum += mib
	}
	return sum, nil
}
