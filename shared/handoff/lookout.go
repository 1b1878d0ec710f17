package handoff

import (
	"context"
	"encoding/json"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// A Lookout observes one Terminal Watch to its end. It belongs to one
// goroutine, and never types.
type Lookout struct {
	desk    *Desk
	watch   store.Watch
	lease   *store.Lease
	anchor  watchAnchor
	adapter agent.Adapter
	check   watchCheckpoint
	screen  string // digest of the last screen
	judged  bool   // that screen was read to its end
	idle    int    // consecutive idle screens (activity mode)
	asked   string // prompt digest that was told last

	asking string // page of a questionnaire that is open in the Store
	left   int    // consecutive screens without it
	loaded bool   // asking was read from the Store
}

// conflictPause is before an observation that met another writer is made again.
const conflictPause = time.Second

func parseWatchAnchor(b []byte) (watchAnchor, error) {
	var a watchAnchor
	if err := json.Unmarshal(b, &a); err != nil || a.Version != 1 {
		return watchAnchor{}, fault.New(fault.IdentityUnverified, "stored watch anchor is unreadable")
	}
	return a, nil
}

// NewLookout prepares to observe an active Watch under watchd's lease.
func (d *Desk) NewLookout(w store.Watch, lease *store.Lease) (*Lookout, error) {
	a, err := parseWatchAnchor(w.Anchor)
	if err != nil {
		return nil, err
	}
	l := &Lookout{desk: d, watch: w, lease: lease, anchor: a, adapter: d.adapter(w.Agent)}
	if l.adapter == nil {
		return nil, fault.New(fault.CapabilityMissing, "watch %s: no adapter for agent %q", w.ID, w.Agent)
	}
	if err := json.Unmarshal(w.Checkpoint, &l.check); err != nil || l.check.Version != 1 {
		l.check = watchCheckpoint{Version: 1}
	}
	return l, nil
}

// Pane is the watched pane; its screen may be handed to Observe.
func (l *Lookout) Pane() terminal.Pane { return l.anchor.Place.Pane }

// Paths are the files whose changes concern the Watch.
func (l *Lookout) Paths() []string {
	if l.anchor.Task == nil {
		return nil
	}
	return l.adapter.Files(*l.anchor.Task)
}

// Observe looks once. A durable completion wins over a changed or vanished
// pane; the deadline is checked before and, by the Store, after. screen is nil
// between polls; gone says that the poll looked and the pane was not there.
func (l *Lookout) Observe(ctx context.Context, screen *terminal.Screen, gone bool) (Observed, error) {
	if screen != nil && l.unmoved(ctx, *screen) {
		return Observed{}, nil
	}
	w, err := l.desk.Store.Watch(ctx, l.watch.ID)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && w.Status != store.WatchActive:
		return Observed{Done: true}, nil
	case err != nil:
		return Observed{}, err
	}
	l.watch = w
	o, err := l.observe(ctx, screen, gone)
	if fault.Is(err, fault.Expired) { // while it was observed
		o, err = l.timeout(ctx)
	}
	switch fault.CodeOf(err) {
	case fault.LeaseLost, fault.NotFound:
		return Observed{Done: true}, nil
	case fault.WatchConflict: // written meanwhile
		return Observed{Again: conflictPause}, nil
	}
	return o, err
}

// unmoved reports whether a poll met exactly what the last observation did, so
// that there is nothing to decide and the row need not be read: the same screen of
// the same living process, a transcript that did not change, and time left. Most
// polls of most Watches are that.
func (l *Lookout) unmoved(ctx context.Context, screen terminal.Screen) bool {
	at := l.anchor.Place
	if l.anchor.Task == nil || !l.judged || screen.Pane.Dead || screen.Pane.PID != at.Pane.PID || hash(screen.Text) != l.screen ||
		l.desk.now().UnixMilli() >= l.watch.DeadlineAt {
		return false
	}
	p, err := l.read(ctx) // looks whether the holder of the thread lives
	if at.Process.Daemon != nil {
		if dead, known := at.Process.Inc.Gone(); dead || !known {
			return false
		}
	}
	return err == nil && p.State == agent.Open && p.Digest == l.check.Digest
}

