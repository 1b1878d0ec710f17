package store

import (
	"context"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Bounds of an attempt's life (station §4.4).
const (
	AttemptTTL     = 8 * time.Hour // when none is asked for
	AttemptTTLMost = 24 * time.Hour
	AttemptIdle    = 45 * time.Minute // when none is asked for
)

// NewAttempt is an attempt to begin, on a lease that is about to be acquired.
type NewAttempt struct {
	Provider string
	Host     string // of the acting stationd
	RunID    string // "": none
	TTL      time.Duration
	Idle     time.Duration // 0: off
}

// Launch is what is known and checked before anything is started.
type Launch struct {
	CommandHash string
	Workdir     string // relative to the lease
	RuntimeDir  string
	Containment string
	Egress      string
	Document    []byte // JSON: redacted command, identity, grounding
}

// Shim identifies the process that supervises an attempt on its machine.
type Shim struct {
	BootID string
	PID    int64
	Start  int64
}

// Daemon identifies the process that the shim started.
type Daemon struct {
	PID, Start, PGID, Port int64
}

// Beats are signs of life; the zero of one leaves it as it is. Times of a row never
// go back.
type Beats struct {
	Activity  int64
	Heartbeat int64 // the shim answered
	Observed  int64
}

// AttemptEnd is how an attempt ended, with its one evidence document.
type AttemptEnd struct {
	Exit     []byte // JSON; nil: as recorded before
	Cleanup  []byte // JSON
	Document []byte // JSON, redacted and checked
}

const sameAttempt = `
WHERE station_id = :station AND attempt = :attempt`

var (
	stationAttemptInsert = define(`
INSERT INTO station_attempts(station_id, attempt, lease_id, run_id, host, state, desired_state, command_hash, workdir, launch_json,
  ttl_deadline, ttl_boot, ttl_boot_id, idle_ms)
VALUES (:station, :attempt, :lease_id, :run, :host, 'preparing', 'running', '', '', '{}', :now + :ttl, :boot + :ttl, :boot_id, :idle)`)

	attemptLaunching = define(`
UPDATE station_attempts
SET state = 'launching', command_hash = :hash, workdir = :workdir, runtime_dir = :runtime, containment = :containment,
  egress_enforcement = :egress, launch_json = :launch, revision = revision + 1` + sameAttempt + `
  AND state = 'preparing' AND desired_state = 'running'`)

	attemptShim = define(`
UPDATE station_attempts
SET supervisor_boot_id = :shim_boot, shim_pid = :pid, shim_start = :start, last_observed_at = max(coalesce(last_observed_at, 0), :now),
  revision = revision + 1` + sameAttempt + `
  AND (state = 'launching' OR state = 'stopping') AND shim_pid IS NULL`)

	attemptDaemon = define(`
UPDATE station_attempts
SET daemon_pid = :pid, daemon_start = :start, daemon_pgid = :pgid, port = :port, started_at = :now,
  last_observed_at = max(coalesce(last_observed_at, 0), :now), revision = revision + 1` + sameAttempt + `
  AND (state = 'launching' OR state = 'stopping') AND shim_pid IS NOT NULL AND daemon_pid IS NULL`)

	attemptReady = define(`
UPDATE station_attempts
SET state = 'ready', ready_at = :now, last_activity_at = max(coalesce(last_activity_at, 0), :now),
  last_observed_at = max(coalesce(last_observed_at, 0), :now), revision = revision + 1` + sameAttempt + `
  AND state = 'launching' AND desired_state = 'running' AND daemon_pid IS NOT NULL`)

	attemptStop = define(`
UPDATE station_attempts
SET desired_state = 'stopping', stop_reason = :reason, stop_requested_at = :now, stop_requested_by = :by, revision = revision + 1` + sameAttempt + `
  AND state <> 'terminal' AND stop_reason IS NULL`)

	attemptStopping = define(`
UPDATE station_attempts
SET state = 'stopping', revision = revision + 1` + sameAttempt + `
  AND (state = 'preparing' OR state = 'launching' OR state = 'ready') AND desired_state = 'stopping'`)

	attemptExit = define(`
UPDATE station_attempts
SET exit_json = :exit, last_observed_at = max(coalesce(last_observed_at, 0), :now), revision = revision + 1` + sameAttempt + `
  AND state <> 'terminal' AND exit_json IS NULL`)

	attemptCleanup = define(`
UPDATE station_attempts
SET cleanup_json = :cleanup, last_observed_at = max(coalesce(last_observed_at, 0), :now), revision = revision + 1` + sameAttempt + `
  AND state = 'stopping'`)

	attemptBeat = define(`
UPDATE station_attempts
SET last_activity_at = nullif(max(coalesce(last_activity_at, 0), :activity), 0),
  last_heartbeat_at = nullif(max(coalesce(last_heartbeat_at, 0), :heartbeat), 0),
  last_observed_at = nullif(max(coalesce(last_observed_at, 0), :observed), 0)` + sameAttempt + `
  AND state <> 'terminal'`)

	attemptTerminal = define(`
UPDATE station_attempts
SET state = 'terminal', ended_at = :now, exit_json = coalesce(:exit, exit_json), cleanup_json = coalesce(:cleanup, cleanup_json),
  revision = revision + 1` + sameAttempt + `
  AND state = 'stopping'`)
)

// BeginAttempt makes the next attempt of a station and the row of its lease, before
// anything is done. attempt_exists while the last one has not ended.
func (s *Store) BeginAttempt(ctx context.Context, l *Lease, stationID string, n NewAttempt) (a StationAttempt, err error) {
	switch {
	case n.TTL < time.Second || n.TTL > AttemptTTLMost || n.Idle < 0 || n.Idle > n.TTL:
		return a, fault.New(fault.InvalidArguments, "begin an attempt: a life of %s with %s idle; a life is 1 s to %s, and idle no longer", n.TTL, n.Idle, AttemptTTLMost)
	case n.Provider == "" || n.Host == "" || max(len(n.Provider), len(n.Host), len(n.RunID)) > maxLabel:
		return a, fault.New(fault.InvalidArguments, "begin an attempt: provider or host is missing, or a label is longer than %d bytes", maxLabel)
	}
	err = s.onStation(ctx, l, stationID, func(t *tx) error {
		st, err := t.station(stationID)
		if err != nil {
			return err
		}
		live, ok, err := first(t, scanStationAttempt, attemptLive, "station", stationID)
		if err != nil {
			return err
		}
		if ok {
			return fault.New(fault.AttemptExists, "begin an attempt of station %s: attempt %d is %s", stationID, live.Number, live.State).
				With("attempt", live.Number).WithHint("stop it first, or start with --replace")
		}
		number, leaseID := st.CurrentAttempt+1, t.stationID("lse_")
		if _, err := t.exec(workspaceInsert, "lease_id", leaseID, "provider", n.Provider, "org", st.Org, "owner", st.Owner,
			"expires", t.now+n.TTL.Milliseconds()); err != nil {
			return err
		}
		if _, err := t.exec(stationAttemptInsert, "station", stationID, "attempt", number, "lease_id", leaseID, "run", orNull(n.RunID), "host", n.Host,
			"now", t.now, "boot", t.boot, "boot_id", t.bootID, "ttl", n.TTL.Milliseconds(), "idle", n.Idle.Milliseconds()); err != nil {
			return err
		}
		if err := t.moveStation(stationID, number, StationRunning, WantRunning); err != nil {
			return err
		}
		if err := t.chainEvent(stationID, number, "attempt_begun", map[string]any{"lease": leaseID, "provider": n.Provider}); err != nil {
			return err
		}
		a, err = t.attempt(stationID, number)
		return err
	})
	if err == nil {
		crashpoint.At("attempt_begun")
	}
	return a, err
}

// LaunchAttempt makes what is about to be started durable: preparing → launching.
// station_stopping once a stop was asked for. The lease is dirty from here on.
func (s *Store) LaunchAttempt(ctx context.Context, l *Lease, stationID string, number int64, n Launch) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "launch", attemptLaunching, "hash", n.CommandHash, "workdir", n.Workdir, "runtime", orNull(n.RuntimeDir),
			"containment", orNull(n.Containment), "egress", orNull(n.Egress), "launch", n.Document)
		if err != nil {
			return a, err
		}
		if err := t.must(workspaceDirty, "lease_id", a.LeaseID); err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, "launching", map[string]any{"commandHash": n.CommandHash, "containment": n.Containment, "egress": n.Egress})
	})
	if err == nil {
		crashpoint.At("attempt_launching")
	}
	return a, err
}

