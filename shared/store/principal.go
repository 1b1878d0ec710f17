package store

import (
	"context"
	"crypto/sha256"

	"drawbridge/shared/fault"
)

// Roles on a station (station §10.1). Owners and managers start, stop, issue tickets
// and use the bridge; viewers read status and evidence.
const (
	RoleOwner   = "owner"
	RoleManager = "manager"
	RoleViewer  = "viewer"
)

// LocalOrg is the organisation of the user that runs stationd.
const LocalOrg = "local"

// Reasons of a revoked ticket that are no stop reasons.
const (
	RevokedByWord    = "revoked"
	RevokedPrincipal = "principal_revoked"
	RevokedRole      = "role_removed"
)

// Principal is an identity that may be given roles: by a secret, of which only the
// hash is kept, or by the uid of a local peer.
type Principal struct {
	ID        string
	Org       string
	Name      string
	PeerUID   int64 // -1: known by its secret
	CreatedAt int64
	RevokedAt int64 // 0: current
}

// NewPrincipal is a principal to be added: with the hash of its secret, or with a
// uid and no hash.
type NewPrincipal struct {
	Org          string
	Name         string
	SecretSHA256 [sha256.Size]byte
	PeerUID      int64
}

// Member is the role of a principal on one station.
type Member struct {
	StationID   string
	PrincipalID string
	Name        string
	Role        string
	GrantedAt   int64
	RevokedAt   int64 // 0: current
}

// StationdLease names the one stationd of a host that acts on the Store.
func StationdLease(host string) string { return stationdLeases + host }

// StationLease names the right to everything that is done to one station.
func StationLease(stationID string) string { return "station/" + stationID }

const stationdLeases = "stationd/main/"

const principalCols = `principal_id, org, name, coalesce(peer_uid, -1), created_at, coalesce(revoked_at, 0)`

func scanPrincipal(r scanner) (p Principal, err error) {
	err = r.Scan(&p.ID, &p.Org, &p.Name, &p.PeerUID, &p.CreatedAt, &p.RevokedAt)
	return p, err
}

func scanMember(r scanner) (m Member, err error) {
	err = r.Scan(&m.StationID, &m.PrincipalID, &m.Name, &m.Role, &m.GrantedAt, &m.RevokedAt)
	return m, err
}

var (
	principalInsert = define(`
INSERT INTO station_principals(principal_id, org, name, secret_sha256, peer_uid, created_at)
VALUES (:principal, :org, :name, :hash, :uid, :now)`)

	principalByID = define(`
SELECT ` + principalCols + `
FROM station_principals
WHERE principal_id = :principal`)

	principalByName = define(`
SELECT ` + principalCols + `
FROM station_principals
WHERE org = :org AND name = :name`)

	principalByPeer = define(`
SELECT ` + principalCols + `
FROM station_principals
WHERE peer_uid = :uid AND peer_uid IS NOT NULL AND revoked_at IS NULL`)

	principalsOfOrg = define(`
SELECT ` + principalCols + `
FROM station_principals
WHERE org = :org
ORDER BY name`)

	principalRevoke = define(`
UPDATE station_principals
SET revoked_at = max(created_at, :now)
WHERE principal_id = :principal AND revoked_at IS NULL`)

	memberGrant = define(`
INSERT INTO station_members(station_id, principal_id, role, granted_at)
VALUES (:station, :principal, :role, :now)
ON CONFLICT(station_id, principal_id) DO UPDATE
SET role = :role, granted_at = :now, revoked_at = NULL
WHERE role <> :role OR revoked_at IS NOT NULL`)

	memberRevoke = define(`
UPDATE station_members
SET revoked_at = max(granted_at, :now)
WHERE station_id = :station AND principal_id = :principal AND revoked_at IS NULL`)

	memberRole = define(`
SELECT m.role
FROM station_members m
JOIN station_principals p ON p.principal_id = m.principal_id
WHERE m.station_id = :station AND m.principal_id = :principal AND m.revoked_at IS NULL AND p.revoked_at IS NULL`)

	membersOf = define(`
SELECT m.station_id, m.principal_id, p.name, m.role, m.granted_at, coalesce(m.revoked_at, 0)
FROM station_members m
JOIN station_principals p ON p.principal_id = m.principal_id
WHERE m.station_id = :station
ORDER BY m.principal_id`)
)

