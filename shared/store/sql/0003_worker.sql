-- Workers: one container a row (worker §15), and what was read from an image once.

CREATE TABLE worker_runs (
  invocation_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  owner_id TEXT,
  holder TEXT NOT NULL,
  container_id TEXT,
  image TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state = 'admitted' OR state = 'created' OR state = 'running' OR state = 'removed' OR state = 'unverified'),
  artifact_root TEXT NOT NULL,
  deadline_at INTEGER NOT NULL,
  receipt_digest TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  revision INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX worker_run_open ON worker_runs(created_at) WHERE state <> 'removed';
CREATE INDEX worker_run_run ON worker_runs(run_id, created_at);

CREATE TABLE worker_images (
  image TEXT PRIMARY KEY,
  harness_version TEXT NOT NULL,
  harness_digest TEXT NOT NULL,
  observed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
