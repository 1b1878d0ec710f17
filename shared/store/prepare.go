package store

import (
	"context"
	"errors"
	"strings"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Defaults of a Turn in minutes (core §14).
const (
	DefaultInactivityMinutes = 60
	DefaultHardMinutes       = 720
	DefaultRetentionMinutes  = 10080
)

var (
	generationNext = define(`
INSERT INTO terminal_generations(terminal_key, generation)
VALUES (:terminal, 1)
ON CONFLICT(terminal_key) DO UPDATE
SET generation = generation + 1
RETURNING generation`)

	turnInsert = define(`
INSERT INTO turns(turn_id, session_id, revision, status, agent, workspace, binding_id, binding_generation, native_thread_id,
  terminal_key, controller_session_id, route_json, request_text, current_message_id, started_at, last_activity_at,
  inactivity_minutes, hard_minutes, retention_minutes, inactivity_deadline_at, hard_deadline_at, created_at, updated_at)
VALUES (:turn, :session, 1, 'created', :agent, :workspace, :binding, :generation, :thread,
  :terminal, :controller, :route, :request, :message, :now, :now,
  :inactivity, :hard, :retention, :inactivity_deadline, :hard_deadline, :now, :now)`)

	dispatchInsert = define(`
INSERT INTO dispatches(message_id, tool_call_id, turn_id, session_id, binding_id, binding_generation, kind, terminal_key,
  generation, previous_message_id, agent, native_thread_id, controller_session_id, body_hash, request_hash,
  status, last_proven_stage, anchor_json, dispatcher, lease_epoch, prepared_at)
VALUES (:message, :tool_call, :turn, :session, :binding, :binding_generation, :kind, :terminal,
  :generation, :previous, :agent, :thread, :controller, :body_hash, :request_hash,
  'prepared', 'prepared', :anchor, :dispatcher, :epoch, :now)`)

	dispatchForget = define(`
DELETE FROM dispatches
WHERE message_id = :message AND status = 'aborted' AND safe_to_retry = 1`)
)

// Replay looks for a receipt of this message id (tools §5), before anything is
// observed or typed. found: the call was made before, return its stored level
// and type nothing. idempotency_conflict: the id was used for something else. A
// receipt that may be tried again once counts as not found.
func (s *Store) Replay(ctx context.Context, r Receipt) (sub Submission, found bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		d, ok, err := first(t, scanDispatch, dispatchByMessage, "message", r.MessageID)
		if err != nil || !ok {
			return err
		}
		if again, err := r.judge(d); err != nil || again {
			return err
		}
		sub, err = submission(t, r.MessageID)
		sub.Replayed, found = true, true
		return err
	})
	if err != nil {
		return Submission{}, false, err
	}
	return sub, found, nil
}

// judge compares a call with its receipt: an error is a conflict, again true an
// aborted attempt that may be made once more, else it is a replay.
func (r Receipt) judge(d Dispatch) (again bool, err error) {
	same := func(given, stored string) bool { return given == "" || given == stored }
	thread := r.NativeThreadID == "" || d.NativeThreadID == "" || r.NativeThreadID == d.NativeThreadID
	if d.BodyHash != r.BodyHash || d.RequestHash != r.RequestHash || !thread ||
		!same(r.Kind, d.Kind) || !same(r.TurnID, d.TurnID) || !same(r.SessionID, d.SessionID) ||
		!same(r.TerminalKey, d.TerminalKey) || !same(r.Agent, d.Agent) || !same(r.ControllerSessionID, d.ControllerSessionID) {
		return false, fault.New(fault.IdempotencyConflict, "submit message %s: the id was used with other content or another target", d.MessageID)
	}
	return d.Status == DispatchAborted && d.SafeToRetry && d.PreviousMessageID != d.MessageID, nil
}

func (d NewDispatch) receipt() Receipt {
	return Receipt{
		MessageID: d.MessageID, Kind: d.Kind, TurnID: d.TurnID, SessionID: d.Attach.SessionID,
		TerminalKey: d.Attach.Binding.TerminalKey, Agent: d.Attach.Agent, ControllerSessionID: d.ControllerSessionID,
		NativeThreadID: d.Attach.NativeThreadID, BodyHash: d.BodyHash, RequestHash: d.RequestHash,
	}
}

