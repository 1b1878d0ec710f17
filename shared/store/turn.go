package store

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
