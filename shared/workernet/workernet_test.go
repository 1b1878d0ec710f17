package workernet_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/workernet"
)

// good is a network as Ensure makes it, with a gateway that this machine has.
func good() workernet.Network {
	return workernet.Network{
		ID: "n1", Name: "w", Driver: workernet.Driver, Internal: true,
		Options: map[string]string{workernet.ICCOption: workernet.ICCValue},
		Labels:  map[string]string{workernet.Label: workernet.LabelValue},
		Subnet:  netip.MustParsePrefix("127.0.0.0/8"), Gateway: netip.MustParseAddr("127.0.0.1"),
	}
}

func TestNetwork_Check(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*workernet.Network)
		field  string
	}{
		{"as made", func(*workernet.Network) {}, ""},
		{"other driver", func(n *workernet.Network) { n.Driver = "macvlan" }, "driver"},
		{"leads out", func(n *workernet.Network) { n.Internal = false }, "internal"},
		{"IPv6", func(n *workernet.Network) { n.IPv6 = true }, "ipv6"},
		{"workers see each other", func(n *workernet.Network) { n.Options = nil }, workernet.ICCOption},
		{"of somebody else", func(n *workernet.Network) { n.Labels = nil }, "label " + workernet.Label},
		{"no gateway", func(n *workernet.Network) { n.Gateway = netip.Addr{} }, "gateway"},
		{"gateway elsewhere", func(n *workernet.Network) { n.Gateway = netip.MustParseAddr("10.1.1.1") }, "gateway"},
		{"gateway of another machine", func(n *workernet.Network) {
			n.Subnet, n.Gateway = netip.MustParsePrefix("203.0.113.0/24"), netip.MustParseAddr("203.0.113.1")
		}, "gateway"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := good()
			n.Options, n.Labels = maps.Clone(n.Options), maps.Clone(n.Labels)
			tc.change(&n)
			err := n.Check(workernet.IsLocal)
			if tc.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			f, ok := fault.As(err)
			if !ok || f.Code != fault.NetworkUnqualified || f.Details["field"] != tc.field {
				t.Errorf("got %v, want %s of field %q", err, fault.NetworkUnqualified, tc.field)
			}
		})
	}
}

// engine has the networks in have; the first taken ranges are in use.
type engine struct {
	have  map[string]workernet.Network
	taken int
	made  []workernet.Definition
	err   error
}

func (e *engine) Network(_ context.Context, name string) (workernet.Network, bool, error) {
	n, ok := e.have[name]
	return n, ok, e.err
}

func (e *engine) CreateNetwork(_ context.Context, d workernet.Definition) (bool, error) {
	if e.taken > 0 {
		e.taken--
		return true, errors.New("pool overlaps")
	}
	e.made = append(e.made, d)
	n := good()
	n.Name = d.Name
	e.have[d.Name] = n
	return false, nil
}

func TestEnsure(t *testing.T) {
	e := &engine{have: map[string]workernet.Network{}, taken: 2}
	for range 2 { // the second time it is there
		if _, err := workernet.Ensure(t.Context(), e, "w"); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.made) != 1 || e.made[0] != workernet.Candidates("w")[2] {
		t.Errorf("made %v, want the third candidate, once", e.made)
	}

	foreign := good()
	foreign.Internal = false
	e = &engine{have: map[string]workernet.Network{"w": foreign}}
	if _, err := workernet.Ensure(t.Context(), e, "w"); !fault.Is(err, fault.NetworkUnqualified) || len(e.made) != 0 {
		t.Errorf("a differing network: %v, made %v", err, e.made)
	}

	e = &engine{have: map[string]workernet.Network{}, taken: 1000}
	if _, err := workernet.Ensure(t.Context(), e, "w"); !fault.Is(err, fault.NetworkUnqualified) || !strings.Contains(err.Error(), "ranges") {
		t.Errorf("no free range: %v", err)
	}

	e = &engine{have: map[string]workernet.Network{}, err: errors.New("down")}
	if _, err := workernet.Ensure(t.Context(), e, "w"); err == nil {
		t.Error("an engine that does not answer is no error")
	}
}

func TestLocalIn(t *testing.T) {
	for subnet, want := range map[netip.Prefix]string{
		netip.MustParsePrefix("127.0.0.0/8"): "127.0.0.1", netip.MustParsePrefix("240.0.0.0/24"): "", {}: "",
	} {
		got := workernet.LocalIn(subnet)
		if got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%s: got %s, want %q", subnet, got, want)
		}
	}
}
