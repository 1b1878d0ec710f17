package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Code is why a connection was not made, or ended, in the record.
type Code string

// The codes, in the order of the decision (station §9.3).
const (
	BadTarget        Code = "bad_target"
	IPLiteral        Code = "ip_literal"
	PortDenied       Code = "port_denied"
	NameDenied       Code = "name_denied"
	ModelDestination Code = "model_destination"
	DNSFailed        Code = "dns_failed"
	AddressDenied    Code = "address_denied"
	Limit            Code = "limit"

	MethodRefused Code = "method_refused" // neither CONNECT nor a request for port 80
	DialFailed    Code = "dial_failed"    // allowed, but nobody answered
	Idle          Code = "idle"           // cut after silence
)

// judge is the decision about a target as far as the target alone tells.
func (p *policy) judge(t target) Code {
	if t.name == "" {
		to := netip.AddrPortFrom(t.addr, t.port)
		switch {
		case !p.listed(t.addr):
			return IPLiteral
		case !slices.ContainsFunc(p.profile.Private, func(e Private) bool {
			return e.prefix.Contains(t.addr) && slices.Contains(e.Ports, t.port)
		}):
			return PortDenied
		case !p.permits(to):
			return AddressDenied
		}
		return ""
	}
	switch {
	case !slices.Contains(p.profile.Ports, t.port):
		return PortDenied
	case !slices.ContainsFunc(p.profile.Allow, func(pattern string) bool { return matches(pattern, t.name) }):
		return NameDenied
	case isModel(t.name, p.models):
		return ModelDestination
	case internalName(t.name):
		return AddressDenied
	}
	return ""
}

// addresses looks a target up, once, and gives what may be dialled. One denied
// answer denies all: a mixed answer is a sign of rebinding.
func (p *Proxy) addresses(ctx context.Context, t target) ([]netip.AddrPort, Code) {
	if t.name == "" {
		return []netip.AddrPort{netip.AddrPortFrom(t.addr, t.port)}, ""
	}
	ctx, cancel := context.WithTimeout(ctx, milliseconds(p.opts.Profile.Limits.DNSMS))
	defer cancel()
	// The dot keeps the host's search domains out of it.
	found, err := p.opts.Resolver.LookupNetIP(ctx, "ip", t.name+".")
	if err != nil || len(found) == 0 {
		return nil, DNSFailed
	}
	out := make([]netip.AddrPort, len(found))
	for i, a := range found {
		out[i] = netip.AddrPortFrom(a.Unmap(), t.port)
		if !p.policy.permits(out[i]) {
			return nil, AddressDenied
		}
	}
	return out, ""
}

// reach decides about "host:port" and connects to it. Without a tunnel the code
// says why; every outcome is in the record.
func (p *Proxy) reach(ctx context.Context, raw string) (*tunnel, target, Code) {
	t, ok := parseTarget(raw)
	if !ok {
		p.record.count(raw[strings.LastIndexByte(raw, '@')+1:], 0, Denied, BadTarget)
		return nil, t, BadTarget
	}
	code := p.policy.judge(t)
	var to []netip.AddrPort
	if code == "" {
		to, code = p.addresses(ctx, t)
	}
	var tun *tunnel
	if code == "" {
		if tun = p.admit(); tun == nil {
			code = Limit
		}
	}
	if code != "" {
		p.record.count(t.host(), t.port, Denied, code)
		return nil, t, code
	}
	conn, err := p.connect(ctx, to)
	if err != nil {
		p.record.count(t.host(), t.port, Allowed, DialFailed)
		tun.close()
		return nil, t, DialFailed
	}
	tun.begin(ctx, conn, p.record.count(t.host(), t.port, Allowed, ""))
	return tun, t, ""
}

// connect dials the checked addresses one after another.
func (p *Proxy) connect(ctx context.Context, to []netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, milliseconds(p.opts.Profile.Limits.DialMS))
	defer cancel()
	end, _ := ctx.Deadline()
	var err error
	for i, at := range to { // one deaf address leaves time for the others
		share, done := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(to)-i))
		var conn net.Conn
		conn, err = p.opts.Dial(share, at)
		done()
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// admit gives a place for one more tunnel, nil when a limit is reached.
func (p *Proxy) admit() *tunnel {
	limits := p.opts.Profile.Limits
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.opts.Now()
	rate := float64(limits.NewPerSecond)
	if passed := now.Sub(p.filled); passed > 0 {
		p.tokens, p.filled = min(rate, p.tokens+rate*passed.Seconds()), now
	}
	if p.stop || p.tokens < 1 || len(p.open) >= limits.Tunnels || p.record.spent(limits) {
		return nil
	}
	p.tokens--
	t := &tunnel{proxy: p}
	p.open[t] = struct{}{}
	return t
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
