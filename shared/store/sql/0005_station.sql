-- Stations: one supervised daemon for each attempt, on a leased workspace (station
-- §3.3). Secrets are kept as SHA-256; no body, prompt or log is stored.

CREATE TABLE station_principals (
  principal_id TEXT PRIMARY KEY,
  org TEXT NOT NULL,
  name TEXT NOT NULL,
  secret_sha256 BLOB UNIQUE CHECK (length(secret_sha256) = 32),
  peer_uid INTEGER CHECK (peer_uid >= 0),
  created_at INTEGER NOT NULL,
  revoked_at INTEGER,
  UNIQUE (org, name),
  CHECK ((secret_sha256 IS NULL) <> (peer_uid IS NULL))
) STRICT;

CREATE UNIQUE INDEX principal_peer ON station_principals(peer_uid) WHERE peer_uid IS NOT NULL AND revoked_at IS NULL;

CREATE TABLE workspace_leases (
  lease_id TEXT PRIMARY KEY,
  provider TEXT NOT NULL,
  org TEXT NOT NULL,
  owner TEXT NOT NULL,
  host_ref TEXT NOT NULL,
  workdir TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state = 'acquiring' OR state = 'active' OR state = 'releasing' OR state = 'released' OR state = 'lost' OR state = 'cleanup_failed'),
  boot_id TEXT,
  expires_at INTEGER NOT NULL,
  last_heartbeat_at INTEGER,
  dirty INTEGER NOT NULL DEFAULT 0 CHECK (dirty IN (0, 1)),
  released_at INTEGER,
  cleanup_json TEXT CHECK (json_valid(cleanup_json)),
  revision INTEGER NOT NULL DEFAULT 0,
  CHECK ((state = 'released') = (released_at IS NOT NULL))
) STRICT;

CREATE TABLE stations (
  station_id TEXT PRIMARY KEY,
  org TEXT NOT NULL,
  owner TEXT NOT NULL,
  profile TEXT NOT NULL,
  spec_json TEXT NOT NULL CHECK (json_valid(spec_json)),
  start_key TEXT,
  state TEXT NOT NULL CHECK (state = 'created' OR state = 'running' OR state = 'stopping' OR state = 'stopped' OR state = 'failed'),
  desired_state TEXT NOT NULL CHECK (desired_state IN ('running', 'stopped')),
  current_attempt INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  revision INTEGER NOT NULL DEFAULT 0,
  UNIQUE (org, owner, start_key)
) STRICT;

CREATE INDEX station_age ON stations(created_at);

