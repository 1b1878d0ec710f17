package lease_test

import (
	"context"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/lease"
)

// delegated is a provider that only describes itself; everything else panics.
type delegated struct{ about lease.Description }

func (d delegated) Describe() lease.Description { return d.about }

func (delegated) Acquire(context.Context, lease.Request) (lease.Lease, error) { panic("acquire") }

func (delegated) Machine(context.Context, lease.Lease) (lease.Machine, error) { panic("machine") }

func (delegated) Heartbeat(context.Context, lease.Lease) (time.Time, error) { panic("heartbeat") }

func (delegated) Release(context.Context, lease.Lease, *lease.Proof) error { panic("release") }

func (delegated) Close() error { panic("close") }

// A lease of another machine outlives what runs there without a stationd: a cut
// connection ends by the orphan rule.
func TestSSH_OutlivesOrphans(t *testing.T) {
	for orphan, want := range map[time.Duration]time.Duration{time.Second: lease.Life, 2 * time.Minute: lease.Life, 3 * time.Minute: 4 * time.Minute, time.Hour: 61 * time.Minute} {
		p := lease.NewSSH(lease.Remote{}, "", "", orphan)
		if got := time.Until(p.Until()); got > want || got < want-time.Minute/2 {
			t.Errorf("orphans live %v: a lease %v, want %v", orphan, got, want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func whole() *lease.StationContract {
	return &lease.StationContract{
		Start: "a", Supervise: "b", Bridge: "c", Stop: "d", OS: "linux", Network: egress.Netns, Containment: []string{"pidns"}, Version: 1,
	}
}

// Proves station 17.G1, 17.G2 for the description: a delegated provider is refused
// without a contract, whatever else it says it can do, and by its description alone.
func TestDescription_Delegated(t *testing.T) {
	for name, about := range map[string]lease.Description{
		"plain":    {Kind: lease.KindDelegated},
		"archive":  {Kind: lease.KindDelegated, ArchiveSync: true},
		"url":      {Kind: lease.KindDelegated, URLBridge: true},
		"code":     {Kind: lease.KindDelegated, CodeServer: true},
		"desktop":  {Kind: lease.KindDelegated, Desktop: true},
		"browser":  {Kind: lease.KindDelegated, Browser: true},
		"all":      {Kind: lease.KindDelegated, ArchiveSync: true, URLBridge: true, CodeServer: true, Desktop: true, Browser: true},
		"ssh":      {Kind: lease.KindSSH},
		"unnamed":  {},
		"version0": {Kind: lease.KindDelegated, Station: func() *lease.StationContract { c := whole(); c.Version = 0; return c }()},
	} {
		var p lease.Provider = delegated{about}
		if err := p.Describe().Check(); !fault.Is(err, fault.ProviderUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Proves station 17.G3: one empty field is enough.
func TestDescription_Contract(t *testing.T) {
	for name, empty := range map[string]func(*lease.StationContract){
		"start":       func(c *lease.StationContract) { c.Start = "" },
		"supervise":   func(c *lease.StationContract) { c.Supervise = "" },
		"bridge":      func(c *lease.StationContract) { c.Bridge = "" },
		"stop":        func(c *lease.StationContract) { c.Stop = "" },
		"os":          func(c *lease.StationContract) { c.OS = "" },
		"another os":  func(c *lease.StationContract) { c.OS = "plan9" },
		"network":     func(c *lease.StationContract) { c.Network = "" },
		"a network":   func(c *lease.StationContract) { c.Network = "firewall" },
		"containment": func(c *lease.StationContract) { c.Containment = nil },
	} {
		for _, kind := range []string{lease.KindDelegated, lease.KindSSH, lease.KindLocal} {
			c := whole()
			if err := (lease.Description{Kind: kind, Station: c}).Check(); err != nil {
				t.Errorf("%s, whole: %v", kind, err)
			}
			empty(c)
			if err := (lease.Description{Kind: kind, Station: c}).Check(); !fault.Is(err, fault.ProviderUnsupported) {
				t.Errorf("%s without %s: %v", kind, name, err)
			}
		}
	}
}

// Proves station 17.E13 for the machine: one that enforces nothing may have a
// contract, and then the flag decides.
func TestDescription_Network(t *testing.T) {
	c := whole()
	c.Network = egress.None
	if err := (lease.Description{Kind: lease.KindSSH, Station: c}).Check(); err != nil {
		t.Error(err)
	}
	if err := egress.Enforceable(c.Network, false); !fault.Is(err, fault.EgressUnenforceable) {
		t.Error(err)
	}
	if err := egress.Enforceable(c.Network, true); err != nil {
		t.Error(err)
	}
}
