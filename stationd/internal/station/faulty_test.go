package station_test

import (
	"context"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// faulty is a provider that does what another does, and notes what it was asked. Its
// functions stand before the other's where they are set.
type faulty struct {
	lease.Provider

	expires   time.Duration                   // of a lease, instead of the other's
	heartbeat func() error                    // instead of the other's
	release   func() error                    // before the other's
	startShim func(context.Context)           // before the other's
	bootID    func() error                    // before the other's
	end       func() ([]supervise.Left, bool) // after the other's: what is said to be left, while true

	mu    sync.Mutex
	calls []string
}

func (p *faulty) wrap(inner lease.Provider) lease.Provider {
	p.Provider = inner
	return p
}

func (p *faulty) note(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

func (p *faulty) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.calls...)
}

func (p *faulty) Acquire(ctx context.Context, r lease.Request) (lease.Lease, error) {
	p.note("acquire")
	l, err := p.Provider.Acquire(ctx, r)
	if p.expires != 0 {
		l.ExpiresAt = time.Now().Add(p.expires)
	}
	return l, err
}

func (p *faulty) Heartbeat(ctx context.Context, l lease.Lease) (time.Time, error) {
	if p.heartbeat != nil {
		return time.Time{}, p.heartbeat()
	}
	return p.Provider.Heartbeat(ctx, l)
}

func (p *faulty) Release(ctx context.Context, l lease.Lease, proof *lease.Proof) error {
	p.note("release")
	if p.release != nil {
		if err := p.release(); err != nil {
			return err
		}
	}
	return p.Provider.Release(ctx, l, proof)
}

func (p *faulty) Machine(ctx context.Context, l lease.Lease) (lease.Machine, error) {
	m, err := p.Provider.Machine(ctx, l)
	if err != nil {
		return nil, err
	}
	return &faultyMachine{m, p}, nil
}

type faultyMachine struct {
	lease.Machine
	p *faulty
}

func (m *faultyMachine) BootID(ctx context.Context) (string, error) {
	if m.p.bootID != nil {
		if err := m.p.bootID(); err != nil {
			return "", err
		}
	}
	return m.Machine.BootID(ctx)
}

func (m *faultyMachine) StartShim(ctx context.Context, spec wire.Spec, allowRoot bool) (lease.Shim, error) {
	m.p.note("start")
	if m.p.startShim != nil {
		m.p.startShim(ctx)
	}
	s, err := m.Machine.StartShim(ctx, spec, allowRoot)
	if err != nil {
		return nil, err
	}
	return &faultyShim{s, m.p}, nil
}

func (m *faultyMachine) Kill(ctx context.Context, inc process.Incarnation) (supervise.Cleanup, error) {
	m.p.note("kill")
	c, err := m.Machine.Kill(ctx, inc)
	return m.p.said(c, err)
}

func (m *faultyMachine) AdoptShim(ctx context.Context, inc process.Incarnation) (lease.Shim, error) {
	m.p.note("adopt")
	return m.Machine.AdoptShim(ctx, inc)
}

type faultyShim struct {
	lease.Shim
	p *faulty
}

func (s *faultyShim) End(ctx context.Context) (supervise.Cleanup, error) {
	s.p.note("end")
	c, err := s.Shim.End(ctx)
	return s.p.said(c, err)
}

// said is what the proof of emptiness says in this test.
func (p *faulty) said(c supervise.Cleanup, err error) (supervise.Cleanup, error) {
	if p.end == nil || err != nil {
		return c, err
	}
	left, fails := p.end()
	if !fails {
		return c, nil
	}
	c.Left = left
	return c, fault.New(fault.CleanupFailed, "prove that nothing is left: %d processes are", len(left))
}
