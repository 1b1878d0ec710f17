// Command brokerd lends a host credential to a worker as a short-lived, model-bound capability.
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
	planned := service.NotBuilt("brokerd",
		"serve", "doctor", "grant", "revoke", "status", "evidence")
	return &service.Program{
		Name: "brokerd", Short: "lends a host credential to workers, model-bound and short-lived",
		Stdout: stdout, Stderr: stderr,
		Commands: append(planned, service.Version("brokerd", stdout, nil)),
	}
}
