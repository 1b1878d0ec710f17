package store

import (
	"context"
	"encoding/json"
	"slices"

	"drawbridge/shared/fault"
)

// Turn statuses (core §5.1).
const (
	TurnCreated              = "created"
	TurnRunning              = "running"
	TurnWaitingForAgent      = "waiting_for_agent"
	TurnWaitingForController = "waiting_for_controller"
	TurnIdle                 = "idle"
	TurnStalled              = "stalled"
	TurnFailed               = "failed"
	TurnCancelling           = "cancelling"
	TurnCancelled            = "cancelled"
	TurnClosed               = "closed"
)

// Turn is one dispatched request, to its end. Times are wall-clock
// milliseconds, 0 = not set.
type Turn struct {
	ID                   string
	SessionID            string
	Revision             int64
	Status               string
	Agent                string
	Workspace            string
	BindingID            string
	BindingGeneration    int64
	NativeThreadID       string
	TerminalKey          string
	ControllerSessionID  string
	Route                []byte // canonical JSON; nil: no callbacks
	RequestText          string
	CurrentMessageID     string
	ResponseRoundsUsed   int64
	SoftLimit            int64
	HardLimit            int64
	StartedAt            int64
	LastActivityAt       int64
	InactivityMinutes    float64
	HardMinutes          float64
	RetentionMinutes     float64
	InactivityDeadlineAt int64
	HardDeadlineAt       int64
	Monitor              []byte // the monitor's own JSON, nil at first
	ClaimMessageID       string
	ClaimFingerprint     string
	ClaimOutcome         string
	ClaimDeliveryID      string
	ClaimedAt            int64
	StalledAt            int64
	StalledReason        string
	StalledNotifiedAt    int64
	IdleSince            int64
	CancelledAt          int64
	ClosedAt             int64
	CloseReason          string
	CreatedAt            int64
	UpdatedAt            int64
}

// Blocks reports whether the Turn keeps its Session from a new send.
func (t Turn) Blocks() bool { return blocking(t.Status) }

// TurnEvent is one line of a Turn's history, never changed.
type TurnEvent struct {
	Seq       int64
	TurnID    string
	At        int64
	Event     string
	MessageID string
	Detail    []byte // JSON object
}

// TurnFilter selects Turns, newest first; zero fields select all. At least one
// of the fields must be set, or Limit.
type TurnFilter struct {
	Statuses    []string
	SessionID   string
	TerminalKey string
	Limit       int // 0: 1000
}

// TurnCancel ends a Turn whose interrupt key was sent.
type TurnCancel struct {
	TurnID string
	Detail []byte // JSON object for the event, or nil
}

// TurnClose closes a Turn's record.
type TurnClose struct {
	TurnID string
	Reason string
}

// TurnRenew goes on monitoring a stalled Turn.
type TurnRenew struct {
	TurnID  string
	Minutes float64 // new inactivity minutes; 0: as stored
}

const defaultLimit = 1000

// blockingStatuses keep their Session from a new send; turn_blocking of the
// schema names the same.
var blockingStatuses = []string{TurnCreated, TurnRunning, TurnWaitingForAgent, TurnWaitingForController, TurnStalled, TurnCancelling}

var allTurnStatuses = []string{TurnCreated, TurnRunning, TurnWaitingForAgent, TurnWaitingForController, TurnIdle,
	TurnStalled, TurnFailed, TurnCancelling, TurnCancelled, TurnClosed}

func blocking(status string) bool { return slices.Contains(blockingStatuses, status) }

const turnCols = `t.turn_id, t.session_id, t.revision, t.status, t.agent, t.workspace, t.binding_id, t.binding_generation,
  coalesce(t.native_thread_id, ''), t.terminal_key, t.controller_session_id, t.route_json, t.request_text,
  coalesce(t.current_message_id, ''), t.response_rounds_used, t.soft_limit, t.hard_limit,
  coalesce(t.started_at, 0), coalesce(t.last_activity_at, 0), t.inactivity_minutes, t.hard_minutes, t.retention_minutes,
  coalesce(t.inactivity_deadline_at, 0), coalesce(t.hard_deadline_at, 0), t.monitor_json,
  coalesce(t.claim_message_id, ''), coalesce(t.claim_fingerprint, ''), coalesce(t.claim_outcome, ''),
  coalesce(t.claim_delivery_id, ''), coalesce(t.claimed_at, 0),
  coalesce(t.stalled_at, 0), coalesce(t.stalled_reason, ''), coalesce(t.stalled_notified_at, 0),
  coalesce(t.idle_since, 0), coalesce(t.cancelled_at, 0), coalesce(t.closed_at, 0), coalesce(t.close_reason, ''),
  t.created_at, t.updated_at`

