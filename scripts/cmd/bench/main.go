// Command bench measures drawbridge (package bench): one JSON line a figure on
// stdout, what is going on on stderr. scripts/bench builds what it needs and
// starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"drawbridge/scripts/internal/bench"
	"drawbridge/shared/testkit/scripted"
)

// most is how long a run may take.
const most = 10 * time.Minute

func main() {
	if scripted.Wanted() {
		os.Exit(scripted.Main())
	}
	if len(os.Args) > 1 && os.Args[1] == "role" {
		os.Exit(bench.Role(os.Args[2:]))
	}
	check := flag.Bool("check", false, "exit 1 where a bound is missed")
	bin := flag.String("bin", "bin", "directory of the built programs")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [-check] [NAME…]\n\nNAME is one of %s.\n", strings.Join(bench.Names(), ", "))
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missed, err := run(ctx, *bin, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		os.Exit(1)
	}
	if len(missed) > 0 {
		fmt.Fprintf(os.Stderr, "bench: missed: %s\n", strings.Join(missed, ", "))
		if *check {
			os.Exit(1)
		}
	}
}

func run(ctx context.Context, bin string, names []string) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errors.New("the run took more than "+most.String()))
	defer cancel()
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	return bench.Run(ctx, bench.Options{
		Bin: bin, Self: self, Stamp: filepath.Join(bin, "stamp"), Names: names, Out: os.Stdout,
		Log: func(format string, a ...any) {
			fmt.Fprintf(os.Stderr, "[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, a...))
		},
	})
}
