package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// What a worker is told, and how long the network of the workers is waited for.
const (
	DefaultHost      = "host.docker.internal"
	DefaultRelayPort = 8787
	networkWait      = 20 * time.Second
	probeWait        = time.Second
)

// The words before the colon of -listen.
const (
	listenAuto = "auto"
	listenAll  = "all"
	listenUnix = "unix"
)

// Listen is one value of -listen.
type Listen struct {
	how  string // listenAuto, listenAll, listenUnix; "": an address
	addr netip.Addr
	port uint16
	path string
}

// ParseListen reads auto, all[:PORT], IP[:PORT] or unix:/path (broker §3).
func ParseListen(value string) (Listen, error) {
	if value == listenAuto {
		return Listen{how: listenAuto}, nil
	}
	if path, ok := strings.CutPrefix(value, "unix:"); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return Listen{}, badListen(value, "the path of the socket is not absolute and clean")
		}
		return Listen{how: listenUnix, path: path}, nil
	}
	if rest, ok := strings.CutPrefix(value, listenAll); ok {
		if rest == "" {
			return Listen{how: listenAll}, nil
		}
		port, err := parsePort(strings.TrimPrefix(rest, ":"))
		if err != nil || rest[0] != ':' {
			return Listen{}, badListen(value, "after all comes nothing, or : and a port")
		}
		return Listen{how: listenAll, port: port}, nil
	}
	if addr, err := netip.ParseAddr(strings.Trim(value, "[]")); err == nil && addr.Zone() == "" {
		return Listen{addr: addr}, nil
	}
	both, err := netip.ParseAddrPort(value)
	if err != nil || both.Addr().Zone() != "" {
		return Listen{}, badListen(value, "it is none of auto, all[:PORT], IP[:PORT], unix:/path")
	}
	return Listen{addr: both.Addr(), port: both.Port()}, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

func badListen(value, why string) error {
	return fault.New(fault.Usage, "-listen %.200q: %s", value, why)
}

// CheckHost refuses what may not be advertised: the worker's name for the host, or
// the literal of an address.
func CheckHost(host string) error {
	if host == DefaultHost {
		return nil
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" {
		return nil
	}
	return fault.New(fault.Usage, "-advertise-host %.200q: it is neither %s nor the literal of an address", host, DefaultHost)
}

// bound is a listener with its row.
type bound struct {
	net.Listener
	row store.NewEndpoint
}

// listeners opens where the broker listens. Everything is opened or nothing is.
type listeners struct {
	opt *Options
	old []store.Endpoint // of a brokerd that died: its ports are taken again if they are free
}

func (ls listeners) open(ctx context.Context) (all []bound, err error) {
	defer func() {
		if err != nil {
			for _, b := range all {
				b.Close()
			}
			all = nil
		}
	}()
	for _, l := range ls.opt.Inherited {
		b, err := ls.inherited(l)
		if err != nil {
			return all, err
		}
		all = append(all, b)
	}
	for _, want := range ls.opt.Listen {
		b, err := ls.one(ctx, want)
		if err != nil {
			return all, err
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return all, fault.New(fault.ListenerUnavailable, "listen: there is nothing to listen on")
	}
	return all, nil
}

func (ls listeners) one(ctx context.Context, want Listen) (bound, error) {
	switch want.how {
	case listenUnix:
		return ls.socket(want.path)
	case listenAll:
		return ls.tcp(netip.Addr{}, want.port, "all interfaces, as told")
	case listenAuto:
		addr, reason := ls.decide(ctx)
		if !addr.IsValid() {
			ls.opt.Log.Warn("listening on all interfaces: every network of this machine reaches the broker, the capability alone protects it", "reason", reason)
		}
		return ls.tcp(addr, 0, "auto: "+reason)
	}
	return ls.tcp(want.addr, want.port, "the address, as told")
}

// decide finds the one address at which containers reach this machine; the zero
// address stands for all of them.
func (ls listeners) decide(ctx context.Context) (netip.Addr, string) {
	e := newEngine(ls.opt.DockerHost)
	if e == nil {
		return netip.Addr{}, "the container engine is not on a socket of this machine"
	}
	info, err := e.info(ctx)
	switch {
	case err != nil:
		ls.opt.Log.Debug("asked the container engine", "err", err)
		return netip.Addr{}, "no container engine answers"
	case info.OSType != "linux" || strings.Contains(info.OperatingSystem, "Docker Desktop"):
		return netip.Addr{}, "the container engine runs in a machine of its own"
	}
	n, err := ls.workers(ctx, e)
	if err == nil {
		return n.Gateway, "gateway of network " + n.Name
	}
	ls.opt.Log.Warn("no network of the workers", "network", ls.opt.Network, "err", err)
	n, ok, err := e.Network(ctx, "bridge")
	if gateway := workernet.LocalIn(n.Subnet); err == nil && ok && gateway.IsValid() {
		return gateway, "gateway of the default bridge"
	}
	return netip.Addr{}, "no gateway of the container engine is an address of this machine"
}

// workers ensures the network of the workers under its lease.
func (ls listeners) workers(ctx context.Context, e *engine) (workernet.Network, error) {
	l, err := ls.opt.Store.Await(ctx, store.WorkerNetworkLease(), store.LeaseTTL, networkWait)
	if err != nil {
		return workernet.Network{}, err
	}
	defer func() { _ = ls.opt.Store.Release(context.WithoutCancel(ctx), l) }()
	return workernet.Ensure(ctx, e, ls.opt.Network)
}

// tcp binds an address; port 0 prefers the port of the dead brokerd's endpoint
// there, so that what its workers were told stays true.
func (ls listeners) tcp(addr netip.Addr, port uint16, reason string) (bound, error) {
	name, host := "0.0.0.0 [::]", ""
	if addr.IsValid() {
		name, host = addr.String(), addr.String()
	}
	ports := []uint16{port}
	if port == 0 {
		for _, e := range ls.old {
			if e.Kind() == store.EndpointTCP && e.BindAddress == name && e.Port > 0 && e.Port <= 65535 {
				ports = []uint16{uint16(e.Port), 0}
			}
		}
	}
	var l net.Listener
	var err error
	for _, p := range ports {
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(p)))); err == nil {
			break
		}
	}
	if err != nil {
		return bound{}, fault.New(fault.ListenerUnavailable, "listen on %s port %d: %w", name, port, err)
	}
	return ls.row(l, name, reason, l.Addr().(*net.TCPAddr).Port)
}

