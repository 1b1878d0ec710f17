package store

import (
	"context"

	"drawbridge/shared/fault"
)

// States of an attempt (station §4.1), which only move to the right; any of the
// first three may go to stopping.
const (
	AttemptPreparing = "preparing"
	AttemptLaunching = "launching"
	AttemptReady     = "ready"
	AttemptStopping  = "stopping"
	AttemptTerminal  = "terminal"
)

// Reasons of a stop (station §4.2): a closed list.
const (
	StopOperator  = "operator_stop"
	StopReplaced  = "attempt_replaced"
	StopReleased  = "lease_released"
	StopLeaseLost = "lease_lost"
	StopTTL       = "ttl_expired"
	StopIdle      = "idle_expired"
	StopExited    = "daemon_exited"
	StopLaunch    = "launch_failed"
	StopNotReady  = "not_ready"
	StopLoopback  = "loopback_violation"
	StopIntegrity = "integrity_failed"
	StopPolicy    = "policy_violation"
	StopLost      = "supervisor_lost"
	StopRebooted  = "host_rebooted"
	StopShutdown  = "service_shutdown"
)

// stationAfter is what a station is after an attempt that ended for a reason. The
// list is the closed one.
var stationAfter = map[string]string{
	StopOperator: StationStopped, StopReplaced: StationStopped, StopReleased: StationStopped, StopTTL: StationStopped,
	StopIdle: StationStopped, StopShutdown: StationStopped,
	StopLeaseLost: StationFailed, StopExited: StationFailed, StopLaunch: StationFailed, StopNotReady: StationFailed,
	StopLoopback: StationFailed, StopIntegrity: StationFailed, StopPolicy: StationFailed, StopLost: StationFailed, StopRebooted: StationFailed,
}

// StationAttempt is one run of a daemon, on one lease.
type StationAttempt struct {
	StationID   string
	Number      int64
	LeaseID     string
	RunID       string // "": none
	Host        string // of the stationd that acts on it
	State       string
	Desired     string
	StopReason  string // "": no stop was asked for
	StopAt      int64
	StopBy      string
	BootID      string // of the machine of the lease; "" until a shim was started
	ShimPID     int64  // 0: none known
	ShimStart   int64  // field 22 of /proc/PID/stat
	DaemonPID   int64
	DaemonStart int64
	DaemonPGID  int64
	Port        int64
	Containment string
	Egress      string // how egress is enforced
	CommandHash string // "" until launching
	Workdir     string
	RuntimeDir  string
	Launch      []byte // JSON: redacted command, identity, grounding
	StartedAt   int64  // of the daemon
	ReadyAt     int64
	EndedAt     int64
	TTLDeadline int64  // wall clock, for people and tickets
	TTLBoot     int64  // the same on the boot-time clock of TTLBootID
	TTLBootID   string // boot of stationd's host when the attempt began
	IdleMS      int64  // 0: off
	ActivityAt  int64
	HeartbeatAt int64 // the shim's
	ObservedAt  int64
	Exit        []byte // JSON, nil until the daemon ended
	Cleanup     []byte // JSON, nil until cleaned up
	Events      int64
	Dropped     int64 // events beyond the bound
	Revision    int64
}

// Live reports whether the attempt has not ended.
func (a StationAttempt) Live() bool { return a.State != AttemptTerminal }

const attemptCols = `a.station_id, a.attempt, a.lease_id, coalesce(a.run_id, ''), a.host, a.state, a.desired_state, coalesce(a.stop_reason, ''),
  coalesce(a.stop_requested_at, 0), coalesce(a.stop_requested_by, ''), coalesce(a.supervisor_boot_id, ''), coalesce(a.shim_pid, 0),
  coalesce(a.shim_start, 0), coalesce(a.daemon_pid, 0), coalesce(a.daemon_start, 0), coalesce(a.daemon_pgid, 0), coalesce(a.port, 0),
  coalesce(a.containment, ''), coalesce(a.egress_enforcement, ''), a.command_hash, a.workdir, coalesce(a.runtime_dir, ''), a.launch_json,
  coalesce(a.started_at, 0), coalesce(a.ready_at, 0), coalesce(a.ended_at, 0), a.ttl_deadline, a.ttl_boot, a.ttl_boot_id, a.idle_ms,
  coalesce(a.last_activity_at, 0), coalesce(a.last_heartbeat_at, 0), coalesce(a.last_observed_at, 0), a.exit_json, a.cleanup_json,
  a.events, a.events_dropped, a.revision`

