package handoff

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// TransitionView is an unsettled transition in list.
type TransitionView struct {
	ID         string  `json:"transition_id"`
	Operation  string  `json:"operation"`
	Status     string  `json:"status"`
	TerminalID string  `json:"terminal_id,omitempty"`
	Agent      string  `json:"agent,omitempty"`
	Reason     string  `json:"reason,omitempty"`
	Actions    Actions `json:"available_actions,omitempty"`
}

// transitionView shows one; closing it looks at the pane and types nothing.
func transitionView(tr store.Transition) TransitionView {
	return TransitionView{
		ID: tr.ID, Operation: tr.Operation, Status: tr.Status, TerminalID: tr.TerminalID, Agent: tr.Agent, Reason: tr.Error,
		Actions: Actions{"close": {
			Tool: toolName("close"), RequiresUserIntent: true,
			Arguments: map[string]any{"conversation_id": tr.TerminalID, "expected_transition_id": tr.ID},
		}},
	}
}

// lostTransitions shows the unsettled ones of panes that are not there.
func (d *Desk) lostTransitions(ctx context.Context, v *view, found []*sighting) ([]TransitionView, error) {
	var out []TransitionView
	for key, f := range v.fences {
		if f.Kind != "transition" || slices.ContainsFunc(found, func(s *sighting) bool { return s.pane.Key() == key }) {
			continue
		}
		tr, err := d.Store.Transition(ctx, f.RefID)
		if err != nil {
			return nil, err
		}
		if !tr.Settled() {
			out = append(out, transitionView(tr))
		}
	}
	slices.SortFunc(out, func(a, b TransitionView) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// recoverTransitions settles what dead programs left of thread switches (core §10,
// §13 rows 18–21). It types nothing.
func (d *Desk) recoverTransitions(ctx context.Context, note func(bool, error)) (checked int) {
	all, err := d.Store.OpenTransitions(ctx)
	note(false, err)
	for _, o := range all {
		if ctx.Err() != nil {
			break
		}
		if o.Status == store.TransitionUncertain || !o.DispatcherGone && !o.TerminalFree {
			continue
		}
		checked++
		note(d.oneTransition(ctx, o.Transition))
	}
	return checked
}

// oneTransition is recoverTransition, whose panic is a problem of this one row.
func (d *Desk) oneTransition(ctx context.Context, tr store.Transition) (changed bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			d.Log.Error("panic", "in", "recovery", "transition", tr.ID, "value", v, "stack", string(debug.Stack()))
			changed, err = false, fault.New(fault.Internal, "recover transition %s: see the log", tr.ID)
		}
	}()
	return d.recoverTransition(ctx, tr)
}

func (d *Desk) recoverTransition(ctx context.Context, seen store.Transition) (bool, error) {
	held, h, err := d.grab(ctx, seen.TerminalKey, seen.TerminalID, 0)
	if fault.Is(err, fault.TerminalBusy) {
		return false, nil // somebody works on this pane after all
	}
	if err != nil {
		return false, err
	}
	defer h.release() // empties the pane's record, too
	tr, err := d.Store.Transition(held, seen.ID)
	if err != nil || tr.Status != seen.Status {
		return false, err
	}
	switch tr.Status {
	case store.TransitionPrepared:
		_, err = d.Store.AbortTransition(held, h.lease, tr.ID, "its program ended before anything was typed")
	case store.TransitionDispatching:
		_, err = d.Store.DoubtTransition(held, h.lease, tr.ID, "its program ended while the command was typed")
	case store.TransitionVerified:
		_, err = d.Store.CommitTransition(held, h.lease, tr.ID)
	case store.TransitionSubmitted:
		if _, proof := d.settleTransition(held, h, tr); proof == nil {
			return true, nil
		}
		_, err = d.Store.DoubtTransition(held, h.lease, tr.ID, "its program ended before the switch was verified")
	}
	return err == nil, err
}

// errUnproven says that nothing proves where a switch ended.
var errUnproven = errors.New("the thread that the pane shows is not proven")

