// Command demo shows drawbridge's main job on real parts: a small Host lists the
// terminals of a tmux server, sends a task to a real Codex, goes on, and is
// called back when the task is done. The model behind Codex is scripted, so no
// account is needed. At the end everything drains and nothing is left running.
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

// The task. What the scripted model answers is behind the slash.
const (
	task   = "How many planks has the drawbridge? SCN=SLOW:3/It_has_twelve_planks_and_two_chains."
	answer = "It has twelve planks and two chains."
)

// wait bounds the way from the task to its callback.
const wait = time.Minute

func main() {
	bin := flag.String("bin", "bin", "directory of the built programs")
	version := flag.String("codex", rig.CodexVersions[0], "version of Codex")
	daemon := flag.Bool("daemon", false, "let Codex hand the conversation to its background server, as it does by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *version, *daemon); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		os.Exit(1)
	}
}

// outcome is what the last lines show.
type outcome struct {
	session, turn, verdict string
	callback               inbox.Message
	dir                    string
}

func run(ctx context.Context, bin, version string, daemon bool) error {
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
		out = show(tb, say, bin, version, daemon)
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
func show(tb rig.TB, say func(string, ...any), bin, version string, daemon bool) outcome {
	r := rig.New(tb)
	out := outcome{dir: r.Dir}
	say("starting Codex %s in a tmux pane", version)
	pane := r.Codex(version, rig.CodexOptions{Daemon: daemon})
	say("Codex is ready in pane %s, process %d", pane.ID, pane.PID)

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

	sent := call("send", map[string]any{"terminal_id": terminal, "request": task})
	out.session, out.turn = text(sent["session_id"]), text(sent["turn_id"])
	say("send: %v, %v; the Host goes on with other things", sent["submission_outcome"], sent["status"])

	ctx, cancel := context.WithTimeout(tb.Context(), wait)
	defer cancel()
	messages, err := host.Await(ctx, 1)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	out.callback = messages[0]
	say("a callback has arrived: delivery %.30s…, kept as %s", out.callback.DeliveryID, out.callback.AcceptanceID)
	if !strings.Contains(out.callback.Body, answer) {
		tb.Fatalf("the callback does not hold the answer: %s", out.callback.Body)
	}
	out.verdict = accepted(tb, call, out.turn)

	if err := host.Stop(); err != nil {
		tb.Fatalf("%v", err)
	}
	say("bridge has drained and ended with 0")
	return out
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
