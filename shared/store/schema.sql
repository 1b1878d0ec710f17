CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
  name        TEXT PRIMARY KEY,
  holder      TEXT    NOT NULL DEFAULT '',
  boot_id     TEXT    NOT NULL DEFAULT '',
  epoch       INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0),
  acquired_at INTEGER NOT NULL DEFAULT 0,
  expires_at  INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TRIGGER leases_epoch BEFORE UPDATE OF epoch ON leases WHEN NEW.epoch < OLD.epoch
BEGIN SELECT RAISE(ABORT, 'an epoch never goes down'); END;

CREATE TRIGGER leases_kept BEFORE DELETE ON leases
BEGIN SELECT RAISE(ABORT, 'lease rows are never deleted'); END;

CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY,
  revision   INTEGER NOT NULL CHECK (revision >= 1),
  agent      TEXT NOT NULL CHECK (agent IN ('codex','claude')),
  workspace  TEXT NOT NULL,
  status     TEXT NOT NULL CHECK (status = 'bound' OR status = 'detached' OR status = 'transitioning' OR status = 'quarantined'),
  created_by TEXT NOT NULL CHECK (created_by = 'attach' OR created_by = 'new_thread' OR created_by = 'resume_thread'
    OR created_by = 'human_observed' OR created_by = 'provisional'),
  previous_session_id TEXT,
  resumed_from_native_thread_id TEXT,
  last_transition_id TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  detached_at INTEGER,
  quarantine_reason TEXT
) STRICT;

CREATE INDEX session_by_status ON sessions(status, updated_at);

CREATE TRIGGER sessions_moves BEFORE UPDATE OF status ON sessions
WHEN NEW.status <> OLD.status AND NEW.status <> 'quarantined' AND NOT (
     (OLD.status = 'bound'         AND NEW.status IN ('transitioning','detached'))
  OR (OLD.status = 'transitioning' AND NEW.status IN ('bound','detached'))
  OR (OLD.status = 'detached'      AND NEW.status = 'bound'))
BEGIN SELECT RAISE(ABORT, 'no such move of a session'); END;

CREATE TRIGGER sessions_forward BEFORE UPDATE ON sessions
WHEN NEW.revision <= OLD.revision OR NEW.updated_at < OLD.updated_at
BEGIN SELECT RAISE(ABORT, 'a session never goes back'); END;

CREATE TABLE bindings (
  binding_id  TEXT PRIMARY KEY,
  session_id  TEXT NOT NULL REFERENCES sessions(session_id),
  generation  INTEGER NOT NULL CHECK (generation >= 1),
  agent       TEXT NOT NULL,
  terminal_id TEXT NOT NULL,
  terminal_key TEXT NOT NULL,
  incarnation_key TEXT NOT NULL,
  endpoint_json TEXT NOT NULL CHECK (json_valid(endpoint_json)),
  native_thread_id TEXT,
  pid INTEGER NOT NULL,
  process_uuid TEXT,
  process_birth TEXT,
  artifact_json TEXT CHECK (artifact_json IS NULL OR json_valid(artifact_json)),
  evidence TEXT NOT NULL,
  bound_at INTEGER NOT NULL,
  last_verified_at INTEGER NOT NULL,
  released_at INTEGER,
  UNIQUE (session_id, generation)
) STRICT;

CREATE UNIQUE INDEX binding_live_session ON bindings(session_id)      WHERE released_at IS NULL;

CREATE UNIQUE INDEX binding_live_process ON bindings(incarnation_key) WHERE released_at IS NULL;

CREATE UNIQUE INDEX binding_live_thread  ON bindings(agent, native_thread_id)
  WHERE released_at IS NULL AND native_thread_id IS NOT NULL;

CREATE INDEX binding_thread   ON bindings(agent, native_thread_id, bound_at);

CREATE INDEX binding_terminal ON bindings(terminal_key, bound_at);

CREATE TRIGGER bindings_fixed BEFORE UPDATE OF
  binding_id, session_id, generation, agent, terminal_id, terminal_key, incarnation_key, endpoint_json,
  pid, process_uuid, process_birth, artifact_json, evidence, bound_at ON bindings
BEGIN SELECT RAISE(ABORT, 'a binding is immutable'); END;

