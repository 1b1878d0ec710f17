package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/evidence"
)

func listCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	return ask(&f, service.Command{
		Name: "list", Short: "List the stations on which you have a role",
	}, nil, func(ctx context.Context, c *control.Client, _ []string) error {
		all, err := c.List(ctx)
		if err != nil {
			return err
		}
		if f.asJSON {
			return printJSON(stdout, all)
		}
		if len(all.Stations) == 0 {
			_, err = fmt.Fprintln(stdout, "no station")
			return err
		}
		rows := [][]string{{"STATION", "NAME", "STATE", "WANTED", "ATTEMPT", "REASON", "DAEMON", "CLEANUP", "PROFILE", "OWNER", "MADE"}}
		for _, s := range all.Stations {
			rows = append(rows, []string{
				s.StationID, orDash(s.Name), s.State, s.DesiredState, strconv.FormatInt(s.Attempt, 10), textOf(s.StopReason),
				s.Command, s.Cleanup, s.Profile, s.Owner, when(&s.CreatedAt, time.Now()),
			})
		}
		if all.More {
			rows = append(rows, []string{"… and older ones"})
		}
		return table(stdout, rows...)
	})
}

func statusCommand(stdout io.Writer) *service.Command {
	var f clientFlags
	return ask(&f, service.Command{
		Name: "status", Args: "<station id>", MinArgs: 1, Short: "Show one station",
		Long: "status shows nine facts that change independently, and for those who may control the station\n" +
			"what its newest attempt runs on.",
	}, nil, func(ctx context.Context, c *control.Client, args []string) error {
		st, err := c.Status(ctx, args[0])
		if err != nil {
			return err
		}
		if f.asJSON {
			return printJSON(stdout, st)
		}
		return table(stdout, statusRows(st, time.Now())...)
	})
}

// statusRows are the nine facts first, each in a line of its own and with what it
// means.
func statusRows(st control.Status, now time.Time) [][]string {
	rows := [][]string{
		{"station", st.StationID, whatItIs(st)},
		{"state", st.State, ""},
		{"wanted", st.DesiredState, ""},
		{"attempt", strconv.FormatInt(st.Attempt, 10), ""},
		{"last seen", when(st.LastObservedAt, now), ""},
		{"stop reason", textOf(st.StopReason), failureText(st.Detail)},
		{"lease", textOf(st.LeaseState), says["lease"][textOf(st.LeaseState)]},
		{"supervisor", st.Supervisor, says["supervisor"][st.Supervisor]},
		{"daemon", st.Command, says["daemon"][st.Command]},
		{"cleanup", st.Cleanup, cleanupMeans(st)},
	}
	if d := st.Detail; d != nil {
		rows = append(rows, []string{""})
		rows = append(rows, detailRows(d, now)...)
	}
	for i, row := range rows {
		for len(row) > 1 && row[len(row)-1] == "" {
			row = row[:len(row)-1]
		}
		rows[i] = row
	}
	return rows
}

func whatItIs(st control.Status) string {
	text := "profile " + st.Profile + ", owner " + st.Owner + ", your role " + st.Role
	if st.Name != "" {
		text = "name " + st.Name + ", " + text
	}
	return text
}

// failureText says why an attempt was never ready.
func failureText(d *control.Detail) string {
	if d == nil || d.Failure == nil {
		return ""
	}
	return d.Failure.Message
}

// says are words for the values that need some.
var says = map[string]map[string]string{
	"lease": {
		"lost": "the provider does not grant it any more", "cleanup_failed": "it is kept, and tried again every five minutes: stationd lease release tries now",
	},
	"supervisor": {"silent": "the shim has missed its beats", "live": "the shim answers"},
	"daemon":     {"live": "it runs"},
	"cleanup": {
		"pending": "it is under way", "done": "nothing is left",
	},
}

func detailRows(d *control.Detail, now time.Time) [][]string {
	rows := [][]string{{"attempt state", d.AttemptState}, {"lease id", d.LeaseID + " of provider " + d.Provider}}
	add := func(name, value string) {
		if value != "" && value != "-" {
			rows = append(rows, []string{name, value})
		}
	}
	if d.Bridge != nil {
		add("bridge", orDash(d.Bridge.URL))
		add("bridge path", d.Bridge.Path)
		add("bridge host", d.Bridge.Host+" (for a browser)")
	}
	add("containment", d.Containment)
	add("egress", d.Egress)
	if d.ShimPID != 0 {
		add("shim pid", strconv.FormatInt(d.ShimPID, 10))
	}
	if d.DaemonPID != 0 {
		add("daemon pid", strconv.FormatInt(d.DaemonPID, 10))
		add("daemon port", strconv.FormatInt(d.Port, 10)+" (in its own network)")
	}
	add("started", when(d.StartedAt, now))
	add("ready", when(d.ReadyAt, now))
	add("last activity", when(d.LastActivity, now))
	if d.EndedAt == nil {
		add("ends by ttl", when(d.TTLDeadline, now))
		add("ends when idle", idle(d.IdleMS))
	}
	add("stop wanted", when(d.StopAt, now))
	add("stop by", d.StopBy)
	add("ended", when(d.EndedAt, now))
	add("exit", exitText(d.Exit))
	add("cleanup", cleanupText(d.Left))
	add("command hash", d.CommandHash)
	return rows
}

func idle(ms int64) string {
	if ms == 0 {
		return "never"
	}
	return "after " + (time.Duration(ms) * time.Millisecond).String()
}

// exitText says how a daemon ended, from exit_json.
func exitText(data []byte) string {
	var e evidence.Exit
	switch err := json.Unmarshal(data, &e); {
	case data == nil:
		return ""
	case err != nil:
		return string(data)
	case e.Code != nil:
		return "status " + strconv.Itoa(*e.Code)
	case e.Signal != "":
		return "by " + e.Signal
	}
	return "unknown"
}

// cleanupText says what was sent and what is left, from cleanup_json.
func cleanupText(data []byte) string {
	var c evidence.CleanedUp
	switch err := json.Unmarshal(data, &c); {
	case data == nil:
		return ""
	case err != nil:
		return string(data)
	}
	var parts []string
	if c.Cleanup.Result != "" {
		parts = append(parts, c.Cleanup.Result)
	}
	for _, s := range c.SignalPath {
		parts = append(parts, s.Signal+" to "+s.Target+": "+s.Result)
	}
	for _, left := range c.Cleanup.Left {
		parts = append(parts, fmt.Sprintf("LEFT pid %d (%s)", left.PID, left.Name))
	}
	return strings.Join(parts, ", ")
}
