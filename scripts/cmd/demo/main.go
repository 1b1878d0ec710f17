// Command demo shows drawbridge's main job on real parts: a small Host lists the
// terminals of a tmux server, sends a task to a real Codex, goes on, and is
// called back when the task is done. With a real Claude Code the task needs a
// command that the agent must ask for: the Host is called back with the question,
// approves it once, and is called back again. The model behind the agent is
// scripted, so no account is needed. At the end everything drains and nothing is
// left running.
//
// demo worker shows the other job: a credential is lent to a real Codex in a locked
// container, and then searched for everywhere. demo kit installs the example kit and
// runs it: it does the same by a kit's entry. demo station runs a public agent harness
// as a station, behind a ticket.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/inbox"
	"drawbridge/scripts/internal/rig"
)

// The tasks. What the scripted model does is said by the word SCN=.
const (
	task    = "How many planks has the drawbridge? SCN=SLOW:3/It_has_twelve_planks_and_two_chains."
	answer  = "It has twelve planks and two chains."
	asking  = "Please mark the bridge as inspected. SCN=EXEC:inspected"
	command = "touch approved-inspected.txt"
	done    = "EXEC finished"
)

// wait bounds the way from the task to its callback.
const wait = time.Minute

func main() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a reader that leaves stops the output, not the cleaning up
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "worker":
			os.Exit(workerMain(os.Args[2:]))
		case "kit":
			os.Exit(kitMain(os.Args[2:]))
		case "station":
			os.Exit(stationMain(os.Args[2:]))
		}
	}
	bin := flag.String("bin", "bin", "directory of the built programs")
	o := options{}
	flag.StringVar(&o.agent, "agent", rig.Codex, "agent to show: codex or claude")
	flag.StringVar(&o.codex, "codex", rig.CodexVersions[0], "version of Codex")
	flag.StringVar(&o.claude, "claude", rig.ClaudeVersions[0], "version of Claude Code")
	flag.BoolVar(&o.daemon, "daemon", false, "let Codex hand the conversation to its background server, as it does by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, o); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		os.Exit(1)
	}
}

// options choose the agent.
type options struct {
	agent, codex, claude string
	daemon               bool
}

// outcome is what the last lines show.
type outcome struct {
	session, turn, verdict string
	callback               inbox.Message // the last one
	dir                    string
}