CREATE TRIGGER bindings_thread_once BEFORE UPDATE OF native_thread_id ON bindings
WHEN OLD.native_thread_id IS NOT NULL AND NEW.native_thread_id IS NOT OLD.native_thread_id
BEGIN SELECT RAISE(ABORT, 'the thread of a binding is set once'); END;

CREATE TRIGGER bindings_released_once BEFORE UPDATE OF released_at ON bindings
WHEN OLD.released_at IS NOT NULL AND NEW.released_at IS NOT OLD.released_at
BEGIN SELECT RAISE(ABORT, 'a binding is released once'); END;

CREATE TABLE terminal_fences (
  terminal_key TEXT PRIMARY KEY,
  kind   TEXT NOT NULL CHECK (kind IN ('dispatch','transition')),
  ref_id TEXT NOT NULL,
  generation INTEGER NOT NULL CHECK (generation >= 1),
  lease_epoch INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE terminal_generations (
  terminal_key TEXT PRIMARY KEY,
  generation INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
  turn_id    TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions(session_id),
  revision   INTEGER NOT NULL CHECK (revision >= 1),
  status     TEXT NOT NULL CHECK (status = 'created' OR status = 'running' OR status = 'waiting_for_agent'
    OR status = 'waiting_for_controller' OR status = 'idle' OR status = 'stalled' OR status = 'failed'
    OR status = 'cancelling' OR status = 'cancelled' OR status = 'closed'),
  agent TEXT NOT NULL,
  workspace TEXT NOT NULL,
  binding_id TEXT NOT NULL REFERENCES bindings(binding_id),
  binding_generation INTEGER NOT NULL,
  native_thread_id TEXT,
  terminal_key TEXT NOT NULL,
  controller_session_id TEXT NOT NULL,
  route_json TEXT CHECK (route_json IS NULL OR json_valid(route_json)),
  request_text TEXT NOT NULL,
  current_message_id TEXT,
  response_rounds_used INTEGER NOT NULL DEFAULT 0,
  soft_limit INTEGER NOT NULL DEFAULT 50,
  hard_limit INTEGER NOT NULL DEFAULT 100,
  started_at INTEGER,
  last_activity_at INTEGER,
  inactivity_minutes REAL NOT NULL DEFAULT 60    CHECK (inactivity_minutes > 0),
  hard_minutes       REAL NOT NULL DEFAULT 720   CHECK (hard_minutes > 0),
  retention_minutes  REAL NOT NULL DEFAULT 10080 CHECK (retention_minutes > 0),
  inactivity_deadline_at INTEGER,
  hard_deadline_at INTEGER,
  monitor_json TEXT CHECK (monitor_json IS NULL OR json_valid(monitor_json)),
  claim_message_id TEXT,
  claim_fingerprint TEXT,
  claim_outcome TEXT,
  claim_delivery_id TEXT,
  claimed_at INTEGER,
  stalled_at INTEGER,
  stalled_reason TEXT,
  stalled_notified_at INTEGER,
  idle_since INTEGER,
  cancelled_at INTEGER,
  closed_at INTEGER,
  close_reason TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX turn_blocking ON turns(session_id)
  WHERE (status = 'created' OR status = 'running' OR status = 'waiting_for_agent'
    OR status = 'waiting_for_controller' OR status = 'stalled' OR status = 'cancelling');

CREATE INDEX turn_by_status   ON turns(status, updated_at);

CREATE INDEX turn_by_session  ON turns(session_id, created_at);

CREATE INDEX turn_by_terminal ON turns(terminal_key, created_at);

CREATE TRIGGER turns_fixed BEFORE UPDATE OF
  turn_id, session_id, agent, workspace, binding_id, binding_generation, terminal_key,
  controller_session_id, route_json, request_text, created_at ON turns
BEGIN SELECT RAISE(ABORT, 'origin and route of a turn are immutable'); END;

CREATE TRIGGER turns_thread_once BEFORE UPDATE OF native_thread_id ON turns
WHEN OLD.native_thread_id IS NOT NULL AND NEW.native_thread_id IS NOT OLD.native_thread_id
BEGIN SELECT RAISE(ABORT, 'the thread of a turn is set once'); END;

CREATE TRIGGER turns_claim_once BEFORE UPDATE OF claim_message_id, claim_fingerprint, claim_outcome, claim_delivery_id, claimed_at ON turns
WHEN OLD.claim_fingerprint IS NOT NULL AND (
     NEW.claim_fingerprint IS NOT OLD.claim_fingerprint OR NEW.claim_message_id  IS NOT OLD.claim_message_id
  OR NEW.claim_outcome     IS NOT OLD.claim_outcome     OR NEW.claim_delivery_id IS NOT OLD.claim_delivery_id
  OR NEW.claimed_at        IS NOT OLD.claimed_at)
BEGIN SELECT RAISE(ABORT, 'a completion is claimed once'); END;

CREATE TRIGGER turns_forward BEFORE UPDATE ON turns
WHEN NEW.revision <= OLD.revision OR NEW.updated_at < OLD.updated_at
  OR NEW.last_activity_at < OLD.last_activity_at
BEGIN SELECT RAISE(ABORT, 'a turn never goes back'); END;

CREATE TRIGGER turns_moves BEFORE UPDATE OF status ON turns
WHEN NEW.status <> OLD.status AND NOT (
     (NEW.status = 'closed')
  OR (NEW.status = 'running'                AND OLD.status IN ('created','waiting_for_agent'))
  OR (NEW.status = 'waiting_for_controller' AND OLD.status IN ('waiting_for_agent','running'))
  OR (NEW.status = 'waiting_for_agent'      AND (OLD.status = 'created' OR OLD.status = 'waiting_for_controller' OR OLD.status = 'stalled'))
  OR (NEW.status IN ('idle','failed')       AND (OLD.status = 'waiting_for_agent' OR OLD.status = 'waiting_for_controller' OR OLD.status = 'running'
    OR OLD.status = 'stalled'))
  OR (NEW.status = 'stalled'                AND (OLD.status = 'created' OR OLD.status = 'waiting_for_agent' OR OLD.status = 'running'))
  OR (NEW.status = 'cancelled'              AND (OLD.status = 'waiting_for_agent' OR OLD.status = 'running' OR OLD.status = 'waiting_for_controller')))
BEGIN SELECT RAISE(ABORT, 'no such move of a turn'); END;

CREATE TABLE turn_events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  turn_id TEXT NOT NULL REFERENCES turns(turn_id),
  ts INTEGER NOT NULL,
  event TEXT NOT NULL,
  message_id TEXT,
  detail_json TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(detail_json))
) STRICT;