// RecordShim names the shim of a launching attempt, once. It is recorded also when
// a stop was asked for meanwhile, so that the shim is found and ended; only an
// attempt whose Desired is still running may be told to go on.
func (s *Store) RecordShim(ctx context.Context, l *Lease, stationID string, number int64, n Shim) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "record the shim of", attemptShim, "shim_boot", n.BootID, "pid", n.PID, "start", n.Start)
		if err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, "shim_started", map[string]any{"pid": n.PID, "start": n.Start})
	})
	if err == nil {
		crashpoint.At("shim_recorded")
	}
	return a, err
}

// RecordDaemon names the process that the shim started, once.
func (s *Store) RecordDaemon(ctx context.Context, l *Lease, stationID string, number int64, n Daemon) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "record the daemon of", attemptDaemon, "pid", n.PID, "start", n.Start, "pgid", n.PGID, "port", n.Port)
		if err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, "daemon_started", map[string]any{"pid": n.PID, "start": n.Start, "pgid": n.PGID, "port": n.Port})
	})
	if err == nil {
		crashpoint.At("daemon_recorded")
	}
	return a, err
}

// AttemptIsReady opens an attempt to its clients: launching → ready.
func (s *Store) AttemptIsReady(ctx context.Context, l *Lease, stationID string, number int64) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "open", attemptReady)
		if err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, "ready", map[string]any{"port": a.Port})
	})
	if err == nil {
		crashpoint.At("attempt_ready")
	}
	return a, err
}

