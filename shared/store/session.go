package store

import (
	"context"

	"drawbridge/shared/fault"
)

// Session statuses.
const (
	SessionBound         = "bound"
	SessionDetached      = "detached"
	SessionTransitioning = "transitioning"
	SessionQuarantined   = "quarantined"
)

// Session is one continuing agent context (core §4).
type Session struct {
	ID                string
	Revision          int64
	Agent             string // codex, claude
	Workspace         string
	Status            string
	CreatedBy         string // attach, new_thread, resume_thread, human_observed, provisional
	PreviousSessionID string
	ResumedFrom       string // native thread id
	LastTransitionID  string
	CreatedAt         int64
	UpdatedAt         int64
	DetachedAt        int64 // 0: not detached
	QuarantineReason  string
}

// Binding is one verified attachment of a Session to a pane and a process.
type Binding struct {
	ID             string
	SessionID      string
	Generation     int64
	Agent          string
	TerminalID     string
	TerminalKey    string
	IncarnationKey string
	Endpoint       []byte // canonical JSON
	NativeThreadID string // lower case; "" = provisional
	PID            int64  // agent process
	ProcessUUID    string
	ProcessBirth   string
	Artifact       []byte // canonical JSON or nil
	Evidence       string
	BoundAt        int64
	LastVerifiedAt int64
	ReleasedAt     int64 // 0: live
}

// NewBinding holds the facts of the pane and process that a Session is
// attached to, as proven under the terminal lease.
type NewBinding struct {
	TerminalID     string
	TerminalKey    string
	IncarnationKey string
	Endpoint       []byte
	PID            int64
	ProcessUUID    string
	ProcessBirth   string
	Artifact       []byte
	Evidence       string
}

// Bound is a Session with its live binding and, if any, its blocking Turn.
type Bound struct {
	Session Session
	Binding Binding
	Turn    *Turn
}

// SessionFilter selects Sessions; zero fields select all.
type SessionFilter struct {
	IDs    []string
	Agent  string
	Status string
	Limit  int // 0: 1000
}

const sessionCols = `s.session_id, s.revision, s.agent, s.workspace, s.status, s.created_by,
  coalesce(s.previous_session_id, ''), coalesce(s.resumed_from_native_thread_id, ''), coalesce(s.last_transition_id, ''),
  s.created_at, s.updated_at, coalesce(s.detached_at, 0), coalesce(s.quarantine_reason, '')`

func (s *Session) dest() []any {
	return []any{&s.ID, &s.Revision, &s.Agent, &s.Workspace, &s.Status, &s.CreatedBy,
		&s.PreviousSessionID, &s.ResumedFrom, &s.LastTransitionID,
		&s.CreatedAt, &s.UpdatedAt, &s.DetachedAt, &s.QuarantineReason}
}

func scanSession(r scanner) (s Session, err error) { err = r.Scan(s.dest()...); return s, err }

const bindingCols = `b.binding_id, b.session_id, b.generation, b.agent, b.terminal_id, b.terminal_key, b.incarnation_key,
  b.endpoint_json, coalesce(b.native_thread_id, ''), b.pid, coalesce(b.process_uuid, ''), coalesce(b.process_birth, ''),
  b.artifact_json, b.evidence, b.bound_at, b.last_verified_at, coalesce(b.released_at, 0)`

func (b *Binding) dest() []any {
	return []any{&b.ID, &b.SessionID, &b.Generation, &b.Agent, &b.TerminalID, &b.TerminalKey, &b.IncarnationKey,
		&b.Endpoint, &b.NativeThreadID, &b.PID, &b.ProcessUUID, &b.ProcessBirth,
		&b.Artifact, &b.Evidence, &b.BoundAt, &b.LastVerifiedAt, &b.ReleasedAt}
}

func scanBinding(r scanner) (b Binding, err error) { err = r.Scan(b.dest()...); return b, err }

