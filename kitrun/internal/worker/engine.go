package worker

import (
	"context"
	"errors"
	"io"
	"time"

	"drawbridge/shared/workernet"
)

// Errors of an Engine that its callers tell apart; all others mean that the
// engine did not do what it was asked.
var (
	errNoContainer = errors.New("no such container")
	errNoImage     = errors.New("no such image")
)

// Engine is what this package needs of a container engine. Its one real
// implementation is made by NewDocker; the types are ours, so that nothing else
// knows whose client stands behind it. A context that ends cuts a call short and
// never a container.
type Engine interface {
	workernet.Engine

	// Host is the engine's address, "unix:///var/run/docker.sock".
	Host() string
	// Info describes the engine.
	Info(ctx context.Context) (EngineInfo, error)
	// Image gives the full id of the image that ref names, or errNoImage. It never
	// pulls.
	Image(ctx context.Context, ref string) (id string, err error)
	// Create makes a container and does not start it.
	Create(ctx context.Context, s Spec) (id string, err error)
	// Inspect describes a container, or fails with errNoContainer.
	Inspect(ctx context.Context, id string) (Observed, error)
	// Attach connects to the streams of a container that does not run yet.
	Attach(ctx context.Context, id string) (Streams, error)
	// Wait returns once the engine has taken note, before a start; the channel gives
	// the next exit, once.
	Wait(ctx context.Context, id string) (<-chan Exit, error)
	Start(ctx context.Context, id string) error
	// Kill sends SIGKILL. A container that does not run is no error.
	Kill(ctx context.Context, id string) error
	// Remove kills and removes a container with its volumes, or fails with
	// errNoContainer.
	Remove(ctx context.Context, id string) error
	// List gives the containers, in whatever state, that have all these labels
	// ("key" or "key=value").
	List(ctx context.Context, labels ...string) ([]Found, error)
	// Close drops the connections.
	Close() error
}

// EngineInfo describes an engine.
type EngineInfo struct {
	OSType          string // "linux"
	OperatingSystem string // "Docker Desktop" on Docker Desktop
	SecurityOptions []string
	Version         string
	APIVersion      string // as negotiated
	Runtime         string // that containers get unless they ask for another
	CgroupVersion   string
	CPUs            int

	// What the kernel lets the engine bound.
	MemoryLimit, SwapLimit, PidsLimit, CPUQuota bool
}

// Streams are the ends of an attached container.
type Streams interface {
	// Stdin takes the container's input; CloseWrite ends it.
	Stdin() io.Writer
	CloseWrite() error
	// Split copies the output to two writers until it ends.
	Split(stdout, stderr io.Writer) error
	Close() error
}

// Exit is how a container ended.
type Exit struct {
	Status int64
	Err    error // the wait broke off; nothing is known
}

// Mount is one bind mount.
type Mount struct {
	Type        string `json:"-"` // of an inspected container
	Source      string
	Destination string
	ReadWrite   bool
	Propagation string `json:"-"`
}

// Ulimit is one resource limit of the container's processes.
type Ulimit struct {
	Name       string
	Soft, Hard int64
}

// Spec is a container as it is asked for. What it does not name is as strict as
// the engine knows: no capability, no device, no namespace of the host, no restart.
type Spec struct {
	Name       string
	Image      string
	Entrypoint []string
	Command    []string
	Env        []string
	User       string
	WorkingDir string
	Labels     map[string]string
	Memory     int64 // bytes; swap is never more
	NanoCPUs   int64
	Pids       int64
	Ulimits    []Ulimit
	Tmpfs      map[string]string
	Mounts     []Mount
	Network    string // mode: none, bridge, or the name of a network
	ExtraHosts []string
	DNS        []string
	Stdin      bool
}

// Observed is a container as the engine describes it.
type Observed struct {
	ID    string
	Image string
	Name  string

	Entrypoint, Command, Env []string
	User, WorkingDir         string
	Labels                   map[string]string
	Tty, OpenStdin           bool

	Memory, MemorySwap, NanoCPUs, Pids int64
	Ulimits                            []Ulimit
	Tmpfs                              map[string]string
	Mounts                             []Mount
	Network                            string
	ExtraHosts, DNS                    []string

	Privileged, ReadOnlyRoot               bool
	CapAdd, CapDrop, SecurityOptions       []string
	UsernsMode, PidMode, IpcMode, UTSMode  string
	Runtime                                string
	MaskedPaths, ReadonlyPaths             []string // below /proc and /sys
	Sysctls                                map[string]string
	Devices                                int // devices, device requests and device rules
	Binds, VolumesFrom, Links, GroupAdd    []string
	LogDriver, RestartPolicy, AppArmor     string
	AutoRemove, OomKillDisable, PublishAll bool
	Ports                                  int

	Running, OOMKilled bool
	Status             string // created, running, exited, …
	ExitCode           int64
	Started            bool // it has run, or runs
	PID                int  // of its first process, as the engine counts; 0: none
}

// Found is a container in a list.
type Found struct {
	ID      string
	Status  string // created, running, exited, …
	Labels  map[string]string
	Created time.Time
}