// settleTransition ends a transition by what the live pane proves: the wanted
// thread is current, so it is committed, or the earlier one is, so it is given up.
// An error changes nothing.
func (d *Desk) settleTransition(ctx context.Context, h *hold, tr store.Transition) (store.Transition, error) {
	if tr.Status == store.TransitionVerified {
		done, err := d.Store.CommitTransition(ctx, h.lease, tr.ID)
		if !fault.Is(err, fault.TransitionConflict) {
			return done, err
		}
		// Thread or target were taken meanwhile: only what lies before remains, if
		// the pane proves it.
	}
	before, err := parseBefore(tr.Before)
	if err != nil {
		return tr, err
	}
	if gone, known := before.Place.Process.Inc.Gone(); gone && known {
		return d.Store.RevertTransition(ctx, h.lease, tr.ID, "the agent's process has ended")
	}
	s, err := d.byPlace(ctx, before.Place)
	if err != nil {
		return tr, err
	}
	if s, err = d.inspect(ctx, s); err != nil {
		return tr, err
	}
	current := s.currentThread()
	if current == "" {
		return tr, errUnproven
	}
	if err := d.fits(ctx, tr, before, s, current); err == nil && tr.Status == store.TransitionVerified {
		return tr, fault.New(fault.TransitionConflict, "the pane shows the wanted thread, and another Session has it")
	} else if err == nil {
		v := store.Verification{
			ID: tr.ID, Thread: current, Binding: bindingOf(s), Reconciled: true,
			Evidence: canonical(map[string]any{"source": "recovery", "native_thread_id": current}),
		}
		if tr, err = d.Store.VerifyTransition(ctx, h.lease, v); err != nil {
			return tr, err
		}
		return d.Store.CommitTransition(ctx, h.lease, tr.ID)
	}
	// A new thread is none that existed before; where the earlier one was not
	// proven then, any of those says that the switch did not take place.
	earlier := current == before.Thread || before.Thread == "" && slices.Contains(before.Known, current) && current != tr.TargetThread
	if !earlier {
		return tr, errUnproven
	}
	if s.reading.State != agent.Idle || !s.reading.Composer.Empty {
		return tr, errUnproven
	}
	return d.Store.RevertTransition(ctx, h.lease, tr.ID, "the earlier thread is current")
}

// closeTransition is close with a transition's id: it ends in what the pane proves
// now. It types nothing.
func (d *Desk) closeTransition(ctx context.Context, in CloseInput) (Outcome, error) {
	tr, err := d.Store.Transition(ctx, in.ExpectedTransitionID)
	if err != nil {
		return Outcome{}, err
	}
	if strings.HasPrefix(in.TurnID, "terminal:") {
		if in.TurnID != tr.TerminalID {
			return Outcome{}, fault.New(fault.TransitionConflict, "close %s: transition %s is of another pane", in.TurnID, tr.ID).Safe()
		}
	} else {
		t, err := d.Store.Turn(ctx, in.TurnID)
		if err != nil {
			return Outcome{}, err
		}
		if t.TerminalKey != tr.TerminalKey {
			return Outcome{}, fault.New(fault.TransitionConflict, "close %s: transition %s is of another pane", in.TurnID, tr.ID).Safe()
		}
	}
	if tr.Settled() {
		return closedTransition(in, tr), nil
	}
	held, h, err := d.grab(ctx, tr.TerminalKey, tr.TerminalID, terminalWait)
	if err != nil {
		return Outcome{}, err
	}
	defer h.release()
	if tr, err = d.Store.Transition(held, tr.ID); err != nil {
		return Outcome{}, err
	}
	if tr.Settled() { // a sweep was faster
		return closedTransition(in, tr), nil
	}
	if tr.Status == store.TransitionPrepared {
		tr, err = d.Store.AbortTransition(held, h.lease, tr.ID, "given up before anything was typed")
	} else {
		tr, err = d.settleTransition(held, h, tr)
	}
	if err != nil {
		f := fault.New(fault.IdentityUnverified, "close transition %s: its outcome is not provable now: %s", in.ExpectedTransitionID, fault.CleanLine(err.Error())).
			With("transition_id", in.ExpectedTransitionID).With("status", tr.Status).Safe()
		return Outcome{}, f.WithHint("when the agent is idle the user may run its status command in the pane; then call again")
	}
	if err := h.lock.Clear(); err != nil {
		d.Log.Warn("clear terminal record", "err", err)
	}
	return closedTransition(in, tr), nil
}

func closedTransition(in CloseInput, tr store.Transition) Outcome {
	res := CloseResult{
		Status: store.TurnClosed, Closed: true, Resolved: tr.Settled(), Recovered: true, Transition: tr.ID,
		Outcome: tr.Status, Reason: oneLine(tr.Error, "the pane shows the wanted thread"),
	}
	if strings.HasPrefix(in.TurnID, "terminal:") {
		res.TerminalID = in.TurnID
	} else {
		res.TurnID = in.TurnID
	}
	return Outcome{Body: res, Failed: !res.Resolved}
}
