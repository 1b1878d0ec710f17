package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/inbox"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/process"
)

// Bounds of waiting.
const (
	callWait     = 60 * time.Second // one tool call; a terminal may be busy for 30 s
	callbackWait = 60 * time.Second // task to callback, for answers that come at once
	drainWait    = 40 * time.Second // outboxd may drain for 35 s
)

// realSuffix marks a program behind a wrapper (crashAt).
const realSuffix = ".real"

// args are the arguments of a tool.
type args = map[string]any

// A world is one Store with everything around it: a rig for panes, a runtime
// directory, and the Hosts that work on it.
type world struct {
	t       *testing.T
	rig     *rig.Rig
	store   string
	runtime string
	bin     string // directory of the programs
	first   *host
	hosts   []*host
	options options
}

// options change how a world's Hosts are started.
type options struct {
	args []string // further arguments of bridge
	env  []string // further variables of bridge
}

type option func(*world)

// withArgs adds arguments of `bridge host-bridge`.
func withArgs(a ...string) option {
	return func(w *world) { w.options.args = append(w.options.args, a...) }
}

// withCrash makes a program (bridge, watchd, outboxd) end at a crash point, in
// its first life only.
func withCrash(program, point string) option { return func(w *world) { w.crashAt(program, point) } }

// newWorld makes an empty world and lets the journey run beside others: worlds
// share nothing, and a journey mostly waits for its agent. Nothing runs in it yet but
// tmux and the model.
func newWorld(t *testing.T, opts ...option) *world {
	t.Helper()
	t.Parallel()
	needAgents(t)
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	r := rig.New(t)
	w := &world{t: t, rig: r, store: filepath.Join(r.Dir, "store"), runtime: filepath.Join(r.Dir, "run"), bin: bin}
	for _, o := range opts {
		o(w)
	}
	t.Cleanup(w.end)
	return w
}

// needAgents skips where scripts/setup has not run; in CI that is a failure.
func needAgents(t *testing.T) {
	t.Helper()
	need := func(path func(string) (string, error), versions []string) {
		for _, version := range versions {
			if _, err := path(version); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
		}
	}
	need(rig.CodexPath, rig.CodexVersions)
	need(rig.ClaudePath, rig.ClaudeVersions)
}

// newest leaves a journey on an older version of an agent to -long. What differs
// between versions, the screens and the records, is proven by the recordings of each
// in shared/agent; approvals and an ordinary turn run on all of them here, too.
func newest(t *testing.T, version string) {
	t.Helper()
	if version != rig.CodexVersions[0] && version != rig.ClaudeVersions[0] && os.Getenv("DRAWBRIDGE_LONG") == "" {
		t.Skip("long: the same journey on an older version of the agent")
	}
}

// codex starts an in-process Codex in a pane of its own.
func (w *world) codex(version string) *rig.Pane {
	w.t.Helper()
	return w.rig.Codex(version, rig.CodexOptions{})
}

// claude starts a Claude Code in a pane of its own, in manual mode.
func (w *world) claude(version string) *rig.Pane {
	w.t.Helper()
	return w.rig.Claude(version, rig.ClaudeOptions{})
}

// daemonCodex starts a Codex 0.171.0 in daemon mode; all such panes of a world
// share one home.
func (w *world) daemonCodex() *rig.Pane {
	w.t.Helper()
	return w.rig.Codex("0.171.0", rig.CodexOptions{Daemon: true})
}

// host starts a Host with the given trusted session.
func (w *world) host(session string) *host {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), callWait)
	defer cancel()
	h, err := demohost.Start(ctx, w.hostOptions(session))
	if err != nil {
		w.t.Fatal(err)
	}
	out := &host{Host: h, w: w}
	w.hosts = append(w.hosts, out)
	return out
}

