// Command kitrun installs, verifies and runs kits, and runs one worker in a locked-down container.
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
	planned := service.NotBuilt("kitrun",
		"install", "verify", "list", "update", "uninstall", "unlock", "run", "status", "doctor", "worker", "storage")
	return &service.Program{
		Name: "kitrun", Short: "installs, verifies and runs kits",
		Stdout: stdout, Stderr: stderr,
		Plain:    true, // the exit statuses of kits' own tool
		Commands: append(planned, service.Version("kitrun", stdout, nil)),
	}
}