func (l *Lookout) observe(ctx context.Context, screen *terminal.Screen, gone bool) (Observed, error) {
	if l.desk.now().UnixMilli() >= l.watch.DeadlineAt {
		return l.timeout(ctx)
	}
	var p agent.Progress
	if l.anchor.Task != nil {
		var err error
		if p, err = l.read(ctx); err != nil {
			return Observed{}, err
		}
		switch p.State {
		case agent.Completed, agent.Failed, agent.Aborted:
			return l.finish(ctx, p)
		case agent.Broken, agent.NextBegan:
			return l.invalidate(ctx, reasonAnchor, "the watched task has no end on record: its transcript changed or the next task began.")
		case agent.Lost:
			return l.invalidate(ctx, reasonProcess, "the agent ended without completing the task.")
		}
	}
	if reason, what := l.present(ctx, screen, gone); reason != "" {
		if l.anchor.Task != nil { // once more: a durable completion wins
			if p, err := l.read(ctx); err == nil && (p.State == agent.Completed || p.State == agent.Failed || p.State == agent.Aborted) {
				return l.finish(ctx, p)
			}
		}
		return l.invalidate(ctx, reason, what)
	}
	if screen != nil {
		ended, err := l.judge(ctx, *screen, p)
		switch {
		case err != nil:
			return Observed{}, err
		case ended:
			return l.settle(ctx, store.WatchCompleted, callback.EventCompleted, digest(l.watch.ID, "idle", hash(screen.Text)), reasonActivity,
				"the pane became idle; what the agent answered stands there.", agent.Progress{})
		}
	}
	return Observed{}, l.checkpoint(ctx, p, screen)
}

func (l *Lookout) read(ctx context.Context) (agent.Progress, error) {
	pctx, cancel := probe(ctx)
	defer cancel()
	return l.adapter.Progress(pctx, *l.anchor.Task, l.check.Position)
}

// present says why the watched pane or process is not there any more. What the
// poll's own capture says of the pane is enough; only a pane that the poll did
// not meet is looked at again.
func (l *Lookout) present(ctx context.Context, screen *terminal.Screen, gone bool) (reason, what string) {
	at := l.anchor.Place
	if dead, known := at.Process.Inc.Gone(); dead && known {
		return reasonProcess, "the agent process ended."
	}
	ctx, cancel := probe(ctx)
	defer cancel()
	switch {
	case screen != nil && screen.Pane.Dead:
		return reasonProcess, "the pane's program has ended."
	case screen != nil && screen.Pane.PID != at.Pane.PID:
		return reasonIdentity, "the pane no longer holds the watched process."
	case screen != nil && hash(screen.Text) != l.screen: // another agent would have drawn something
		if proc, err := l.adapter.Find(ctx, at.Pane); err == nil && proc.Inc != at.Process.Inc {
			return reasonIdentity, "another agent process runs in the pane."
		}
	case gone:
		switch _, err := l.desk.byPlace(ctx, at); fault.CodeOf(err) {
		case fault.TerminalChanged:
			return reasonIdentity, "the pane no longer holds the watched process."
		case fault.TerminalNotFound:
			return reasonProcess, "the pane is gone."
		}
	}
	return "", ""
}

// judge reads a screen that was not read yet: an approval is told once. In
// activity mode it reports whether the watched work has ended: after work, two
// idle screens in a row that are the same whole screen. A streaming answer looks
// idle, too, but does not stand still.
func (l *Lookout) judge(ctx context.Context, screen terminal.Screen, p agent.Progress) (ended bool, err error) {
	same := hash(screen.Text) == l.screen
	if same && l.judged && l.anchor.Task != nil {
		return false, nil
	}
	l.judged = true
	r := l.adapter.Read(l.anchor.Place.Process.Version, screen)
	if r.State != agent.Idle {
		l.idle = 0
	}
	if l.anchor.Task != nil {
		if err := l.question(ctx, r, p); err != nil {
			l.judged = false
			return false, err
		}
	}
	switch r.State {
	case agent.Approval:
		if r.Prompt == nil || r.Prompt.Digest == l.asked {
			return false, nil
		}
		pctx, cancel := probe(ctx)
		defer cancel()
		settled, err := l.desk.Tmux.Settled(pctx, l.Pane(), settleGap, probeTime)
		if err == nil {
			r = l.adapter.Read(l.anchor.Place.Process.Version, settled)
		}
		if err != nil || r.State != agent.Approval || r.Prompt == nil {
			l.judged = false // the next poll looks again
			return false, nil
		}
		err = l.tellApproval(ctx, r)
		l.judged = err == nil
		return false, err
	case agent.Working:
		l.check.Busy = true
	case agent.Idle:
		if l.anchor.Task != nil || !l.check.Busy {
			return false, nil
		}
		l.idle++
		return l.idle >= 2 && same, nil
	}
	return false, nil
}

