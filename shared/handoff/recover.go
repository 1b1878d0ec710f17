package handoff

import (
	"context"
	"runtime/debug"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// A search for acceptance in recovery looks this often, this far apart.
const (
	recoverLooks = 4
	recoverPause = 150 * time.Millisecond
)

// Reconciliation is the result of one pass of Recover.
type Reconciliation struct {
	Status   string   `json:"status"` // done, partial, skipped
	Checked  int      `json:"checked"`
	Changed  int      `json:"changed"`
	Problems []string `json:"problems,omitempty"`
}

// Recover settles what dead programs left between two commits (core §12 phase
// A, §13). It never types, never raises a proof without evidence, and leaves
// alone whatever a living process still holds. A problem with one row is
// reported and the others go on. turnID limits the pass to one Turn.
func (d *Desk) Recover(ctx context.Context, turnID string) Reconciliation {
	r := Reconciliation{Status: "done"}
	if err := d.Store.Writable(); err != nil {
		r.Status = "skipped"
		return r
	}
	note := func(changed bool, err error) {
		if err != nil {
			r.Status = "partial"
			r.Problems = append(r.Problems, fault.CleanLine(err.Error()))
		}
		if changed {
			r.Changed++
		}
	}
	open, err := d.Store.OpenDispatches(ctx)
	note(false, err)
	for _, o := range open {
		if ctx.Err() != nil {
			break
		}
		// A released Turn needs no proof any more: RepairFences lets its dispatch go.
		if turnID != "" && o.Turn.ID != turnID || !o.Turn.Blocks() {
			continue
		}
		r.Checked++
		note(d.isolated(ctx, o))
	}
	checked, decided, err := d.recoverApprovals(ctx, turnID)
	r.Checked += checked
	note(false, err)
	r.Changed += decided
	checked, decided, err = d.recoverResponses(ctx, turnID)
	r.Checked += checked
	note(false, err)
	r.Changed += decided
	if turnID == "" {
		r.Checked += d.recoverTransitions(ctx, note)
	}
	fences, err := d.Store.RepairFences(ctx)
	note(fences > 0, err)
	closed, err := d.Store.CloseRetention(ctx, turnID, 0)
	note(len(closed) > 0, err)
	return r
}

// isolated is recoverDispatch, whose panic is a problem of this one row.
func (d *Desk) isolated(ctx context.Context, o store.OpenDispatch) (changed bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			d.Log.Error("panic", "in", "recovery", "message", o.Dispatch.MessageID, "value", v, "stack", string(debug.Stack()))
			changed, err = false, fault.New(fault.Internal, "recover message %s: see the log", o.Dispatch.MessageID)
		}
	}()
	changed, err = d.recoverDispatch(ctx, o)
	if fault.Is(err, fault.TurnStatusInvalid) {
		return false, nil // it was closed meanwhile, for which nobody needs the pane
	}
	return changed, err
}

// recoverDispatch settles one open dispatch whose program no longer works on it.
func (d *Desk) recoverDispatch(ctx context.Context, o store.OpenDispatch) (changed bool, err error) {
	x := o.Dispatch
	switch x.Status {
	case store.DispatchAccepted:
		if checkAcceptance(x, x.Acceptance) == nil {
			return false, nil
		}
	case store.DispatchPrepared, store.DispatchTextInjected:
		if !o.DispatcherGone && !o.TerminalFree {
			return false, nil
		}
	default: // enter_dispatched: its monitor looks for acceptance
		return false, nil
	}
	held, h, err := d.grab(ctx, x.TerminalKey, x.TurnID, 0)
	if fault.Is(err, fault.TerminalBusy) {
		return false, nil // somebody works on this pane after all
	}
	if err != nil {
		return false, err
	}
	defer h.release()
	sub, err := d.Store.Submission(held, x.MessageID)
	if err != nil || sub.Dispatch.Status != x.Status || sub.Dispatch.ResolvedAt != 0 {
		return false, err
	}
	x = sub.Dispatch
	doubt := func(settle func(context.Context, *store.Lease, store.Settlement) (store.Submission, error), why string) (bool, error) {
		cb, err := stallCallback(sub.Turn, x.MessageID, agent.Kind(x.Agent), why)
		if err != nil {
			return false, err
		}
		_, err = settle(held, h.lease, store.Settlement{
			MessageID: x.MessageID, Status: store.DispatchUncertain, Code: string(fault.SubmissionUncertain), Reason: why, Callback: cb,
		})
		return err == nil, err
	}
	switch {
	case x.Status == store.DispatchAccepted:
		return doubt(d.Store.InvalidateAcceptance, "the stored proof of acceptance does not recompute")
	case !x.InputMayHaveStarted:
		if _, err := d.Store.AbortDispatch(held, h.lease, x.MessageID, string(fault.SubmissionAborted)); err != nil {
			return false, err
		}
		return true, h.lock.Clear()
	}
	if x.Status == store.DispatchTextInjected {
		if done, err := d.recoverAcceptance(held, h, sub); done || err != nil {
			return done, err
		}
	}
	return doubt(d.Store.SettleDispatch, "a program ended in the middle of the submission: the text may stand in the composer or have been sent")
}

