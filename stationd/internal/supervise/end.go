package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/namespace"
)

// Left is a process that did not end.
type Left struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// Cleanup is the proof that End gives, or what it lacks.
type Cleanup struct {
	Signalled bool          // the shim still ran, and was killed by its pidfd
	Took      time.Duration // until nothing was left
	Left      []Left
}

// End kills the shim, and with it everything in its pid namespace, and the cgroup
// where there is one; then it waits up to 5 s for the proof that nothing is left.
// Without it the error is fault.CleanupFailed, and End may be called again. The
// shim's client is closed.
func (p *Process) End(ctx context.Context) (Cleanup, error) {
	began := time.Now()
	var out Cleanup
	err := process.Signal(p.inc, unix.SIGKILL)
	switch {
	case err == nil:
		out.Signalled = true
	case !errors.Is(err, process.ErrGone):
		return out, fault.New(fault.CleanupFailed, "end the shim: %w", err)
	}
	if p.cgroup != "" {
		_ = os.WriteFile(filepath.Join(p.cgroup, "cgroup.kill"), []byte("1"), 0) // the proof below tells
	}
	if p.client != nil {
		_ = p.client.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	t := time.NewTicker(endPoll)
	defer t.Stop()
	for {
		if out.Left, err = p.left(); err == nil && len(out.Left) == 0 {
			p.reaped()
			p.unpin()
			p.dropCgroup()
			out.Took = time.Since(began)
			return out, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			out.Took = time.Since(began)
			if err == nil {
				err = fmt.Errorf("%d processes are left", len(out.Left))
			}
			return out, fault.New(fault.CleanupFailed, "prove that the shim's namespace is empty: %w", err)
		}
	}
}

// reaped waits for the shim's parent to have noticed its end: that is this process,
// unless it was adopted.
func (p *Process) reaped() {
	select {
	case <-p.done:
	case <-p.alone:
		if p.cmd != nil {
			_ = p.cmd.Wait()
		}
	}
	p.watch.Wait()
}

// left lists what is not gone yet: the shim itself, and whatever the machine shows
// of its namespace or cgroup. The kernel ends a namespace's first process only
// after all others, so once that is gone the rest is a second proof.
func (p *Process) left() ([]Left, error) {
	gone, known := p.inc.Gone()
	if !known {
		return nil, process.ErrUnproven
	}
	var out []Left
	if !gone {
		out = append(out, Left{p.inc.PID, "station-shim"})
	}
	var seen []Left
	if p.space != nil { // else the number may be another namespace's by now
		var err error
		if seen, err = members(p.birth.Namespace); err != nil {
			return nil, err
		}
	}
	for _, m := range seen {
		if m.PID != p.inc.PID {
			out = append(out, m)
		}
	}
	if p.cgroup != "" && len(out) == 0 {
		populated, err := cgroupPopulated(p.cgroup)
		if err != nil {
			return nil, err
		}
		if populated {
			out = append(out, Left{0, "a process in the attempt's cgroup"})
		}
	}
	return out, nil
}

// members lists the processes of a pid namespace that are not dead, as far as this
// user may see.
func members(id uint64) ([]Left, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []Left
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if ns, err := namespace.ID(name, "pid"); err != nil || ns != id {
			continue
		}
		if info, err := process.Stat(pid); err == nil && !info.Dead() {
			out = append(out, Left{pid, info.Comm})
		}
	}
	return out, nil
}

// Kill ends a shim that does not answer, or proves that it is gone, as End does. The
// process that was recorded is signalled only while it is the first of a pid
// namespace of its own; else the error is fault.ShimLost.
func Kill(ctx context.Context, o Options, runtime string, recorded process.Incarnation) (Cleanup, error) {
	p := &Process{inc: recorded, runtime: runtime, done: make(chan struct{}), alone: make(chan struct{}), said: &tail{}}
	gone, known := recorded.Gone()
	if !known {
		return Cleanup{}, fault.New(fault.CleanupFailed, "end the shim %d: %w", recorded.PID, process.ErrUnproven)
	}
	if !gone {
		if err := p.pinFound(); err != nil {
			return Cleanup{}, fault.New(fault.ShimLost, "end the shim %d: %w", recorded.PID, err)
		}
	}
	if group, ok := findCgroup(recorded.PID, groupName(runtime)); ok && !gone {
		p.cgroup = group
	} else if o.Cgroup != "" {
		p.cgroup = filepath.Join(o.Cgroup, groupPrefix+groupName(runtime)) // it may not exist
	}
	p.follow()
	out, err := p.End(ctx)
	if err != nil {
		p.cancel()
		p.watch.Wait()
		p.unpin()
	}
	return out, err
}

// pinFound keeps the pid namespace of a process that is the first one of it.
func (p *Process) pinFound() error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", p.inc.PID))
	if err != nil {
		return fmt.Errorf("pin its namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino == p.inc.Namespace || !p.inc.Alive() {
		f.Close()
		return errors.New("pin its namespace: it is no shim")
	}
	p.birth.Namespace, p.space = st.Ino, f
	return nil
}
