package store

// Watch statuses and modes (core §7).
const (
	WatchActive      = "active"
	WatchCompleted   = "completed"
	WatchFailed      = "failed"
	WatchTimedOut    = "timed_out"
	WatchInvalidated = "invalidated"
	WatchCancelled   = "cancelled"

	ModeExactTask        = "exact_task"
	ModeTerminalActivity = "terminal_activity"
)

// Watch is the observation of one task that a human started.
type Watch struct {
	ID                  string
	Revision            int64
	Agent               string
	Mode                string
	TerminalID          string
	TerminalKey         string
	Endpoint            []byte
	Workspace           string
	BindingToken        string
	IdentityFingerprint string
	Anchor              []byte
	AnchorFingerprint   string
	Checkpoint          []byte
	CheckpointOffset    int64
	Warnings            []byte // JSON array of strings
	ControllerSessionID string
	Route               []byte
	Status              string
	CreatedAt           int64
	DeadlineAt          int64
	UpdatedAt           int64
	LastActivityAt      int64
	SettledFingerprint  string
	SettledObservedAt   int64
	SettledReason       string
	CompletionText      string
	CompletionID        string
	CompletionAt        int64
}

// NewWatch is a Watch to be made, observed under the terminal lease.
type NewWatch struct {
	WatchID             string
	Agent               string
	Mode                string
	TerminalID          string
	TerminalKey         string
	Endpoint            []byte
	Workspace           string
	BindingToken        string
	IdentityFingerprint string
	Anchor              []byte
	AnchorFingerprint   string
	Checkpoint          []byte
	CheckpointOffset    int64
	Warnings            []byte // nil: []
	ControllerSessionID string
	Route               []byte
	Lifetime            int64 // ms until the deadline
	Approval            *NewNotification
}

// NewNotification is one notification of a Watch with its callback row.
type NewNotification struct {
	NotificationID      string
	Kind                string // approval, completed, failed, timed_out, invalidated, cancelled
	EvidenceFingerprint string // 64 hex
	ReasonCode          string
	Callback            NewCallback
}

// WatchNotification is one stored notification.
type WatchNotification struct {
	ID                  string
	WatchID             string
	Ord                 int64
	Kind                string
	EvidenceFingerprint string
	ReasonCode          string
	CreatedAt           int64
}

// WatchFence is what an observation was made against. A move that does not
// match it is watch_conflict.
type WatchFence struct {
	WatchID             string
	Revision            int64
	IdentityFingerprint string
	AnchorFingerprint   string
	ObservedAt          int64  // wall-clock ms of the observation
	Lease               *Lease // WatchdLease of the sweeping watchd; nil only for unwatch
}

// Observation moves a Watch's checkpoint.
type Observation struct {
	Checkpoint []byte // nil: unchanged
	Offset     int64
	ActivityAt int64  // 0: no sign of life
	Warnings   []byte // nil: unchanged
}

// WatchSettlement is the one outcome of a Watch.
type WatchSettlement struct {
	Status         string // completed, failed, timed_out, invalidated, cancelled
	Observation    Observation
	CompletionText string // completed and failed only, at most 4000 characters
	CompletionID   string
	CompletionAt   int64
	Notification   NewNotification // its kind, fingerprint and reason settle the Watch
}

// WatchFilter selects Watches, newest first.
type WatchFilter struct {
	ActiveOnly  bool
	TerminalKey string
	Limit       int // 0: 1000
}
