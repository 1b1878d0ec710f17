package handoff

import (
	"context"
	"fmt"
	"slices"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds of a decision.
const (
	decideWait = 5 * time.Second       // for the dialog to leave after the key
	decidePoll = 60 * time.Millisecond // between two looks for that
	maxKeys    = 16                    // presses of one decision
)

// ApproveInput decides the one prompt that status showed, of a Turn or of a pane.
type ApproveInput struct {
	TurnID     string `json:"turn_id,omitzero"`
	TerminalID string `json:"terminal_id,omitzero"`
	Decision   string `json:"decision,omitzero"` // approve_once (""), reject
}

// ApproveResult is the body of approve (tools §8.19).
type ApproveResult struct {
	TurnID          string `json:"turn_id,omitempty"`
	TerminalID      string `json:"terminal_id,omitempty"`
	Approved        bool   `json:"approved"`
	AlreadyApproved bool   `json:"already_approved,omitempty"`
	Decision        string `json:"decision"`
	Reason          string `json:"reason,omitempty"`
	Next            Next   `json:"next"`
}

// Approve decides one approval prompt, once: exactly the prompt that status showed
// to this controller session. The offer is used up first, whatever follows. An
// option that allows more than the one call is never chosen.
func (d *Desk) Approve(ctx context.Context, _ Call, in ApproveInput) (Outcome, error) {
	if in.Decision == "" {
		in.Decision = store.DecisionApprove
	}
	switch {
	case in.Decision != store.DecisionApprove && in.Decision != store.DecisionReject:
		return Outcome{}, fault.New(fault.InvalidArguments, "approve: decision is %.40q, not approve_once or reject", in.Decision).Safe()
	case (in.TurnID == "") == (in.TerminalID == ""):
		return Outcome{}, fault.New(fault.InvalidArguments, "approve: give exactly one of turn_id and terminal_id").Safe()
	case in.TerminalID != "":
		return d.approveTerminal(ctx, in)
	}
	return d.approveTurn(ctx, in)
}

func (d *Desk) approveTurn(ctx context.Context, in ApproveInput) (Outcome, error) {
	if err := checkTurnID(in.TurnID); err != nil {
		return Outcome{}, err
	}
	seen, err := d.take(ctx, offerTurn, in.TurnID)
	if fault.Is(err, fault.OfferMissing) {
		if out, done, err := d.decided(ctx, in); done || err != nil {
			return out, err
		}
	}
	if err != nil {
		return Outcome{}, err
	}
	_, at, err := d.openTurn(ctx, in.TurnID, "decide an approval of", store.TurnWaitingForController)
	if err != nil {
		return Outcome{}, spent(err)
	}
	s, err := d.byPlace(ctx, at)
	if err != nil {
		return Outcome{}, spent(err)
	}
	held, h, err := d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return Outcome{}, spent(err)
	}
	defer h.release()
	turn, err := d.Store.Turn(held, in.TurnID) // it may have moved on while the pane was waited for
	if err != nil {
		return Outcome{}, spent(err)
	}
	if out, done, err := d.decided(held, in); done || err != nil {
		return out, err
	}
	r := ruling{desk: d, hold: h, s: s, turn: &turn, decision: in.Decision, by: store.DecidedByUser, seen: seen}
	if err := r.run(held); err != nil {
		return Outcome{}, spent(err)
	}
	return Outcome{Body: r.result(in)}, nil
}

// decided answers for a Turn whose last prompt was decided and that shows none
// since: no key is sent for it again.
func (d *Desk) decided(ctx context.Context, in ApproveInput) (Outcome, bool, error) {
	turn, err := d.Store.Turn(ctx, in.TurnID)
	if err != nil || turn.ControllerSessionID != d.Controller {
		return Outcome{}, false, err
	}
	rows, err := d.Store.Approvals(ctx, in.TurnID)
	if err != nil || len(rows) == 0 {
		return Outcome{}, false, err
	}
	last := rows[len(rows)-1]
	if last.State != store.ApprovalConsumed || last.MessageID != turn.CurrentMessageID {
		return Outcome{}, false, nil
	}
	res := ApproveResult{
		TurnID: in.TurnID, Approved: last.Decision == store.DecisionApprove, AlreadyApproved: true, Decision: last.Decision,
		Reason: "this prompt was decided before; nothing was pressed", Next: Next{"yield"},
	}
	if !routed(&turn) {
		res.Next = Next{"status"}
	}
	return Outcome{Body: res}, true, nil
}

