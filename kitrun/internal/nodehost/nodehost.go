// Package nodehost runs the entry of one kit in a fresh Node process and serves
// what it asks for over an inherited socket (kit §7, §9, §10).
//
// Each Run is one process: nothing is reused, so an update of a kit never meets
// modules of the version before. The process loads files of this package before the
// kit: preload.mjs checks the version of Node (check.mjs) and maps the four host
// modules of the kits' public package to the files beside it, run.mjs calls the entry
// for child.mjs, rpc.mjs speaks the protocol. WriteSupport puts them on disk.
//
// A run is over when the process has ended, not when it has spoken: what it said
// counts only then. Whatever is left of its process group is killed. Calls that
// are still open are cancelled and waited for.
package nodehost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// Bounds of a run.
const (
	MaxFrame     = 64 << 20         // bytes of one message
	MaxStderr    = 64 << 10         // bytes that are kept of its end
	DefaultGrace = 5 * time.Second  // between the wish to cancel and SIGKILL
	readyWithin  = 30 * time.Second // from the start to the first frame
	drainFor     = 500 * time.Millisecond
	maxCalls     = 1024 // of a kit, without a reply yet
)

// ipcVariable names the descriptor of the socket in the child's environment.
const ipcVariable = "DRAWBRIDGE_IPC_FD"

// Exit statuses of a Node that is too old.
const (
	oldNode    = 86 // check.mjs says so
	badOption  = 9  // it does not know --import
	versionFor = 5 * time.Second
)

// Ports serves what a kit asks for. Call is called from several goroutines; its
// context ends when the kit aborts the call or the run is over. A *fault.Error
// crosses with its code.
type Ports interface {
	Call(ctx context.Context, peer *Peer, method string, params json.RawMessage) (result any, err error)
}

// Options say what to run. Node, Support, Module, Export and Ports are required.
type Options struct {
	Node    string   // absolute path of the executable
	Support string   // directory of WriteSupport
	NoHooks bool     // the four host modules come from the kit's own node_modules
	Dir     string   // working directory
	Env     []string // the whole environment, but for what this package adds

	Module, Export string
	Args           any // members of the entry's argument besides signal; as JSON an object
	Ports          Ports

	Grace      time.Duration   // 0: DefaultGrace
	Kill       <-chan struct{} // closed: kill at once
	DeliveryID string          // unique
	Log        *slog.Logger    // nil discards

	// Started, when set, is told which process runs, before the kit is loaded. An
	// error ends the run.
	Started func(process.Incarnation) error
}

// Outcome is how a run ended. Exactly one of Result, Thrown and Err says it.
type Outcome struct {
	Result     json.RawMessage // as the kit sent it; "null" when the entry returned nothing
	Thrown     *string         // message of what the entry threw
	Err        error           // no terminal outcome: killed, died, broke the protocol
	Cancelled  bool            // the context ended before the process did
	Unfinished []string        // methods of the calls that were open when the process ended
	Stderr     []byte          // the last MaxStderr bytes
	Node       string          // version, "" when it never spoke
}

// Run starts the process and blocks until it has ended and every call has. The
// error is for a process that never ran; all else is in the Outcome.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	c, err := start(o)
	if err != nil {
		return Outcome{}, err
	}
	return c.supervise(ctx), nil
}

// child is the process, its socket and its standard error.
type child struct {
	opt    Options
	cmd    *exec.Cmd
	peer   *Peer
	stderr *tail
	log    *slog.Logger
}

// start makes the process with its socket as descriptor 3.
func start(o Options) (*child, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Node, err)
	}
	defer theirs.Close()
	stderr, theirStderr, err := newTail(MaxStderr)
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", o.Node, err)
	}
	defer theirStderr.Close()

	before := "preload.mjs"
	if o.NoHooks {
		before = "check.mjs"
	}
	cmd := &exec.Cmd{
		Path: o.Node, Dir: o.Dir,
		Args:        []string{o.Node, "--import", fileURL(filepath.Join(o.Support, before)), filepath.Join(o.Support, "child.mjs")},
		Env:         append(append([]string(nil), o.Env...), "NODE_DISABLE_COMPILE_CACHE=1", ipcVariable+"=3"),
		Stderr:      theirStderr, // stdin and stdout nil: /dev/null
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		stderr.file.Close()
		return nil, fault.New(fault.KitNode, "start %s: %w", o.Node, err).WithHint("--node names a Node 20.6 or newer")
	}
	return &child{opt: o, cmd: cmd, peer: newPeer(ours, o), stderr: stderr, log: o.Log}, nil
}

