package store

import (
	"context"
	"crypto/sha256"
	"strings"
	"time"

	"drawbridge/shared/fault"
)

// Bounds of tickets (station §10.3).
const (
	TicketLife      = 300 * time.Second // when none is asked for
	TicketLifeLeast = 15 * time.Second
	TicketLifeMost  = 900 * time.Second
	MaxLiveTickets  = 1000 // of one attempt
	ticketsMost     = 200  // rows of a list
)

// Ticket is a short-lived, scoped proof. Only the hash of its text is kept.
type Ticket struct {
	ID            string
	SecretSHA256  [sha256.Size]byte
	Issuer        string // principal that asked for it
	PrincipalID   string // principal that may use it
	Org, Owner    string
	StationID     string
	Attempt       int64
	LeaseID       string
	Prefix        string
	Methods       []string // none: all
	MaxUses       int64    // 0: no bound
	Uses          int64
	IssuedAt      int64
	ExpiresAt     int64
	RevokedAt     int64 // 0: not revoked
	RevokedReason string
}

// NewTicket is a ticket to be issued for the newest attempt of a station.
type NewTicket struct {
	SecretSHA256 [sha256.Size]byte
	Issuer       string
	PrincipalID  string
	StationID    string
	Prefix       string // canonical
	Methods      []string
	MaxUses      int64
	Life         time.Duration // 0: TicketLife
}

const ticketCols = `k.ticket_id, k.secret_sha256, k.issuer, k.principal_id, k.org, k.owner, k.station_id, k.attempt, k.lease_id, k.path_prefix,
  k.methods, k.max_uses, k.uses, k.issued_at, k.expires_at, coalesce(k.revoked_at, 0), coalesce(k.revoked_reason, '')`

func scanTicket(r scanner) (k Ticket, err error) {
	var hash []byte
	var methods string
	err = r.Scan(&k.ID, &hash, &k.Issuer, &k.PrincipalID, &k.Org, &k.Owner, &k.StationID, &k.Attempt, &k.LeaseID, &k.Prefix,
		&methods, &k.MaxUses, &k.Uses, &k.IssuedAt, &k.ExpiresAt, &k.RevokedAt, &k.RevokedReason)
	k.fill(hash, methods)
	return k, err
}

// fill sets what a row has in another form.
func (k *Ticket) fill(hash []byte, methods string) {
	copy(k.SecretSHA256[:], hash)
	if methods != "" {
		k.Methods = strings.Fields(methods)
	}
}

const ticketRevoke = `
UPDATE station_tickets
SET revoked_at = max(issued_at, :now), revoked_reason = :reason
WHERE revoked_at IS NULL`

var (
	ticketInsert = define(`
INSERT INTO station_tickets(ticket_id, secret_sha256, issuer, principal_id, org, owner, station_id, attempt, lease_id, path_prefix, methods,
  max_uses, issued_at, expires_at)
VALUES (:ticket, :hash, :issuer, :principal, :org, :owner, :station, :attempt, :lease_id, :prefix, :methods, :max_uses, :now, :expires)`)

	ticketConsume = define(`
UPDATE station_tickets
SET uses = uses + 1
WHERE ticket_id = :ticket AND revoked_at IS NULL AND expires_at > :now AND (max_uses = 0 OR uses < max_uses)`)

	ticketCount = define(`
UPDATE station_tickets
SET uses = uses + :uses
WHERE ticket_id = :ticket AND max_uses = 0`)

	ticketByID = define(`
SELECT ` + ticketCols + `
FROM station_tickets k
WHERE k.ticket_id = :ticket`)

	ticketsOf = define(`
SELECT ` + ticketCols + `
FROM station_tickets k
WHERE k.station_id = :station AND k.attempt = :attempt
ORDER BY k.issued_at, k.ticket_id
LIMIT :limit`)

	ticketsAll = define(`
SELECT count(*)
FROM station_tickets
WHERE station_id = :station AND attempt = :attempt`)

	ticketsLive = define(`
SELECT count(*)
FROM station_tickets
WHERE station_id = :station AND attempt = :attempt AND revoked_at IS NULL AND expires_at > :now`)

	ticketRevokeOne        = define(ticketRevoke + ` AND ticket_id = :ticket`)
	ticketsRevokeAttempt   = define(ticketRevoke + ` AND station_id = :station AND attempt = :attempt`)
	ticketsRevokeRole      = define(ticketRevoke + ` AND station_id = :station AND principal_id = :principal`)
	ticketsRevokePrincipal = define(ticketRevoke + ` AND principal_id = :principal`)
)