func (l *Lookout) tellApproval(ctx context.Context, r agent.Reading) error {
	at := l.anchor.Place
	note, err := watchApproval(l.watch, r, &sighting{pane: at.Pane, proc: at.Process, adapter: l.adapter})
	if err != nil {
		return err
	}
	l.check.Busy = true
	w, _, err := l.desk.Store.NotifyWatchApproval(ctx, l.fence(), store.Observation{
		Checkpoint: canonical(l.check), Offset: l.check.Position.Offset, ActivityAt: l.desk.now().UnixMilli(),
	}, note)
	if err == nil {
		l.watch, l.asked = w, r.Prompt.Digest
	}
	return err
}

// checkpoint stores how far the Watch was read, when something moved.
func (l *Lookout) checkpoint(ctx context.Context, p agent.Progress, screen *terminal.Screen) error {
	moved := l.anchor.Task != nil && p.Digest != l.check.Digest
	if screen != nil {
		if now := hash(screen.Text); now != l.screen {
			moved = moved || (l.anchor.Task == nil && l.screen != "")
			l.screen = now
		}
	}
	if !moved {
		return nil
	}
	if l.anchor.Task != nil {
		l.check.Position, l.check.Digest = p.Checkpoint, p.Digest
	}
	w, err := l.desk.Store.ObserveWatch(ctx, l.fence(), store.Observation{
		Checkpoint: canonical(l.check), Offset: l.check.Position.Offset, ActivityAt: l.desk.now().UnixMilli(),
	})
	if err == nil {
		l.watch = w
	}
	return err
}

func (l *Lookout) fence() store.WatchFence {
	return store.WatchFence{
		WatchID: l.watch.ID, Revision: l.watch.Revision, Lease: l.lease,
		IdentityFingerprint: l.watch.IdentityFingerprint, AnchorFingerprint: l.watch.AnchorFingerprint,
		ObservedAt: l.desk.now().UnixMilli(),
	}
}

// finish settles on a durable end that two readings agree on.
func (l *Lookout) finish(ctx context.Context, first agent.Progress) (Observed, error) {
	if err := sleep(ctx, secondReading); err != nil {
		return Observed{}, err
	}
	p, err := l.read(ctx)
	if err != nil {
		return Observed{}, err
	}
	if p.State != first.State || p.Fingerprint != first.Fingerprint {
		return Observed{Again: askingPoll}, nil
	}
	switch p.State {
	case agent.Completed:
		return l.settle(ctx, store.WatchCompleted, callback.EventCompleted, p.Fingerprint, reasonDone, "the task is done.", p)
	case agent.Failed:
		p.Text = p.Error
		return l.settle(ctx, store.WatchFailed, callback.EventFailed, p.Fingerprint, reasonFailed, "the task failed.", p)
	}
	p.Text = ""
	return l.settle(ctx, store.WatchFailed, callback.EventFailed, p.Fingerprint, reasonFailed, "the task was interrupted in its pane.", p)
}

func (l *Lookout) timeout(ctx context.Context) (Observed, error) {
	evidence := callback.TimeoutEvidence(l.watch.ID, l.watch.DeadlineAt, l.watch.AnchorFingerprint)
	return l.settle(ctx, store.WatchTimedOut, callback.EventTimedOut, evidence, reasonDeadline, "its deadline passed; the task may still run.", agent.Progress{})
}

func (l *Lookout) invalidate(ctx context.Context, reason, what string) (Observed, error) {
	return l.settle(ctx, store.WatchInvalidated, callback.EventInvalidated, digest(l.watch.ID, reason), reason, what, agent.Progress{})
}

func (l *Lookout) settle(ctx context.Context, status, event, evidence, reason, what string, p agent.Progress) (Observed, error) {
	text := clip(p.Text, maxText)
	note, err := tellWatch(l.watch, status, event, evidence, reason, sayWatch(agent.Kind(l.watch.Agent), l.watch.ID, l.watch.TerminalID, what, text))
	if err != nil {
		return Observed{}, err
	}
	end := store.WatchSettlement{
		Status: status, Notification: note,
		Observation: store.Observation{Offset: l.check.Position.Offset},
	}
	if status == store.WatchCompleted || status == store.WatchFailed {
		end.CompletionText, end.CompletionID = text, p.ID
		if !p.At.IsZero() {
			end.CompletionAt = p.At.UnixMilli()
		}
	}
	_, err = l.desk.Store.SettleWatch(ctx, l.fence(), end)
	return Observed{Done: err == nil}, err
}
