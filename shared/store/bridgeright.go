package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"sync"
)

// BridgeRight is what decides whether a request may use a station's bridge, read in
// one statement and so on one snapshot. What does not exist leaves its zero value.
type BridgeRight struct {
	PrincipalID  string // "": unknown or revoked
	PrincipalOrg string
	Role         string // on the ticket's station now, "" for none
	Ticket       Ticket // ID "" for none
	Org, Owner   string // of the station
	Newest       int64  // attempt of the station
	LeaseID      string // of the ticket's attempt
	LeaseState   string
	State        string
	Desired      string
	StopReason   string
}

const rightCols = `
SELECT coalesce(p.principal_id, ''), coalesce(p.org, ''), coalesce(m.role, ''),
  coalesce(k.ticket_id, ''), coalesce(k.secret_sha256, x''), coalesce(k.issuer, ''), coalesce(k.principal_id, ''), coalesce(k.org, ''),
  coalesce(k.owner, ''), coalesce(k.station_id, ''), coalesce(k.attempt, 0), coalesce(k.lease_id, ''), coalesce(k.path_prefix, ''),
  coalesce(k.methods, ''), coalesce(k.max_uses, 0), coalesce(k.uses, 0), coalesce(k.issued_at, 0), coalesce(k.expires_at, 0),
  coalesce(k.revoked_at, 0), coalesce(k.revoked_reason, ''),
  coalesce(s.org, ''), coalesce(s.owner, ''), coalesce(s.current_attempt, 0), coalesce(a.lease_id, ''), coalesce(w.state, ''),
  coalesce(a.state, ''), coalesce(a.desired_state, ''), coalesce(a.stop_reason, '')
FROM (SELECT 1) `

const rightRest = `
LEFT JOIN stations s ON s.station_id = k.station_id
LEFT JOIN station_members m ON m.station_id = k.station_id AND m.principal_id = p.principal_id AND m.revoked_at IS NULL
LEFT JOIN station_attempts a ON a.station_id = k.station_id AND a.attempt = k.attempt
LEFT JOIN workspace_leases w ON w.lease_id = a.lease_id`

var (
	rightBySecret = define(rightCols + `
LEFT JOIN station_principals p ON p.secret_sha256 = :secret AND p.revoked_at IS NULL
LEFT JOIN station_tickets k ON k.secret_sha256 = :hash` + rightRest)

	rightByPeer = define(rightCols + `
LEFT JOIN station_principals p ON p.peer_uid = :uid AND p.peer_uid IS NOT NULL AND p.revoked_at IS NULL
LEFT JOIN station_tickets k ON k.secret_sha256 = :hash` + rightRest)

	rightByID = define(rightCols + `
LEFT JOIN station_principals p ON p.principal_id = :principal AND p.revoked_at IS NULL
LEFT JOIN station_tickets k ON k.ticket_id = :ticket` + rightRest)
)

func scanRight(r scanner) (b BridgeRight, err error) {
	k := &b.Ticket
	var hash []byte
	var methods string
	err = r.Scan(&b.PrincipalID, &b.PrincipalOrg, &b.Role,
		&k.ID, &hash, &k.Issuer, &k.PrincipalID, &k.Org,
		&k.Owner, &k.StationID, &k.Attempt, &k.LeaseID, &k.Prefix,
		&methods, &k.MaxUses, &k.Uses, &k.IssuedAt, &k.ExpiresAt,
		&k.RevokedAt, &k.RevokedReason,
		&b.Org, &b.Owner, &b.Newest, &b.LeaseID, &b.LeaseState,
		&b.State, &b.Desired, &b.StopReason)
	k.fill(hash, methods)
	return b, err
}

// RightBySecret looks up the right of whoever has a principal's secret and a ticket,
// by their hashes.
func (s *Store) RightBySecret(ctx context.Context, secret, ticket [sha256.Size]byte) (BridgeRight, error) {
	return s.right(ctx, rightBySecret, "secret", blob(secret[:]), "hash", blob(ticket[:]))
}

// RightByPeer is that of a local user with a ticket.
func (s *Store) RightByPeer(ctx context.Context, uid int64, ticket [sha256.Size]byte) (BridgeRight, error) {
	return s.right(ctx, rightByPeer, "uid", uid, "hash", blob(ticket[:]))
}

// RightByID looks up again what was admitted before.
func (s *Store) RightByID(ctx context.Context, principalID, ticketID string) (BridgeRight, error) {
	return s.right(ctx, rightByID, "principal", principalID, "ticket", ticketID)
}

func (s *Store) right(ctx context.Context, st stmt, pairs ...any) (BridgeRight, error) {
	b, _, err := first(pool{ctx, s.rdb}, scanRight, st, pairs...)
	return b, storeError("look up the right to a bridge", err)
}

// Version tells whether anything was committed to the Store, by this program or
// another: what was read between two equal numbers is still so. It keeps one reading
// connection. Its methods may be called from several goroutines.
type Version struct {
	mu   sync.Mutex
	conn *sql.Conn
}

// Version makes a Version, to be closed before the Store.
func (s *Store) Version(ctx context.Context) (*Version, error) {
	conn, err := s.rdb.Conn(ctx) // data_version compares with earlier looks of the same connection
	if err != nil {
		return nil, storeError("look for commits", err)
	}
	return &Version{conn: conn}, nil
}

// Now gives the number; ok is false when it cannot be read, and nothing that was
// kept may be used.
func (v *Version) Now(ctx context.Context) (n int64, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n = dataVersion(ctx, v.conn)
	return n, n >= 0
}

// Close gives the connection back.
func (v *Version) Close() error { return v.conn.Close() }
