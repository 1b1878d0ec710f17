package gate

import (
	"context"
	"crypto/subtle"
	"slices"
	"time"

	"drawbridge/shared/fault"
)

// Authorizer knows the principals, tickets and attempts as they are now. The
// Store is behind the real one. Its answers are not kept by the gate: each
// request asks, and open streams ask again.
type Authorizer interface {
	// Admit decides whether a claim may pass and changes nothing. A refusal is a
	// fault of Facts.Admit; any other error is answered with 503.
	Admit(ctx context.Context, c Claim) (Access, error)

	// Consume takes one use of the ticket in one conditional statement (station
	// §10.3), and refuses with ticket_revoked or ticket_expired when it changed
	// nothing. It is called after everything else about a request was accepted.
	Consume(ctx context.Context, a Access) error

	// Still decides whether an access that was admitted holds now. A refusal is
	// a fault of Facts.Still.
	Still(ctx context.Context, a Access) error
}

// Claim is what one request says about itself.
type Claim struct {
	Principal Digest // of the bearer secret; zero on a unix socket
	Peer      *int   // uid of the peer of a unix socket
	Ticket    Digest
	Station   string
	Attempt   int
	Method    string
	Target    Target // below the bridge path
}

// Access is an admitted claim.
type Access struct {
	PrincipalID string
	TicketID    string
	Station     string
	Attempt     int
	ExpiresAt   time.Time
}

// Roles that may use a bridge (station §10.1): the ones that may control the
// station.
var bridgeRoles = []string{"owner", "manager"}

// Facts are the rows that decide a claim, read in one transaction. A row that
// does not exist leaves its zero value.
type Facts struct {
	Principal Principal // of the claim; zero when unknown or revoked
	Role      string    // of that principal on the claim's station now; "" for none
	Ticket    Ticket
	Attempt   Attempt // the one of the ticket
	Newest    int     // attempt of the station
	Org       string  // of the station
	Owner     string
}

// Principal is a current identity.
type Principal struct {
	ID  string
	Org string
}

// Ticket is a row of station_tickets.
type Ticket struct {
	ID         string
	Digest     Digest
	Principal  string
	Org, Owner string
	Station    string
	Attempt    int
	Lease      string
	Prefix     string   // form of ParsePrefix
	Methods    []string // none means all
	MaxUses    int      // 0 means no bound
	Uses       int
	ExpiresAt  time.Time
	Revoked    bool
}

// Attempt is what counts of a row of station_attempts.
type Attempt struct {
	Number     int
	Lease      string
	State      string // station §4.1
	Stopping   bool   // the desired state
	StopReason string
}

// Admit decides a claim in the order of station §10.4. Whoever has no current
// role on the station, or no ticket of their own for exactly this attempt, learns
// nothing: the refusal is always the same.
func (f Facts) Admit(c Claim, now time.Time) (Access, error) {
	t := f.Ticket
	switch {
	case f.stranger(),
		subtle.ConstantTimeCompare(t.Digest[:], c.Ticket[:]) != 1,
		t.Station != c.Station,
		t.Attempt != c.Attempt && c.Attempt != f.Newest:
		return Access{}, unauthorized()
	}
	if err := f.live(now); err != nil {
		return Access{}, err
	}
	switch {
	case t.Attempt != c.Attempt:
		return Access{}, unauthorized()
	case t.MaxUses > 0 && t.Uses >= t.MaxUses:
		return Access{}, fault.New(fault.TicketExpired, "use the ticket: it has no uses left")
	case f.Attempt.State != "ready":
		return Access{}, fault.New(fault.StationNotReady, "use the ticket: the attempt is not ready")
	case !c.Target.Within(t.Prefix):
		return Access{}, fault.New(fault.PathOutsidePrefix, "use the ticket: the path is outside its prefix")
	case len(t.Methods) > 0 && !slices.Contains(t.Methods, c.Method):
		return Access{}, fault.New(fault.MethodDenied, "use the ticket: it is not for this method")
	}
	return Access{PrincipalID: f.Principal.ID, TicketID: t.ID, Station: t.Station, Attempt: t.Attempt, ExpiresAt: t.ExpiresAt}, nil
}

// Still decides whether what was admitted earlier holds.
func (f Facts) Still(now time.Time) error {
	if f.stranger() {
		return unauthorized()
	}
	return f.live(now)
}

// stranger reports whether the principal has no current right to the ticket's
// station, or the ticket is not a whole and own one.
func (f Facts) stranger() bool {
	t := f.Ticket
	return f.Principal.ID == "" || t.ID == "" ||
		t.Principal != f.Principal.ID || t.Org != f.Principal.Org ||
		t.Org != f.Org || t.Owner != f.Owner ||
		t.Lease != f.Attempt.Lease || t.Attempt != f.Attempt.Number ||
		!slices.Contains(bridgeRoles, f.Role)
}

// live refuses what has ended. What happened to the attempt comes before what
// happened to the ticket: a stop revokes all tickets, and the client should
// learn of the stop.
func (f Facts) live(now time.Time) error {
	switch {
	case f.Newest > f.Ticket.Attempt:
		return ended(fault.AttemptReplaced, "a newer attempt replaced this one", "attempt_replaced")
	case f.Attempt.State == "terminal":
		return ended(fault.StationEnded, "the attempt has ended", f.Attempt.StopReason)
	case f.Attempt.Stopping || f.Attempt.State == "stopping":
		return ended(fault.StationStopping, "the station stops", f.Attempt.StopReason)
	case f.Ticket.Revoked:
		return fault.New(fault.TicketRevoked, "use the ticket: it was revoked")
	case !now.Before(f.Ticket.ExpiresAt):
		return fault.New(fault.TicketExpired, "use the ticket: it has expired")
	}
	return nil
}

// detailReason is the detail of a refusal that says why the attempt stopped.
const detailReason = "reason"

func ended(code fault.Code, what, reason string) error {
	return fault.New(code, "use the ticket: %s", what).With(detailReason, reason)
}

func unauthorized() error {
	return fault.New(fault.Unauthorized, "use the bridge: no current right to it")
}
