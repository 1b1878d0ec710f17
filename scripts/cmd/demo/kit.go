package main

import (
	"context"
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

// kitMain is main for the story of the kit.
func kitMain(args []string) int {
	fs := flag.NewFlagSet("demo kit", flag.ContinueOnError)
	bin := fs.String("bin", "bin", "directory of the built programs; the example kit is looked for beside it")
	host := fs.String("host", "", "the engine, unix://SOCKET (default: DOCKER_HOST, else the usual socket)")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runKit(ctx, *bin, *host); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		return 1
	}
	return 0
}

func runKit(ctx context.Context, bin, host string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	begin := time.Now()
	say := func(format string, a ...any) {
		fmt.Printf("[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, a...))
	}
	var out demoworker.KitOutcome
	err = rig.Do(ctx, "demo", say, func(tb rig.TB) {
		o := demoworker.Options{Brokerd: filepath.Join(bin, "brokerd"), Kitrun: filepath.Join(bin, "kitrun"), Host: host}
		out = demoworker.RunKit(tb, say, o, filepath.Dir(bin))
	})
	if err != nil {
		return err
	}
	say("no process, no container, no network and no file is left")
	return out.Print(os.Stdout)
}
