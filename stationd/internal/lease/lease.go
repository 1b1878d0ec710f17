// Package lease hands out the right to use one workspace on one machine, and that
// machine: directories of its own, a way to start the station shim there, to reach
// its sockets, and to prove that nothing is left (station §5).
//
// A Provider makes leases, a Machine is what the holder of one can do. local is
// this machine, ssh another Linux host; both keep the same layout and do the same
// things with it (package place), and the attempt's supervisor knows neither. What
// a provider can do it says in its StationContract: a provider without one is
// refused before anything is touched, whatever else it can do.
//
// A lease ends with Release, which wants the proof that no process of the attempt
// is left, and removes what Acquire made and nothing else.
package lease

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// Kinds of providers.
const (
	KindLocal     = "local"
	KindSSH       = "ssh"
	KindDelegated = "delegated-run"
)

// linux is the one system whose leases hold stations.
const linux = "linux"

// delegatedVersion is the first version of the contract that a delegated provider
// can claim.
const delegatedVersion = 1

// Bounds of a lease.
const (
	// BeatEvery is the pause between two heartbeats (station §4.4), and Life how
	// long a lease lives without one: long enough for a stationd that starts anew.
	// Where a machine may be out of reach it lives outlive longer than what runs
	// there does without a stationd: of the two ends the orphan rule is the first.
	BeatEvery = 10 * time.Second
	Life      = 3 * time.Minute
	outlive   = time.Minute
)

// Description is what a provider says of itself.
type Description struct {
	Name    string
	Kind    string
	Station *StationContract // nil: it holds no stations

	// What else it may do. Nothing is inferred from these.
	ArchiveSync, URLBridge, CodeServer, Desktop, Browser bool
}

// StationContract names, for each thing that a station needs, the mechanism by
// which the provider does it.
type StationContract struct {
	Start, Supervise, Bridge, Stop string

	OS          string
	Network     egress.Enforcement
	Containment []string // kinds, strongest first
	Version     int      // of the contract; delegated providers state it
}

// Check refuses a provider that does not say how it holds a station. It reads the
// contract, and of the kind only whether it is delegated.
func (d Description) Check() error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.ProviderUnsupported, "use the provider %q: "+format, append([]any{d.Name}, args...)...).
			WithHint("choose a local or ssh provider")
	}
	c := d.Station
	if c == nil {
		return refuse("it has no contract for stations")
	}
	for _, f := range []struct{ name, value string }{
		{"start", c.Start}, {"supervise", c.Supervise}, {"bridge", c.Bridge}, {"stop", c.Stop}, {"os", c.OS}, {"network", string(c.Network)},
	} {
		if f.value == "" {
			return refuse("its contract does not say: %s", f.name)
		}
	}
	switch {
	case c.OS != linux:
		return refuse("its machines run %s", c.OS)
	case c.Network != egress.Netns && c.Network != egress.None:
		return refuse("its contract's network is neither netns nor none")
	case len(c.Containment) == 0:
		return refuse("its contract does not say: containment")
	case d.Kind == KindDelegated && c.Version < delegatedVersion:
		return refuse("a delegated provider's contract has a version")
	}
	return nil
}

// Request asks for a lease.
type Request struct {
	Lease      string // its id in the Store
	Station    string
	Attempt    int64
	Org, Owner string
}

// Lease is what a provider handed out, as it stands in the Store. A provider finds
// all of a lease again by its ID.
type Lease struct {
	ID        string
	HostRef   string // of the provider, never shown outside
	Workdir   string // of the provider, never shown outside
	BootID    string // of the machine
	ExpiresAt time.Time
}

// Proof says that the attempt's processes have ended.
type Proof struct {
	Empty   bool
	Cleanup json.RawMessage // as evidence tells it
}

// check refuses a release without proof.
func (p *Proof) check(id string) error {
	switch {
	case p == nil:
		return fault.New(fault.CleanupFailed, "release the lease %s: nothing proves that its processes have ended", id)
	case !p.Empty:
		return fault.New(fault.CleanupFailed, "release the lease %s: processes are left", id)
	}
	return nil
}

// A Provider makes leases.
type Provider interface {
	Describe() Description
	// Acquire makes the lease. It leaves nothing when it fails.
	Acquire(context.Context, Request) (Lease, error)
	// Machine gives the machine of an active lease, also of one that an earlier
	// stationd acquired; one caller at a time. Close it before Release.
	Machine(context.Context, Lease) (Machine, error)
	// Heartbeat prolongs the lease, and says until when it holds.
	Heartbeat(context.Context, Lease) (until time.Time, err error)
	// Release removes what the lease made. It refuses without a proof, and does
	// nothing when there is nothing any more.
	Release(context.Context, Lease, *Proof) error
	// Close ends connections and locks; leases stay.
	Close() error
}

// Layout is where the parts of a lease lie on its machine: absolute, without links.
type Layout = place.Layout

// A Machine is a lease that is in use. Incarnations are of processes there: only
// PID, Start and BootID are looked at.
type Machine interface {
	BootID(context.Context) (string, error)
	Layout() Layout
	Network() egress.Enforcement
	// Addresses are the machine's own, which no daemon may reach.
	Addresses(context.Context) ([]netip.Addr, error)
	// Prepare makes the directories empty and gives those of the daemon to its user.
	Prepare(ctx context.Context, runAs *launch.User) error
	// Sync fills the workspace, and gives the files to the daemon's user.
	Sync(context.Context, launch.Workspace) (launch.Grounding, error)
	// Obtain gives the verified harness in Layout.Harness.
	Obtain(context.Context, launch.Artifact) (launch.Obtained, error)
	// FileSHA256 identifies a program of the workspace or of the system.
	FileSHA256(ctx context.Context, path string) (string, error)
	// FreePort gives a port for the daemon. In its namespace every one is free.
	FreePort(context.Context) (int, error)
	// StartShim returns once ctl.sock answers. Runtime, UID, Workspace, Home and Temp
	// of the specification are the machine's own, and its Deadline, in this host's
	// boot time, is translated.
	StartShim(ctx context.Context, spec wire.Spec, allowRoot bool) (Shim, error)
	// AdoptShim finds a running one. fault.ShimLost: nothing was signalled.
	AdoptShim(context.Context, process.Incarnation) (Shim, error)
	// Recorded reads who the shim is, for a stationd that had no time to note it;
	// fs.ErrNotExist when none was started. Ended reads how it ended.
	Recorded(context.Context) (process.Incarnation, error)
	Ended(context.Context) (wire.End, bool, error)
	// Alive is false for a zombie, and for a process of another boot.
	Alive(context.Context, process.Incarnation) (bool, error)
	// Kill ends a shim that does not answer, by pidfd and only if it is this one, and
	// proves that nothing of it is left; also for one that is gone already.
	Kill(context.Context, process.Incarnation) (supervise.Cleanup, error)
	// Listen makes a socket of the runtime directory, before the shim starts.
	Listen(ctx context.Context, name string) (net.Listener, error)
	// Artifacts lists regular files of the workspace; no link is followed.
	Artifacts(ctx context.Context, paths []string, maxBytes int64) (artifact.Manifest, error)
	// Wipe removes the runtime directory (station §12 step 8).
	Wipe(context.Context) error
	Close() error
}

// A Shim holds one attempt's daemon. *supervise.Process is the one of this machine.
type Shim interface {
	Client() *supervise.Client
	Birth() wire.Birth
	Containment() string
	Incarnation() process.Incarnation
	Dial(ctx context.Context, name string) (net.Conn, error)
	Done() <-chan struct{}
	End(context.Context) (supervise.Cleanup, error)
	Detach() error
}
