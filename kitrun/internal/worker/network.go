package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// networkWait is how long another program may take to make the network.
const networkWait = 20 * time.Second

// What the receipt says of the host's own services.
const (
	hostServicesReachable = "reachable"
	hostServicesNone      = "none"
)

// network is how one container is connected.
type network struct {
	mode   string // isolated, socket, bridge, none
	name   string // what the engine is told
	hosts  []string
	dns    []string
	mounts []Mount
	entry  string // shell words before codex
}

// hostServices says what is known without the host's firewall rules, which a
// program without privileges cannot see.
func (n network) hostServices() string {
	if n.mode == NetworkSocket || n.mode == NetworkNone {
		return hostServicesNone
	}
	return hostServicesReachable
}

// connect prepares the network of a run.
func (j *job) connect(ctx context.Context, d Deps, id identity) (network, error) {
	mode := j.Network
	if mode == "" {
		if mode = NetworkIsolated; !id.native {
			mode = NetworkBridge
		}
	}
	n := network{mode: mode, name: NetworkNone, entry: "exec "}
	if !id.native && (mode == NetworkIsolated || mode == NetworkSocket) {
		return n, fault.New(fault.NetworkUnqualified, "connect the worker: the network %s needs an engine that runs on this machine's own kernel", mode).
			WithHint("on Docker Desktop only the network bridge reaches the broker")
	}
	switch mode {
	case NetworkIsolated:
		net, err := EnsureNetwork(ctx, d)
		if err != nil {
			return n, err
		}
		n.name = net.Name
		n.hosts = []string{hostName + ":" + net.Gateway.String()}
		// Without a server of its own the container's resolver would pass queries on to
		// the host's; to this address nothing answers.
		n.dns = []string{"127.0.0.1"}
	case NetworkSocket:
		return j.connectSocket(d, n)
	case NetworkBridge:
		n.name = "bridge"
		n.hosts = []string{hostName + ":" + hostGateway}
	case NetworkNone:
		n.hosts = []string{hostName + ":127.0.0.1"}
	}
	return n, nil
}

// connectSocket mounts the broker's socket and the program that leads to it.
func (j *job) connectSocket(d Deps, n network) (network, error) {
	unqualified := func(format string, args ...any) *fault.Error {
		return fault.New(fault.NetworkUnqualified, "connect the worker by a socket: "+format, args...)
	}
	if j.BrokerSocket == "" {
		return n, unqualified("no socket of a broker is known").WithHint("the broker must listen on one: brokerd serve --listen unix:PATH")
	}
	socket, err := filepath.EvalSymlinks(j.BrokerSocket)
	if err != nil {
		return n, unqualified("the broker's socket: %w", bare(err))
	}
	if err := privateSocket(socket); err != nil {
		return n, unqualified("the broker's socket: %w", err)
	}
	if d.Relay == "" {
		return n, unqualified("station-shim, which is mounted as the relay, was not found").WithHint("install station-shim beside kitrun")
	}
	relay, err := filepath.EvalSymlinks(d.Relay)
	if err != nil {
		return n, unqualified("the relay: %w", bare(err))
	}
	if st, err := os.Stat(relay); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return n, unqualified("the relay is not an executable file")
	}
	n.hosts = []string{hostName + ":127.0.0.1"}
	n.mounts = []Mount{
		{Source: filepath.Dir(socket), Destination: inBroker},
		{Source: relay, Destination: inRelay},
	}
	n.entry = relayEntry(j.port, filepath.Base(socket))
	return n, nil
}

// privateSocket checks that a socket is ours and alone in a private directory,
// since the whole directory is mounted.
func privateSocket(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return bare(err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return errors.New("it is not a socket")
	}
	if strings.ContainsAny(filepath.Base(path), " \t\n'\"\\$`;&|<>*?()") {
		return errors.New("its name has characters that a shell would read")
	}
	dir, err := os.Lstat(filepath.Dir(path))
	if err != nil {
		return bare(err)
	}
	if sys, ok := dir.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() || dir.Mode().Perm()&0o077 != 0 {
		return errors.New("its directory is not private")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return bare(err)
	}
	if len(entries) != 1 {
		return fmt.Errorf("its directory holds %d entries, and all of them would be mounted", len(entries))
	}
	return nil
}

// EnsureNetwork gives the network of the workers, made if it is absent. One
// program of a Store at a time makes it.
func EnsureNetwork(ctx context.Context, d Deps) (workernet.Network, error) {
	name := d.NetworkName
	if name == "" {
		name = workernet.DefaultName
	}
	lease, err := d.Store.Await(ctx, store.WorkerNetworkLease(), store.LeaseTTL, networkWait)
	if err != nil {
		return workernet.Network{}, err
	}
	defer func() {
		if err := d.Store.Release(context.WithoutCancel(ctx), lease); err != nil {
			d.log().Warn("lease of the worker network not released", "err", err)
		}
	}()
	net, err := workernet.Ensure(ctx, d.Engine, name)
	if _, known := fault.As(err); err != nil && !known {
		return net, unavailable("look at the network of the workers", err)
	}
	return net, err
}
