// Package upstream answers the requests of workers: it checks the capability and
// the request, has it paid for, sends the canonical form of it to the provider
// with the host's credential, and streams the answer back without that credential
// (broker §5–9, §12).
//
// A Handler serves one request in the order of broker §5, on the raw target, and
// never forwards a byte that it has not parsed: what is sent is written by
// Canonical from what was read, and what was authorised was read from what is
// sent. Every refusal has the same body. Nothing is repeated: a request that may
// have reached the provider was paid for, whatever came of it.
//
// Rows belong to the Ledger, which broker implements with the Store. All writing
// goes through one Journal: reservations that arrive while a commit is running
// share the next one, and what has ended waits a moment for a reservation to
// travel with. A reservation returns only when its commit is durable, and only
// then is the provider contacted (broker §10).
//
// Server gives an http.Server with the bounds of broker §3. Handler.Close ends
// what a grant has in flight and the connections that carried it; the Journal's
// Flush makes the rows of it durable. Bodies, prompts, header values, credential
// and capability are in no log line, metric or row.
package upstream

import (
	"context"
	"net/netip"
	"time"

	"drawbridge/shared/redact"
)

// Bounds (broker §17).
const (
	MaxBody        = 16 << 20  // bytes of a request after transfer decoding
	MaxDepth       = 200       // nesting of a request
	MaxResponse    = 256 << 20 // bytes of a response
	MaxEvent       = 4 << 20   // bytes of one event that is looked at
	MaxInFlight    = 16        // requests of one grant
	MaxConnections = 64        // of one Server
	MaxDigests     = 4096      // input texts of one request
	MaxHeader      = 4096      // bytes of one header value that is passed on
)

// Ways in which a grant's answers come about.
const (
	Live   = "live"
	Mocked = "mocked-test-only"
)

// A Grant is what a capability opens, as its row says it.
type Grant struct {
	ID        string
	SHA256    [32]byte // of the capability
	Model     string
	Effort    string // "" binds none
	Kind      string // APIKey or AccessToken
	Origin    string // OriginAPI or OriginChatGPT
	BasePath  string // "" or "/v1"
	Remote    netip.Prefix
	RunID     string // "" for none
	OwnerID   string
	ExpiresAt int64 // ms
	Measured  bool  // what the answers cost decides on the next reservation
}

// A Credential is the secret of a grant, from brokerd's memory.
type Credential struct {
	Secret    redact.Secret
	AccountID string // "" sends no chatgpt-account-id
}

// Credentials gives a grant's credential. An error refuses the request with
// 502, before anything is reserved; Closed wrapped in it, with 401.
type Credentials func(context.Context, Grant) (Credential, error)

// A Ledger holds the rows.
type Ledger interface {
	// Lookup gives the grant whose row has this hash while it is active and has
	// not expired; ok is false for all others. It reads the row itself, every
	// time, so that a committed revocation counts at once.
	Lookup(ctx context.Context, capability [32]byte) (g Grant, ok bool, err error)

	// Commit is one transaction, durable when it returns nil: the settled rows,
	// then the counts, then the drafts, whose answers have the order of b.Drafts.
	// An error means that nothing of it may be taken as done; settled rows are then
	// given again, so a row that is settled already stays as it is, without error
	// and without its tokens being counted twice.
	Commit(ctx context.Context, b Batch) ([]Answer, error)
}

// A Batch is what one transaction of a Ledger does.
type Batch struct {
	Settled []Evidence // rows of Commit that came to their end
	Counts  []Count
	Drafts  []Draft
}

// A Count adds to the counters of a grant.
type Count struct {
	GrantID           string
	Received, Refused int64
}

// A Draft asks for a reservation. Its evidence is complete but for Seq; Outcome is
// Reserved.
type Draft struct {
	Grant    Grant
	Evidence Evidence
}

// An Answer to a Draft: Seq when it was reserved, else why not.
type Answer struct {
	Seq     int64
	Refused Refusal // "" when reserved; Budget, Capability (no longer active), or StoreFailed
}

// Now is the clock of a package's type.
type Now func() time.Time
