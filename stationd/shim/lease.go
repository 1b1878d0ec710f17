package main

import (
	"context"
	"io"

	"drawbridge/shared/service"
	"drawbridge/stationd/internal/place"
)

// leaseCommand is what stationd does with a lease of this machine when it is on
// another one: one request on stdin, one answer on stdout.
func leaseCommand(stdin io.Reader, stdout io.Writer) *service.Command {
	return &service.Command{
		Name:  "lease",
		Short: "Do one thing with a lease of this machine",
		Long:  "Reads one JSON request on stdin, with an archive or a file behind it where one belongs to the\nrequest, and prints one JSON answer. stationd calls it over SSH.",
		Run:   func(ctx context.Context, _ []string) error { return place.Serve(ctx, stdin, stdout) },
	}
}
