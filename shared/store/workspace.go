package store

import (
	"context"
	"strings"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// States of the lease of a workspace (station §3.3), which has nothing to do with
// the leases of the Store.
const (
	WorkspaceAcquiring = "acquiring"
	WorkspaceActive    = "active"
	WorkspaceReleasing = "releasing"
	WorkspaceReleased  = "released"
	WorkspaceLost      = "lost"
	WorkspaceFailed    = "cleanup_failed"
)

// Workspace is the right to use one workspace on one machine.
type Workspace struct {
	LeaseID     string
	Provider    string
	Org, Owner  string
	HostRef     string // of the provider, never shown outside
	Workdir     string // of the provider, never shown outside
	State       string
	BootID      string
	ExpiresAt   int64
	HeartbeatAt int64 // the provider's
	Dirty       bool
	ReleasedAt  int64
	Cleanup     []byte // JSON, nil until released or failed
	Revision    int64
}

// Acquired is what a provider handed out.
type Acquired struct {
	HostRef   string
	Workdir   string
	BootID    string
	ExpiresAt int64 // 0: with the attempt
}

const workspaceCols = `w.lease_id, w.provider, w.org, w.owner, w.host_ref, w.workdir, w.state, coalesce(w.boot_id, ''), w.expires_at,
  coalesce(w.last_heartbeat_at, 0), w.dirty, coalesce(w.released_at, 0), w.cleanup_json, w.revision`

func (w *Workspace) fields() []any {
	return []any{&w.LeaseID, &w.Provider, &w.Org, &w.Owner, &w.HostRef, &w.Workdir, &w.State, &w.BootID, &w.ExpiresAt,
		&w.HeartbeatAt, &w.Dirty, &w.ReleasedAt, &w.Cleanup, &w.Revision}
}

func scanWorkspace(r scanner) (w Workspace, err error) {
	err = r.Scan(w.fields()...)
	return w, err
}

// release begins the description of those moves that a live attempt forbids.
const release = "release"

// A lease with a live attempt on it is not released, whatever its state.
const workspaceFree = `
  AND NOT EXISTS (SELECT 1 FROM station_attempts a WHERE a.lease_id = :lease_id AND a.state <> 'terminal')`

var (
	workspaceInsert = define(`
INSERT INTO workspace_leases(lease_id, provider, org, owner, host_ref, workdir, state, expires_at)
VALUES (:lease_id, :provider, :org, :owner, '', '', 'acquiring', :expires)`)

	workspaceDirty = define(`
UPDATE workspace_leases
SET dirty = 1, revision = revision + 1
WHERE lease_id = :lease_id AND state = 'active'`)

	workspaceActive = define(`
UPDATE workspace_leases
SET state = 'active', host_ref = :host_ref, workdir = :workdir, boot_id = :lease_boot, expires_at = coalesce(:expires, expires_at),
  last_heartbeat_at = :now, revision = revision + 1
WHERE lease_id = :lease_id AND state = 'acquiring'`)

	workspaceBeat = define(`
UPDATE workspace_leases
SET last_heartbeat_at = max(coalesce(last_heartbeat_at, 0), :now), expires_at = max(expires_at, :expires)
WHERE lease_id = :lease_id AND state = 'active'`)

	workspaceReleasing = define(`
UPDATE workspace_leases
SET state = 'releasing', revision = revision + 1
WHERE lease_id = :lease_id AND (state = 'acquiring' OR state = 'active' OR state = 'lost' OR state = 'cleanup_failed')` + workspaceFree)

	workspaceReleased = define(`
UPDATE workspace_leases
SET state = 'released', released_at = :now, cleanup_json = :cleanup, revision = revision + 1
WHERE lease_id = :lease_id AND state = 'releasing'` + workspaceFree)

	workspaceFailed = define(`
UPDATE workspace_leases
SET state = 'cleanup_failed', cleanup_json = :cleanup, revision = revision + 1
WHERE lease_id = :lease_id AND (state = 'releasing' OR state = 'active' OR state = 'acquiring')`)

	workspaceLost = define(`
UPDATE workspace_leases
SET state = 'lost', revision = revision + 1
WHERE lease_id = :lease_id AND (state = 'acquiring' OR state = 'active')`)

	workspaceForced = define(`
UPDATE workspace_leases
SET state = 'released', released_at = :now, cleanup_json = :cleanup, revision = revision + 1
WHERE lease_id = :lease_id AND (state = 'releasing' OR state = 'lost' OR state = 'cleanup_failed')` + workspaceFree)

	workspaceByID = define(`
SELECT ` + workspaceCols + `
FROM workspace_leases w
WHERE w.lease_id = :lease_id`)

	workspaceAttempt = define(`
SELECT ` + attemptCols + `
FROM station_attempts a
WHERE a.lease_id = :lease_id
ORDER BY a.attempt DESC`)
)

// WorkspaceAcquired makes a lease active with what its provider handed out.
func (s *Store) WorkspaceAcquired(ctx context.Context, l *Lease, leaseID string, n Acquired) (w Workspace, err error) {
	w, err = s.moveWorkspace(ctx, l, leaseID, "acquire", func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceActive, "lease_id", leaseID, "host_ref", n.HostRef, "workdir", n.Workdir, "lease_boot", orNull(n.BootID),
			"expires", orNull(n.ExpiresAt), "now", t.now)
		if err != nil || n == 0 {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_acquired", map[string]any{"lease": leaseID})
	})
	if err == nil {
		crashpoint.At("lease_acquired")
	}
	return w, err
}

