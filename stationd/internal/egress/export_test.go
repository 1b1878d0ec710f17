package egress

import (
	"net/http"
	"net/netip"
)

// Serve answers one request without a server.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request) { p.serve(w, r) }

// Permits is the decision about one address.
func (p *Proxy) Permits(to netip.AddrPort) bool { return p.policy.permits(to) }

// Target gives the one form of a target.
func Target(text string) (host string, port uint16, literal, ok bool) {
	t, ok := parseTarget(text)
	if !ok {
		return "", 0, false, false
	}
	return t.host(), t.port, t.name == "", true
}

// ErrDenied is what the dialer says of a denied address.
var ErrDenied = errDenied

// LocalAddresses are those of this host.
var LocalAddresses = localAddresses

// MaxConnections is how many connections are let in at once.
const MaxConnections = maxConnections
