package egress_test

import (
	"net/http"
	"net/netip"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
)

// deniedAddresses are of every class and disguise of station §9.3.
var deniedAddresses = []string{
	"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.1.2.3", "127.255.255.255",
	"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255",
	"100.64.0.1", "100.127.255.255", "100.100.100.200", "169.254.0.1", "169.254.169.254", "169.254.170.2",
	"192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.1",
	"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.254", "255.255.255.255",
	"::", "::1", "::2", "::127.0.0.1", "::10.0.0.1", "::93.184.216.34",
	"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::ffff:0:10.0.0.1",
	"64:ff9b::10.0.0.1", "64:ff9b::93.184.216.34", "64:ff9b:1::1", "100::1", "100:1::1",
	"2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:20::1", "2001:db8::1", "3fff::1",
	"2002:0a00:0001::1", "2002:5db8:d822::1", "4000::1", "5f00::1",
	"fc00::1", "fd00::1", "fd00:ec2::254", "fdff:ffff::1", "fe80::1", "febf::1", "fec0::1", "feff::1", "ff02::1", "ff0e::1",
	"168.63.129.16",                         // Azure's, which is a public address
	"93.184.216.99", "::ffff:93.184.216.99", // the rig's own host
}

// deniedTargets are the ways to write such an address in a request.
var deniedTargets = []string{
	"2130706433:443", "017700000001:443", "0x7f000001:443", "0x7f.0.0.1:443", "0177.0.0.1:443", "127.1:443", "127.0.1:443",
	"10.1:443", "0xa9fea9fe:443", "2852039166:443", "169.254.43518:443", "127.0.0.1.:443", "127.0.0.0x1:443", "1.0x1:443", "00:443", "0:443",
	"[fe80::1%25lo]:443", "[fe80::1%lo]:443", "[127.0.0.1]:443", "[::1:443", "::1:443", "[::1]]:443",
	"localhost:443", "LOCALHOST.:443", "x.localhost:443", "metadata.google.internal:443", "db.internal:443",
	"host.docker.internal:443", "gateway.docker.internal:443", "ip6-localhost:443", "printer.local:443",
	"x@127.0.0.1:443", "127.0.0.1:443@x.test:443", "a..test:443", "-a.test:443", "a_\x7f.test:443", "a.test:0", "a.test:65536", "a.test:-1", "a.test:0x1bb", ":443", "",
}

// Proves station 17.E5: as answers to a name, which is what a rebinding name server
// gives, and written into the request.
func TestAddressesAreDenied(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}}, nil)
	for _, text := range deniedAddresses {
		a := netip.MustParseAddr(text)
		if r.proxy.Permits(netip.AddrPortFrom(a, 443)) {
			t.Errorf("%s is permitted", text)
		}
		r.names["a.test"] = []netip.Addr{a}
		literal := text + ":443"
		if a.Is6() {
			literal = "[" + text + "]:443"
		}
		for _, target := range []string{"a.test:443", literal} {
			status := ask(r, target)
			if status != http.StatusForbidden {
				t.Errorf("%s for %s: status %d", target, text, status)
			}
		}
	}
	for _, target := range deniedTargets {
		if status := ask(r, target); status != http.StatusForbidden {
			t.Errorf("%q: status %d", target, status)
		}
	}
	if len(r.dialled) != 0 {
		t.Errorf("dialled %v", r.dialled)
	}
	for _, text := range []string{"93.184.216.34", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "2606:2800:220:1::1", "2a00:1450::1", "2001:4860::1"} {
		if !r.proxy.Permits(netip.MustParseAddrPort(netip.AddrPortFrom(netip.MustParseAddr(text), 443).String())) {
			t.Errorf("%s is public and denied", text)
		}
	}
}

