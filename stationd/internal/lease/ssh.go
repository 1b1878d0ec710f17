package lease

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"time"

	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
)

// SSH is the provider of another Linux machine. Its leases are places there, as
// those of Local are here; the shim there does what stationd does here.
type SSH struct {
	link    *link
	scratch string
	life    time.Duration
}

// NewSSH makes leases on a machine. shim is the program that is copied there,
// scratch a private directory of this machine, where workspaces and harnesses stand
// on their way, and orphan how long a daemon there lives without a stationd. It
// connects when it has to.
func NewSSH(r Remote, shim, scratch string, orphan time.Duration) *SSH {
	return &SSH{link: newLink(r, shim), scratch: scratch, life: max(Life, orphan+outlive)}
}

// until is how long a lease holds from now on.
func (p *SSH) until() time.Time { return time.Now().Add(p.life) }

// Describe says how a station is held there.
func (p *SSH) Describe() Description {
	return Description{
		Name: p.link.remote.Name, Kind: KindSSH,
		Station: contract("a process of the machine in namespaces of its own, made by the shim over SSH", "ctl.sock over SSH, and the shim's command lease", "in.sock over SSH", []string{supervise.KindPIDNamespace}),
	}
}

// request is one for a lease there.
func (p *SSH) request(op, id string) place.Request {
	return place.Request{Op: op, Lease: id, Base: place.Base{State: path.Join(p.link.remote.Dir, "leases"), Run: path.Join(p.link.remote.Dir, "run")}}
}

// Acquire makes the directory there.
func (p *SSH) Acquire(ctx context.Context, r Request) (Lease, error) {
	a, err := p.link.do(ctx, p.request(place.OpMake, r.Lease), nil)
	if err != nil {
		return Lease{}, err
	}
	return Lease{ID: r.Lease, HostRef: p.link.remote.ref(), Workdir: a.Path, BootID: a.BootID, ExpiresAt: p.until()}, nil
}

// check looks whether a lease is there, and whether this provider still leads to
// the machine where it was made.
func (p *SSH) check(ctx context.Context, l Lease) (place.Answer, error) {
	if err := p.same(l); err != nil {
		return place.Answer{}, err
	}
	return p.link.do(ctx, p.request(place.OpCheck, l.ID), nil)
}

func (p *SSH) same(l Lease) error {
	if l.HostRef != "" && l.HostRef != p.link.remote.ref() {
		return gone("use the lease %s: the provider %s leads to another machine or user now", l.ID, p.link.remote.Name)
	}
	return nil
}

// Machine is the machine there.
func (p *SSH) Machine(ctx context.Context, l Lease) (Machine, error) {
	a, err := p.check(ctx, l)
	if err != nil {
		return nil, err
	}
	if a.Layout == nil {
		return nil, gone("use the lease %s: the machine does not say where it is", l.ID)
	}
	m := &sshMachine{provider: p, id: l.ID, layout: *a.Layout, scratch: filepath.Join(p.scratch, l.ID)}
	m.ended, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Heartbeat looks whether the lease is there.
func (p *SSH) Heartbeat(ctx context.Context, l Lease) (time.Time, error) {
	if _, err := p.check(ctx, l); err != nil {
		return time.Time{}, err
	}
	return p.until(), nil
}

// Release removes the lease's directories there.
func (p *SSH) Release(ctx context.Context, l Lease, proof *Proof) error {
	if err := proof.check(l.ID); err != nil {
		return err
	}
	if err := p.same(l); err != nil {
		return err
	}
	if _, err := p.link.do(ctx, p.request(place.OpRelease, l.ID), nil); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(p.scratch, l.ID)); err != nil {
		return gone("release the lease %s: its copy here cannot be removed", l.ID)
	}
	return nil
}

// Close ends the connection. What runs there goes on.
func (p *SSH) Close() error {
	p.link.close()
	return nil
}
