package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Operations of a transition.
const (
	OpNewThread    = "new_thread"
	OpResumeThread = "resume_thread"
	OpAdopt        = "adopt_external_thread" // a person switched; never types
)

// Transition statuses (core §10).
const (
	TransitionPrepared    = "prepared"
	TransitionDispatching = "dispatching"
	TransitionSubmitted   = "submitted"
	TransitionUncertain   = "uncertain"
	TransitionVerified    = "verified"
	TransitionCommitted   = "committed"
	TransitionAborted     = "aborted"
)

// What recovery proved of a transition whose end was in doubt.
const (
	OutcomeBefore = "before" // the earlier thread is current
	OutcomeAfter  = "after"  // the wanted one is
)

// Transition is one change of the native thread of a pane's process.
type Transition struct {
	ID             string
	Revision       int64
	ToolCallID     string
	Operation      string
	Origin         string // human_observed for an adoption
	InputPossible  bool
	Status         string
	TerminalID     string
	TerminalKey    string
	Agent          string
	Workspace      string
	SourceID       string // Session that was bound to the process; "" for none
	SourceRevision int64
	TargetID       string
	TargetRevision int64  // 0: it must not exist
	TargetThread   string // lower case; "" until a new thread is proven
	CandidateFile  []byte // JSON or nil
	Before         []byte // JSON
	After          []byte // JSON or nil
	AdapterVersion string
	Command        string // fingerprint of what is typed
	Dispatcher     string // holder
	LeaseEpoch     int64
	PreparedAt     int64
	DispatchingAt  int64
	SubmittedAt    int64
	UncertainAt    int64
	VerifiedAt     int64
	CommittedAt    int64
	AbortedAt      int64
	Reconciled     string // before, after
	Error          string
	DoNotRetry     bool
}

// Settled reports whether the transition has ended.
func (n Transition) Settled() bool {
	return n.Status == TransitionCommitted || n.Status == TransitionAborted
}

// NewTransition is everything PrepareTransition needs. Where a live binding of
// IncarnationKey exists, its Session has to be the source.
type NewTransition struct {
	ID             string
	ToolCallID     string // "" for one that no call asked for
	Operation      string
	Origin         string
	InputPossible  bool
	TerminalID     string
	TerminalKey    string
	IncarnationKey string
	Agent          string
	Workspace      string
	SourceID       string
	SourceRevision int64
	TargetID       string
	TargetRevision int64
	TargetThread   string
	CandidateFile  []byte
	Before         []byte
	AdapterVersion string
	Command        string
	DeadBindings   []string // live bindings whose process the caller proved dead; released first
}

// OpenTransition is an unsettled transition as a sweep sees it.
type OpenTransition struct {
	Transition
	DispatcherGone bool // its process is proven dead
	TerminalFree   bool // nobody holds the pane's terminal lease
}

const transitionCols = `n.transition_id, n.revision, coalesce(n.tool_call_id, ''), n.operation, coalesce(n.origin, ''), n.input_possible,
  n.status, n.terminal_id, n.terminal_key, n.agent, n.workspace, coalesce(n.source_session_id, ''),
  coalesce(n.source_expected_revision, 0), n.target_session_id, coalesce(n.target_expected_revision, 0),
  coalesce(n.target_native_thread_id, ''), n.candidate_file_json, n.before_json, n.after_json, n.adapter_version,
  n.command_fingerprint, n.dispatcher, n.lease_epoch, n.prepared_at, coalesce(n.dispatching_at, 0),
  coalesce(n.submitted_at, 0), coalesce(n.uncertain_at, 0), coalesce(n.verified_at, 0), coalesce(n.committed_at, 0),
  coalesce(n.aborted_at, 0), coalesce(n.reconciled_outcome, ''), coalesce(n.error, ''), n.do_not_retry`

