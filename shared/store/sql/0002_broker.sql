-- What brokerd lends: endpoints, budgets, grants, one row a request (broker §13).
-- No row holds a secret: a capability is kept as its hash, a credential as the
-- path of its file.

CREATE TABLE broker_endpoints (
  endpoint_id TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  bind_address TEXT NOT NULL,
  bind_reason TEXT NOT NULL,
  port INTEGER NOT NULL,
  base_url TEXT NOT NULL,
  transport_mode TEXT NOT NULL CHECK (transport_mode IN ('live','mocked-test-only')),
  started_at INTEGER NOT NULL,
  ended_at INTEGER
) STRICT;

CREATE INDEX broker_endpoint_live ON broker_endpoints(started_at) WHERE ended_at IS NULL;
CREATE INDEX broker_endpoint_age ON broker_endpoints(ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE broker_budgets (
  budget_id TEXT PRIMARY KEY,
  request_binding_digest TEXT UNIQUE,
  model TEXT NOT NULL,
  reasoning_effort TEXT,
  upstream_origin TEXT NOT NULL,
  max_requests INTEGER NOT NULL CHECK (max_requests BETWEEN 1 AND 10000),
  max_total_tokens INTEGER,
  reserved INTEGER NOT NULL DEFAULT 0 CHECK (reserved <= max_requests),
  measured_input INTEGER NOT NULL DEFAULT 0,
  measured_output INTEGER NOT NULL DEFAULT 0,
  unmeasured_responses INTEGER NOT NULL DEFAULT 0,
  anchor_path TEXT,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE broker_grants (
  grant_id TEXT PRIMARY KEY,
  capability_sha256 BLOB NOT NULL UNIQUE CHECK (length(capability_sha256) = 32),
  request TEXT NOT NULL CHECK (json_valid(request)),
  budget_id TEXT REFERENCES broker_budgets(budget_id),
  endpoint_id TEXT REFERENCES broker_endpoints(endpoint_id),
  creator TEXT NOT NULL,
  credential_ref TEXT NOT NULL,
  credential_kind TEXT CHECK (credential_kind IN ('api_key','access_token')),
  refusal_code TEXT,
  base_path TEXT NOT NULL DEFAULT '',
  remote_cidr TEXT,
  run_id TEXT,
  owner_id TEXT,
  state TEXT NOT NULL CHECK (state = 'requested' OR state = 'refused' OR state = 'active' OR state = 'closing'
    OR state = 'closed' OR state = 'expired' OR state = 'revoked'),
  close_requested_at INTEGER,
  close_reason TEXT,
  received INTEGER NOT NULL DEFAULT 0,
  forwarded INTEGER NOT NULL DEFAULT 0,
  refused INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  closed_at INTEGER,
  revision INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX broker_grant_open ON broker_grants(created_at) WHERE (state = 'requested' OR state = 'active' OR state = 'closing');
CREATE INDEX broker_grant_run ON broker_grants(run_id, created_at) WHERE run_id IS NOT NULL;
CREATE INDEX broker_grant_endpoint ON broker_grants(endpoint_id) WHERE endpoint_id IS NOT NULL;
CREATE INDEX broker_grant_budget ON broker_grants(budget_id) WHERE budget_id IS NOT NULL;
CREATE INDEX broker_grant_age ON broker_grants(closed_at) WHERE closed_at IS NOT NULL;

-- Evidence is large: with the rows inside the key's tree (WITHOUT ROWID) each look for
-- one row would read several others whole.
CREATE TABLE broker_requests (
  grant_id TEXT NOT NULL REFERENCES broker_grants(grant_id),
  seq INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  evidence TEXT NOT NULL CHECK (json_valid(evidence)),
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  PRIMARY KEY (grant_id, seq)
) STRICT;

CREATE INDEX broker_request_open ON broker_requests(started_at) WHERE outcome = 'reserved';

CREATE TABLE broker_events (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  grant_id TEXT,
  code TEXT NOT NULL,
  detail TEXT
) STRICT;

CREATE INDEX broker_event_grant ON broker_events(grant_id, id);
CREATE INDEX broker_event_age ON broker_events(at);