// RequestStop is step 1 of a stop (station §12): desired state, reason, revoked
// tickets and event in one transaction, before the first signal. The first reason
// stays: a later call, also after the end, gives the attempt as it is and began false.
func (s *Store) RequestStop(ctx context.Context, l *Lease, stationID string, number int64, reason, by string) (a StationAttempt, began bool, err error) {
	if stationAfter[reason] == "" {
		return a, false, fault.New(fault.Internal, "stop attempt %d of station %.64s: reason %.40q is not of the list", number, stationID, reason)
	}
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		n, err := t.exec(attemptStop, "station", stationID, "attempt", number, "reason", reason, "by", by, "now", t.now)
		if err != nil || n == 0 {
			t.silent = true
			if err != nil {
				return StationAttempt{}, err
			}
			return t.attempt(stationID, number)
		}
		began = true
		if _, err := t.exec(ticketsRevokeAttempt, "station", stationID, "attempt", number, "reason", reason, "now", t.now); err != nil {
			return StationAttempt{}, err
		}
		want := WantStopped
		if reason == StopReplaced {
			want = WantRunning
		}
		if err := t.moveStation(stationID, number, StationRunning, want); err != nil {
			return StationAttempt{}, err
		}
		if err := t.chainEvent(stationID, number, "stop_requested", map[string]any{"reason": reason, "by": by}); err != nil {
			return StationAttempt{}, err
		}
		return t.attempt(stationID, number)
	})
	if err != nil {
		return a, false, err
	}
	if began {
		crashpoint.At("stop_requested")
	}
	return a, began, nil
}

