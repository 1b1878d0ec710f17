package kit

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// The codes of a run; those of Verify come too.
const (
	NodeUnavailable  = fault.KitNode        // Node is missing or too old
	RequestInvalid   = fault.KitRequest     // the request breaks a rule, or is another kit's
	ControllerUnsafe = fault.KitController  // the controller root is not private, or overlaps
	ProtocolBroken   = fault.KitProtocol    // the process did not speak as it should
	NoResult         = fault.KitNoResult    // it ended without a result
	DeadlineExceeded = fault.KitDeadline    // its time was over
	Cancelled        = fault.KitCancelled   // the context ended
	Threw            = fault.KitThrew       // the entry threw; the message is the kit's own
	DriftedInRun     = fault.KitRunDrifted  // the copy was changed while it ran
	WorkersLeft      = fault.KitWorkersLeft // it returned before its workers had ended
	Unverified       = fault.KitUnverified  // its workers could not be proven gone
)

// ExecuteOptions say what is run. The first four are required.
type ExecuteOptions struct {
	KitID          string
	Dest           string
	RequestFile    string // a kontour.kit.execution_request
	ControllerRoot string // private directory of the run, made when it is missing
	AuthFile       string // credential for the kit's capabilities; only brokerd reads it

	Node       string        // "": node
	Env        []string      // names of further variables that the kit may see
	Grace      time.Duration // for a cancelled kit to end; 0: 5 s
	StoreDir   string        // "": the user's usual Store
	RuntimeDir string        // "": the user's usual one
	DockerHost string        // "": DOCKER_HOST, else the usual socket
	Programs   string        // directory of brokerd and station-shim; "": that of the running program
	Network    string        // name of the network of the workers; "": the usual
	Log        *slog.Logger  // nil discards
}

// Executed is a run that ended with a result.
type Executed = execution.Outcome

// Execute verifies an installed kit, runs its entry once, and returns when the
// process and its workers are proven gone. A result that is no success is no error:
// see Executed.Succeeded. When ctx ends the kit is told so, and killed after Grace.
// The Executed of an error holds the invocation and what the kit last said on
// stderr, when it ran at all.
func Execute(ctx context.Context, o ExecuteOptions) (Executed, error) {
	if o.StoreDir == "" {
		o.StoreDir = service.DefaultStoreDir()
	}
	if o.RuntimeDir == "" {
		dir, err := service.DefaultRuntimeDir()
		if err != nil {
			return Executed{}, err
		}
		o.RuntimeDir = dir
	}
	for _, dir := range []*string{&o.StoreDir, &o.RuntimeDir} { // brokerd has another working directory
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return Executed{}, err
		}
		*dir = abs
	}
	if err := service.EnsurePrivateDir(o.RuntimeDir); err != nil {
		return Executed{}, err
	}
	db, err := store.Open(ctx, store.Options{Dir: o.StoreDir, Program: "kitrun"})
	if err != nil {
		return Executed{}, err
	}
	defer db.Close()
	host := execution.Host{
		Store: db, StoreDir: o.StoreDir, RuntimeDir: o.RuntimeDir, Programs: o.Programs, DockerHost: o.DockerHost, NetworkName: o.Network, Log: o.Log,
	}
	return host.Execute(ctx, execution.Options{
		KitID: o.KitID, Dest: o.Dest, RequestFile: o.RequestFile, ControllerRoot: o.ControllerRoot, AuthFile: o.AuthFile,
		Node: o.Node, Env: o.Env, Grace: o.Grace,
	})
}
