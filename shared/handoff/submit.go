package handoff

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// A submission is one text on its way into one pane that is held. Its steps
// are those of core §5.2, each committed before the next effect.
type submission struct {
	desk *Desk
	hold *hold
	s    *sighting
	prep agent.Prepared
	id   string // message id
	row  store.NewDispatch

	shown    *agent.Card // what the pane was asked for, and must still show; nil: nobody asked
	anchor   agent.Anchor
	standing bool // the exact draft already stands in the composer: Enter alone
}

// run does the whole submission and answers as send does.
func (x *submission) run(ctx context.Context) (Outcome, error) {
	d := x.desk
	if x.s.proc.Mode == agent.Daemon {
		// Two panes of one home that get the same text at once could not be told
		// apart; they wait for each other until this one is decided.
		home := strconv.FormatUint(x.s.proc.HomeID.Dev, 10) + ":" + strconv.FormatUint(x.s.proc.HomeID.Ino, 10)
		lease, err := d.Store.Await(ctx, store.AcceptLease(home, x.prep.RequestHash), acceptLeaseTTL, terminalWait)
		if fault.Is(err, fault.LeaseHeld) {
			err = fault.New(fault.TerminalBusy, "send to %s: the same text is on its way to another pane of this agent", x.s.id()).Safe()
		}
		if err != nil {
			return Outcome{}, err
		}
		held, stop := d.Leases.Keep(ctx, lease)
		ctx = held
		defer func() {
			stop()
			rctx, cancel := context.WithTimeout(context.Background(), probeTime)
			defer cancel()
			if err := d.Store.Release(rctx, lease); err != nil {
				d.Log.Warn("release acceptance lease", "err", err)
			}
		}()
	}

	var err error
	pctx, cancel := probe(ctx)
	x.anchor, err = x.s.adapter.Anchor(pctx, x.s.proc)
	cancel()
	if err != nil {
		return Outcome{}, fault.New(fault.ObservationUnavail, "send to %s: %w", x.s.id(), err).Safe()
	}
	if err := x.attach(ctx); err != nil {
		return Outcome{}, err
	}
	sub, err := d.Store.PrepareDispatch(ctx, x.hold.lease, x.row)
	if err != nil {
		return Outcome{}, err
	}
	if sub.Replayed {
		return d.sendResult(sub, true, ""), nil
	}
	if err := x.ready(ctx); err != nil {
		return x.abort(err)
	}
	if err := d.Store.MarkInput(ctx, x.hold.lease, x.id); err != nil {
		return x.abort(err)
	}

	// From here on something may have been typed. A caller that gives up must
	// not leave the submission half done.
	ctx = context.WithoutCancel(ctx)
	if err := x.hold.still(ctx, x.s); err != nil { // the mark may have waited for the Store
		return x.uncertain(ctx, err)
	}
	if err := x.inject(ctx); err != nil {
		return x.uncertain(ctx, err)
	}
	if err := d.Store.TextInjected(ctx, x.hold.lease, x.id); err != nil {
		return x.uncertain(ctx, err)
	}
	if err := x.enter(ctx); err != nil {
		return x.uncertain(ctx, err)
	}
	if err := d.Store.EnterDispatched(ctx, x.hold.lease, x.id); err != nil {
		return x.uncertain(ctx, err)
	}
	return x.accept(ctx)
}

// attach completes the row with what the anchor proved.
func (x *submission) attach(ctx context.Context) error {
	d, at := x.desk, &x.row.Attach
	x.row.Anchor = canonical(x.anchor)
	if x.row.TurnID != "" {
		at.Binding = bindingOf(x.s)
		return nil
	}
	at.NativeThreadID = x.anchor.ThreadID
	if at.SessionID != "" {
		if err := d.strict(ctx, at.SessionID, x.s, x.anchor.ThreadID); err != nil {
			return err
		}
	}
	var err error
	at.DeadBindings, err = d.dead(ctx, x.s, x.anchor.ThreadID)
	return err
}

// ready is the last look before the mark: lock-file record, identity, and a
// composer in which nobody began to type meanwhile.
func (x *submission) ready(ctx context.Context) error {
	if err := x.hold.record("dispatch", x.id, store.DispatchPrepared); err != nil {
		return fault.New(fault.InputNotStarted, "send to %s: %w", x.s.id(), err)
	}
	crashpoint.At("terminal_recorded")
	if x.shown != nil { // another pane with the same text may have been waited for
		if _, err := x.desk.boundary(ctx, x.hold, x.s, *x.shown); err != nil {
			return err
		}
	}
	if err := x.hold.prove(ctx, x.s); err != nil {
		return err
	}
	reading, err := x.look(ctx)
	if err != nil {
		return err
	}
	x.s.reading = reading
	if x.standing {
		if !x.s.adapter.Landed(reading.Composer, x.prep) {
			return fault.New(fault.TerminalChanged, "send to %s: the draft changed", x.s.id())
		}
		return x.s.unblocked()
	}
	return x.s.promptable()
}