func (t *Turn) dest() []any {
	return []any{&t.ID, &t.SessionID, &t.Revision, &t.Status, &t.Agent, &t.Workspace, &t.BindingID, &t.BindingGeneration,
		&t.NativeThreadID, &t.TerminalKey, &t.ControllerSessionID, &t.Route, &t.RequestText,
		&t.CurrentMessageID, &t.ResponseRoundsUsed, &t.SoftLimit, &t.HardLimit,
		&t.StartedAt, &t.LastActivityAt, &t.InactivityMinutes, &t.HardMinutes, &t.RetentionMinutes,
		&t.InactivityDeadlineAt, &t.HardDeadlineAt, &t.Monitor,
		&t.ClaimMessageID, &t.ClaimFingerprint, &t.ClaimOutcome, &t.ClaimDeliveryID, &t.ClaimedAt,
		&t.StalledAt, &t.StalledReason, &t.StalledNotifiedAt,
		&t.IdleSince, &t.CancelledAt, &t.ClosedAt, &t.CloseReason, &t.CreatedAt, &t.UpdatedAt}
}

func scanTurn(r scanner) (t Turn, err error) { err = r.Scan(t.dest()...); return t, err }

func scanEvent(r scanner) (e TurnEvent, err error) {
	err = r.Scan(&e.Seq, &e.TurnID, &e.At, &e.Event, &e.MessageID, &e.Detail)
	return e, err
}

// A parameter is never compared with a column that a partial index compares with a
// constant: the planner would look at its value and compile the statement anew at
// each call. The revision stands for the status.
const turnSet = `
UPDATE turns
SET revision = revision + 1, status = :status, native_thread_id = :thread, current_message_id = :message,
  response_rounds_used = :rounds, started_at = :started, last_activity_at = :activity,
  inactivity_minutes = :inactivity_minutes, inactivity_deadline_at = :inactivity_deadline, hard_deadline_at = :hard_deadline,
  monitor_json = :monitor,
  claim_message_id = :claim_message, claim_fingerprint = :claim_fingerprint, claim_outcome = :claim_outcome,
  claim_delivery_id = :claim_delivery, claimed_at = :claimed,
  stalled_at = :stalled, stalled_reason = :stalled_reason, stalled_notified_at = :stalled_notified,
  idle_since = :idle, cancelled_at = :cancelled, closed_at = :closed, close_reason = :close_reason,
  updated_at = :updated
WHERE turn_id = :turn AND revision = :revision`

var (
	turnByID = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.turn_id = :turn`)

	turnBlocking = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.session_id = :session
  AND (t.status = 'created' OR t.status = 'running' OR t.status = 'waiting_for_agent'
    OR t.status = 'waiting_for_controller' OR t.status = 'stalled' OR t.status = 'cancelling')`)

	turnsByStatus = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.status IN (SELECT value FROM json_each(:statuses))
ORDER BY t.created_at DESC, t.turn_id
LIMIT :limit`)

	turnsBySession = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.session_id = :session AND t.status IN (SELECT value FROM json_each(:statuses))
ORDER BY t.created_at DESC, t.turn_id
LIMIT :limit`)

	turnsByTerminal = define(`
SELECT ` + turnCols + `
FROM turns t
WHERE t.terminal_key = :terminal AND t.status IN (SELECT value FROM json_each(:statuses))
ORDER BY t.created_at DESC, t.turn_id
LIMIT :limit`)

	turnSave = define(turnSet)

	turnSaveHeld = define(turnSet + ` AND ` + held)

	eventInsert = define(`
INSERT INTO turn_events(turn_id, ts, event, message_id, detail_json)
VALUES (:turn, :now, :event, :message, :detail)`)

	eventsLast = define(`
SELECT seq, turn_id, ts, event, coalesce(message_id, ''), detail_json
FROM turn_events
WHERE turn_id = :turn
ORDER BY seq DESC
LIMIT :limit`)
)

// Turn gives one Turn, or not_found.
func (s *Store) Turn(ctx context.Context, id string) (Turn, error) {
	return only(pool{ctx, s.rdb}, scanTurn, "Turn", id, turnByID, "turn", id)
}