// hostOptions are those of a Host of this world with a directory of its own.
func (w *world) hostOptions(session string) demohost.Options {
	return demohost.Options{
		Bridge: filepath.Join(w.bin, "bridge"), Inbox: filepath.Join(w.bin, "inbox"),
		Dir:     filepath.Join(w.rig.Dir, fmt.Sprintf("host%d-%s", len(w.hosts)+1, session)),
		Session: session, Home: w.rig.Home(),
		StoreDir: w.store, RuntimeDir: w.runtime, TmuxSockets: []string{w.rig.Socket},
		Args: w.options.args, Env: w.options.env,
	}
}

// start gives the world's first Host, and starts it when there is none.
func (w *world) start() *host {
	w.t.Helper()
	if w.first == nil {
		w.first = w.host("session-one")
	}
	return w.first
}

// again starts a Host with the session of h and the same directory, so that
// callbacks arrive in the same inbox: what a user has who restarts the Host.
func (w *world) again(h *host) *host {
	w.t.Helper()
	opts := h.Options()
	opts.Bridge = filepath.Join(w.bin, "bridge")
	ctx, cancel := context.WithTimeout(w.t.Context(), callWait)
	defer cancel()
	next, err := demohost.Start(ctx, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	out := &host{Host: next, w: w}
	w.hosts = append(w.hosts, out)
	if w.first == h {
		w.first = out
	}
	return out
}

// call, refused and await work on the first Host.
func (w *world) call(tool string, a args) args { w.t.Helper(); return w.start().call(tool, a) }
func (w *world) refused(tool string, a args, code string) args {
	w.t.Helper()
	return w.start().refused(tool, a, code)
}
func (w *world) await(n int) []inbox.Message { w.t.Helper(); return w.start().await(n) }

// terminal gives the terminal id of a pane, as list shows it.
func (w *world) terminal(p *rig.Pane) string {
	w.t.Helper()
	return text(w.row(p)["id"])
}

// row gives the row of list for a pane.
func (w *world) row(p *rig.Pane) args {
	w.t.Helper()
	data := w.call("list", nil)
	for _, row := range objects(data["terminals"]) {
		if pid, _ := row["pid"].(float64); int(pid) == p.PID {
			return row
		}
	}
	w.t.Fatalf("list has no row for process %d: %v, scan %v", p.PID, data["terminals"], data["terminal_scan"])
	return nil
}

// send gives the pane a task and requires that the agent accepted it.
func (w *world) send(p *rig.Pane, request string) args {
	w.t.Helper()
	sent := w.start().patient("send", args{"terminal_id": w.terminal(p), "request": request})
	switch sent.Data["submission_outcome"] {
	case "agent_accepted":
	case "pending_acceptance": // a busy machine: what was typed is recorded late
		w.eventually("the task is accepted", func() bool { return w.status(sent.Data)["submission"] == "agent_accepted" })
	default:
		w.t.Fatalf("send: %s", sent.Text)
	}
	return sent.Data
}

// awaitCallback polls status until the Turn's lifecycle callback has the state,
// and gives it.
func (w *world) awaitCallback(turn any, state string) args {
	w.t.Helper()
	var found args
	w.eventually(fmt.Sprintf("a callback of %v is %s", turn, state), func() bool {
		for _, c := range objects(w.call("status", args{"turn_id": turn})["callbacks"]) {
			if c["lane"] == "turn_lifecycle" && c["status"] == state {
				found = c
				return true
			}
		}
		return false
	})
	return found
}

// eventually polls until ok holds.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	w.rig.Eventually(callbackWait, what, ok)
}

// programs lists the living programs of this world by name, agents and tmux apart.
func (w *world) programs(names ...string) []process.Incarnation {
	var out []process.Incarnation
	for _, inc := range rig.Members(w.rig.Dir) {
		exe, err := process.Exe(inc.PID)
		if err == nil && slices.Contains(names, strings.TrimSuffix(filepath.Base(exe.Path), realSuffix)) {
			out = append(out, inc)
		}
	}
	return out
}

