package codex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// Identify says what is known of the pane's thread without typing (codex §4).
//
// In process, one writer lock is the thread, even before its first message; more
// than one (after /clear or /resume) are candidates. With the daemon the thread
// is never resolved here: the port map names a pane's own threads but is silent,
// or names the wrong pane, where a pane joined another one's thread (dryrun §1.3).
func (a *Adapter) Identify(ctx context.Context, proc agent.Process) (agent.Identity, error) {
	out := agent.Identity{State: agent.Unavailable, Activity: agent.ActivityUnknown}
	h := holder(proc)
	if !h.Alive() {
		out.Reason = "the process that holds the threads is not proven alive"
		return out, nil
	}
	f, err := a.file(proc.Version)
	if err != nil {
		out.Reason = err.Error()
		return out, nil
	}
	if proc.Mode == agent.Daemon {
		return a.inDaemon(ctx, f, proc)
	}
	held, err := holdings(h.PID, proc.Home)
	if err != nil {
		return out, fault.New(fault.ObservationUnavail, "list the threads of Codex: %w", err)
	}
	if out.Files, err = a.positions(ctx, f, held, ""); err != nil {
		return out, fault.New(fault.ObservationUnavail, "read the rollouts of Codex: %w", err)
	}
	switch {
	case len(held.locks) == 0:
		out.Reason = "the process holds no thread yet"
	case len(held.locks) > 1:
		out.State = agent.Ambiguous
		out.Reason = fmt.Sprintf("the process holds %d threads; only /status names the current one", len(held.locks))
	default:
		for thread := range held.locks {
			out.State, out.ThreadID = agent.Resolved, thread
		}
		out.Files = slices.DeleteFunc(out.Files, func(p agent.Position) bool { return p.ThreadID != out.ThreadID })
		if out.Activity, err = a.activity(ctx, f, proc, held.rollouts[out.ThreadID], out.ThreadID); err != nil {
			out.Activity, out.Reason = agent.ActivityUnknown, "the rollout cannot be read to its last turn"
		}
	}
	return out, nil
}

// daemonLook is what was last seen of one daemon; it is the same for all its panes.
type daemonLook struct {
	sync.Mutex
	at       time.Time
	identity agent.Identity
}

// inDaemon looks at the daemon once for all panes that are listed together.
func (a *Adapter) inDaemon(ctx context.Context, f *rule.File, proc agent.Process) (agent.Identity, error) {
	key := holder(proc).String() + " " + proc.Home
	a.mu.Lock()
	look := a.daemons[key]
	if look == nil {
		if len(a.daemons) >= maxCached {
			clear(a.daemons)
		}
		look = &daemonLook{}
		a.daemons[key] = look
	}
	a.mu.Unlock()
	look.Lock()
	defer look.Unlock()
	if !look.at.IsZero() && time.Since(look.at) < daemonLookLife {
		out := look.identity
		out.Files = slices.Clone(out.Files)
		return out, nil
	}
	out := agent.Identity{State: agent.Unavailable, Activity: agent.ActivityUnknown, Reason: "the background server has no thread loaded"}
	held, err := holdings(holder(proc).PID, proc.Home)
	if err != nil {
		return out, fault.New(fault.ObservationUnavail, "list the threads of Codex: %w", err)
	}
	if out.Files, err = a.positions(ctx, f, held, ""); err != nil {
		return out, fault.New(fault.ObservationUnavail, "read the rollouts of Codex: %w", err)
	}
	if len(held.locks)+len(held.rollouts) > 0 {
		out.State = agent.Ambiguous
		out.Reason = "the background server holds the threads of all panes; nothing names this pane's before a request"
	}
	look.at, look.identity = time.Now(), out
	out.Files = slices.Clone(out.Files)
	return out, nil
}

// activity is idle for a thread without a rollout: its first message makes one.
func (a *Adapter) activity(ctx context.Context, f *rule.File, proc agent.Process, path, thread string) (agent.Activity, error) {
	if path == "" {
		return agent.ActivityIdle, nil
	}
	turn, err := a.lastTurn(ctx, f, path, thread)
	if err != nil {
		return agent.ActivityUnknown, err
	}
	if a.living(turn, proc) {
		return agent.ActivityWorking, nil
	}
	return agent.ActivityIdle, nil
}

// positions gives the present end of the held rollouts, of one thread or of all,
// in the order of their threads. One that vanishes meanwhile is left out.
func (a *Adapter) positions(ctx context.Context, f *rule.File, held holding, thread string) ([]agent.Position, error) {
	var out []agent.Position
	for _, t := range slices.Sorted(maps.Keys(held.rollouts)) {
		if thread != "" && t != thread {
			continue
		}
		p, err := position(ctx, f, held.rollouts[t], t)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Current gives the open turn of the pane's thread. In process every held rollout
// is this pane's; with the daemon only threads that the port proof gives to it are.
func (a *Adapter) Current(ctx context.Context, proc agent.Process) (agent.Task, bool, error) {
	h := holder(proc)
	if !h.Alive() {
		return agent.Task{}, false, nil
	}
	f, err := a.file(proc.Version)
	if err != nil {
		return agent.Task{}, false, err
	}
	held, err := holdings(h.PID, proc.Home)
	if err != nil {
		return agent.Task{}, false, fault.New(fault.ObservationUnavail, "list the threads of Codex: %w", err)
	}
	threads := slices.Sorted(maps.Keys(held.rollouts))
	if proc.Mode == agent.Daemon {
		if threads, _, err = a.ours(ctx, proc, held, decideTimeout); err != nil {
			return agent.Task{}, false, nil // no proof, no task
		}
	}
	task, n := agent.Task{}, 0
	for _, t := range threads {
		path := held.rollouts[t]
		if path == "" {
			continue
		}
		turn, err := a.lastTurn(ctx, f, path, t)
		if err != nil {
			return agent.Task{}, false, fault.New(fault.ObservationUnavail, "read the last turn of a rollout: %w", err)
		}
		if a.living(turn, proc) {
			n++
			task = agent.Task{Version: 1, Process: proc, ThreadID: t, TurnID: turn.id, Start: turn.start}
		}
	}
	return task, n == 1, nil
}
