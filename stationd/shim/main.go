// Command station-shim is the small program that drawbridge puts into other
// namespaces: static, without cgo, without the Store, so that it runs where no
// library is installed (station §2.2).
//
// As init it is the first process of an attempt's namespaces (station §2.1): it
// builds what the daemon sees, starts it without any privilege, reaps, relays
// in.sock to the daemon's port and 127.0.0.1:3128 to egress.sock, serves ctl.sock
// (package wire), and ends, with everything beside it, when the time is over or
// nobody attends. It keeps no secret on a disk but the nonce of its own socket.
// lease is how another machine's stationd makes it, and all else that belongs to it.
//
// Its relay carries connections of a loopback address to a Unix socket. With a
// command after -- it listens first, then starts the command and ends with its
// status, so that the command never meets a closed port; as first process of a
// container it also reaps what the command leaves behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/relay"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the globals, so that tests can call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program(stdout, stderr).Main(ctx, args)
}

func program(stdout, stderr io.Writer) *service.Program {
	return &service.Program{
		Name: "station-shim", Short: "holds a station's daemon in namespaces of its own, and relays connections into and out of them",
		Stdout: stdout, Stderr: stderr,
		Commands: []*service.Command{
			relayCommand(), initCommand(os.Stdin), leaseCommand(os.Stdin, stdout), stageCommand(), holdCommand(stdout),
			service.Version("station-shim", stdout, nil),
		},
	}
}

func relayCommand() *service.Command {
	var listen, connect string
	return &service.Command{
		Name: "relay", Args: "[-- <command> [<argument>…]]", MaxArgs: -1,
		Short: "Carry connections of a loopback address to a Unix socket",
		Long: "Without a command the relay runs until SIGTERM. With one it starts the command when it\n" +
			"listens, passes signals on to it, and ends with its status (128 and the signal's number\n" +
			"when a signal ended it).",
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&listen, "listen", "", "loopback `address` and port to listen on, as 127.0.0.1:8787")
			fs.StringVar(&connect, "connect", "", "absolute `path` of the Unix socket to connect to")
		},
		Run: func(ctx context.Context, args []string) error {
			if listen == "" || connect == "" {
				return fault.New(fault.Usage, "relay needs -listen and -connect")
			}
			return serve(ctx, listen, connect, args)
		},
	}
}

// serve relays until the command ends, or without one until a signal comes.
func serve(ctx context.Context, listen, connect string, command []string) error {
	r, err := relay.Listen(listen, connect)
	if err != nil {
		return fault.New(fault.Usage, "relay: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	ctx, cancel := context.WithCancel(ctx)
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(ctx) }()
	status := service.Status(0)
	if len(command) > 0 {
		var code int
		if code, err = follow(command, []*os.File{os.Stdin, os.Stdout, os.Stderr}, signals); err == nil {
			status = service.Status(code)
		}
	} else {
		select {
		case <-signals:
		case <-ctx.Done():
		case err = <-relayed:
			relayed <- nil
		}
	}
	cancel()
	if err := errors.Join(err, <-relayed); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return status
}