// recoverAcceptance stores acceptance that the anchored files prove.
func (d *Desk) recoverAcceptance(ctx context.Context, h *hold, sub store.Submission) (bool, error) {
	a := d.adapter(sub.Dispatch.Agent)
	if a == nil {
		return false, nil
	}
	anchor, err := parseAnchor(sub.Dispatch.Anchor)
	if err != nil {
		return false, nil //nolint:nilerr // an anchor that cannot be read proves nothing, ever
	}
	prep, err := d.prepared(a, sub.Turn, sub.Dispatch)
	if err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	var acc agent.Acceptance
	verdict := agent.Pending
	// A match may have to stand for a while before it is decided.
	for i := 0; i < recoverLooks && verdict == agent.Pending; i++ {
		if i > 0 && sleep(pctx, recoverPause) != nil {
			break
		}
		if acc, verdict, err = a.Accept(pctx, anchor, prep); err != nil {
			return false, err
		}
	}
	if verdict != agent.Accepted && verdict != agent.Shared {
		return false, nil
	}
	_, err = d.storeAcceptance(ctx, h.lease, sub.Dispatch.MessageID, acc)
	if code := fault.CodeOf(err); code == fault.SubmissionUnfenced || code == fault.SubmissionUncertain {
		return false, nil // proof that settles nothing: uncertain
	}
	return err == nil, err
}

// ClearRecords empties the lock-file records of this Store whose submission is
// resolved and whose writer died before it could do that: until then another
// Store of this user may not type there (core §3.2, §13 row 13).
func (d *Desk) ClearRecords(ctx context.Context) error {
	records, err := terminal.Records(d.RuntimeDir)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if rec.StoreID == d.Store.ID() && rec.Kind == "transition" {
			tr, err := d.Store.Transition(ctx, rec.RefID)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			if err == nil && tr.Settled() {
				d.clearRecord(ctx, tr.TerminalKey, 0)
			}
			continue
		}
		if rec.StoreID != d.Store.ID() || rec.Kind != "dispatch" {
			continue
		}
		x, err := d.Store.Dispatch(ctx, rec.RefID)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if err == nil && x.ResolvedAt != 0 {
			d.clearRecord(ctx, x.TerminalKey, 0)
		}
	}
	return nil
}

// clearRecord empties the pane's lock-file record once its fence is gone, so
// that another Store of this user may type there. Who holds the pane for longer
// than wait does it instead, when it lets go. A program that is told to stop
// right behind the commit does it all the same.
func (d *Desk) clearRecord(ctx context.Context, key string, wait time.Duration) {
	ctx, cancel := probe(context.WithoutCancel(ctx))
	defer cancel()
	lock, err := terminal.Lock(ctx, d.RuntimeDir, key, wait)
	if err != nil {
		return
	}
	defer lock.Unlock()
	rec, torn := lock.Record()
	if torn || rec.StoreID != d.Store.ID() {
		return
	}
	if _, fenced, err := d.Store.Fence(ctx, key); err != nil || fenced {
		return
	}
	if err := lock.Clear(); err != nil {
		d.Log.Warn("clear terminal record", "err", err)
	}
}
