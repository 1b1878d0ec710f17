// Command stationd supervises one agent daemon per attempt in a leased workspace, reached only through an authenticated bridge.
//
// This release has its command line; the commands that do the work answer
// not_built_yet.
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

// program is the command line.
func program(stdout, stderr io.Writer) *service.Program {
	planned := service.NotBuilt("stationd",
		"serve", "doctor", "start", "stop", "list", "status", "logs", "ticket",
		"member", "principal", "evidence", "lease")
	return &service.Program{
		Name: "stationd", Short: "supervises agent daemons in leased workspaces",
		Stdout: stdout, Stderr: stderr,
		Commands: append(planned, service.Version("stationd", stdout, nil)),
	}
}
