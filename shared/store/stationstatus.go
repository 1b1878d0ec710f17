package store

import (
	"context"
	"time"
)

// What is said of a shim, a daemon and a cleanup.
const (
	SeenNone    = "none"    // not there yet
	SeenLive    = "live"    // the shim answers, the daemon runs
	SeenSilent  = "silent"  // the shim has missed its beats
	SeenEnded   = "ended"   // it is gone
	SeenPending = "pending" // the cleanup is not done
	SeenDone    = "done"    // the cleanup is done
	SeenFailed  = "failed"  // the cleanup failed: the lease is kept
)

// Beats of a station and when they count as missed (station §4.4).
const (
	StationBeat   = 10 * time.Second
	StationMissed = 3 * StationBeat
)

// StationStatus is a station with its newest attempt and that one's lease, read on
// one snapshot. State to Cleanup are nine facts that change independently.
type StationStatus struct {
	Station Station
	Attempt StationAttempt // Number 0: none, or purged
	Lease   Workspace

	State      string
	Desired    string
	Number     int64
	ObservedAt int64
	StopReason string
	LeaseState string
	Supervisor string
	Command    string
	Cleanup    string
}

// StationStatus gives the status of a station, or not_found.
func (s *Store) StationStatus(ctx context.Context, stationID string) (st StationStatus, err error) {
	err = s.view(ctx, func(t *tx) error {
		if st.Station, err = t.station(stationID); err != nil {
			return err
		}
		pairs := []any{"station", stationID, "attempt", st.Station.CurrentAttempt}
		if st.Attempt, _, err = first(t, scanStationAttempt, attemptByNumber, pairs...); err != nil {
			return err
		}
		st.Lease, _, err = first(t, scanWorkspace, workspaceByID, "lease_id", st.Attempt.LeaseID)
		st.see(t.now)
		return err
	})
	return st, err
}

// see derives the nine facts.
func (st *StationStatus) see(now int64) {
	a, w := st.Attempt, st.Lease
	st.State, st.Desired, st.Number = st.Station.State, st.Station.Desired, st.Station.CurrentAttempt
	st.ObservedAt, st.StopReason, st.LeaseState = a.ObservedAt, a.StopReason, w.State
	switch {
	case a.State == AttemptTerminal && a.ShimPID != 0:
		st.Supervisor = SeenEnded
	case a.ShimPID == 0:
		st.Supervisor = SeenNone
	case a.HeartbeatAt != 0 && now-a.HeartbeatAt > StationMissed.Milliseconds():
		st.Supervisor = SeenSilent
	default:
		st.Supervisor = SeenLive
	}
	switch {
	case a.Exit != nil, a.DaemonPID != 0 && a.State == AttemptTerminal:
		st.Command = SeenEnded
	case a.DaemonPID != 0:
		st.Command = SeenLive
	default:
		st.Command = SeenNone
	}
	switch {
	case w.State == WorkspaceFailed:
		st.Cleanup = SeenFailed
	case w.State == WorkspaceReleased:
		st.Cleanup = SeenDone
	case a.Desired == WantStopping:
		st.Cleanup = SeenPending
	default:
		st.Cleanup = SeenNone
	}
}
