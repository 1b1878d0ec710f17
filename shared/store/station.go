package store

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"drawbridge/shared/fault"
)

// States of a station (station §3.3). They follow from its newest attempt and are
// written with it.
const (
	StationCreated  = "created"
	StationRunning  = "running"
	StationStopping = "stopping"
	StationStopped  = "stopped"
	StationFailed   = "failed"
)

// What is wanted of a station and of an attempt.
const (
	WantRunning  = "running"
	WantStopped  = "stopped"
	WantStopping = "stopping"
)

// stationsMost is how many rows a list gives.
const stationsMost = 1000

// Station is the durable record of one supervised workload.
type Station struct {
	ID             string
	Org            string
	Owner          string // name of the principal that made it
	Profile        string
	Spec           []byte // JSON
	State          string
	Desired        string
	CurrentAttempt int64 // 0: none yet
	CreatedAt      int64
	UpdatedAt      int64
	Revision       int64
}

// NewStation is a station to be made. Key, if there is one, makes a second try give
// the station of the first.
type NewStation struct {
	PrincipalID string // becomes its owner
	Profile     string
	Spec        []byte
	Key         string
}

const stationCols = `s.station_id, s.org, s.owner, s.profile, s.spec_json, s.state, s.desired_state, s.current_attempt, s.created_at, s.updated_at, s.revision`

func (n *Station) fields() []any {
	return []any{&n.ID, &n.Org, &n.Owner, &n.Profile, &n.Spec, &n.State, &n.Desired, &n.CurrentAttempt, &n.CreatedAt, &n.UpdatedAt, &n.Revision}
}

func scanStation(r scanner) (n Station, err error) {
	err = r.Scan(n.fields()...)
	return n, err
}

var (
	stationInsert = define(`
INSERT INTO stations(station_id, org, owner, profile, spec_json, start_key, state, desired_state, created_at, updated_at)
VALUES (:station, :org, :owner, :profile, :spec, :key, 'created', 'running', :now, :now)`)

	stationByID = define(`
SELECT ` + stationCols + `
FROM stations s
WHERE s.station_id = :station`)

	stationByKey = define(`
SELECT ` + stationCols + `
FROM stations s
WHERE s.org = :org AND s.owner = :owner AND s.start_key = :key`)

	stationsNewest = define(`
SELECT ` + stationCols + `
FROM stations s INDEXED BY station_age
WHERE s.created_at >= 0
ORDER BY s.created_at DESC
LIMIT :limit`)

	stationsOfMember = define(`
SELECT ` + stationCols + `
FROM stations s INDEXED BY station_age
JOIN station_members m ON m.station_id = s.station_id
WHERE s.created_at >= 0 AND m.principal_id = :principal AND m.revoked_at IS NULL
ORDER BY s.created_at DESC
LIMIT :limit`)

	stationMove = define(`
UPDATE stations
SET state = :state, desired_state = coalesce(:desired, desired_state), current_attempt = :attempt, updated_at = max(updated_at, :now),
  revision = revision + 1
WHERE station_id = :station`)
)

// CreateStation makes a station and its owner's membership, under the lease of the
// acting stationd. made is false when the key had made it before;
// idempotency_conflict when that was with another spec or profile.
func (s *Store) CreateStation(ctx context.Context, l *Lease, n NewStation) (st Station, made bool, err error) {
	if len(n.Key) > maxLabel || n.Profile == "" || len(n.Profile) > maxLabel {
		return st, false, fault.New(fault.InvalidArguments, "make a station: the key or the profile's name is longer than %d bytes, or there is no profile", maxLabel)
	}
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		p, err := t.principal(n.PrincipalID)
		if err != nil {
			return err
		}
		if p.RevokedAt != 0 {
			return fault.New(fault.RoleDenied, "make a station: principal %s is revoked", p.ID)
		}
		if n.Key != "" {
			old, ok, err := first(t, scanStation, stationByKey, "org", p.Org, "owner", p.Name, "key", n.Key)
			if err != nil {
				return err
			}
			if ok {
				st, t.silent = old, true
				if string(old.Spec) != string(n.Spec) || old.Profile != n.Profile {
					return fault.New(fault.IdempotencyConflict, "make a station: the key made %s, of another spec", old.ID)
				}
				return nil
			}
		}
		id := t.stationID("stn_")
		if _, err := t.exec(stationInsert, "station", id, "org", p.Org, "owner", p.Name, "profile", n.Profile, "spec", n.Spec,
			"key", orNull(n.Key), "now", t.now); err != nil {
			return err
		}
		if _, err := t.exec(memberGrant, "station", id, "principal", p.ID, "role", RoleOwner, "now", t.now); err != nil {
			return err
		}
		if err := t.chainEvent(id, 0, "created", map[string]any{"owner": p.ID, "profile": n.Profile}); err != nil {
			return err
		}
		st, err = t.station(id)
		made = true
		return err
	})
	return st, made && err == nil, err
}

// Station gives one station, or not_found.
func (s *Store) Station(ctx context.Context, id string) (Station, error) {
	return only(pool{ctx, s.rdb}, scanStation, "station", id, stationByID, "station", id)
}

// Stations lists the newest stations, at most 1000: all, or those on which a
// principal has a role.
func (s *Store) Stations(ctx context.Context, principalID string) ([]Station, error) {
	st, pairs := stationsNewest, []any{"limit", stationsMost}
	if principalID != "" {
		st, pairs = stationsOfMember, append(pairs, "principal", principalID)
	}
	all, err := list(pool{ctx, s.rdb}, scanStation, st, pairs...)
	return all, storeError("list stations", err)
}

func (t *tx) station(id string) (Station, error) {
	return only(t, scanStation, "station", id, stationByID, "station", id)
}

// onStation runs fn in one transaction under the lease of the station, or under the
// one of the acting stationd. not_found when there is no such station.
func (s *Store) onStation(ctx context.Context, l *Lease, stationID string, fn func(*tx) error) error {
	if l == nil || l.Name != StationLease(stationID) && !strings.HasPrefix(l.Name, stationdLeases) {
		return fault.New(fault.Internal, "write to station %.64s without its lease", stationID)
	}
	return s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		if _, err := t.station(stationID); err != nil {
			return err
		}
		return fn(t)
	})
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// stationID makes an id of station §3.2: the prefix and 26 characters of a UUIDv7,
// whose time is the transaction's and whose randomness is NewID's.
func (t *tx) stationID(prefix string) string {
	sum := sha256.Sum256([]byte(t.newID()))
	u := sum[:16]
	for i, shift := 0, 40; i < 6; i, shift = i+1, shift-8 {
		u[i] = byte(t.now >> shift)
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return prefix + idEncoding.EncodeToString(u)
}

// IDTime gives when an id of station §3.2 was made, in Unix milliseconds: that of a
// lease is when its attempt began. 0 for what is no such id.
func IDTime(id string) (ms int64) {
	_, text, _ := strings.Cut(id, "_")
	u, err := idEncoding.DecodeString(text)
	if err != nil || len(u) != 16 {
		return 0
	}
	for _, b := range u[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}
