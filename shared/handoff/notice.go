package handoff

import (
	"context"
	"strconv"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// notifyApproval stores an approval prompt that was not seen before, and tells it:
// as a question where approve may decide it, as blocked where only the person at
// the pane can (why says so beforehand, if it is known). One that the operator's
// policy allows is decided instead. again is when to look again, where nothing
// could be done now.
func (m *Monitor) notifyApproval(ctx context.Context, r agent.Reading, call agent.Call, why string) (again time.Duration, err error) {
	d := m.desk
	x := dialog{prompt: *r.Prompt, call: call, print: printOf(*r.Prompt, call, m.at.Pane, m.at.Process)}
	request := call.ID + "#" + strconv.Itoa(m.keep.Gone)
	if why == "" {
		why = unapprovable(r)
	}
	if why == "" {
		why = d.deciding(m.at.Process)
	}
	command := call.Command
	if command == "" {
		command = r.Prompt.Command
	}
	event := callback.Event{
		ID: "msg-approval-" + digest(m.turn.ID, m.ref.MessageID, x.print, request)[:32], Type: callback.EventQuestion, RequiresResponse: true,
		Body:     sayApproval(m.adapter.Kind(), m.turn.ID, m.turn.SessionID, label(r.Prompt.Kind), command, why),
		Metadata: map[string]any{"reason": "approval_required"},
	}
	if why != "" {
		event.Type = callback.EventBlocked
		event.Metadata = map[string]any{"reason": "approval_blocked"}
	}
	cb, err := tellTurn(m.turn, store.LaneLifecycle, "approval", event)
	if err != nil {
		return 0, err
	}
	rule := ""
	if why == "" {
		rule, _ = d.Policy.Allows(candidateOf(m.adapter.Kind(), x))
	}
	row := store.NewApproval{
		Fingerprint: x.print, ScreenDigest: r.Prompt.Digest, RequestID: request, EvidenceFingerprint: digest(request, call.Command), Callback: cb,
	}
	if rule != "" {
		row.Callback = nil // told only if the policy cannot decide it after all
	}
	known, _, err := d.Store.ApprovalNotified(ctx, m.ref, row)
	if err != nil {
		return 0, err
	}
	if known.State == store.ApprovalCleared || known.State == store.ApprovalExpired && known.ClearedAt != 0 {
		// It counted as gone, undecided, and stands there: the same call asks again.
		m.keep.Call, m.keep.Gone = call.ID, m.keep.Gone+1
		return m.notifyApproval(ctx, r, call, why)
	}
	m.keep.Kind = promptApproval
	if known.State != store.ApprovalNotified || known.DeliveryID != "" || known.ClearedAt != 0 || cb == nil && rule == "" {
		return 0, m.noticed(ctx, x.print, call.ID)
	}
	if rule != "" {
		switch err := m.byPolicy(ctx, x, rule); {
		case fault.Is(err, fault.TerminalBusy):
			return askingPoll, nil // somebody acts on the pane: look again
		case err == nil, fault.Is(err, fault.SubmissionUncertain): // the latter has told its doubt
			return 0, m.noticed(ctx, x.print, call.ID)
		default:
			d.Log.Warn("approve by policy", "turn", m.turn.ID, "rule", rule, "err", err)
		}
	}
	if cb != nil {
		if err := d.Store.ApprovalTold(ctx, m.ref, known.ID, *cb); err != nil {
			return 0, err
		}
	}
	return 0, m.noticed(ctx, x.print, call.ID)
}

// noticed keeps which prompt is open in the Store.
func (m *Monitor) noticed(ctx context.Context, print, call string) (err error) {
	if m.keep.Call != call {
		m.keep.Call, m.keep.Gone = call, 0
	}
	m.keep.Prompt = print
	m.turn, err = m.desk.Store.TouchActivity(ctx, m.ref, store.Activity{At: m.desk.now().UnixMilli(), State: canonical(m.keep)})
	return err
}

// byPolicy decides a notified prompt as the operator's policy says, on the path
// that approve takes. It does not wait for the pane.
func (m *Monitor) byPolicy(ctx context.Context, x dialog, rule string) error {
	d := m.desk
	held, h, err := d.grab(ctx, m.at.Pane.Key(), m.at.TerminalID, 0)
	if err != nil {
		return err
	}
	defer h.release()
	turn, err := d.Store.Turn(held, m.turn.ID)
	if err != nil {
		return err
	}
	s := &sighting{pane: m.at.Pane, proc: m.at.Process, adapter: m.adapter}
	r := ruling{desk: d, hold: h, s: s, turn: &turn, decision: store.DecisionApprove, by: store.DecidedByPolicy, rule: rule, seen: x.shown()}
	if err := r.run(held); err != nil {
		return err
	}
	d.Log.Info("approved by policy", "turn", m.turn.ID, "rule", rule)
	return nil
}

// candidateOf is a dialog as the policy sees it: what the agent's own records say.
func candidateOf(kind agent.Kind, x dialog) Candidate {
	c := Candidate{Agent: kind, Kind: x.call.Kind, Command: x.call.Command, Cwd: x.call.Cwd}
	if x.prompt.Kind != x.call.Kind {
		c.Kind = ""
	}
	return c
}

// doubtCallback tells that a decision may or may not have reached the agent.
func doubtCallback(t store.Turn, approval, why string) (*store.NewCallback, error) {
	return tellTurn(t, store.LaneLifecycle, "approval", callback.Event{
		ID: "msg-approval-doubt-" + digest(t.ID, approval)[:32], Type: callback.EventBlocked, RequiresResponse: true,
		Body:     sayDoubt(agent.Kind(t.Agent), t.ID, t.SessionID, why),
		Metadata: map[string]any{"reason": "approval_uncertain"},
	})
}

// recoverApprovals puts in doubt what a dead program was deciding (core §12 A5,
// §13 row 10), and ends what was notified too long ago.
func (d *Desk) recoverApprovals(ctx context.Context, turnID string) (checked, changed int, err error) {
	open, err := d.Store.ReservedApprovals(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, o := range open {
		if turnID != "" && o.Turn.ID != turnID {
			continue
		}
		checked++
		done, err := d.recoverApproval(ctx, o)
		if err != nil {
			return checked, changed, err
		}
		if done {
			changed++
		}
	}
	n, err := d.Store.ExpireApprovals(ctx, string(agent.Claude), claudeLife)
	return checked, changed + n, err
}

func (d *Desk) recoverApproval(ctx context.Context, o store.OpenApproval) (bool, error) {
	held, h, err := d.grab(ctx, o.Turn.TerminalKey, o.Turn.ID, 0)
	if fault.Is(err, fault.TerminalBusy) {
		return false, nil // who decides it still lives
	}
	if err != nil {
		return false, err
	}
	defer h.release()
	const why = "a program ended in the middle of the decision: its key may have been sent"
	cb, err := doubtCallback(o.Turn, o.Approval.ID, why)
	if err != nil {
		return false, err
	}
	err = d.Store.DoubtApproval(held, h.lease, o.Approval.ID, why, cb)
	if fault.Is(err, fault.TurnStatusInvalid) {
		return false, nil // it was settled before the pane was free
	}
	return err == nil, err
}

// Superseded takes an open Turn for stalled whose Session was attached elsewhere,
// and tells its controller once: nobody can follow it any more. It is made under
// the monitor lease of the Turn's message.
func (d *Desk) Superseded(ctx context.Context, e store.Eligible, lease *store.Lease) (bool, error) {
	const why = "its session was attached elsewhere while it was open"
	cb, err := stallCallback(e.Turn, e.Dispatch.MessageID, agent.Kind(e.Turn.Agent), why)
	if err != nil {
		return false, err
	}
	_, changed, err := d.Store.StallSuperseded(ctx, lease, e.Turn.ID, store.Stall{Reason: why, Callback: cb})
	return changed, err
}
