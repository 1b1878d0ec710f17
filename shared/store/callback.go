package store

import (
	"bytes"
	"context"
	"time"

	"drawbridge/shared/fault"
)

// Callback statuses, lanes and dispositions (core §8).
const (
	CallbackPending    = "pending"
	CallbackClaimed    = "claimed"
	CallbackRetryWait  = "retry_wait"
	CallbackAccepted   = "accepted"
	CallbackPermanent  = "permanent"
	CallbackUncertain  = "uncertain"
	CallbackExhausted  = "exhausted"
	CallbackSuperseded = "superseded"

	LaneLifecycle    = "turn_lifecycle"
	LaneNotification = "turn_notification"
	LaneWatch        = "watch"

	Accepted         = "accepted"
	RetryableFailure = "retryable_failure"
	PermanentFailure = "permanent_failure"
	Uncertain        = "uncertain"
)

// Budget (core §8.3).
const (
	MaxAttempts      = 5                  // of a Turn's callback
	WatchKeepTrying  = 7 * 24 * time.Hour // after settlement
	watchDelayFirst  = 5 * time.Second
	watchDelayMost   = 60 * time.Second
	clockBack        = 60 * time.Second // a due time further ahead counts as due
	ClaimTTLLeast    = 120 * time.Second
	ClaimTTLOverhead = 30 * time.Second
)

// Error codes that the Store itself writes into last_error_code.
const (
	CodeClaimExpired      = "callback_claim_expired"
	CodeOperatorAbandoned = "operator_abandoned"
)

// NewCallback is a callback row as its maker built it. TurnID or WatchID come
// from the move that inserts it.
type NewCallback struct {
	DeliveryID               string
	IdempotencyKey           string
	Lane                     string
	Kind                     string // completion, approval, interaction, stall, watch kind …
	MessageID                string // event id
	EventType                string
	RequiresResponse         bool
	Body                     string
	Envelope                 []byte // canonical JSON
	RouteTransport           string
	RouteProfileID           string
	RouteProfileRevision     string
	RouteControllerSessionID string
}

// Callback is one row of the outbox.
type Callback struct {
	NewCallback
	TurnID             string
	WatchID            string
	Status             string
	Attempts           int64
	AttemptID          string // only while claimed
	ClaimHolder        string
	ClaimEpoch         int64
	ClaimExpiresAt     int64 // boot-time clock
	TransportStartedAt int64
	LastAttemptAt      int64
	NextAttemptAt      int64
	AcceptedAt         int64
	AcceptanceID       string
	LastErrorCode      string
	SupersededAt       int64
	SupersededReason   string
	CreatedAt          int64
	UpdatedAt          int64
}

// Open reports whether the row still wants delivery.
func (c Callback) Open() bool {
	return c.Status == CallbackPending || c.Status == CallbackClaimed || c.Status == CallbackRetryWait
}

// Attempt is one try of one callback.
type Attempt struct {
	DeliveryID   string
	Number       int64
	AttemptID    string
	Holder       string
	ClaimEpoch   int64
	ClaimedAt    int64
	StartedAt    int64
	EndedAt      int64
	Disposition  string
	ErrorCode    string
	AcceptanceID string
	Evidence     []byte
}

// RouteFamily says which rows an outboxd may take: those of one Profile id and
// controller session, or with RouteBound of the Profile id alone.
type RouteFamily struct {
	ProfileID           string
	ControllerSessionID string
	RouteBound          bool
}

// Outcome is the result of one attempt.
type Outcome struct {
	DeliveryID   string
	AttemptID    string
	Disposition  string // Accepted, RetryableFailure, PermanentFailure, Uncertain
	Code         string // "" when accepted
	AcceptanceID string // with Accepted only
	Evidence     []byte // JSON (transport, process status, signal), or nil
}

// CallbackCount counts the rows of one status of one Profile.
type CallbackCount struct {
	ProfileID string
	Status    string
	Lane      string
	Count     int64
}

const callbackCols = `delivery_id, idempotency_key, lane, kind, message_id, event_type, requires_response, body, envelope_json,
  route_transport, route_profile_id, route_profile_revision, route_controller_session_id,
  coalesce(turn_id, ''), coalesce(watch_id, ''), status, attempts, coalesce(attempt_id, ''), coalesce(claim_holder, ''),
  coalesce(claim_epoch, 0), coalesce(claim_expires_at, 0), coalesce(transport_started_at, 0), coalesce(last_attempt_at, 0),
  next_attempt_at, coalesce(accepted_at, 0), coalesce(acceptance_id, ''), coalesce(last_error_code, ''),
  coalesce(superseded_at, 0), coalesce(superseded_reason, ''), created_at, updated_at`

