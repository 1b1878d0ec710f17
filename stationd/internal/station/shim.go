package station

import (
	"context"
	"errors"
	"net"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// errNoShim is what is said where there is no shim to ask.
var errNoShim = errors.New("there is no shim to ask")

// raise starts the shim, with its way out in place, and writes down who it is. The
// daemon does not run yet.
func (a *attempt) raise(ctx context.Context) error {
	if err := a.openWay(ctx); err != nil {
		return err
	}
	if err := a.lease.Check(); err != nil {
		return err
	}
	nonce, _ := redact.NewCapability()
	row, p := a.current(), a.plan
	shim, err := a.machine.StartShim(ctx, wire.Spec{
		Nonce: nonce.Reveal(), RunAs: user(p.RunAs), Artifact: a.artifact, Hide: []string{a.m.opts.StateDir, a.m.opts.Store.Dir()},
		Port: a.port, Egress: p.way != nil, Deadline: row.TTLBoot,
		OrphanMS: a.m.opts.Orphan.Milliseconds(), GraceMS: (p.grace + shimMargin).Milliseconds(),
	}, p.AllowRoot)
	if err != nil {
		return err
	}
	a.attach(shim)
	crashpoint.At("shim_started")
	return a.recordShim()
}

// recordShim names the shim in the row, once.
func (a *attempt) recordShim() error {
	inc := a.birth
	return a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
		return s.RecordShim(ctx, a.lease, id, n, store.Shim{BootID: inc.BootID, PID: int64(inc.PID), Start: int64(inc.Start)})
	})
}

// attach takes a shim in hand: what it tells is heard from now on.
func (a *attempt) attach(shim lease.Shim) {
	a.mu.Lock()
	a.shim = shim
	a.mu.Unlock()
	a.birth, a.kind = shim.Incarnation(), shim.Containment()
	a.watching.Go(func() { a.attend(shim) })
	a.watching.Go(a.watchBeat)
	a.watching.Go(a.watchExit)
}

// launch says go, unless a stop was asked for before.
func (a *attempt) launch(ctx context.Context) error {
	started, err := a.goAhead(ctx)
	if err != nil {
		return err
	}
	crashpoint.At("daemon_launched")
	return a.recordDaemon(started)
}

// goAhead has the daemon started. While it does, no stop is asked for; after a stop
// was, nothing starts.
func (a *attempt) goAhead(ctx context.Context) (wire.Started, error) {
	a.going.Lock()
	defer a.going.Unlock()
	if err := context.Cause(ctx); err != nil {
		return wire.Started{}, err
	}
	if row := a.current(); row.Desired != store.WantRunning {
		return wire.Started{}, errStopping
	}
	if err := a.lease.Check(); err != nil {
		return wire.Started{}, err
	}
	p, l := a.plan, a.machine.Layout()
	at := launch.Place{Workspace: l.Workspace, Workdir: p.Workdir, Port: a.port}
	secret := a.secret()
	spec := wire.Launch{Args: p.Command.Fill(at, a.artifact != nil), Env: a.env, Dir: at.Dir(), Credential: secret.Reveal()}
	if p.DaemonAuth.Mode == "file" {
		spec.File = credentialFile
	}
	ctx, cancel := context.WithTimeout(a.base, launchTime)
	defer cancel()
	return a.reached().Client().Launch(ctx, spec)
}

// recordDaemon names the daemon in the row, once.
func (a *attempt) recordDaemon(started wire.Started) error {
	return a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
		return s.RecordDaemon(ctx, a.lease, id, n, store.Daemon{
			PID: int64(started.PID), Start: int64(started.Start), PGID: int64(started.Group), Port: int64(a.port)})
	})
}

// request sends one request to the shim, in time.
func (a *attempt) request(ctx context.Context, wait time.Duration, f func(context.Context, *supervise.Client) error) error {
	shim := a.reached()
	if shim == nil {
		return errNoShim
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return f(ctx, shim.Client())
}

// dial reaches the daemon, by the shim that is there now.
func (a *attempt) dial(ctx context.Context) (net.Conn, error) {
	shim := a.reached()
	if shim == nil {
		return nil, errNoShim
	}
	return shim.Dial(ctx, wire.In)
}

// incarnation is the shim that a row names; zero when it names none.
func incarnation(row store.StationAttempt) process.Incarnation {
	if row.ShimPID == 0 {
		return process.Incarnation{}
	}
	return process.Incarnation{PID: int(row.ShimPID), BootID: row.BootID, Start: uint64(row.ShimStart), Namespace: process.Self().Namespace}
}
