package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	renewMost  = 15 * time.Second // at the latest, whatever the TTL
	renewAgain = time.Second      // after a failed renewal
)

// Keeper renews all leases of a process, each in time and all in one
// transaction.
type Keeper struct {
	s   *Store
	log *slog.Logger

	mu      sync.Mutex
	kept    map[*Lease]*kept
	changed chan struct{}
}

type kept struct {
	due  time.Time
	lose context.CancelCauseFunc
}

// NewKeeper makes a Keeper. log may be nil.
func NewKeeper(s *Store, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{s: s, log: log, kept: map[*Lease]*kept{}, changed: make(chan struct{}, 1)}
}

// Run renews until ctx ends. It releases nothing: that is for the holders, after
// their work has ended.
func (k *Keeper) Run(ctx context.Context) error {
	timer := time.NewTimer(renewMost)
	defer timer.Stop()
	for {
		timer.Reset(k.wait(time.Now()))
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		case <-timer.C:
			k.renew(ctx)
		}
	}
}

// Keep has l renewed until stop is called. The returned context ends with ctx,
// with stop, or, with cause lease_lost, when the lease is lost. stop may be called
// more than once and does not release the lease.
func (k *Keeper) Keep(ctx context.Context, l *Lease) (held context.Context, stop func()) {
	held, lose := context.WithCancelCause(ctx)
	k.mu.Lock()
	k.kept[l] = &kept{due: time.Now().Add(renewEvery(l.TTL)), lose: lose}
	k.mu.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
	return held, func() {
		k.mu.Lock()
		delete(k.kept, l)
		k.mu.Unlock()
		lose(context.Canceled)
	}
}

func renewEvery(ttl time.Duration) time.Duration { return min(ttl/3, renewMost) }

// wait gives the time until the first lease is due.
func (k *Keeper) wait(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := renewMost
	for _, h := range k.kept {
		d = min(d, h.due.Sub(now))
	}
	return max(d, 0)
}

func (k *Keeper) renew(ctx context.Context) {
	k.mu.Lock()
	leases := make([]*Lease, 0, len(k.kept))
	for l := range k.kept {
		leases = append(leases, l)
	}
	k.mu.Unlock()
	lost, err := k.s.Renew(ctx, leases...)
	if err != nil {
		if ctx.Err() == nil {
			k.log.Warn("leases not renewed", "count", len(leases), "err", err)
		}
		for _, l := range leases {
			if l.over() {
				lost = append(lost, l)
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range leases {
		if h := k.kept[l]; h != nil {
			h.due = time.Now().Add(renewEvery(l.TTL))
			if err != nil {
				h.due = time.Now().Add(min(renewAgain, renewEvery(l.TTL)))
			}
		}
	}
	for _, l := range lost {
		if h := k.kept[l]; h != nil {
			k.log.Warn("lease lost", "lease", l.Name, "epoch", l.Epoch)
			h.lose(leaseGone(l))
			delete(k.kept, l)
		}
	}
}