// look reads the pane's screen once.
func (x *submission) look(ctx context.Context) (agent.Reading, error) {
	_, reading, err := x.desk.glimpse(ctx, x.s)
	return reading, err
}

// inject pastes the text and waits until the composer shows exactly it, twice,
// settleGap apart.
func (x *submission) inject(ctx context.Context) error {
	if !x.standing {
		if err := x.desk.Tmux.Paste(ctx, x.s.pane, x.prep.Typed, pasting(x.prep)...); err != nil {
			return err
		}
	}
	crashpoint.At("text_pasted")
	deadline := time.Now().Add(landWait)
	var since time.Time
	for {
		reading, err := x.look(ctx)
		if err != nil {
			return err
		}
		now := time.Now()
		switch landed := reading.State == agent.Idle && x.s.adapter.Landed(reading.Composer, x.prep); {
		case !landed:
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= settleGap:
			return nil
		}
		if now.After(deadline) {
			return fmt.Errorf("the composer did not show exactly the text within %v (screen: %s)", landWait, reading.Name)
		}
		if err := sleep(ctx, draftPoll); err != nil {
			return err
		}
	}
}

// pasting gives the options with which a prepared text is pasted.
func pasting(p agent.Prepared) []terminal.PasteOption {
	if p.LineFeeds {
		return []terminal.PasteOption{terminal.LineFeeds}
	}
	return nil
}

// enter presses Enter once, if pane, process and draft are still the same.
func (x *submission) enter(ctx context.Context) error {
	if err := x.hold.prove(ctx, x.s); err != nil {
		return err
	}
	reading, err := x.look(ctx)
	if err != nil {
		return err
	}
	if reading.State != agent.Idle || !x.s.adapter.Landed(reading.Composer, x.prep) {
		return fmt.Errorf("the composer changed before Enter (screen: %s)", reading.Name)
	}
	if err := x.desk.Tmux.Press(ctx, x.s.pane, terminal.Enter); err != nil {
		return err
	}
	crashpoint.At("enter_pressed")
	return nil
}

// accept waits for the proof that the agent took the request.
func (x *submission) accept(ctx context.Context) (Outcome, error) {
	d := x.desk
	wake, cancel := d.subscribe(x.anchor.Dirs)
	defer cancel()
	entered, stood := time.Now(), time.Time{} // when the draft was last seen too late
	taken, failing := false, ""
	for {
		pctx, done := probe(ctx)
		acc, verdict, err := x.s.adapter.Accept(pctx, x.anchor, x.prep)
		done()
		taken = taken || matched(acc)
		switch {
		case err != nil:
			if err.Error() != failing { // one line for one trouble
				failing = err.Error()
				d.Log.Warn("search for acceptance", "message", x.id, "err", err)
			}
		case verdict == agent.Accepted || verdict == agent.Shared:
			sub, err := d.storeAcceptance(ctx, x.hold.lease, x.id, acc)
			if code := fault.CodeOf(err); code == fault.SubmissionUnfenced || code == fault.SubmissionUncertain {
				return x.settle(ctx, store.DispatchUncertain, code, fault.CleanLine(err.Error()))
			}
			if err != nil {
				return x.pending(ctx, err)
			}
			return d.sendResult(sub, false, ""), nil
		case verdict == agent.Uncertain:
			return x.settle(ctx, store.DispatchUncertain, fault.SubmissionUncertain,
				"several records match the request, or the agent's files were replaced")
		}
		pause := acceptPoll
		if waited := time.Since(entered); waited >= acceptWait {
			// The exact draft still there, and no record in files that could be read: Enter
			// was not taken, unless the agent only has not come to it yet. Anything else
			// stays open and the monitor goes on looking.
			pause = standsPoll
			switch stands := !taken && failing == "" && x.landed(ctx); {
			case stands && waited >= standsWait:
				return x.settle(ctx, store.DispatchNotAccepted, fault.SubmissionNotAccept,
					"the draft still stands in the composer: Enter was not taken")
			case stands:
				stood = time.Now()
			case time.Since(stood) >= lateWait:
				return x.pending(ctx, nil)
			}
		}
		select {
		case <-wake:
		case <-time.After(pause):
		}
	}
}

