// Package workernet says what the network of the workers is: a bridge of its own
// that leads nowhere but to the host, on which containers do not see each other
// (worker §6). kitrun attaches containers to it, brokerd listens on its gateway;
// whichever comes first makes it, and both check it each time. A network of that
// name that is different is refused and never changed.
//
// Each program brings its own way to ask the engine. The caller holds the lease
// store.WorkerNetworkLease during Ensure, so that two programs do not make two
// networks of one name, which an engine would allow.
package workernet

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"drawbridge/shared/fault"
)

// DefaultName is the network's name unless an operator gives another.
const DefaultName = "drawbridge-workers"

// What every such network has.
const (
	Driver = "bridge"

	ICCOption = "com.docker.network.bridge.enable_icc" // "false": no way from one worker to another
	ICCValue  = "false"

	Label      = "drawbridge.network"
	LabelValue = "workers"
)

// subnets is how many candidates there are for the addresses.
const subnets = 32

// Network is a network as the engine describes it.
type Network struct {
	ID       string
	Name     string
	Driver   string
	Internal bool
	IPv6     bool
	Options  map[string]string
	Labels   map[string]string
	Subnet   netip.Prefix
	Gateway  netip.Addr
}

// Definition is what an engine is asked to make.
type Definition struct {
	Name    string
	Subnet  netip.Prefix
	Gateway netip.Addr
}

// Engine is what Ensure needs of a container engine.
type Engine interface {
	// Network gives the network of exactly this name; ok is false when there is
	// none. Two of that name are an error.
	Network(ctx context.Context, name string) (n Network, ok bool, err error)
	// CreateNetwork makes a network: Driver, internal, without IPv6, with the option
	// and the label above. overlap means that the addresses are taken.
	CreateNetwork(ctx context.Context, d Definition) (overlap bool, err error)
}

// Candidates gives the definitions to try, the usual one first.
func Candidates(name string) []Definition {
	out := make([]Definition, subnets)
	for i := range out {
		base := [4]byte{10, 213, byte(77 + i), 0}
		gateway := base
		gateway[3] = 1
		out[i] = Definition{name, netip.PrefixFrom(netip.AddrFrom4(base), 24), netip.AddrFrom4(gateway)}
	}
	return out
}

// Ensure gives the network, made if it is absent, checked in any case. The error
// is network_unqualified when it is not what it must be, else the engine's.
func Ensure(ctx context.Context, e Engine, name string) (Network, error) {
	n, ok, err := e.Network(ctx, name)
	if err != nil {
		return Network{}, err
	}
	if !ok {
		if err := create(ctx, e, name); err != nil {
			return Network{}, err
		}
		if n, ok, err = e.Network(ctx, name); err != nil {
			return Network{}, err
		}
		if !ok {
			return Network{}, fault.New(fault.NetworkUnqualified, "look at network %s: it vanished right after it was made", name)
		}
	}
	return n, n.Check(IsLocal)
}

func create(ctx context.Context, e Engine, name string) error {
	for _, d := range Candidates(name) {
		overlap, err := e.CreateNetwork(ctx, d)
		if !overlap {
			return err
		}
	}
	return fault.New(fault.NetworkUnqualified, "make network %s: none of %d ranges of addresses is free", name, subnets).
		WithHint("remove networks that nobody uses, or make the network by hand as docs/worker.md shows")
}

// Check refuses a network that differs from what workers need. isLocal says
// whether an address belongs to this machine.
func (n Network) Check(isLocal func(netip.Addr) bool) error {
	differs := func(what, got, want string) error {
		return fault.New(fault.NetworkUnqualified, "check network %s: %s is %q, must be %q", n.Name, what, got, want).
			With("field", what).
			WithHint("nothing was changed: remove that network if it is not needed, or name another one")
	}
	switch {
	case n.Driver != Driver:
		return differs("driver", n.Driver, Driver)
	case !n.Internal:
		return differs("internal", "false", "true")
	case n.IPv6:
		return differs("ipv6", "true", "false")
	case n.Options[ICCOption] != ICCValue:
		return differs(ICCOption, n.Options[ICCOption], ICCValue)
	case n.Labels[Label] != LabelValue:
		return differs("label "+Label, n.Labels[Label], LabelValue)
	case !n.Gateway.Is4() || !n.Subnet.Contains(n.Gateway):
		return differs("gateway", fmt.Sprint(n.Gateway), "an IPv4 address in "+fmt.Sprint(n.Subnet))
	case !isLocal(n.Gateway):
		return differs("gateway", n.Gateway.String(), "an address of this machine")
	}
	return nil
}

// Chain is the firewall's chain that scripts/worker-firewall makes for the network's
// device.
const Chain = "DRAWBRIDGE-WORKERS"

// Device is the network's bridge on this machine.
func (n Network) Device() string {
	if name := n.Options["com.docker.network.bridge.name"]; name != "" {
		return name
	}
	return "br-" + n.ID[:min(len(n.ID), 12)]
}

// LocalIn gives this machine's address in a network, the zero address when it has none.
// Of its default bridge an engine names the gateway only when it was told one.
func LocalIn(subnet netip.Prefix) netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil || !subnet.IsValid() {
		return netip.Addr{}
	}
	for _, have := range addrs {
		if p, err := netip.ParsePrefix(have.String()); err == nil && subnet.Contains(p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// IsLocal reports whether an interface of this machine has the address.
func IsLocal(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, have := range addrs {
		if p, err := netip.ParsePrefix(have.String()); err == nil && p.Addr() == a {
			return true
		}
	}
	return false
}