// approveTerminal decides the prompt of a task that a human started. It changes no
// row (core §11.1).
func (d *Desk) approveTerminal(ctx context.Context, in ApproveInput) (Outcome, error) {
	id, err := terminal.ParseID(in.TerminalID)
	if err != nil {
		return Outcome{}, err
	}
	seen, err := d.take(ctx, offerTerminal, in.TerminalID)
	if err != nil {
		return Outcome{}, err
	}
	if id.Agent != string(agent.Codex) {
		return Outcome{}, fault.New(fault.CapabilityMissing, "decide an approval of %s: only a turn's approvals of %s are decided", in.TerminalID, title(agent.Kind(id.Agent))).
			WithHint("the user decides in the pane")
	}
	s, err := d.byTerminalID(ctx, in.TerminalID)
	if err != nil {
		return Outcome{}, spent(err)
	}
	held, h, err := d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return Outcome{}, spent(err)
	}
	defer h.release()
	if err := d.unowned(held, s); err != nil {
		return Outcome{}, spent(err)
	}
	r := ruling{desk: d, hold: h, s: s, decision: in.Decision, by: store.DecidedByUser, seen: seen}
	if err := r.run(held); err != nil {
		return Outcome{}, spent(err)
	}
	return Outcome{Body: r.result(in)}, nil
}

// spent marks a failure behind a used offer: the same call cannot go on, a fresh
// status must come first.
func spent(err error) error {
	f, ok := fault.As(err)
	if !ok {
		return err
	}
	f.Retry = false
	if f.Hint == "" {
		f = f.WithHint("call status again and decide about what it shows then")
	}
	return f
}

// A ruling is one decision about one dialog on its way into a pane that is held.
type ruling struct {
	desk     *Desk
	hold     *hold
	s        *sighting
	turn     *store.Turn // nil: a task without a Turn
	decision string
	by       string // user or policy
	rule     string // of the policy
	seen     shown  // what was decided about

	task   agent.Task
	dialog dialog
	row    string // approval id, once reserved
	typed  fault.Input
}

// run derives the prompt anew, insists that it is the one that was shown, and
// sends its keys. Nothing of an error that comes before the first key has typed.
func (r *ruling) run(ctx context.Context) error {
	if err := r.hold.foreign(ctx); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	keys := r.keys(r.dialog.prompt)
	if len(keys) == 0 || len(keys) > maxKeys {
		return r.changed("the dialog has no proven way to " + r.decision)
	}
	if len(keys) > 1 && r.dialog.prompt.Stable == "" {
		return r.changed("its answer needs several keys and cannot be followed")
	}
	if err := r.reserve(ctx); err != nil {
		return err
	}
	// From here on a caller that gives up must not leave the decision half done.
	ctx = context.WithoutCancel(ctx)
	err := r.press(ctx, keys)
	if err == nil && !r.left(ctx) {
		err = fmt.Errorf("the dialog is still there %v after the key", decideWait)
	}
	if err != nil {
		return r.doubt(ctx, err)
	}
	if r.row == "" {
		return nil
	}
	if _, err := r.desk.Store.ConsumeApproval(ctx, r.hold.lease, r.row); err != nil {
		return fault.New(fault.SubmissionUncertain, "decide an approval of %s: the outcome could not be stored: %w", r.s.id(), err).
			WithInput(fault.InputSent).WithHint("the decision was sent; look at status")
	}
	return nil
}

