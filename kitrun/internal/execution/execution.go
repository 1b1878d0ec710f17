// Package execution runs one installed kit: it verifies the copy, checks the
// request, starts the kit's entry in a process of its own, performs what the entry
// asks for, and believes its result only when the process, its workers and its
// grants are gone and the copy is still the verified one (kit §6–§11).
//
// # What a run owns
//
// A row of the Store, written before the process starts; the lease
// kitrun/<invocation>, with which its grants end; a directory of support files in
// the runtime directory; one Node process with its group; the containers that
// carry its owner id. End of a run, in this order: the process is gone, its calls
// are cancelled and waited for, its grants are closed, its containers are removed
// and proven gone, the copy is hashed again, the row is settled.
//
// # A crash
//
// A kitrun that is killed leaves the row. The next run on the Store ends what is
// left of it, the process only if it is still the recorded one, and marks the row
// lost. Crash points: kit_run_begun, kit_run_running, kit_process_gone,
// kit_grants_closed, kit_workers_gone, kit_run_ended.
package execution

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/kitrun/internal/paths"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// maxDepthOfRuns is how deep runs nest: a kit may run another one.
const maxDepthOfRuns = 2

// supportName is the directory of support files in the runtime directory.
const supportName = "kitrun"

// Statuses of a result that are a success.
const (
	StatusCompleted = "completed"
	StatusWaiting   = "waiting"
)

// Host is what the runs of one process share. Store and RuntimeDir are required.
type Host struct {
	Store       *store.Store
	StoreDir    string
	RuntimeDir  string
	Programs    string // directory of brokerd and station-shim; "": that of the running program
	DockerHost  string // "": DOCKER_HOST, else the usual socket
	NetworkName string // of the workers; "": the usual
	Log         *slog.Logger
	NewID       func() string      // nil: random UUIDs
	Progress    func(worker.Event) // nil: nobody looks; called by several workers at once
	Environ     []string           // what a kit's environment is chosen from; nil: that of the process
}

// Options say what to run. KitID, Dest, RequestFile and ControllerRoot are required.
type Options struct {
	KitID          string
	Dest           string
	RequestFile    string
	ControllerRoot string
	AuthFile       string // "": none

	Node        string        // path or name; "": node
	NoHooks     bool          // the host modules come from <dest>/node_modules
	Env         []string      // names of further variables that the kit may see
	Grace       time.Duration // 0: nodehost.DefaultGrace
	AsRequested bool          // a kit that asks for the network bridge gets it

	Kill <-chan struct{} // closed: end at once
}

// Outcome is what a run left.
type Outcome struct {
	InvocationID string
	Result       json.RawMessage // nil: none
	Status       string          // of the result, "" for none
	Stderr       []byte          // the last of it
}

// Succeeded reports whether the result is one of success.
func (o Outcome) Succeeded() bool { return o.Status == StatusCompleted || o.Status == StatusWaiting }

// run is one execution.
type run struct {
	*Host
	Options
	depth      int
	invocation string
	owner      string
	dest       string // absolute
	verified   kit.Verified
	request    request
	root, auth string
	deadline   time.Time
	limited    context.Context // ends when the kit is to end
	ctx        context.Context // of what outlives a call; ends when the process has
	broking

	engineOnce sync.Once
	eng        worker.Engine
	engErr     error
}

// Execute runs a kit to its end. The error has a code; a result that is no success
// is no error.
func (h *Host) Execute(ctx context.Context, o Options) (Outcome, error) {
	return h.withDefaults().execute(ctx, o, 1)
}

// withDefaults gives a copy that is complete.
func (h *Host) withDefaults() *Host {
	c := *h
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.NewID == nil {
		c.NewID = uuid.NewString
	}
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	return &c
}

