package store

import (
	"context"

	"drawbridge/shared/fault"
)

var (
	bindingsOfThread = define(`
SELECT ` + sessionCols + `, ` + bindingCols + `
FROM bindings b
JOIN sessions s ON s.session_id = b.session_id
WHERE b.agent = :agent AND b.native_thread_id = :thread
ORDER BY b.bound_at DESC, b.rowid DESC
LIMIT :limit`)
)

// maxThreadBindings bounds what is read of one thread's history.
const maxThreadBindings = 200

// DetachSession releases the live binding of a Session and detaches it, under the
// terminal lease of its pane: the Session has to be at revision, bound by exactly
// that binding, without a blocking Turn, and the pane without an unresolved
// operation. Refusals: session_conflict, session_busy, dispatch_unresolved,
// active_owner, owner_unavailable, lifecycle_unresolved.
func (s *Store) DetachSession(ctx context.Context, l *Lease, id string, revision int64, bindingID string) (sess Session, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		b, err := t.binding(bindingID)
		if err != nil {
			return err
		}
		if l.Name != TerminalLease(b.TerminalKey) {
			return fault.New(fault.Internal, "detach Session %s under lease %s", id, leaseKind(l.Name))
		}
		if sess, err = t.session(id); err != nil {
			return err
		}
		if b.SessionID != id || b.ReleasedAt != 0 || sess.Revision != revision {
			return sessionConflict(id, "it changed")
		}
		if err := t.notBusy(id); err != nil {
			return err
		}
		if _, err := t.preflight(NewDispatch{Attach: Attach{Binding: NewBinding{TerminalKey: b.TerminalKey}}}); err != nil {
			return err
		}
		if err := t.detach(b); err != nil {
			return err
		}
		sess, err = t.session(id)
		return err
	})
	return sess, err
}

// ThreadSessions gives the Sessions that were ever bound to a native thread, each
// with its last binding to it; the latest binding first.
func (s *Store) ThreadSessions(ctx context.Context, agent, thread string) ([]Bound, error) {
	all, err := list(pool{ctx, s.rdb}, func(r scanner) (b Bound, err error) {
		err = r.Scan(append(b.Session.dest(), b.Binding.dest()...)...)
		return b, err
	}, bindingsOfThread, "agent", agent, "thread", thread, "limit", int64(maxThreadBindings))
	if err != nil {
		return nil, storeError("list the Sessions of a thread", err)
	}
	seen := map[string]bool{}
	var out []Bound
	for _, b := range all {
		if !seen[b.Session.ID] {
			seen[b.Session.ID] = true
			out = append(out, b)
		}
	}
	return out, nil
}