// look finds the pane again, reads its dialog twice, and compares it with what was
// decided about.
func (r *ruling) look(ctx context.Context) error {
	seen := time.Now() // the identity is as old as this, whatever the rest takes
	fresh, err := r.desk.again(ctx, r.s)
	if err != nil {
		return err
	}
	r.s = fresh
	if err := r.desk.prompted(ctx, r.s); err != nil {
		return err
	}
	if r.s.pane.InMode {
		return notIdle(r.s.id(), closedPane)
	}
	if r.turn != nil {
		x, err := r.desk.Store.Dispatch(ctx, r.turn.CurrentMessageID)
		if err != nil {
			return err
		}
		if r.task, err = r.desk.turnTask(x); err != nil {
			return err
		}
	} else if r.task, err = r.desk.terminalTask(ctx, r.s); err != nil {
		return err
	}
	found, why, err := r.desk.dialogOf(ctx, r.s, r.task)
	if err != nil {
		return err
	}
	if why != "" {
		return r.changed(why)
	}
	if found.shown() != r.seen {
		return r.changed("the dialog is not the one that was shown")
	}
	r.dialog = found
	if r.by == store.DecidedByPolicy { // what it is and what the operator allows, both as they are now
		rule, why := r.desk.Policy.Allows(candidateOf(r.s.proc.Agent, found))
		if rule != r.rule || !r.desk.Policy.current() {
			return r.changed("the policy does not allow it any more: " + why)
		}
	}
	r.hold.seen = seen
	return nil
}

func (r *ruling) changed(why string) error {
	f := fault.New(fault.OfferChanged, "decide an approval of %s: %s", r.s.id(), why)
	if r.turn != nil {
		f = f.With("turn_id", r.turn.ID)
	}
	return f
}

func (r *ruling) reserve(ctx context.Context) error {
	if r.turn == nil {
		return nil
	}
	row, err := r.desk.Store.ReserveApproval(ctx, r.hold.lease, store.Reservation{
		TurnID: r.turn.ID, MessageID: r.turn.CurrentMessageID, Fingerprint: r.dialog.print,
		Decision: r.decision, DecidedBy: r.by, RuleID: r.rule, Life: life(r.turn.Agent),
	})
	r.row = row.ID
	return err
}

// keys are what is left to press for the decision on a prompt as it stands.
func (r *ruling) keys(p agent.Prompt) []terminal.Key {
	if r.decision == store.DecisionReject {
		return p.Reject
	}
	return p.Approve
}

// press sends the keys one by one, each after a look that proves the same dialog.
// Only the last one decides; those before it move the highlight, and each is
// waited for.
func (r *ruling) press(ctx context.Context, keys []terminal.Key) error {
	for {
		if err := r.hold.still(ctx, r.s); err != nil {
			return err
		}
		now, err := r.capture(ctx)
		if err != nil {
			return err
		}
		if now.Prompt == nil || now.State != agent.Approval || now.Prompt.Digest != r.dialog.prompt.Digest {
			return fmt.Errorf("the dialog changed before the key (screen: %s)", now.Name)
		}
		err = r.desk.Tmux.Press(ctx, r.s.pane, keys[0])
		if err != nil {
			if f, ok := fault.As(err); !ok || f.Input != fault.InputNone && f.Input != "" {
				r.typed = fault.InputPossible
			}
			return err
		}
		r.typed = fault.InputSent
		if len(keys) == 1 {
			crashpoint.At("approval_key_sent")
			return nil
		}
		if keys, err = r.moved(ctx, len(keys)); err != nil {
			return err
		}
	}
}

// moved waits until the highlight is one step nearer, in the same dialog, on two
// equal looks.
func (r *ruling) moved(ctx context.Context, before int) ([]terminal.Key, error) {
	deadline := time.Now().Add(settleTimeout)
	for {
		if err := r.desk.prompted(ctx, r.s); err != nil {
			return nil, err
		}
		p := r.s.reading.Prompt
		if r.s.reading.State != agent.Approval || p == nil || !sameDialog(*p, r.dialog.prompt) {
			return nil, fmt.Errorf("the dialog changed while its highlight was moved (screen: %s)", r.s.reading.Name)
		}
		switch keys := r.keys(*p); {
		case len(keys) == before-1 && len(keys) > 0:
			r.dialog.prompt = *p
			return keys, nil
		case len(keys) != before:
			return nil, fmt.Errorf("the highlight did not move as it should")
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the highlight did not move within %v", settleTimeout)
		}
	}
}

// sameDialog reports whether two prompts differ at most in the highlight.
func sameDialog(a, b agent.Prompt) bool {
	return a.Kind == b.Kind && a.Command == b.Command && a.Reason == b.Reason && slices.Equal(a.Options, b.Options) &&
		!a.Cut && (a.Digest == b.Digest || a.Stable != "" && a.Stable == b.Stable)
}

