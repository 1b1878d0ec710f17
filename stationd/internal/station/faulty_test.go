package station_test

import (
	"context"
	"io"
	"net"
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
	away      func() bool                     // while true, nothing can be ended: the other's is not asked
	blind     func() bool                     // while true, the shim does not say what listens

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
	f := &faultyShim{Shim: s, p: m.p}
	if m.p.blind != nil {
		if f.client, err = m.p.between(ctx, s, spec.Nonce); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// between takes the shim's connection over, with somebody in the middle who does not
// pass on every question.
func (p *faulty) between(ctx context.Context, s lease.Shim, nonce string) (*supervise.Client, error) {
	conn, err := s.Dial(ctx, wire.Control)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() {
		defer conn.Close()
		for r := wire.NewReader(far); ; {
			var q wire.Request
			if r.Read(&q) != nil {
				return
			}
			if q.Op == wire.OpListeners && p.blind() {
				q.Op = "nothing"
			}
			if wire.Write(conn, q) != nil {
				return
			}
		}
	}()
	go func() {
		_, _ = io.Copy(far, conn)
		far.Close()
	}()
	return supervise.Connect(ctx, near, nonce)
}

func (m *faultyMachine) Kill(ctx context.Context, inc process.Incarnation) (supervise.Cleanup, error) {
	m.p.note("kill")
	if m.p.away != nil && m.p.away() {
		return supervise.Cleanup{}, fault.New(fault.CleanupFailed, "end the shim: the machine is away")
	}
	c, err := m.Machine.Kill(ctx, inc)
	return m.p.said(c, err)
}

func (m *faultyMachine) AdoptShim(ctx context.Context, inc process.Incarnation) (lease.Shim, error) {
	m.p.note("adopt")
	return m.Machine.AdoptShim(ctx, inc)
}

type faultyShim struct {
	lease.Shim
	p      *faulty
	client *supervise.Client // instead of the other's
}

func (s *faultyShim) Client() *supervise.Client {
	if s.client != nil {
		return s.client
	}
	return s.Shim.Client()
}

func (s *faultyShim) Detach() error {
	if s.client != nil {
		_ = s.client.Close()
	}
	return s.Shim.Detach()
}

func (s *faultyShim) End(ctx context.Context) (supervise.Cleanup, error) {
	s.p.note("end")
	if s.p.away != nil && s.p.away() {
		return supervise.Cleanup{}, fault.New(fault.CleanupFailed, "end the shim: the machine is away")
	}
	c, err := s.Shim.End(ctx)
	if s.client != nil {
		_ = s.client.Close()
	}
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
