package store

import (
	"context"
	"slices"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Dispatch statuses and proof stages (core §5.2).
const (
	DispatchPrepared        = "prepared"
	DispatchTextInjected    = "text_injected"
	DispatchEnterDispatched = "enter_dispatched"
	DispatchAccepted        = "agent_accepted"
	DispatchNotAccepted     = "not_accepted"
	DispatchUncertain       = "uncertain"
	DispatchAborted         = "aborted"
)

// Kinds of dispatch.
const (
	KindTask   = "task"
	KindAnswer = "answer"
)

// Dispatch is the receipt of one message and the ledger of its submission.
type Dispatch struct {
	MessageID           string
	ToolCallID          string
	TurnID              string
	SessionID           string
	BindingID           string
	BindingGeneration   int64
	Kind                string
	TerminalKey         string
	Generation          int64 // counts the submissions into this pane
	PreviousMessageID   string
	Agent               string
	NativeThreadID      string // "" until a provisional one was accepted
	ControllerSessionID string
	BodyHash            string
	RequestHash         string
	Status              string
	LastProvenStage     string
	InputMayHaveStarted bool
	SafeToRetry         bool
	Anchor              []byte // JSON
	Acceptance          []byte // JSON or nil
	Dispatcher          string // holder
	LeaseEpoch          int64
	PreparedAt          int64
	TextInjectedAt      int64
	EnterDispatchedAt   int64
	AcceptedAt          int64
	SettledAt           int64
	ErrorCode           string
	ResolvedAt          int64 // 0: open
	ResolvedReason      string
}

// Fence says that one operation on a pane is unresolved.
type Fence struct {
	TerminalKey string
	Kind        string // dispatch, transition
	RefID       string // message id or transition id
	Generation  int64
	LeaseEpoch  int64
	CreatedAt   int64
}

// Attach says which Session a new Turn belongs to. Exactly one form:
//
//   - SessionID set: that bound Session at Revision (0: any), whose live binding
//     must be this process (IncarnationKey) and, if NativeThreadID is set, this
//     thread; else session_conflict.
//   - SessionID empty, NativeThreadID set: the proven live thread. The Session
//     with a live binding of this thread and process is used; else the detached
//     Session that had this thread last; else a new one (NewSessionID).
//   - both empty: provisional. A new Session and a binding without thread.
//
// A live binding of the same process to another thread (or to none) is
// session_conflict, unless Replace is set (terminal_follow_current): then it is
// released and its Session detached, provided no Turn of that Session blocks
// (active_owner; deferred_transfer while a provisional binding is still open).
type Attach struct {
	SessionID      string
	Revision       int64
	NativeThreadID string // lower case
	NewSessionID   string // id for the Session if one must be made; required unless SessionID
	Agent          string
	Workspace      string
	Replace        bool
	DeadBindings   []string // live binding ids whose process the caller proved dead; released first
	Binding        NewBinding
}

// NewDispatch is everything PrepareDispatch needs. Three forms:
//
//   - new Turn: Kind task, NewTurnID and Attach set;
//   - answer: Kind answer, TurnID of a Turn in waiting_for_controller;
//   - retry form of send: Kind task, TurnID of a stalled Turn whose dispatch is
//     not_accepted or uncertain.
//
// In the last two Attach.Binding.TerminalKey and IncarnationKey must be those
// of the Turn's live binding.
type NewDispatch struct {
	MessageID           string
	ToolCallID          string
	Kind                string
	TurnID              string
	NewTurnID           string
	Attach              Attach
	ControllerSessionID string
	Route               []byte // canonical JSON; nil: record only, no callbacks
	RequestText         string
	BodyHash            string
	RequestHash         string
	Anchor              []byte  // JSON
	InactivityMinutes   float64 // 0: 60
	HardMinutes         float64 // 0: 720
	RetentionMinutes    float64 // 0: 10080
}

// Receipt is what makes two calls with one message id the same call (tools §5).
// Empty fields other than the hashes are not compared.
type Receipt struct {
	MessageID           string
	Kind                string
	TurnID              string // answer and retry form
	SessionID           string // strict form
	TerminalKey         string
	Agent               string
	ControllerSessionID string
	NativeThreadID      string
	BodyHash            string
	RequestHash         string
}

// Submission is a dispatch with what it belongs to.
type Submission struct {
	Turn     Turn
	Session  Session
	Binding  Binding
	Dispatch Dispatch
	Replayed bool // the row existed: nothing was changed, nothing may be typed
}

// Acceptance stores the proof that the agent took exactly this request.
type Acceptance struct {
	MessageID      string
	NativeThreadID string // lower case
	Evidence       []byte // canonical JSON
	// Check recomputes the evidence against the stored dispatch; it must do no
	// IO. A nil Check is refused.
	Check func(d Dispatch, evidence []byte) error
}

// Settlement ends a dispatch without acceptance; its Turn becomes stalled.
type Settlement struct {
	MessageID string
	Status    string // uncertain or not_accepted
	Code      string // error_code of the dispatch
	Reason    string // stalled_reason of the Turn
	Callback  *NewCallback
}

// OpenDispatch is an unresolved dispatch as a recovery sweep sees it.
type OpenDispatch struct {
	Dispatch       Dispatch
	Turn           Turn
	DispatcherGone bool // its process is proven dead
	TerminalFree   bool // nobody holds the pane's terminal lease
	Fenced         bool // the pane's fence names this dispatch
}

const dispatchCols = `d.message_id, coalesce(d.tool_call_id, ''), d.turn_id, d.session_id, d.binding_id, d.binding_generation,
  d.kind, d.terminal_key, d.generation, coalesce(d.previous_message_id, ''), d.agent, coalesce(d.native_thread_id, ''),
  d.controller_session_id, d.body_hash, d.request_hash, d.status, d.last_proven_stage, d.input_may_have_started, d.safe_to_retry,
  d.anchor_json, d.acceptance_json, d.dispatcher, d.lease_epoch, d.prepared_at, coalesce(d.text_injected_at, 0),
  coalesce(d.enter_dispatched_at, 0), coalesce(d.agent_accepted_at, 0), coalesce(d.settled_at, 0), coalesce(d.error_code, ''),
  coalesce(d.resolved_at, 0), coalesce(d.resolved_reason, '')`

func (d *Dispatch) dest() []any {
	return []any{&d.MessageID, &d.ToolCallID, &d.TurnID, &d.SessionID, &d.BindingID, &d.BindingGeneration,
		&d.Kind, &d.TerminalKey, &d.Generation, &d.PreviousMessageID, &d.Agent, &d.NativeThreadID,
		&d.ControllerSessionID, &d.BodyHash, &d.RequestHash, &d.Status, &d.LastProvenStage, &d.InputMayHaveStarted, &d.SafeToRetry,
		&d.Anchor, &d.Acceptance, &d.Dispatcher, &d.LeaseEpoch, &d.PreparedAt, &d.TextInjectedAt,
		&d.EnterDispatchedAt, &d.AcceptedAt, &d.SettledAt, &d.ErrorCode, &d.ResolvedAt, &d.ResolvedReason}
}

func scanDispatch(r scanner) (d Dispatch, err error) { err = r.Scan(d.dest()...); return d, err }

func scanFence(r scanner) (f Fence, err error) {
	err = r.Scan(&f.TerminalKey, &f.Kind, &f.RefID, &f.Generation, &f.LeaseEpoch, &f.CreatedAt)
	return f, err
}

var (
	dispatchByMessage = define(`
SELECT ` + dispatchCols + `
FROM dispatches d
WHERE d.message_id = :message`)

	dispatchesOf = define(`
SELECT ` + dispatchCols + `
FROM dispatches d
WHERE d.turn_id = :turn
ORDER BY d.prepared_at, d.generation`)

	dispatchSave = define(`
UPDATE dispatches
SET status = :status, last_proven_stage = :stage, input_may_have_started = :mark, safe_to_retry = :safe,
  native_thread_id = :thread, acceptance_json = :acceptance,
  text_injected_at = :text_injected, enter_dispatched_at = :enter, agent_accepted_at = :accepted,
  settled_at = :settled, error_code = :code, resolved_at = :resolved, resolved_reason = :reason
WHERE message_id = :message AND status = :from AND resolved_at IS NULL AND ` + held)

	dispatchResolve = define(`
UPDATE dispatches
SET resolved_at = max(prepared_at, :now), resolved_reason = :reason
WHERE message_id = :message AND resolved_at IS NULL`)

	dispatchReopen = define(`
UPDATE dispatches
SET resolved_at = NULL, resolved_reason = NULL
WHERE message_id = :message AND resolved_at IS NOT NULL`)

	fenceOf = define(`
SELECT terminal_key, kind, ref_id, generation, lease_epoch, created_at
FROM terminal_fences
WHERE terminal_key = :terminal`)

	fencesAll = define(`
SELECT terminal_key, kind, ref_id, generation, lease_epoch, created_at
FROM terminal_fences
ORDER BY terminal_key`)

	fencePut = define(`
INSERT INTO terminal_fences(terminal_key, kind, ref_id, generation, lease_epoch, created_at)
VALUES (:terminal, :kind, :ref, :generation, :epoch, :now)
ON CONFLICT(terminal_key) DO UPDATE
SET kind = excluded.kind, ref_id = excluded.ref_id, generation = excluded.generation,
  lease_epoch = excluded.lease_epoch, created_at = excluded.created_at`)

	fenceDrop = define(`
DELETE FROM terminal_fences
WHERE terminal_key = :terminal AND ref_id = :ref`)
)

// Submission gives a dispatch with its Turn, Session and binding, or not_found.
func (s *Store) Submission(ctx context.Context, messageID string) (sub Submission, err error) {
	err = s.view(ctx, func(t *tx) (err error) {
		sub, err = submission(t, messageID)
		return err
	})
	return sub, err
}

// Dispatch gives one dispatch alone, or not_found.
func (s *Store) Dispatch(ctx context.Context, messageID string) (Dispatch, error) {
	return only(pool{ctx, s.rdb}, scanDispatch, "message", messageID, dispatchByMessage, "message", messageID)
}

// Dispatches lists the dispatches of a Turn, the oldest first.
func (s *Store) Dispatches(ctx context.Context, turnID string) ([]Dispatch, error) {
	all, err := list(pool{ctx, s.rdb}, scanDispatch, dispatchesOf, "turn", turnID)
	return all, storeError("list dispatches", err)
}

// Fence gives the unresolved operation of a pane, if there is one.
func (s *Store) Fence(ctx context.Context, terminalKey string) (Fence, bool, error) {
	f, ok, err := first(pool{ctx, s.rdb}, scanFence, fenceOf, "terminal", terminalKey)
	return f, ok, storeError("read fence", err)
}

// Fences lists all unresolved operations.
func (s *Store) Fences(ctx context.Context) ([]Fence, error) {
	all, err := list(pool{ctx, s.rdb}, scanFence, fencesAll)
	return all, storeError("list fences", err)
}

func submission(q queryer, messageID string) (sub Submission, err error) {
	if sub.Dispatch, err = only(q, scanDispatch, "message", messageID, dispatchByMessage, "message", messageID); err != nil {
		return sub, err
	}
	if sub.Turn, err = only(q, scanTurn, "Turn", sub.Dispatch.TurnID, turnByID, "turn", sub.Dispatch.TurnID); err != nil {
		return sub, err
	}
	if sub.Session, err = only(q, scanSession, "Session", sub.Turn.SessionID, sessionByID, "session", sub.Turn.SessionID); err != nil {
		return sub, err
	}
	sub.Binding, err = only(q, scanBinding, "binding", sub.Dispatch.BindingID, bindingByID, "binding", sub.Dispatch.BindingID)
	return sub, err
}

// MarkInput is committed directly before the first byte is typed: from here on
// no failure is an abort. turn_status_invalid: the Turn was ended meanwhile, type
// nothing.
func (s *Store) MarkInput(ctx context.Context, l *Lease, messageID string) error {
	return s.stage(ctx, l, messageID, "input_marked", func(t *tx, d *Dispatch) error {
		if d.Status != DispatchPrepared || d.InputMayHaveStarted {
			return stageConflict(*d, "mark input of")
		}
		d.InputMayHaveStarted = true
		return nil
	})
}

// TextInjected is committed when the draft was seen to be exactly the request,
// before Enter is pressed. An error means: do not press Enter.
func (s *Store) TextInjected(ctx context.Context, l *Lease, messageID string) error {
	return s.stage(ctx, l, messageID, "text_injected", func(t *tx, d *Dispatch) error {
		if d.Status != DispatchPrepared || !d.InputMayHaveStarted {
			return stageConflict(*d, "record the draft of")
		}
		d.Status, d.LastProvenStage, d.TextInjectedAt = DispatchTextInjected, DispatchTextInjected, t.at(d.PreparedAt)
		return nil
	})
}

// EnterDispatched is committed after Enter was pressed once. With an answer the
// Turn goes back to waiting_for_agent and the question's callback is superseded.
func (s *Store) EnterDispatched(ctx context.Context, l *Lease, messageID string) error {
	return s.stage(ctx, l, messageID, "enter_dispatched", func(t *tx, d *Dispatch) error {
		if d.Status != DispatchTextInjected {
			return stageConflict(*d, "record Enter of")
		}
		d.Status, d.LastProvenStage, d.EnterDispatchedAt = DispatchEnterDispatched, DispatchEnterDispatched, t.at(d.TextInjectedAt)
		return t.answered(l, *d)
	})
}

// stage is one step of the dispatcher itself: the process and lease epoch that
// prepared the dispatch, and no other.
func (s *Store) stage(ctx context.Context, l *Lease, messageID, point string, step func(*tx, *Dispatch) error) error {
	err := s.transact(ctx, func(t *tx) error {
		d, err := t.openDispatch(l, messageID)
		if err != nil {
			return err
		}
		if d.Dispatcher != l.Holder || d.LeaseEpoch != l.Epoch || l.Name != TerminalLease(d.TerminalKey) {
			return leaseGone(l)
		}
		old := d
		if err := step(t, &d); err != nil {
			return err
		}
		return t.saveDispatch(l, old, d)
	})
	if err == nil {
		crashpoint.At(point)
	}
	return err
}

// openDispatch gives an unresolved dispatch whose Turn still follows it, under
// the pane's terminal lease or the message's monitor lease.
func (t *tx) openDispatch(l *Lease, messageID string) (Dispatch, error) {
	if err := t.guard(l); err != nil {
		return Dispatch{}, err
	}
	d, err := only(t, scanDispatch, "message", messageID, dispatchByMessage, "message", messageID)
	if err != nil {
		return d, err
	}
	if l.Name != TerminalLease(d.TerminalKey) && l.Name != MonitorLease(d.TurnID, d.MessageID) {
		return d, fault.New(fault.Internal, "write message %s under lease %s", messageID, leaseKind(l.Name))
	}
	turn, err := t.turn(d.TurnID)
	if err != nil {
		return d, err
	}
	if d.ResolvedAt != 0 || turn.CurrentMessageID != d.MessageID || !turn.Blocks() {
		return d, statusInvalid(turn, "submit to")
	}
	return d, nil
}

// answered moves a Turn that waited for this answer.
func (t *tx) answered(l *Lease, d Dispatch) error {
	turn, err := t.turn(d.TurnID)
	if err != nil || turn.Status != TurnWaitingForController {
		return err
	}
	next := turn
	next.Status = TurnWaitingForAgent
	next.ResponseRoundsUsed++
	if err := t.saveTurn(l, turn, &next); err != nil {
		return err
	}
	return t.supersedeQuestion(d.TurnID, "answered")
}

func (t *tx) saveDispatch(l *Lease, old, d Dispatch) error {
	return t.must(dispatchSave, append(t.under(l),
		"message", old.MessageID, "from", old.Status, "status", d.Status, "stage", d.LastProvenStage,
		"mark", d.InputMayHaveStarted, "safe", d.SafeToRetry, "thread", orNull(d.NativeThreadID), "acceptance", d.Acceptance,
		"text_injected", orNull(d.TextInjectedAt), "enter", orNull(d.EnterDispatchedAt), "accepted", orNull(d.AcceptedAt),
		"settled", orNull(d.SettledAt), "code", orNull(d.ErrorCode), "resolved", orNull(d.ResolvedAt), "reason", orNull(d.ResolvedReason))...)
}

// stageConflict says that a dispatch is not where the step begins.
func stageConflict(d Dispatch, doing string) error {
	err := fault.New(fault.DispatchUnresolved, "%s message %s: it is %s", doing, d.MessageID, d.Status).
		With("turn_id", d.TurnID).With("message_id", d.MessageID).With("status", d.Status)
	if d.InputMayHaveStarted {
		return err.WithInput(fault.InputPossible)
	}
	return err
}

// settleable are the statuses that may end without acceptance, by their end.
var settleable = map[string][]string{
	DispatchUncertain:   {DispatchPrepared, DispatchTextInjected, DispatchEnterDispatched},
	DispatchNotAccepted: {DispatchEnterDispatched},
}

func canSettle(d Dispatch, status string) bool {
	return slices.Contains(settleable[status], d.Status) && d.InputMayHaveStarted
}
