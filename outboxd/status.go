package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

// storeFlags are the settings of the commands that only look into a Store.
type storeFlags struct{ service.StoreFlags }

func (f *storeFlags) register(fs *flag.FlagSet) { f.Register(fs) }

func (f *storeFlags) open(ctx context.Context, readOnly bool) (*store.Store, error) {
	dir, err := f.Path()
	if err != nil {
		return nil, err
	}
	return store.OpenExisting(ctx, store.Options{Dir: dir, Program: "outboxd", ReadOnly: readOnly})
}

func statusCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	asJSON := false
	return &service.Command{
		Name: "status", Short: "Show what waits, what was delivered, and who delivers",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&asJSON, "json", false, "print one JSON object")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			db, err := f.open(ctx, true)
			if err != nil {
				return err
			}
			defer db.Close()
			st, err := look(ctx, db)
			if err != nil {
				return err
			}
			if asJSON {
				return st.json(stdout)
			}
			return st.text(stdout)
		},
	}
}

// status is the outbox in numbers. It names no session: that is authority.
type status struct {
	live   int // outboxd that hold a lease
	counts []store.CallbackCount
	open   []store.Callback
}

// maxOpen bounds the rows that status lists for each Profile.
const maxOpen = 100

func look(ctx context.Context, db *store.Store) (status, error) {
	var st status
	leases, err := db.Leases(ctx, "outboxd/")
	if err != nil {
		return st, err
	}
	for _, l := range leases {
		if l.Live {
			st.live++
		}
	}
	if st.counts, err = db.CallbackCounts(ctx); err != nil {
		return st, err
	}
	slices.SortFunc(st.counts, func(a, b store.CallbackCount) int {
		return strings.Compare(a.ProfileID+"\x00"+a.Lane+"\x00"+a.Status, b.ProfileID+"\x00"+b.Lane+"\x00"+b.Status)
	})
	seen := map[string]bool{}
	for _, c := range st.counts {
		if seen[c.ProfileID] {
			continue
		}
		seen[c.ProfileID] = true
		rows, err := db.OpenCallbacks(ctx, store.RouteFamily{ProfileID: c.ProfileID, RouteBound: true}, maxOpen)
		if err != nil {
			return st, err
		}
		st.open = append(st.open, rows...)
	}
	return st, nil
}

func (st status) json(w io.Writer) error {
	counts, open := []any{}, []any{}
	for _, c := range st.counts {
		counts = append(counts, strictjson.Object{
			{Name: "profile_id", Value: c.ProfileID}, {Name: "lane", Value: c.Lane}, {Name: "status", Value: c.Status}, {Name: "count", Value: c.Count},
		})
	}
	for _, r := range st.open {
		o := strictjson.Object{
			{Name: "delivery_id", Value: r.DeliveryID}, {Name: "profile_id", Value: r.RouteProfileID},
			{Name: "profile_revision", Value: r.RouteProfileRevision}, {Name: "lane", Value: r.Lane},
			{Name: "event_type", Value: r.EventType}, {Name: "status", Value: r.Status}, {Name: "attempts", Value: r.Attempts},
		}
		if r.Status == store.CallbackRetryWait {
			o = append(o, strictjson.Member{Name: "next_attempt_at", Value: r.NextAttemptAt})
		}
		if r.LastErrorCode != "" {
			o = append(o, strictjson.Member{Name: "last_error_code", Value: r.LastErrorCode})
		}
		open = append(open, o)
	}
	data, err := strictjson.Object{
		{Name: "delivering", Value: st.live}, {Name: "counts", Value: counts}, {Name: "open", Value: open},
	}.JSON()
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

func (st status) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "outboxd delivering now: %d\n", st.live)
	if len(st.counts) > 0 {
		fmt.Fprintln(tw, "\nPROFILE\tLANE\tSTATUS\tCOUNT")
	}
	for _, c := range st.counts {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\n", c.ProfileID, c.Lane, c.Status, c.Count)
	}
	if len(st.open) > 0 {
		fmt.Fprintln(tw, "\nDELIVERY\tREVISION\tEVENT\tSTATUS\tATTEMPTS\tLAST ERROR")
	}
	for _, r := range st.open {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\n", r.DeliveryID, r.RouteProfileRevision, r.EventType, r.Status, r.Attempts, r.LastErrorCode)
	}
	return tw.Flush()
}

func abandonCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	var delivery string
	return &service.Command{
		Name: "abandon", Short: "Give up one delivery that is not settled",
		Long: "abandon marks one row superseded, with the reason operator_abandoned. Nothing sends it to\n" +
			"another session or under another revision. A callback that runs at this moment is not stopped.",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			service.Argument(fs, &delivery, "delivery", "`id` of the delivery, as status shows it")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			if delivery == "" {
				return fault.New(fault.Usage, "abandon: --delivery is missing")
			}
			look, err := f.open(ctx, true) // a Store that is not there is not made
			if err != nil {
				return err
			}
			if err := look.Close(); err != nil {
				return err
			}
			db, err := f.open(ctx, false)
			if err != nil {
				return err
			}
			defer db.Close()
			if err := db.Writable(); err != nil {
				return err
			}
			row, err := db.AbandonCallback(ctx, delivery)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(stdout, "%s %s\n", row.DeliveryID, row.Status)
			return err
		},
	}
}
