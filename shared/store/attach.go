package store

import (
	"strings"

	"drawbridge/shared/fault"
)

var (
	bindingLiveOfSession = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.session_id = :session AND b.released_at IS NULL`)

	bindingLiveOfProcess = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.incarnation_key = :incarnation AND b.released_at IS NULL`)

	bindingLiveOfThread = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.agent = :agent AND b.native_thread_id = :thread AND b.released_at IS NULL`)

	bindingLastOfThread = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.agent = :agent AND b.native_thread_id = :thread
ORDER BY b.bound_at DESC, b.rowid DESC
LIMIT 1`)

	bindingLastGeneration = define(`SELECT coalesce(max(generation), 0) FROM bindings WHERE session_id = :session`)

	bindingInsert = define(`
INSERT INTO bindings(binding_id, session_id, generation, agent, terminal_id, terminal_key, incarnation_key, endpoint_json,
  native_thread_id, pid, process_uuid, process_birth, artifact_json, evidence, bound_at, last_verified_at)
VALUES (:binding, :session, :generation, :agent, :terminal, :terminal_key, :incarnation, :endpoint,
  :thread, :pid, :uuid, :birth, :artifact, :evidence, :now, :now)`)

	bindingVerified = define(`
UPDATE bindings
SET last_verified_at = max(last_verified_at, :now)
WHERE binding_id = :binding AND released_at IS NULL`)

	bindingThread = define(`
UPDATE bindings
SET native_thread_id = :thread, last_verified_at = max(last_verified_at, :now)
WHERE binding_id = :binding AND native_thread_id IS NULL AND released_at IS NULL`)

	bindingRelease = define(`
UPDATE bindings
SET released_at = max(last_verified_at, :now)
WHERE binding_id = :binding AND released_at IS NULL`)

	sessionInsert = define(`
INSERT INTO sessions(session_id, revision, agent, workspace, status, created_by, previous_session_id, created_at, updated_at)
VALUES (:session, 1, :agent, :workspace, 'bound', :created_by, :previous, :now, :now)`)

	sessionMove = define(`
UPDATE sessions
SET status = :status, revision = revision + 1, updated_at = max(updated_at, :now),
  detached_at = CASE :status WHEN 'detached' THEN max(updated_at, :now) END
WHERE session_id = :session AND revision = :revision AND status = :from`)

	sessionTouch = define(`
UPDATE sessions
SET revision = revision + 1, updated_at = max(updated_at, :now)
WHERE session_id = :session`)
)

func (t *tx) session(id string) (Session, error) {
	return only(t, scanSession, "Session", id, sessionByID, "session", id)
}

func (t *tx) binding(id string) (Binding, error) {
	return only(t, scanBinding, "binding", id, bindingByID, "binding", id)
}

// attach gives the Session and live binding that a new Turn belongs to, and
// makes them where Attach allows it.
func (t *tx) attach(a Attach) (Session, Binding, error) {
	for _, id := range a.DeadBindings {
		if err := t.releaseDead(id); err != nil {
			return Session{}, Binding{}, err
		}
	}
	if a.SessionID != "" {
		return t.attachStrict(a)
	}
	live, ok, err := first(t, scanBinding, bindingLiveOfProcess, "incarnation", a.Binding.IncarnationKey)
	if err != nil {
		return Session{}, Binding{}, err
	}
	if ok && a.NativeThreadID != "" && live.NativeThreadID == a.NativeThreadID {
		return t.attachLive(live)
	}
	if a.NativeThreadID != "" {
		other, taken, err := first(t, scanBinding, bindingLiveOfThread, "agent", a.Agent, "thread", a.NativeThreadID)
		if err != nil {
			return Session{}, Binding{}, err
		}
		if taken {
			return Session{}, Binding{}, sessionConflict(other.SessionID, "its thread is held by another process")
		}
	}
	previous := ""
	if ok {
		if !a.Replace {
			return Session{}, Binding{}, sessionConflict(live.SessionID, "its process shows another thread now")
		}
		if err := t.replaceBinding(live); err != nil {
			return Session{}, Binding{}, err
		}
		previous = live.SessionID
	}
	return t.attachNew(a, previous)
}

// attachStrict is the form with a Session id: nothing is made, nothing replaced.
func (t *tx) attachStrict(a Attach) (sess Session, live Binding, err error) {
	if sess, err = t.session(a.SessionID); err != nil {
		return sess, live, err
	}
	if err := usable(sess); err != nil {
		return sess, live, err
	}
	if a.Revision != 0 && sess.Revision != a.Revision {
		return sess, live, sessionConflict(sess.ID, "it changed")
	}
	live, ok, err := first(t, scanBinding, bindingLiveOfSession, "session", sess.ID)
	switch {
	case err != nil:
		return sess, live, err
	case !ok || live.IncarnationKey != a.Binding.IncarnationKey:
		return sess, live, sessionConflict(sess.ID, "it is not bound to this process")
	case live.NativeThreadID == "":
		return sess, live, fault.New(fault.DeferredTransfer, "use Session %s: its first binding is still open", sess.ID).With("session_id", sess.ID)
	case a.NativeThreadID != "" && a.NativeThreadID != live.NativeThreadID:
		return sess, live, sessionConflict(sess.ID, "its process shows another thread now")
	}
	return sess, live, t.must(bindingVerified, "binding", live.ID, "now", t.now)
}

