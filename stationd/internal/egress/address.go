package egress

import (
	"net"
	"net/netip"
	"slices"
)

// class is a kind of address that is denied unless a reviewed entry opens it.
type class struct {
	prefix netip.Prefix
	open   bool // a reviewed entry can open a part of it
}

// classes are the denied kinds of station §9.3. What is not in 2000::/3 is no
// global IPv6 address and denied besides.
var classes = func() []class {
	var out []class
	add := func(open bool, prefixes ...string) {
		for _, p := range prefixes {
			out = append(out, class{netip.MustParsePrefix(p), open})
		}
	}
	add(true, // networks that may be somebody's own
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", // private
		"100.64.0.0/10",          // carriers' inside
		"127.0.0.0/8", "::1/128", // loopback
		"169.254.0.0/16", "fe80::/10", // link-local
		"198.18.0.0/15", "fec0::/10", // benchmarks, site-local
		"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20", // documentation
	)
	add(false, // no destinations, or others in disguise
		"0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "ff00::/8",
	)
	return out
}()

var (
	globalV6 = netip.MustParsePrefix("2000::/3")
	// metadata are the services that hand out a machine's credentials, also those that
	// stand among public addresses.
	metadata = []netip.Addr{
		netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:c1::a9fe:a9fe"),
		netip.MustParseAddr("169.254.170.2"), netip.MustParseAddr("169.254.170.23"), netip.MustParseAddr("fd00:ec2::23"), // of containers
		netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("169.254.0.23"), netip.MustParseAddr("168.63.129.16"),
	}
)

// classOf says whether an address is denied, and whether a reviewed entry can
// open it.
func classOf(a netip.Addr) (denied, open bool) {
	for _, c := range classes {
		if c.prefix.Contains(a) {
			denied = true
			if !c.open || a == netip.IPv6Unspecified() {
				return true, false
			}
			open = true
			if a == netip.IPv6Loopback() {
				return true, true // it stands in ::/96 too
			}
		}
	}
	if !denied && a.Is6() && !globalV6.Contains(a) {
		return true, false
	}
	return denied, open
}

// openable says why a reviewed entry cannot open a network; "" when it can: the
// network lies in one kind of denied addresses, or holds none.
func openable(p netip.Prefix) string {
	if p == netip.PrefixFrom(netip.IPv6Loopback(), 128) {
		return ""
	}
	if p.Addr().Is6() && p.Bits() < 3 {
		return "is wider than one kind of network"
	}
	for _, c := range classes {
		switch {
		case !c.prefix.Overlaps(p):
		case !c.open:
			return "holds addresses that nothing opens"
		case p.Bits() < c.prefix.Bits():
			return "is wider than one kind of network"
		default:
			return ""
		}
	}
	if _, open := classOf(p.Addr()); !open && p.Addr().Is6() && !globalV6.Contains(p.Addr()) {
		return "holds addresses that nothing opens"
	}
	return ""
}

// policy decides about targets.
type policy struct {
	profile  Profile
	models   []string
	own      []netip.Addr
	local    func() ([]netip.Addr, error)
	internal map[netip.AddrPort]bool
}

// permits reports whether an address may be dialled. Metadata services and the
// host's own addresses need an entry for exactly them; the coordinator's ports
// are never permitted.
func (p *policy) permits(to netip.AddrPort) bool {
	a := to.Addr().Unmap()
	if !a.IsValid() || a.Zone() != "" || p.internal[netip.AddrPortFrom(a, to.Port())] {
		return false
	}
	exact := slices.Contains(metadata, a) // only by an entry of its own
	local, err := p.local()
	if err != nil {
		return false // not knowing is no permission
	}
	if a.IsLoopback() || slices.Contains(p.own, a) || slices.Contains(local, a) {
		if p.internal[netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())] || p.internal[netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())] {
			return false
		}
		exact = true
	}
	denied, open := classOf(a)
	if !denied && !exact {
		return true
	}
	if denied && !open {
		return false
	}
	return slices.ContainsFunc(p.profile.Private, func(e Private) bool {
		return e.prefix.Contains(a) && slices.Contains(e.Ports, to.Port()) && (!exact || e.prefix.IsSingleIP())
	})
}

// listed reports whether an entry covers an address, whatever its ports.
func (p *policy) listed(a netip.Addr) bool {
	return slices.ContainsFunc(p.profile.Private, func(e Private) bool { return e.prefix.Contains(a) })
}

// localAddresses are those of all interfaces of this host.
func localAddresses() ([]netip.Addr, error) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, i := range interfaces {
		if n, ok := i.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, a.Unmap())
			}
		}
	}
	return out, nil
}
