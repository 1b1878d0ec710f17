package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

func evidenceCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	return &service.Command{
		Name: "evidence", Short: "Print the evidence of a grant", Args: "<grant id>", MinArgs: 1, MaxArgs: 1,
		Long:          "evidence prints a JSON array with one object for each forwarded request, in order.",
		Flags:         f.register,
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			db, err := f.open(ctx, true)
			if err != nil {
				return err
			}
			defer db.Close()
			rows, err := db.Evidence(ctx, args[0])
			if err != nil {
				return err
			}
			if rows == nil {
				rows = []json.RawMessage{}
			}
			data, err := json.Marshal(rows)
			if err != nil {
				return err
			}
			_, err = stdout.Write(append(data, '\n'))
			return err
		},
	}
}

func statusCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	asJSON, run := false, ""
	return &service.Command{
		Name: "status", Short: "Show who serves, where, and which grants are open", Args: "[<grant id>]", MaxArgs: 1,
		Long: "status of one grant, which may be at its end, also shows what happened to it. With -run\n" +
			"all grants of a run are listed, also those at their end.",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&asJSON, "json", false, "print one JSON object")
			fs.StringVar(&run, "run", "", "the grants with this `label`, open or ended")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			if len(args) == 1 && run != "" {
				return fault.New(fault.Usage, "status: give one of a grant id and -run")
			}
			db, err := f.open(ctx, true)
			if err != nil {
				return err
			}
			defer db.Close()
			if len(args) == 1 {
				return statusOf(ctx, db, args[0], asJSON, stdout)
			}
			st, err := look(ctx, db, run)
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

// status is what an operator asks first. It names no credential.
type status struct {
	serving   bool
	endpoints []store.Endpoint
	grants    []store.Grant
	now       int64
}

func look(ctx context.Context, db *store.Store, run string) (st status, err error) {
	st.now = db.Now()
	if st.serving, err = served(ctx, db); err != nil {
		return st, err
	}
	if st.endpoints, err = db.Endpoints(ctx); err != nil {
		return st, err
	}
	if run != "" {
		st.grants, err = db.GrantsOfRun(ctx, run)
	} else {
		st.grants, err = db.OpenGrants(ctx)
	}
	return st, err
}

func (st status) json(w io.Writer) error {
	endpoints, grants := []any{}, []any{}
	for _, e := range st.endpoints {
		endpoints = append(endpoints, strictjson.Object{
			{Name: "endpoint_id", Value: e.ID}, {Name: "bind_address", Value: e.BindAddress}, {Name: "bind_reason", Value: e.BindReason},
			{Name: "port", Value: e.Port}, {Name: "base_url", Value: e.BaseURL}, {Name: "transport_mode", Value: e.TransportMode},
			{Name: "started_at", Value: e.StartedAt},
		})
	}
	for _, g := range st.grants {
		grants = append(grants, grantObject(g))
	}
	return printJSON(w, strictjson.Object{
		{Name: "serving", Value: st.serving}, {Name: "endpoints", Value: endpoints}, {Name: "grants", Value: grants},
	})
}

// grantObject is a grant as status shows it.
func grantObject(g store.Grant) strictjson.Object {
	o := strictjson.Object{
		{Name: "grant_id", Value: g.ID}, {Name: "state", Value: g.State}, {Name: "model", Value: g.Request.Model},
		{Name: "run_id", Value: orNull(g.RunID)}, {Name: "owner_id", Value: orNull(g.OwnerID)},
		{Name: "credential_kind", Value: orNull(g.CredentialKind)}, {Name: "base_url", Value: orNull(g.BaseURL)},
		{Name: "transport_mode", Value: orNull(g.TransportMode)},
		{Name: "received", Value: g.Received}, {Name: "forwarded", Value: g.Forwarded}, {Name: "refused", Value: g.Refused},
		{Name: "max_requests", Value: g.Request.MaxRequests}, {Name: "total_forwarded", Value: g.TotalForwarded},
		{Name: "measured_input", Value: g.MeasuredInput}, {Name: "measured_output", Value: g.MeasuredOutput},
		{Name: "unmeasured_responses", Value: g.Unmeasured},
		{Name: "created_at", Value: g.CreatedAt}, {Name: "expires_at", Value: g.ExpiresAt},
	}
	if g.CloseReason != "" {
		o = append(o, strictjson.Member{Name: "close_reason", Value: g.CloseReason})
	}
	if g.RefusalCode != "" {
		o = append(o, strictjson.Member{Name: "refusal_code", Value: g.RefusalCode})
	}
	if g.ClosedAt != 0 {
		o = append(o, strictjson.Member{Name: "closed_at", Value: g.ClosedAt})
	}
	return o
}

// statusOf shows one grant, open or ended, with its events.
func statusOf(ctx context.Context, db *store.Store, id string, asJSON bool, w io.Writer) error {
	g, err := db.Grant(ctx, id)
	if err != nil {
		return err
	}
	events, err := db.BrokerEvents(ctx, id)
	if err != nil {
		return err
	}
	o := grantObject(g)
	if !asJSON {
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		for _, m := range o {
			if m.Value != nil {
				fmt.Fprintf(tw, "%s\t%v\n", m.Name, m.Value)
			}
		}
		for _, e := range events {
			line := time.UnixMilli(e.At).UTC().Format(time.RFC3339) + "\t" + e.Code
			if e.Detail != "" {
				line += ": " + fault.CleanLine(e.Detail)
			}
			fmt.Fprintln(tw, line)
		}
		return tw.Flush()
	}
	list := []any{}
	for _, e := range events {
		list = append(list, strictjson.Object{{Name: "at", Value: e.At}, {Name: "code", Value: e.Code}, {Name: "detail", Value: orNull(e.Detail)}})
	}
	return printJSON(w, append(o, strictjson.Member{Name: "events", Value: list}))
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (st status) text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if st.serving {
		fmt.Fprintln(tw, "a brokerd serves this Store")
	} else {
		fmt.Fprintln(tw, "no brokerd serves this Store")
	}
	if len(st.endpoints) > 0 {
		fmt.Fprintln(tw, "\nLISTENS ON\tPORT\tBASE URL\tMODE\tWHY")
	}
	for _, e := range st.endpoints {
		port := strconv.FormatInt(e.Port, 10)
		if e.Kind() == store.EndpointUnix {
			port = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", e.BindAddress, port, e.BaseURL, e.TransportMode, e.BindReason)
	}
	if len(st.grants) > 0 {
		fmt.Fprintln(tw, "\nGRANT\tSTATE\tRUN\tMODEL\tSPENT\tOF\tREFUSED\tTOKENS\tENDS IN")
	}
	for _, g := range st.grants {
		state := g.State
		if g.CloseRequestedAt != 0 && g.State == store.GrantActive {
			state = "to be closed"
		}
		left := "-"
		if g.Open() {
			left = max(time.Duration(g.ExpiresAt-st.now)*time.Millisecond, 0).Truncate(time.Second).String()
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", g.ID, state, g.RunID, g.Request.Model, g.TotalForwarded,
			g.Request.MaxRequests, g.Refused, g.MeasuredInput+g.MeasuredOutput, left)
	}
	return tw.Flush()
}
