// Package gate is the one way to a station's daemon: an HTTP listener on loopback
// that lets through what a current principal with a ticket may send, and nothing
// else (station §10, §11).
//
// A request names its attempt in the path, /s/STATION/a/N/DAEMON-PATH, its
// principal in Authorization (on a unix socket: the peer's uid) and its ticket in
// Drawbridge-Ticket. The gate reads the raw request target into one form, checks
// that form, and sends that form; it builds the daemon's request and the client's
// answer anew from lists of headers; it never parses, logs or keeps a body. A
// stranger gets one answer whatever is wrong. Everything is validated before a
// use of the ticket is taken, and that is the last thing before the daemon is
// contacted.
//
// Event streams are passed on event by event, with heartbeats between them, and
// end at the end of an event: with a last event named "station" when the attempt
// stops or the client's right ends. Open streams and running requests are checked
// again whenever the Store changes, and every five seconds.
//
// The supervisor of an attempt calls Open when its daemon is ready and Route.Stop
// as steps 2 and 3 of a stop. Run serves, and returns when every connection has
// ended. The gate owns nothing on disk.
package gate

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// Options configures New. Authorizer and at least one listener are required.
type Options struct {
	Listeners  []net.Listener // loopback or unix sockets; Run closes them
	Authorizer Authorizer
	Changes    <-chan struct{} // rings when the Store may have changed; may be nil
	Detach     bool            // attempts outlive this gate: its end is not theirs
	Log        *slog.Logger    // nil discards
	Now        func() time.Time
}

// Gate serves the bridges of all attempts of one stationd.
type Gate struct {
	opts     Options
	failures failures

	mu     sync.Mutex
	routes map[routeKey]*Route
	closed bool // Run has ended or is about to

	strangers counters // requests that named no open bridge
}

type routeKey struct {
	station string
	attempt int
}

// New makes a gate. A listener that is reachable from elsewhere is refused.
func New(opts Options) (*Gate, error) {
	if opts.Authorizer == nil || len(opts.Listeners) == 0 {
		return nil, fault.New(fault.Internal, "make the gate: no authorizer or no listener")
	}
	for _, l := range opts.Listeners {
		if err := CheckListener(l); err != nil {
			return nil, err
		}
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Gate{opts: opts, routes: map[routeKey]*Route{}}, nil
}

// Run serves until ctx is done. Then every open bridge stops as with Route.Stop
// and the reason service_shutdown, and Run returns when all connections have
// ended, at the latest after a few seconds.
func (g *Gate) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:                      http.HandlerFunc(g.serve),
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is refused like any other target
		ReadHeaderTimeout:            readHeaderWait,
		IdleTimeout:                  keepAlive,
		MaxHeaderBytes:               maxHeaders,
		ConnContext:                  arrive,
		ErrorLog:                     slog.NewLogLogger(g.opts.Log.Handler(), slog.LevelWarn),
		Protocols:                    new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)

	var work sync.WaitGroup
	ended := make(chan error, len(g.opts.Listeners))
	room := make(chan struct{}, maxConnections)
	for _, l := range g.opts.Listeners {
		work.Go(func() { ended <- server.Serve(newDoor(l, room)) })
	}
	rechecking, stop := context.WithCancel(context.WithoutCancel(ctx))
	work.Go(func() { g.recheck(rechecking) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		err = fault.New(fault.Internal, "serve the gate: %w", err)
	}
	g.shut(server)
	stop()
	work.Wait()
	return err
}

// shut ends all bridges, then all connections.
func (g *Gate) shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopServer)
	defer cancel()
	g.mu.Lock()
	g.closed = true
	routes := make([]*Route, 0, len(g.routes))
	for _, r := range g.routes {
		routes = append(routes, r)
	}
	g.mu.Unlock()
	server.SetKeepAlivesEnabled(false)
	var stops sync.WaitGroup
	for _, r := range routes {
		stops.Go(func() {
			r.end(ctx, ending{reason: "service_shutdown", code: fault.StationStopping, final: !g.opts.Detach})
		})
	}
	stops.Wait()
	if err := server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
		server.Close()
	}
}

// Open lets requests through to an attempt's daemon from now on. One attempt is
// opened once.
func (g *Gate) Open(b Bridge) (*Route, error) {
	r, err := newRoute(g, b)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fault.New(fault.StationStopping, "open the bridge of %s: the gate has ended", r.name())
	}
	if g.routes[r.key] != nil {
		return nil, fault.New(fault.Internal, "open the bridge of %s: it is open", r.name())
	}
	g.routes[r.key] = r
	return r, nil
}

// Port is the TCP port of the gate, 0 when it has unix sockets only.
func (g *Gate) Port() int {
	for _, l := range g.opts.Listeners {
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			return a.Port
		}
	}
	return 0
}

// route finds an open bridge.
func (g *Gate) route(station string, attempt int) *Route {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.routes[routeKey{station, attempt}]
}

// forget drops a bridge that has ended.
func (g *Gate) forget(r *Route) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.routes[r.key] == r {
		delete(g.routes, r.key)
	}
}

// recheck asks again for every open passage, until ctx is done.
func (g *Gate) recheck(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.opts.Changes:
		case <-tick.C:
		}
		g.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(recheckGap): // a busy Store does not make this loop one
		}
	}
}

// round looks once at every access that something is open with.
func (g *Gate) round(ctx context.Context) {
	open := map[Access][]*passage{}
	g.mu.Lock()
	for _, r := range g.routes {
		r.each(func(p *passage) { open[p.access] = append(open[p.access], p) })
	}
	g.mu.Unlock()
	for access, passages := range open {
		ask, cancel := context.WithTimeout(ctx, recheckEvery)
		err := g.opts.Authorizer.Still(ask, access)
		cancel()
		if ctx.Err() != nil {
			return
		}
		for _, p := range passages {
			p.judge(err, g.opts.Now())
		}
	}
}

// Strangers counts the requests that named no open bridge, by code.
func (g *Gate) Strangers() Counts { return g.strangers.counts() }

// BridgePath is the path below which an attempt's daemon is reached.
func BridgePath(station string, attempt int) string {
	return "/s/" + station + "/a/" + strconv.Itoa(attempt)
}