// kill ends the one living program of that name with SIGKILL.
func (w *world) kill(name string) {
	w.t.Helper()
	var found []process.Incarnation
	w.eventually("one "+name+" lives", func() bool { found = w.programs(name); return len(found) == 1 })
	if err := process.Signal(found[0], unix.SIGKILL); err != nil {
		w.t.Fatalf("kill %s: %v", name, err)
	}
	w.eventually("the end of "+name, func() bool { gone, known := found[0].Gone(); return gone && known })
}

// crashAt makes a program of the Hosts that start from now on end at a crash point
// the first time that it is started.
func (w *world) crashAt(program, point string) {
	w.t.Helper()
	w.firstLife(program, "DRAWBRIDGE_TEST_EXIT_AT", point)
}

// stopAt is crashAt for a program that stops there until it gets SIGCONT.
func (w *world) stopAt(program, point string) {
	w.t.Helper()
	w.firstLife(program, "DRAWBRIDGE_TEST_STOP_AT", point)
}

// firstLife sets a variable of a program with crash points the first time that it
// is started.
func (w *world) firstLife(program, variable, value string) {
	w.t.Helper()
	crash, err := crashPrograms()
	if err != nil {
		w.t.Fatal(err)
	}
	fired := filepath.Join(w.t.TempDir(), "fired")
	w.wrap(crash, program, fmt.Sprintf("if mkdir '%s' 2>/dev/null; then export %s='%s'; fi\nexec", fired, variable, value))
}

// wrap lays a directory of the programs in from for the Hosts that start from now
// on, in which one is started by a shell line that ends with exec and the like. A
// wrapper is needed because siblings get a built environment: nothing of ours
// passes through bridge.
func (w *world) wrap(from, program, line string) {
	w.t.Helper()
	dir := w.t.TempDir()
	for _, name := range []string{"bridge", "watchd", "outboxd", "inbox"} {
		to := filepath.Join(dir, name)
		if name == program {
			to += realSuffix
			script := fmt.Sprintf("#!/bin/sh\n%s '%s' \"$@\"\n", line, to)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				w.t.Fatal(err)
			}
		}
		// A hard link: a program looks for its siblings beside its real path.
		if err := os.Link(filepath.Join(from, name), to); err != nil {
			w.t.Fatal(err)
		}
	}
	w.bin = dir
}