// fileURL is a path as --import takes it: a plain path with a '%' or a '#' is
// taken for a URL there.
func fileURL(path string) string {
	return "file://" + strings.NewReplacer("%", "%25", "#", "%23", "?", "%3F").Replace(path)
}

// supervise serves the process until it has ended.
func (c *child) supervise(ctx context.Context) Outcome {
	go c.stderr.run()
	if c.opt.Started != nil {
		inc, err := process.Of(c.cmd.Process.Pid)
		if err == nil {
			err = c.opt.Started(inc)
		}
		if err != nil {
			c.peer.fail(fmt.Errorf("record the process: %w", err))
		}
	}
	served := make(chan struct{})
	go func() { defer close(served); c.peer.serve() }()
	exited := make(chan struct{})
	go func() { defer close(exited); awaitExit(c.cmd.Process.Pid) }()

	cancelled := c.wait(ctx, exited)

	// The leader is dead and not reaped: its number, and that of its group, are
	// nobody else's yet.
	c.killGroup()
	state, _ := c.cmd.Process.Wait()
	c.peer.finish(drainFor)
	<-served
	out := Outcome{Cancelled: cancelled, Unfinished: c.peer.settle(), Stderr: c.stderr.end(drainFor), Node: c.peer.node}
	c.judge(&out, state)
	return out
}

// wait returns when the process has ended, by itself or killed.
func (c *child) wait(ctx context.Context, exited <-chan struct{}) (cancelled bool) {
	ready := time.NewTimer(readyWithin)
	defer ready.Stop()
	var grace <-chan time.Time
	done, kill, broken, spoke := ctx.Done(), c.opt.Kill, c.peer.broken, c.peer.ready
	for {
		select {
		case <-exited:
			return cancelled
		case <-spoke:
			ready.Stop()
			spoke = nil
		case <-ready.C:
			c.peer.fail(fault.New(fault.KitNode, "the Node process was not ready within %v", readyWithin))
		case <-done:
			cancelled, done = true, nil
			c.peer.cancel()
			grace = time.After(c.opt.Grace)
		case <-grace:
			c.log.Warn("the kit did not end when it was cancelled; killing it", "grace", c.opt.Grace)
			grace = nil
			c.killGroup()
		case <-kill:
			cancelled, kill = true, nil
			c.killGroup()
		case <-broken:
			broken = nil
			c.killGroup()
		}
	}
}

func (c *child) killGroup() {
	if err := unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		c.log.Error("kill the kit's process group", "pid", c.cmd.Process.Pid, "err", err)
	}
}

// judge says what the frames and the exit amount to.
func (c *child) judge(out *Outcome, state *os.ProcessState) {
	p := c.peer
	switch {
	case p.err != nil:
		out.Err = p.err
	case p.node == "" && state != nil && state.ExitCode() == oldNode:
		out.Err = tooOld(lastLine(out.Stderr))
	case p.node == "" && state != nil && state.ExitCode() == badOption:
		out.Err = tooOld("this is Node " + c.version() + "; kits need 20.6 or newer")
	case p.outcome == nil:
		out.Err = fault.New(fault.KitNoResult, "the kit's process ended without a result: %v", state)
	case !p.acknowledged:
		out.Err = fault.New(fault.KitNoResult, "the kit's outcome could not be acknowledged: its process was gone")
	case p.outcome.Kind == kindError:
		out.Thrown = &p.outcome.Message
	case p.outcome.Result == nil:
		out.Result = json.RawMessage("null")
	default:
		out.Result = p.outcome.Result
	}
}

func tooOld(text string) error {
	return fault.New(fault.KitNode, "%s", text).WithHint("--node names another one")
}

// version asks a Node that cannot say it in a better way.
func (c *child) version() string {
	res := process.Run(context.Background(), process.Spec{Path: c.opt.Node, Args: []string{"--version"}, Env: c.opt.Env, Dir: "/", Timeout: versionFor})
	if !res.OK() {
		return "(of an unknown version)"
	}
	return fault.CleanLine(string(res.Stdout))
}

// lastLine is what a process said last.
func lastLine(stderr []byte) string {
	lines := strings.Split(strings.TrimSpace(string(stderr)), "\n")
	return strings.TrimPrefix(fault.CleanLine(lines[len(lines)-1]), "kitrun: ")
}

// awaitExit blocks until a child of ours has ended, and leaves it to be reaped.
func awaitExit(pid int) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
