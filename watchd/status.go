package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// statusView is what status prints.
type statusView struct {
	Sweeping bool         `json:"sweeping"`
	Holder   string       `json:"holder,omitempty"` // program, instance and pid of the sweeping watchd
	Turns    []turnLine   `json:"turns"`
	Watches  []watchLine  `json:"watches"`
	Store    storeSummary `json:"store"`
}

type turnLine struct {
	TurnID    string `json:"turn_id"`
	Status    string `json:"status"`
	Monitored bool   `json:"monitored"`
	Skipped   string `json:"skipped,omitempty"`
}

type watchLine struct {
	WatchID  string `json:"watch_id"`
	Terminal string `json:"terminal_id"`
	Mode     string `json:"mode"`
}

type storeSummary struct {
	Dir      string `json:"dir"`
	Writable bool   `json:"writable"`
	WALBytes int64  `json:"wal_bytes"`
}

// statusCommand tells an operator whether somebody sweeps, and what.
func statusCommand(stdout io.Writer) *service.Command {
	var cfg service.Common
	var asJSON bool
	return &service.Command{
		Name:          "status",
		Short:         "Tell whether a watchd sweeps this Store, and what it follows",
		OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			cfg.Register(fs, service.DefaultDrain)
			fs.BoolVar(&asJSON, "json", false, "print JSON")
		},
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.Check(); err != nil {
				return err
			}
			db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "watchd", ReadOnly: true})
			if err != nil {
				return err
			}
			defer db.Close()
			v, err := readStatus(ctx, db)
			if err != nil {
				return err
			}
			return v.print(stdout, asJSON)
		},
	}
}

func readStatus(ctx context.Context, db *store.Store) (statusView, error) {
	v := statusView{Turns: []turnLine{}, Watches: []watchLine{}}
	info, err := db.Info(ctx)
	if err != nil {
		return v, err
	}
	v.Store = storeSummary{Dir: info.Dir, Writable: info.Reason == "" || info.Writable, WALBytes: info.WALBytes}
	rows, err := db.Leases(ctx, store.WatchdLease())
	if err != nil {
		return v, err
	}
	for _, r := range rows {
		if r.Live {
			v.Sweeping, v.Holder = true, r.Holder
		}
	}
	turns, err := db.EligibleTurns(ctx)
	if err != nil {
		return v, err
	}
	for _, e := range turns {
		v.Turns = append(v.Turns, turnLine{TurnID: e.Turn.ID, Status: e.Turn.Status, Monitored: e.Watched, Skipped: e.Skip})
	}
	watches, err := db.Watches(ctx, store.WatchFilter{ActiveOnly: true})
	if err != nil {
		return v, err
	}
	for _, w := range watches {
		v.Watches = append(v.Watches, watchLine{WatchID: w.ID, Terminal: w.TerminalID, Mode: w.Mode})
	}
	return v, nil
}

func (v statusView) print(w io.Writer, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	if v.Sweeping {
		fmt.Fprintf(w, "sweeping: yes, by %s\n", v.Holder)
	} else {
		fmt.Fprintln(w, "sweeping: no watchd runs on this Store")
	}
	fmt.Fprintf(w, "store: %s, write-ahead log %d bytes\n", v.Store.Dir, v.Store.WALBytes)
	for _, t := range v.Turns {
		state := "not monitored"
		switch {
		case t.Skipped != "":
			state = "skipped: " + t.Skipped
		case t.Monitored:
			state = "monitored"
		}
		fmt.Fprintf(w, "turn %s  %s  %s\n", t.TurnID, t.Status, state)
	}
	for _, x := range v.Watches {
		fmt.Fprintf(w, "watch %s  %s  %s\n", x.WatchID, x.Mode, x.Terminal)
	}
	_, err := fmt.Fprintf(w, "%d turns, %d watches\n", len(v.Turns), len(v.Watches))
	return err
}