var (
	sessionByID = define(`
SELECT ` + sessionCols + `
FROM sessions s
WHERE s.session_id = :session`)

	sessionsByID = define(`
SELECT ` + sessionCols + `
FROM sessions s
WHERE s.session_id IN (SELECT value FROM json_each(:sessions))
ORDER BY s.created_at DESC, s.session_id
LIMIT :limit`)

	sessionsByStatus = define(`
SELECT ` + sessionCols + `
FROM sessions s
WHERE s.status IN (SELECT value FROM json_each(:statuses)) AND (:agent = '' OR s.agent = :agent)
ORDER BY s.updated_at DESC, s.session_id
LIMIT :limit`)

	bindingByID = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.binding_id = :binding`)

	bindingsOf = define(`
SELECT ` + bindingCols + `
FROM bindings b
WHERE b.session_id = :session
ORDER BY b.generation`)

	boundAll = define(`
SELECT ` + sessionCols + `, ` + bindingCols + `
FROM bindings b
JOIN sessions s ON s.session_id = b.session_id
WHERE b.released_at IS NULL`)

	sessionQuarantine = define(`
UPDATE sessions
SET status = 'quarantined', quarantine_reason = :reason, revision = revision + 1, updated_at = max(updated_at, :now)
WHERE session_id = :session AND revision = :revision AND status <> 'quarantined'`)

	sessionTurnCount = define(`SELECT count(*) FROM turns WHERE session_id = :session`)
)

// Session gives one Session, or not_found.
func (s *Store) Session(ctx context.Context, id string) (Session, error) {
	return only(pool{ctx, s.rdb}, scanSession, "Session", id, sessionByID, "session", id)
}

// Sessions lists Sessions, the last changed first.
func (s *Store) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	q, limit := pool{ctx, s.rdb}, limitOr(f.Limit)
	if f.IDs != nil {
		all, err := list(q, scanSession, sessionsByID, "sessions", texts(f.IDs), "limit", limit)
		return all, storeError("list Sessions", err)
	}
	statuses := []string{SessionBound, SessionDetached, SessionTransitioning, SessionQuarantined}
	if f.Status != "" {
		statuses = []string{f.Status}
	}
	all, err := list(q, scanSession, sessionsByStatus, "statuses", texts(statuses), "agent", f.Agent, "limit", limit)
	return all, storeError("list Sessions", err)
}

// Bound gives every live binding with its Session and the Turn that blocks it.
func (s *Store) Bound(ctx context.Context) (all []Bound, err error) {
	err = s.view(ctx, func(t *tx) error {
		turns, err := list(t, scanTurn, turnsByStatus, "statuses", texts(blockingStatuses), "limit", int64(-1))
		if err != nil {
			return err
		}
		blocks := make(map[string]*Turn, len(turns))
		for i := range turns {
			blocks[turns[i].SessionID] = &turns[i]
		}
		all, err = list(t, func(r scanner) (b Bound, err error) {
			err = r.Scan(append(b.Session.dest(), b.Binding.dest()...)...)
			b.Turn = blocks[b.Session.ID]
			return b, err
		}, boundAll)
		return err
	})
	return all, err
}

// Binding gives one binding, or not_found.
func (s *Store) Binding(ctx context.Context, id string) (Binding, error) {
	return only(pool{ctx, s.rdb}, scanBinding, "binding", id, bindingByID, "binding", id)
}

// Bindings gives all bindings of a Session by generation.
func (s *Store) Bindings(ctx context.Context, sessionID string) ([]Binding, error) {
	all, err := list(pool{ctx, s.rdb}, scanBinding, bindingsOf, "session", sessionID)
	return all, storeError("list bindings", err)
}

// SessionTurns counts the Turns of a Session.
func (s *Store) SessionTurns(ctx context.Context, sessionID string) (int64, error) {
	n, _, err := first(pool{ctx, s.rdb}, scanInt, sessionTurnCount, "session", sessionID)
	return n, storeError("count Turns", err)
}

// QuarantineSession takes a Session out of use because its row contradicts what
// was found; only an operator undoes that. Its live binding stays as evidence.
func (s *Store) QuarantineSession(ctx context.Context, id string, revision int64, reason string) (sess Session, err error) {
	err = s.transact(ctx, func(t *tx) error {
		n, err := t.exec(sessionQuarantine, "session", id, "revision", revision, "reason", reason, "now", t.now)
		if err != nil {
			return err
		}
		if sess, err = t.session(id); err == nil && n == 0 {
			err = sessionConflict(id, "it changed")
		}
		return err
	})
	return sess, err
}

// only reads one row that has to exist.
func only[T any](q queryer, scan func(scanner) (T, error), what, id string, st stmt, pairs ...any) (T, error) {
	v, ok, err := first(q, scan, st, pairs...)
	if err != nil {
		return v, storeError("read "+what, err)
	}
	if !ok {
		return v, fault.New(fault.NotFound, "read %s %.80q: there is none", what, id)
	}
	return v, nil
}