func (h *Host) execute(ctx context.Context, o Options, depth int) (Outcome, error) {
	r := &run{Host: h, Options: o, depth: depth, invocation: h.NewID(), owner: h.NewID()}
	node, err := r.check(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if err := h.recover(ctx); err != nil {
		h.Log.Warn("what an earlier run left is not cleaned up", "err", err)
	}
	return r.do(ctx, node)
}

// support writes the files that run before the kit. It follows the row, by which
// they are found when this process is killed.
func (r *run) support() (dir string, err error) {
	dir = filepath.Join(r.RuntimeDir, supportName)
	if err := service.EnsurePrivateDir(dir); err != nil {
		return "", err
	}
	dir = filepath.Join(dir, r.invocation)
	return dir, nodehost.WriteSupport(dir)
}

// check verifies the kit, the request and the paths; nothing was begun when it
// fails, but for an empty controller root.
func (r *run) check(ctx context.Context) (node string, err error) {
	if r.dest, err = kit.Resolve(r.Dest); err != nil {
		return "", err
	}
	if r.verified, err = kit.Verify(ctx, r.KitID, r.dest); err != nil {
		return "", err
	}
	if r.request, err = readRequest(r.RequestFile, r.KitID, r.verified.KitRoot); err != nil {
		return "", err
	}
	var apart []string
	if r.request.workspace != "" {
		abs, err := filepath.Abs(r.request.workspace) // the kit has our working directory
		var real string
		if err == nil {
			real, _, err = paths.Real(abs)
		}
		if err != nil {
			return "", fault.New(fault.KitRequest, "read the request: resolve its workspace: %w", err).WithHint("nothing was run")
		}
		apart = append(apart, real)
	}
	kitRoot, err := filepath.EvalSymlinks(r.verified.KitRoot)
	if err != nil {
		return "", fault.New(fault.KitMissing, "find the kit: %w", err)
	}
	kits := filepath.Dir(filepath.Dir(filepath.Dir(kitRoot))) // <dest>/kits
	if r.AuthFile != "" {
		if r.auth, err = authFile(r.AuthFile, append(apart, kits)); err != nil {
			return "", err
		}
	}
	if node, err = nodehost.Find(r.Node); err != nil {
		return "", err
	}
	r.root, err = controllerRoot(r.ControllerRoot, apart, []string{kits}) // last: it makes one
	return node, err
}

// do runs the process between the row and what comes after it.
func (r *run) do(ctx context.Context, node string) (Outcome, error) {
	r.deadline = time.Now().Add(r.request.timeout)
	lease, err := r.Store.Acquire(ctx, "kitrun/"+r.invocation, store.LeaseTTL)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { _ = r.Store.Release(context.WithoutCancel(ctx), lease) }() // its process ends anyway
	defer r.keep(lease)()
	err = r.Store.BeginKitRun(ctx, store.NewKitRun{
		InvocationID: r.invocation, KitID: r.KitID, Dest: r.dest, KitHash: r.verified.Hash, RequestSHA256: r.request.digest,
		ControllerRoot: r.root, OwnerID: r.owner, DeadlineAt: r.deadline.UnixMilli(),
	})
	if err != nil {
		return Outcome{}, err
	}
	support, err := r.support()
	if support != "" {
		defer os.RemoveAll(support)
	}
	if err != nil {
		r.settle(context.WithoutCancel(ctx), Outcome{}, err, 0)
		return Outcome{}, err
	}
	defer func() {
		if r.eng != nil {
			r.eng.Close()
		}
	}()
	var stop context.CancelFunc
	r.ctx, stop = context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p := newPorts(r)

	limited, done := context.WithDeadlineCause(ctx, r.deadline, errDeadline)
	defer done()
	r.limited = limited
	defer r.noteCancelling()()
	out, err := nodehost.Run(limited, r.options(node, support, p))
	if err != nil {
		out.Err = err
	}
	crashpoint.At("kit_process_gone")
	cause := context.Cause(limited)

	// The process is gone: nothing new comes. What is open ends now, on every path,
	// and in its own time.
	after := context.WithoutCancel(ctx)
	if err := p.closeGrants(after); err != nil { // asked for all the same, and they end with our lease
		r.Log.Warn("a grant is not confirmed to be closed", "err", err)
	}
	stop()
	p.close()
	r.stopBroker()
	crashpoint.At("kit_grants_closed")
	removed, left := r.cleanUp(after, p.used)
	crashpoint.At("kit_workers_gone")
	drift := r.drift(after)
	result, err := r.judge(out, verdicts{cause: cause, left: left, removed: removed, drift: drift})
	r.settle(after, result, err, removed)
	return result, err
}

// noteCancelling notes in the Store when the kit is told to end, until what it
// gives is called.
func (r *run) noteCancelling() (stop func()) {
	noted := make(chan struct{})
	cancel := context.AfterFunc(r.limited, func() {
		defer close(noted)
		_ = r.Store.KitRunCancelling(context.WithoutCancel(r.limited), r.invocation) // a mere note
	})
	return func() {
		if !cancel() {
			<-noted
		}
	}
}

// options are those of the process.
func (r *run) options(node, support string, p *ports) nodehost.Options {
	args := map[string]any{"requestFile": r.request.path, "controllerRoot": r.root, "executionOwner": r.owner}
	if r.auth != "" {
		args["authFile"] = r.auth
	}
	env := environment(r.Environ, r.Env)
	if r.DockerHost != "" {
		env = append(env, "DOCKER_HOST="+r.DockerHost) // of a name set twice the later one counts
	}
	return nodehost.Options{
		Node: node, Support: support, NoHooks: r.NoHooks, Env: append(env, mark(r.invocation)),
		Module: r.verified.ModulePath, Export: r.verified.Descriptor.Export, Args: args, Ports: p,
		Grace: r.Grace, Kill: r.Kill, DeliveryID: r.NewID(), Log: r.Log,
		Started: func(inc process.Incarnation) error {
			return r.Store.KitRunRunning(r.ctx, r.invocation, inc.PID, inc.Birth())
		},
	}
}

// mark is in the environment of a kit's process and of what it starts: of a group
// whose leader is gone it tells whose it is.
func mark(invocation string) string { return markVariable + "=" + invocation }

const markVariable = "DRAWBRIDGE_KIT_RUN"

// passed are the variables that a kit sees. Kit code is trusted host code; this
// only keeps accidents out.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH",
	"DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR", "SSL_CERT_FILE",
}

// never are names, and beginnings of names, that change what code runs.
var never = []string{"NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_", "LD_", "DYLD_", "DRAWBRIDGE_"}

// Never reports whether a variable of this name is kept from every kit.
func Never(name string) bool {
	return slices.ContainsFunc(never, func(no string) bool { return name == no || strings.HasSuffix(no, "_") && strings.HasPrefix(name, no) })
}

// environment chooses what a kit sees.
func environment(environ, also []string) []string {
	var out []string
	for _, entry := range environ {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || Never(name) {
			continue
		}
		if slices.Contains(passed, name) || strings.HasPrefix(name, "LC_") || slices.Contains(also, name) {
			out = append(out, entry)
		}
	}
	return out
}

// engine connects to the container engine once.
func (r *run) engine() (worker.Engine, error) {
	r.engineOnce.Do(func() { r.eng, r.engErr = worker.NewDocker(r.DockerHost) })
	return r.eng, r.engErr
}

// errDeadline is why the context of a run ends when its time is over.
var errDeadline = errors.New("the run's time is over")