// Preflight tells whether PrepareDispatch would refuse now, and why, without
// writing anything. nil promises nothing: PrepareDispatch judges again.
func (s *Store) Preflight(ctx context.Context, d NewDispatch) error {
	err := s.transact(ctx, func(t *tx) error {
		t.silent = true
		if _, err := t.prepare(&Lease{Holder: s.holder}, d); err != nil {
			return err
		}
		return errDryRun
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

var errDryRun = errors.New("dry run")

// PrepareDispatch writes everything that has to stand before the first byte is
// typed, in one transaction under the pane's terminal lease: Session and binding,
// Turn, message event, receipt, and the fence of the pane.
//
// A call with a known message id changes nothing and comes back Replayed.
// Refusals: idempotency_conflict, lifecycle_unresolved, dispatch_unresolved,
// owner_unavailable, active_owner, session_busy, session_conflict,
// deferred_transfer, turn_status_invalid, binding_superseded; where known with
// details turn_id, message_id, session_id.
func (s *Store) PrepareDispatch(ctx context.Context, l *Lease, d NewDispatch) (sub Submission, err error) {
	if l == nil || l.Name != TerminalLease(d.Attach.Binding.TerminalKey) {
		return sub, fault.New(fault.Internal, "prepare message %s: not under the pane's terminal lease", d.MessageID)
	}
	err = s.transact(ctx, func(t *tx) (err error) {
		if err := t.guard(l); err != nil {
			return err
		}
		sub, err = t.prepare(l, d)
		t.silent = sub.Replayed
		return err
	})
	if err != nil {
		return Submission{}, err
	}
	if !sub.Replayed {
		crashpoint.At("prepared")
	}
	return sub, nil
}

func (t *tx) prepare(l *Lease, d NewDispatch) (sub Submission, err error) {
	previous, replayed, err := t.previousAttempt(d)
	if err != nil {
		return sub, err
	}
	if replayed {
		sub, err = submission(t, d.MessageID)
		sub.Replayed = true
		return sub, err
	}
	if d.TurnID == "" && d.Attach.SessionID != "" {
		if err := t.notBusy(d.Attach.SessionID); err != nil {
			return sub, err
		}
	}
	owner, err := t.preflight(d)
	if err != nil {
		return sub, err
	}
	if d.TurnID != "" {
		previous, err = t.goOn(l, d, owner)
	} else {
		sub.Turn, err = t.newTurn(l, &d)
	}
	if err != nil {
		return sub, err
	}
	if owner != nil {
		if err := t.must(dispatchResolve, "message", owner.MessageID, "now", t.now, "reason", "followed_by:"+d.MessageID); err != nil {
			return sub, err
		}
	}
	if err := t.insertDispatch(l, d, previous); err != nil {
		return sub, err
	}
	return submission(t, d.MessageID)
}

// previousAttempt applies the rules of repeated calls. An aborted receipt that
// is tried again makes room for the new one, which names itself as previous so
// that there is no third.
func (t *tx) previousAttempt(d NewDispatch) (previous string, replayed bool, err error) {
	old, ok, err := first(t, scanDispatch, dispatchByMessage, "message", d.MessageID)
	if err != nil || !ok {
		return "", false, err
	}
	again, err := d.receipt().judge(old)
	if err != nil || !again {
		return "", err == nil, err
	}
	if err := t.event(old.TurnID, "submission_repeated", d.MessageID, nil); err != nil {
		return "", false, err
	}
	return d.MessageID, false, t.must(dispatchForget, "message", d.MessageID)
}

// preflight is the table of core §5.4: nil, nil lets the dispatch proceed, a
// dispatch is the one that it follows and resolves.
func (t *tx) preflight(d NewDispatch) (*Dispatch, error) {
	f, ok, err := first(t, scanFence, fenceOf, "terminal", d.Attach.Binding.TerminalKey)
	if err != nil || !ok {
		return nil, err
	}
	if f.Kind == "transition" {
		return nil, fault.New(fault.LifecycleUnresolved, "submit to the pane: transition %s is not settled", f.RefID).With("transition_id", f.RefID).
			WithHint("list shows it; close with its expected_transition_id ends it as the pane shows it")
	}
	owner, ok, err := first(t, scanDispatch, dispatchByMessage, "message", f.RefID)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.New(fault.OwnerUnavailable, "submit to the pane: the record of message %s cannot be read", f.RefID).With("message_id", f.RefID)
	}
	refuse := func(code fault.Code) error {
		return fault.New(code, "submit to the pane: Turn %s owns it, its message is %s", owner.TurnID, owner.Status).
			With("turn_id", owner.TurnID).With("message_id", owner.MessageID).With("status", owner.Status)
	}
	same := d.TurnID != "" && d.TurnID == owner.TurnID
	switch owner.Status {
	case DispatchUncertain, DispatchNotAccepted:
		if same && d.Kind == KindTask {
			return &owner, nil
		}
	case DispatchEnterDispatched, DispatchAccepted:
		if same && d.Kind == KindAnswer {
			return &owner, nil
		}
		return nil, refuse(fault.ActiveOwner)
	}
	return nil, refuse(fault.DispatchUnresolved)
}

// newTurn attaches to a Session and inserts the Turn. It completes d with what
// the receipt repeats.
func (t *tx) newTurn(l *Lease, d *NewDispatch) (Turn, error) {
	sess, b, err := t.attach(d.Attach)
	if err != nil {
		return Turn{}, err
	}
	if err := t.notBusy(sess.ID); err != nil {
		return Turn{}, err
	}
	inactivity := orDefault(d.InactivityMinutes, DefaultInactivityMinutes)
	hard := orDefault(d.HardMinutes, DefaultHardMinutes)
	_, err = t.exec(turnInsert, "turn", d.NewTurnID, "session", sess.ID, "agent", sess.Agent, "workspace", sess.Workspace,
		"binding", b.ID, "generation", b.Generation, "thread", orNull(b.NativeThreadID), "terminal", b.TerminalKey,
		"controller", d.ControllerSessionID, "route", d.Route, "request", d.RequestText, "message", d.MessageID, "now", t.now,
		"inactivity", inactivity, "hard", hard, "retention", orDefault(d.RetentionMinutes, DefaultRetentionMinutes),
		"inactivity_deadline", t.now+minutes(inactivity), "hard_deadline", t.now+minutes(hard))
	if err != nil {
		return Turn{}, err
	}
	turn, err := t.turn(d.NewTurnID)
	if err != nil {
		return turn, err
	}
	next := turn
	next.Status = TurnWaitingForAgent
	if err := t.saveTurn(nil, turn, &next); err != nil {
		return turn, err
	}
	d.TurnID = next.ID
	return next, nil
}

// notBusy refuses a Session with a blocking Turn.
func (t *tx) notBusy(sessionID string) error {
	turn, busy, err := first(t, scanTurn, turnBlocking, "session", sessionID)
	if err == nil && busy {
		err = sessionBusy(turn)
	}
	return err
}

// goOn is the form with a Turn: an answer, or the retry form of send. It gives
// the message that the new one follows.
func (t *tx) goOn(l *Lease, d NewDispatch, owner *Dispatch) (previous string, err error) {
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return "", err
	}
	from, doing := TurnStalled, "submit again to"
	if d.Kind == KindAnswer {
		from, doing = TurnWaitingForController, "answer"
	}
	if err := allow(turn, doing, from); err != nil {
		return "", err
	}
	if owner == nil || owner.MessageID != turn.CurrentMessageID {
		return "", fault.New(fault.ActiveOwner, "%s Turn %s: it does not own the pane", doing, turn.ID).With("turn_id", turn.ID)
	}
	b, err := t.binding(turn.BindingID)
	if err != nil {
		return "", err
	}
	if b.ReleasedAt != 0 || b.IncarnationKey != d.Attach.Binding.IncarnationKey {
		return "", superseded(turn.ID, "binding_superseded")
	}
	next := turn
	next.CurrentMessageID = d.MessageID
	next.LastActivityAt = t.at(turn.LastActivityAt)
	next.InactivityDeadlineAt = next.LastActivityAt + minutes(turn.InactivityMinutes)
	if d.Kind == KindTask {
		next.Status, next.StalledAt, next.StalledReason, next.StalledNotifiedAt = TurnWaitingForAgent, 0, "", 0
		if err := t.supersedeLane(turn.ID, LaneNotification, "submitted_again"); err != nil {
			return "", err
		}
	}
	return owner.MessageID, t.saveTurn(nil, turn, &next)
}

// insertDispatch writes receipt, fence and message event of a Turn that stands.
func (t *tx) insertDispatch(l *Lease, d NewDispatch, previous string) error {
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return err
	}
	generation, _, err := first(t, scanInt, generationNext, "terminal", turn.TerminalKey)
	if err != nil {
		return err
	}
	_, err = t.exec(dispatchInsert, "message", d.MessageID, "tool_call", orNull(d.ToolCallID), "turn", turn.ID,
		"session", turn.SessionID, "binding", turn.BindingID, "binding_generation", turn.BindingGeneration, "kind", d.Kind,
		"terminal", turn.TerminalKey, "generation", generation, "previous", orNull(previous), "agent", turn.Agent,
		"thread", orNull(turn.NativeThreadID), "controller", d.ControllerSessionID, "body_hash", d.BodyHash,
		"request_hash", d.RequestHash, "anchor", d.Anchor, "dispatcher", t.holder, "epoch", l.Epoch, "now", t.now)
	if strings.HasPrefix(violated(err), "dispatches.tool_call_id") {
		return fault.New(fault.IdempotencyConflict, "submit message %s: the tool call made another message", d.MessageID)
	}
	if err != nil {
		return err
	}
	if err := t.fence(l, Dispatch{TerminalKey: turn.TerminalKey, MessageID: d.MessageID, Generation: generation}); err != nil {
		return err
	}
	detail, err := d.detail()
	if err != nil {
		return err
	}
	return t.event(turn.ID, "message", d.MessageID, detail)
}

func orDefault(v, d float64) float64 {
	if v == 0 {
		return d
	}
	return v
}

// superseded says that a record belongs to an older generation of its Turn.
func superseded(turnID, reason string) error {
	return fault.New(fault.BindingSuperseded, "write to Turn %s: %s", turnID, strings.ReplaceAll(reason, "_", " ")).
		With("turn_id", turnID).With("reason", reason)
}