func (n *Transition) dest() []any {
	return []any{&n.ID, &n.Revision, &n.ToolCallID, &n.Operation, &n.Origin, &n.InputPossible,
		&n.Status, &n.TerminalID, &n.TerminalKey, &n.Agent, &n.Workspace, &n.SourceID,
		&n.SourceRevision, &n.TargetID, &n.TargetRevision,
		&n.TargetThread, &n.CandidateFile, &n.Before, &n.After, &n.AdapterVersion,
		&n.Command, &n.Dispatcher, &n.LeaseEpoch, &n.PreparedAt, &n.DispatchingAt,
		&n.SubmittedAt, &n.UncertainAt, &n.VerifiedAt, &n.CommittedAt,
		&n.AbortedAt, &n.Reconciled, &n.Error, &n.DoNotRetry}
}

func scanTransition(r scanner) (n Transition, err error) { err = r.Scan(n.dest()...); return n, err }

var (
	transitionByID = define(`
SELECT ` + transitionCols + `
FROM transitions n
WHERE n.transition_id = :transition`)

	transitionByCall = define(`
SELECT ` + transitionCols + `
FROM transitions n
WHERE n.tool_call_id = :call`)

	transitionsOpen = define(`
SELECT ` + transitionCols + `
FROM transitions n
WHERE (n.status = 'prepared' OR n.status = 'dispatching' OR n.status = 'submitted' OR n.status = 'uncertain'
  OR n.status = 'verified')
ORDER BY n.terminal_key, n.prepared_at`)

	transitionInsert = define(`
INSERT INTO transitions(transition_id, revision, tool_call_id, operation, origin, input_possible, status, terminal_id, terminal_key,
  agent, workspace, source_session_id, source_expected_revision, target_session_id, target_expected_revision,
  target_native_thread_id, candidate_file_json, before_json, adapter_version, command_fingerprint, dispatcher, lease_epoch, prepared_at)
VALUES (:transition, 1, :call, :operation, :origin, :input, 'prepared', :terminal_id, :terminal,
  :agent, :workspace, :source, :source_revision, :target, :target_revision,
  :thread, :candidate, :before, :version, :command, :dispatcher, :epoch, :now)`)

	transitionSave = define(`
UPDATE transitions
SET revision = revision + 1, status = :status, target_native_thread_id = :thread, after_json = :after,
  dispatching_at = :dispatching, submitted_at = :submitted, uncertain_at = :uncertain, verified_at = :verified,
  committed_at = :committed, aborted_at = :aborted, reconciled_outcome = :reconciled, error = :error, do_not_retry = :never
WHERE transition_id = :transition AND revision = :revision AND status = :from AND ` + held)

	sessionTransition = define(`
UPDATE sessions
SET status = :status, revision = revision + 1, last_transition_id = :transition, updated_at = max(updated_at, :now),
  detached_at = CASE :status WHEN 'detached' THEN max(updated_at, :now) END
WHERE session_id = :session AND revision = :revision AND status = :from`)
)

// Transition gives one transition, or not_found.
func (s *Store) Transition(ctx context.Context, id string) (Transition, error) {
	return only(pool{ctx, s.rdb}, scanTransition, "transition", id, transitionByID, "transition", id)
}

// TransitionOfCall gives the one transition that a tool call made, if it made one.
func (s *Store) TransitionOfCall(ctx context.Context, toolCallID string) (Transition, bool, error) {
	n, ok, err := first(pool{ctx, s.rdb}, scanTransition, transitionByCall, "call", toolCallID)
	return n, ok, storeError("read transition", err)
}

// OpenTransitions lists the transitions that are not settled, and what is known
// of their dispatchers.
func (s *Store) OpenTransitions(ctx context.Context) ([]OpenTransition, error) {
	rows, err := list(pool{ctx, s.rdb}, scanTransition, transitionsOpen)
	if err != nil || len(rows) == 0 {
		return nil, storeError("list transitions", err)
	}
	leases, err := leasesOf(pool{ctx, s.rdb}, TerminalLease(""))
	if err != nil {
		return nil, storeError("list transitions", err)
	}
	over := s.holders()
	busy := map[string]bool{}
	for _, l := range leases {
		busy[l.Name] = s.live(l, over)
	}
	all := make([]OpenTransition, len(rows))
	for i, n := range rows {
		gone, known := over(n.Dispatcher)
		all[i] = OpenTransition{n, gone && known, !busy[TerminalLease(n.TerminalKey)]}
	}
	return all, nil
}

