package handoff

import (
	"context"
	"strconv"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Reason codes of a Watch (core §7).
const (
	reasonDone        = "anchored_task_completed"
	reasonFailed      = "anchored_task_failed"
	reasonAnchor      = "task_anchor_invalidated"
	reasonIdentity    = "terminal_identity_changed"
	reasonProcess     = "terminal_process_unavailable"
	reasonDeadline    = "deadline_elapsed"
	reasonCancel      = "manual_cancel"
	reasonApproval    = "terminal_waiting_for_approval"
	reasonActivity    = "terminal_activity_ended"
	kindApproval      = "approval"
	watchEvidenceKind = "terminal_watch"
)

// WatchView is a Watch for display (tools §8.2).
type WatchView struct {
	ID           string           `json:"watch_id"`
	Source       string           `json:"source"`
	Agent        string           `json:"agent"`
	Terminal     string           `json:"terminal_id"`
	NativeThread string           `json:"native_thread_id,omitempty"`
	Workspace    string           `json:"workspace"`
	Status       string           `json:"status"`
	Activity     string           `json:"activity_state"`
	CreatedAt    string           `json:"created_at"`
	DeadlineAt   string           `json:"deadline_at"`
	UpdatedAt    string           `json:"updated_at"`
	LastActivity string           `json:"last_activity_at"`
	Mode         string           `json:"watch_mode"`
	Confidence   string           `json:"confidence"`
	Warnings     []string         `json:"warnings"`
	Callback     WatchDelivery    `json:"callback"`
	Settlement   *WatchEndResult  `json:"settlement,omitempty"`
	Interaction  *InteractionView `json:"interaction_state,omitempty"` // with status
	Actions      Actions          `json:"available_actions"`
}

// WatchDelivery counts a Watch's notifications.
type WatchDelivery struct {
	Pending    int `json:"pending"`
	Delivered  int `json:"delivered"`
	Failed     int `json:"failed"`
	Superseded int `json:"superseded"`
}

// WatchEndResult is how a Watch ended.
type WatchEndResult struct {
	Kind         string `json:"kind"`
	ObservedAt   string `json:"observed_at"`
	Reason       string `json:"reason_code"`
	Text         string `json:"completion_text,omitempty"`
	CompletionID string `json:"completion_id,omitempty"`
	CompletionAt string `json:"completion_timestamp,omitempty"`
}

// watchAnchor is what a Watch is tied to: one exact task, or with no task the
// mere activity of one process in one pane.
type watchAnchor struct {
	Version int         `json:"version"`
	Place   place       `json:"place"`
	Task    *agent.Task `json:"task,omitempty"`
}

// watchCheckpoint is how far a Watch was observed.
type watchCheckpoint struct {
	Version  int            `json:"version"`
	Position agent.Position `json:"position"`
	Digest   string         `json:"digest"`
	Busy     bool           `json:"busy"` // work or an approval was seen (activity mode)
}

// Watch starts to observe a task that a human started. It types nothing.
func (d *Desk) Watch(ctx context.Context, _ Call, in WatchInput) (Outcome, error) {
	if err := d.sibling(ctx, "watchd", store.WatchdLease()); err != nil {
		return Outcome{}, err
	}
	if d.Route == nil {
		return Outcome{}, fault.New(fault.CapabilityMissing, "watch: this process has no callback route").Safe()
	}
	s, err := d.byTerminalID(ctx, in.TerminalID)
	if err != nil {
		return Outcome{}, err
	}
	held, h, err := d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return Outcome{}, err
	}
	defer h.release()
	if err := h.foreign(held); err != nil {
		return Outcome{}, err
	}
	if s, err = d.inspect(held, s); err != nil {
		return Outcome{}, err
	}
	row, err := d.newWatch(held, s)
	if err != nil {
		return Outcome{}, err
	}
	row.Lifetime = int64(orDefault(minutes(in.HardTimeoutMinutes), d.Hard) * 60_000)
	w, err := d.Store.CreateWatch(held, h.lease, row)
	if err != nil {
		return Outcome{}, err
	}
	view, err := d.viewWatch(held, w)
	return Outcome{Body: map[string]any{"watch": view}}, err
}

