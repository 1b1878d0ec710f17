package store

import (
	"context"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Watch statuses and modes (core §7).
const (
	WatchActive      = "active"
	WatchCompleted   = "completed"
	WatchFailed      = "failed"
	WatchTimedOut    = "timed_out"
	WatchInvalidated = "invalidated"
	WatchCancelled   = "cancelled"

	ModeExactTask        = "exact_task"
	ModeTerminalActivity = "terminal_activity"
)

// Watch is the observation of one task that a human started.
type Watch struct {
	ID                  string
	Revision            int64
	Agent               string
	Mode                string
	TerminalID          string
	TerminalKey         string
	Endpoint            []byte
	Workspace           string
	BindingToken        string
	IdentityFingerprint string
	Anchor              []byte
	AnchorFingerprint   string
	Checkpoint          []byte
	CheckpointOffset    int64
	Warnings            []byte // JSON array of strings
	ControllerSessionID string
	Route               []byte
	Status              string
	CreatedAt           int64
	DeadlineAt          int64
	UpdatedAt           int64
	LastActivityAt      int64
	SettledFingerprint  string
	SettledObservedAt   int64
	SettledReason       string
	CompletionText      string
	CompletionID        string
	CompletionAt        int64
}

// NewWatch is a Watch to be made, observed under the terminal lease.
type NewWatch struct {
	WatchID             string
	Agent               string
	Mode                string
	TerminalID          string
	TerminalKey         string
	Endpoint            []byte
	Workspace           string
	BindingToken        string
	IdentityFingerprint string
	Anchor              []byte
	AnchorFingerprint   string
	Checkpoint          []byte
	CheckpointOffset    int64
	Warnings            []byte // nil: []
	ControllerSessionID string
	Route               []byte
	Lifetime            int64 // ms until the deadline
	Approval            *NewNotification
}

// NewNotification is one notification of a Watch with its callback row.
type NewNotification struct {
	NotificationID      string
	Kind                string // approval, completed, failed, timed_out, invalidated, cancelled
	EvidenceFingerprint string // 64 hex
	ReasonCode          string
	Callback            NewCallback
}

// WatchNotification is one stored notification.
type WatchNotification struct {
	ID                  string
	WatchID             string
	Ord                 int64
	Kind                string
	EvidenceFingerprint string
	ReasonCode          string
	CreatedAt           int64
}

// WatchFence is what an observation was made against. A move that does not
// match it is watch_conflict.
type WatchFence struct {
	WatchID             string
	Revision            int64
	IdentityFingerprint string
	AnchorFingerprint   string
	ObservedAt          int64  // wall-clock ms of the observation
	Lease               *Lease // WatchdLease of the sweeping watchd; nil only for unwatch
}

// Observation moves a Watch's checkpoint.
type Observation struct {
	Checkpoint []byte // nil: unchanged
	Offset     int64
	ActivityAt int64  // 0: no sign of life
	Warnings   []byte // nil: unchanged
}

// WatchSettlement is the one outcome of a Watch.
type WatchSettlement struct {
	Status         string // completed, failed, timed_out, invalidated, cancelled
	Observation    Observation
	CompletionText string // completed and failed only, at most 4000 characters
	CompletionID   string
	CompletionAt   int64
	Notification   NewNotification // its kind, fingerprint and reason settle the Watch
}

// WatchFilter selects Watches, newest first.
type WatchFilter struct {
	ActiveOnly  bool
	TerminalKey string
	Limit       int // 0: 1000
}

const watchCols = `w.watch_id, w.revision, w.agent, w.mode, w.terminal_id, w.terminal_key, w.endpoint_json, w.workspace, w.binding_token,
  w.identity_fingerprint, w.anchor_json, w.anchor_fingerprint, w.checkpoint_json, w.checkpoint_offset, w.warnings_json,
  w.controller_session_id, w.route_json, w.status, w.created_at, w.deadline_at, w.updated_at, w.last_activity_at,
  coalesce(w.settled_fingerprint, ''), coalesce(w.settled_observed_at, 0), coalesce(w.settled_reason, ''),
  coalesce(w.completion_text, ''), coalesce(w.completion_id, ''), coalesce(w.completion_ts, 0)`

func scanWatch(r scanner) (w Watch, err error) {
	err = r.Scan(&w.ID, &w.Revision, &w.Agent, &w.Mode, &w.TerminalID, &w.TerminalKey, &w.Endpoint, &w.Workspace, &w.BindingToken,
		&w.IdentityFingerprint, &w.Anchor, &w.AnchorFingerprint, &w.Checkpoint, &w.CheckpointOffset, &w.Warnings,
		&w.ControllerSessionID, &w.Route, &w.Status, &w.CreatedAt, &w.DeadlineAt, &w.UpdatedAt, &w.LastActivityAt,
		&w.SettledFingerprint, &w.SettledObservedAt, &w.SettledReason,
		&w.CompletionText, &w.CompletionID, &w.CompletionAt)
	return w, err
}

const watchSet = `
UPDATE watches
SET revision = revision + 1, status = :status, checkpoint_json = :checkpoint, checkpoint_offset = :offset, warnings_json = :warnings,
  updated_at = :updated, last_activity_at = :activity,
  settled_fingerprint = :settled, settled_observed_at = :observed, settled_reason = :reason,
  completion_text = :text, completion_id = :completion, completion_ts = :completed
WHERE watch_id = :watch AND revision = :revision AND status = 'active'
  AND identity_fingerprint = :identity AND anchor_fingerprint = :anchor_fingerprint AND checkpoint_offset <= :offset`

var (
	watchByID = define(`
SELECT ` + watchCols + `
FROM watches w
WHERE w.watch_id = :watch`)

	watchesByStatus = define(`
SELECT ` + watchCols + `
FROM watches w
WHERE w.status IN (SELECT value FROM json_each(:statuses))
ORDER BY w.created_at DESC, w.watch_id
LIMIT :limit`)

	watchesActive = define(`
SELECT w.watch_id
FROM watches w
WHERE w.status = 'active'
ORDER BY w.created_at DESC
LIMIT :limit`)

	watchesByTerminal = define(`
SELECT ` + watchCols + `
FROM watches w
WHERE w.terminal_key = :terminal AND w.status IN (SELECT value FROM json_each(:statuses))
ORDER BY w.created_at DESC, w.watch_id
LIMIT :limit`)

	watchOfTask = define(`
SELECT ` + watchCols + `
FROM watches w
WHERE w.identity_fingerprint = :identity AND w.status = 'active'`)

	watchOfTerminal = define(`
SELECT ` + watchCols + `
FROM watches w
WHERE w.terminal_id = :terminal AND w.status = 'active'`)

	watchInsert = define(`
INSERT INTO watches(watch_id, revision, agent, mode, terminal_id, terminal_key, endpoint_json, workspace, binding_token,
  identity_fingerprint, anchor_json, anchor_fingerprint, checkpoint_json, checkpoint_offset, warnings_json,
  controller_session_id, route_json, status, created_at, deadline_at, updated_at, last_activity_at)
VALUES (:watch, 1, :agent, :mode, :terminal_id, :terminal_key, :endpoint, :workspace, :token,
  :identity, :anchor, :anchor_fingerprint, :checkpoint, :offset, :warnings,
  :controller, :route, 'active', :now, :deadline, :now, :now)`)

	watchSave = define(watchSet)

	watchSaveHeld = define(watchSet + ` AND ` + held)

	notificationsOf = define(`
SELECT notification_id, watch_id, ord, kind, evidence_fingerprint, coalesce(reason_code, ''), created_at
FROM watch_notifications
WHERE watch_id = :watch
ORDER BY ord`)

	notificationKnown = define(`
SELECT count(*)
FROM watch_notifications
WHERE watch_id = :watch AND kind = :kind AND evidence_fingerprint = :fingerprint`)

	notificationInsert = define(`
INSERT INTO watch_notifications(notification_id, watch_id, ord, kind, evidence_fingerprint, reason_code, created_at)
SELECT :notification, :watch, 1 + coalesce(max(ord), 0), :kind, :fingerprint, :reason, max(coalesce(max(created_at), 0), :now)
FROM watch_notifications
WHERE watch_id = :watch`)
)

// Watch gives one Watch, or not_found.
func (s *Store) Watch(ctx context.Context, id string) (Watch, error) {
	return only(pool{ctx, s.rdb}, scanWatch, "Watch", id, watchByID, "watch", id)
}

// Watches lists Watches, the newest first.
func (s *Store) Watches(ctx context.Context, f WatchFilter) (all []Watch, err error) {
	statuses := []string{WatchActive}
	if !f.ActiveOnly {
		statuses = append(statuses, WatchCompleted, WatchFailed, WatchTimedOut, WatchInvalidated, WatchCancelled)
	}
	q, limit := pool{ctx, s.rdb}, limitOr(f.Limit)
	if f.TerminalKey != "" {
		all, err = list(q, scanWatch, watchesByTerminal, "terminal", f.TerminalKey, "statuses", texts(statuses), "limit", limit)
	} else {
		all, err = list(q, scanWatch, watchesByStatus, "statuses", texts(statuses), "limit", limit)
	}
	return all, storeError("list Watches", err)
}

// ActiveWatches lists the ids of the active Watches, the newest first: what a
// sweep asks at every bell.
func (s *Store) ActiveWatches(ctx context.Context) ([]string, error) {
	ids, err := list(pool{ctx, s.rdb}, scanString, watchesActive, "limit", limitOr(0))
	return ids, storeError("list active Watches", err)
}

// WatchNotifications lists the notifications of a Watch in order.
func (s *Store) WatchNotifications(ctx context.Context, watchID string) ([]WatchNotification, error) {
	all, err := list(pool{ctx, s.rdb}, func(r scanner) (n WatchNotification, err error) {
		err = r.Scan(&n.ID, &n.WatchID, &n.Ord, &n.Kind, &n.EvidenceFingerprint, &n.ReasonCode, &n.CreatedAt)
		return n, err
	}, notificationsOf, "watch", watchID)
	return all, storeError("list notifications", err)
}

// CreateWatch starts a Watch under the pane's terminal lease, with the
// notification of an approval that is visible already. Refusals:
// active_watch_exists (detail watch_id), active_owner and dispatch_unresolved
// (turn_id), lifecycle_unresolved.
func (s *Store) CreateWatch(ctx context.Context, l *Lease, w NewWatch) (made Watch, err error) {
	if l == nil || l.Name != TerminalLease(w.TerminalKey) {
		return made, fault.New(fault.Internal, "create Watch %s: not under the pane's terminal lease", w.WatchID)
	}
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		if err := t.unowned(w.TerminalKey); err != nil {
			return err
		}
		if err := t.unwatched(w); err != nil {
			return err
		}
		if w.Warnings == nil {
			w.Warnings = []byte("[]")
		}
		_, err := t.exec(watchInsert, "watch", w.WatchID, "agent", w.Agent, "mode", w.Mode, "terminal_id", w.TerminalID,
			"terminal_key", w.TerminalKey, "endpoint", w.Endpoint, "workspace", w.Workspace, "token", w.BindingToken,
			"identity", w.IdentityFingerprint, "anchor", w.Anchor, "anchor_fingerprint", w.AnchorFingerprint,
			"checkpoint", w.Checkpoint, "offset", w.CheckpointOffset, "warnings", w.Warnings,
			"controller", w.ControllerSessionID, "route", w.Route, "now", t.now, "deadline", t.now+w.Lifetime)
		if err != nil {
			return err
		}
		if w.Approval != nil {
			if err := t.notify(w.WatchID, *w.Approval); err != nil {
				return err
			}
		}
		made, err = t.watch(w.WatchID)
		return err
	})
	if err == nil {
		crashpoint.At("watch_created")
	}
	return made, err
}

