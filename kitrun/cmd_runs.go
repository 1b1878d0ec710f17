package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

func runsCommand(stdout io.Writer) *service.Command {
	var f service.StoreFlags
	asJSON := false
	return &service.Command{
		Name: "runs", Short: "List the runs of kits that the Store knows, the newest first", OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			f.Register(fs)
			fs.BoolVar(&asJSON, "json", false, "print one JSON array")
		},
		Run: func(ctx context.Context, _ []string) error {
			dir, err := f.Path()
			if err != nil {
				return err
			}
			db, err := store.OpenExisting(ctx, store.Options{Dir: dir, Program: "kitrun", ReadOnly: true})
			if err != nil {
				return err
			}
			defer db.Close()
			rows, err := db.KitRuns(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return runsJSON(stdout, rows)
			}
			return runsTable(stdout, rows)
		},
	}
}

// runJSON is a run as runs -json prints it; what is not known is null.
type runJSON struct {
	InvocationID   string  `json:"invocation_id"`
	KitID          string  `json:"kit_id"`
	Dest           string  `json:"dest"`
	KitHash        string  `json:"kit_hash"`
	RequestSHA256  string  `json:"request_sha256"`
	ControllerRoot string  `json:"controller_root"`
	OwnerID        string  `json:"owner_id"`
	State          string  `json:"state"`
	Status         *string `json:"status"`
	ExitCode       *int64  `json:"exit_code"`
	ErrorCode      *string `json:"error_code"`
	DeadlineAt     int64   `json:"deadline_at"` // ms since 1970, like the others
	StartedAt      int64   `json:"started_at"`
	EndedAt        *int64  `json:"ended_at"`
	Removed        int64   `json:"removed_containers"`
}

func runsJSON(w io.Writer, rows []store.KitRun) error {
	all := make([]runJSON, 0, len(rows))
	for _, r := range rows {
		all = append(all, runJSON{
			r.InvocationID, r.KitID, r.Dest, r.KitHash, r.RequestSHA256, r.ControllerRoot, r.OwnerID, r.State,
			orNull(r.Status, r.Status != ""), orNull(r.ExitCode, r.ExitCode >= 0), orNull(r.ErrorCode, r.ErrorCode != ""),
			r.DeadlineAt, r.StartedAt, orNull(r.EndedAt, r.EndedAt > 0), r.Removed,
		})
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(all)
}

func orNull[T any](v T, known bool) *T {
	if known {
		return &v
	}
	return nil
}

func runsTable(w io.Writer, rows []store.KitRun) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "INVOCATION\tKIT\tSTATE\tSTATUS\tEXIT\tERROR\tSTARTED")
	for _, r := range rows {
		exit := "-"
		if r.ExitCode >= 0 {
			exit = fmt.Sprint(r.ExitCode)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.InvocationID, orDash(r.KitID), r.State, orDash(r.Status), exit, orDash(r.ErrorCode),
			time.UnixMilli(r.StartedAt).UTC().Format(time.RFC3339))
	}
	return tw.Flush()
}

// orDash keeps columns apart; a status is the kit's own word.
func orDash(s string) string {
	if s = fault.CleanLine(s); s == "" {
		return "-"
	}
	return s
}
