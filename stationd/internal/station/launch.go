package station

import (
	"context"
	"path/filepath"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/wire"
)

// start does the steps of station §6.8 up to ready. Each row is durable before the
// effect that it announces.
func (a *attempt) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		a.acquire, a.ground, a.announce, a.raise, a.launch, a.becomeReady,
	} {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		a.turn()
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// acquire takes the lease of a workspace; its row is there already.
func (a *attempt) acquire(ctx context.Context) error {
	if err := a.lease.Check(); err != nil {
		return err
	}
	row := a.current()
	bounded, cancel := context.WithTimeout(ctx, acquireTime)
	got, err := a.plan.provider.Acquire(bounded, lease.Request{
		Lease: row.LeaseID, Station: a.station.ID, Attempt: row.Number, Org: a.station.Org, Owner: a.station.Owner,
	})
	cancel()
	if err != nil {
		return err
	}
	got.ID = row.LeaseID
	a.mu.Lock()
	a.held = got
	a.mu.Unlock()
	crashpoint.At("workspace_acquired")
	acquired := store.Acquired{HostRef: got.HostRef, Workdir: got.Workdir, BootID: got.BootID}
	if !got.ExpiresAt.IsZero() {
		acquired.ExpiresAt = got.ExpiresAt.UnixMilli()
	}
	w, err := a.m.opts.Store.WorkspaceAcquired(a.base, a.lease, row.LeaseID, acquired)
	if err != nil {
		return err
	}
	a.watching.Go(func() { a.watchLease(w.ExpiresAt) })
	a.watching.Go(a.watchClock)
	return a.enter(ctx)
}

// enter gets the machine of the lease, and with its paths the redactor and the log.
func (a *attempt) enter(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, machineTime)
	defer cancel()
	machine, err := a.plan.provider.Machine(bounded, a.held)
	if err != nil {
		return err
	}
	a.machine = machine
	l := machine.Layout()
	a.redactor = a.newRedactor(map[string]string{
		l.Workspace: "<work>", l.Home: "<home>", l.Temp: "<tmp>", l.Runtime: "<run>", l.Harness: "<harness>",
	})
	logs, err := evidence.OpenLogs(evidence.LogDir(a.m.opts.StateDir, a.station.ID, a.current().Number), a.redactor)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.logs = logs
	for _, stream := range []string{wire.Stdout, wire.Stderr} {
		a.counted[stream] = logs.Taken(stream)
	}
	return nil
}

// ground fills the workspace and identifies the program, before anything of it runs.
func (a *attempt) ground(ctx context.Context) error {
	p := a.plan
	if err := a.machine.Prepare(ctx, p.RunAs); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, groundTime)
	defer cancel()
	grounding, err := a.machine.Sync(bounded, p.Workspace)
	if err != nil {
		return err
	}
	a.turn()
	crashpoint.At("workspace_synced")
	harness := evidence.Harness{Name: or(p.Harness.Name, p.Name), Kind: evidence.FromSystem}
	switch argv := p.Command.Argv; {
	case p.Harness.Artifact != nil:
		bounded, cancel := context.WithTimeout(ctx, groundTime)
		defer cancel()
		got, err := a.machine.Obtain(bounded, *p.Harness.Artifact)
		if err != nil {
			return err
		}
		harness.Kind, harness.SHA256, harness.SignatureKeyID = evidence.FromArtifact, got.SHA256, got.KeyID
		a.artifact = &wire.Artifact{Path: got.Path, SHA256: got.SHA256}
		crashpoint.At("artifact_obtained")
	case p.Command.Shell == "":
		if !filepath.IsAbs(argv[0]) {
			harness.Kind = evidence.FromWorkspace
		}
		program := p.Command.Fill(launch.Place{Workspace: a.machine.Layout().Workspace, Workdir: p.Workdir}, false)[0]
		if harness.SHA256, err = a.machine.FileSHA256(ctx, program); err != nil {
			return fault.New(fault.DaemonNotStarted, "identify the program %.120q of %s: %w", argv[0], p.Name, err).
				WithHint("the command's first word is an absolute path of that machine or a file of the workspace, or the spec has harness.artifact")
		}
	}
	a.launched = evidence.Launch{Grounding: grounding, Harness: harness, GraceMS: p.grace.Milliseconds()}
	return nil
}

// announce makes the command and everything about it durable: preparing → launching.
func (a *attempt) announce(ctx context.Context) error {
	p, row := a.plan, a.current()
	var err error
	if a.port = p.Port; a.port == 0 {
		if a.port, err = a.machine.FreePort(ctx); err != nil {
			return err
		}
	}
	a.makeCredential()
	if a.env, err = launch.Environment(p.Spec, a.m.opts.Environ, a.surroundings()); err != nil {
		return err
	}
	var digest string // of a file of the workspace the grounding tells
	if a.artifact != nil {
		digest = a.artifact.SHA256
	}
	hash, err := launch.Hash(p.Command, p.Workdir, launch.Names(a.env), digest)
	if err != nil {
		return err
	}
	l := &a.launched
	l.Command = evidence.Command{Mode: p.Command.Mode(), Redacted: p.Command.Redacted(a.redactor), Hash: hash, Workdir: p.Workdir}
	if l.UID = a.machine.Layout().UID; p.RunAs != nil {
		l.UID = p.RunAs.UID
	}
	if p.Bridge != nil {
		l.Bridge = &evidence.Bridge{Port: int64(a.port), Path: gate.BridgePath(a.station.ID, int(row.Number)), Host: gate.HostLabel(a.station.ID, int(row.Number))}
	}
	document, err := l.JSON(a.redactor)
	if err != nil {
		return err
	}
	network := a.machine.Network()
	return a.move(a.base, func(ctx context.Context, s *store.Store, id string, n int64) (store.StationAttempt, error) {
		return s.LaunchAttempt(ctx, a.lease, id, n, store.Launch{CommandHash: hash, Workdir: p.Workdir,
			RuntimeDir: a.machine.Layout().Runtime, Containment: p.kind, Egress: string(network), Document: document})
	})
}
