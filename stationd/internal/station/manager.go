package station

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
)

// Manager runs the stations of one host.
type Manager struct {
	opts      Options
	pace      pace
	log       *slog.Logger
	keeper    *store.Keeper
	recovered chan struct{}
	once      sync.Once    // closes recovered
	turned    atomic.Int64 // boot-time ms of the loop's last turn

	mu      sync.Mutex
	acting  *term         // nil while this one stands by
	changed chan struct{} // closed, and made anew, when an attempt has moved
}

// New makes a Manager; nothing happens before Run.
func New(opts Options) (*Manager, error) {
	switch {
	case opts.Store == nil || opts.Access == nil || opts.Host == "":
		return nil, fault.New(fault.Internal, "make the manager of stations: Store, Access or Host is missing")
	case !filepath.IsAbs(opts.StateDir):
		return nil, fault.New(fault.Usage, "make the manager of stations: the state directory is not an absolute path")
	}
	if err := os.MkdirAll(opts.StateDir, 0o700); err != nil {
		return nil, fault.New(fault.RuntimeDirUnsafe, "make the state directory: %w", err)
	}
	if opts.Profiles == nil {
		opts.Profiles = launch.BuiltIn()
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Orphan = or(opts.Orphan, DefaultOrphan)
	opts.Drain = or(opts.Drain, DefaultDrain)
	opts.OnExit = or(opts.OnExit, OnExitStop)
	if opts.OnExit != OnExitStop && opts.OnExit != OnExitKeep {
		return nil, fault.New(fault.Usage, "make the manager of stations: what is done at the end is stop or keep, not %.20q", opts.OnExit)
	}
	m := &Manager{
		opts: opts, pace: usualPace, log: opts.Log, keeper: store.NewKeeper(opts.Store, opts.Log),
		recovered: make(chan struct{}), changed: make(chan struct{}),
	}
	m.turn()
	return m, nil
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Run takes the lease of this host, recovers what an earlier stationd left, and
// supervises until ctx ends; then it does with the attempts what OnExit says, and
// returns when each has ended or is left alone, at the latest after Drain.
func (m *Manager) Run(ctx context.Context) error {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = m.keeper.Run(keeping) }) // it ends with its context only
	defer keeper.Wait()
	defer stop()
	for {
		lead, err := m.lead(ctx)
		if lead == nil {
			return err
		}
		m.act(ctx, lead)
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		err = m.opts.Store.Release(release, lead)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		m.log.Warn("this stationd does not act any more; it stands by", "err", err)
	}
}

// lead waits for the lease of this host; nil when ctx ends first.
func (m *Manager) lead(ctx context.Context) (*store.Lease, error) {
	tick := time.NewTicker(m.pace.look)
	defer tick.Stop()
	for told := false; ; told = true {
		l, err := m.opts.Store.Acquire(ctx, store.StationdLease(m.opts.Host), store.LeaseTTL)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, nil
		case !fault.Is(err, fault.LeaseHeld) && !fault.Is(err, fault.StoreBusy):
			return nil, err
		case !told:
			m.log.Info("another stationd of this host acts; this one stands by")
		}
		m.turn()
		select {
		case <-ctx.Done():
			return nil, nil
		case <-tick.C:
		}
	}
}

// Recovered is closed when what an earlier stationd left was taken up for the first
// time: READY comes after it.
func (m *Manager) Recovered() <-chan struct{} { return m.recovered }

// Lease is the Store lease of the acting stationd, for writes about principals,
// members and tickets; nil while this one stands by.
func (m *Manager) Lease() *store.Lease {
	if t := m.term(); t != nil {
		return t.lead
	}
	return nil
}

// Healthy reports whether the supervising loop turns, and every conductor that has
// something to do makes its steps: WATCHDOG beats only then.
func (m *Manager) Healthy() bool {
	now := process.BootTime()
	t := m.term()
	return now-m.turned.Load() < healthyFor.Milliseconds() && (t == nil || !t.stuck(now))
}

func (m *Manager) turn() { m.turned.Store(process.BootTime()) }

// term is the current one, or nil.
func (m *Manager) term() *term {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.acting
}

// current is the term in which things are begun.
func (m *Manager) current(ctx context.Context, doing string) (*term, error) {
	t := m.term()
	if t == nil || t.quit.Err() != nil {
		return nil, unavailable(doing)
	}
	select {
	case <-t.settled:
		return t, nil
	case <-t.quit.Done():
		return nil, unavailable(doing)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// moved wakes all that wait for an attempt to move.
func (m *Manager) moved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

// change gives the channel that is closed with the next move.
func (m *Manager) change() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// provider finds the provider of a name and checks its contract.
func (m *Manager) provider(name string) (lease.Provider, lease.Description, error) {
	p := m.opts.Providers[name]
	if p == nil {
		return nil, lease.Description{}, fault.New(fault.ProviderUnknown, "find provider %.64s: there is none of this name", name).
			WithHint("local is built in; others stand in the file of -providers")
	}
	d := p.Describe()
	return p, d, d.Check()
}
