package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// States of a worker (worker §15).
const (
	WorkerAdmitted   = "admitted"   // about to be made; a container may exist that the row does not name
	WorkerCreated    = "created"    // made, never started
	WorkerRunning    = "running"    // about to be started, or running
	WorkerRemoved    = "removed"    // proven gone, or never made
	WorkerUnverified = "unverified" // could not be proven gone: for the next sweep
)

// workersMost is how many rows a list gives.
const workersMost = 1000

// WorkerRun is one invocation of a worker, and its container.
type WorkerRun struct {
	InvocationID  string
	RunID         string
	OwnerID       string // "": none
	Holder        string // the process that runs it
	ContainerID   string // "": not known
	Image         string
	State         string
	ArtifactRoot  string
	DeadlineAt    int64
	ReceiptDigest string // "": no receipt
	CreatedAt     int64
	UpdatedAt     int64
	Revision      int64

	// Orphan says that nobody looks after the row any more: its holder is proven
	// dead, or has given up on it. OpenWorkers sets it.
	Orphan bool
}

// NewWorkerRun is what is known before a container is made.
type NewWorkerRun struct {
	InvocationID string
	RunID        string
	OwnerID      string
	Image        string
	ArtifactRoot string
	DeadlineAt   int64
}

// WorkerImage is what was read from an image once; an image id never changes its
// content.
type WorkerImage struct {
	Image          string
	HarnessVersion string
	HarnessDigest  string
	ObservedAt     int64
}

const workerCols = `invocation_id, run_id, coalesce(owner_id, ''), holder, coalesce(container_id, ''), image, state, artifact_root,
  deadline_at, coalesce(receipt_digest, ''), created_at, updated_at, revision`

func scanWorker(r scanner) (w WorkerRun, err error) {
	err = r.Scan(&w.InvocationID, &w.RunID, &w.OwnerID, &w.Holder, &w.ContainerID, &w.Image, &w.State, &w.ArtifactRoot,
		&w.DeadlineAt, &w.ReceiptDigest, &w.CreatedAt, &w.UpdatedAt, &w.Revision)
	return w, err
}

func scanWorkerImage(r scanner) (w WorkerImage, err error) {
	err = r.Scan(&w.Image, &w.HarnessVersion, &w.HarnessDigest, &w.ObservedAt)
	return w, err
}

var (
	workerInsert = define(`
INSERT INTO worker_runs(invocation_id, run_id, owner_id, holder, image, state, artifact_root, deadline_at, created_at, updated_at)
VALUES (:invocation, :run, :owner, :holder, :image, 'admitted', :artifacts, :deadline, :now, :now)
ON CONFLICT(invocation_id) DO NOTHING`)

	workerCreated = define(`
UPDATE worker_runs
SET state = 'created', container_id = :container, updated_at = max(updated_at, :now), revision = revision + 1
WHERE invocation_id = :invocation AND holder = :holder AND state = 'admitted'`)

	workerRunning = define(`
UPDATE worker_runs
SET state = 'running', updated_at = max(updated_at, :now), revision = revision + 1
WHERE invocation_id = :invocation AND holder = :holder AND state = 'created'`)

	workerEnded = define(`
UPDATE worker_runs
SET state = :state, receipt_digest = coalesce(:receipt, receipt_digest), updated_at = max(updated_at, :now), revision = revision + 1
WHERE invocation_id = :invocation AND revision = :revision AND state <> 'removed'`)

	workerByID = define(`
SELECT ` + workerCols + `
FROM worker_runs
WHERE invocation_id = :invocation`)

	workersOpen = define(`
SELECT ` + workerCols + `
FROM worker_runs INDEXED BY worker_run_open
WHERE state <> 'removed'
ORDER BY created_at`)

	workersOfRun = define(`
SELECT ` + workerCols + `
FROM worker_runs
WHERE run_id = :run
ORDER BY created_at DESC
LIMIT :limit`)

	workerImage = define(`
SELECT image, harness_version, harness_digest, observed_at
FROM worker_images
WHERE image = :image`)

	workerImageInsert = define(`
INSERT INTO worker_images(image, harness_version, harness_digest, observed_at)
VALUES (:image, :version, :digest, :now)
ON CONFLICT(image) DO NOTHING`)
)

// AdmitWorker records that a container is about to be made. An invocation that
// exists already fails with output_exists: its receipt may.
func (s *Store) AdmitWorker(ctx context.Context, w NewWorkerRun) (WorkerRun, error) {
	var row WorkerRun
	err := s.transact(ctx, func(t *tx) error {
		n, err := t.exec(workerInsert, "invocation", w.InvocationID, "run", w.RunID, "owner", orNull(w.OwnerID), "holder", t.holder,
			"image", w.Image, "artifacts", w.ArtifactRoot, "deadline", w.DeadlineAt, "now", t.now)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.New(fault.OutputExists, "admit worker %.64s: this Store knows an invocation of that name", w.InvocationID).
				WithHint("every run needs an invocation id of its own")
		}
		row, err = t.worker(w.InvocationID)
		return err
	})
	if err == nil {
		crashpoint.At("worker_admitted")
	}
	return row, err
}