// unowned refuses a pane whose work belongs to a Turn or a transition.
func (t *tx) unowned(terminalKey string) error {
	f, ok, err := first(t, scanFence, fenceOf, "terminal", terminalKey)
	if err != nil || !ok {
		return err
	}
	if f.Kind == "transition" {
		return fault.New(fault.LifecycleUnresolved, "watch the pane: transition %s is not settled", f.RefID).With("transition_id", f.RefID)
	}
	d, ok, err := first(t, scanDispatch, dispatchByMessage, "message", f.RefID)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.OwnerUnavailable, "watch the pane: the record of message %s cannot be read", f.RefID).With("message_id", f.RefID)
	}
	code := fault.DispatchUnresolved
	if d.Status == DispatchEnterDispatched || d.Status == DispatchAccepted {
		code = fault.ActiveOwner
	}
	return fault.New(code, "watch the pane: it is managed by Turn %s", d.TurnID).With("turn_id", d.TurnID)
}

// unwatched refuses a task or pane that has an active Watch.
func (t *tx) unwatched(w NewWatch) error {
	other, ok, err := first(t, scanWatch, watchOfTask, "identity", w.IdentityFingerprint)
	if err == nil && !ok {
		other, ok, err = first(t, scanWatch, watchOfTerminal, "terminal", w.TerminalID)
	}
	if err != nil || !ok {
		return err
	}
	return fault.New(fault.ActiveWatchExists, "watch the pane: Watch %s is active", other.ID).With("watch_id", other.ID)
}

