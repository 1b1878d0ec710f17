package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
)

// clientFlags are the settings of the commands that ask a running stationd.
type clientFlags struct {
	runtimeDir, config string
	asJSON             bool
}

func (f *clientFlags) register(fs *flag.FlagSet) {
	dir, _ := service.DefaultRuntimeDir() // reported by client when no flag is given
	fs.StringVar(&f.runtimeDir, "runtime-dir", dir, "`directory` of locks and sockets of the stationd to ask")
	fs.StringVar(&f.config, "config", service.DefaultConfig("stationd"), "JSON `file` with settings")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON")
}

// client asks the stationd of the runtime directory.
func (f *clientFlags) client() (*control.Client, error) {
	if f.runtimeDir == "" {
		return nil, fault.New(fault.Usage, "-runtime-dir is empty and has no default: this user has no home directory")
	}
	dir, err := filepath.Abs(f.runtimeDir)
	if err != nil {
		return nil, fault.New(fault.Usage, "-runtime-dir: %w", err)
	}
	return control.NewClient(filepath.Join(dir, control.Socket)), nil
}

// ask makes a command that asks stationd; run gets its arguments.
func ask(f *clientFlags, c service.Command, flags func(*flag.FlagSet), run func(ctx context.Context, c *control.Client, args []string) error) *service.Command {
	c.OtherSettings = true
	c.Flags = func(fs *flag.FlagSet) {
		f.register(fs)
		if flags != nil {
			flags(fs)
		}
	}
	c.Run = func(ctx context.Context, args []string) error {
		client, err := f.client()
		if err != nil {
			return err
		}
		return run(ctx, client, args)
	}
	return &c
}

// printJSON writes one document in one line.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// table writes rows of cells in columns.
func table(w io.Writer, rows ...[]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, fault.CleanLine(cell))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// orDash is a text, or what stands for none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func textOf(text *string) string {
	if text == nil {
		return "-"
	}
	return *text
}

// when is a time as people read it, and how far it is from now.
func when(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	text := t.UTC().Format("2006-01-02 15:04:05Z")
	switch d := now.Sub(*t).Truncate(time.Second); {
	case d >= 0:
		return text + " (" + d.String() + " ago)"
	default:
		return text + " (in " + (-d).String() + ")"
	}
}

// checkArguments refuses a command line with a secret in it, before anything shows
// it: whoever may list processes sees it (station §15).
func checkArguments(args []string) error {
	finder := redact.New(redact.Options{})
	for i, arg := range args {
		if finder.Finds([]byte(arg)) {
			return fault.New(fault.SecretAsArgument, "argument %d holds a secret", i+1).
				WithHint("a ticket is named by its id, tkt_…, and a principal by prn_…; take this secret out of use")
		}
	}
	return nil
}
