package main

import (
	"context"
	"io"

	"drawbridge/shared/service"
	"drawbridge/stationd/internal/place"
)

// leaseCommand is what stationd does with leases of this machine when it is on
// another one: requests on stdin, answers on stdout.
func leaseCommand(stdin io.Reader, stdout io.Writer) *service.Command {
	return &service.Command{
		Name:  "lease",
		Short: "Do what another machine's stationd asks for its leases here",
		Long:  "Reads JSON requests on stdin, the last one with an archive or a file behind it where one belongs\nto it, and prints a JSON answer to each. stationd calls it over SSH.",
		Run:   func(ctx context.Context, _ []string) error { return place.Serve(ctx, stdin, stdout) },
	}
}
