package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
)

func ticketCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	var q control.TicketRequest
	methods := ""
	return ask(&f, service.Command{
		Name: "ticket", Args: "<station id> | revoke <ticket id>", MinArgs: 1, MaxArgs: 2,
		Short: "Take out a ticket for a station's bridge, or revoke one",
		Long: "ticket prints the ticket and nothing else, this one time; only its hash is kept. It is for the\n" +
			"attempt that runs now, and goes into the header Drawbridge-Ticket beside the principal. -json also\n" +
			"prints its id, by which ticket revoke ends it, and the address of the bridge.",
	}, func(fs *flag.FlagSet) {
		fs.StringVar(&q.Prefix, "prefix", "", "`path` of the daemon that it is for, and everything below it (default the bridge's own)")
		fs.StringVar(&q.TTL, "ttl", "", "how long it lives, as a `duration` from 15s to 15m (default 5m)")
		fs.Int64Var(&q.Uses, "uses", 0, "how `often` it may be used (default any number)")
		fs.StringVar(&methods, "methods", "", "the `methods` that it is for, with commas between them (default all)")
		fs.StringVar(&q.Principal, "principal", "", "`id` of the principal that will use it (default you)")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		switch {
		case len(args) == 2 && args[0] == "revoke":
			k, err := c.RevokeTicket(ctx, args[1])
			if err != nil {
				return err
			}
			if f.asJSON {
				return printJSON(stdout, k)
			}
			_, err = fmt.Fprintf(stdout, "ticket %s is revoked\n", k.TicketID)
			return err
		case len(args) == 2:
			return fault.New(fault.Usage, "ticket: unexpected argument %q", args[1])
		}
		if methods != "" {
			for m := range strings.SplitSeq(methods, ",") {
				q.Methods = append(q.Methods, strings.TrimSpace(m))
			}
		}
		k, err := c.Ticket(ctx, args[0], q)
		if err != nil {
			return err
		}
		if f.asJSON {
			return printJSON(stdout, k)
		}
		_, err = fmt.Fprintln(stdout, k.Ticket)
		return err
	})
}