// PrepareTransition writes what has to stand before the first byte is typed, in
// one transaction under the pane's terminal lease: the row, the pane's fence, and
// the source Session in transitioning.
//
// A call whose tool call id made a transition before changes nothing and gets
// that one, replayed. Refusals: lifecycle_unresolved, dispatch_unresolved,
// owner_unavailable, active_owner, session_busy, session_conflict,
// transition_conflict.
func (s *Store) PrepareTransition(ctx context.Context, l *Lease, n NewTransition) (made Transition, replayed bool, err error) {
	if l == nil || l.Name != TerminalLease(n.TerminalKey) {
		return made, false, fault.New(fault.Internal, "prepare transition %s: not under the pane's terminal lease", n.ID)
	}
	err = s.transact(ctx, func(t *tx) (err error) {
		if err := t.guard(l); err != nil {
			return err
		}
		if n.ToolCallID != "" {
			if made, replayed, err = first(t, scanTransition, transitionByCall, "call", n.ToolCallID); err != nil || replayed {
				t.silent = true
				return err
			}
		}
		if _, err := t.preflight(NewDispatch{Attach: Attach{Binding: NewBinding{TerminalKey: n.TerminalKey}}}); err != nil {
			return err
		}
		if err := t.leave(n); err != nil {
			return err
		}
		if err := t.reserve(n); err != nil {
			return err
		}
		_, err = t.exec(transitionInsert, "transition", n.ID, "call", orNull(n.ToolCallID), "operation", n.Operation,
			"origin", orNull(n.Origin), "input", n.InputPossible, "terminal_id", n.TerminalID, "terminal", n.TerminalKey,
			"agent", n.Agent, "workspace", n.Workspace, "source", orNull(n.SourceID), "source_revision", orNull(n.SourceRevision),
			"target", n.TargetID, "target_revision", orNull(n.TargetRevision), "thread", orNull(n.TargetThread),
			"candidate", n.CandidateFile, "before", n.Before, "version", n.AdapterVersion, "command", n.Command,
			"dispatcher", t.holder, "epoch", l.Epoch, "now", t.now)
		if err != nil {
			return err
		}
		generation, _, err := first(t, scanInt, generationNext, "terminal", n.TerminalKey)
		if err != nil {
			return err
		}
		_, err = t.exec(fencePut, "terminal", n.TerminalKey, "kind", "transition", "ref", n.ID,
			"generation", generation, "epoch", l.Epoch, "now", t.now)
		if err != nil {
			return err
		}
		made, err = t.transition(n.ID)
		return err
	})
	if err != nil {
		return Transition{}, false, err
	}
	if !replayed {
		crashpoint.At("transition_prepared")
	}
	return made, replayed, nil
}

func (t *tx) transition(id string) (Transition, error) {
	return only(t, scanTransition, "transition", id, transitionByID, "transition", id)
}

// leave moves the source into transitioning. Which Session that is, is no choice:
// the one that is bound to the process.
func (t *tx) leave(n NewTransition) error {
	for _, id := range n.DeadBindings {
		if err := t.releaseDead(id); err != nil {
			return err
		}
	}
	live, bound, err := first(t, scanBinding, bindingLiveOfProcess, "incarnation", n.IncarnationKey)
	if err != nil {
		return err
	}
	if bound != (n.SourceID != "") || bound && live.SessionID != n.SourceID {
		return transitionConflict(n.ID, "another Session is bound to the process now")
	}
	if !bound {
		return nil
	}
	sess, err := t.session(n.SourceID)
	if err != nil {
		return err
	}
	if err := usable(sess); err != nil {
		return err
	}
	if sess.Revision != n.SourceRevision {
		return sessionConflict(sess.ID, "it changed")
	}
	if err := t.notBusy(sess.ID); err != nil {
		return err
	}
	return t.must(sessionTransition, "session", sess.ID, "revision", sess.Revision, "from", SessionBound,
		"status", SessionTransitioning, "transition", n.ID, "now", t.now)
}

