package main

import (
	"context"
	"flag"
	"io"

	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
)

func logsCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	follow, attempt := false, int64(0)
	return ask(&f, service.Command{
		Name: "logs", Args: "<station id>", MinArgs: 1, Short: "Print what a daemon wrote, redacted",
		Long: "logs prints the output of the newest attempt. With -f it goes on until the attempt has ended. With\n" +
			"-json each piece is one line with its stream.",
	}, func(fs *flag.FlagSet) {
		fs.BoolVar(&follow, "f", false, "follow until the attempt has ended")
		fs.Int64Var(&attempt, "attempt", 0, "`number` of another attempt than the newest")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		return c.Logs(ctx, args[0], attempt, follow, func(o control.Output) error {
			if f.asJSON {
				return printJSON(stdout, o)
			}
			_, err := io.WriteString(stdout, o.Text)
			return err
		})
	})
}
