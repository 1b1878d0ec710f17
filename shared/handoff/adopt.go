package handoff

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
)

// adopt follows a person who switched a held pane to another thread: where the
// agent's own files name that thread, and no other Session has it, the Session
// that the pane had is detached and one for the thread is bound, as a transition
// that never types. A send into the pane's context then belongs to that Session.
func (d *Desk) adopt(ctx context.Context, h *hold, s *sighting) error {
	if s.identity.State != agent.Resolved {
		return nil // the send proves its thread by itself (core §4)
	}
	v, err := d.snapshot(ctx)
	if err != nil {
		return err
	}
	b, ok := v.of(s)
	if !ok || b.Turn != nil || b.Session.Status != store.SessionBound || v.blocked(s.pane.Key()) || conflictKind(b, s) != KindSwitched {
		return nil
	}
	thread := s.identity.ThreadID
	known, err := d.Store.ThreadSessions(ctx, string(s.proc.Agent), thread)
	if err != nil {
		return err
	}
	row := store.NewTransition{
		ID: d.newID(transPrefix), Operation: store.OpAdopt, Origin: "human_observed",
		TerminalID: s.id(), TerminalKey: s.pane.Key(), IncarnationKey: b.Binding.IncarnationKey,
		Agent: string(s.proc.Agent), Workspace: s.proc.Cwd, SourceID: b.Session.ID, SourceRevision: b.Session.Revision,
		TargetID: d.newID(sessionPrefix), TargetThread: thread,
		Before:         canonical(beforeThread{Version: 1, Thread: b.Binding.NativeThreadID, Known: []string{}, Place: placeOf(s)}),
		AdapterVersion: s.proc.Version, Command: digest(""),
	}
	if len(known) > 0 && known[0].Session.Status == store.SessionDetached && known[0].Session.Workspace == s.proc.Cwd {
		row.TargetID, row.TargetRevision = known[0].Session.ID, known[0].Session.Revision
	}
	if row.DeadBindings, err = d.dead(ctx, s, thread); err != nil {
		return err
	}
	tr, _, err := d.Store.PrepareTransition(ctx, h.lease, row)
	if err != nil {
		return err
	}
	tr, err = d.Store.VerifyTransition(ctx, h.lease, store.Verification{
		ID: tr.ID, Thread: thread, Binding: bindingOf(s), Evidence: canonical(map[string]any{"source": "native_files", "native_thread_id": thread}),
	})
	if err != nil {
		return err
	}
	_, err = d.Store.CommitTransition(ctx, h.lease, tr.ID)
	return err
}
