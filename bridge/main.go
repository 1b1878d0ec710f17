// Command bridge is the MCP server by which a controller Host drives coding agents that run in tmux.
package main

import (
	"context"
	"io"
	"os"

	"drawbridge/bridge/internal/connector"
	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/bridge/internal/hostcli"
	"drawbridge/bridge/internal/operator"
	"drawbridge/shared/service"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program(stdin, stdout, stderr).Main(ctx, args)
}

// program is the command line; a new subcommand is one line of Commands.
func program(stdin io.Reader, stdout, stderr io.Writer) *service.Program {
	commands := append(hostcli.Commands(stdout), hostbridge.Command(stdin, stdout, stderr))
	commands = append(commands, operator.Commands(stdin, stdout, stderr)...)
	commands = append(commands, connector.Command(stdin, stdout, stderr))
	return &service.Program{
		Name: "bridge", Short: "MCP server by which a controller Host drives coding agents in tmux",
		Stdout: stdout, Stderr: stderr,
		Commands: append(commands, service.Version("bridge", stdout, nil)),
	}
}