CREATE INDEX turn_events_turn ON turn_events(turn_id, seq);

CREATE TRIGGER turn_events_fixed BEFORE UPDATE ON turn_events BEGIN SELECT RAISE(ABORT, 'append only'); END;

CREATE TRIGGER turn_events_kept  BEFORE DELETE ON turn_events BEGIN SELECT RAISE(ABORT, 'append only'); END;

CREATE TABLE dispatches (
  message_id TEXT PRIMARY KEY,
  tool_call_id TEXT UNIQUE,
  turn_id TEXT NOT NULL REFERENCES turns(turn_id),
  session_id TEXT NOT NULL,
  binding_id TEXT NOT NULL,
  binding_generation INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('task','answer')),
  terminal_key TEXT NOT NULL,
  generation INTEGER NOT NULL,
  previous_message_id TEXT,
  agent TEXT NOT NULL,
  native_thread_id TEXT,
  controller_session_id TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status = 'prepared' OR status = 'text_injected' OR status = 'enter_dispatched'
    OR status = 'agent_accepted' OR status = 'not_accepted' OR status = 'uncertain' OR status = 'aborted'),
  last_proven_stage TEXT NOT NULL CHECK (last_proven_stage = 'prepared' OR last_proven_stage = 'text_injected'
    OR last_proven_stage = 'enter_dispatched' OR last_proven_stage = 'agent_accepted'),
  input_may_have_started INTEGER NOT NULL DEFAULT 0 CHECK (input_may_have_started IN (0,1)),
  safe_to_retry INTEGER NOT NULL DEFAULT 0 CHECK (safe_to_retry IN (0,1)),
  anchor_json TEXT NOT NULL CHECK (json_valid(anchor_json)),
  acceptance_json TEXT CHECK (acceptance_json IS NULL OR json_valid(acceptance_json)),
  dispatcher TEXT NOT NULL,
  lease_epoch INTEGER NOT NULL,
  prepared_at INTEGER NOT NULL,
  text_injected_at INTEGER,
  enter_dispatched_at INTEGER,
  agent_accepted_at INTEGER,
  settled_at INTEGER,
  error_code TEXT,
  resolved_at INTEGER,
  resolved_reason TEXT,
  UNIQUE (terminal_key, generation),
  CHECK (status <> 'agent_accepted' OR acceptance_json IS NOT NULL),
  CHECK (safe_to_retry = 0 OR (status = 'aborted' AND input_may_have_started = 0))
) STRICT;