// IssueTicket issues a ticket for the newest attempt of a station, which must be
// wanted running. The issuer and the principal that will use it need a role that
// may control the station. A ticket never outlives the attempt.
func (s *Store) IssueTicket(ctx context.Context, l *Lease, n NewTicket) (k Ticket, err error) {
	if n.Life == 0 {
		n.Life = TicketLife
	}
	if n.Life < TicketLifeLeast || n.Life > TicketLifeMost || n.MaxUses < 0 || !strings.HasPrefix(n.Prefix, "/") || n.SecretSHA256 == [sha256.Size]byte{} {
		return k, fault.New(fault.TicketScope, "issue a ticket for station %.64s: a life of %s, %d uses, a prefix of %d bytes", n.StationID, n.Life, n.MaxUses, len(n.Prefix)).
			WithHint("a ticket lives %s to %s, has a prefix that begins with /, and 0 or more uses", TicketLifeLeast, TicketLifeMost)
	}
	err = s.onStation(ctx, l, n.StationID, func(t *tx) error {
		for _, id := range []string{n.Issuer, n.PrincipalID} {
			role, _, err := first(t, scanString, memberRole, "station", n.StationID, "principal", id)
			if err != nil {
				return err
			}
			if role != RoleOwner && role != RoleManager {
				return fault.New(fault.RoleDenied, "issue a ticket for station %s: principal %.64s has no role that controls it", n.StationID, id).
					WithHint("an owner gives it with stationd member grant %s %.64s manager", n.StationID, id)
			}
		}
		a, ok, err := first(t, scanStationAttempt, attemptLive, "station", n.StationID)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.StationEnded, "issue a ticket for station %s: no attempt of it runs", n.StationID).
				WithHint("stationd start -replace %s begins the next one", n.StationID)
		}
		if a.Desired != WantRunning {
			return attemptState("issue a ticket for", a)
		}
		if k, err = t.issue(n, a); err != nil {
			return err
		}
		return t.chainEvent(n.StationID, a.Number, "ticket_issued", map[string]any{
			"ticket": k.ID, "issuer": k.Issuer, "principal": k.PrincipalID, "prefix": k.Prefix, "expires": k.ExpiresAt, "maxUses": k.MaxUses})
	})
	return k, err
}

func (t *tx) issue(n NewTicket, a StationAttempt) (k Ticket, err error) {
	live, _, err := first(t, scanInt, ticketsLive, "station", a.StationID, "attempt", a.Number, "now", t.now)
	if err != nil {
		return k, err
	}
	if live >= MaxLiveTickets {
		return k, fault.New(fault.TooManyTickets, "issue a ticket for station %s: %d are live", a.StationID, live)
	}
	expires := min(t.now+n.Life.Milliseconds(), a.TTLDeadline)
	if expires <= t.now {
		return k, fault.New(fault.StationEnded, "issue a ticket for station %s: the time of attempt %d is over", a.StationID, a.Number)
	}
	st, err := t.station(a.StationID)
	if err != nil {
		return k, err
	}
	id := t.stationID("tkt_")
	if _, err := t.exec(ticketInsert, "ticket", id, "hash", blob(n.SecretSHA256[:]), "issuer", n.Issuer, "principal", n.PrincipalID,
		"org", st.Org, "owner", st.Owner, "station", a.StationID, "attempt", a.Number, "lease_id", a.LeaseID, "prefix", n.Prefix,
		"methods", strings.Join(n.Methods, " "), "max_uses", n.MaxUses, "now", t.now, "expires", expires); err != nil {
		return k, err
	}
	return t.ticket(id)
}

// ConsumeTicket takes one use in one conditional statement, after everything else
// about a request was accepted. It rings no bell. ticket_revoked, or ticket_expired
// for one that is past its time or its uses.
func (s *Store) ConsumeTicket(ctx context.Context, id string) error {
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		n, err := t.exec(ticketConsume, "ticket", id, "now", t.now)
		if err != nil || n == 1 {
			return err
		}
		k, err := t.ticket(id)
		switch {
		case err != nil:
			return err
		case k.RevokedAt != 0:
			return fault.New(fault.TicketRevoked, "use ticket %s: it was revoked", id)
		}
		return fault.New(fault.TicketExpired, "use ticket %s: it is past its time or its uses", id)
	})
}

// CountTicketUses adds the uses of tickets without a bound, which are counted in
// memory and written together: a request with such a ticket needs no commit.
func (s *Store) CountTicketUses(ctx context.Context, uses map[string]int64) error {
	if len(uses) == 0 {
		return nil
	}
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		for id, n := range uses {
			if _, err := t.exec(ticketCount, "ticket", id, "uses", n); err != nil {
				return err
			}
		}
		return nil
	})
}

// RevokeTicket ends one ticket. Again it changes nothing.
func (s *Store) RevokeTicket(ctx context.Context, l *Lease, id string) (k Ticket, err error) {
	if k, err = s.Ticket(ctx, id); err != nil {
		return k, err
	}
	err = s.onStation(ctx, l, k.StationID, func(t *tx) error {
		n, err := t.exec(ticketRevokeOne, "ticket", id, "reason", RevokedByWord, "now", t.now)
		if err != nil {
			return err
		}
		if t.silent = n == 0; n == 1 {
			if err := t.chainEvent(k.StationID, k.Attempt, "ticket_revoked", map[string]any{"ticket": id}); err != nil {
				return err
			}
		}
		k, err = t.ticket(id)
		return err
	})
	return k, err
}

// Ticket gives one ticket, or not_found.
func (s *Store) Ticket(ctx context.Context, id string) (Ticket, error) {
	return only(pool{ctx, s.rdb}, scanTicket, "ticket", id, ticketByID, "ticket", id)
}

// Tickets lists the first 200 tickets of an attempt, and says how many there are.
func (s *Store) Tickets(ctx context.Context, stationID string, attempt int64) (all []Ticket, count int64, err error) {
	err = s.view(ctx, func(t *tx) error {
		pairs := []any{"station", stationID, "attempt", attempt}
		if count, _, err = first(t, scanInt, ticketsAll, pairs...); err != nil {
			return err
		}
		all, err = list(t, scanTicket, ticketsOf, append(pairs, "limit", int64(ticketsMost))...)
		return err
	})
	return all, count, err
}

func (t *tx) ticket(id string) (Ticket, error) {
	return only(t, scanTicket, "ticket", id, ticketByID, "ticket", id)
}