func scanCallback(r scanner) (c Callback, err error) {
	err = r.Scan(&c.DeliveryID, &c.IdempotencyKey, &c.Lane, &c.Kind, &c.MessageID, &c.EventType, &c.RequiresResponse, &c.Body, &c.Envelope,
		&c.RouteTransport, &c.RouteProfileID, &c.RouteProfileRevision, &c.RouteControllerSessionID,
		&c.TurnID, &c.WatchID, &c.Status, &c.Attempts, &c.AttemptID, &c.ClaimHolder,
		&c.ClaimEpoch, &c.ClaimExpiresAt, &c.TransportStartedAt, &c.LastAttemptAt,
		&c.NextAttemptAt, &c.AcceptedAt, &c.AcceptanceID, &c.LastErrorCode,
		&c.SupersededAt, &c.SupersededReason, &c.CreatedAt, &c.UpdatedAt)
	return c, err
}

func scanAttempt(r scanner) (a Attempt, err error) {
	err = r.Scan(&a.DeliveryID, &a.Number, &a.AttemptID, &a.Holder, &a.ClaimEpoch, &a.ClaimedAt, &a.StartedAt, &a.EndedAt,
		&a.Disposition, &a.ErrorCode, &a.AcceptanceID, &a.Evidence)
	return a, err
}

var (
	callbackByID = define(`
SELECT ` + callbackCols + `
FROM callbacks
WHERE delivery_id = :delivery`)

	callbacksOfTurn = define(`
SELECT ` + callbackCols + `
FROM callbacks
WHERE turn_id = :turn
ORDER BY rowid`)

	callbacksOfWatch = define(`
SELECT ` + callbackCols + `
FROM callbacks
WHERE watch_id = :watch
ORDER BY rowid`)

	callbacksOpen = define(`
SELECT ` + callbackCols + `
FROM callbacks
WHERE status IN ('pending','retry_wait') AND route_profile_id = :profile
  AND (:session = '' OR route_controller_session_id = :session)
UNION ALL
SELECT ` + callbackCols + `
FROM callbacks
WHERE status = 'claimed' AND route_profile_id = :profile
  AND (:session = '' OR route_controller_session_id = :session)
ORDER BY created_at, delivery_id
LIMIT :limit`)

	callbackCounts = define(`
SELECT route_profile_id, status, lane, count(*)
FROM callbacks
GROUP BY status, route_profile_id, lane`)

	attemptsOf = define(`
SELECT delivery_id, number, attempt_id, holder, claim_epoch, claimed_at, coalesce(started_at, 0), coalesce(ended_at, 0),
  coalesce(disposition, ''), coalesce(error_code, ''), coalesce(acceptance_id, ''), evidence_json
FROM callback_attempts
WHERE delivery_id = :delivery
ORDER BY number`)

	callbackInsert = define(`
INSERT INTO callbacks(delivery_id, idempotency_key, lane, kind, turn_id, watch_id, message_id, event_type, requires_response,
  body, envelope_json, route_transport, route_profile_id, route_profile_revision, route_controller_session_id,
  status, created_at, updated_at)
VALUES (:delivery, :idempotency, :lane, :kind, :turn, :watch, :message, :event, :requires_response,
  :body, :envelope, :transport, :profile, :revision, :session,
  'pending', :now, :now)`)

	// A superseded row with a start marker keeps it as evidence. Its attempt stays open.
	supersedeOfTurn = define(`
UPDATE callbacks
SET status = 'superseded', attempt_id = NULL, claim_expires_at = NULL,
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE turn_id = :turn AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait')`)

	supersedeOfLane = define(`
UPDATE callbacks
SET status = 'superseded', attempt_id = NULL, claim_expires_at = NULL,
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE turn_id = :turn AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait') AND lane = :lane`)

	supersedeOfQuestion = define(`
UPDATE callbacks
SET status = 'superseded', attempt_id = NULL, claim_expires_at = NULL,
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE turn_id = :turn AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait')
  AND lane = 'turn_lifecycle' AND event_type IN ('question','blocked')`)

	// One that is being delivered may still end accepted.
	supersedeOfWatch = define(`
UPDATE callbacks
SET status = 'superseded',
  superseded_at = max(updated_at, :now), superseded_reason = :reason, updated_at = max(updated_at, :now)
WHERE watch_id = :watch AND status IN ('pending','retry_wait') AND kind = 'approval'`)
)

// Callback gives one row of the outbox, or not_found.
func (s *Store) Callback(ctx context.Context, deliveryID string) (Callback, error) {
	return only(pool{ctx, s.rdb}, scanCallback, "callback", deliveryID, callbackByID, "delivery", deliveryID)
}

