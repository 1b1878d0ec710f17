// Command kitrun installs, verifies and runs kits, and runs one worker in a locked-down container.
//
// The commands on kits are in cmd_kit.go, those on runs of kits in cmd_run.go, those
// on workers in internal/operator, doctor in internal/doctor.
package main

import (
	"context"
	"io"
	"os"
	"slices"

	"drawbridge/kitrun/internal/doctor"
	"drawbridge/kitrun/internal/operator"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program(stdout, stderr).Main(ctx, args)
}

// program is the command line; a new subcommand is one line of Commands.
func program(stdout, stderr io.Writer) *service.Program {
	return &service.Program{
		Name: "kitrun", Short: "installs, verifies and runs kits; runs one worker in a locked-down container",
		Stdout: stdout, Stderr: stderr,
		Plain: true, // the exit statuses of kits' own tool
		Commands: slices.Concat(
			kitCommands(stdout, stderr),
			runCommands(stdout, stderr),
			[]*service.Command{kitAlias(slices.Concat(kitCommands(stdout, stderr), runCommands(stdout, stderr)))},
			operator.Commands(stdout, stderr),
			[]*service.Command{doctor.Command(stdout), service.Version("kitrun", stdout, versionFacts)},
		),
	}
}

func versionFacts() []strictjson.Member {
	return []strictjson.Member{{Name: "store_schema", Value: store.SchemaVersion}}
}
