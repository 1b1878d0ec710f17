package handoff

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
)

// managementConflict is the row's word for a Session that does not fit the pane.
const managementConflict = "conflict"

// lifecycle adds to a row what concerns its native thread: a Session that does not
// fit the pane, an unsettled switch, and the native commands that may be used now.
// It mints the offers of what it shows.
func (d *Desk) lifecycle(ctx context.Context, s *sighting, v *view, r *Row) error {
	if f, ok := v.fences[s.pane.Key()]; ok && f.Kind == "transition" {
		tr, err := d.Store.Transition(ctx, f.RefID)
		if err != nil {
			return err
		}
		if !tr.Settled() {
			tv := transitionView(tr)
			r.Transition, r.Actions["close"] = &tv, tv.Actions["close"]
		}
	}
	if b, ok := v.of(s); ok {
		if done, err := d.conflictRow(ctx, s, v, b, r); done || err != nil {
			return err
		}
	}
	if len(r.BlockingTurns) > 0 || r.Transition != nil || d.nativeAllowed(s) != nil {
		return nil
	}
	at := func() map[string]any { return map[string]any{"terminal_id": r.ID} }
	r.Actions["list_resumable_threads"] = Action{Tool: toolName("list_resumable_threads"), Arguments: at()}
	if d.nativeReady(s, v) != nil || !s.readable() {
		return nil
	}
	r.Actions["new_thread"] = Action{Tool: toolName("new_thread"), Arguments: at(), RequiresUserIntent: true}
	if s.identity.State == agent.Resolved {
		a := Action{Tool: toolName("native_inspect"), Arguments: at()}
		a.Arguments["inspection"] = string(agent.OpStatus)
		r.Actions["native_inspect"] = a
	}
	if identifiable(s) == nil {
		r.Actions["identify_foreground"] = Action{Tool: toolName("identify_foreground"), Arguments: at()}
		r.Actions["identify_and_send"] = Action{
			Tool: toolName("identify_and_send"), Arguments: at(), MissingRequired: []string{"request"}, RequiresUserIntent: true,
		}
	}
	return nil
}

// conflictRow shows a Session that does not fit the pane. While there is one only
// status, close, the send into whatever the pane shows, and the way out remain.
func (d *Desk) conflictRow(ctx context.Context, s *sighting, v *view, b store.Bound, r *Row) (conflict bool, err error) {
	kind := conflictKind(b, s)
	if kind != KindOrphan && kind != KindSwitched {
		return false, nil
	}
	r.Management, r.ConflictKind = managementConflict, kind
	for name := range r.Actions {
		switch name {
		case "status", "close", "send":
		default:
			delete(r.Actions, name)
		}
	}
	if o, ok := handoffOf(b, s); ok {
		r.HandoffState, r.Handoff = handoffState, decisionOf(o, b)
		return true, d.mint(ctx, offerHandoff, "turn", o.TurnID, o)
	}
	if !reconcilable(b, s, v) {
		return true, nil
	}
	r.Actions["reconcile_binding"] = Action{
		Tool: toolName("reconcile_binding"), RequiresUserIntent: true, RequiresConfirmation: true,
		Arguments: map[string]any{"terminal_id": r.ID, "conflicting_session_id": b.Session.ID},
	}
	return true, d.mint(ctx, offerReconcile, "terminal", r.ID, offerOf(b, s))
}
