package handoff_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit/scripted"
)

var seedFlag = flag.Uint64("seed", 0, "the one interleaving to run")

const (
	interleavingsShort = 5
	interleavingsRace  = 2 // with -short, as under the race detector
	interleavingsLong  = 200
	stepsOfOne         = 20
	quietWait          = 40 * time.Second // for everything to come to rest
)

// Two panes with agents; a person, two bridges that share one Store, programs
// that are killed in the middle of a call, a watchd that is killed and started
// again, and agents that end, die and are started again: all at random times.
// Whatever happens, at the end
//
//   - a text was typed at most once, into the process that its row names;
//   - no process got a key that neither a person nor a call for it explains;
//   - a Turn ended at most once, and so did a Watch;
//   - an event has at most one callback;
//   - every fence has its row, every row its fence, and every Turn an owner or a
//     way out, after which the pane takes new work.
//
// The choices follow the seed; how they fall in time does not.
func TestInterleavings(t *testing.T) {
	if *seedFlag != 0 {
		interleave(t, *seedFlag)
		return
	}
	t.Parallel()
	seeds := interleavingsShort
	if testing.Short() {
		seeds = interleavingsRace
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed+1), func(t *testing.T) { interleave(t, seed+1) })
	}
}

// The same, many times, with seeds that are new in each run.
func TestInterleavings_Many(t *testing.T) {
	t.Parallel()
	if os.Getenv("DRAWBRIDGE_LONG") == "" {
		t.Skip("long: 200 random interleavings")
	}
	base := uint64(time.Now().Unix()) * 1000
	for i := range uint64(interleavingsLong) {
		t.Run(fmt.Sprintf("seed=%d", base+i), func(t *testing.T) { interleave(t, base+i) })
	}
}

// A life is one agent process, with what a person did to it.
type life struct {
	pane   *pane
	pid    int
	keys   string // file of its input
	id     string // its terminal id
	enters int
	escs   int
	yes    int
}

// An interleaving is one run.
type interleaving struct {
	*world
	rnd     *rand.Rand
	seed    uint64
	bridges []*handoff.Desk
	panes   []*pane
	lives   []*life
	now     map[*pane]*life // the process in a pane; nil: dead
	gates   []string
	trace   []string

	calls   sync.WaitGroup
	tell    chan string // results of calls
	texts   int
	errands []errand       // every send so far
	cancels map[string]int // by target
	decided map[string]int // approve calls by target
	watchd  *program
	said    bytes.Buffer // by every watchd
}

func interleave(t *testing.T, seed uint64) {
	w := newWorld(t)
	r := &interleaving{
		world: w, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), now: map[*pane]*life{},
		cancels: map[string]int{}, decided: map[string]int{}, tell: make(chan string, 1024),
	}
	for range 2 {
		p := w.agent()
		w.tmuxDo("set-option", "-w", "-t", p.tid, "remain-on-exit", "on")
		r.panes = append(r.panes, p)
		r.born(p, p.keysFile())
	}
	t.Cleanup(r.report) // before the tmux server ends
	r.bridges = []*handoff.Desk{w.desk, w.newDesk(w.openStore(w.store.Dir()))}
	r.startWatchd()
	for i := range stepsOfOne {
		r.step(i)
		most := []int{1, 100, 300, 900}[r.rnd.IntN(4)]
		time.Sleep(time.Duration(r.rnd.IntN(most)) * time.Millisecond) // when the next thing happens is the subject
	}
	r.rest()
	r.check()
}

// report prints what was done, for who has to understand a failure.
func (r *interleaving) report() {
	r.stopWatchd()
	if !r.t.Failed() && *seedFlag == 0 {
		return
	}
	for _, p := range r.panes {
		r.note("%s of process %v shows\n%s", p.tid, r.now[p], p.screen())
	}
	r.t.Logf("seed %d (go test -run TestInterleavings$ -seed %d)\n%s\nwatchd said:\n%s", r.seed, r.seed, strings.Join(r.trace, "\n"), r.said.String())
}

