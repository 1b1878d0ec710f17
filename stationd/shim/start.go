package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/namespace"
	"drawbridge/stationd/internal/wire"
)

// Bounds of start and hold.
const (
	startTime = 20 * time.Second
	startPoll = 5 * time.Millisecond
	holdTime  = 20 * time.Second
)

// startCommand makes a shim that outlives its starter, as one does that came over
// SSH: the specification on stdin, the shim's Birth on stdout.
func startCommand(stdin io.Reader, stdout io.Writer) *service.Command {
	return &service.Command{
		Name:  "start",
		Short: "Start init in new namespaces and leave it running",
		Long:  "Reads the specification on stdin and prints one JSON object when the shim answers: its pid,\nstart time, boot id and pid namespace.",
		Run: func(ctx context.Context, _ []string) error {
			var spec wire.Spec
			if err := wire.NewReader(stdin).Read(&spec); err != nil {
				return fault.New(fault.Usage, "read the specification: %w", err)
			}
			birth, err := startInit(ctx, spec)
			if err != nil {
				return err
			}
			return json.NewEncoder(stdout).Encode(birth)
		},
	}
}

func startInit(ctx context.Context, spec wire.Spec) (birth wire.Birth, err error) {
	in, write, err := os.Pipe()
	if err != nil {
		return birth, err
	}
	defer in.Close()
	defer write.Close()
	cmd := exec.Command("/proc/self/exe", "init")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	cmd.SysProcAttr = namespace.Attributes()
	if err := cmd.Start(); err != nil {
		return birth, fault.New(fault.ContainmentMissing, "start the shim in its namespaces: %w", err)
	}
	in.Close()
	if err := wire.Write(write, spec); err != nil {
		return birth, errors.Join(fmt.Errorf("hand over the specification: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	write.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	t := time.NewTicker(startPoll)
	defer t.Stop()
	for {
		if data, err := os.ReadFile(filepath.Join(spec.Runtime, wire.PID)); err == nil {
			if err := wire.Decode(data, &birth); err == nil && birth.PID == cmd.Process.Pid {
				return birth, nil
			}
		}
		select {
		case err := <-ended:
			return birth, fault.New(fault.ShimFailed, "start the shim: it ended: %w", err)
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return birth, fault.New(fault.ShimFailed, "start the shim: it does not answer: %w", errors.Join(ctx.Err(), <-ended))
		case <-t.C:
		}
	}
}

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