// attachLive goes on with the Session of a live binding.
func (t *tx) attachLive(live Binding) (Session, Binding, error) {
	sess, err := t.session(live.SessionID)
	if err != nil {
		return sess, live, err
	}
	if err := usable(sess); err != nil {
		return sess, live, err
	}
	return sess, live, t.must(bindingVerified, "binding", live.ID, "now", t.now)
}

// attachNew binds the detached Session that had the thread last, or a new one.
func (t *tx) attachNew(a Attach, previous string) (sess Session, made Binding, err error) {
	id, createdBy := a.NewSessionID, "attach"
	if a.NativeThreadID == "" {
		createdBy = "provisional"
	} else if sess, err = t.detachedOf(a); err != nil {
		return sess, made, err
	}
	if sess.ID != "" {
		id = sess.ID
		err = t.must(sessionMove, "session", id, "revision", sess.Revision, "from", SessionDetached, "status", SessionBound, "now", t.now)
	} else {
		_, err = t.exec(sessionInsert, "session", id, "agent", a.Agent, "workspace", a.Workspace,
			"created_by", createdBy, "previous", orNull(previous), "now", t.now)
	}
	if err != nil {
		return sess, made, err
	}
	generation, _, err := first(t, scanInt, bindingLastGeneration, "session", id)
	if err != nil {
		return sess, made, err
	}
	bindingID := t.newID()
	b := a.Binding
	_, err = t.exec(bindingInsert, "binding", bindingID, "session", id, "generation", generation+1, "agent", a.Agent,
		"terminal", b.TerminalID, "terminal_key", b.TerminalKey, "incarnation", b.IncarnationKey, "endpoint", b.Endpoint,
		"thread", orNull(a.NativeThreadID), "pid", b.PID, "uuid", orNull(b.ProcessUUID), "birth", orNull(b.ProcessBirth),
		"artifact", b.Artifact, "evidence", b.Evidence, "now", t.now)
	if what := violated(err); strings.HasPrefix(what, "bindings.") {
		return sess, made, sessionConflict(id, "process or thread is bound already")
	}
	if err != nil {
		return sess, made, err
	}
	if sess, err = t.session(id); err != nil {
		return sess, made, err
	}
	made, err = t.binding(bindingID)
	return sess, made, err
}

// detachedOf gives the Session that had the thread last if it may be bound
// again; a zero Session if there is none.
func (t *tx) detachedOf(a Attach) (Session, error) {
	last, ok, err := first(t, scanBinding, bindingLastOfThread, "agent", a.Agent, "thread", a.NativeThreadID)
	if err != nil || !ok {
		return Session{}, err
	}
	sess, err := t.session(last.SessionID)
	if err != nil || sess.Status != SessionDetached || sess.Workspace != a.Workspace {
		return Session{}, err
	}
	generation, _, err := first(t, scanInt, bindingLastGeneration, "session", sess.ID)
	if err != nil || generation != last.Generation {
		return Session{}, err // it went on with another thread
	}
	return sess, nil
}

// replaceBinding releases the binding of a process that shows another thread.
func (t *tx) replaceBinding(live Binding) error {
	turn, busy, err := first(t, scanTurn, turnBlocking, "session", live.SessionID)
	if err != nil {
		return err
	}
	if busy && live.NativeThreadID == "" {
		return fault.New(fault.DeferredTransfer, "attach to the pane: the first binding of Session %s is still open", live.SessionID).
			With("session_id", live.SessionID).With("turn_id", turn.ID)
	}
	if busy {
		return fault.New(fault.ActiveOwner, "attach to the pane: Turn %s owns it", turn.ID).With("turn_id", turn.ID)
	}
	return t.detach(live)
}

// releaseDead releases a binding whose process the caller proved dead.
func (t *tx) releaseDead(id string) error {
	b, err := t.binding(id)
	if err != nil || b.ReleasedAt != 0 {
		return err
	}
	if err := t.notBusy(b.SessionID); err != nil {
		return err
	}
	return t.detach(b)
}

// detach releases a live binding and detaches its Session.
func (t *tx) detach(b Binding) error {
	sess, err := t.session(b.SessionID)
	if err != nil {
		return err
	}
	if err := usable(sess); err != nil {
		return err
	}
	if err := t.must(bindingRelease, "binding", b.ID, "now", t.now); err != nil {
		return err
	}
	return t.must(sessionMove, "session", sess.ID, "revision", sess.Revision, "from", SessionBound, "status", SessionDetached, "now", t.now)
}

// usable refuses a Session that is not plainly bound.
func usable(s Session) error {
	switch s.Status {
	case SessionBound:
		return nil
	case SessionTransitioning:
		return fault.New(fault.LifecycleUnresolved, "use Session %s: its transition is not settled", s.ID).With("session_id", s.ID)
	}
	return sessionConflict(s.ID, "it is "+s.Status)
}

func sessionConflict(id, why string) error {
	return fault.New(fault.SessionConflict, "use Session %s: %s", id, why).With("session_id", id)
}

func sessionBusy(turn Turn) error {
	return fault.New(fault.SessionBusy, "use Session %s: Turn %s is %s", turn.SessionID, turn.ID, turn.Status).
		With("session_id", turn.SessionID).With("turn_id", turn.ID).With("status", turn.Status)
}
