package station

import (
	"context"
	"encoding/json"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/lease"
)

// Words of a lease's cleanup_json besides those of evidence.CleanedUp.
const (
	releaseDone   = "released"
	releaseFailed = "failed"
	releaseForced = "forced"
)

// released is cleanup_json of a lease: what became of it.
type released struct {
	Result string            `json:"result"`
	Code   fault.Code        `json:"code,omitempty"` // why it failed
	Left   *evidence.Cleanup `json:"attempt,omitempty"`
}

func (r released) json() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		return []byte("{}") // it holds text and numbers only
	}
	return text
}

// giveBack releases the lease after the attempt's end, unless processes are left. The
// term tries again while it fails.
func (a *attempt) giveBack(ctx context.Context) {
	if a.machine != nil {
		_ = a.machine.Close()
		a.machine = nil
	}
	row := a.current()
	w, err := a.m.opts.Store.Workspace(ctx, row.LeaseID)
	if err != nil {
		a.log.Warn("release the lease", "err", err) // the next stationd does
		return
	}
	d, err := a.t.debtOf(row, w)
	if err == nil && a.record.Cleanup.Result != evidence.CleanupFailed {
		err = d.release(ctx, a.lease)
		if err == nil {
			return
		}
	}
	a.log.Warn("the lease is kept", "lease", row.LeaseID, "err", err)
	if d.provider != nil {
		a.t.begin(d.pay)
	}
}

// keepWorkspace says that a lease is kept, and why.
func (a *attempt) keepWorkspace(ctx context.Context, cleanup []byte) {
	a.insist("keep the lease", func() error {
		_, err := a.m.opts.Store.WorkspaceCleanupFailed(ctx, a.lease, a.held.ID, cleanup)
		return leftAlone(err)
	})
}

// debt is a lease that has to be given back after its attempt has ended.
type debt struct {
	t        *term
	provider lease.Provider
	held     lease.Lease
	cleanup  evidence.Cleanup
	prove    func(context.Context) error // nil: its processes are known to be gone
}

// pay tries to release until it succeeds, somebody did it by force, or the term
// ends: then the next stationd does.
func (d debt) pay() {
	for d.t.pause(d.t.m.pace.releaseAgain) {
		w, err := d.t.m.opts.Store.Workspace(d.t.base, d.held.ID)
		if err == nil && w.State == store.WorkspaceReleased {
			return
		}
		if err == nil {
			err = d.try(d.t.base)
		}
		if err == nil {
			return
		}
		d.t.m.log.Warn("a lease cannot be given back", "lease", d.held.ID, "err", err)
	}
}

// try releases after the proof that nothing is left.
func (d debt) try(ctx context.Context) error {
	if d.prove != nil {
		bounded, cancel := context.WithTimeout(ctx, machineTime)
		defer cancel()
		if err := d.prove(bounded); err != nil {
			return err
		}
	}
	return d.release(ctx, d.t.lead)
}

// release is the second half of step 9: the row first, then the provider, then the
// row again. What failed is recorded.
func (d debt) release(ctx context.Context, l *store.Lease) error {
	s := d.t.m.opts.Store
	if w, err := s.BeginRelease(ctx, l, d.held.ID); err != nil {
		if w.State == store.WorkspaceReleased {
			return nil
		}
		if w.State != store.WorkspaceReleasing { // an earlier stationd's, else
			return err
		}
	}
	if err := l.Check(); err != nil {
		return err
	}
	proof, err := json.Marshal(d.cleanup)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, machineTime)
		err = d.provider.Release(bounded, d.held, &lease.Proof{Empty: true, Cleanup: proof})
		cancel()
	}
	if err != nil {
		failed := released{Result: releaseFailed, Code: fault.CodeOf(err), Left: &d.cleanup}
		if _, kept := s.WorkspaceCleanupFailed(ctx, l, d.held.ID, failed.json()); kept != nil {
			d.t.m.log.Warn("keep a lease", "lease", d.held.ID, "err", kept)
		}
		return err
	}
	crashpoint.At("workspace_released")
	if w, err := s.WorkspaceReleased(ctx, l, d.held.ID, released{Result: releaseDone}.json()); err != nil && w.State != store.WorkspaceReleased {
		return err
	}
	d.t.m.moved()
	return nil
}

// ReleaseLease gives a lease back: its attempt ends with lease_released first, and
// what failed before is tried again. With force, one that still cannot be given back
// is let go, for a reason that is recorded; whatever is left there is then
// somebody's to remove.
func (m *Manager) ReleaseLease(ctx context.Context, by store.Principal, leaseID string, force bool, reason string) (store.Workspace, error) {
	const doing = "release a lease"
	s := m.opts.Store
	if force && reason == "" {
		return store.Workspace{}, fault.New(fault.ForceReason, "release lease %.64s by force: a reason is needed", leaseID)
	}
	t, err := m.current(ctx, doing)
	if err != nil {
		return store.Workspace{}, err
	}
	w, err := s.Workspace(ctx, leaseID)
	if err != nil || w.State == store.WorkspaceReleased {
		return w, err
	}
	row, err := s.AttemptOfWorkspace(ctx, leaseID)
	if err != nil {
		return w, err
	}
	if a := t.live(row.StationID); a != nil && a.current().LeaseID == leaseID {
		if _, err := a.ask(ctx, store.StopReleased, by.ID); err != nil {
			return w, err
		}
		if force {
			a.once.Do(func() { close(a.giveUp) })
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return w, context.Cause(ctx)
		}
	}
	w, err = s.Workspace(ctx, leaseID)
	if err != nil || w.State == store.WorkspaceReleased {
		return w, err
	}
	failed := t.settleDebt(ctx, row, w)
	if failed != nil && force {
		w, err := s.ForceRelease(ctx, t.lead, leaseID, by.ID, reason, released{Result: releaseForced, Code: fault.CodeOf(failed)}.json())
		m.moved()
		return w, err
	}
	if failed != nil {
		return w, failed
	}
	return s.Workspace(ctx, leaseID)
}

// settleDebt tries once to release the lease of an attempt that has ended.
func (t *term) settleDebt(ctx context.Context, row store.StationAttempt, w store.Workspace) error {
	d, err := t.debtOf(row, w)
	if err != nil {
		return err
	}
	return d.try(ctx)
}

// debtOf is what is owed for an attempt of the Store.
func (t *term) debtOf(row store.StationAttempt, w store.Workspace) (debt, error) {
	provider, _, err := t.m.provider(w.Provider)
	if err != nil {
		return debt{}, err
	}
	d := debt{t: t, provider: provider, held: heldBy(w)}
	if c := cleanedUp(row.Cleanup); c != nil {
		d.cleanup = c.Cleanup
	}
	if inc := incarnation(row); !inc.IsZero() && d.cleanup.Result == evidence.CleanupFailed {
		d.prove = func(ctx context.Context) error {
			machine, err := provider.Machine(ctx, d.held)
			if err != nil {
				return err
			}
			defer machine.Close()
			_, err = machine.Kill(ctx, inc)
			return err
		}
	}
	return d, nil
}

// heldBy is a lease as the Store knows it.
func heldBy(w store.Workspace) lease.Lease {
	l := lease.Lease{ID: w.LeaseID, HostRef: w.HostRef, Workdir: w.Workdir, BootID: w.BootID}
	if w.ExpiresAt != 0 {
		l.ExpiresAt = time.UnixMilli(w.ExpiresAt)
	}
	return l
}
