package handoff

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// decisions adds to a row what may be decided in it: the approval of the Turn that
// owns the pane, or of a human's own task. An offer is minted by status alone.
func (d *Desk) decisions(ctx context.Context, s *sighting, owner *store.Turn, watched bool, r *Row) error {
	switch {
	case owner != nil && s.reading.State == agent.Approval:
		x, err := d.currentDispatch(ctx, *owner)
		if err != nil {
			return err
		}
		found, why := d.turnDialog(ctx, s, *owner, x)
		r.ApprovalState = judged(s, found, why)
		if why == "" {
			r.Actions["approve"] = approveAction("turn_id", owner.ID)
		}
	case owner != nil && d.respondable(s, *owner):
		open, err := d.Store.PromptsOpen(ctx, owner.ID)
		if err != nil {
			return err
		}
		if !open {
			r.Actions["respond"] = respondAction(*owner)
		}
	case owner != nil:
	case s.reading.State == agent.Approval && !watched:
		found, why := d.loneDialog(ctx, s)
		r.ApprovalState = judged(s, found, why)
		if why == "" {
			r.Actions["approve"] = approveAction("terminal_id", r.ID)
		}
	}
	return nil
}

// loneDialog judges the dialog of a task that no Turn owns.
func (d *Desk) loneDialog(ctx context.Context, s *sighting) (dialog, string) {
	if s.proc.Agent != agent.Codex {
		return dialog{}, "only a turn's approvals of " + title(s.proc.Agent) + " are decided; the user decides in the pane"
	}
	if err := d.unowned(ctx, s); err != nil {
		return dialog{}, fault.CleanLine(err.Error())
	}
	task, err := d.terminalTask(ctx, s)
	if err != nil {
		return dialog{}, fault.CleanLine(err.Error())
	}
	found, why, err := d.dialogOf(ctx, s, task)
	if err != nil {
		why = fault.CleanLine(err.Error())
	}
	return found, why
}

// judged is an ApprovalState with what the agent's records add to the screen.
func judged(s *sighting, x dialog, why string) ApprovalState {
	a := approvalState(s)
	if x.call.ID != "" {
		a.Command = clip(x.call.Command, maxText)
	}
	if why != "" {
		a.Reason = why
		return a
	}
	a.Approvable, a.DecisionMode = true, decisionKeys
	a.Reason = "the user decides; approve presses the keys for exactly this prompt"
	return a
}

func approveAction(name, id string) Action {
	return Action{
		Tool: toolName("approve"), Arguments: map[string]any{name: id}, RequiresUserIntent: true,
		RequiresConfirmation: true, RequiresFreshStatus: true, BeforeCall: "call status for it and show the user the command",
	}
}

func respondAction(t store.Turn) Action {
	a := turnAction("respond", t)
	a.MissingRequired, a.RequiresUserIntent = []string{"request"}, true
	return a
}

// respondable reports whether an answer may be typed for a Turn: it waits for its
// controller, and its agent stands at an empty composer without any dialog.
func (d *Desk) respondable(s *sighting, t store.Turn) bool {
	return t.Status == store.TurnWaitingForController && s.promptable() == nil && d.allowed(s) == nil && s.shows(t, "answer") == nil
}

// decide adds to a Turn's status what may be decided now, and mints the offer.
func (d *Desk) decide(ctx context.Context, res *TurnStatus, s *sighting, t store.Turn, x store.Dispatch) error {
	if s == nil {
		return nil
	}
	if s.reading.State == agent.Approval {
		found, why := d.turnDialog(ctx, s, t, x)
		state := judged(s, found, why)
		res.Terminal.Approval = &state
		if why == "" && d.Store.Writable() == nil { // a Store that is only read has no offers
			if err := d.offer(ctx, offerTurn, t.ID, found); err != nil {
				return err
			}
			res.Actions["approve"] = approveAction("turn_id", t.ID)
		}
	}
	if d.respondable(s, t) {
		open, err := d.Store.PromptsOpen(ctx, t.ID)
		if err != nil {
			return err
		}
		if !open {
			res.Actions["respond"] = respondAction(t)
		}
	}
	return nil
}

// decideTerminal is decide for a raw terminal.
func (d *Desk) decideTerminal(ctx context.Context, res *TerminalLook, s *sighting) error {
	if s.reading.State != agent.Approval {
		return nil
	}
	found, why := d.loneDialog(ctx, s)
	state := judged(s, found, why)
	res.Status.Approval = &state
	if why != "" || d.Store.Writable() != nil {
		return nil
	}
	if err := d.offer(ctx, offerTerminal, s.id(), found); err != nil {
		return err
	}
	res.Actions["approve"] = approveAction("terminal_id", s.id())
	return nil
}
