-- Runs of kits: one Node process a row (kit §13). Requests, prompts and results are
-- not stored.

CREATE TABLE kit_runs (
  invocation_id TEXT PRIMARY KEY,
  kit_id TEXT NOT NULL,
  dest TEXT NOT NULL,
  kit_hash TEXT NOT NULL,
  request_sha256 TEXT NOT NULL,
  controller_root TEXT NOT NULL,
  owner_id TEXT NOT NULL UNIQUE,
  holder TEXT NOT NULL,
  pid INTEGER,
  pid_birth TEXT,
  state TEXT NOT NULL CHECK (state = 'starting' OR state = 'running' OR state = 'cancelling' OR state = 'finished' OR state = 'lost'),
  result_status TEXT,
  exit_code INTEGER,
  error_code TEXT,
  deadline_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  removed_containers INTEGER NOT NULL DEFAULT 0,
  revision INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX kit_run_open ON kit_runs(started_at) WHERE (state = 'starting' OR state = 'running' OR state = 'cancelling');
CREATE INDEX kit_run_age ON kit_runs(started_at);
