// Command outboxd delivers notifications to the Host's callback executable, exactly acknowledged.
package main

import (
	"context"
	"io"
	"os"

	"drawbridge/shared/service"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program(stdin, stdout, stderr).Main(ctx, args)
}

// program is the command line; a new subcommand is one line of Commands.
func program(_ io.Reader, stdout, stderr io.Writer) *service.Program {
	return &service.Program{
		Name: "outboxd", Short: "delivers notifications to the Host's callback executable",
		Stdout: stdout, Stderr: stderr,
		Commands: []*service.Command{
			serveCommand(stderr),
			statusCommand(stdout),
			abandonCommand(stdout),
			service.Version("outboxd", stdout, versionFacts),
		},
	}
}
