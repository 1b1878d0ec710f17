package store

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