// AttemptIsStopping records that the stop is under way. Of one that is it changes
// nothing.
func (s *Store) AttemptIsStopping(ctx context.Context, l *Lease, stationID string, number int64) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "stop", attemptStopping)
		if err != nil {
			if a.State == AttemptStopping && fault.Is(err, fault.AttemptState) {
				t.silent = true
				return a, nil
			}
			return a, err
		}
		if err := t.moveStation(stationID, number, StationStopping, nil); err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, "stopping", map[string]any{})
	})
	if err == nil {
		crashpoint.At("attempt_stopping")
	}
	return a, err
}

// RecordExit keeps how the daemon ended; the first record stays.
func (s *Store) RecordExit(ctx context.Context, l *Lease, stationID string, number int64, exit []byte) (a StationAttempt, err error) {
	return s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "record the exit of", attemptExit, "exit", exit)
		if err != nil {
			if a.Exit != nil {
				t.silent = true
				return a, nil
			}
			return a, err
		}
		return a, t.chainEvent(stationID, number, "daemon_exited", map[string]any{})
	})
}

// RecordCleanup keeps how far the cleanup of a stopping attempt has come.
func (s *Store) RecordCleanup(ctx context.Context, l *Lease, stationID string, number int64, cleanup []byte) (StationAttempt, error) {
	return s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		return t.moveAttempt(stationID, number, "record the cleanup of", attemptCleanup, "cleanup", cleanup)
	})
}

// Beat records signs of life of an attempt and rings no bell. Of one that has ended
// it changes nothing.
func (s *Store) Beat(ctx context.Context, l *Lease, stationID string, number int64, b Beats) error {
	return s.onStation(ctx, l, stationID, func(t *tx) error {
		t.silent = true
		_, err := t.exec(attemptBeat, "station", stationID, "attempt", number, "activity", b.Activity, "heartbeat", b.Heartbeat, "observed", b.Observed)
		return err
	})
}

// EndAttempt is step 9 of a stop: the one evidence document and the terminal state
// in one transaction, before the lease is released. Of an attempt that has ended it
// changes nothing and gives it as it is.
func (s *Store) EndAttempt(ctx context.Context, l *Lease, stationID string, number int64, e AttemptEnd) (a StationAttempt, err error) {
	a, err = s.changeAttempt(ctx, l, stationID, number, func(t *tx) (StationAttempt, error) {
		a, err := t.moveAttempt(stationID, number, "end", attemptTerminal, "exit", e.Exit, "cleanup", e.Cleanup)
		if err != nil {
			if a.State == AttemptTerminal {
				t.silent = true
				return a, nil
			}
			return a, err
		}
		sum, err := t.evidence(stationID, number, e.Document)
		if err != nil {
			return a, err
		}
		if err := t.moveStation(stationID, number, stationAfter[a.StopReason], nil); err != nil {
			return a, err
		}
		return a, t.chainEvent(stationID, number, endedEvent, map[string]any{"reason": a.StopReason, "evidence": sum})
	})
	if err == nil {
		crashpoint.At("attempt_ended")
	}
	return a, err
}

func (s *Store) changeAttempt(ctx context.Context, l *Lease, stationID string, number int64, fn func(*tx) (StationAttempt, error)) (a StationAttempt, err error) {
	err = s.onStation(ctx, l, stationID, func(t *tx) error {
		moved, err := fn(t)
		if err != nil {
			return err
		}
		a, err = t.attempt(moved.StationID, moved.Number)
		return err
	})
	return a, err
}

// moveStation writes what follows for the station of its newest attempt; want nil
// leaves the wish.
func (t *tx) moveStation(stationID string, number int64, state string, want any) error {
	return t.must(stationMove, "station", stationID, "attempt", number, "state", state, "desired", want, "now", t.now)
}