// AddPrincipal adds a principal, under the lease of the acting stationd.
// principal_exists when the name, or the uid, is taken.
func (s *Store) AddPrincipal(ctx context.Context, l *Lease, n NewPrincipal) (p Principal, err error) {
	if err := n.check(); err != nil {
		return p, err
	}
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		p, err = t.addPrincipal(n)
		return err
	})
	return p, err
}

// EnsurePeer gives the principal of a local uid and adds it when there is none: the
// user that runs stationd has one from the first start on.
func (s *Store) EnsurePeer(ctx context.Context, l *Lease, name string, uid int64) (p Principal, err error) {
	n := NewPrincipal{Org: LocalOrg, Name: name, PeerUID: uid}
	if err := n.check(); err != nil {
		return p, err
	}
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		found, ok, err := first(t, scanPrincipal, principalByPeer, "uid", uid)
		if err != nil || ok {
			p, t.silent = found, true
			return err
		}
		p, err = t.addPrincipal(n)
		return err
	})
	return p, err
}

func (t *tx) addPrincipal(n NewPrincipal) (Principal, error) {
	id := t.stationID("prn_")
	var hash, uid any
	if n.SecretSHA256 != [sha256.Size]byte{} {
		hash = blob(n.SecretSHA256[:])
	} else {
		uid = n.PeerUID
	}
	_, err := t.exec(principalInsert, "principal", id, "org", n.Org, "name", n.Name, "hash", hash, "uid", uid, "now", t.now)
	if violated(err) != "" {
		return Principal{}, fault.New(fault.PrincipalExists, "add principal %.64q to %.64q: there is one of that name, user or secret", n.Name, n.Org).
			WithHint("stationd principal list shows it; the name of a revoked one stays taken")
	}
	if err != nil {
		return Principal{}, err
	}
	return t.principal(id)
}

func (n NewPrincipal) check() error {
	switch {
	case !validName(n.Org) || !validName(n.Name):
		return fault.New(fault.InvalidArguments, "add principal %.64q to %.64q: a name has 1 to %d of a–z, A–Z, 0–9 and . _ - @", n.Name, n.Org, maxLabel)
	case n.SecretSHA256 == [sha256.Size]byte{} && n.PeerUID < 0:
		return fault.New(fault.InvalidArguments, "add principal %.64q: it has neither a secret nor a uid", n.Name)
	}
	return nil
}

// validName accepts what may stand in a line of a log as it is.
func validName(n string) bool {
	if n == "" || len(n) > maxLabel {
		return false
	}
	for _, c := range []byte(n) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-', c == '@':
		default:
			return false
		}
	}
	return true
}

// RevokePrincipal ends a principal and, in the same transaction, all its tickets.
// Again it changes nothing.
func (s *Store) RevokePrincipal(ctx context.Context, l *Lease, id string) (p Principal, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		n, err := t.exec(principalRevoke, "principal", id, "now", t.now)
		if err != nil {
			return err
		}
		if t.silent = n == 0; n == 1 {
			if _, err := t.exec(ticketsRevokePrincipal, "principal", id, "reason", RevokedPrincipal, "now", t.now); err != nil {
				return err
			}
		}
		p, err = t.principal(id)
		return err
	})
	return p, err
}