// Turns lists Turns, the newest first.
func (s *Store) Turns(ctx context.Context, f TurnFilter) (turns []Turn, err error) {
	q, limit, statuses := pool{ctx, s.rdb}, limitOr(f.Limit), f.Statuses
	if len(statuses) == 0 {
		statuses = allTurnStatuses
	}
	switch {
	case f.SessionID != "":
		turns, err = list(q, scanTurn, turnsBySession, "session", f.SessionID, "statuses", texts(statuses), "limit", limit)
		if f.TerminalKey != "" {
			turns = slices.DeleteFunc(turns, func(t Turn) bool { return t.TerminalKey != f.TerminalKey })
		}
	case f.TerminalKey != "":
		turns, err = list(q, scanTurn, turnsByTerminal, "terminal", f.TerminalKey, "statuses", texts(statuses), "limit", limit)
	default:
		turns, err = list(q, scanTurn, turnsByStatus, "statuses", texts(statuses), "limit", limit)
	}
	return turns, storeError("list Turns", err)
}

// TurnEvents gives the last events of a Turn, the oldest of them first. last 0
// means all.
func (s *Store) TurnEvents(ctx context.Context, turnID string, last int) ([]TurnEvent, error) {
	if last <= 0 {
		last = -1
	}
	events, err := list(pool{ctx, s.rdb}, scanEvent, eventsLast, "turn", turnID, "limit", int64(last))
	slices.Reverse(events)
	return events, storeError("list events", err)
}

func limitOr(n int) int64 {
	if n <= 0 {
		return defaultLimit
	}
	return int64(n)
}

// texts is a list parameter for json_each.
func texts(list []string) []byte {
	data, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings only
	}
	return data
}

func (t *tx) turn(id string) (Turn, error) {
	return only(t, scanTurn, "Turn", id, turnByID, "turn", id)
}

// at is the time to write into a row that was last changed at updated: a row
// never goes back in time.
func (t *tx) at(updated int64) int64 { return max(t.now, updated) }

// saveTurn writes the changed Turn over old, which was read in this transaction,
// under l where the move has a lease.
func (t *tx) saveTurn(l *Lease, old Turn, now *Turn) error {
	now.UpdatedAt = t.at(old.UpdatedAt)
	now.LastActivityAt = max(now.LastActivityAt, old.LastActivityAt)
	pairs := []any{
		"turn", old.ID, "revision", old.Revision, "status", now.Status,
		"thread", orNull(now.NativeThreadID), "message", orNull(now.CurrentMessageID), "rounds", now.ResponseRoundsUsed,
		"started", orNull(now.StartedAt), "activity", orNull(now.LastActivityAt), "inactivity_minutes", now.InactivityMinutes,
		"inactivity_deadline", orNull(now.InactivityDeadlineAt), "hard_deadline", orNull(now.HardDeadlineAt), "monitor", now.Monitor,
		"claim_message", orNull(now.ClaimMessageID), "claim_fingerprint", orNull(now.ClaimFingerprint),
		"claim_outcome", orNull(now.ClaimOutcome), "claim_delivery", orNull(now.ClaimDeliveryID), "claimed", orNull(now.ClaimedAt),
		"stalled", orNull(now.StalledAt), "stalled_reason", orNull(now.StalledReason), "stalled_notified", orNull(now.StalledNotifiedAt),
		"idle", orNull(now.IdleSince), "cancelled", orNull(now.CancelledAt), "closed", orNull(now.ClosedAt),
		"close_reason", orNull(now.CloseReason), "updated", now.UpdatedAt,
	}
	st := turnSave
	if l != nil {
		st, pairs = turnSaveHeld, append(pairs, t.under(l)...)
	}
	if err := t.must(st, pairs...); err != nil {
		return err
	}
	now.Revision = old.Revision + 1
	return nil
}

// event appends to the history of a Turn. detail is a JSON object or nil.
func (t *tx) event(turnID, event, messageID string, detail []byte) error {
	if detail == nil {
		detail = []byte("{}")
	}
	_, err := t.exec(eventInsert, "turn", turnID, "now", t.now, "event", event, "message", orNull(messageID), "detail", detail)
	return err
}

// detailOf is a small JSON object for an event.
func detailOf(pairs ...string) []byte {
	m := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	data, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings only
	}
	return data
}

// minutes is a span in milliseconds.
func minutes(m float64) int64 { return int64(m * 60_000) }

// statusInvalid says that a Turn's status does not allow the move.
func statusInvalid(t Turn, doing string) error {
	return fault.New(fault.TurnStatusInvalid, "%s Turn %s: it is %s", doing, t.ID, t.Status).
		With("turn_id", t.ID).With("status", t.Status)
}

// allow refuses the move unless the Turn has one of these statuses.
func allow(t Turn, doing string, from ...string) error {
	if slices.Contains(from, t.Status) {
		return nil
	}
	return statusInvalid(t, doing)
}
