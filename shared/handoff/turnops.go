package handoff

import (
	"context"
	"slices"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// CancelResult is the body of cancel (tools §8.17).
type CancelResult struct {
	TurnID         string `json:"turn_id"`
	Requested      bool   `json:"cancel_requested"`
	Keys           string `json:"keys,omitempty"`
	DeniedApproval bool   `json:"denied_approval,omitempty"`
	Reason         string `json:"reason,omitempty"`
	Budget         Budget `json:"budget"`
}

// Cancel interrupts a running Turn with one key. The pane stays as it is.
func (d *Desk) Cancel(ctx context.Context, _ Call, in CancelInput) (Outcome, error) {
	_, at, err := d.openTurn(ctx, in.TurnID, "cancel",
		store.TurnWaitingForAgent, store.TurnRunning, store.TurnWaitingForController)
	if err != nil {
		return Outcome{}, err
	}
	s, err := d.byPlace(ctx, at)
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
	// It may have ended meanwhile. What the Store would refuse after the key is
	// refused before it.
	turn, err := d.Store.Cancellable(held, h.lease, in.TurnID)
	if err != nil {
		return Outcome{}, err
	}
	if s, err = d.byPlace(held, at); err != nil {
		return Outcome{}, err
	}
	res := CancelResult{TurnID: turn.ID, Budget: budget(turn)}
	if err := d.interruptible(held, s, turn, &res); err != nil {
		return Outcome{}, err
	}
	if res.Reason != "" {
		return Outcome{Body: res}, nil
	}
	if err := h.prove(held, s); err != nil {
		return Outcome{}, err
	}
	ctx = context.WithoutCancel(held)
	key := s.adapter.Interrupt()
	if err := d.Tmux.Press(ctx, s.pane, key); err != nil {
		return Outcome{}, err
	}
	crashpoint.At("interrupt_sent")
	res.Requested, res.Keys = true, string(key)
	_, err = d.Store.CancelTurn(ctx, h.lease, store.TurnCancel{
		TurnID: turn.ID, Detail: canonical(map[string]any{"keys": string(key), "denied_approval": res.DeniedApproval}),
	})
	if err != nil {
		f, ok := fault.As(err)
		if !ok {
			f = fault.New(fault.Internal, "cancel %s: %w", in.TurnID, err)
		}
		return Outcome{}, f.WithInput(fault.InputSent).WithHint("the interrupt was sent; look at status")
	}
	if err := h.lock.Clear(); err != nil {
		d.Log.Warn("clear terminal record", "err", err)
	}
	return Outcome{Body: res}, nil
}

// interruptible checks that the interrupt key means "stop this turn" now: a
// late Escape at an idle composer arms history editing (codex §8).
func (d *Desk) interruptible(ctx context.Context, s *sighting, turn store.Turn, res *CancelResult) error {
	if err := d.allowed(s); err != nil {
		return err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	sub, err := d.Store.Submission(ctx, turn.CurrentMessageID)
	if err != nil {
		return err
	}
	if sub.Dispatch.Acceptance == nil {
		return fault.New(fault.TurnStatusInvalid, "cancel %s: its submission is not proven yet, there is nothing to interrupt", turn.ID).
			With("status", turn.Status).WithHint("wait for the callback, or close the turn").Safe()
	}
	acc, err := agent.ParseAcceptance(sub.Dispatch.Acceptance)
	if err != nil {
		return fault.New(fault.IdentityUnverified, "cancel %s: %w", turn.ID, err)
	}
	p, err := s.adapter.Progress(pctx, acc.Task, agent.Position{})
	if err != nil {
		return fault.New(fault.ObservationUnavail, "cancel %s: %w", turn.ID, err).Safe()
	}
	if p.State != agent.Open {
		res.Reason = "the task has already ended; its callback follows"
		return nil
	}
	screen, err := d.Tmux.CaptureOne(pctx, s.pane)
	if err != nil {
		return err
	}
	d.judge(pctx, s, &screen)
	if err := s.shows(turn, "cancel"); err != nil {
		return err
	}
	switch {
	case s.pane.InMode:
		return notIdle(s.id(), closedPane)
	case s.reading.State == agent.Approval, s.reading.State == agent.Question:
		res.DeniedApproval = true
	case s.reading.State == agent.Blocked, s.reading.State == agent.NotReady, s.reading.State == agent.Exited:
		return notIdle(s.id(), "the screen shows "+string(s.reading.State))
	case s.identity.Activity == agent.ActivityIdle:
		// Its last records are on their way, or it was interrupted before any output.
		// A second Escape would open a list of earlier prompts (claude §8).
		res.Reason = "the agent says that it is idle; there is nothing to interrupt"
	}
	return nil
}

// openTurn reads a Turn in one of the statuses, and where it lives.
func (d *Desk) openTurn(ctx context.Context, id, doing string, statuses ...string) (store.Turn, place, error) {
	if err := checkTurnID(id); err != nil {
		return store.Turn{}, place{}, err
	}
	t, err := d.Store.Turn(ctx, id)
	if err != nil {
		return store.Turn{}, place{}, err
	}
	for _, s := range statuses {
		if t.Status == s {
			_, at, err := d.turnPlace(ctx, t)
			return t, at, err
		}
	}
	return store.Turn{}, place{}, fault.New(fault.TurnStatusInvalid, "%s %s: the turn is %s", doing, id, t.Status).
		With("status", t.Status).Safe()
}

// CloseResult is the body of close (tools §8.18).
type CloseResult struct {
	TurnID     string `json:"turn_id,omitempty"`
	TerminalID string `json:"terminal_id,omitempty"` // in place of the Turn, with a transition
	Status     string `json:"status"`
	Closed     bool   `json:"closed"`
	Resolved   bool   `json:"terminal_dispatch_resolved"`
	Recovered  bool   `json:"recovered,omitempty"`
	Transition string `json:"transition_id,omitempty"`
	Outcome    string `json:"transition_status,omitempty"` // committed, aborted
	Reason     string `json:"reason,omitempty"`
}

// Close ends the record of a Turn, resolves an orphan dispatch, or with the id of
// an unsettled transition (TurnID may be a terminal id then) ends that one as the
// live pane proves it. It types nothing; the agent may still work.
func (d *Desk) Close(ctx context.Context, _ Call, in CloseInput) (Outcome, error) {
	if in.ExpectedTransitionID != "" {
		return d.closeTransition(ctx, in)
	}
	if err := checkTurnID(in.TurnID); err != nil {
		return Outcome{}, err
	}
	if in.Reason == reasonHandoff && in.ExpectedMessageID == "" {
		if err := d.closeHandoff(ctx, in); err != nil {
			return Outcome{}, err
		}
	}
	reason := clip(oneLine(in.Reason, "closed by the controller"), maxSummary)
	req := store.TurnClose{TurnID: in.TurnID, Reason: reason}
	var turn store.Turn
	var err error
	if in.ExpectedMessageID != "" {
		turn, err = d.Store.CloseOrphan(ctx, req, in.ExpectedMessageID)
	} else {
		turn, err = d.Store.CloseTurn(ctx, req)
	}
	if err != nil {
		return Outcome{}, err
	}
	d.clearRecord(ctx, turn.TerminalKey, recordWait)
	f, fenced, err := d.Store.Fence(ctx, turn.TerminalKey)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: CloseResult{
		TurnID: turn.ID, Status: turn.Status, Closed: true, Reason: reason,
		Resolved: !fenced || f.RefID != turn.CurrentMessageID,
	}}, nil
}

// RenewResult is the body of renew (tools §8.15).
type RenewResult struct {
	TurnID     string  `json:"turn_id"`
	Renewed    bool    `json:"renewed"`
	Inactivity float64 `json:"agent_timeout_minutes"`
	Hard       float64 `json:"agent_hard_timeout_minutes"`
}

// Renew goes on monitoring a stalled Turn whose pane and process still live.
func (d *Desk) Renew(ctx context.Context, _ Call, in RenewInput) (Outcome, error) {
	if err := d.sibling(ctx, "watchd", store.WatchdLease()); err != nil {
		return Outcome{}, err
	}
	turn, at, err := d.openTurn(ctx, in.TurnID, "renew", store.TurnStalled)
	if err != nil {
		return Outcome{}, err
	}
	sub, err := d.Store.Submission(ctx, turn.CurrentMessageID)
	if err != nil {
		return Outcome{}, err
	}
	if x := sub.Dispatch.Status; x == store.DispatchUncertain || x == store.DispatchNotAccepted {
		return Outcome{}, fault.New(fault.SubmissionUncertain, "renew %s: its submission is %s, so there is no task to follow", turn.ID, x).
			WithHint("close the turn, or retry its submission with send({turn_id})")
	}
	s, err := d.byPlace(ctx, at)
	if err != nil {
		return Outcome{}, err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	if alive, known := s.adapter.Alive(pctx, at.Process); known && !alive { // a daemon may die without its pane
		return Outcome{}, fault.New(fault.TerminalChanged, "renew %s: the process that held its thread has ended", turn.ID).
			WithHint("close the turn")
	}
	turn, err = d.Store.RenewTurn(ctx, store.TurnRenew{TurnID: turn.ID, Minutes: minutes(in.Minutes)})
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: RenewResult{TurnID: turn.ID, Renewed: true, Inactivity: turn.InactivityMinutes, Hard: turn.HardMinutes}}, nil
}

// RetryResult is the body of retry_callback (tools §8.16).
type RetryResult struct {
	TurnID    string       `json:"turn_id"`
	Delivered bool         `json:"delivered"`
	Recovered bool         `json:"recovered,omitempty"`
	Delivery  CallbackView `json:"delivery"`
}

// RetryCallback makes a waiting callback due now and waits for that attempt.
func (d *Desk) RetryCallback(ctx context.Context, _ Call, in RetryCallbackInput) (Outcome, error) {
	if err := checkTurnID(in.TurnID); err != nil {
		return Outcome{}, err
	}
	turn, err := d.Store.Turn(ctx, in.TurnID)
	if err != nil {
		return Outcome{}, err
	}
	if turn.Route == nil {
		return Outcome{}, fault.New(fault.CallbackUnavailable, "retry the callback of %s: it was sent without a route", turn.ID).
			With("turn_id", turn.ID)
	}
	if err := d.delivering(ctx, turn.Route); err != nil {
		return Outcome{}, err
	}
	row, recovered, err := d.Store.RetryCallbackNow(ctx, in.TurnID)
	if err != nil {
		return Outcome{}, err
	}
	attempts := row.Attempts
	var bell <-chan struct{}
	if d.Bell != nil {
		ch, cancel := d.Bell.Subscribe()
		defer cancel()
		bell = ch
	}
	deadline := time.Now().Add(retryWait)
	for !recovered && time.Now().Before(deadline) {
		if row, err = d.Store.Callback(ctx, row.DeliveryID); err != nil {
			return Outcome{}, err
		}
		if row.Attempts > attempts && row.Status != store.CallbackClaimed || !row.Open() {
			break
		}
		select {
		case <-ctx.Done():
			return Outcome{}, ctx.Err()
		case <-bell:
		case <-time.After(time.Second):
		}
	}
	v := CallbackView{Lane: row.Lane, Kind: row.Kind, Status: row.Status, Attempts: row.Attempts, LastError: row.LastErrorCode}
	if row.Status == store.CallbackRetryWait {
		v.NextAt = stamp(row.NextAttemptAt)
	}
	return Outcome{Body: RetryResult{
		TurnID: in.TurnID, Delivered: row.Status == store.CallbackAccepted, Recovered: recovered, Delivery: v,
	}}, nil
}

// delivering refuses when nobody delivers callbacks of a Turn's route.
func (d *Desk) delivering(ctx context.Context, stored []byte) error {
	route, err := callback.ParseRoute(stored)
	if err != nil {
		return err
	}
	live, err := d.leaseLives(ctx, store.OutboxdLease(route.ProfileID, route.ControllerSessionID))
	if err != nil || live {
		return err
	}
	return fault.New(fault.SiblingUnavailable, "no outboxd serves the controller session of the turn").
		WithHint("look at the bridge's log for why outboxd ends; it is tried again every 30 s").Safe()
}

// leaseLives reports whether somebody holds a lease now.
func (d *Desk) leaseLives(ctx context.Context, name string) (bool, error) {
	rows, err := d.Store.Leases(ctx, name)
	return slices.ContainsFunc(rows, func(r store.LeaseRow) bool { return r.Name == name && r.Live }), err
}
