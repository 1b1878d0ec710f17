package store

import (
	"time"
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
