// Command teststationd is a stationd for tests that kill it: it starts one station
// below a directory, and does with it what its flags say. What it did it tells on
// stdout, one JSON object a line. Built with the tag drawbridge_crashpoints it ends
// where its environment says (package crashpoint).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
)

// Told is one line.
type told struct {
	Did     string `json:"did"` // started, ready, stopped
	Station string `json:"station"`
	Bridge  string `json:"bridge"`
	Ticket  string `json:"ticket,omitempty"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "teststationd: error: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout io.Writer) error {
	var o stationtest.Options
	var principal string
	var stop bool
	f := flag.NewFlagSet("teststationd", flag.ContinueOnError)
	f.StringVar(&o.Dir, "dir", "", "directory of everything")
	f.StringVar(&o.Shim, "shim", "", "path of station-shim")
	f.StringVar(&principal, "principal", "", "id of who starts the station")
	f.DurationVar(&o.Orphan, "orphan", 2*time.Minute, "life of a shim without a stationd")
	f.BoolVar(&stop, "stop", false, "stop the station when it is ready; otherwise it runs until stdin ends")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx := context.Background()
	in := json.NewDecoder(stdin)
	var spec json.RawMessage
	if err := in.Decode(&spec); err != nil {
		return err
	}
	s, err := stationtest.Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	<-s.Manager.Recovered()
	by, err := s.Store.Principal(ctx, principal)
	if err != nil {
		return err
	}
	out := json.NewEncoder(stdout)
	got, err := s.Manager.Start(ctx, by, station.StartRequest{Spec: spec})
	if err != nil {
		return err
	}
	t := told{Did: "started", Station: got.Station.ID, Bridge: got.Bridge}
	if err := out.Encode(t); err != nil {
		return err
	}
	row, err := s.Manager.Await(ctx, got.Station.ID, got.Attempt, store.AttemptReady)
	if err != nil || row.State != store.AttemptReady {
		return fmt.Errorf("it is %s for %s: %w", row.State, row.StopReason, err)
	}
	ticket, digest := gate.NewTicket()
	if _, err := s.Store.IssueTicket(ctx, s.Manager.Lease(), store.NewTicket{
		SecretSHA256: digest, Issuer: by.ID, PrincipalID: by.ID, StationID: got.Station.ID, Prefix: "/"}); err != nil {
		return err
	}
	t.Did, t.Ticket = "ready", ticket.Reveal()
	if err := out.Encode(t); err != nil {
		return err
	}
	if !stop {
		_, err := io.Copy(io.Discard, stdin)
		return err
	}
	if _, err := s.Manager.Stop(ctx, by, got.Station.ID); err != nil {
		return err
	}
	if _, err := s.Manager.Await(ctx, got.Station.ID, got.Attempt); err != nil {
		return err
	}
	t.Did = "stopped"
	return out.Encode(t)
}