// ObserveWatch moves checkpoint and activity. It rings no bell.
func (s *Store) ObserveWatch(ctx context.Context, f WatchFence, o Observation) (w Watch, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		old, err := t.observed(f, true)
		if err != nil {
			return err
		}
		w = old
		return t.saveWatch(f.Lease, old, &w, o)
	})
	return w, err
}

// NotifyWatchApproval is ObserveWatch with the notification of an approval. One
// fingerprint is notified once: then false comes back, and only the observation is
// stored.
func (s *Store) NotifyWatchApproval(ctx context.Context, f WatchFence, o Observation, n NewNotification) (w Watch, inserted bool, err error) {
	if n.Kind != "approval" {
		return w, false, fault.New(fault.Internal, "notify Watch %s: kind %q", f.WatchID, n.Kind)
	}
	err = s.transact(ctx, func(t *tx) error {
		inserted = false
		old, err := t.observed(f, true)
		if err != nil {
			return err
		}
		w = old
		if err := t.saveWatch(f.Lease, old, &w, o); err != nil {
			return err
		}
		known, _, err := first(t, scanInt, notificationKnown, "watch", f.WatchID, "kind", n.Kind, "fingerprint", n.EvidenceFingerprint)
		if err != nil || known > 0 {
			t.silent = true
			return err
		}
		inserted = true
		return t.notify(f.WatchID, n)
	})
	if err != nil {
		return Watch{}, false, err
	}
	if inserted {
		crashpoint.At("watch_notified")
	}
	return w, inserted, nil
}

