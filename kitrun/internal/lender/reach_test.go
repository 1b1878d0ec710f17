package lender_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/lender"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/workernet"
)

// fakeEngine has networks whose gateways are addresses of this machine.
type fakeEngine struct {
	worker.Engine
	system string
	err    error
	bridge workernet.Network
}

func (e fakeEngine) Info(context.Context) (worker.EngineInfo, error) {
	return worker.EngineInfo{OSType: "linux", OperatingSystem: e.system}, e.err
}

func (e fakeEngine) Network(_ context.Context, name string) (workernet.Network, bool, error) {
	if name == "bridge" {
		return e.bridge, e.bridge.Subnet.IsValid(), nil
	}
	return workernet.Network{
		Name: name, Driver: workernet.Driver, Internal: true, Options: map[string]string{workernet.ICCOption: workernet.ICCValue},
		Labels: map[string]string{workernet.Label: workernet.LabelValue},
		Subnet: netip.MustParsePrefix("127.0.0.0/8"), Gateway: netip.MustParseAddr("127.0.0.1"),
	}, true, nil
}

func TestReachOf(t *testing.T) {
	const socket = "/run/me/broker/s"
	bridge := workernet.Network{Subnet: netip.MustParsePrefix("127.0.0.0/8")}
	for _, tc := range []struct {
		name   string
		mode   string
		engine fakeEngine
		socket string
		want   lender.Reach
	}{
		{"usual", "", fakeEngine{}, socket, lender.Reach{Network: "isolated", Endpoint: "tcp", CIDR: "127.0.0.0/8", Listen: []string{"auto", "unix:" + socket}}},
		{"isolated", "isolated", fakeEngine{}, socket, lender.Reach{Network: "isolated", Endpoint: "tcp", CIDR: "127.0.0.0/8", Listen: []string{"auto", "unix:" + socket}}},
		{"socket", "socket", fakeEngine{}, socket, lender.Reach{Network: "socket", Endpoint: "unix", Listen: []string{"auto", "unix:" + socket}}},
		{"long path", "none", fakeEngine{}, "/" + strings.Repeat("x", 110), lender.Reach{Network: "none", Endpoint: "tcp", Listen: []string{"auto"}}},
		{"bridge", "bridge", fakeEngine{bridge: bridge}, socket, lender.Reach{Network: "bridge", Endpoint: "tcp", CIDR: "127.0.0.0/8", Listen: []string{"127.0.0.1", "unix:" + socket}}},
		{"no bridge", "bridge", fakeEngine{}, socket, lender.Reach{Network: "bridge", Endpoint: "tcp", Listen: []string{"auto", "unix:" + socket}}},
		{"Docker Desktop", "", fakeEngine{system: "Docker Desktop"}, socket, lender.Reach{Network: "bridge", Endpoint: "tcp", Listen: []string{"auto", "unix:" + socket}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			got, err := lender.ReachOf(t.Context(), worker.Deps{Engine: tc.engine, Store: w.s}, tc.mode, tc.socket)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "gateway" }, cmp.Ignore()), cmp.AllowUnexported(lender.Reach{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := lender.ReachOf(t.Context(), worker.Deps{Engine: fakeEngine{err: errors.New("no answer")}}, "", ""); !fault.Is(err, fault.DockerUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestReach_Check(t *testing.T) {
	w := newWorld(t)
	isolated, err := lender.ReachOf(t.Context(), worker.Deps{Engine: fakeEngine{}, Store: w.s}, "isolated", "/s")
	if err != nil {
		t.Fatal(err)
	}
	for bind, ok := range map[string]bool{"127.0.0.1": true, "0.0.0.0 [::]": true, "10.0.0.1": false, "unix:/s": false} {
		if err := isolated.Check(&lender.Loan{Bind: bind}); (err == nil) != ok || err != nil && !fault.Is(err, fault.BrokerUnavailable) {
			t.Errorf("%s: %v", bind, err)
		}
	}
	socket, err := lender.ReachOf(t.Context(), worker.Deps{Engine: fakeEngine{}, Store: w.s}, "socket", "/s")
	if err != nil {
		t.Fatal(err)
	}
	loan := &lender.Loan{Bind: "unix:/run/s"}
	if err := socket.Check(loan); err != nil || loan.Socket() != "/run/s" {
		t.Errorf("%v, %q", err, loan.Socket())
	}
	if got := (&lender.Loan{Bind: "127.0.0.1"}).Socket(); got != "" {
		t.Errorf("got %q", got)
	}
}
