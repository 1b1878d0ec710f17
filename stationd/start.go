package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/control"
)

func startCommand(stdin io.Reader, stdout io.Writer) *service.Command {
	var f clientFlags
	spec, key, replace, wait := "", "", "", false
	return ask(&f, service.Command{
		Name: "start", Short: "Start a station, or a station's next attempt",
		Long: "start -f SPEC makes a station and begins its first attempt; start -replace ID ends the running\n" +
			"attempt of a station, if there is one, and begins the next. With -wait it returns when the daemon\n" +
			"is ready, and with status 1 when the attempt has ended instead.",
	}, func(fs *flag.FlagSet) {
		fs.StringVar(&spec, "f", "", "`file` with the spec as JSON; - is stdin")
		fs.StringVar(&key, "key", "", "`name` of this start: the same name and spec give the same station")
		fs.StringVar(&replace, "replace", "", "`id` of the station to begin anew")
		fs.BoolVar(&wait, "wait", false, "wait until the daemon is ready")
	}, func(ctx context.Context, c *control.Client, _ []string) error {
		if (spec == "") == (replace == "") || replace != "" && key != "" {
			return fault.New(fault.Usage, "start: give -f FILE, with or without -key, or -replace ID")
		}
		started, err := begin(ctx, c, spec, key, replace, stdin)
		if err != nil {
			return err
		}
		if !f.asJSON {
			fmt.Fprintf(stdout, "station  %s\nattempt  %d\n", started.StationID, started.Attempt)
			showBridge(stdout, started.Bridge)
		}
		var st control.Status
		if wait {
			if st, err = awaitReady(ctx, c, started); err != nil {
				return err
			}
		}
		switch {
		case f.asJSON:
			return printJSON(stdout, started)
		case wait:
			_, err = fmt.Fprintf(stdout, "ready    after %s\n", took(st))
		}
		return err
	})
}

func begin(ctx context.Context, c *control.Client, spec, key, replace string, stdin io.Reader) (control.Started, error) {
	if replace != "" {
		return c.Replace(ctx, replace)
	}
	data, err := readSpec(spec, stdin)
	if err != nil {
		return control.Started{}, err
	}
	return c.Start(ctx, data, key)
}

// readSpec reads a file, or stdin for "-", that is no longer than a spec may be.
func readSpec(path string, stdin io.Reader) ([]byte, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.New(fault.Usage, "start: read the spec: %w", err)
		}
		defer f.Close()
		stdin = f
	}
	data, err := io.ReadAll(io.LimitReader(stdin, control.MaxBody+1))
	switch {
	case err != nil:
		return nil, fault.New(fault.Usage, "start: read the spec: %w", err)
	case len(data) > control.MaxBody:
		return nil, fault.New(fault.InputTooLarge, "start: the spec has more than %d bytes", control.MaxBody)
	}
	return data, nil
}

func awaitReady(ctx context.Context, c *control.Client, started control.Started) (control.Status, error) {
	st, err := c.Await(ctx, started.StationID, started.Attempt, control.WaitReady)
	if err != nil {
		return st, err
	}
	if st.Attempt != started.Attempt || st.Detail == nil || st.Detail.AttemptState != "ready" {
		return st, neverReady(started, st)
	}
	return st, nil
}

// neverReady says how an attempt ended before it was ready, why where that is known,
// and where to look.
func neverReady(started control.Started, st control.Status) error {
	why, hint := textOf(st.StopReason), ""
	if d := st.Detail; st.Attempt == started.Attempt && d != nil {
		if f := d.Failure; f != nil && f.Message != "" {
			why, hint = why+": "+f.Message, f.Hint
		} else if exit := exitText(d.Exit); st.StopReason != nil && *st.StopReason == store.StopExited && exit != "" {
			why += ": " + exit
		}
		if d.DaemonPID != 0 {
			hint = fmt.Sprintf("stationd logs %s shows what the daemon said, stationd evidence show %s what happened", started.StationID, started.StationID)
		}
	}
	if hint == "" {
		hint = fmt.Sprintf("stationd status %s and stationd evidence show %s tell what happened", started.StationID, started.StationID)
	}
	return fault.New(fault.StationEnded, "start: attempt %d of station %s has ended before it was ready: %s",
		started.Attempt, started.StationID, why).WithHint("%s", hint)
}

// took is the time from the start of the daemon until it was ready.
func took(st control.Status) string {
	if st.Detail.StartedAt == nil || st.Detail.ReadyAt == nil {
		return "-"
	}
	return st.Detail.ReadyAt.Sub(*st.Detail.StartedAt).String()
}

func showBridge(w io.Writer, b *control.Bridge) {
	switch {
	case b == nil:
	case b.URL == "":
		fmt.Fprintf(w, "bridge   %s\n", b.Path)
	default:
		fmt.Fprintf(w, "bridge   %s\n", b.URL)
	}
}
