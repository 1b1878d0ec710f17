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

	"drawbridge/scripts/internal/demostation"
	"drawbridge/scripts/internal/rig"
)

// stationMain is main for the story of the station.
func stationMain(args []string) int {
	fs := flag.NewFlagSet("demo station", flag.ContinueOnError)
	bin := fs.String("bin", "bin", "directory of the built programs")
	if err := fs.Parse(args); err != nil || fs.NArg() > 1 {
		return 2
	}
	harness := rig.SandboxAgent
	if fs.NArg() == 1 {
		harness = fs.Arg(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runStation(ctx, *bin, harness); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		return 1
	}
	return 0
}

func runStation(ctx context.Context, bin, harness string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	begin := time.Now()
	say := func(format string, a ...any) {
		fmt.Printf("[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, a...))
	}
	var out demostation.Outcome
	err = rig.Do(ctx, "demo", say, func(tb rig.TB) {
		out = demostation.Run(tb, say, demostation.Options{Bin: bin, Harness: harness})
	})
	if err != nil {
		return err
	}
	say("stationd has ended; no process and no file is left")
	return out.Print(os.Stdout)
}
