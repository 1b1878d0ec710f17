// Command brokerd lends a host credential to workers as short-lived, model-bound capabilities.
package main

import (
	"context"
	"io"
	"os"

	"drawbridge/shared/service"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program(stdout, stderr).Main(ctx, args)
}

// program is the command line; a new subcommand is one line of Commands.
func program(stdout, stderr io.Writer) *service.Program {
	return &service.Program{
		Name: "brokerd", Short: "lends a host credential to workers, model-bound and short-lived",
		Stdout: stdout, Stderr: stderr,
		Commands: []*service.Command{
			serveCommand(stderr),
			grantCommand(stdout),
			revokeCommand(stdout),
			evidenceCommand(stdout),
			statusCommand(stdout),
			service.Version("brokerd", stdout, versionFacts),
		},
	}
}