CREATE TABLE station_members (
  station_id TEXT NOT NULL REFERENCES stations,
  principal_id TEXT NOT NULL REFERENCES station_principals,
  role TEXT NOT NULL CHECK (role IN ('owner', 'manager', 'viewer')),
  granted_at INTEGER NOT NULL,
  revoked_at INTEGER,
  PRIMARY KEY (station_id, principal_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE station_attempts (
  station_id TEXT NOT NULL REFERENCES stations,
  attempt INTEGER NOT NULL CHECK (attempt > 0),
  lease_id TEXT NOT NULL REFERENCES workspace_leases,
  run_id TEXT,
  host TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state = 'preparing' OR state = 'launching' OR state = 'ready' OR state = 'stopping' OR state = 'terminal'),
  desired_state TEXT NOT NULL CHECK (desired_state IN ('running', 'stopping')),
  stop_reason TEXT CHECK (stop_reason IN ('operator_stop', 'attempt_replaced', 'lease_released', 'lease_lost', 'ttl_expired', 'idle_expired',
    'daemon_exited', 'launch_failed', 'not_ready', 'loopback_violation', 'integrity_failed', 'policy_violation', 'supervisor_lost',
    'host_rebooted', 'service_shutdown')),
  stop_requested_at INTEGER,
  stop_requested_by TEXT,
  supervisor_boot_id TEXT,
  shim_pid INTEGER,
  shim_start INTEGER,
  daemon_pid INTEGER,
  daemon_start INTEGER,
  daemon_pgid INTEGER,
  port INTEGER,
  containment TEXT,
  egress_enforcement TEXT,
  command_hash TEXT NOT NULL,
  workdir TEXT NOT NULL,
  runtime_dir TEXT,
  launch_json TEXT NOT NULL CHECK (json_valid(launch_json)),
  started_at INTEGER,
  ready_at INTEGER,
  ended_at INTEGER,
  ttl_deadline INTEGER NOT NULL,
  ttl_boot INTEGER NOT NULL,
  ttl_boot_id TEXT NOT NULL,
  idle_ms INTEGER NOT NULL,
  last_activity_at INTEGER,
  last_heartbeat_at INTEGER,
  last_observed_at INTEGER,
  exit_json TEXT CHECK (json_valid(exit_json)),
  cleanup_json TEXT CHECK (json_valid(cleanup_json)),
  events INTEGER NOT NULL DEFAULT 0,
  events_dropped INTEGER NOT NULL DEFAULT 0,
  revision INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (station_id, attempt),
  CHECK ((desired_state = 'stopping') = (stop_reason IS NOT NULL)),
  CHECK ((state <> 'stopping' AND state <> 'terminal') OR desired_state = 'stopping'),
  CHECK ((state = 'terminal') = (ended_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX one_live_attempt ON station_attempts(station_id) WHERE state <> 'terminal';
CREATE UNIQUE INDEX one_attempt_per_lease ON station_attempts(lease_id) WHERE state <> 'terminal';
CREATE INDEX attempt_lease ON station_attempts(lease_id);
CREATE INDEX attempt_ended ON station_attempts(ended_at) WHERE state = 'terminal';
CREATE INDEX workspace_lease_open ON workspace_leases(lease_id) WHERE state <> 'released';

CREATE TRIGGER stop_reason_fixed BEFORE UPDATE OF stop_reason, stop_requested_at, stop_requested_by ON station_attempts
WHEN OLD.stop_reason IS NOT NULL AND (NEW.stop_reason IS NOT OLD.stop_reason OR NEW.stop_requested_at IS NOT OLD.stop_requested_at
  OR NEW.stop_requested_by IS NOT OLD.stop_requested_by)
BEGIN SELECT RAISE(ABORT, 'the first reason stays'); END;

CREATE TRIGGER attempt_terminal_fixed BEFORE UPDATE OF state, lease_id ON station_attempts
WHEN OLD.state = 'terminal'
BEGIN SELECT RAISE(ABORT, 'a terminal attempt stays'); END;

CREATE TABLE station_tickets (
  ticket_id TEXT PRIMARY KEY,
  secret_sha256 BLOB NOT NULL UNIQUE CHECK (length(secret_sha256) = 32),
  issuer TEXT NOT NULL,
  principal_id TEXT NOT NULL REFERENCES station_principals,
  org TEXT NOT NULL,
  owner TEXT NOT NULL,
  station_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  lease_id TEXT NOT NULL,
  path_prefix TEXT NOT NULL,
  methods TEXT NOT NULL,
  max_uses INTEGER NOT NULL CHECK (max_uses >= 0),
  uses INTEGER NOT NULL DEFAULT 0,
  issued_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  revoked_at INTEGER,
  revoked_reason TEXT,
  FOREIGN KEY (station_id, attempt) REFERENCES station_attempts,
  CHECK (max_uses = 0 OR uses <= max_uses),
  CHECK ((revoked_at IS NULL) = (revoked_reason IS NULL))
) STRICT;

CREATE INDEX ticket_attempt ON station_tickets(station_id, attempt);
CREATE INDEX ticket_principal ON station_tickets(principal_id);

CREATE TABLE station_events (
  station_id TEXT NOT NULL REFERENCES stations,
  seq INTEGER NOT NULL,
  attempt INTEGER,
  ts INTEGER NOT NULL,
  kind TEXT NOT NULL,
  detail_json TEXT NOT NULL CHECK (json_valid(detail_json)),
  prev_hash BLOB NOT NULL,
  hash BLOB NOT NULL,
  PRIMARY KEY (station_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER station_events_fixed BEFORE UPDATE ON station_events
BEGIN SELECT RAISE(ABORT, 'append only'); END;

CREATE TABLE station_evidence (
  station_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  document TEXT NOT NULL CHECK (json_valid(document)),
  sha256 BLOB NOT NULL CHECK (length(sha256) = 32),
  PRIMARY KEY (station_id, attempt),
  FOREIGN KEY (station_id, attempt) REFERENCES station_attempts
) STRICT, WITHOUT ROWID;

CREATE TRIGGER station_evidence_fixed BEFORE UPDATE ON station_evidence
BEGIN SELECT RAISE(ABORT, 'written once'); END;