// socket binds a file in a private directory. What stands there and answers is
// left alone; what is dead is removed.
func (ls listeners) socket(path string) (bound, error) {
	if err := service.EnsurePrivateDir(filepath.Dir(path)); err != nil {
		return bound{}, err
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return bound{}, fault.New(fault.ListenerUnavailable, "listen on socket %s: something else stands there", path)
		}
		if c, err := net.DialTimeout("unix", path, probeWait); err == nil {
			c.Close()
			return bound{}, fault.New(fault.ListenerUnavailable, "listen on socket %s: another program answers there", path)
		}
		if err := os.Remove(path); err != nil {
			return bound{}, fault.New(fault.ListenerUnavailable, "listen on socket %s: %w", path, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return bound{}, fault.New(fault.ListenerUnavailable, "listen on socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return bound{}, fault.New(fault.ListenerUnavailable, "listen on socket %s: %w", path, err)
	}
	return ls.row(l, "unix:"+path, "the socket, as told", 0)
}

func (ls listeners) inherited(l net.Listener) (bound, error) {
	switch a := l.Addr().(type) {
	case *net.TCPAddr:
		name := a.IP.String()
		if a.IP.IsUnspecified() {
			name = "0.0.0.0 [::]"
		}
		return ls.row(l, name, "inherited", a.Port)
	case *net.UnixAddr:
		return ls.row(l, "unix:"+a.Name, "inherited", 0)
	}
	return bound{}, fault.New(fault.ListenerUnavailable, "use an inherited listener: it is neither TCP nor a socket file")
}

func (ls listeners) row(l net.Listener, name, reason string, port int) (bound, error) {
	advertised := port
	if port == 0 {
		advertised = ls.opt.RelayPort
	}
	mode := upstream.Live
	if ls.opt.TestOrigin != "" {
		mode = upstream.Mocked
	}
	return bound{l, store.NewEndpoint{
		BindAddress: name, BindReason: reason, Port: int64(port), TransportMode: mode,
		BaseURL: "http://" + net.JoinHostPort(ls.opt.AdvertiseHost, strconv.Itoa(advertised)),
	}}, nil
}

// loopbackListener opens the metrics page, which only this machine may read.
func loopbackListener(address string) (net.Listener, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "listen for metrics: %w", err)
	}
	return l, nil
}

// CheckLoopback accepts the literal of a loopback address with a port.
func CheckLoopback(address string) error {
	addr, err := netip.ParseAddrPort(address)
	if err == nil && !addr.Addr().IsLoopback() {
		err = errors.New("it is not a loopback address")
	}
	if err != nil {
		return fault.New(fault.Usage, "-metrics %.100q: %s", address, fmt.Sprint(err)).WithHint("give 127.0.0.1:PORT or [::1]:PORT")
	}
	return nil
}
