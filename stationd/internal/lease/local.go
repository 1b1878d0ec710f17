package lease

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"drawbridge/shared/process"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// Local is the provider of this machine: a lease is a directory, with a lock that
// its stationd holds.
type Local struct {
	base place.Base
	shim supervise.Options

	mu    sync.Mutex
	locks map[string]*os.File // by lease
}

// NewLocal makes leases in base, whose shims are started as Report.Select of
// package supervise says.
func NewLocal(base place.Base, shim supervise.Options) *Local {
	return &Local{base: base, shim: shim, locks: map[string]*os.File{}}
}

// Describe says how a station is held here.
func (p *Local) Describe() Description {
	kinds := []string{supervise.KindPIDNamespace}
	if p.shim.Cgroup != "" {
		kinds = []string{supervise.KindPIDNamespaceCgroup, supervise.KindPIDNamespace}
	}
	return Description{Name: launch.DefaultProvider, Kind: KindLocal, Station: contract("a child process in namespaces of its own", "ctl.sock and a pidfd", "in.sock", kinds)}
}

// contract is that of the providers here, which differ in how the shim is reached.
func contract(start, supervised, bridge string, kinds []string) *StationContract {
	return &StationContract{
		Start: start, Supervise: supervised, Bridge: bridge, Stop: "signals through the shim, then the end of its pid namespace",
		OS: linux, Network: egress.Netns, Containment: kinds, Version: 1,
	}
}

// Acquire makes the directory and takes its lock.
func (p *Local) Acquire(_ context.Context, r Request) (Lease, error) {
	at, err := place.Open(p.base, r.Lease)
	if err != nil {
		return Lease{}, err
	}
	if err := at.Make(); err != nil {
		return Lease{}, err
	}
	if err := p.lock(r.Lease, at); err != nil {
		_ = at.Release() // it is empty
		return Lease{}, err
	}
	return Lease{ID: r.Lease, HostRef: KindLocal, Workdir: at.Dir(), BootID: process.BootID(), ExpiresAt: time.Now().Add(Life)}, nil
}

// lock takes the lock of a lease, unless this provider has it, and checks it.
func (p *Local) lock(id string, at *place.Place) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, ok := p.locks[id]
	if !ok {
		var err error
		if held, err = at.Lock(); err != nil {
			return err
		}
		p.locks[id] = held
	}
	return at.Holds(held)
}

// unlock lets the lock of a lease go.
func (p *Local) unlock(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.locks[id]; ok {
		held.Close()
		delete(p.locks, id)
	}
}

// Machine is this machine.
func (p *Local) Machine(_ context.Context, l Lease) (Machine, error) {
	at, err := place.Open(p.base, l.ID)
	if err != nil {
		return nil, err
	}
	if err := p.lock(l.ID, at); err != nil {
		return nil, err
	}
	return &localMachine{at: at, shim: p.shim}, nil
}

// Heartbeat checks that the directory is still the one whose lock is held.
func (p *Local) Heartbeat(_ context.Context, l Lease) (time.Time, error) {
	at, err := place.Open(p.base, l.ID)
	if err != nil {
		return time.Time{}, err
	}
	if err := p.lock(l.ID, at); err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(Life), nil
}

// Release removes the lease's directories.
func (p *Local) Release(_ context.Context, l Lease, proof *Proof) error {
	if err := proof.check(l.ID); err != nil {
		return err
	}
	at, err := place.Open(p.base, l.ID)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(at.Dir()); err == nil { // else it was released before, as far as its lock
		if err := p.lock(l.ID, at); err != nil {
			return err
		}
	}
	if err := at.Release(); err != nil {
		return err
	}
	p.unlock(l.ID)
	return nil
}

// Close lets all locks go.
func (p *Local) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, held := range p.locks {
		held.Close()
		delete(p.locks, id)
	}
	return nil
}

// localMachine is a lease of this machine.
type localMachine struct {
	at    *place.Place
	shim  supervise.Options
	runAs *wire.User
}

func (m *localMachine) BootID(context.Context) (string, error)          { return process.BootID(), nil }
func (m *localMachine) Layout() Layout                                  { return m.at.Layout() }
func (m *localMachine) Network() egress.Enforcement                     { return egress.Netns }
func (m *localMachine) Addresses(context.Context) ([]netip.Addr, error) { return place.Addresses() }
func (m *localMachine) FreePort(context.Context) (int, error)           { return freePort() }
func (m *localMachine) Close() error                                    { return nil }
func (m *localMachine) FileSHA256(_ context.Context, p string) (string, error) {
	return place.FileSHA256(p)
}

// Wipe removes an empty cgroup besides.
func (m *localMachine) Wipe(context.Context) error {
	if err := m.at.Wipe(); err != nil {
		return err
	}
	supervise.Sweep(m.shim, m.at.Layout().Runtime)
	return nil
}

func (m *localMachine) Prepare(_ context.Context, runAs *launch.User) error {
	m.runAs = user(runAs)
	return m.at.Prepare(m.runAs)
}

// user is a spec's user as the shim knows it.
func user(u *launch.User) *wire.User {
	if u == nil {
		return nil
	}
	return &wire.User{UID: u.UID, GID: u.GID}
}

func (m *localMachine) Sync(ctx context.Context, w launch.Workspace) (launch.Grounding, error) {
	g, err := launch.Sync(ctx, w, m.at.Layout().Workspace)
	if err != nil {
		return g, err
	}
	return g, m.at.Give(m.runAs)
}

func (m *localMachine) Obtain(ctx context.Context, a launch.Artifact) (launch.Obtained, error) {
	return launch.Obtain(ctx, a, m.at.Layout().Harness, nil)
}

func (m *localMachine) StartShim(ctx context.Context, spec wire.Spec, allowRoot bool) (Shim, error) {
	o := m.shim
	o.AllowRoot = allowRoot
	p, err := supervise.Start(ctx, o, m.at.Complete(spec))
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (m *localMachine) AdoptShim(ctx context.Context, inc process.Incarnation) (Shim, error) {
	p, err := supervise.Adopt(ctx, m.at.Layout().Runtime, place.Here(inc))
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (m *localMachine) Recorded(context.Context) (process.Incarnation, error) {
	return supervise.Recorded(m.at.Layout().Runtime)
}

func (m *localMachine) Ended(context.Context) (wire.End, bool, error) {
	return supervise.Ended(m.at.Layout().Runtime)
}

func (m *localMachine) Alive(_ context.Context, inc process.Incarnation) (bool, error) {
	return place.Alive(inc)
}

func (m *localMachine) Kill(ctx context.Context, inc process.Incarnation) (supervise.Cleanup, error) {
	return m.at.Kill(ctx, m.shim, inc)
}

func (m *localMachine) Listen(_ context.Context, name string) (net.Listener, error) {
	return m.at.Socket(name)
}

func (m *localMachine) Artifacts(_ context.Context, paths []string, maxBytes int64) (artifact.Manifest, error) {
	return artifact.List(m.at.Layout().Workspace, paths, maxBytes)
}

// freePort is one that nobody has on this host either, so that it is easy to prove
// that nothing outside the namespace answers there.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

var (
	_ Provider = (*Local)(nil)
	_ Machine  = (*localMachine)(nil)
	_ Shim     = (*supervise.Process)(nil)
)