// atWork reports whether an activity is one whose end a Watch can tell.
func atWork(activity string) bool {
	return activity == "working" || activity == "awaiting_approval" || activity == "awaiting_answer"
}

// newWatch finds the anchor, looking twice: the task must be the same in both.
func (d *Desk) newWatch(ctx context.Context, s *sighting) (store.NewWatch, error) {
	if s.proc.Class == agent.Refused {
		return store.NewWatch{}, d.allowed(s)
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	task, exact, err := s.adapter.Current(pctx, s.proc)
	if err != nil {
		return store.NewWatch{}, fault.New(fault.ObservationUnavail, "watch %s: %w", s.id(), err).Safe()
	}
	state, _ := s.activity()
	if !exact && !atWork(state) {
		if s.identity.State == agent.Resolved {
			return store.NewWatch{}, fault.New(fault.ActionNotAdvertised, "watch %s: nothing runs there", s.id()).
				WithHint("watch takes a pane whose agent works now").Safe()
		}
		return store.NewWatch{}, fault.New(fault.IdentityUnverified, "watch %s: no unique task to follow", s.id()).Safe()
	}
	again, err := d.again(ctx, s)
	if err != nil {
		return store.NewWatch{}, err
	}
	anchor := watchAnchor{Version: 1, Place: placeOf(again)}
	check := watchCheckpoint{Version: 1, Busy: !exact}
	row := store.NewWatch{
		WatchID: d.newID(watchPrefix), Agent: string(s.proc.Agent), Mode: store.ModeTerminalActivity,
		TerminalID: s.id(), TerminalKey: s.pane.Key(), Endpoint: canonical(anchor.Place), Workspace: s.proc.Cwd,
		BindingToken:        digest(s.pane.Key(), s.proc.Inc.String(), s.identity.ThreadID),
		IdentityFingerprint: digest(watchEvidenceKind, s.pane.Key(), s.proc.Inc.String()),
		ControllerSessionID: d.Controller, Route: d.routeJSON(),
	}
	if exact {
		twice, ok, err := s.adapter.Current(pctx, s.proc)
		if err != nil || !ok || twice.TurnID != task.TurnID || twice.ThreadID != task.ThreadID {
			return store.NewWatch{}, fault.New(fault.IdentityUnverified, "watch %s: the task changed while it was looked at", s.id()).
				WithHint("call list again").Safe()
		}
		anchor.Task, check.Position = &task, task.Start
		row.Mode, row.CheckpointOffset = store.ModeExactTask, task.Start.Offset
		row.IdentityFingerprint = digest(watchEvidenceKind, task.ThreadID, task.TurnID,
			strconv.FormatUint(task.Start.File.Dev, 10), strconv.FormatUint(task.Start.File.Ino, 10), s.proc.Inc.String())
	} else {
		row.Warnings = canonical([]string{"no exact task could be proven: the end is told from the pane's activity and without any text"})
	}
	row.Anchor, row.Checkpoint = canonical(anchor), canonical(check)
	row.AnchorFingerprint = hash(row.Anchor)
	if s.reading.State == agent.Approval && s.reading.Prompt != nil {
		note, err := watchApproval(store.Watch{ID: row.WatchID, Agent: row.Agent, TerminalID: row.TerminalID, Route: row.Route}, s.reading, again)
		if err != nil {
			return store.NewWatch{}, err
		}
		row.Approval = &note
	}
	return row, nil
}

// watchApproval is the one notification for one exact dialog.
func watchApproval(w store.Watch, r agent.Reading, s *sighting) (store.NewNotification, error) {
	evidence := digest(r.Prompt.Digest, r.Prompt.Kind, s.pane.Key(), s.proc.Inc.String())
	body := sayWatchApproval(agent.Kind(w.Agent), w.ID, w.TerminalID, r.Prompt.Command)
	return tellWatch(w, kindApproval, callback.EventApprovalRequired, evidence, reasonApproval, body)
}

// Unwatch ends a Watch; the task goes on. A settled Watch is answered as it is.
func (d *Desk) Unwatch(ctx context.Context, _ Call, in UnwatchInput) (Outcome, error) {
	if err := checkWatchID(in.WatchID); err != nil {
		return Outcome{}, err
	}
	w, err := d.Store.Watch(ctx, in.WatchID)
	if err != nil {
		return Outcome{}, err
	}
	if w.Status == store.WatchActive {
		evidence := callback.CancelEvidence(w.ID, w.AnchorFingerprint)
		note, err := tellWatch(w, store.WatchCancelled, callback.EventCancelled, evidence, reasonCancel,
			sayWatch(agent.Kind(w.Agent), w.ID, w.TerminalID, "it was cancelled; the task goes on.", ""))
		if err != nil {
			return Outcome{}, err
		}
		w, err = d.Store.SettleWatch(ctx, store.WatchFence{
			WatchID: w.ID, IdentityFingerprint: w.IdentityFingerprint, AnchorFingerprint: w.AnchorFingerprint,
			ObservedAt: d.now().UnixMilli(),
		}, store.WatchSettlement{Status: store.WatchCancelled, Notification: note})
		if fault.Is(err, fault.WatchConflict) { // it settled meanwhile
			w, err = d.Store.Watch(ctx, in.WatchID)
		}
		if err != nil {
			return Outcome{}, err
		}
	}
	view, err := d.viewWatch(ctx, w)
	return Outcome{Body: map[string]any{"watch": view}}, err
}

func (d *Desk) viewWatch(ctx context.Context, w store.Watch) (WatchView, error) {
	v := WatchView{
		ID: w.ID, Source: "human_started_terminal_watch", Agent: w.Agent, Terminal: w.TerminalID, Workspace: w.Workspace,
		Status: w.Status, Activity: "watching", CreatedAt: stamp(w.CreatedAt), DeadlineAt: stamp(w.DeadlineAt),
		UpdatedAt: stamp(w.UpdatedAt), LastActivity: stamp(w.LastActivityAt), Mode: w.Mode, Confidence: "exact",
		Warnings: warnings(w.Warnings),
		Actions:  Actions{"status": {Tool: toolName("status"), Arguments: map[string]any{"watch_id": w.ID}}},
	}
	if w.Mode == store.ModeTerminalActivity {
		v.Confidence = "best_effort"
	}
	if a, err := parseWatchAnchor(w.Anchor); err == nil && a.Task != nil {
		v.NativeThread = a.Task.ThreadID
	}
	if w.Status == store.WatchActive {
		v.Actions["unwatch"] = Action{Tool: toolName("unwatch"), Arguments: map[string]any{"watch_id": w.ID}}
	} else {
		v.Activity = "settled"
		v.Settlement = &WatchEndResult{
			Kind: w.Status, ObservedAt: stamp(w.SettledObservedAt), Reason: w.SettledReason,
			Text: w.CompletionText, CompletionID: w.CompletionID, CompletionAt: stamp(w.CompletionAt),
		}
	}
	rows, err := d.Store.WatchCallbacks(ctx, w.ID)
	if err != nil {
		return WatchView{}, err
	}
	for _, c := range rows {
		switch {
		case c.Open():
			v.Callback.Pending++
		case c.Status == store.CallbackAccepted:
			v.Callback.Delivered++
		case c.Status == store.CallbackSuperseded:
			v.Callback.Superseded++
		default:
			v.Callback.Failed++
		}
	}
	return v, nil
}

func (d *Desk) listWatches(ctx context.Context, all bool) ([]WatchView, error) {
	rows, err := d.Store.Watches(ctx, store.WatchFilter{ActiveOnly: !all, Limit: maxListed})
	if err != nil {
		return nil, err
	}
	out := []WatchView{}
	for _, w := range rows {
		v, err := d.viewWatch(ctx, w)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func checkWatchID(id string) error {
	if !strings.HasPrefix(id, watchPrefix) {
		return fault.New(fault.WrongIDKind, "%q is not a watch id", clip(id, 80)).WithHint("use the watch_id that watch or list gave").Safe()
	}
	return nil
}
