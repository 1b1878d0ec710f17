package handoff

import (
	"context"
	"slices"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// PaneOfThread gives the terminal id of the one pane whose agent is proven,
// without typing, to hold this native thread now (lower case).
func (d *Desk) PaneOfThread(ctx context.Context, thread string) (string, error) {
	return d.onlyPane(ctx, "holds the thread", func(s *sighting) bool {
		return thread != "" && s.identity.State == agent.Resolved && s.identity.ThreadID == thread
	})
}

// PaneOfProcess gives the terminal id of the one pane whose agent process is one
// of pids.
func (d *Desk) PaneOfProcess(ctx context.Context, pids []int) (string, error) {
	return d.onlyPane(ctx, "runs the process", func(s *sighting) bool { return slices.Contains(pids, s.proc.Inc.PID) })
}

// holds refuses a pane that is not proven to hold the thread; "" is any.
func (s *sighting) holds(thread string) error {
	if thread == "" || s.identity.State == agent.Resolved && s.identity.ThreadID == thread {
		return nil
	}
	return fault.New(fault.IdentityUnverified, "act on %s: the pane does not hold the thread that was meant", s.id()).Safe()
}

// shows refuses a pane that is proven to show another thread than a Turn's: a
// person took it for something else, and a key would reach that.
func (s *sighting) shows(t store.Turn, doing string) error {
	now := s.currentThread()
	if now == "" || t.NativeThreadID == "" || now == t.NativeThreadID {
		return nil
	}
	return fault.New(fault.TerminalChanged, "%s %s: its pane shows another thread now", doing, t.ID).With("turn_id", t.ID).
		WithHint("call list: it shows what a person switched to, and what becomes of the turn").Safe()
}

func (d *Desk) onlyPane(ctx context.Context, what string, is func(*sighting) bool) (string, error) {
	all, problems, err := d.survey(ctx, false)
	if err != nil {
		return "", err
	}
	var hit *sighting
	for _, s := range all {
		switch {
		case !is(s):
		case hit != nil:
			return "", fault.New(fault.TerminalAmbiguous, "find a pane: %s and %s both fit", hit.id(), s.id()).Safe()
		default:
			hit = s
		}
	}
	if hit != nil {
		return hit.id(), nil
	}
	f := fault.New(fault.TerminalNotFound, "find a pane: none %s", what).Safe()
	if len(problems) > 0 {
		f = f.With("terminal_scan_error", problems[0])
	}
	return "", f
}