// BeatWorkspace records that the provider still grants a lease, until expiresAt if
// that is later than before. It rings no bell. lease_state_invalid when the lease is
// not active.
func (s *Store) BeatWorkspace(ctx context.Context, l *Lease, leaseID string, expiresAt int64) error {
	_, err := s.moveWorkspace(ctx, l, leaseID, "prolong", func(t *tx, _ StationAttempt) (int64, error) {
		t.silent = true
		return t.exec(workspaceBeat, "lease_id", leaseID, "expires", expiresAt, "now", t.now)
	})
	return err
}

// BeginRelease says that a lease is about to be given back, and revokes the tickets
// on it. lease_in_use while its attempt has not ended.
func (s *Store) BeginRelease(ctx context.Context, l *Lease, leaseID string) (w Workspace, err error) {
	w, err = s.moveWorkspace(ctx, l, leaseID, release, func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceReleasing, "lease_id", leaseID)
		if err != nil || n == 0 {
			return n, err
		}
		if _, err := t.exec(ticketsRevokeAttempt, "station", a.StationID, "attempt", a.Number, "reason", StopReleased, "now", t.now); err != nil {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_releasing", map[string]any{"lease": leaseID})
	})
	if err == nil {
		crashpoint.At("lease_releasing")
	}
	return w, err
}

// WorkspaceReleased ends a lease that its provider took back.
func (s *Store) WorkspaceReleased(ctx context.Context, l *Lease, leaseID string, cleanup []byte) (w Workspace, err error) {
	w, err = s.moveWorkspace(ctx, l, leaseID, release, func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceReleased, "lease_id", leaseID, "cleanup", cleanup, "now", t.now)
		if err != nil || n == 0 {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_released", map[string]any{"lease": leaseID})
	})
	if err == nil {
		crashpoint.At("lease_released")
	}
	return w, err
}

// WorkspaceCleanupFailed keeps a lease that could not be given back, and why; it is
// tried again by BeginRelease, or ended by ForceRelease.
func (s *Store) WorkspaceCleanupFailed(ctx context.Context, l *Lease, leaseID string, cleanup []byte) (Workspace, error) {
	return s.moveWorkspace(ctx, l, leaseID, "keep", func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceFailed, "lease_id", leaseID, "cleanup", cleanup)
		if err != nil || n == 0 {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_cleanup_failed", map[string]any{"lease": leaseID})
	})
}

// LoseWorkspace records that a provider does not grant a lease any more, and revokes
// the tickets on it in the same transaction.
func (s *Store) LoseWorkspace(ctx context.Context, l *Lease, leaseID string) (Workspace, error) {
	return s.moveWorkspace(ctx, l, leaseID, "lose", func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceLost, "lease_id", leaseID)
		if err != nil || n == 0 {
			return n, err
		}
		if _, err := t.exec(ticketsRevokeAttempt, "station", a.StationID, "attempt", a.Number, "reason", StopLeaseLost, "now", t.now); err != nil {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_lost", map[string]any{"lease": leaseID})
	})
}

// ForceRelease ends a lease that cannot be given back, on somebody's word: who and
// why are recorded. lease_in_use while its attempt has not ended.
func (s *Store) ForceRelease(ctx context.Context, l *Lease, leaseID, by, reason string, cleanup []byte) (Workspace, error) {
	if reason == "" || len(reason) > maxLabel {
		return Workspace{}, fault.New(fault.ForceReason, "release lease %.64s by force: a reason of 1 to %d bytes is needed", leaseID, maxLabel)
	}
	return s.moveWorkspace(ctx, l, leaseID, release+" by force", func(t *tx, a StationAttempt) (int64, error) {
		n, err := t.exec(workspaceForced, "lease_id", leaseID, "cleanup", cleanup, "now", t.now)
		if err != nil || n == 0 {
			return n, err
		}
		return n, t.chainEvent(a.StationID, a.Number, "lease_forced", map[string]any{"lease": leaseID, "by": by, "reason": reason})
	})
}

// Workspace gives one lease of a workspace, or not_found.
func (s *Store) Workspace(ctx context.Context, leaseID string) (Workspace, error) {
	return only(pool{ctx, s.rdb}, scanWorkspace, "workspace lease", leaseID, workspaceByID, "lease_id", leaseID)
}

// AttemptOfWorkspace gives the newest attempt on a lease, or not_found.
func (s *Store) AttemptOfWorkspace(ctx context.Context, leaseID string) (StationAttempt, error) {
	return only(pool{ctx, s.rdb}, scanStationAttempt, "attempt of lease", leaseID, workspaceAttempt, "lease_id", leaseID)
}

// moveWorkspace runs one move of a lease in a transaction under the lease of its
// station. Nothing changed means that its state, or its live attempt, forbids it.
func (s *Store) moveWorkspace(ctx context.Context, l *Lease, leaseID, doing string, move func(*tx, StationAttempt) (int64, error)) (w Workspace, err error) {
	a, err := s.AttemptOfWorkspace(ctx, leaseID)
	if err != nil {
		return w, err
	}
	err = s.onStation(ctx, l, a.StationID, func(t *tx) error {
		n, err := move(t, a)
		if err != nil {
			return err
		}
		if w, err = only(t, scanWorkspace, "workspace lease", leaseID, workspaceByID, "lease_id", leaseID); err != nil || n != 0 {
			return err
		}
		t.silent = true
		live, err := t.attempt(a.StationID, a.Number)
		if err != nil {
			return err
		}
		if live.Live() && strings.HasPrefix(doing, release) {
			return fault.New(fault.LeaseInUse, "%s lease %s: attempt %d of station %s is %s", doing, leaseID, live.Number, live.StationID, live.State)
		}
		return fault.New(fault.LeaseState, "%s lease %s: it is %s", doing, leaseID, w.State)
	})
	return w, err
}