func (a *StationAttempt) fields() []any {
	return []any{&a.StationID, &a.Number, &a.LeaseID, &a.RunID, &a.Host, &a.State, &a.Desired, &a.StopReason,
		&a.StopAt, &a.StopBy, &a.BootID, &a.ShimPID,
		&a.ShimStart, &a.DaemonPID, &a.DaemonStart, &a.DaemonPGID, &a.Port,
		&a.Containment, &a.Egress, &a.CommandHash, &a.Workdir, &a.RuntimeDir, &a.Launch,
		&a.StartedAt, &a.ReadyAt, &a.EndedAt, &a.TTLDeadline, &a.TTLBoot, &a.TTLBootID, &a.IdleMS,
		&a.ActivityAt, &a.HeartbeatAt, &a.ObservedAt, &a.Exit, &a.Cleanup,
		&a.Events, &a.Dropped, &a.Revision}
}

func scanStationAttempt(r scanner) (a StationAttempt, err error) {
	err = r.Scan(a.fields()...)
	return a, err
}

var (
	attemptByNumber = define(`
SELECT ` + attemptCols + `
FROM station_attempts a
WHERE a.station_id = :station AND a.attempt = :attempt`)

	stationAttemptsOf = define(`
SELECT ` + attemptCols + `
FROM station_attempts a
WHERE a.station_id = :station
ORDER BY a.attempt`)

	attemptLive = define(`
SELECT ` + attemptCols + `
FROM station_attempts a
WHERE a.station_id = :station AND a.state <> 'terminal'`)

	attemptsLive = define(`
SELECT ` + attemptCols + `, ` + workspaceCols + `
FROM station_attempts a INDEXED BY one_live_attempt
JOIN workspace_leases w ON w.lease_id = a.lease_id
WHERE a.state <> 'terminal' AND a.host = :host
ORDER BY a.station_id`)

	attemptsUnreleased = define(`
SELECT ` + attemptCols + `, ` + workspaceCols + `
FROM workspace_leases w INDEXED BY workspace_lease_open
CROSS JOIN station_attempts a ON a.lease_id = w.lease_id -- in this order: few leases are open
WHERE w.state <> 'released' AND a.state = 'terminal' AND a.host = :host
ORDER BY a.station_id, a.attempt`)
)

// StationAttempt gives one attempt, or not_found.
func (s *Store) StationAttempt(ctx context.Context, stationID string, number int64) (StationAttempt, error) {
	return only(pool{ctx, s.rdb}, scanStationAttempt, "attempt of station", stationID, attemptByNumber, "station", stationID, "attempt", number)
}

// StationAttempts lists the attempts of a station in order.
func (s *Store) StationAttempts(ctx context.Context, stationID string) ([]StationAttempt, error) {
	all, err := list(pool{ctx, s.rdb}, scanStationAttempt, stationAttemptsOf, "station", stationID)
	return all, storeError("list attempts", err)
}

// Unfinished is an attempt that a stationd has to look after when it starts: one
// that has not ended, or whose lease is not released (station §4.6).
type Unfinished struct {
	Attempt StationAttempt
	Lease   Workspace
}

func scanUnfinished(r scanner) (u Unfinished, err error) {
	err = r.Scan(append(u.Attempt.fields(), u.Lease.fields()...)...)
	return u, err
}

// UnfinishedAttempts lists the attempts of a host to be recovered: live ones first.
func (s *Store) UnfinishedAttempts(ctx context.Context, host string) (all []Unfinished, err error) {
	err = s.view(ctx, func(t *tx) error {
		live, err := list(t, scanUnfinished, attemptsLive, "host", host)
		if err != nil {
			return err
		}
		ended, err := list(t, scanUnfinished, attemptsUnreleased, "host", host)
		all = append(live, ended...)
		return err
	})
	return all, err
}

func (t *tx) attempt(stationID string, number int64) (StationAttempt, error) {
	return only(t, scanStationAttempt, "attempt of station", stationID, attemptByNumber, "station", stationID, "attempt", number)
}

// moveAttempt runs one conditional statement on one attempt in the open
// transaction. attempt_state_invalid when the attempt is not as the move needs it.
func (t *tx) moveAttempt(stationID string, number int64, doing string, st stmt, pairs ...any) (StationAttempt, error) {
	n, err := t.exec(st, append([]any{"station", stationID, "attempt", number, "now", t.now}, pairs...)...)
	if err != nil {
		return StationAttempt{}, err
	}
	a, err := t.attempt(stationID, number)
	if err == nil && n == 0 {
		err = attemptState(doing, a)
	}
	return a, err
}

// attemptState says that an attempt does not allow a move.
func attemptState(doing string, a StationAttempt) error {
	switch {
	case a.State == AttemptTerminal:
		return fault.New(fault.StationEnded, "%s attempt %d of station %s: it has ended", doing, a.Number, a.StationID).With("reason", a.StopReason)
	case a.Desired == WantStopping && a.State != AttemptStopping:
		return fault.New(fault.StationStopping, "%s attempt %d of station %s: it is to stop", doing, a.Number, a.StationID).With("reason", a.StopReason)
	}
	return fault.New(fault.AttemptState, "%s attempt %d of station %s: it is %s", doing, a.Number, a.StationID, a.State)
}