CREATE INDEX dispatch_by_turn ON dispatches(turn_id, prepared_at);

CREATE INDEX dispatch_open    ON dispatches(terminal_key, generation) WHERE resolved_at IS NULL;

CREATE TRIGGER dispatches_fixed BEFORE UPDATE OF
  message_id, tool_call_id, turn_id, session_id, binding_id, binding_generation, kind, terminal_key, generation,
  previous_message_id, agent, controller_session_id, body_hash, request_hash, anchor_json,
  dispatcher, lease_epoch, prepared_at ON dispatches
BEGIN SELECT RAISE(ABORT, 'a receipt is immutable'); END;

CREATE TRIGGER dispatches_thread_once BEFORE UPDATE OF native_thread_id ON dispatches
WHEN OLD.native_thread_id IS NOT NULL AND NEW.native_thread_id IS NOT OLD.native_thread_id
BEGIN SELECT RAISE(ABORT, 'the thread of a receipt is set once'); END;

CREATE TRIGGER dispatches_mark_stays BEFORE UPDATE OF input_may_have_started ON dispatches
WHEN NEW.input_may_have_started < OLD.input_may_have_started
BEGIN SELECT RAISE(ABORT, 'the input mark is never taken back'); END;

CREATE TRIGGER dispatches_moves BEFORE UPDATE OF status ON dispatches
WHEN NEW.status <> OLD.status AND NOT (
     (OLD.status = 'prepared'         AND NEW.status = 'aborted' AND OLD.input_may_have_started = 0)
  OR (OLD.status = 'prepared'         AND NEW.status IN ('text_injected','uncertain') AND NEW.input_may_have_started = 1)
  OR (OLD.status = 'text_injected'    AND (NEW.status = 'enter_dispatched' OR NEW.status = 'agent_accepted' OR NEW.status = 'uncertain'))
  OR (OLD.status = 'enter_dispatched' AND (NEW.status = 'agent_accepted' OR NEW.status = 'not_accepted' OR NEW.status = 'uncertain'))
  OR (OLD.status = 'agent_accepted'   AND NEW.status = 'uncertain'))
BEGIN SELECT RAISE(ABORT, 'no such move of a dispatch'); END;

CREATE TABLE watches (
  watch_id TEXT PRIMARY KEY,
  revision INTEGER NOT NULL CHECK (revision >= 1),
  agent TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('exact_task','terminal_activity')),
  terminal_id TEXT NOT NULL,
  terminal_key TEXT NOT NULL,
  endpoint_json TEXT NOT NULL CHECK (json_valid(endpoint_json)),
  workspace TEXT NOT NULL,
  binding_token TEXT NOT NULL,
  identity_fingerprint TEXT NOT NULL,
  anchor_json TEXT NOT NULL CHECK (json_valid(anchor_json)),
  anchor_fingerprint TEXT NOT NULL,
  checkpoint_json TEXT NOT NULL CHECK (json_valid(checkpoint_json)),
  checkpoint_offset INTEGER NOT NULL CHECK (checkpoint_offset >= 0),
  warnings_json TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(warnings_json)),
  controller_session_id TEXT NOT NULL,
  route_json TEXT NOT NULL CHECK (json_valid(route_json)),
  status TEXT NOT NULL CHECK (status = 'active' OR status = 'completed' OR status = 'failed' OR status = 'timed_out'
    OR status = 'invalidated' OR status = 'cancelled'),
  created_at INTEGER NOT NULL,
  deadline_at INTEGER NOT NULL CHECK (deadline_at > created_at),
  updated_at INTEGER NOT NULL,
  last_activity_at INTEGER NOT NULL,
  settled_fingerprint TEXT,
  settled_observed_at INTEGER,
  settled_reason TEXT,
  completion_text TEXT CHECK (completion_text IS NULL OR length(completion_text) <= 4000),
  completion_id TEXT,
  completion_ts INTEGER,
  CHECK ((status = 'active') = (settled_fingerprint IS NULL)),
  CHECK (completion_text IS NULL OR status IN ('completed','failed'))
) STRICT;

