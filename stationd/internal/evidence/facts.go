package evidence

import (
	"encoding/json"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/supervise"
)

// Facts are the fields of station §13.2, with their names. AgentRuntime is nil when
// the attempt had no bridge.
type Facts struct {
	StationID string `json:"stationId"`
	Attempt   int64  `json:"attempt"`
	LeaseID   string `json:"leaseId"`
	RunID     string `json:"runId,omitempty"`
	Profile   string `json:"profile"`
	Org       string `json:"org"`
	Owner     string `json:"owner"`

	Command   Command          `json:"command"`
	Grounding launch.Grounding `json:"grounding"`
	Harness   Harness          `json:"harness"`
	Times     Times            `json:"times"`
	Process   Process          `json:"process"`
	Stop      Stop             `json:"stop"`
	Egress    egress.Summary   `json:"egress"`
	Loopback  Loopback         `json:"loopback"`
	Limits    Limits           `json:"limits"`
	Logs      LogSummary       `json:"logs"`
	Artifacts Manifest         `json:"-"` // "artifacts", and "artifactsTruncated" when more is there
	Events    Events           `json:"events"`

	AgentRuntime *AgentRuntime `json:"agentRuntime,omitempty"`
}

// AgentRuntime is what evidence says besides when clients could reach the daemon.
type AgentRuntime struct {
	Bridge      Bridge   `json:"bridge"`
	Tickets     []Ticket `json:"tickets"`
	TicketCount int64    `json:"ticketCount"` // those that are left out included
}

// Command is what was run. Workdir is relative to the lease.
type Command struct {
	Mode     string   `json:"mode"` // launch.Argv, launch.Shell
	Redacted []string `json:"redacted"`
	Hash     string   `json:"hash"`
	Workdir  string   `json:"workdir"`
}

// Kinds of a Harness.
const (
	FromWorkspace = "workspace" // its tree digest is the grounding's
	FromArtifact  = "artifact"
	FromSystem    = "system"
)

// Harness identifies the program, by what was verified: it is not executed to ask for
// its version.
type Harness struct {
	Name           string `json:"name"`
	Kind           string `json:"kind"`
	SHA256         string `json:"sha256,omitempty"`
	SignatureKeyID string `json:"signatureKeyId,omitempty"`
}

// Bridge is where and how much the daemon was reached. Port is the daemon's own,
// inside its namespace.
type Bridge struct {
	Port     int64                `json:"port"`
	Path     string               `json:"path"`
	Host     string               `json:"host"`
	Requests int64                `json:"requests"`
	Streams  int64                `json:"streams"`
	Refused  map[fault.Code]int64 `json:"refused"`
	BytesIn  int64                `json:"bytesIn"`
	BytesOut int64                `json:"bytesOut"`
}

// Time is Unix milliseconds; in JSON RFC 3339 UTC with milliseconds, null for 0.
type Time int64

// MarshalJSON writes the time for people.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(time.UnixMilli(int64(t)).UTC().Format("2006-01-02T15:04:05.000Z"))
}

// UnmarshalJSON reads it back.
func (t *Time) UnmarshalJSON(data []byte) error {
	var at *time.Time
	if err := json.Unmarshal(data, &at); err != nil {
		return err
	}
	*t = 0
	if at != nil {
		*t = Time(at.UnixMilli())
	}
	return nil
}

// Times of the attempt. Resumed is when the last stationd that took it up did so, null
// when one had it from its beginning to its end: what passed the bridge, what went out
// and how often listeners were looked at is counted from then on.
type Times struct {
	Created       Time `json:"created"`
	Started       Time `json:"started"`
	Ready         Time `json:"ready"`
	Resumed       Time `json:"resumed"`
	StopRequested Time `json:"stopRequested"`
	Ended         Time `json:"ended"`
}