// WorkerCreated names the container that was made for an admitted worker.
func (s *Store) WorkerCreated(ctx context.Context, invocationID, containerID string) (WorkerRun, error) {
	row, err := s.moveWorker(ctx, workerCreated, invocationID, "container", containerID)
	if err == nil {
		crashpoint.At("worker_created")
	}
	return row, err
}

// WorkerRunning records that the container is about to be started.
func (s *Store) WorkerRunning(ctx context.Context, invocationID string) (WorkerRun, error) {
	row, err := s.moveWorker(ctx, workerRunning, invocationID)
	if err == nil {
		crashpoint.At("worker_running")
	}
	return row, err
}

func (s *Store) moveWorker(ctx context.Context, st stmt, invocationID string, more ...any) (row WorkerRun, err error) {
	err = s.transact(ctx, func(t *tx) error {
		n, err := t.exec(st, append([]any{"invocation", invocationID, "holder", t.holder, "now", t.now}, more...)...)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.New(fault.LeaseLost, "record worker %.64s: another process took its row over", invocationID)
		}
		row, err = t.worker(invocationID)
		return err
	})
	return row, err
}

// WorkerEnded settles a worker as it was read: removed or unverified, with the
// digest of its receipt if there is one. ok is false when the row has moved
// meanwhile, which is then as it was left by somebody else.
func (s *Store) WorkerEnded(ctx context.Context, seen WorkerRun, state, receiptDigest string) (ok bool, err error) {
	if state != WorkerRemoved && state != WorkerUnverified {
		return false, fault.New(fault.Internal, "end worker %.64s: state %q", seen.InvocationID, state)
	}
	err = s.transact(ctx, func(t *tx) error {
		n, err := t.exec(workerEnded, "invocation", seen.InvocationID, "revision", seen.Revision, "state", state,
			"receipt", orNull(receiptDigest), "now", t.now)
		ok = n == 1
		t.silent = !ok
		return err
	})
	if err == nil && ok {
		crashpoint.At("worker_ended")
	}
	return ok && err == nil, err
}

// Worker gives one row, or not_found.
func (s *Store) Worker(ctx context.Context, invocationID string) (WorkerRun, error) {
	row, ok, err := first(pool{ctx, s.rdb}, scanWorker, workerByID, "invocation", invocationID)
	if err != nil {
		return row, storeError("read worker", err)
	}
	if !ok {
		return row, fault.New(fault.NotFound, "read worker %.64s: no such invocation in this Store", invocationID)
	}
	return row, nil
}

// OpenWorkers gives the rows that are not removed, oldest first.
func (s *Store) OpenWorkers(ctx context.Context) ([]WorkerRun, error) {
	rows, err := list(pool{ctx, s.rdb}, scanWorker, workersOpen)
	if err != nil {
		return nil, storeError("list workers", err)
	}
	over := s.holders()
	for i, row := range rows {
		gone, known := over(row.Holder)
		rows[i].Orphan = row.State == WorkerUnverified || (gone && known)
	}
	return rows, nil
}

// WorkersOfRun gives the workers of one run, newest first, at most 1000.
func (s *Store) WorkersOfRun(ctx context.Context, runID string) ([]WorkerRun, error) {
	rows, err := list(pool{ctx, s.rdb}, scanWorker, workersOfRun, "run", runID, "limit", workersMost)
	if err != nil {
		return nil, storeError("list workers", err)
	}
	return rows, nil
}

// WorkerImage gives what is known of an image.
func (s *Store) WorkerImage(ctx context.Context, image string) (WorkerImage, bool, error) {
	row, ok, err := first(pool{ctx, s.rdb}, scanWorkerImage, workerImage, "image", image)
	if err != nil {
		return row, false, storeError("read image", err)
	}
	return row, ok, nil
}

// SaveWorkerImage keeps what was read from an image, for good.
func (s *Store) SaveWorkerImage(ctx context.Context, w WorkerImage) error {
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		_, err := t.exec(workerImageInsert, "image", w.Image, "version", w.HarnessVersion, "digest", w.HarnessDigest, "now", t.now)
		return err
	})
}

func (t *tx) worker(invocationID string) (WorkerRun, error) {
	return only(t, scanWorker, "worker", invocationID, workerByID, "invocation", invocationID)
}
