package claude

import (
	"context"
	"errors"
	"fmt"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
)

// isNameTooLong reports that a computed name is longer than the file system takes.
func isNameTooLong(err error) bool { return errors.Is(err, errNameTooLong) }

// Identify says what is known of the pane's session without typing: the registry
// names it, and nobody else may have it open (claude §1).
func (a *Adapter) Identify(ctx context.Context, proc agent.Process) (agent.Identity, error) {
	out := agent.Identity{State: agent.Unavailable, Activity: agent.ActivityUnknown}
	if !proc.Inc.Alive() {
		out.Reason = "the process is not proven alive"
		return out, nil
	}
	e, err := a.entry(ctx, proc)
	switch {
	case errors.Is(err, errAbsent) || errors.Is(err, errForeign):
		out.Reason = "the process has not registered its session yet: it is starting, or a dialog stands before it"
		return out, nil
	case err != nil:
		return out, fault.New(fault.ObservationUnavail, "read what Claude Code registered of process %d: %w", proc.Inc.PID, err)
	}
	if err := e.misfit(proc); err != nil {
		out.Reason = err.Error()
		return out, nil
	}
	holders, err := a.live(ctx, proc.Home, e.Session)
	if err != nil {
		return out, fault.New(fault.ObservationUnavail, "read the sessions registry of Claude Code: %w", err)
	}
	at, found, err := position(ctx, proc.Home, e.Cwd, e.Session)
	switch {
	case errors.Is(err, errSeveral):
		out.Reason = err.Error()
		return out, nil
	case err != nil:
		return out, fault.New(fault.ObservationUnavail, "find the transcript of a session: %w", err)
	case found:
		out.Files = []agent.Position{at}
	}
	if n := len(holders); n > 1 {
		out.State = agent.Ambiguous
		out.Reason = fmt.Sprintf("%d living processes have this session open", n)
		return out, nil
	}
	out.State, out.ThreadID, out.Activity = agent.Resolved, e.Session, e.activity()
	return out, nil
}

// activity is what the status says of a turn. While a panel of its own is open,
// the process waits and no turn runs: the screen decides then.
func (e entry) activity() agent.Activity {
	switch {
	case e.Status == statusIdle:
		return agent.ActivityIdle
	case e.Status == statusBusy, e.Status == statusWaiting && e.Waiting != waitingPanel:
		return agent.ActivityWorking
	}
	return agent.ActivityUnknown
}

// Current gives the open turn of the pane's session: the last prompt of its
// transcript, while the registry says that the process works and the turn has no
// end on record.
func (a *Adapter) Current(ctx context.Context, proc agent.Process) (agent.Task, bool, error) {
	if _, err := a.file(proc.Version); err != nil {
		return agent.Task{}, false, err
	}
	id, err := a.Identify(ctx, proc)
	if err != nil || id.State != agent.Resolved || id.Activity != agent.ActivityWorking || len(id.Files) != 1 {
		return agent.Task{}, false, err
	}
	task, ok, err := lastPrompt(ctx, proc, id.Files[0])
	if err != nil || !ok {
		return agent.Task{}, false, err
	}
	p, err := a.Progress(ctx, task, agent.Position{})
	if err != nil {
		return agent.Task{}, false, err
	}
	return task, p.State == agent.Open, nil
}
