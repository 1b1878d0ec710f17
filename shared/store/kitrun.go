package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// States of a run of a kit (kit §13).
const (
	KitRunStarting   = "starting"   // recorded; its process may exist
	KitRunRunning    = "running"    // its process is known
	KitRunCancelling = "cancelling" // the kit was told that its time is up
	KitRunFinished   = "finished"   // the process is gone, and so are its workers
	KitRunLost       = "lost"       // its kitrun died; a later one cleaned up
)

// kitRunsMost is how many rows a list gives.
const kitRunsMost = 1000

// KitRun is one invocation of a kit.
type KitRun struct {
	InvocationID   string
	KitID          string
	Dest           string
	KitHash        string
	RequestSHA256  string
	ControllerRoot string
	OwnerID        string // label of its containers
	Holder         string // the kitrun that looks after it
	PID            int    // of its process, which leads a group; 0: not known
	PIDBirth       string // as process.Incarnation.Birth
	State          string
	Status         string // of its result, "" for none
	ExitCode       int64  // of kitrun; -1: not ended
	ErrorCode      string // "": none
	DeadlineAt     int64
	StartedAt      int64
	EndedAt        int64
	Removed        int64 // containers that had to be removed at its end
	Revision       int64

	// Orphan says that its holder is proven dead. OpenKitRuns sets it.
	Orphan bool
}

// NewKitRun is what is known before a process is started.
type NewKitRun struct {
	InvocationID   string
	KitID          string
	Dest           string
	KitHash        string
	RequestSHA256  string
	ControllerRoot string
	OwnerID        string
	DeadlineAt     int64
}

// KitRunEnd is how a run ended.
type KitRunEnd struct {
	State     string // KitRunFinished or KitRunLost
	Status    string
	ExitCode  int64
	ErrorCode string
	Removed   int64
}

const kitRunCols = `invocation_id, kit_id, dest, kit_hash, request_sha256, controller_root, owner_id, holder, coalesce(pid, 0),
  coalesce(pid_birth, ''), state, coalesce(result_status, ''), coalesce(exit_code, -1), coalesce(error_code, ''), deadline_at, started_at,
  coalesce(ended_at, 0), removed_containers, revision`

func scanKitRun(r scanner) (k KitRun, err error) {
	err = r.Scan(&k.InvocationID, &k.KitID, &k.Dest, &k.KitHash, &k.RequestSHA256, &k.ControllerRoot, &k.OwnerID, &k.Holder, &k.PID,
		&k.PIDBirth, &k.State, &k.Status, &k.ExitCode, &k.ErrorCode, &k.DeadlineAt, &k.StartedAt,
		&k.EndedAt, &k.Removed, &k.Revision)
	return k, err
}

var (
	kitRunInsert = define(`
INSERT INTO kit_runs(invocation_id, kit_id, dest, kit_hash, request_sha256, controller_root, owner_id, holder, state, deadline_at, started_at)
VALUES (:invocation, :kit, :dest, :hash, :request, :root, :owner, :holder, 'starting', :deadline, :now)`)

	kitRunRunning = define(`
UPDATE kit_runs
SET state = 'running', pid = :pid, pid_birth = :birth, revision = revision + 1
WHERE invocation_id = :invocation AND holder = :holder AND state = 'starting'`)

	kitRunCancelling = define(`
UPDATE kit_runs
SET state = 'cancelling', revision = revision + 1
WHERE invocation_id = :invocation AND holder = :holder AND state = 'running'`)

	kitRunEnded = define(`
UPDATE kit_runs
SET state = :state, result_status = :status, exit_code = :exit, error_code = :error, ended_at = max(started_at, :now),
  removed_containers = removed_containers + :removed, revision = revision + 1
WHERE invocation_id = :invocation AND holder = :seen AND (state = 'starting' OR state = 'running' OR state = 'cancelling')`)

	kitRunByID = define(`
SELECT ` + kitRunCols + `
FROM kit_runs
WHERE invocation_id = :invocation`)

	kitRunsOpen = define(`
SELECT ` + kitRunCols + `
FROM kit_runs INDEXED BY kit_run_open
WHERE (state = 'starting' OR state = 'running' OR state = 'cancelling')
ORDER BY started_at`)

	kitRunsNewest = define(`
SELECT ` + kitRunCols + `
FROM kit_runs INDEXED BY kit_run_age
WHERE started_at >= 0
ORDER BY started_at DESC
LIMIT :limit`)
)

