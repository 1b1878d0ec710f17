package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
)

// leaseDir is the folder of leases' sockets in the runtime directory; its name is
// short because a socket's path is.
const leaseDir = "s"

// providers are the lease providers by the names that specs give them.
type providers map[string]lease.Provider

// providers are those of the file, and this machine itself. Where nothing holds a
// daemon this machine is left out, unless it is the only one.
func (c *serveConfig) providers(ctx context.Context, log *slog.Logger) (providers, error) {
	shim, err := supervise.Shim()
	if err != nil {
		return nil, err
	}
	all := providers{}
	for _, r := range c.remotes {
		all[r.Name] = lease.NewSSH(r, shim, filepath.Join(c.stateDir, "scratch"), c.orphan)
	}
	options, kind, err := supervise.Probe(ctx, shim, c.RuntimeDir).Select(shim)
	switch {
	case err == nil:
		log.Info("this machine holds stations", "containment", kind)
		all[lease.KindLocal] = lease.NewLocal(place.Base{State: filepath.Join(c.stateDir, "leases"), Run: filepath.Join(c.RuntimeDir, leaseDir)}, options)
	case len(all) == 0:
		return nil, err
	default:
		log.Warn("this machine holds no stations", "err", err)
	}
	return all, nil
}

func (p providers) close() {
	for _, provider := range p {
		_ = provider.Close()
	}
}
