package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// after is what VerifyTransition keeps for the commit, which may be another
// program's.
type after struct {
	Thread   string          `json:"native_thread_id"`
	Binding  boundPlace      `json:"binding"`
	Evidence json.RawMessage `json:"evidence"`
}

type boundPlace struct {
	TerminalID     string          `json:"terminal_id"`
	TerminalKey    string          `json:"terminal_key"`
	IncarnationKey string          `json:"incarnation_key"`
	Endpoint       json.RawMessage `json:"endpoint"`
	PID            int64           `json:"pid"`
	ProcessUUID    string          `json:"process_uuid,omitempty"`
	ProcessBirth   string          `json:"process_birth,omitempty"`
	Artifact       json.RawMessage `json:"artifact,omitempty"`
	Evidence       string          `json:"evidence"`
}

// Verification is the proof of the thread that is current now.
type Verification struct {
	ID       string
	Thread   string // lower case
	Binding  NewBinding
	Evidence []byte // JSON
	// Reconciled: recovery proved it, not the call that typed.
	Reconciled bool
}

var sessionBegun = define(`
INSERT INTO sessions(session_id, revision, agent, workspace, status, created_by, previous_session_id, resumed_from_native_thread_id,
  last_transition_id, created_at, updated_at)
VALUES (:session, 1, :agent, :workspace, 'bound', :created_by, :previous, :resumed, :transition, :now, :now)`)

// VerifyTransition stores the proof of the thread that is current now: from
// submitted, from prepared for an adoption, and from uncertain in recovery.
func (s *Store) VerifyTransition(ctx context.Context, l *Lease, v Verification) (n Transition, err error) {
	b := v.Binding
	doc, err := json.Marshal(after{Thread: v.Thread, Evidence: rawJSON(v.Evidence), Binding: boundPlace{
		b.TerminalID, b.TerminalKey, b.IncarnationKey, rawJSON(b.Endpoint), b.PID, b.ProcessUUID, b.ProcessBirth, b.Artifact, b.Evidence}})
	if err != nil {
		return n, fault.New(fault.Internal, "verify transition %s: %w", v.ID, err)
	}
	n, err = s.moveTransition(ctx, l, v.ID, false, func(t *tx, n *Transition) error {
		switch {
		case n.Status == TransitionPrepared && !n.InputPossible, n.Status == TransitionSubmitted:
		case n.Status == TransitionUncertain && v.Reconciled:
		default:
			return badTransition(*n, "verify")
		}
		if b.TerminalKey != n.TerminalKey {
			return transitionConflict(n.ID, "the proof is of another pane")
		}
		if n.TargetThread != "" && n.TargetThread != v.Thread {
			return transitionConflict(n.ID, "another thread than the wanted one is current")
		}
		n.Status, n.TargetThread, n.After, n.VerifiedAt = TransitionVerified, v.Thread, doc, t.at(n.PreparedAt)
		if v.Reconciled {
			n.Reconciled = OutcomeAfter
		}
		return nil
	})
	if err == nil {
		crashpoint.At("transition_verified")
	}
	return n, err
}

// CommitTransition ends a verified transition in one transaction: source detached
// and its binding released, target bound with its next generation, fence removed.
// transition_conflict: the thread was bound elsewhere meanwhile; nothing changed.
func (s *Store) CommitTransition(ctx context.Context, l *Lease, id string) (n Transition, err error) {
	n, err = s.moveTransition(ctx, l, id, false, func(t *tx, n *Transition) error {
		if n.Status != TransitionVerified {
			return badTransition(*n, "commit")
		}
		var a after
		if err := json.Unmarshal(n.After, &a); err != nil || a.Thread != n.TargetThread || a.Thread == "" {
			return fault.New(fault.IdentityUnverified, "commit transition %s: its stored proof is unreadable", n.ID)
		}
		if err := t.threadFree(n.Agent, a.Thread, n.SourceID, n.ID); err != nil {
			return err
		}
		if err := t.depart(*n); err != nil {
			return err
		}
		if err := t.arrive(*n, a); err != nil {
			return err
		}
		n.Status, n.CommittedAt, n.Error = TransitionCommitted, t.at(n.VerifiedAt), ""
		return t.unfence(*n)
	})
	if err == nil {
		crashpoint.At("transition_committed")
	}
	return n, err
}

// depart detaches the source.
func (t *tx) depart(n Transition) error {
	if n.SourceID == "" {
		return nil
	}
	sess, err := t.session(n.SourceID)
	if err != nil {
		return err
	}
	live, bound, err := first(t, scanBinding, bindingLiveOfSession, "session", sess.ID)
	if err != nil {
		return err
	}
	if bound {
		if err := t.must(bindingRelease, "binding", live.ID, "now", t.now); err != nil {
			return err
		}
	}
	if sess.Status != SessionTransitioning || sess.LastTransitionID != n.ID {
		return transitionConflict(n.ID, "Session "+sess.ID+" is "+sess.Status)
	}
	return t.must(sessionTransition, "session", sess.ID, "revision", sess.Revision, "from", SessionTransitioning,
		"status", SessionDetached, "transition", n.ID, "now", t.now)
}