// reserve checks that the target is free: not live anywhere, not changed.
func (t *tx) reserve(n NewTransition) error {
	if err := t.threadFree(n.Agent, n.TargetThread, n.SourceID, n.ID); err != nil {
		return err
	}
	sess, exists, err := first(t, scanSession, sessionByID, "session", n.TargetID)
	switch {
	case err != nil:
		return err
	case exists != (n.TargetRevision != 0):
		return transitionConflict(n.ID, "the target Session is not as it was")
	case !exists:
		return nil
	case sess.Status != SessionDetached || sess.Workspace != n.Workspace || sess.Agent != n.Agent:
		return sessionConflict(sess.ID, "it is "+sess.Status)
	}
	return t.notBusy(sess.ID)
}

// threadFree refuses a thread that is bound to a living process by another Session.
func (t *tx) threadFree(agent, thread, except, id string) error {
	if thread == "" {
		return nil
	}
	live, taken, err := first(t, scanBinding, bindingLiveOfThread, "agent", agent, "thread", thread)
	if err == nil && taken && live.SessionID != except {
		err = transitionConflict(id, "its thread is bound to Session "+live.SessionID)
	}
	return err
}

// MarkDispatching is committed directly before the first byte is typed.
func (s *Store) MarkDispatching(ctx context.Context, l *Lease, id string) (n Transition, err error) {
	n, err = s.moveTransition(ctx, l, id, true, func(t *tx, n *Transition) error {
		if n.Status != TransitionPrepared || !n.InputPossible {
			return badTransition(*n, "type for")
		}
		n.Status, n.DispatchingAt = TransitionDispatching, t.at(n.PreparedAt)
		return nil
	})
	if err == nil {
		crashpoint.At("transition_dispatching")
	}
	return n, err
}

// TransitionTyped is committed after Enter was pressed once.
func (s *Store) TransitionTyped(ctx context.Context, l *Lease, id string) (n Transition, err error) {
	n, err = s.moveTransition(ctx, l, id, true, func(t *tx, n *Transition) error {
		if n.Status != TransitionDispatching {
			return badTransition(*n, "record Enter of")
		}
		n.Status, n.SubmittedAt = TransitionSubmitted, t.at(n.DispatchingAt)
		return nil
	})
	if err == nil {
		crashpoint.At("transition_submitted")
	}
	return n, err
}

// moveTransition is one move under the pane's terminal lease; with own only the
// process and lease epoch that prepared it may make it.
func (s *Store) moveTransition(ctx context.Context, l *Lease, id string, own bool, move func(*tx, *Transition) error) (n Transition, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		if n, err = t.transition(id); err != nil {
			return err
		}
		if l.Name != TerminalLease(n.TerminalKey) {
			return fault.New(fault.Internal, "write transition %s under lease %s", id, leaseKind(l.Name))
		}
		if own && (n.Dispatcher != l.Holder || n.LeaseEpoch != l.Epoch) {
			return leaseGone(l)
		}
		old := n
		if err := move(t, &n); err != nil {
			return err
		}
		err = t.must(transitionSave, append(t.under(l), "transition", id, "revision", old.Revision, "from", old.Status,
			"status", n.Status, "thread", orNull(n.TargetThread), "after", n.After,
			"dispatching", orNull(n.DispatchingAt), "submitted", orNull(n.SubmittedAt), "uncertain", orNull(n.UncertainAt),
			"verified", orNull(n.VerifiedAt), "committed", orNull(n.CommittedAt), "aborted", orNull(n.AbortedAt),
			"reconciled", orNull(n.Reconciled), "error", orNull(n.Error), "never", n.DoNotRetry)...)
		n.Revision = old.Revision + 1
		return err
	})
	return n, err
}

func (t *tx) unfence(n Transition) error {
	_, err := t.exec(fenceDrop, "terminal", n.TerminalKey, "ref", n.ID)
	return err
}

// badTransition says that a transition is not where the move begins.
func badTransition(n Transition, doing string) error {
	err := fault.New(fault.TransitionConflict, "%s transition %s: it is %s", doing, n.ID, n.Status).
		With("transition_id", n.ID).With("status", n.Status)
	if n.InputPossible && n.DispatchingAt != 0 {
		return err.WithInput(fault.InputPossible)
	}
	return err
}

func transitionConflict(id, why string) error {
	return fault.New(fault.TransitionConflict, "move transition %s: %s", id, why).With("transition_id", id)
}
