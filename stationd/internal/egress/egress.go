// Package egress is the one way out of a station: a filtering HTTP proxy for one
// attempt, in front of a daemon whose network namespace has no route of its own
// (station §9).
//
// The shim carries what connects to 127.0.0.1:3128 in the namespace to the unix
// socket that Run serves; the socket is the attempt's identity, so there is no
// proxy password. A daemon without a profile gets no socket at all. The proxy
// takes CONNECT, and requests in absolute form for port 80; names are resolved
// here, since nothing inside can.
//
// Each connection is decided anew: the target is read into one form, its name must
// be allowed by the profile and must not be a model's, it is looked up once, every
// answer must be permitted, and one of exactly those addresses is dialled, checked
// again when the socket is made. A redirect is a new connection. Refusals answer
// 403 with a fixed text.
//
// What is kept is counts by host, port and outcome; no URL, header or body. The
// package owns nothing on disk. When Run's context ends every tunnel is closed,
// and Run returns when all of them have ended.
package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/wire"
)

const (
	readHeaderWait = 10 * time.Second
	keepAlive      = time.Minute
	maxHeaders     = 32 << 10
	stopServer     = 500 * time.Millisecond // for answers that are being written
	maxConnections = 128                    // of the daemon, at once; further ones wait to be accepted
	sendBuffer     = 1 << 20                // of the kernel, towards the daemon; the usual 208 KiB cost a tunnel a seventh of its throughput
)

// Enforcement says what keeps a daemon from other ways out (station §9.1).
type Enforcement string

// The two kinds.
const (
	Netns Enforcement = "netns" // a namespace with nothing but lo
	None  Enforcement = "none"
)

// Enforceable refuses a machine that enforces nothing, unless the operator has
// accepted that by name.
func Enforceable(e Enforcement, accepted bool) error {
	if e == Netns || (e == None && accepted) {
		return nil
	}
	return fault.New(fault.EgressUnenforceable, "start without a closed network: the machine's enforcement is %q", string(e)).
		WithHint("use a machine with network namespaces, or set accept_unenforced_egress: the evidence will say so")
}

// Variables are the settings that make a daemon's HTTP clients use the proxy.
func Variables() map[string]string {
	const proxy, direct = "http://" + wire.ProxyAddress, "127.0.0.1,localhost,::1"
	return map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": direct,
		"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": direct,
	}
}

// Resolver looks names up; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options configures New. Profile is required and must have passed Parse or Check.
type Options struct {
	Profile     Profile
	Enforcement Enforcement
	Models      []string         // model destinations besides the built-in ones
	Own         []netip.Addr     // addresses of the lease host, besides those of this one
	Internal    []netip.AddrPort // gate, broker: denied whatever a profile says; 0.0.0.0 and :: are all of this host's
	Redactor    *redact.Redactor // for names in the record; nil knows patterns only
	Log         *slog.Logger     // nil discards

	Resolver Resolver                                                       // nil asks the system
	Dial     func(ctx context.Context, to netip.AddrPort) (net.Conn, error) // nil dials
	Local    func() ([]netip.Addr, error)                                   // this host's addresses; nil asks its interfaces
	Now      func() time.Time
}

// Proxy is the way out of one attempt.
type Proxy struct {
	opts   Options
	policy policy
	record record

	mu     sync.Mutex
	stop   bool           // no new tunnels
	ended  bool           // no new requests
	work   sync.WaitGroup // every request, hijacked ones too
	open   map[*tunnel]struct{}
	tokens float64 // of new tunnels
	filled time.Time
}

