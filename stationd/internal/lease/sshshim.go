package lease

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// sshShim is a shim of another machine. It lives on when the connection is cut;
// only its own pid namespace ends it, and with it the daemon.
type sshShim struct {
	machine *sshMachine
	inc     process.Incarnation
	birth   wire.Birth
	client  *supervise.Client
	done    chan struct{}
	ended   sync.Once
	dialed  time.Time // of the last connection; of start, then of redial alone
}

var _ Shim = (*sshShim)(nil)

func (m *sshMachine) StartShim(ctx context.Context, spec wire.Spec, allowRoot bool) (Shim, error) {
	q := m.request(place.OpStart)
	q.LeftMS = place.TimeLeft(spec.Deadline).Milliseconds()
	spec.Deadline, spec.Hide = 0, nil // this machine's
	q.Spec, q.AllowRoot = &spec, allowRoot
	a, err := m.do(ctx, q)
	if err != nil {
		return nil, err
	}
	if a.Birth == nil {
		return nil, fault.New(fault.ShimFailed, "start the shim: the machine does not name it")
	}
	inc := process.Incarnation{PID: a.Birth.PID, BootID: a.Birth.BootID, Start: a.Birth.Start}
	s, err := m.attach(ctx, inc, spec.Nonce)
	if err != nil {
		_, ended := m.Kill(context.WithoutCancel(ctx), inc)
		return nil, errors.Join(err, ended)
	}
	return s, nil
}

func (m *sshMachine) AdoptShim(ctx context.Context, inc process.Incarnation) (Shim, error) {
	alive, err := m.Alive(ctx, inc)
	if err != nil {
		return nil, err
	}
	if !alive {
		return nil, fault.New(fault.ShimLost, "adopt the shim %d: it is gone, or is another process now", inc.PID)
	}
	a, err := m.do(ctx, m.request(place.OpNonce))
	if err != nil {
		return nil, err
	}
	s, err := m.attach(ctx, inc, a.Nonce)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attach connects to the shim, and checks that it is the one that is meant.
func (m *sshMachine) attach(ctx context.Context, inc process.Incarnation, nonce string) (*sshShim, error) {
	s := &sshShim{machine: m, inc: inc, done: make(chan struct{}), dialed: time.Now()}
	conn, err := m.dial(ctx, wire.Control)
	if err != nil {
		if fault.Is(err, fault.ProviderUnreachable) && m.reachable(ctx) {
			err = fault.New(fault.ShimLost, "attach to the shim %d: %w", inc.PID, err)
		}
		return nil, err
	}
	if s.client, err = supervise.Reconnect(ctx, conn, nonce, s.redial); err != nil {
		return nil, err
	}
	status, err := s.client.Status(ctx)
	if err == nil && (status.Birth.PID != inc.PID || status.Birth.Start != inc.Start || status.Birth.BootID != inc.BootID) {
		err = fault.New(fault.ShimLost, "attach to the shim %d: another one answers", inc.PID)
	}
	if err != nil {
		_ = s.client.Close()
		return nil, err
	}
	s.birth = status.Birth
	return s, nil
}

// reachable tells a machine that is gone from a socket that is.
func (m *sshMachine) reachable(ctx context.Context) bool {
	_, err := m.BootID(ctx)
	return err == nil
}

// redial gives the client its next connection, as long as the shim lives.
func (s *sshShim) redial(ctx context.Context) (net.Conn, error) {
	tries := 0
	if time.Since(s.dialed) < redialLeast { // the last one did not hold
		tries = 1
	}
	for ; ; tries++ {
		if err := s.machine.provider.link.pause(ctx, tries); err != nil {
			return nil, err
		}
		alive, err := s.machine.alive(ctx, s.inc, 0)
		if err == nil && alive {
			var conn net.Conn
			if conn, err = s.machine.dial(ctx, wire.Control); err == nil {
				s.dialed = time.Now()
				return conn, nil
			}
			if s.machine.provider.link.ended.Err() == nil { // it may be ending just now
				alive, err = s.machine.alive(ctx, s.inc, redialLeast)
			}
		}
		if err == nil && !alive {
			s.over()
			return nil, errors.New("the shim has ended")
		}
		if errors.Is(err, net.ErrClosed) && s.machine.provider.link.ended.Err() != nil {
			return nil, err
		}
	}
}

func (s *sshShim) over() { s.ended.Do(func() { close(s.done) }) }

func (s *sshShim) Client() *supervise.Client        { return s.client }
func (s *sshShim) Birth() wire.Birth                { return s.birth }
func (s *sshShim) Containment() string              { return supervise.KindPIDNamespace }
func (s *sshShim) Incarnation() process.Incarnation { return s.inc }
func (s *sshShim) Done() <-chan struct{}            { return s.done }
func (s *sshShim) Detach() error                    { return s.client.Close() }

func (s *sshShim) Dial(ctx context.Context, name string) (net.Conn, error) {
	return s.machine.dial(ctx, name)
}

// End lets the shim there end it, and prove that nothing of it is left. Closing the
// connection would end nothing.
func (s *sshShim) End(ctx context.Context) (supervise.Cleanup, error) {
	out, err := s.machine.Kill(ctx, s.inc)
	if err != nil {
		if !fault.Is(err, fault.CleanupFailed) {
			err = fault.New(fault.CleanupFailed, "end the shim: %w", err)
		}
		return out, err
	}
	s.over()
	return out, s.client.Close()
}
