package handoff_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// actorVariable holds an errand: this process is a program of its own on a
// world's Store, which the test may kill.
const actorVariable = "HANDOFF_TEST_ERRAND"

// sweeping is the errand of a program that follows everything, as watchd does.
const sweeping = "sweep"

// An errand is one tool call, or sweeping.
type errand struct {
	Store, Run, Socket string

	Tool   string
	ID     string // tool call id
	Target string // of a Turn, a Watch or a terminal
	Text   string
	Reject bool
}

// actor runs the errand of this process.
func actor(text string) int {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() { // the test's process holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := store.Open(ctx, store.Options{Dir: e.Store, Program: "actor"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer s.Close()
	rules, err := rule.Load("")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	route, err := callback.ParseRoute([]byte(routeJSON))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	keeper, watcher := store.NewKeeper(s, nil), files.New(nil)
	go func() { _ = keeper.Run(ctx) }()
	go func() { _ = watcher.Run(ctx) }()
	d := handoff.New(handoff.Options{
		Store: s, Leases: keeper, Files: watcher, Agents: []agent.Adapter{codex.New(codex.Options{Rules: rules})},
		Tmux:       terminal.New(terminal.Options{Sockets: []string{e.Socket}}),
		RuntimeDir: e.Run, Controller: controller, Route: &route, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	_ = os.NewFile(3, "ready").Close()
	if e.Tool == sweeping {
		(&sweeper{Desk: d, seats: map[string]*seat{}}).run(ctx)
		return 0
	}
	fmt.Println(e.do(ctx, d))
	return 0
}

const routeJSON = `{"schema":"agent-knock-knock/callback-route","version":1,"transport":"command_json_v1","profile_id":"p","profile_revision":"1","controller_session_id":"` +
	controller + `","capabilities":{"wake":true,"respond":true}}`

// do makes the call and gives the code that it ended with, "ok" when it did not
// refuse; a decision looks at the status first, as a controller must.
func (e errand) do(ctx context.Context, d *handoff.Desk) string {
	call := handoff.Call{ToolCallID: e.ID, Tool: "agent_knock_knock_" + e.Tool}
	turn := func(id string) (string, bool) { return id, len(id) > 5 && id[:5] == "turn-" }
	var err error
	switch e.Tool {
	case "send":
		_, err = d.Send(ctx, call, handoff.SendInput{TerminalID: e.Target, Request: e.Text})
	case "respond":
		_, err = d.Respond(ctx, call, handoff.RespondInput{TurnID: e.Target, Request: e.Text})
	case "approve":
		in, look := handoff.ApproveInput{TerminalID: e.Target}, handoff.StatusInput{TerminalID: e.Target}
		if id, ok := turn(e.Target); ok {
			in, look = handoff.ApproveInput{TurnID: id}, handoff.StatusInput{TurnID: id}
		}
		if e.Reject {
			in.Decision = store.DecisionReject
		}
		if _, err = d.Status(ctx, look); err == nil {
			_, err = d.Approve(ctx, call, in)
		}
	case "cancel":
		_, err = d.Cancel(ctx, call, handoff.CancelInput{TurnID: e.Target})
	case "close":
		_, err = d.Close(ctx, call, handoff.CloseInput{TurnID: e.Target})
	case "renew":
		_, err = d.Renew(ctx, call, handoff.RenewInput{TurnID: e.Target})
	case "watch":
		_, err = d.Watch(ctx, call, handoff.WatchInput{TerminalID: e.Target})
	case "unwatch":
		_, err = d.Unwatch(ctx, call, handoff.UnwatchInput{WatchID: e.Target})
	case "status":
		in := handoff.StatusInput{TerminalID: e.Target}
		if id, ok := turn(e.Target); ok {
			in = handoff.StatusInput{TurnID: id}
		}
		_, err = d.Status(ctx, in)
	case "list":
		_, err = d.List(ctx, handoff.ListInput{All: true})
	default:
		return "no such errand " + e.Tool
	}
	if err == nil {
		return "ok"
	}
	return string(fault.CodeOf(err)) + ": " + fault.CleanLine(err.Error())
}

// A sweeper is the smallest watchd: recovery, monitors and Watches in turn, one
// process at a time. What must not happen it says on stdout.
type sweeper struct {
	*handoff.Desk
	seats map[string]*seat
}

type seat struct {
	monitor *handoff.Monitor
	lookout *handoff.Lookout
	stop    func()
}

func (s *sweeper) run(ctx context.Context) {
	main, err := s.Store.Await(ctx, store.WatchdLease(), store.LeaseTTL, time.Hour)
	if err != nil {
		fmt.Println("sweep:", err)
		return
	}
	held, stop := s.Leases.Keep(ctx, main)
	defer stop()
	for ; held.Err() == nil; time.Sleep(30 * time.Millisecond) { // the poll
		if n, err := s.Store.RepairFences(held); n != 0 || err != nil {
			fmt.Println("fences and rows disagree:", n, err)
		}
		for _, p := range s.Recover(held, "").Problems {
			fmt.Println("recovery:", p)
		}
		if err := s.ClearRecords(held); err != nil {
			fmt.Println("records:", err)
		}
		if err := s.sit(held, main); err != nil {
			fmt.Println("sweep:", err)
		}
		s.observe(held)
	}
	fmt.Println("sweep: the lease was lost")
}

// sit takes a seat for every Turn and Watch that has none.
func (s *sweeper) sit(ctx context.Context, main *store.Lease) error {
	turns, err := s.Store.EligibleTurns(ctx)
	if err != nil {
		return err
	}
	for _, e := range turns {
		name := store.MonitorLease(e.Turn.ID, e.Dispatch.MessageID)
		if e.Skip != "" || e.Watched || s.seats[name] != nil {
			continue
		}
		lease, err := s.Store.Acquire(ctx, name, store.LeaseTTL)
		if err != nil {
			continue // another holds it
		}
		_, stop := s.Leases.Keep(ctx, lease)
		m, err := s.NewMonitor(e, lease)
		if err != nil {
			stop()
			return err
		}
		s.seats[name] = &seat{monitor: m, stop: func() { stop(); _ = s.Store.Release(ctx, lease) }}
	}
	watches, err := s.Store.ActiveWatches(ctx)
	if err != nil {
		return err
	}
	for _, id := range watches {
		if s.seats[id] != nil {
			continue
		}
		row, err := s.Store.Watch(ctx, id)
		if err != nil {
			return err
		}
		l, err := s.NewLookout(row, main)
		if err != nil {
			return err
		}
		s.seats[id] = &seat{lookout: l, stop: func() {}}
	}
	return nil
}

// observe looks once from every seat.
func (s *sweeper) observe(ctx context.Context) {
	names := make([]string, 0, len(s.seats))
	for name := range s.seats {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at := s.seats[name]
		pane := terminal.Pane{}
		if at.monitor != nil {
			pane = at.monitor.Pane()
		} else {
			pane = at.lookout.Pane()
		}
		var screen *terminal.Screen
		screens, err := s.Tmux.Capture(ctx, []terminal.Pane{pane})
		if got, ok := screens[pane.Key()]; ok && err == nil {
			screen = &got
		}
		var o handoff.Observed
		if at.monitor != nil {
			o, err = at.monitor.Observe(ctx, screen)
		} else {
			o, err = at.lookout.Observe(ctx, screen, screen == nil)
		}
		if code := fault.CodeOf(err); err != nil && code == fault.Internal {
			fmt.Println("observe:", err)
		}
		if o.Done {
			at.stop()
			delete(s.seats, name)
		}
	}
}
