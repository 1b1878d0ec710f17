package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/service"
)

// holdTime is how long hold lives when nobody ends it.
const holdTime = 20 * time.Second

// holdCommand is the daemon of a probe of containment: it and a child in a session
// of its own ignore TERM, HUP and INT, and end by themselves after a while.
func holdCommand(stdout io.Writer) *service.Command {
	return &service.Command{
		Name: "hold", Args: "[leaf]", MaxArgs: 1,
		Short: "Be what a probe of containment has to end",
		Run: func(ctx context.Context, args []string) error {
			signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
			if len(args) == 0 {
				leaf := exec.Command("/proc/self/exe", "hold", "leaf")
				leaf.SysProcAttr = &unix.SysProcAttr{Setsid: true}
				if err := leaf.Start(); err != nil {
					return fmt.Errorf("start the leaf: %w", err)
				}
				fmt.Fprintln(stdout, "holding")
				_ = leaf.Process.Release()
			}
			select {
			case <-ctx.Done():
			case <-time.After(holdTime):
			}
			return nil
		},
	}
}
