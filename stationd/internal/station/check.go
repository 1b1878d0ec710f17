package station

import (
	"slices"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// plan is a spec that may be started: held against its profile, its provider and
// everything else that is known before a row exists.
type plan struct {
	launch.Resolved
	provider lease.Provider
	network  egress.Enforcement
	kind     string          // of containment, the strongest of the provider
	way      *egress.Profile // nil: no way out
	grace    time.Duration
}

// check reads a spec and refuses what cannot be started (station §6.8). Nothing but
// the provider's description is asked for.
func (m *Manager) check(data []byte) (p plan, err error) {
	spec, err := launch.Parse(data)
	if err != nil {
		return p, err
	}
	if p.Resolved, err = m.opts.Profiles.Resolve(spec); err != nil {
		return p, err
	}
	provider, d, err := m.provider(p.Provider)
	if err != nil {
		return p, err
	}
	p.provider, p.network = provider, d.Station.Network
	for _, refuse := range []func(*plan, lease.Description) error{
		m.checkMachine, m.checkSecrets, m.checkWayOut, m.checkBridge,
	} {
		if err := refuse(&p, d); err != nil {
			return p, err
		}
	}
	p.grace = m.grace(data, p.Spec)
	if p.Bridge == nil {
		p.IdleTime = 0 // nothing could count as activity
	}
	return p, nil
}

// checkMachine refuses a containment that a daemon can leave, and a user.
func (m *Manager) checkMachine(p *plan, d lease.Description) error {
	strong := func(kind string) bool {
		return kind == supervise.KindPIDNamespaceCgroup || kind == supervise.KindPIDNamespace
	}
	i := slices.IndexFunc(d.Station.Containment, strong)
	if i < 0 {
		return fault.New(fault.ContainmentMissing, "start %s: provider %s offers no containment that a daemon cannot leave", p.Name, d.Name)
	}
	p.kind = d.Station.Containment[i]
	if d.Kind == lease.KindLocal {
		return supervise.CheckUser(user(p.RunAs), p.AllowRoot)
	}
	return nil
}

// checkSecrets refuses secrets in arguments and variables, and an artifact that
// nothing proves.
func (m *Manager) checkSecrets(p *plan, _ lease.Description) error {
	if err := launch.CheckArguments(p.Command, m.known(p.Spec)); err != nil {
		return err
	}
	if err := launch.CheckEnv(p.Spec, m.opts.Environ); err != nil {
		return err
	}
	if a := p.Harness.Artifact; a != nil {
		return launch.Pinned(*a)
	}
	return nil
}

// known are the values that no argument may hold and no text may show.
func (m *Manager) known(s launch.Spec) []redact.Secret { return launch.Known(m.opts.Environ, s) }

// checkWayOut finds the egress profile, and refuses a network that enforces none.
func (m *Manager) checkWayOut(p *plan, _ lease.Description) error {
	if err := egress.Enforceable(p.network, p.AcceptUnenforcedEgress); err != nil {
		return err
	}
	if p.EgressProfile == egress.NoProfile {
		return nil
	}
	profile, err := m.opts.Egress.Find(p.EgressProfile)
	if err != nil {
		return err
	}
	p.way = &profile
	return profile.Check(m.opts.Egress.Models...)
}

// checkBridge refuses settings that the gate would refuse later.
func (m *Manager) checkBridge(p *plan, _ lease.Description) error {
	credential, err := p.inject(redact.NewSecret("only to look at the form"))
	if err != nil || p.Bridge == nil {
		return err
	}
	if m.opts.Gate == nil {
		return fault.New(fault.BridgeInvalid, "start %s: this stationd has no gate", p.Name)
	}
	return gate.Bridge{HeaderAllow: p.Bridge.HeaderAllow, Limits: limits(p.Bridge.Limits), Credential: credential}.Check()
}

func limits(l launch.BridgeLimits) gate.Limits {
	return gate.Limits{
		Body: l.Body, Answer: l.Answer, HeaderWait: time.Duration(l.HeaderWaitMS) * time.Millisecond,
		Requests: int(l.Requests), Streams: int(l.Streams), TicketStreams: int(l.TicketStreams),
	}
}

// grace is the spec's, or stationd's where the spec says nothing.
func (m *Manager) grace(data []byte, s launch.Spec) time.Duration {
	if m.opts.Grace > 0 {
		tree, err := strictjson.Parse(data, strictjson.Limits{})
		if v, said := strictjson.Pointer(tree, "/graceMs"); err == nil && (!said || v == strictjson.Number("0")) {
			return m.opts.Grace
		}
	}
	return time.Duration(s.GraceMS) * time.Millisecond
}

// user is a spec's user as the shim knows it.
func user(u *launch.User) *wire.User {
	if u == nil {
		return nil
	}
	return &wire.User{UID: u.UID, GID: u.GID}
}