CREATE UNIQUE INDEX watch_active_task     ON watches(identity_fingerprint) WHERE status = 'active';

CREATE UNIQUE INDEX watch_active_terminal ON watches(terminal_id)          WHERE status = 'active';

CREATE INDEX watch_by_status   ON watches(status, created_at);

CREATE INDEX watch_by_terminal ON watches(terminal_key, created_at);

CREATE TRIGGER watches_fixed BEFORE UPDATE OF
  watch_id, agent, mode, terminal_id, terminal_key, endpoint_json, workspace, binding_token, identity_fingerprint,
  anchor_json, anchor_fingerprint, controller_session_id, route_json, created_at, deadline_at ON watches
BEGIN SELECT RAISE(ABORT, 'origin of a watch is immutable'); END;

CREATE TRIGGER watches_final BEFORE UPDATE ON watches WHEN OLD.status <> 'active'
BEGIN SELECT RAISE(ABORT, 'a settled watch is final'); END;

CREATE TRIGGER watches_forward BEFORE UPDATE ON watches
WHEN NEW.revision <= OLD.revision OR NEW.updated_at < OLD.updated_at
  OR NEW.last_activity_at < OLD.last_activity_at OR NEW.checkpoint_offset < OLD.checkpoint_offset
BEGIN SELECT RAISE(ABORT, 'a watch never goes back'); END;

CREATE TABLE watch_notifications (
  notification_id TEXT PRIMARY KEY,
  watch_id TEXT NOT NULL REFERENCES watches(watch_id),
  ord INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind = 'approval' OR kind = 'completed' OR kind = 'failed' OR kind = 'timed_out' OR kind = 'invalidated'
    OR kind = 'cancelled'),
  evidence_fingerprint TEXT NOT NULL CHECK (length(evidence_fingerprint) = 64),
  reason_code TEXT,
  created_at INTEGER NOT NULL,
  UNIQUE (watch_id, ord),
  UNIQUE (watch_id, kind, evidence_fingerprint)
) STRICT;

CREATE UNIQUE INDEX watch_one_outcome ON watch_notifications(watch_id) WHERE kind <> 'approval';

CREATE TRIGGER watch_notifications_fixed BEFORE UPDATE ON watch_notifications BEGIN SELECT RAISE(ABORT, 'append only'); END;

CREATE TRIGGER watch_notifications_kept  BEFORE DELETE ON watch_notifications BEGIN SELECT RAISE(ABORT, 'append only'); END;

CREATE TRIGGER watch_notifications_late  BEFORE INSERT ON watch_notifications
WHEN EXISTS (SELECT 1 FROM watch_notifications WHERE watch_id = NEW.watch_id AND kind <> 'approval')
BEGIN SELECT RAISE(ABORT, 'the outcome of a watch is its last notification'); END;