func (r *interleaving) note(format string, args ...any) {
	r.trace = append(r.trace, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// born notes the process that was just started in a pane, once list shows it.
func (r *interleaving) born(p *pane, keys string) {
	r.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(r.tmuxDo("display-message", "-p", "-t", p.tid, "#{pane_pid}")))
	if err != nil {
		r.t.Fatal(err)
	}
	l := &life{pane: p, pid: pid, keys: keys}
	l.id = p.id[:strings.LastIndexByte(p.id, ':')+1] + strconv.Itoa(pid)
	r.lives, r.now[p] = append(r.lives, l), l
}

// step does one random thing. Each draws the same number of choices.
func (r *interleaving) step(i int) {
	what, p, a, b := r.rnd.IntN(100), r.panes[r.rnd.IntN(2)], r.rnd.IntN(1<<20), r.rnd.IntN(1<<20)
	l := r.now[p]
	if i == 0 || what >= 20 && what < 56 && r.anyTurn(0) == "" {
		what = 0 // something to do first
	}
	switch {
	case what < 20:
		r.call(errand{Tool: "send", Text: r.text(a), Target: r.anyTerminal(b)}, b)
	case what < 33:
		r.call(errand{Tool: "approve", Target: r.anyTurn(a), Reject: b%5 == 0}, b)
	case what < 36:
		r.call(errand{Tool: "approve", Target: r.anyTerminal(a)}, b)
	case what < 42:
		r.call(errand{Tool: "cancel", Target: r.anyTurn(a)}, b)
	case what < 51:
		r.call(errand{Tool: "close", Target: r.anyTurn(a)}, b)
	case what < 54:
		r.call(errand{Tool: "respond", Target: r.anyTurn(a), Text: r.text(b)}, b)
	case what < 56:
		r.call(errand{Tool: "renew", Target: r.anyTurn(a)}, b)
	case what < 60:
		r.call(errand{Tool: "watch", Target: r.anyTerminal(a)}, b)
	case what < 62:
		r.call(errand{Tool: "unwatch", Target: r.anyWatch(a)}, b)
	case what < 63:
		r.call(errand{Tool: "status", Target: r.anyTerminal(a)}, b)
	case what < 64:
		r.call(errand{Tool: "list"}, b)
	case what < 67 && len(r.errands) > 0: // a call that is made once more
		r.call(r.errands[a%len(r.errands)], b)
	case what < 73 && len(r.gates) > 0:
		r.open(a % len(r.gates))
	case what < 77:
		r.note("watchd is killed and started again")
		r.stopWatchd()
		r.startWatchd()
	case what < 79 && l != nil:
		r.note("agent %d dies", l.pid)
		_ = exec.Command("kill", "-9", strconv.Itoa(l.pid)).Run()
		r.now[p] = nil
	case what < 82, l == nil:
		r.again(p)
	case what < 87:
		r.types(l, a%3 == 0, b%3 != 0)
	case what < 89:
		r.press(l, "y", &l.yes)
	case what < 91:
		r.press(l, "Escape", &l.escs)
	case what < 98:
		r.note("person clears the draft of %d", l.pid)
		r.tmuxDo("send-keys", "-t", p.tid, "C-u")
	default:
		r.note("person enters or leaves copy mode of %s", p.tid)
		r.tmuxDo("if-shell", "-F", "-t", p.tid, "#{pane_in_mode}", "send-keys -X -t "+p.tid+" cancel", "copy-mode -t "+p.tid)
	}
}

// types is a person at the keyboard, who may leave a draft behind.
func (r *interleaving) types(l *life, ask, enter bool) {
	r.texts++
	text := fmt.Sprintf("h%d", r.texts)
	if ask {
		text += " ask"
	}
	r.note("person types %q into %d, Enter: %v", text, l.pid, enter)
	r.tmuxDo("send-keys", "-t", l.pane.tid, "-l", text)
	if enter {
		r.press(l, "Enter", &l.enters)
	}
}

func (r *interleaving) press(l *life, key string, count *int) {
	r.note("person presses %s in %d", key, l.pid)
	r.tmuxDo("send-keys", "-t", l.pane.tid, key)
	*count++
}

// text makes a request that occurs once, with words for the scripted agent.
func (r *interleaving) text(choice int) string {
	r.texts++
	words := fmt.Sprintf("task-%03d.", r.texts)
	switch choice % 20 {
	case 0, 1, 2, 3, 4, 13, 14:
		words += " ask"
	case 5, 6, 7, 15:
		r.gates = append(r.gates, filepath.Join(r.dir, fmt.Sprintf("gate%d", r.texts)))
		words += " hold:" + r.gates[len(r.gates)-1] + " then" // what a person appends must not change the path
	case 8:
		words += " fail"
	case 9:
		words += " late:300"
	case 10:
		words += " quit"
	case 11:
		words += " deaf"
	case 12:
		words += " drop"
	}
	return words
}

func (r *interleaving) open(i int) {
	r.note("gate %s opens", filepath.Base(r.gates[i]))
	if err := os.WriteFile(r.gates[i], nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// again starts an agent in the pane, over whatever runs there.
func (r *interleaving) again(p *pane) {
	keys := fmt.Sprintf("%s.%d", p.keysFile(), len(r.lives))
	r.now[p] = nil
	r.tmuxDo("respawn-pane", "-k", "-t", p.tid, "-c", p.work, "-e", "CODEX_HOME="+p.home, "-e", "PATH="+r.bin+":"+os.Getenv("PATH"),
		"-e", scripted.KeysVariable+"="+keys, "exec "+filepath.Join(r.bin, scripted.Name))
	r.born(p, keys)
	r.note("an agent is started in %s: %d", p.tid, r.now[p].pid)
}

// anyTerminal is the terminal id of an agent, now and then of one that is no more.
func (r *interleaving) anyTerminal(a int) string {
	if a%5 != 0 {
		if l := r.now[r.panes[a/5%2]]; l != nil {
			return l.id
		}
	}
	return r.lives[a/7%len(r.lives)].id
}

func (r *interleaving) anyTurn(a int) string {
	turns, err := r.store.Turns(context.Background(), store.TurnFilter{Limit: 100})
	if err != nil || len(turns) == 0 {
		return ""
	}
	if a%3 != 0 {
		return turns[0].ID // the newest
	}
	return turns[a/3%len(turns)].ID
}

func (r *interleaving) anyWatch(a int) string {
	rows, err := r.store.Watches(context.Background(), store.WatchFilter{})
	if err != nil || len(rows) == 0 {
		return "terminal-watch-none"
	}
	return rows[a%len(rows)].ID
}

// call makes a call beside everything else: in one of the two bridges, or in a
// program of its own, which is killed sooner or later in most cases.
func (r *interleaving) call(e errand, choice int) {
	if e.ID == "" {
		e.ID = fmt.Sprintf("host-bridge:[\"run\",%d]", len(r.trace))
	}
	switch e.Tool {
	case "send":
		r.errands = append(r.errands, e)
	case "cancel":
		r.cancels[e.Target]++
	case "approve":
		r.decided[e.Target]++
	}
	name := fmt.Sprintf("%s %s %s", e.Tool, e.Target, e.Text)
	if choice%5 < 2 {
		d := r.bridges[choice%5]
		r.note("bridge %d: %s", choice%5, name)
		r.calls.Go(func() { r.tell <- name + " → " + e.do(context.Background(), d) })
		return
	}
	after := time.Duration(choice/5%1500) * time.Millisecond
	r.note("a bridge that dies after %v: %s", after, name)
	x := r.program(e)
	r.calls.Go(func() {
		x.await()
		timer := time.AfterFunc(after, func() { _ = x.cmd.Process.Kill() })
		_ = x.cmd.Wait() // killed, or done before
		timer.Stop()
		r.tell <- name + " ⇒ " + strings.TrimSpace(x.out.String())
	})
}

// A program is an actor that was started. It ends with the test's process.
type program struct {
	cmd   *exec.Cmd
	ready *os.File     // ends when it begins to work
	out   bytes.Buffer // to be read after its end
}

func (r *interleaving) program(e errand) *program {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	e.Store, e.Run, e.Socket = r.store.Dir(), r.runDir, r.socket
	text, err := json.Marshal(e)
	if err != nil {
		r.t.Fatal(err)
	}
	x := &program{cmd: exec.Command(self)}
	x.cmd.Env = append(os.Environ(), actorVariable+"="+string(text))
	x.cmd.Stdout, x.cmd.Stderr = &x.out, &x.out
	if _, err := x.cmd.StdinPipe(); err != nil { // held open: its end ends the actor
		r.t.Fatal(err)
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	x.ready, x.cmd.ExtraFiles = ready, []*os.File{theirs}
	err = x.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

// await waits until the program has its Desk, or has ended.
func (x *program) await() {
	_, _ = io.Copy(io.Discard, x.ready)
	_ = x.ready.Close()
}

func (x *program) kill() {
	_ = x.cmd.Process.Kill()
	_ = x.cmd.Wait()
}

func (r *interleaving) startWatchd() {
	r.t.Helper()
	r.watchd = r.program(errand{Tool: sweeping})
	r.watchd.await()
}

func (r *interleaving) stopWatchd() {
	if r.watchd != nil {
		r.watchd.kill()
		r.said.Write(r.watchd.out.Bytes())
		r.watchd = nil
	}
}
