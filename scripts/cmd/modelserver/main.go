// Command modelserver serves a scripted model provider on loopback until its
// life is over or it is told to stop (package modelserver says what it plays).
// It prints its base URL as the first line of stdout.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"drawbridge/scripts/internal/modelserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "modelserver: error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:0", "loopback `address` to serve on")
	life := flag.Duration("max-life", modelserver.DefaultLife, "stop by itself after this `time`")
	list := flag.Bool("list", false, "print the scenarios and exit")
	flag.Parse()
	if *list {
		fmt.Println(strings.Join(modelserver.Scenarios(), "\n"))
		return nil
	}
	ln, err := modelserver.Listen(*listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/v1\n", ln.Addr())
	return modelserver.New(modelserver.Options{Life: *life}).Run(ctx, ln)
}
