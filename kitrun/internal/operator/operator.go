// Package operator is what a person does with workers at a shell: run one and see
// what it does, cancel, list, sweep, read the record of a turn, and look at the
// storage that a worker would be let into (worker §14).
//
// What a command was asked for goes to stdout, everything else to stderr. A run
// that is interrupted once kills its container, removes it and writes the receipt;
// interrupted twice it ends at once, and the next sweep does the rest.
package operator

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// program is the name in messages and settings.
const program = "kitrun"

// Commands are the commands of workers and storage.
func Commands(stdout, stderr io.Writer) []*service.Command {
	return []*service.Command{
		{
			Name: "worker", Short: "Run one Codex turn in a locked container, and look after such containers",
			Commands: []*service.Command{
				runCommand(stdout, stderr), cancelCommand(stdout), listCommand(stdout), sweepCommand(stdout), eventsCommand(stdout),
			},
		},
		{
			Name: "storage", Short: "Look at directories that a worker may write to",
			Commands: []*service.Command{inspectCommand(stdout)},
		},
	}
}

// engineFlags say which engine.
type engineFlags struct{ dockerHost string }

func (f *engineFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.dockerHost, "docker-host", "", "`address` of the container engine (default DOCKER_HOST, else "+worker.DefaultHost+")")
}

func (f *engineFlags) engine() (worker.Engine, error) { return worker.NewDocker(f.dockerHost) }

// storeFlags are the settings of the commands that only look into a Store.
type storeFlags struct {
	engineFlags
	service.StoreFlags
}

func (f *storeFlags) register(fs *flag.FlagSet) {
	f.engineFlags.register(fs)
	f.Register(fs)
}

// open gives what the commands on workers work with. A Store that is not there is
// not made.
func (f *storeFlags) open(ctx context.Context, readOnly bool) (d worker.Deps, done func(), err error) {
	dir, err := f.Path()
	if err != nil {
		return d, nil, err
	}
	if d.Store, err = store.OpenExisting(ctx, store.Options{Dir: dir, Program: program, ReadOnly: readOnly}); err != nil {
		return d, nil, err
	}
	if d.Engine, err = f.engine(); err != nil {
		d.Store.Close()
		return d, nil, err
	}
	d.NetworkName = workernet.DefaultName
	return d, func() { d.Engine.Close(); d.Store.Close() }, nil
}

// printJSON writes one value, indented as receipts are, or on one line.
func printJSON(w io.Writer, v any, indent bool) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

func say(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, program+": "+format+"\n", args...)
}
