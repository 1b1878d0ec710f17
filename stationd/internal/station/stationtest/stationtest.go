// Package stationtest is a stationd without a command line, for tests: one Store,
// one gate and one Manager below one directory. Tests of package station run it in
// their own process; teststationd runs it in one that may be killed.
package stationtest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/access"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/supervise"
)

// Host is the name of the machine in the Store.
const Host = "box"

// Options say what differs from the usual.
type Options struct {
	Dir     string // private, with a short path; everything is below it
	Shim    string // path of station-shim
	Egress  egress.Profiles
	Environ []string
	Orphan  time.Duration
	Drain   time.Duration
	OnExit  string
	Log     *slog.Logger

	Wrap   func(lease.Provider) lease.Provider // around the local one
	More   map[string]lease.Provider
	Adjust func(*station.Manager) // before it runs
}

// Stationd is what Open made.
type Stationd struct {
	Store   *store.Store
	Access  *access.Access
	Gate    *gate.Gate
	Manager *station.Manager
	Bell    *store.Doorbell
	Address string // of the gate

	local *lease.Local
	stop  context.CancelFunc
	gate  context.CancelFunc
	ended sync.WaitGroup
	mu    sync.Mutex
	err   error
}

// State is the state directory.
func State(dir string) string { return filepath.Join(dir, "state") }

// Open makes a stationd and runs it.
func Open(ctx context.Context, o Options) (*Stationd, error) {
	for _, name := range []string{"state", "run"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	db, err := store.Open(ctx, store.Options{Dir: filepath.Join(o.Dir, "store"), Program: "stationd"})
	if err != nil {
		return nil, err
	}
	s := &Stationd{Store: db, Bell: store.NewDoorbell(db, o.Log)}
	if s.Access, err = access.New(ctx, db, o.Log); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if err := s.open(o); err != nil {
		return nil, errors.Join(err, s.Access.Close(), db.Close())
	}
	s.run(ctx)
	return s, nil
}

func (s *Stationd) open(o Options) error {
	l, err := gate.Listen(gate.DefaultListen)
	if err != nil {
		return err
	}
	s.Address = l.Addr().String()
	changes, _ := s.Bell.Subscribe()
	s.Gate, err = gate.New(gate.Options{Listeners: []net.Listener{l}, Authorizer: s.Access, Changes: changes, Detach: o.OnExit == station.OnExitKeep, Log: o.Log})
	if err != nil {
		return err
	}
	s.local = lease.NewLocal(place.Base{State: filepath.Join(State(o.Dir), "leases"), Run: filepath.Join(o.Dir, "run")},
		supervise.Options{Shim: o.Shim, Cgroup: supervise.CgroupParent()})
	var local lease.Provider = s.local
	if o.Wrap != nil {
		local = o.Wrap(local)
	}
	providers := map[string]lease.Provider{lease.KindLocal: local}
	for name, p := range o.More {
		providers[name] = p
	}
	address, err := netip.ParseAddrPort(s.Address)
	if err != nil {
		return err
	}
	s.Manager, err = station.New(station.Options{
		Store: s.Store, Host: Host, Gate: s.Gate, Access: s.Access, Providers: providers, Egress: o.Egress, Internal: []netip.AddrPort{address},
		StateDir: State(o.Dir), Environ: o.Environ, Orphan: o.Orphan, Drain: o.Drain, OnExit: o.OnExit, Log: o.Log,
	})
	if err == nil && o.Adjust != nil {
		o.Adjust(s.Manager)
	}
	return err
}

// run starts the parts; Close ends them in order.
func (s *Stationd) run(ctx context.Context) {
	managed, stop := context.WithCancel(ctx)
	served, end := context.WithCancel(context.WithoutCancel(ctx))
	s.stop, s.gate = stop, end
	s.ended.Go(func() { // the manager first, then what carries it
		err := s.Manager.Run(managed)
		s.fail(err)
		end()
	})
	s.ended.Go(func() { s.fail(s.Gate.Run(served)) })
	s.ended.Go(func() { s.fail(s.Access.Run(served)) })
	s.ended.Go(func() { s.fail(s.Bell.Run(served)) })
}

func (s *Stationd) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// Close ends everything, as at the end of a stationd, and gives what failed.
func (s *Stationd) Close() error {
	s.stop()
	s.ended.Wait()
	return errors.Join(s.err, s.local.Close(), s.Access.Close(), s.Store.Close())
}