// SettleWatch ends a Watch with its one outcome, for good; notifications of
// approvals that wait are superseded. Only cancelled may come without the sweep's
// lease and with Revision 0. Past the deadline every outcome but timed_out and
// cancelled is refused with expired; before it timed_out is watch_conflict.
func (s *Store) SettleWatch(ctx context.Context, f WatchFence, o WatchSettlement) (w Watch, err error) {
	cancelled := o.Status == WatchCancelled
	if o.Notification.Kind != o.Status {
		return w, fault.New(fault.Internal, "settle Watch %s: notification %q for outcome %q", f.WatchID, o.Notification.Kind, o.Status)
	}
	err = s.transact(ctx, func(t *tx) error {
		if f.Lease == nil && !cancelled {
			return t.guard(nil)
		}
		old, err := t.observed(f, !cancelled && o.Status != WatchTimedOut)
		if err != nil {
			return err
		}
		if o.Status == WatchTimedOut && t.now < old.DeadlineAt {
			return watchConflict(old, "its deadline is still to come")
		}
		w = old
		w.Status, w.SettledFingerprint, w.SettledReason = o.Status, o.Notification.EvidenceFingerprint, o.Notification.ReasonCode
		w.SettledObservedAt = max(f.ObservedAt, old.CreatedAt)
		w.CompletionText, w.CompletionID, w.CompletionAt = o.CompletionText, o.CompletionID, o.CompletionAt
		if err := t.saveWatch(f.Lease, old, &w, o.Observation); err != nil {
			return err
		}
		if _, err := t.exec(supersedeOfWatch, "watch", f.WatchID, "reason", "watch_settled", "now", t.now); err != nil {
			return err
		}
		if err := t.watchQuestionsLeave(f.WatchID); err != nil {
			return err
		}
		return t.notify(f.WatchID, o.Notification)
	})
	if err == nil {
		crashpoint.At("watch_settled")
	}
	return w, err
}