// New makes a proxy.
func New(opts Options) (*Proxy, error) {
	if err := opts.Profile.Check(opts.Models...); err != nil {
		return nil, err
	}
	opts.Profile = opts.Profile.filled()
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Redactor == nil {
		opts.Redactor = redact.New(redact.Options{})
	}
	if opts.Local == nil {
		opts.Local = localAddresses
	}
	if opts.Resolver == nil {
		opts.Resolver = net.DefaultResolver
	}
	p := &Proxy{
		opts: opts,
		policy: policy{
			profile: opts.Profile, models: append(builtInModels(), opts.Models...),
			local: opts.Local, internal: map[netip.AddrPort]bool{},
		},
		record: record{redactor: opts.Redactor, now: opts.Now},
		open:   map[*tunnel]struct{}{},
		tokens: float64(opts.Profile.Limits.NewPerSecond), filled: opts.Now(),
	}
	for _, a := range opts.Own {
		p.policy.own = append(p.policy.own, a.Unmap())
	}
	for _, a := range opts.Internal {
		p.policy.internal[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = true
	}
	if p.opts.Dial == nil {
		p.opts.Dial = p.dial
	}
	return p, nil
}

// Run answers what connects to l until ctx ends, and closes l. It is called once.
func (p *Proxy) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	server := &http.Server{
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            readHeaderWait,
		IdleTimeout:                  keepAlive,
		MaxHeaderBytes:               maxHeaders,
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		ErrorLog:                     slog.NewLogLogger(p.opts.Log.Handler(), slog.LevelDebug),
		Protocols:                    new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.enter() {
			panic(http.ErrAbortHandler)
		}
		defer p.work.Done()
		p.serve(w, r)
	})
	ended := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- server.Serve(newDoor(l)) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	p.Refuse()
	cancel() // the tunnels end with ctx
	p.end(server)
	serving.Wait()
	if err != nil {
		return fault.New(fault.Internal, "serve the egress proxy: %w", err)
	}
	return nil
}

// enter lets one request in, if Run is not about to return.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.work.Add(1)
	}
	return !p.ended
}

// end waits for what is running, and ends what does not.
func (p *Proxy) end(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopServer)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
	}
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.work.Wait()
}

// Refuse takes no new connections from now on: step 2 of a stop. Open tunnels
// live until Run's context ends.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = true
}

// Summary is what has happened so far.
func (p *Proxy) Summary() Summary {
	s := p.record.summary()
	s.Profile, s.Enforcement = p.opts.Profile.Name, p.opts.Enforcement
	return s
}

// dial connects to a checked address; the socket's own view of where it goes is
// checked once more.
func (p *Proxy) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !p.policy.permits(at) {
			return errDenied
		}
		return nil
	}}
	return d.DialContext(ctx, "tcp", to.String())
}

// errDenied is an address that is not dialled.
var errDenied = errors.New("the address is denied")

// door lets in so many connections at once.
type door struct {
	net.Listener
	room chan struct{}
	shut chan struct{} // closed by Close
	once sync.Once
}

func newDoor(l net.Listener) *door {
	return &door{Listener: l, room: make(chan struct{}, maxConnections), shut: make(chan struct{})}
}

// Close ends Accept, also one that waits for room: net/http waits for that before
// it closes any connection.
func (d *door) Close() error {
	d.once.Do(func() { close(d.shut) })
	return d.Listener.Close()
}

// Accept waits for a connection, and for room before that.
func (d *door) Accept() (net.Conn, error) {
	select {
	case d.room <- struct{}{}:
	case <-d.shut:
		return nil, net.ErrClosed
	}
	c, err := d.Listener.Accept()
	if err != nil {
		<-d.room
		return nil, err
	}
	if out, ok := c.(*net.UnixConn); ok {
		_ = out.SetWriteBuffer(sendBuffer) // a tunnel works with a smaller one, too
	}
	return &visitor{Conn: c, leave: sync.OnceFunc(func() { <-d.room })}, nil
}

// visitor is a connection of the daemon.
type visitor struct {
	net.Conn
	leave func()
}

// Close ends the connection and makes room.
func (v *visitor) Close() error {
	defer v.leave()
	return v.Conn.Close()
}

// SyscallConn gives the socket, for splice.
func (v *visitor) SyscallConn() (syscall.RawConn, error) { return raw(v.Conn) }

// CloseWrite passes the end of one direction on.
func (v *visitor) CloseWrite() error { return closeWrite(v.Conn) }

// closeWrite ends one direction of c, or both where it cannot.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
