// Package doctor looks whether this machine can run kits and workers, before a run
// finds out (kitrun doctor): Node, the container engine and what its kernel bounds,
// the network of the workers, the programs beside kitrun, the Store, directories,
// leftovers of runs that were killed, and room on the disk.
//
// It starts no container and no kit, makes nothing, and removes nothing.
package doctor

import (
	"context"
	"flag"
	"io"
	"path/filepath"
	"time"

	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/sibling"
	"drawbridge/shared/workernet"
)

const (
	// exitMissing is the status when a check is in error.
	exitMissing = 69
	// probeTime bounds one check.
	probeTime = 10 * time.Second
)

// Command is `kitrun doctor`.
func Command(stdout io.Writer) *service.Command {
	var d doctor
	asJSON := false
	return &service.Command{
		Name: "doctor", Short: "Check whether this machine can run kits and workers",
		Long: "doctor makes every check it can, and says what to do about what it finds. It starts no\n" +
			"container, writes nothing and removes nothing. Exit status 0: nothing is in the way (a warning\n" +
			"is not); 69: something that is needed is missing.",
		Flags: func(fs *flag.FlagSet) {
			d.Register(fs)
			runtime, _ := service.DefaultRuntimeDir() // "" is refused below
			fs.StringVar(&d.runtime, "runtime-dir", runtime, "`directory` of locks and sockets")
			fs.StringVar(&d.node, "node", "node", "Node `executable`")
			fs.StringVar(&d.dockerHost, "docker-host", "", "`address` of the container engine (default DOCKER_HOST, else "+worker.DefaultHost+")")
			fs.StringVar(&d.network, "network", workernet.DefaultName, "`name` of the network of the workers")
			fs.BoolVar(&asJSON, "json", false, "print one JSON object")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			checks, err := d.run(ctx)
			if err != nil {
				return err
			}
			if err := report(stdout, checks, asJSON); err != nil {
				return err
			}
			if checkup.Worst(checks) == checkup.Failed {
				return service.Status(exitMissing)
			}
			return nil
		},
	}
}

func report(w io.Writer, checks []checkup.Check, asJSON bool) error {
	if !asJSON {
		return checkup.Table(w, checks)
	}
	data, err := checkup.Object(checkup.Facts("ok", checkup.Worst(checks) != checkup.Failed, "checks", checks))
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// doctor is what one run of the command was told and has found so far.
type doctor struct {
	service.StoreFlags
	runtime, node, dockerHost, network string

	store  string        // directory, absolute
	engine worker.Engine // nil: it does not answer
}

// run makes the checks one after the other; those of the engine come before those
// that use it.
func (d *doctor) run(ctx context.Context) ([]checkup.Check, error) {
	var err error
	if d.store, err = d.Path(); err != nil {
		return nil, err
	}
	if d.runtime, err = filepath.Abs(d.runtime); err != nil {
		return nil, fault.New(fault.Usage, "-runtime-dir: %w", err)
	}
	defer func() {
		if d.engine != nil {
			d.engine.Close()
		}
	}()
	var checks []checkup.Check
	for _, c := range []struct {
		name  string
		probe checkup.Probe
	}{
		{"node", d.nodeProbe},
		{"engine", d.engineProbe},
		{"worker_network", d.networkProbe},
		{"brokerd", d.brokerdProbe},
		{"station_shim", d.shimProbe},
		{"store", checkup.Store("kitrun", d.store)},
		{"directories", d.directoriesProbe},
		{"leftovers", d.leftoversProbe},
		{"disk", d.diskProbe},
	} {
		bounded, done := context.WithTimeout(ctx, probeTime)
		facts, err := c.probe(bounded)
		done()
		checks = append(checks, checkup.Check{Name: c.name, Facts: facts, Err: err})
	}
	return checks, ctx.Err()
}

func (d *doctor) nodeProbe(ctx context.Context) ([]checkup.Fact, error) {
	n, err := nodehost.Look(ctx, d.node)
	return checkup.Facts("version", n.Version, "path", n.Path, "hook", n.Hook), err
}

// brokerdProbe looks for a brokerd that lends: one that serves the Store, or one that
// kitrun can start.
func (d *doctor) brokerdProbe(ctx context.Context) ([]checkup.Fact, error) {
	path, err := sibling.Beside("brokerd")
	if err != nil {
		return nil, err
	}
	found, running := checkup.Executable(path), len(checkup.Holders(ctx, "kitrun", d.store, "brokerd")) > 0
	facts := checkup.Facts("found", found, "running", running)
	if !found && !running {
		return facts, fault.New(fault.DependencyMissing, "brokerd does not lie beside kitrun, and none serves the Store").
			WithHint("install brokerd in the directory of kitrun, or start brokerd serve on this Store; without it nothing is lent")
	}
	return facts, nil
}