// Proves station 17.E7
func TestOwnAddressesAreDenied(t *testing.T) {
	lease := netip.MustParseAddr("93.184.216.50")
	gate, broker := netip.MustParseAddrPort("127.0.0.1:8400"), netip.MustParseAddrPort("127.0.0.1:8787")
	open := []egress.Private{
		private("127.0.0.0/8", 443, 8400, 8787), private("93.184.216.0/24", 443), // too wide for a host's own
		private("127.0.0.1/32", 8400, 8787, 9000, 9001),
	}
	r := newRig(t, egress.Profile{Allow: []string{"a.test"}, Ports: []uint16{443, 8400, 8787, 9000}, Private: open}, func(o *egress.Options) {
		o.Own = []netip.Addr{lease}
		o.Internal = []netip.AddrPort{gate, broker, netip.MustParseAddrPort("0.0.0.0:9001")}
	})
	for at, want := range map[string]bool{
		"93.184.216.99:443": false, // an interface of this host
		"93.184.216.50:443": false, // of the lease host
		"127.0.0.1:8400":    false, // the gate, in spite of an exact entry
		"127.0.0.1:8787":    false, // the broker
		"127.0.0.1:9001":    false, // what listens on all addresses
		"127.0.0.2:443":     false, // loopback through a wide entry
		"127.0.0.1:9000":    true,  // the exact entry and its port
		"127.0.0.1:443":     false, // not its port
		"93.184.216.34:443": true,
	} {
		if got := r.proxy.Permits(netip.MustParseAddrPort(at)); got != want {
			t.Errorf("%s: permitted %v, want %v", at, got, want)
		}
	}

	// With the machine's real interfaces: none of them.
	real, err := egress.New(egress.Options{Profile: egress.Profile{Name: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	found, err := egress.LocalAddresses()
	if err != nil || len(found) == 0 {
		t.Fatalf("no interfaces: %v", err)
	}
	for _, a := range found {
		if real.Permits(netip.AddrPortFrom(a, 443)) {
			t.Errorf("%s is permitted", a)
		}
	}
}

// Proves station 17.E8
func TestReviewedNetworks(t *testing.T) {
	whole := private("10.1.0.0/16", 5432)
	for name, change := range map[string]func(*egress.Private){
		"no cidr":           func(e *egress.Private) { e.CIDR = "" },
		"no ports":          func(e *egress.Private) { e.Ports = nil },
		"port 0":            func(e *egress.Private) { e.Ports = []uint16{0} },
		"nobody":            func(e *egress.Private) { e.ReviewedBy = " " },
		"no date":           func(e *egress.Private) { e.ReviewedAt = "" },
		"no such date":      func(e *egress.Private) { e.ReviewedAt = "2026-02-30" },
		"no reason":         func(e *egress.Private) { e.Reason = "" },
		"host bits":         func(e *egress.Private) { e.CIDR = "10.1.0.1/16" },
		"everything":        func(e *egress.Private) { e.CIDR = "0.0.0.0/0" },
		"everything in v6":  func(e *egress.Private) { e.CIDR = "::/0" },
		"more than a class": func(e *egress.Private) { e.CIDR = "10.0.0.0/7" },
		"multicast":         func(e *egress.Private) { e.CIDR = "224.0.0.0/24" },
		"a disguise":        func(e *egress.Private) { e.CIDR = "64:ff9b::a00:0/104" },
		"mapped":            func(e *egress.Private) { e.CIDR = "::ffff:10.1.0.0/112" },
		"unspecified":       func(e *egress.Private) { e.CIDR = "0.0.0.0/32" },
		"no global v6":      func(e *egress.Private) { e.CIDR = "4000::/16" },
	} {
		e := whole
		change(&e)
		p := egress.Profile{Name: "p", Private: []egress.Private{e}}
		if err := p.Check(); !fault.Is(err, fault.EgressProfileInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := newRig(t, egress.Profile{Allow: []string{"db.test"}, Ports: []uint16{5432, 443}, Private: []egress.Private{
		whole, private("169.254.0.0/16", 80), private("fd00::/8", 443), private("fe80::1/128", 443),
	}}, nil)
	for at, want := range map[string]bool{
		"10.1.2.3:5432": true, "10.1.2.3:443": false, "10.2.0.1:5432": false, "[::ffff:10.1.2.3]:5432": true,
		"169.254.1.1:80": true, "169.254.169.254:80": false, "169.254.170.2:80": false, "[fd00:ec2::23]:443": false, "[fd20:ce::254]:443": false,
		"[fd00::1]:443": true, "[fd00:ec2::254]:443": false, "[fe80::1]:443": true, "[fe80::2]:443": false,
	} {
		if got := r.proxy.Permits(netip.MustParseAddrPort(at)); got != want {
			t.Errorf("%s: permitted %v, want %v", at, got, want)
		}
	}
	for target, want := range map[string]egress.Code{
		"10.1.2.3:5432": egress.DialFailed, "10.1.2.3:443": egress.PortDenied, "10.2.0.1:5432": egress.IPLiteral, "169.254.169.254:80": egress.AddressDenied,
	} {
		ask(r, target)
		if !holds(r.proxy.Summary(), target, want) {
			t.Errorf("%s: want %s: %+v", target, want, r.proxy.Summary())
		}
	}
	exact := newRig(t, egress.Profile{Private: []egress.Private{private("169.254.169.254/32", 80)}}, nil)
	if !exact.proxy.Permits(netip.MustParseAddrPort("169.254.169.254:80")) {
		t.Error("metadata with its exact entry is denied")
	}
}

// holds reports whether the record has a row for a target with a code.
func holds(s egress.Summary, target string, code egress.Code) bool {
	at := netip.MustParseAddrPort(target)
	for _, row := range append(s.Allowed, s.Denied...) {
		if row.Host == at.Addr().String() && row.Port == at.Port() && row.Code == code {
			return true
		}
	}
	return false
}

// ask sends CONNECT for a target that no client library would let through.
func ask(r *rig, target string) int {
	w := &status{}
	q, _ := http.NewRequest(http.MethodConnect, "http://x", nil)
	q.RequestURI = target
	r.proxy.Serve(w, q)
	return w.code
}

type status struct {
	discard
	code int
}

func (s *status) WriteHeader(code int) { s.code = code }
