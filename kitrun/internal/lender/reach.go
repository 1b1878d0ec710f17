package lender

import (
	"context"
	"net/netip"
	"strings"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// everywhere is how a broker's address begins that listens on all interfaces.
const everywhere = "0.0.0.0"

// maxSocketPath is what an address of a socket holds, its end included.
const maxSocketPath = 107

// Reach is how a worker of one network gets to the broker.
type Reach struct {
	Network  string   // what the mode amounts to on this engine
	Endpoint string   // kind that the grant asks for
	CIDR     string   // from where it may be used; "": from anywhere
	Listen   []string // what a brokerd is told that is started for it
	gateway  netip.Addr
}

// ReachOf finds out how a worker in a network of the given mode ("" is the usual
// one) reaches a broker on this machine; it makes the network of the workers if
// that is needed. socket is where a brokerd that is started may listen besides.
func ReachOf(ctx context.Context, d worker.Deps, mode, socket string) (Reach, error) {
	info, err := worker.Ask(ctx, d.Engine)
	if err != nil {
		return Reach{}, err
	}
	native := info.OSType == "linux" && !strings.Contains(info.OperatingSystem, "Docker Desktop")
	if mode == "" {
		if mode = worker.NetworkIsolated; !native {
			mode = worker.NetworkBridge
		}
	}
	r := Reach{Network: mode, Endpoint: store.EndpointTCP, Listen: []string{"auto"}}
	switch {
	case !native: // containers come in by the engine's own machine; worker refuses other modes
	case mode == worker.NetworkIsolated:
		n, err := worker.EnsureNetwork(ctx, d)
		if err != nil {
			return r, err
		}
		r.CIDR, r.gateway = n.Subnet.String(), n.Gateway
	case mode == worker.NetworkBridge:
		n, ok, err := d.Engine.Network(ctx, "bridge")
		if err != nil {
			return r, fault.New(fault.DockerUnavailable, "look at the engine's default bridge: %w", err)
		}
		if gateway := workernet.LocalIn(n.Subnet); ok && gateway.IsValid() {
			r.CIDR, r.gateway, r.Listen = n.Subnet.String(), gateway, []string{gateway.String()}
		}
	case mode == worker.NetworkSocket:
		r.Endpoint = store.EndpointUnix
	}
	if len(socket) < maxSocketPath {
		r.Listen = append(r.Listen, "unix:"+socket)
	}
	return r, nil
}

// Check refuses a loan at a broker that the worker would not reach: one that
// somebody else told where to listen.
func (r Reach) Check(loan *Loan) error {
	if r.Endpoint == store.EndpointUnix || !r.gateway.IsValid() ||
		loan.Bind == r.gateway.String() || strings.HasPrefix(loan.Bind, everywhere) {
		return nil
	}
	return fault.New(fault.BrokerUnavailable, "reach the broker: the brokerd of this Store listens on %s, and a worker in the network %s looks for it at %s",
		loan.Bind, r.Network, r.gateway).
		WithHint("wait until it ends with the run that it serves, or run brokerd serve --listen all")
}

// Socket gives the path of the broker's socket, "" when it has none.
func (loan *Loan) Socket() string {
	path, ok := strings.CutPrefix(loan.Bind, "unix:")
	if !ok {
		return ""
	}
	return path
}
