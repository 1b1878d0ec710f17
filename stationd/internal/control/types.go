package control

import (
	"encoding/json"
	"time"
)

// Started is the answer to a start and to a replacement.
type Started struct {
	StationID string  `json:"stationId"`
	Attempt   int64   `json:"attempt"`
	Bridge    *Bridge `json:"bridge"` // null: the station has no way in
}

// Bridge is where clients reach a daemon.
type Bridge struct {
	Path string `json:"path"`
	URL  string `json:"url,omitempty"`  // absent when the gate has no TCP port
	Host string `json:"host,omitempty"` // the name and port that a browser must use
}

// StationList are the newest stations on which a principal has a role.
type StationList struct {
	Stations []Summary `json:"stations"`
	More     bool      `json:"more"` // older ones are left out
}

// Summary is a row of the list of stations.
type Summary struct {
	StationID string    `json:"stationId"`
	Name      string    `json:"name"` // the spec's
	Owner     string    `json:"owner"`
	Profile   string    `json:"profile"`
	CreatedAt time.Time `json:"createdAt"`

	Facts
}

// Facts are the nine facts of a station that change independently.
type Facts struct {
	State          string     `json:"state"`
	DesiredState   string     `json:"desiredState"`
	Attempt        int64      `json:"attempt"` // 0: none yet
	LastObservedAt *time.Time `json:"lastObservedAt"`
	StopReason     *string    `json:"stopReason"`
	LeaseState     *string    `json:"leaseState"`
	Supervisor     string     `json:"supervisor"` // none, live, silent, ended
	Command        string     `json:"command"`    // none, live, ended
	Cleanup        string     `json:"cleanup"`    // none, pending, done, failed
}

// Status is one station.
type Status struct {
	Summary
	Org    string  `json:"org"`
	Role   string  `json:"role"`   // of whoever asks
	Detail *Detail `json:"detail"` // null for viewers, and before the first attempt
}

// Detail is for those who may control the station.
type Detail struct {
	AttemptState string          `json:"attemptState"`
	LeaseID      string          `json:"leaseId"`
	Provider     string          `json:"provider"`
	Bridge       *Bridge         `json:"bridge"` // null: none, or the attempt is not ready
	Containment  string          `json:"containment,omitempty"`
	Egress       string          `json:"egress,omitempty"`
	CommandHash  string          `json:"commandHash,omitempty"`
	ShimPID      int64           `json:"shimPid,omitempty"`
	DaemonPID    int64           `json:"daemonPid,omitempty"`
	Port         int64           `json:"port,omitempty"`
	StartedAt    *time.Time      `json:"startedAt"`
	ReadyAt      *time.Time      `json:"readyAt"`
	EndedAt      *time.Time      `json:"endedAt"`
	TTLDeadline  *time.Time      `json:"ttlDeadline"`
	IdleMS       int64           `json:"idleMs"` // 0: off
	LastActivity *time.Time      `json:"lastActivityAt"`
	StopAt       *time.Time      `json:"stopRequestedAt"`
	StopBy       string          `json:"stopRequestedBy,omitempty"`
	Failure      *Failure        `json:"failure,omitempty"` // why it was never ready, where stationd knows
	Exit         json.RawMessage `json:"exit,omitempty"`
	Left         json.RawMessage `json:"cleanupResult,omitempty"`
	LeaseFailure string          `json:"leaseFailure,omitempty"` // the code of why the lease could not be given back
}

// Failure is why an attempt was never ready. Message and Hint may be empty.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Stopped is the answer to a stop: the attempt as it is now.
type Stopped struct {
	StationID  string  `json:"stationId"`
	Attempt    int64   `json:"attempt"`
	State      string  `json:"state"`
	StopReason *string `json:"stopReason"` // the first one
}

// TicketRequest asks for a ticket of the newest attempt.
type TicketRequest struct {
	Prefix    string   `json:"prefix,omitempty"` // "": the bridge's own
	TTL       string   `json:"ttl,omitempty"`    // "5m"; "" is the default
	Uses      int64    `json:"uses,omitempty"`   // 0: no bound
	Methods   []string `json:"methods,omitempty"`
	Principal string   `json:"principal,omitempty"` // who will use it; "" is whoever asks
}

// Ticket is the answer, and the only time that the ticket is seen.
type Ticket struct {
	Ticket    string    `json:"ticket"`
	TicketID  string    `json:"ticketId"`
	StationID string    `json:"stationId"`
	Attempt   int64     `json:"attempt"`
	Prefix    string    `json:"prefix"`
	ExpiresAt time.Time `json:"expiresAt"`
	Bridge    Bridge    `json:"bridge"`
}

// TicketState is what is known of a ticket, without the ticket.
type TicketState struct {
	TicketID      string     `json:"ticketId"`
	StationID     string     `json:"stationId"`
	Attempt       int64      `json:"attempt"`
	RevokedAt     *time.Time `json:"revokedAt"`
	RevokedReason string     `json:"revokedReason,omitempty"`
}

// Member is the role of a principal on a station.
type Member struct {
	PrincipalID string     `json:"principalId"`
	Name        string     `json:"name"`
	Role        string     `json:"role"`
	GrantedAt   time.Time  `json:"grantedAt"`
	RevokedAt   *time.Time `json:"revokedAt"`
}

// MemberList are the members of a station, former ones too.
type MemberList struct {
	Members []Member `json:"members"`
}

// RoleRequest gives a role.
type RoleRequest struct {
	Role string `json:"role"`
}

// PrincipalRequest adds a principal: a local user, or else one with a secret.
type PrincipalRequest struct {
	Name string `json:"name"`
	UID  *int64 `json:"uid,omitempty"`
}

// Principal is an identity.
type Principal struct {
	PrincipalID string     `json:"principalId"`
	Org         string     `json:"org"`
	Name        string     `json:"name"`
	UID         *int64     `json:"uid"` // null: known by its secret
	CreatedAt   time.Time  `json:"createdAt"`
	RevokedAt   *time.Time `json:"revokedAt"`
	Secret      string     `json:"secret,omitempty"` // in the answer that makes it, never again
}

// PrincipalList are the principals of an organisation, former ones too.
type PrincipalList struct {
	Principals []Principal `json:"principals"`
}

// Evidence is the answer of the evidence route.
type Evidence struct {
	StationID string     `json:"stationId"`
	Documents []Document `json:"documents"`
	Check     *Check     `json:"check,omitempty"` // when it was asked for
}

// Document is the evidence of one attempt.
type Document struct {
	Attempt  int64           `json:"attempt"`
	At       time.Time       `json:"at"`
	SHA256   string          `json:"sha256"` // of the document as it is written here
	Document json.RawMessage `json:"document"`
}

// Check is what recomputing a station's chain found.
type Check struct {
	Events    int64  `json:"events"`
	Purged    int64  `json:"purged"`
	Documents int64  `json:"documents"`
	Head      string `json:"head"` // hash of the last event
	Flaws     []Flaw `json:"flaws"`
}

// Flaw names a place that is not as it was written.
type Flaw struct {
	Place string `json:"place"`
	What  string `json:"what"`
}

// ReleaseRequest gives a lease back.
type ReleaseRequest struct {
	Force  bool   `json:"force,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Lease is a lease of a workspace.
type Lease struct {
	LeaseID    string          `json:"leaseId"`
	Provider   string          `json:"provider"`
	State      string          `json:"state"`
	ReleasedAt *time.Time      `json:"releasedAt"`
	Cleanup    json.RawMessage `json:"cleanup,omitempty"`
}