// end stops the Hosts and requires that nothing of them stays.
func (w *world) end() {
	if w.t.Failed() {
		w.show()
	}
	for _, h := range w.hosts {
		select {
		case <-h.Exited(): // ended or was ended by the test
		default:
			if err := h.Stop(); err != nil {
				w.t.Error(err)
			}
		}
		h.Kill()
	}
	names := []string{"bridge", "watchd", "outboxd", "inbox"}
	deadline := time.Now().Add(drainWait)
	for len(w.programs(names...)) > 0 {
		if time.Now().After(deadline) {
			w.t.Errorf("programs are left %s after the Hosts: %v", drainWait, w.programs(names...))
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if w.t.Failed() {
		for _, h := range w.hosts {
			raw, _ := os.ReadFile(h.Log())
			w.t.Logf("log of %s:\n%s", filepath.Base(filepath.Dir(h.Log())), tail(string(raw), 60))
		}
	}
}

// show logs what every pane of the rig shows after a failure.
func (w *world) show() {
	tmux := func(a ...string) string {
		out, err := exec.Command("tmux", append([]string{"-u", "-S", w.rig.Socket}, a...)...).CombinedOutput()
		if err != nil {
			w.t.Logf("tmux %v: %v", a, err)
		}
		return string(out)
	}
	for _, id := range strings.Fields(tmux("list-panes", "-a", "-F", "#{pane_id}")) {
		if screen := strings.TrimSpace(tmux("capture-pane", "-p", "-t", id)); screen != "" {
			w.t.Logf("pane %s:\n%s", id, screen)
		}
	}
	for _, h := range w.hosts {
		w.t.Logf("what %s sees: %s", filepath.Base(filepath.Dir(h.Log())), h.told())
	}
}

// told gives what a Host sees of panes and turns.
func (h *host) told() string {
	select {
	case <-h.Exited():
		return "it has ended"
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	var out strings.Builder
	list, err := h.Call(ctx, "list", args{"all": true})
	fmt.Fprintf(&out, "%v %v\n%v\n", list.Data["terminals"], list.Data["unavailable_managed_turns"], err)
	for _, row := range objects(list.Data["terminals"]) {
		managed, _ := row["managed"].(args)
		turn, _ := managed["recent_turn"].(args)
		if turn == nil {
			continue
		}
		st, err := h.Call(ctx, "status", args{"turn_id": turn["turn_id"]})
		fmt.Fprintf(&out, "%v %v %v %v\n", st.Data["summary"], st.Data["recent_events"], st.Data["callbacks"], err)
	}
	return out.String()
}

// A host is one Host of a world.
type host struct {
	*demohost.Host
	w *world
}

// try calls a tool and gives whatever it answers.
func (h *host) try(tool string, a args) demohost.Result {
	h.w.t.Helper()
	ctx, cancel := context.WithTimeout(h.w.t.Context(), callWait)
	defer cancel()
	result, err := h.Call(ctx, tool, a)
	if err != nil {
		h.w.t.Fatal(err)
	}
	return result
}

// patient is try for a controller that does as it is told: a screen that did not
// come to rest in time, as on a busy machine, is asked again.
func (h *host) patient(tool string, a args) (result demohost.Result) {
	h.w.t.Helper()
	h.w.eventually("the screen is at rest", func() bool {
		result = h.try(tool, a)
		again := result.Refused && result.Data["code"] == "terminal_not_idle" && result.Data["safe_to_retry"] == true &&
			strings.Contains(text(result.Data["reason"]), "kept changing")
		if again {
			h.w.t.Logf("%s is called again: %v", tool, result.Data["reason"])
		}
		return !again
	})
	return result
}

// call calls a tool that must not refuse.
func (h *host) call(tool string, a args) args {
	h.w.t.Helper()
	result := h.patient(tool, a)
	if result.Refused {
		h.w.t.Fatalf("%s %v was refused: %s", tool, a, result.Text)
	}
	return result.Data
}

// refused calls a tool that must refuse with code.
func (h *host) refused(tool string, a args, code string) args {
	h.w.t.Helper()
	result := h.patient(tool, a)
	if !result.Refused || result.Data["code"] != code {
		h.w.t.Fatalf("%s %v: want a refusal with %s, got %s", tool, a, code, result.Text)
	}
	return result.Data
}

// await waits until n callbacks have been accepted.
func (h *host) await(n int) []inbox.Message {
	h.w.t.Helper()
	ctx, cancel := context.WithTimeout(h.w.t.Context(), callbackWait)
	defer cancel()
	messages, err := h.Await(ctx, n)
	if err != nil {
		h.w.t.Fatal(err)
	}
	return messages
}

// attempts reads every start of the callback executable.
func (h *host) attempts() []inbox.Attempt {
	h.w.t.Helper()
	attempts, err := inbox.Attempts(h.Inbox())
	if err != nil {
		h.w.t.Fatal(err)
	}
	return attempts
}

// script makes the next callbacks be answered with the verdicts.
func (h *host) script(next ...inbox.Verdict) {
	h.w.t.Helper()
	if err := inbox.SetScript(h.Inbox(), next...); err != nil {
		h.w.t.Fatal(err)
	}
}

func text(v any) string { s, _ := v.(string); return s }

func objects(v any) []args {
	list, _ := v.([]any)
	var out []args
	for _, x := range list {
		if m, ok := x.(args); ok {
			out = append(out, m)
		}
	}
	return out
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