func (t *tx) watch(id string) (Watch, error) {
	return only(t, scanWatch, "Watch", id, watchByID, "watch", id)
}

// observed checks an observation against the Watch that it was made of.
func (t *tx) observed(f WatchFence, live bool) (Watch, error) {
	if f.Lease != nil {
		if err := t.guard(f.Lease); err != nil {
			return Watch{}, err
		}
	}
	w, err := t.watch(f.WatchID)
	if err != nil {
		return w, err
	}
	switch {
	case w.Status != WatchActive:
		return w, watchConflict(w, "it is "+w.Status)
	case f.Revision != 0 && w.Revision != f.Revision:
		return w, watchConflict(w, "it changed")
	case w.IdentityFingerprint != f.IdentityFingerprint || w.AnchorFingerprint != f.AnchorFingerprint:
		return w, watchConflict(w, "the observation is of another task")
	case f.ObservedAt > t.now:
		return w, watchConflict(w, "the observation comes from the future")
	case live && t.now >= w.DeadlineAt:
		return w, fault.New(fault.Expired, "observe Watch %s: its deadline has passed", w.ID).With("watch_id", w.ID)
	}
	return w, nil
}

// saveWatch writes the changed Watch over old, which was read in this transaction.
func (t *tx) saveWatch(l *Lease, old Watch, w *Watch, o Observation) error {
	if o.Checkpoint != nil {
		if o.Offset < old.CheckpointOffset {
			return watchConflict(old, "the checkpoint would go back")
		}
		w.Checkpoint, w.CheckpointOffset = o.Checkpoint, o.Offset
	}
	if o.Warnings != nil {
		w.Warnings = o.Warnings
	}
	w.UpdatedAt = t.at(old.UpdatedAt)
	w.LastActivityAt = max(old.LastActivityAt, min(o.ActivityAt, w.UpdatedAt))
	pairs := []any{
		"watch", old.ID, "revision", old.Revision, "identity", old.IdentityFingerprint,
		"anchor_fingerprint", old.AnchorFingerprint, "status", w.Status, "checkpoint", w.Checkpoint, "offset", w.CheckpointOffset,
		"warnings", w.Warnings, "updated", w.UpdatedAt, "activity", w.LastActivityAt, "settled", orNull(w.SettledFingerprint),
		"observed", orNull(w.SettledObservedAt), "reason", orNull(w.SettledReason), "text", orNull(w.CompletionText),
		"completion", orNull(w.CompletionID), "completed", orNull(w.CompletionAt),
	}
	st := watchSave
	if l != nil {
		st, pairs = watchSaveHeld, append(pairs, t.under(l)...)
	}
	err := t.must(st, pairs...)
	w.Revision = old.Revision + 1
	return err
}

// notify appends a notification with its callback row.
func (t *tx) notify(watchID string, n NewNotification) error {
	if err := t.must(notificationInsert, "notification", n.NotificationID, "watch", watchID, "kind", n.Kind,
		"fingerprint", n.EvidenceFingerprint, "reason", orNull(n.ReasonCode), "now", t.now); err != nil {
		return err
	}
	return t.insertCallback(n.Callback, "", watchID)
}

func watchConflict(w Watch, why string) error {
	return fault.New(fault.WatchConflict, "write Watch %s: %s", w.ID, why).With("watch_id", w.ID).With("status", w.Status)
}
