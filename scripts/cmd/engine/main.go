// Command engine runs a private Docker engine until its stdin ends, and leaves
// nothing of it behind. When it is ready it prints the assignment of DOCKER_HOST;
// where DOCKER_HOST names an engine, or one answers at the usual place, it prints
// an empty line and starts none. scripts/engine.sh shows how scripts use it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"drawbridge/scripts/internal/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The pipe to the script may close first; that is a stop, not a death.
	signal.Ignore(syscall.SIGPIPE)
	if err := engine.Serve(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "engine: error: %v\n", err)
		os.Exit(1)
	}
}
