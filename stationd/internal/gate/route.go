package gate

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// Bridge says how one attempt's daemon is reached, and what it may be sent.
type Bridge struct {
	Station     string
	Attempt     int
	Port        int // the daemon's own, inside its namespace
	Dial        func(ctx context.Context) (net.Conn, error)
	HeaderAllow []string // of the spec; pass both ways
	Credential  Credential
	Limits      Limits
}

// Route is an open bridge.
type Route struct {
	key     routeKey
	gate    *Gate
	bridge  Bridge
	host    string // what the daemon is told
	limits  Limits
	headers headerList
	daemon  *http.Transport
	counters

	mu       sync.Mutex
	passages map[*passage]struct{}
	requests int
	streams  int
	tickets  map[string]int // streams by ticket
	ending   *ending        // the first; nil while open
	drained  chan struct{}  // closed when it has an ending and no passage
}

// ending is why passages end.
type ending struct {
	reason string        // in the last event of streams
	code   fault.Code    // of requests that have no answer yet
	final  bool          // the attempt ends, not only somebody's access
	grace  time.Duration // a request that runs has so long
}

// Check refuses what Open would refuse in a bridge's settings, before there is a
// daemon.
func (b Bridge) Check() error {
	_, _, err := b.settings()
	return err
}

func (b Bridge) settings() (limits Limits, headers headerList, err error) {
	if limits, err = b.Limits.withDefaults(); err == nil {
		headers, err = newHeaderList(b.HeaderAllow, b.Credential)
	}
	return limits, headers, err
}

func newRoute(g *Gate, b Bridge) (*Route, error) {
	limits, headers, err := b.settings()
	if err != nil {
		return nil, err
	}
	if b.Dial == nil || !token(b.Station) || b.Attempt < 1 || b.Port < 1 || b.Port > 65535 {
		return nil, fault.New(fault.BridgeInvalid, "open a bridge: station, attempt, port or way to the daemon is missing")
	}
	return &Route{
		key: routeKey{b.Station, b.Attempt}, gate: g, bridge: b, limits: limits, headers: headers,
		host: "127.0.0.1:" + strconv.Itoa(b.Port),
		daemon: &http.Transport{
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return b.Dial(ctx) },
			DisableCompression:     true,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        daemonIdle,
			ResponseHeaderTimeout:  limits.HeaderWait,
			MaxResponseHeaderBytes: maxAnswerHeaders,
			ForceAttemptHTTP2:      false,
		},
		passages: map[*passage]struct{}{}, tickets: map[string]int{}, drained: make(chan struct{}),
	}, nil
}

// Path is the path below which clients find the daemon.
func (r *Route) Path() string { return BridgePath(r.key.station, r.key.attempt) }

// Counts gives what passed and what was refused so far.
func (r *Route) Counts() Counts { return r.counts() }

// Stop ends the bridge for the reason that was recorded: nothing new is let
// through, streams get their last event and close within a second, other
// requests have two seconds. It blocks until all have ended or ctx is done.
// Repeating it waits again and changes nothing.
func (r *Route) Stop(ctx context.Context, reason string) error {
	return r.end(ctx, ending{reason: reason, code: fault.StationStopping, final: true})
}

// Close forgets a bridge and its credential; one that is open stops first.
func (r *Route) Close(ctx context.Context, reason string) error {
	err := r.Stop(ctx, reason)
	r.gate.forget(r)
	if err == nil { // nothing passes any more that could read it
		r.bridge.Credential = Credential{}
	}
	return err
}

// Detach ends a bridge whose attempt goes on without this stationd: clients are told
// to come back.
func (r *Route) Detach(ctx context.Context) error {
	err := r.end(ctx, ending{reason: "service_shutdown", code: fault.StationStopping})
	r.gate.forget(r)
	return err
}

func (r *Route) name() string { return r.key.station + "/" + strconv.Itoa(r.key.attempt) }

// end is Stop for any ending.
func (r *Route) end(ctx context.Context, e ending) error {
	r.begin(e)
	select {
	case <-r.drained:
		r.daemon.CloseIdleConnections()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin marks the bridge as ending and tells every passage, once.
func (r *Route) begin(e ending) {
	e.grace = stopRequest
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending != nil {
		return
	}
	r.ending = &e
	for p := range r.passages {
		p.end(e)
	}
	if len(r.passages) == 0 {
		close(r.drained)
	}
}

// enter takes a place for a request.
func (r *Route) enter(p *passage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ending != nil:
		return fault.New(r.ending.code, "pass the bridge of %s: it ends", r.name())
	case r.requests >= r.limits.Requests:
		return fault.New(fault.TooManyRequests, "pass the bridge of %s: %d requests run", r.name(), r.requests)
	}
	r.requests++
	r.passages[p] = struct{}{}
	return nil
}

// promote gives the place back and takes one of a stream.
func (r *Route) promote(p *passage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ticket := p.access.TicketID
	if r.streams >= r.limits.Streams || r.tickets[ticket] >= r.limits.TicketStreams {
		return fault.New(fault.TooManyStreams, "pass the bridge of %s: %d streams are open", r.name(), r.streams)
	}
	r.requests--
	r.streams++
	r.tickets[ticket]++
	r.counters.streams.Add(1)
	p.becomeStream()
	return nil
}

// leave gives the place of a passage back.
func (r *Route) leave(p *passage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.passages, p)
	p.close()
	if p.stream {
		r.streams--
		if r.tickets[p.access.TicketID]--; r.tickets[p.access.TicketID] == 0 {
			delete(r.tickets, p.access.TicketID)
		}
	} else {
		r.requests--
	}
	if r.ending != nil && len(r.passages) == 0 {
		close(r.drained)
	}
}

// each calls f for every open passage. f must not wait.
func (r *Route) each(f func(*passage)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.passages {
		f(p)
	}
}