// landed reports whether the composer shows exactly the request.
func (x *submission) landed(ctx context.Context) bool {
	reading, err := x.look(ctx)
	return err == nil && reading.State == agent.Idle && x.s.adapter.Landed(reading.Composer, x.prep)
}

// matched reports whether a search that is still undecided has met a record with
// exactly this request: nothing proves then that the agent did not take it.
func matched(acc agent.Acceptance) bool { return acc.AcceptanceID != "" }

// storeAcceptance commits the proof. submission_unfenced says that the accepted
// thread belongs to another live Session, submission_uncertain that the
// evidence does not recompute; neither changes anything.
func (d *Desk) storeAcceptance(ctx context.Context, lease *store.Lease, id string, acc agent.Acceptance) (store.Submission, error) {
	return d.Store.AcceptDispatch(ctx, lease, store.Acceptance{
		MessageID:      id,
		NativeThreadID: acc.NativeThreadID,
		Evidence:       canonical(acc),
		Check:          checkAcceptance,
	})
}

// checkAcceptance recomputes stored evidence against its dispatch (core §5.2).
func checkAcceptance(x store.Dispatch, evidence []byte) error {
	acc, err := agent.ParseAcceptance(evidence)
	if err != nil {
		return err
	}
	if acc.RequestHash != x.RequestHash {
		return fmt.Errorf("acceptance of another request")
	}
	if x.NativeThreadID != "" && acc.NativeThreadID != x.NativeThreadID {
		return fmt.Errorf("acceptance in another thread")
	}
	if acc.AnchorFingerprint != agent.FingerprintJSON(x.Anchor) {
		return fmt.Errorf("acceptance of another anchor")
	}
	return nil
}

// abort ends an attempt in which nothing was typed.
func (x *submission) abort(cause error) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	f, ok := fault.As(cause)
	if !ok {
		f = fault.New(fault.InputNotStarted, "send to %s: %w", x.s.id(), cause)
	}
	sub, err := x.desk.Store.AbortDispatch(ctx, x.hold.lease, x.id, string(f.Code))
	if err != nil {
		x.desk.Log.Warn("abort submission", "message", x.id, "err", err)
		f.Retry = false
		return Outcome{}, f.WithHint("look at status before anything else: the attempt's record could not be removed")
	}
	if err := x.hold.lock.Clear(); err != nil {
		x.desk.Log.Warn("clear terminal record", "err", err)
	}
	f.Retry = sub.Dispatch.SafeToRetry
	return Outcome{}, f
}

// uncertain ends an attempt after the mark: it is never repeated.
func (x *submission) uncertain(ctx context.Context, cause error) (Outcome, error) {
	return x.settle(ctx, store.DispatchUncertain, fault.SubmissionUncertain, fault.CleanLine(cause.Error()))
}

func (x *submission) settle(ctx context.Context, status string, code fault.Code, why string) (Outcome, error) {
	sub, err := x.desk.Store.SettleDispatch(ctx, x.hold.lease, store.Settlement{
		MessageID: x.id, Status: status, Code: string(code), Reason: why,
	})
	if err != nil {
		return x.pending(ctx, err)
	}
	return x.desk.sendResult(sub, false, why), nil
}

// pending answers with whatever the Store proves; monitor and recovery go on.
func (x *submission) pending(ctx context.Context, cause error) (Outcome, error) {
	if cause != nil {
		x.desk.Log.Warn("submission left to the monitor", "message", x.id, "err", cause)
	}
	sub, err := x.desk.Store.Submission(ctx, x.id)
	if err != nil {
		return Outcome{}, fault.New(fault.SubmissionUncertain, "send to %s: the outcome could not be stored: %w", x.s.id(), err).
			WithInput(fault.InputPossible).WithHint("look at status; do not send again")
	}
	return x.desk.sendResult(sub, false, ""), nil
}

// subscribe gives a channel that wakes on file changes; it never fires without
// a Watcher.
func (d *Desk) subscribe(dirs []string) (<-chan struct{}, func()) {
	if d.Files == nil || len(dirs) == 0 {
		return nil, func() {}
	}
	sub := d.Files.Subscribe(dirs)
	return sub.C(), sub.Close
}

func sleep(ctx context.Context, for_ time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(for_):
		return nil
	}
}
