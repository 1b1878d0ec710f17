package handoff

import (
	"context"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

const (
	terminalWait = 30 * time.Second // for a pane (core §14)
	proofAge     = 2 * time.Second  // of an identity before a key (core §3.2)
	recordWait   = time.Second      // for a pane whose record is to be emptied: longer than a release takes
)

// closedPane says why keys would not reach the agent, or not it alone.
const closedPane = "the pane is in copy mode, closed to input, or synchronized with others"

// A hold is the exclusive right to act on one pane: the kernel's lock on the
// pane's file, which a stopped process keeps and a dead one loses, and the
// lease in the Store, which fences every write. Both are taken, in this order,
// before a pane is looked at for typing (core §3.2, §3.3).
type hold struct {
	desk  *Desk
	key   string // terminal_key
	name  string // terminal id, for people
	lock  *terminal.Locked
	lease *store.Lease // nil where nothing is written: the kernel's lock alone keeps all others out
	stop  func()       // ends the renewals
	seen  time.Time    // when prove looked last
}

// grab waits for the pane of key; name is for people. The caller must release.
// The context that it gives ends when the lease is lost.
func (d *Desk) grab(ctx context.Context, key, name string, wait time.Duration) (context.Context, *hold, error) {
	lock, err := terminal.Lock(ctx, d.RuntimeDir, key, wait)
	if err != nil {
		return nil, nil, err
	}
	lease, err := d.Store.Await(ctx, store.TerminalLease(key), store.TerminalTTL, wait)
	if err != nil {
		lock.Unlock()
		if fault.Is(err, fault.LeaseHeld) {
			err = fault.New(fault.TerminalBusy, "act on %s: another process holds its lease", name).
				WithHint("wait for that call to end and try again").Safe()
		}
		return nil, nil, err
	}
	held, stop := d.Leases.Keep(ctx, lease)
	return held, &hold{desk: d, key: key, name: name, lock: lock, lease: lease, stop: stop}, nil
}

// grabQuietly takes the kernel's lock alone, for an errand that leaves no trace
// in the Store. A holder of the lease holds the lock, too, so this excludes it.
func (d *Desk) grabQuietly(ctx context.Context, key, name string, wait time.Duration) (*hold, error) {
	lock, err := terminal.Lock(ctx, d.RuntimeDir, key, wait)
	if err != nil {
		return nil, err
	}
	return &hold{desk: d, key: key, name: name, lock: lock}, nil
}

// live reports whether keys may still be pressed under the hold.
func (h *hold) live() bool { return h.lease == nil || h.lease.Live() }

// release frees lease and lock, and then empties the record of a submission that
// was resolved under it: its monitor found the lock taken. It does not obey the
// call's context: a cancelled call must not keep the pane.
func (h *hold) release() {
	if h.lease == nil {
		h.lock.Unlock()
		return
	}
	h.stop()
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	if err := h.desk.Store.Release(ctx, h.lease); err != nil {
		h.desk.Log.Warn("release terminal lease", "err", err)
	}
	h.lock.Unlock()
	h.desk.clearRecord(ctx, h.key, 0)
}

// prove is called directly before every keystroke: the lease lives, the pane is
// the same, and the same agent process is still in its foreground.
func (h *hold) prove(ctx context.Context, s *sighting) error {
	if !h.live() {
		return fault.New(fault.TerminalBusy, "act on %s: the terminal lease ran out", h.name)
	}
	seen := time.Now()
	fresh, err := h.desk.again(ctx, s)
	if err != nil {
		return err
	}
	if fresh.pane.InMode {
		return notIdle(h.name, closedPane)
	}
	h.seen = seen
	return nil
}

// still is prove, unless its last proof is young enough.
func (h *hold) still(ctx context.Context, s *sighting) error {
	if h.live() && time.Since(h.seen) < proofAge {
		return nil
	}
	return h.prove(ctx, s)
}

// again looks at a sighting's pane anew and insists on the same agent process.
func (d *Desk) again(ctx context.Context, s *sighting) (*sighting, error) {
	return d.byPlace(ctx, placeOf(s))
}

// record is what the lock file says while a submission into the pane is
// unresolved, for other Stores of this user (core §3.2).
func (h *hold) record(kind, ref, status string) error {
	return h.lock.Write(terminal.Record{StoreID: h.desk.Store.ID(), Kind: kind, RefID: ref, Status: status})
}

// foreign refuses a pane that another Store has not finished with, and empties
// what a resolved row of our own left.
func (h *hold) foreign(ctx context.Context) error {
	rec, torn := h.lock.Record()
	_, fenced, err := h.desk.Store.Fence(ctx, h.key)
	switch {
	case err != nil:
		return err
	case rec == (terminal.Record{}) && !torn:
		return nil
	case torn && !fenced, !torn && rec.StoreID != h.desk.Store.ID():
		return fault.New(fault.OwnerUnavailable, "act on %s: a submission of another Store into this pane is not resolved", h.name).
			WithHint("close that turn with the bridge of the other Store; where that Store is gone, start the agent in a new pane").Safe()
	case !fenced:
		return h.lock.Clear()
	}
	return nil
}

func notIdle(name, why string) error {
	return fault.New(fault.TerminalNotIdle, "act on %s: %s", name, why).
		WithHint("wait until the agent is idle and its composer is shown").Safe()
}

// inspect looks at the pane for typing: the same process, two equal captures,
// the agent's own files.
func (d *Desk) inspect(ctx context.Context, s *sighting) (*sighting, error) {
	fresh, err := d.again(ctx, s)
	if err != nil {
		return nil, err
	}
	screen, err := d.Tmux.Settled(ctx, fresh.pane, settleGap, settleTimeout)
	if err != nil {
		return nil, err
	}
	d.judge(ctx, fresh, &screen)
	return fresh, nil
}

// promptable says why nothing may be typed into what a sighting shows; nil when
// the agent is idle before an empty composer.
func (s *sighting) promptable() error {
	if err := s.unblocked(); err != nil {
		return err
	}
	if !s.reading.Composer.Empty {
		return fault.New(fault.ComposerNotEmpty, "act on %s: the composer holds a draft", s.id()).
			WithHint("the person at the pane must send or clear it").Safe()
	}
	return nil
}

// unblocked is promptable without the condition on the draft.
func (s *sighting) unblocked() error {
	switch {
	case s.pane.InMode:
		return notIdle(s.id(), closedPane)
	case s.reading.State == agent.Approval:
		return fault.New(fault.ApprovalPending, "act on %s: an approval dialog is open", s.id()).
			WithHint("status shows it, and whether approve may decide it; else the user does in the pane").Safe()
	case s.reading.State == agent.Question:
		return fault.New(fault.InteractionPending, "act on %s: a questionnaire is open", s.id()).
			WithHint("status shows it, and whether respond_interaction may answer it; else the user does in the pane").Safe()
	case s.identity.Activity == agent.ActivityWorking:
		return notIdle(s.id(), "the agent's records show an open turn")
	case s.reading.State != agent.Idle:
		return notIdle(s.id(), "the screen shows "+string(s.reading.State))
	case !s.reading.Composer.Seen:
		return notIdle(s.id(), "no composer is shown")
	}
	return nil
}

// allowed applies the version policy to a send.
func (d *Desk) allowed(s *sighting) error {
	switch {
	case s.proc.Class == agent.Refused && s.proc.Version == "":
		return fault.New(fault.VersionUnsupported, "act on %s: the version of %s is unknown", s.id(), s.proc.Agent).
			WithHint("it is starting, or a dialog stands before its session: look at the pane, then call list again").Safe()
	case s.proc.Class == agent.Refused:
		return fault.New(fault.VersionUnsupported, "act on %s: %s %q has no rule file, or does not run as it is registered", s.id(), s.proc.Agent, s.proc.Version).
			WithHint("it can be seen but not driven; update the agent or drawbridge").Safe()
	case s.proc.Class == agent.Untested && d.Untested == UntestedObserve:
		return fault.New(fault.VersionUnsupported, "act on %s: %s %s is untested and --untested-agents is observe", s.id(), s.proc.Agent, s.proc.Version).Safe()
	}
	return nil
}