CREATE TABLE callbacks (
  delivery_id TEXT PRIMARY KEY,
  idempotency_key TEXT NOT NULL UNIQUE,
  lane TEXT NOT NULL CHECK (lane = 'turn_lifecycle' OR lane = 'turn_notification' OR lane = 'watch'),
  kind TEXT NOT NULL,
  turn_id TEXT REFERENCES turns(turn_id),
  watch_id TEXT REFERENCES watches(watch_id),
  message_id TEXT NOT NULL,
  event_type TEXT NOT NULL,
  requires_response INTEGER NOT NULL CHECK (requires_response IN (0,1)),
  body TEXT NOT NULL,
  envelope_json TEXT NOT NULL CHECK (json_valid(envelope_json)),
  route_transport TEXT NOT NULL,
  route_profile_id TEXT NOT NULL,
  route_profile_revision TEXT NOT NULL,
  route_controller_session_id TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status = 'pending' OR status = 'claimed' OR status = 'retry_wait' OR status = 'accepted'
    OR status = 'permanent' OR status = 'uncertain' OR status = 'exhausted' OR status = 'superseded'),
  attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  attempt_id TEXT,
  claim_holder TEXT,
  claim_epoch INTEGER,
  claim_expires_at INTEGER,
  transport_started_at INTEGER,
  last_attempt_at INTEGER,
  next_attempt_at INTEGER NOT NULL DEFAULT 0,
  accepted_at INTEGER,
  acceptance_id TEXT,
  last_error_code TEXT,
  superseded_at INTEGER,
  superseded_reason TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CHECK ((turn_id IS NULL) <> (watch_id IS NULL)),
  CHECK ((lane = 'watch') = (watch_id IS NOT NULL)),
  CHECK ((status = 'claimed') = (attempt_id IS NOT NULL AND claim_expires_at IS NOT NULL)),
  CHECK ((status = 'accepted') = (acceptance_id IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX callback_open_lane ON callbacks(turn_id, lane)
  WHERE turn_id IS NOT NULL AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait');

CREATE INDEX callback_turn  ON callbacks(turn_id, status)  WHERE turn_id IS NOT NULL;

CREATE INDEX callback_watch ON callbacks(watch_id, status) WHERE watch_id IS NOT NULL;

CREATE INDEX callback_open_watch ON callbacks(watch_id)
  WHERE watch_id IS NOT NULL AND (status = 'pending' OR status = 'claimed' OR status = 'retry_wait');

CREATE INDEX callback_queue ON callbacks(route_profile_id, route_controller_session_id, coalesce(last_attempt_at, created_at), delivery_id)
  WHERE status IN ('pending','retry_wait');

CREATE INDEX callback_due ON callbacks(route_profile_id, route_controller_session_id, next_attempt_at)
  WHERE status = 'retry_wait';

CREATE INDEX callback_claimed ON callbacks(route_profile_id, claim_expires_at)
  WHERE status = 'claimed';

CREATE TRIGGER callbacks_fixed BEFORE UPDATE OF
  delivery_id, idempotency_key, lane, kind, turn_id, watch_id, message_id, event_type, requires_response, body,
  envelope_json, route_transport, route_profile_id, route_profile_revision, route_controller_session_id, created_at ON callbacks
BEGIN SELECT RAISE(ABORT, 'content and route of a callback are immutable'); END;

CREATE TRIGGER callbacks_moves BEFORE UPDATE OF status ON callbacks
WHEN NOT (
     (OLD.status IN ('pending','retry_wait') AND (NEW.status = 'claimed' OR NEW.status = 'superseded' OR NEW.status = 'retry_wait'
       OR NEW.status = 'exhausted' OR NEW.status = 'accepted'))
  OR (OLD.status = 'claimed'   AND NEW.status <> 'claimed')
  OR (OLD.status = 'uncertain' AND NEW.status = 'accepted'))
BEGIN SELECT RAISE(ABORT, 'no such move of a callback'); END;

CREATE TABLE callback_attempts (
  delivery_id TEXT NOT NULL REFERENCES callbacks(delivery_id),
  number INTEGER NOT NULL CHECK (number >= 1),
  attempt_id TEXT NOT NULL UNIQUE,
  holder TEXT NOT NULL,
  claim_epoch INTEGER NOT NULL,
  claimed_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  disposition TEXT CHECK (disposition = 'accepted' OR disposition = 'retryable_failure' OR disposition = 'permanent_failure'
    OR disposition = 'uncertain' OR disposition = 'superseded'),
  error_code TEXT,
  acceptance_id TEXT,
  evidence_json TEXT CHECK (evidence_json IS NULL OR json_valid(evidence_json)),
  PRIMARY KEY (delivery_id, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER callback_attempts_fixed BEFORE UPDATE ON callback_attempts WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended attempt is immutable'); END;

CREATE TABLE transitions (
  transition_id TEXT PRIMARY KEY,
  revision INTEGER NOT NULL CHECK (revision >= 1),
  tool_call_id TEXT UNIQUE,
  operation TEXT NOT NULL CHECK (operation = 'new_thread' OR operation = 'resume_thread' OR operation = 'adopt_external_thread'),
  origin TEXT,
  input_possible INTEGER NOT NULL CHECK (input_possible IN (0,1)),
  status TEXT NOT NULL CHECK (status = 'prepared' OR status = 'dispatching' OR status = 'submitted' OR status = 'uncertain'
    OR status = 'verified' OR status = 'committed' OR status = 'aborted'),
  terminal_id TEXT NOT NULL,
  terminal_key TEXT NOT NULL,
  agent TEXT NOT NULL,
  workspace TEXT NOT NULL,
  source_session_id TEXT,
  source_expected_revision INTEGER,
  target_session_id TEXT NOT NULL,
  target_expected_revision INTEGER,
  target_native_thread_id TEXT,
  candidate_file_json TEXT CHECK (candidate_file_json IS NULL OR json_valid(candidate_file_json)),
  before_json TEXT NOT NULL CHECK (json_valid(before_json)),
  after_json TEXT CHECK (after_json IS NULL OR json_valid(after_json)),
  adapter_version TEXT NOT NULL,
  command_fingerprint TEXT NOT NULL,
  dispatcher TEXT NOT NULL,
  lease_epoch INTEGER NOT NULL,
  prepared_at INTEGER NOT NULL,
  dispatching_at INTEGER,
  submitted_at INTEGER,
  uncertain_at INTEGER,
  verified_at INTEGER,
  committed_at INTEGER,
  aborted_at INTEGER,
  reconciled_outcome TEXT CHECK (reconciled_outcome IN ('before','after')),
  error TEXT,
  do_not_retry INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX transition_open ON transitions(terminal_key, prepared_at)
  WHERE (status = 'prepared' OR status = 'dispatching' OR status = 'submitted' OR status = 'uncertain'
    OR status = 'verified');

CREATE TABLE offers (
  owner_session TEXT NOT NULL,
  kind TEXT NOT NULL,
  target_type TEXT NOT NULL,
  target_id TEXT NOT NULL,
  payload_json TEXT NOT NULL CHECK (json_valid(payload_json)),
  fingerprint TEXT,
  invalidated INTEGER NOT NULL DEFAULT 0 CHECK (invalidated IN (0,1)),
  minted_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (owner_session, kind, target_type, target_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX offers_age ON offers(owner_session, minted_at);

CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY,
  turn_id TEXT NOT NULL REFERENCES turns(turn_id),
  message_id TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  screen_digest TEXT,
  request_id TEXT,
  evidence_fingerprint TEXT,
  state TEXT NOT NULL CHECK (state = 'notified' OR state = 'reserved' OR state = 'consumed' OR state = 'cleared' OR state = 'expired'
    OR state = 'uncertain'),
  delivery_id TEXT,
  decision TEXT,
  decided_by TEXT CHECK (decided_by IN ('user','policy')),
  policy_rule_id TEXT,
  notified_at INTEGER NOT NULL,
  reserved_at INTEGER,
  consumed_at INTEGER,
  cleared_at INTEGER
) STRICT;

CREATE UNIQUE INDEX approval_once ON approvals(turn_id, message_id, fingerprint) WHERE cleared_at IS NULL;

CREATE INDEX approval_turn ON approvals(turn_id, message_id, notified_at);

CREATE TABLE interactions (
  interaction_id TEXT PRIMARY KEY,
  turn_id TEXT REFERENCES turns(turn_id),
  watch_id TEXT REFERENCES watches(watch_id),
  message_id TEXT,
  state TEXT NOT NULL CHECK (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'reserved'
    OR state = 'executing' OR state = 'awaiting_advance' OR state = 'resolved' OR state = 'superseded'
    OR state = 'manual_required' OR state = 'response_uncertain'),
  prompt_fingerprint TEXT NOT NULL,
  surface_id TEXT NOT NULL,
  step_index INTEGER NOT NULL,
  step_total INTEGER NOT NULL,
  projection_json TEXT NOT NULL CHECK (length(projection_json) <= 32768) CHECK (json_valid(projection_json)),
  plan_json TEXT NOT NULL CHECK (json_valid(plan_json)),
  owner_session TEXT NOT NULL,
  binding_id TEXT,
  binding_generation INTEGER,
  process_key TEXT NOT NULL,
  answer_message_id TEXT UNIQUE,
  last_proven_stage TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CHECK ((turn_id IS NULL) <> (watch_id IS NULL))
) STRICT;

CREATE UNIQUE INDEX interaction_once ON interactions(coalesce(turn_id,watch_id), surface_id, prompt_fingerprint)
  WHERE (state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance' OR state = 'resolved'
    OR state = 'response_uncertain');

CREATE INDEX interaction_open  ON interactions(turn_id)
  WHERE (state = 'candidate' OR state = 'pending' OR state = 'published' OR state = 'manual_required'
    OR state = 'reserved' OR state = 'executing' OR state = 'awaiting_advance'
    OR state = 'response_uncertain');

CREATE INDEX interaction_turn  ON interactions(turn_id, created_at)  WHERE turn_id IS NOT NULL;

CREATE INDEX interaction_watch ON interactions(watch_id, created_at) WHERE watch_id IS NOT NULL;

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