// TurnCallbacks lists the callbacks of a Turn in the order of insertion.
func (s *Store) TurnCallbacks(ctx context.Context, turnID string) ([]Callback, error) {
	all, err := list(pool{ctx, s.rdb}, scanCallback, callbacksOfTurn, "turn", turnID)
	return all, storeError("list callbacks", err)
}

// WatchCallbacks lists the callbacks of a Watch in the order of insertion.
func (s *Store) WatchCallbacks(ctx context.Context, watchID string) ([]Callback, error) {
	all, err := list(pool{ctx, s.rdb}, scanCallback, callbacksOfWatch, "watch", watchID)
	return all, storeError("list callbacks", err)
}

// OpenCallbacks lists rows of a route family that want delivery, the oldest first.
func (s *Store) OpenCallbacks(ctx context.Context, f RouteFamily, limit int) ([]Callback, error) {
	all, err := list(pool{ctx, s.rdb}, scanCallback, callbacksOpen, "profile", f.ProfileID, "session", f.session(), "limit", limitOr(limit))
	return all, storeError("list callbacks", err)
}

// CallbackCounts counts all rows by Profile, status and lane.
func (s *Store) CallbackCounts(ctx context.Context) ([]CallbackCount, error) {
	all, err := list(pool{ctx, s.rdb}, func(r scanner) (c CallbackCount, err error) {
		err = r.Scan(&c.ProfileID, &c.Status, &c.Lane, &c.Count)
		return c, err
	}, callbackCounts)
	return all, storeError("count callbacks", err)
}

// Attempts lists the tries of one callback.
func (s *Store) Attempts(ctx context.Context, deliveryID string) ([]Attempt, error) {
	all, err := list(pool{ctx, s.rdb}, scanAttempt, attemptsOf, "delivery", deliveryID)
	return all, storeError("list attempts", err)
}

// session is the condition of the statements: "" stands for any session.
func (f RouteFamily) session() string {
	if f.RouteBound {
		return ""
	}
	return f.ControllerSessionID
}

// insertCallback writes a row of the outbox for a Turn or a Watch. The open row
// of the same Turn and lane is superseded. An equal row that is there already
// changes nothing; another content under the same id is callback_conflict.
func (t *tx) insertCallback(c NewCallback, turnID, watchID string) error {
	conflict := fault.New(fault.CallbackConflict, "insert callback %.80s: it exists with other content", c.DeliveryID)
	old, ok, err := first(t, scanCallback, callbackByID, "delivery", c.DeliveryID)
	if err != nil {
		return err
	}
	if ok {
		if !old.sameContent(c) || old.TurnID != turnID || old.WatchID != watchID {
			return conflict
		}
		return nil
	}
	if turnID != "" {
		if err := t.supersedeLane(turnID, c.Lane, "newer_event"); err != nil {
			return err
		}
	}
	_, err = t.exec(callbackInsert, "delivery", c.DeliveryID, "idempotency", c.IdempotencyKey, "lane", c.Lane, "kind", c.Kind,
		"turn", orNull(turnID), "watch", orNull(watchID), "message", c.MessageID, "event", c.EventType, "requires_response", c.RequiresResponse,
		"body", c.Body, "envelope", c.Envelope, "transport", c.RouteTransport, "profile", c.RouteProfileID,
		"revision", c.RouteProfileRevision, "session", c.RouteControllerSessionID, "now", t.now)
	if violated(err) != "" {
		return conflict
	}
	return err
}

func (c Callback) sameContent(n NewCallback) bool {
	a, b := c.NewCallback, n
	return bytes.Equal(a.Envelope, b.Envelope) && a.DeliveryID == b.DeliveryID && a.IdempotencyKey == b.IdempotencyKey && a.Lane == b.Lane && a.Kind == b.Kind &&
		a.MessageID == b.MessageID && a.EventType == b.EventType && a.RequiresResponse == b.RequiresResponse && a.Body == b.Body &&
		a.RouteTransport == b.RouteTransport && a.RouteProfileID == b.RouteProfileID &&
		a.RouteProfileRevision == b.RouteProfileRevision && a.RouteControllerSessionID == b.RouteControllerSessionID
}

func (t *tx) supersedeTurn(turnID, reason string) error {
	_, err := t.exec(supersedeOfTurn, "turn", turnID, "reason", reason, "now", t.now)
	return err
}

func (t *tx) supersedeLane(turnID, lane, reason string) error {
	_, err := t.exec(supersedeOfLane, "turn", turnID, "lane", lane, "reason", reason, "now", t.now)
	return err
}

func (t *tx) supersedeQuestion(turnID, reason string) error {
	_, err := t.exec(supersedeOfQuestion, "turn", turnID, "reason", reason, "now", t.now)
	return err
}