// arrive binds the target.
func (t *tx) arrive(n Transition, a after) error {
	sess, exists, err := first(t, scanSession, sessionByID, "session", n.TargetID)
	if err != nil {
		return err
	}
	if exists {
		if sess.Status != SessionDetached || n.TargetRevision == 0 {
			return transitionConflict(n.ID, "the target Session is "+sess.Status)
		}
		err = t.must(sessionTransition, "session", sess.ID, "revision", sess.Revision, "from", SessionDetached,
			"status", SessionBound, "transition", n.ID, "now", t.now)
	} else {
		by, resumed := n.Operation, ""
		switch n.Operation {
		case OpAdopt:
			by = "human_observed"
		case OpResumeThread:
			resumed = a.Thread
		}
		_, err = t.exec(sessionBegun, "session", n.TargetID, "agent", n.Agent, "workspace", n.Workspace, "created_by", by,
			"previous", orNull(n.SourceID), "resumed", orNull(resumed), "transition", n.ID, "now", t.now)
	}
	if err != nil {
		return err
	}
	generation, _, err := first(t, scanInt, bindingLastGeneration, "session", n.TargetID)
	if err != nil {
		return err
	}
	b := a.Binding
	_, err = t.exec(bindingInsert, "binding", t.newID(), "session", n.TargetID, "generation", generation+1, "agent", n.Agent,
		"terminal", b.TerminalID, "terminal_key", b.TerminalKey, "incarnation", b.IncarnationKey, "endpoint", []byte(b.Endpoint),
		"thread", a.Thread, "pid", b.PID, "uuid", orNull(b.ProcessUUID), "birth", orNull(b.ProcessBirth),
		"artifact", []byte(b.Artifact), "evidence", b.Evidence, "now", t.now)
	if what := violated(err); strings.HasPrefix(what, "bindings.") {
		return transitionConflict(n.ID, "process or thread is bound already")
	}
	return err
}

// AbortTransition ends a transition in which nothing was typed: the source is
// bound again, the fence goes. Allowed from prepared, and from dispatching where
// the caller proves that no byte was typed.
func (s *Store) AbortTransition(ctx context.Context, l *Lease, id, why string) (Transition, error) {
	return s.back(ctx, l, id, why, "", TransitionPrepared, TransitionDispatching)
}

// RevertTransition ends a transition of which recovery proved that the earlier
// thread is current: the source is bound again, the fence goes.
func (s *Store) RevertTransition(ctx context.Context, l *Lease, id, why string) (Transition, error) {
	return s.back(ctx, l, id, why, OutcomeBefore, TransitionDispatching, TransitionSubmitted, TransitionUncertain, TransitionVerified)
}

func (s *Store) back(ctx context.Context, l *Lease, id, why, reconciled string, from ...string) (n Transition, err error) {
	n, err = s.moveTransition(ctx, l, id, false, func(t *tx, n *Transition) error {
		if !slices.Contains(from, n.Status) {
			return badTransition(*n, "abort")
		}
		if n.SourceID != "" {
			sess, err := t.session(n.SourceID)
			if err != nil {
				return err
			}
			if sess.Status == SessionTransitioning && sess.LastTransitionID == n.ID {
				err = t.must(sessionTransition, "session", sess.ID, "revision", sess.Revision, "from", SessionTransitioning,
					"status", SessionBound, "transition", n.ID, "now", t.now)
			}
			if err != nil {
				return err
			}
		}
		n.Status, n.AbortedAt, n.Error, n.Reconciled = TransitionAborted, t.at(n.PreparedAt), why, reconciled
		return t.unfence(*n)
	})
	if err == nil {
		crashpoint.At("transition_aborted")
	}
	return n, err
}

// DoubtTransition ends an attempt after the mark whose outcome is not proven. The
// fence stays; nobody types for it again.
func (s *Store) DoubtTransition(ctx context.Context, l *Lease, id, why string) (n Transition, err error) {
	n, err = s.moveTransition(ctx, l, id, false, func(t *tx, n *Transition) error {
		if n.Status != TransitionDispatching && n.Status != TransitionSubmitted {
			return badTransition(*n, "doubt")
		}
		n.Status, n.UncertainAt, n.Error, n.DoNotRetry = TransitionUncertain, t.at(n.PreparedAt), why, true
		return nil
	})
	if err == nil {
		crashpoint.At("transition_uncertain")
	}
	return n, err
}

// rawJSON gives null for no document.
func rawJSON(b []byte) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}
