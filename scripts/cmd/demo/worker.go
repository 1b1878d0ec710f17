package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"drawbridge/scripts/internal/demoworker"
	"drawbridge/scripts/internal/rig"
)

// workerMain is main for the story of the worker.
func workerMain(args []string) int {
	fs := flag.NewFlagSet("demo worker", flag.ContinueOnError)
	bin := fs.String("bin", "bin", "directory of the built programs")
	host := fs.String("host", "", "the engine, unix://SOCKET (default: DOCKER_HOST, else the usual socket)")
	network := fs.String("network", "isolated", "of the worker: isolated, or socket, which has nothing but one socket file")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runWorker(ctx, *bin, *host, *network); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		return 1
	}
	return 0
}

func runWorker(ctx context.Context, bin, host, network string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	begin := time.Now()
	say := func(format string, a ...any) {
		fmt.Printf("[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, a...))
	}
	var out demoworker.Outcome
	err = rig.Do(ctx, "demo", say, func(tb rig.TB) {
		out = demoworker.Run(tb, say, demoworker.Options{Brokerd: filepath.Join(bin, "brokerd"), Kitrun: filepath.Join(bin, "kitrun"), Host: host, Network: network})
	})
	if err != nil {
		return err
	}
	say("brokerd has ended; no process, no container, no network and no file is left")
	if err := out.Print(os.Stdout); err != nil {
		return err
	}
	if len(out.Found) > 0 {
		return errors.New("a secret is where it must not be")
	}
	return nil
}