func run(ctx context.Context, bin string, o options) error {
	if o.agent != rig.Codex && o.agent != rig.Claude {
		return fmt.Errorf("agent %q: want %s or %s", o.agent, rig.Codex, rig.Claude)
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	begin := time.Now()
	say := func(format string, a ...any) {
		fmt.Printf("[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, a...))
	}
	var out outcome
	err = rig.Do(ctx, "demo", func(format string, a ...any) { say(format, a...) }, func(tb rig.TB) {
		out = show(tb, say, bin, o)
	})
	if err != nil {
		return err
	}
	if left := rig.Members(out.dir); len(left) > 0 {
		return fmt.Errorf("%d processes are left, the first is %s", len(left), left[0])
	}
	if _, err := os.Stat(out.dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is left", out.dir)
	}
	say("everything has ended; no process and no file is left")
	fmt.Printf("\nsession   %s\nturn      %s\ncallback  %s\nverdict   %s\n",
		out.session, out.turn, indent(out.callback.Body), out.verdict)
	return nil
}

// show runs the story; tb ends it when something is not as it should be.
func show(tb rig.TB, say func(string, ...any), bin string, o options) outcome {
	r := rig.New(tb)
	out := outcome{dir: r.Dir}
	var pane *rig.Pane
	if o.agent == rig.Claude {
		say("starting Claude Code %s in a tmux pane", o.claude)
		pane = r.Claude(o.claude, rig.ClaudeOptions{})
	} else {
		say("starting Codex %s in a tmux pane", o.codex)
		pane = r.Codex(o.codex, rig.CodexOptions{Daemon: o.daemon})
	}
	say("the agent is ready in pane %s, process %d", pane.ID, pane.PID)

	host, err := demohost.Start(tb.Context(), demohost.Options{
		Bridge: filepath.Join(bin, "bridge"), Inbox: filepath.Join(bin, "inbox"),
		Dir: filepath.Join(r.Dir, "host"), Session: "demo-session-1", Home: r.Home(),
		StoreDir: filepath.Join(r.Dir, "store"), RuntimeDir: filepath.Join(r.Dir, "run"), TmuxSockets: []string{r.Socket},
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(host.Kill)
	say("the Host has started bridge, process %d", host.PID())

	call := func(tool string, arguments map[string]any) map[string]any {
		result, err := host.Call(tb.Context(), tool, arguments)
		if err != nil {
			tb.Fatalf("%v", err)
		}
		if result.Refused {
			tb.Fatalf("%s was refused: %s", tool, result.Text)
		}
		return result.Data
	}

	listed := call("list", nil)
	var terminal string
	for _, row := range objects(listed["terminals"]) {
		say("list: %v  %v  %v  %v", row["short_ref"], row["agent"], row["screen_state"], row["id"])
		if row["screen_state"] == "idle" {
			terminal = text(row["id"])
		}
	}
	if terminal == "" {
		tb.Fatalf("list shows no idle terminal: %v", listed["terminal_scan"])
	}

	s := &story{tb: tb, say: say, host: host, call: call}
	if o.agent == rig.Claude {
		s.asked(&out, terminal)
	} else {
		s.answered(&out, terminal)
	}
	out.verdict = accepted(tb, call, out.turn)

	if err := host.Stop(); err != nil {
		tb.Fatalf("%v", err)
	}
	say("bridge has drained and ended with 0")
	return out
}

// story is one task from its send to its last callback.
type story struct {
	tb   rig.TB
	say  func(string, ...any)
	host *demohost.Host
	call func(string, map[string]any) map[string]any
}

// answered tells of a task that the agent does without a question.
func (s *story) answered(out *outcome, terminal string) {
	s.send(out, terminal, task)
	s.await(out, 1, answer)
}

// asked tells of a task whose command the agent must ask for. The decision is made
// here as a person would have told the Host to make it.
func (s *story) asked(out *outcome, terminal string) {
	s.send(out, terminal, asking)
	s.await(out, 1, command)
	var state map[string]any
	s.poll("the prompt may be approved", func() bool {
		shown, _ := s.call("status", map[string]any{"turn_id": out.turn})["terminal_status"].(map[string]any)
		state, _ = shown["approval_state"].(map[string]any)
		return state["approvable"] == true
	})
	s.say("status: the agent asks to run %q; a person says yes", command)
	if got := s.call("approve", map[string]any{"turn_id": out.turn, "decision": "approve_once"}); got["approved"] != true {
		s.tb.Fatalf("approve: %v", got)
	}
	s.say("approve: once, for this very command")
	s.await(out, 2, done)
}

func (s *story) send(out *outcome, terminal, request string) {
	sent := s.call("send", map[string]any{"terminal_id": terminal, "request": request})
	out.session, out.turn = text(sent["session_id"]), text(sent["turn_id"])
	s.say("send: %v, %v; the Host goes on with other things", sent["submission_outcome"], sent["status"])
}

// await waits for the nth callback, which must hold want.
func (s *story) await(out *outcome, n int, want string) {
	ctx, cancel := context.WithTimeout(s.tb.Context(), wait)
	defer cancel()
	messages, err := s.host.Await(ctx, n)
	if err != nil {
		s.tb.Fatalf("%v", err)
	}
	out.callback = messages[n-1]
	s.say("a callback has arrived: delivery %.30s…, kept as %s", out.callback.DeliveryID, out.callback.AcceptanceID)
	if !strings.Contains(out.callback.Body, want) {
		s.tb.Fatalf("the callback does not hold %q: %s", want, out.callback.Body)
	}
}

func (s *story) poll(what string, ok func() bool) {
	for deadline := time.Now().Add(wait); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s: not so within %s", what, wait)
		}
	}
}

// accepted waits until the Turn's status says that the callback is settled.
func accepted(tb rig.TB, call func(string, map[string]any) map[string]any, turn string) string {
	deadline := time.Now().Add(wait)
	for {
		state := ""
		for _, c := range objects(call("status", map[string]any{"turn_id": turn})["callbacks"]) {
			state = text(c["status"])
		}
		if state == "accepted" {
			return state
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the callback is %q, not accepted", state)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// indent sets the lines of a body under the first one.
func indent(body string) string {
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(body), "\n") {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n          ")
}

func text(v any) string { s, _ := v.(string); return s }

func objects(v any) []map[string]any {
	list, _ := v.([]any)
	var out []map[string]any
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