// BeginKitRun records that the process of a kit is about to be started.
func (s *Store) BeginKitRun(ctx context.Context, k NewKitRun) error {
	err := s.transact(ctx, func(t *tx) error {
		_, err := t.exec(kitRunInsert, "invocation", k.InvocationID, "kit", k.KitID, "dest", k.Dest, "hash", k.KitHash, "request", k.RequestSHA256,
			"root", k.ControllerRoot, "owner", k.OwnerID, "holder", t.holder, "deadline", k.DeadlineAt, "now", t.now)
		return err
	})
	if err == nil {
		crashpoint.At("kit_run_begun")
	}
	return err
}

// KitRunRunning names the process of a run, which leads its group.
func (s *Store) KitRunRunning(ctx context.Context, invocationID string, pid int, birth string) error {
	err := s.moveKitRun(ctx, kitRunRunning, invocationID, "pid", pid, "birth", birth)
	if err == nil {
		crashpoint.At("kit_run_running")
	}
	return err
}

// KitRunCancelling records that the kit was told to end. A run that has no process
// yet, or has ended, stays as it is.
func (s *Store) KitRunCancelling(ctx context.Context, invocationID string) error {
	err := s.moveKitRun(ctx, kitRunCancelling, invocationID)
	if fault.Is(err, fault.LeaseLost) {
		return nil
	}
	return err
}

func (s *Store) moveKitRun(ctx context.Context, st stmt, invocationID string, more ...any) error {
	return s.transact(ctx, func(t *tx) error {
		n, err := t.exec(st, append([]any{"invocation", invocationID, "holder", t.holder}, more...)...)
		if err == nil && n == 0 {
			t.silent = true
			err = fault.New(fault.LeaseLost, "record the run %.64s: another process took its row over", invocationID)
		}
		return err
	})
}

// EndKitRun settles a run as it was read or begun: seen is its holder. ok is false
// when it was settled meanwhile.
func (s *Store) EndKitRun(ctx context.Context, invocationID, seen string, e KitRunEnd) (ok bool, err error) {
	if e.State != KitRunFinished && e.State != KitRunLost {
		return false, fault.New(fault.Internal, "end the run %.64s: state %q", invocationID, e.State)
	}
	err = s.transact(ctx, func(t *tx) error {
		n, err := t.exec(kitRunEnded, "invocation", invocationID, "seen", seen, "state", e.State, "status", orNull(e.Status),
			"exit", e.ExitCode, "error", orNull(e.ErrorCode), "removed", e.Removed, "now", t.now)
		ok = n == 1
		t.silent = !ok
		return err
	})
	if err == nil && ok {
		crashpoint.At("kit_run_ended")
	}
	return ok && err == nil, err
}

// KitRun gives one row, or not_found.
func (s *Store) KitRun(ctx context.Context, invocationID string) (KitRun, error) {
	row, ok, err := first(pool{ctx, s.rdb}, scanKitRun, kitRunByID, "invocation", invocationID)
	if err != nil {
		return row, storeError("read the run of a kit", err)
	}
	if !ok {
		return row, fault.New(fault.NotFound, "read the run %.64s: no such invocation in this Store", invocationID)
	}
	return row, nil
}

// OpenKitRuns gives the runs that have not ended, oldest first.
func (s *Store) OpenKitRuns(ctx context.Context) ([]KitRun, error) {
	rows, err := list(pool{ctx, s.rdb}, scanKitRun, kitRunsOpen)
	if err != nil {
		return nil, storeError("list the runs of kits", err)
	}
	over := s.holders()
	for i, row := range rows {
		gone, known := over(row.Holder)
		rows[i].Orphan = gone && known
	}
	return rows, nil
}

// KitRuns gives all runs, newest first, at most 1000.
func (s *Store) KitRuns(ctx context.Context) ([]KitRun, error) {
	rows, err := list(pool{ctx, s.rdb}, scanKitRun, kitRunsNewest, "limit", kitRunsMost)
	if err != nil {
		return nil, storeError("list the runs of kits", err)
	}
	return rows, nil
}