// GrantRole gives a principal a role on a station, or another one. Tickets of one
// whose role allows no bridge any more are revoked in the same transaction.
func (s *Store) GrantRole(ctx context.Context, l *Lease, stationID, principalID, role string) error {
	if role != RoleOwner && role != RoleManager && role != RoleViewer {
		return fault.New(fault.InvalidArguments, "grant a role on station %.64s: %.40q is none of %s, %s, %s", stationID, role, RoleOwner, RoleManager, RoleViewer)
	}
	return s.onStation(ctx, l, stationID, func(t *tx) error {
		p, err := t.principal(principalID)
		if err != nil {
			return err
		}
		st, err := t.station(stationID)
		if err != nil {
			return err
		}
		if p.RevokedAt != 0 || p.Org != st.Org {
			return fault.New(fault.RoleDenied, "grant a role on station %s: principal %s is revoked, or of another organisation", stationID, p.ID)
		}
		n, err := t.exec(memberGrant, "station", stationID, "principal", principalID, "role", role, "now", t.now)
		if err != nil || n == 0 {
			t.silent = true
			return err
		}
		if role == RoleViewer {
			if err := t.revokeRole(stationID, principalID); err != nil {
				return err
			}
		}
		return t.chainEvent(stationID, 0, "member_granted", map[string]any{"principal": principalID, "role": role})
	})
}

// RevokeRole takes a principal's role away, and its tickets in the same transaction.
// Without a role it changes nothing.
func (s *Store) RevokeRole(ctx context.Context, l *Lease, stationID, principalID string) error {
	return s.onStation(ctx, l, stationID, func(t *tx) error {
		n, err := t.exec(memberRevoke, "station", stationID, "principal", principalID, "now", t.now)
		if err != nil || n == 0 {
			t.silent = true
			return err
		}
		if err := t.revokeRole(stationID, principalID); err != nil {
			return err
		}
		return t.chainEvent(stationID, 0, "member_revoked", map[string]any{"principal": principalID})
	})
}

func (t *tx) revokeRole(stationID, principalID string) error {
	_, err := t.exec(ticketsRevokeRole, "station", stationID, "principal", principalID, "reason", RevokedRole, "now", t.now)
	return err
}

// Principal gives one principal, or not_found.
func (s *Store) Principal(ctx context.Context, id string) (Principal, error) {
	return only(pool{ctx, s.rdb}, scanPrincipal, "principal", id, principalByID, "principal", id)
}

// PrincipalNamed gives the principal of that name in an organisation, or not_found.
func (s *Store) PrincipalNamed(ctx context.Context, org, name string) (Principal, error) {
	return only(pool{ctx, s.rdb}, scanPrincipal, "principal", name, principalByName, "org", org, "name", name)
}

// PrincipalOfPeer gives the current principal of a local uid, if there is one.
func (s *Store) PrincipalOfPeer(ctx context.Context, uid int64) (Principal, bool, error) {
	p, ok, err := first(pool{ctx, s.rdb}, scanPrincipal, principalByPeer, "uid", uid)
	return p, ok, storeError("look up a principal", err)
}

// Principals lists an organisation by name, the revoked ones too.
func (s *Store) Principals(ctx context.Context, org string) ([]Principal, error) {
	all, err := list(pool{ctx, s.rdb}, scanPrincipal, principalsOfOrg, "org", org)
	return all, storeError("list principals", err)
}

// Role gives a principal's role on a station now; "" for none, and for one that is
// revoked.
func (s *Store) Role(ctx context.Context, stationID, principalID string) (string, error) {
	role, _, err := first(pool{ctx, s.rdb}, scanString, memberRole, "station", stationID, "principal", principalID)
	return role, storeError("look up a role", err)
}

// Members lists the members of a station, former ones too.
func (s *Store) Members(ctx context.Context, stationID string) ([]Member, error) {
	all, err := list(pool{ctx, s.rdb}, scanMember, membersOf, "station", stationID)
	return all, storeError("list members", err)
}

func (t *tx) principal(id string) (Principal, error) {
	return only(t, scanPrincipal, "principal", id, principalByID, "principal", id)
}