// Process is who ran: the shim and the daemon as the lease's machine numbers them.
type Process struct {
	BootID      string `json:"bootId"`
	ShimPID     int64  `json:"shimPid"`
	ShimStart   int64  `json:"shimStart"`
	PID         int64  `json:"pid"`
	StartTime   int64  `json:"startTime"`
	PGID        int64  `json:"pgid"`
	UID         int    `json:"uid"`
	Containment string `json:"containment"`
	Exit        Exit   `json:"exit"`
}

// Sources of an Exit.
const (
	ExitFromShim = "shim"
	ExitFromFile = "exit_file"
	ExitUnknown  = "unknown"
)

// Exit is how the daemon ended; in a row of an attempt it is exit_json.
type Exit struct {
	Code   *int   `json:"code,omitempty"`
	Signal string `json:"signal,omitempty"`
	Source string `json:"source"`
}

// Results of a Cleanup, and what becomes of the lease after the document.
const (
	CleanupClean  = "clean"
	CleanupForced = "forced"
	CleanupFailed = "failed"

	LeasePending = "pending" // it is released next
	LeaseKept    = "kept"    // not, for the cleanup failed
)

// Stop is why and how the attempt was ended.
type Stop struct {
	Reason      string   `json:"reason"`
	RequestedBy string   `json:"requestedBy"`
	SignalPath  []Signal `json:"signalPath"`
	GraceMS     int64    `json:"graceMs"`
	Cleanup     Cleanup  `json:"cleanup"`
	Failure     *Failure `json:"failure,omitempty"` // nil: it was ready, or nothing says why it was not
}

// Failure is why an attempt was never ready. Message holds no absolute path.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// Signal is one that was sent.
type Signal struct {
	At     Time   `json:"at"`
	Target string `json:"target"` // group, all, shim
	Signal string `json:"signal"` // SIGTERM
	Result string `json:"result"` // sent, gone, or the code of what failed
}

// Cleanup is what was left.
type Cleanup struct {
	Result       string           `json:"result"`
	Left         []supervise.Left `json:"left"`
	LeaseRelease string           `json:"leaseRelease"`
}

// Ticket is what is said of a ticket: ids and scope.
type Ticket struct {
	TicketID       string `json:"ticketId"`
	Issuer         string `json:"issuer"`
	PrincipalScope string `json:"principalScope"` // the principal that might use it
	PathPrefix     string `json:"pathPrefix"`
	IssuedAt       Time   `json:"issuedAt"`
	ExpiresAt      Time   `json:"expiresAt"`
	Uses           int64  `json:"uses"`
	RevokedReason  string `json:"revokedReason,omitempty"`
}

// Loopback is what listened.
type Loopback struct {
	Checks   int                 `json:"checks"`
	Findings []supervise.Finding `json:"findings"`
}

// Limits that the attempt was under. TTL and Idle are durations as the spec writes
// them.
type Limits struct {
	TTL           string        `json:"ttl"`
	Idle          string        `json:"idle"` // "0s" is off
	LogBytes      int64         `json:"logBytes"`
	EventRows     int64         `json:"eventRows"`
	RetentionDays RetentionDays `json:"retentionDays"`
}

// RetentionDays are how long things stay after the end.
type RetentionDays struct {
	Logs   int64 `json:"logs"`
	Events int64 `json:"events"` // and this document
}

// LimitsOf are the limits of an attempt with this life.
func LimitsOf(ttl, idle time.Duration) Limits {
	const day = 24 * time.Hour
	return Limits{TTL: ttl.String(), Idle: idle.String(), LogBytes: MaxLog, EventRows: maxEvents,
		RetentionDays: RetentionDays{Logs: int64(LogKeep / day), Events: int64(EvidenceKeep / day)}}
}

// LogSummary describes the log that was kept.
type LogSummary struct {
	Bytes   int64  `json:"bytes"`   // of text that is kept
	Dropped int64  `json:"dropped"` // left out of the middle, and lost before it was taken; pieces of lines beside such a gap are hidden and not counted
	SHA256  string `json:"sha256"`  // of the text as it is read, marks of what is left out included
}

// Events is the station's chain when the document was made.
type Events struct {
	Count    int64  `json:"count"`
	HeadHash string `json:"headHash"`
}
