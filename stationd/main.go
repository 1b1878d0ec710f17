// Command stationd supervises one agent daemon per attempt in a leased workspace,
// reached only through an authenticated bridge.
package main

import (
	"context"
	"io"
	"os"

	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := checkArguments(args); err != nil {
		return service.Usage(stderr, "stationd", err)
	}
	return program(stdin, stdout, stderr).Main(ctx, args)
}

// program is the command line; a new subcommand is one line of Commands.
func program(stdin io.Reader, stdout, stderr io.Writer) *service.Program {
	return &service.Program{
		Name: "stationd", Short: "supervises agent daemons in leased workspaces",
		Stdout: stdout, Stderr: stderr,
		Commands: []*service.Command{
			serveCommand(stderr),
			startCommand(stdin, stdout),
			stopCommand(stdout),
			listCommand(stdout),
			statusCommand(stdout),
			logsCommand(stdout),
			ticketCommand(stdout),
			memberCommand(stdout),
			principalCommand(stdout),
			evidenceCommand(stdout),
			leaseCommand(stdout),
			doctorCommand(stdout),
			service.Version("stationd", stdout, versionFacts),
		},
	}
}

func versionFacts() []strictjson.Member {
	return []strictjson.Member{{Name: "store_schema", Value: store.SchemaVersion}}
}
