package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"

	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/control"
)

func stopCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	wait := false
	return ask(&f, service.Command{
		Name: "stop", Args: "<station id>", MinArgs: 1, Short: "Stop a station",
		Long: "stop is safe to repeat: the first reason stays, and of a station that has ended it says how. With\n" +
			"-wait it returns when nothing of the attempt is left, and with status 1 when that could not be\n" +
			"proven or the lease could not be given back.",
	}, func(fs *flag.FlagSet) {
		fs.BoolVar(&wait, "wait", false, "wait until everything has ended and the lease is given back")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		stopped, err := c.Stop(ctx, args[0])
		if err != nil {
			return err
		}
		if wait {
			if stopped, err = awaitEnd(ctx, c, stopped); err != nil {
				return err
			}
		}
		if f.asJSON {
			return printJSON(stdout, stopped)
		}
		state := []string{"state", stopped.State}
		if stopped.State != store.AttemptTerminal { // the row may still say ready
			state = []string{"stop", "asked for; stationd stop -wait " + stopped.StationID + " waits for the end, stationd status " + stopped.StationID + " shows it"}
		}
		return table(stdout, []string{"station", stopped.StationID}, []string{"attempt", strconv.FormatInt(stopped.Attempt, 10)},
			state, []string{"reason", textOf(stopped.StopReason)})
	})
}

// awaitEnd waits for the end of an attempt and of its cleanup.
func awaitEnd(ctx context.Context, c *control.Client, stopped control.Stopped) (control.Stopped, error) {
	st, err := c.Await(ctx, stopped.StationID, stopped.Attempt, control.WaitEnded)
	if err != nil || st.Attempt != stopped.Attempt {
		return stopped, err
	}
	stopped.StopReason = st.StopReason
	if st.Detail != nil {
		stopped.State = st.Detail.AttemptState
	}
	if st.Cleanup == "failed" {
		return stopped, cleanupFailed(st)
	}
	return stopped, nil
}

func leaseCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	var q control.ReleaseRequest
	release := ask(&f, service.Command{
		Name: "release", Args: "<lease id>", MinArgs: 1, Short: "Give a lease back",
		Long: "release ends the attempt on a lease first, if there is one. A lease whose cleanup failed is tried\n" +
			"again; with -force and a reason, which is recorded, it is let go as it is.",
	}, func(fs *flag.FlagSet) {
		fs.BoolVar(&q.Force, "force", false, "let a lease go that cannot be given back")
		fs.StringVar(&q.Reason, "reason", "", "why, as `text` for the record")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		l, err := c.Release(ctx, args[0], q)
		if err != nil {
			return err
		}
		if f.asJSON {
			return printJSON(stdout, l)
		}
		_, err = fmt.Fprintf(stdout, "lease %s is %s\n", l.LeaseID, l.State)
		return err
	})
	return &service.Command{Name: "lease", Short: "Look after leases of workspaces", Commands: []*service.Command{release}}
}