// left waits for evidence that the dialog is over: its call has an answer, its
// task an end, or two looks in a row show something else.
func (r *ruling) left(ctx context.Context) bool {
	wake, cancel := r.desk.subscribe(r.s.adapter.Files(r.task))
	defer cancel()
	deadline := time.Now().Add(decideWait)
	var elsewhere time.Time // since when looks show something else
	for time.Now().Before(deadline) {
		pctx, done := probe(ctx)
		p, err := r.s.adapter.Progress(pctx, r.task, agent.Position{})
		done()
		if err == nil && p.State != agent.Broken &&
			(p.State != agent.Open || !slices.ContainsFunc(waiting(p), func(c agent.Call) bool { return c.ID == r.dialog.call.ID })) {
			return true
		}
		now, err := r.capture(ctx)
		gone := err == nil && now.State != agent.Unknown && now.State != agent.NotReady && now.State != agent.Exited &&
			(now.State != agent.Approval || now.Prompt != nil && !sameDialog(*now.Prompt, r.dialog.prompt))
		switch {
		case !gone:
			elsewhere = time.Time{}
		case elsewhere.IsZero():
			elsewhere = time.Now()
		case time.Since(elsewhere) >= decidePoll:
			return true
		}
		select {
		case <-wake:
		case <-time.After(decidePoll):
		}
	}
	return false
}

func (r *ruling) capture(ctx context.Context) (agent.Reading, error) {
	_, reading, err := r.desk.glimpse(ctx, r.s)
	return reading, err
}

// doubt ends a decision whose outcome is not proven: it is never sent again.
func (r *ruling) doubt(ctx context.Context, cause error) error {
	why := fault.CleanLine(cause.Error())
	input := r.typed
	if input == "" {
		input = fault.InputNone
	}
	f := fault.New(fault.SubmissionUncertain, "decide an approval of %s: %w", r.s.id(), cause).WithInput(input).
		WithHint("look at status; the user decides this prompt in the pane")
	if r.turn == nil {
		return f
	}
	f = f.With("turn_id", r.turn.ID)
	var cb *store.NewCallback
	if r.by == store.DecidedByPolicy { // nobody else hears of it
		var err error
		if cb, err = doubtCallback(*r.turn, r.row, why); err != nil {
			r.desk.Log.Warn("tell of an approval in doubt", "turn", r.turn.ID, "err", err)
		}
	}
	if err := r.desk.Store.DoubtApproval(ctx, r.hold.lease, r.row, why, cb); err != nil {
		r.desk.Log.Warn("store an approval in doubt; recovery does it", "turn", r.turn.ID, "err", err)
	}
	return f
}

func (r *ruling) result(in ApproveInput) ApproveResult {
	res := ApproveResult{
		TurnID: in.TurnID, TerminalID: in.TerminalID, Decision: r.decision,
		Approved: r.decision == store.DecisionApprove, Next: Next{"yield"},
	}
	switch {
	case !res.Approved && routed(r.turn):
		res.Reason = "the call was refused; the agent ends its turn, which a callback tells"
	case !res.Approved:
		res.Reason = "the call was refused; the agent ends its turn"
	}
	if !routed(r.turn) {
		res.Next = Next{"status"}
	}
	return res
}

// routed reports whether a callback tells what becomes of a task.
func routed(t *store.Turn) bool { return t != nil && t.Route != nil }

// prompted reads the pane's screen until two looks, settleGap apart, show the same
// dialog, or both none. What else the screen shows may change meanwhile.
func (d *Desk) prompted(ctx context.Context, s *sighting) error {
	deadline := time.Now().Add(settleTimeout)
	var last *agent.Reading
	for {
		pctx, cancel := probe(ctx)
		screen, err := d.Tmux.CaptureOne(pctx, s.pane)
		cancel()
		if err != nil {
			return err
		}
		s.read(&screen)
		if last != nil && region(*last) == region(s.reading) && last.State == s.reading.State {
			return nil
		}
		if time.Now().After(deadline) {
			return notIdle(s.id(), "its screen does not come to rest")
		}
		now := s.reading
		last = &now
		if err := sleep(ctx, settleGap); err != nil {
			return err
		}
	}
}

func region(r agent.Reading) string {
	if r.Prompt == nil {
		return ""
	}
	return r.Prompt.Digest
}
