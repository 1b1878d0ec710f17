package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
)

func evidenceCommand(stdout io.Writer) *service.Command {
	return &service.Command{
		Name: "evidence", Short: "Show, check or take along what is kept of a station",
		Commands: []*service.Command{evidenceShow(stdout), evidenceVerify(stdout), evidenceExport(stdout)},
	}
}

func evidenceShow(stdout io.Writer) *service.Command {
	var f clientFlags
	attempt := int64(0)
	return ask(&f, service.Command{
		Name: "show", Args: "<station id>", MinArgs: 1, Short: "Print the documents of the attempts that have ended",
		Long: "show prints each document for people; with -json one object with all documents and their digests.",
	}, func(fs *flag.FlagSet) {
		fs.Int64Var(&attempt, "attempt", 0, "`number` of one attempt")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		e, err := c.Evidence(ctx, args[0], attempt)
		if err != nil {
			return err
		}
		if f.asJSON {
			return printJSON(stdout, e)
		}
		if len(e.Documents) == 0 {
			_, err = fmt.Fprintln(stdout, "no attempt has ended")
			return err
		}
		for _, d := range e.Documents {
			var b bytes.Buffer
			if err := json.Indent(&b, d.Document, "", "  "); err != nil {
				return fault.New(fault.EvidenceFlawed, "show evidence of attempt %d: it is no JSON document", d.Attempt)
			}
			fmt.Fprintf(stdout, "%s\n", b.Bytes())
		}
		return nil
	})
}

func evidenceVerify(stdout io.Writer) *service.Command {
	var f clientFlags
	return ask(&f, service.Command{
		Name: "verify", Args: "<station id>", MinArgs: 1, Short: "Recompute the chain of events and the digests of the documents",
		Long: "verify shows accidents and edits after the fact, with status 1. It is no signature: whoever could\n" +
			"rewrite the whole Store could rewrite the chain.",
	}, nil, func(ctx context.Context, c *control.Client, args []string) error {
		v, err := c.Verify(ctx, args[0])
		if err != nil {
			return err
		}
		flawed := fault.New(fault.EvidenceFlawed, "verify station %s: %d places are not as they were written", args[0], len(v.Flaws))
		if f.asJSON {
			if err := printJSON(stdout, v); err != nil || len(v.Flaws) == 0 {
				return err
			}
			return service.Status(fault.ExitCode(flawed)) // the object is the answer, there is no second one
		}
		fmt.Fprintf(stdout, "%d events and %d documents checked, %d events purged\nhead %s\n", v.Events, v.Documents, v.Purged, v.Head)
		for _, flaw := range v.Flaws {
			fmt.Fprintf(stdout, "FLAW  %s: %s\n", flaw.Place, flaw.What)
		}
		if len(v.Flaws) > 0 {
			return flawed
		}
		_, err = fmt.Fprintln(stdout, "everything is as it was written")
		return err
	})
}

func evidenceExport(stdout io.Writer) *service.Command {
	var f clientFlags
	path := ""
	return ask(&f, service.Command{
		Name: "export", Args: "<station id>", MinArgs: 1, Short: "Write all documents and events of a station as one JSON document",
	}, func(fs *flag.FlagSet) {
		fs.StringVar(&path, "o", "", "`file` to make; it must not exist (default stdout)")
	}, func(ctx context.Context, c *control.Client, args []string) error {
		if path == "" {
			return c.Export(ctx, args[0], stdout)
		}
		out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		switch {
		case errors.Is(err, fs.ErrExist):
			return fault.New(fault.Usage, "export evidence of station %s: %s is there already", args[0], path).
				WithHint("an export replaces nothing: give -o another name, or move that file away")
		case err != nil:
			return fault.New(fault.Usage, "export evidence of station %s: %w", args[0], err).
				WithHint("give -o a file in a directory that is there, and where you may write")
		}
		if err := errors.Join(c.Export(ctx, args[0], out), out.Close()); err != nil {
			_ = os.Remove(path)
			return err
		}
		return nil
	})
}
