package operator

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
)

func cancelCommand(stdout io.Writer) *service.Command {
	var f engineFlags
	var config string
	var s worker.Selector
	return &service.Command{
		Name: "cancel", Short: "Kill and remove the workers of a run or of an owner",
		Long: "cancel finds containers by their label alone, in whatever state and whoever made them, and\n" +
			"removes them. It says how many there were, and fails when one is left; none at all is\n" +
			"no failure. Exactly one of --run and --owner is needed.",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.StringVar(&config, "config", service.DefaultConfig(program), "JSON `file` with settings")
			service.Argument(fs, &s.Run, "run", "`id` of the run, as in the option runId")
			service.Argument(fs, &s.Owner, "owner", "`UUID` of the owner, as in the option ownerId")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			if (s.Run == "") == (s.Owner == "") {
				return fault.New(fault.Usage, "worker cancel: exactly one of --run and --owner is needed").
					WithHint("nothing was cancelled; kitrun worker list shows runs")
			}
			engine, err := f.engine()
			if err != nil {
				return err
			}
			defer engine.Close()
			n, err := worker.Cancel(ctx, worker.Deps{Engine: engine}, s)
			if err != nil {
				return err
			}
			if n == 0 {
				_, err = fmt.Fprintln(stdout, "nothing was cancelled: this engine has no worker of that run or owner")
				return err
			}
			_, err = fmt.Fprintf(stdout, "workers cancelled: %d; no container is left\n", n)
			return err
		},
	}
}

func listCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	var run string
	var asJSON bool
	return &service.Command{
		Name: "list", Short: "List the workers that are not removed, or all of a run",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			service.Argument(fs, &run, "run", "`id` of a run: all that it had")
			fs.BoolVar(&asJSON, "json", false, "print one JSON array")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			d, done, err := f.open(ctx, true)
			if err != nil {
				return err
			}
			defer done()
			all, err := worker.List(ctx, d, run)
			if err != nil {
				return err
			}
			if asJSON {
				if all == nil {
					all = []worker.Listed{}
				}
				return printJSON(stdout, all, false)
			}
			return table(stdout, all)
		},
	}
}

func table(w io.Writer, all []worker.Listed) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "INVOCATION\tRUN\tSTATE\tCONTAINER\tSTATUS\tDEADLINE")
	for _, l := range all {
		state := l.State
		if l.Orphan {
			state += " (orphan)"
		}
		deadline := "-"
		if !l.DeadlineAt.IsZero() {
			deadline = l.DeadlineAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", orDash(l.InvocationID), orDash(l.RunID), orDash(state), orDash(short(l.Container)), orDash(l.Status), deadline)
	}
	return tw.Flush()
}

// short cuts a container's id to what the engine's own tools show.
func short(id string) string { return id[:min(len(id), 12)] }

// orDash keeps columns apart. Labels come from the engine, which others use too.
func orDash(s string) string {
	if s = fault.CleanLine(s); s == "" {
		return "-"
	}
	return s
}

func sweepCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	var asJSON bool
	return &service.Command{
		Name: "sweep", Short: "Remove what a killed kitrun left",
		Long: "sweep removes the containers of this Store that no living kitrun looks after, and settles\n" +
			"their rows. It invents no receipt, and leaves containers of other Stores alone. Each worker\n" +
			"run begins with one.",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&asJSON, "json", false, "print one JSON object")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			d, done, err := f.open(ctx, false)
			if err != nil {
				return err
			}
			defer done()
			swept, err := worker.Sweep(ctx, d)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(stdout, swept, false)
			}
			_, err = fmt.Fprintf(stdout, "containers removed: %d, rows settled: %d\n", swept.Containers, swept.Rows)
			return err
		},
	}
}

func eventsCommand(stdout io.Writer) *service.Command {
	return &service.Command{
		Name: "events", Args: "<file>", MinArgs: 1, Short: "Print what the record of one turn says",
		Long: "events reads the JSON lines of codex exec --json, for example the file\n" +
			"<invocation>.stdout.jsonl beside a receipt, and prints thread, last message and usage. It\n" +
			"fails unless they are the record of exactly one completed turn, and then says what Codex\n" +
			"said of the failure. The file - is stdin.",
		Run: func(_ context.Context, args []string) error {
			in := io.Reader(os.Stdin)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fault.New(fault.Usage, "worker events: %w", err)
				}
				defer f.Close()
				in = f
			}
			sum, err := worker.ParseEvents(in)
			if err != nil && sum.Failure != "" {
				return fault.New(fault.CodeOf(err), "%w; Codex says %q", err, sum.Failure)
			}
			if err != nil {
				return err
			}
			return printJSON(stdout, sum, true)
		},
	}
}
