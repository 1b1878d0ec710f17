package gate

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"drawbridge/shared/fault"
)

// methods that are passed on.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// Passes reports whether requests with a method are passed on.
func Passes(method string) bool { return slices.Contains(methods, method) }

// bridgeSegments is how many segments /s/STATION/a/N has.
const bridgeSegments = 4

// serve handles one request: everything that needs no lookup, then who may, then
// the daemon.
func (g *Gate) serve(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeWait))
	if r.ContentLength > 0 {
		_ = control.SetReadDeadline(time.Now().Add(bodyIdle)) // also of a body that nobody wants
	}

	var v visit
	if err := g.look(r, &v); err != nil {
		g.refuse(w, r, v, err)
		return
	}
	if err := g.admit(r, &v); err != nil {
		g.refuse(w, r, v, err)
		return
	}
	g.pass(w, r, v)
}

// visit is what is known of a request.
type visit struct {
	arrival arrival
	bridged bool // the path names a station and an attempt
	station string
	attempt int
	target  Target // below the bridge path
	route   *Route // nil while none is found
	access  Access
	header  http.Header // of the daemon's request
	sent    bool        // the daemon may have it
}

// look checks what a request looks like, whoever sent it (station §10.3, §11.2 to
// §11.4).
func (g *Gate) look(r *http.Request, v *visit) error {
	v.arrival = arrivalOf(r.Context())
	switch {
	case ticketInURL(r.RequestURI, r.Header):
		return fault.New(fault.TicketInURL, "read the request: a credential stands in the address")
	case r.ProtoMajor != 1 || r.ProtoMinor != 1:
		return fault.New(fault.ProtocolRefused, "read the request: not HTTP/1.1")
	case len(r.TransferEncoding) > 0 || r.ContentLength < 0:
		return fault.New(fault.LengthRequired, "read the request: it has a transfer encoding")
	case upgrade(r.Header):
		return fault.New(fault.UpgradeUnsupported, "read the request: it asks for an upgrade")
	case !Passes(r.Method):
		return fault.New(fault.MethodNotAllowed, "read the request: its method is not passed on")
	}
	target, err := ParseTarget(r.RequestURI, bridgeSegments)
	if err != nil {
		return err
	}
	if v.station, v.attempt, v.bridged = bridgeOf(target); v.bridged {
		v.target = target.below(bridgeSegments)
		v.route = g.route(v.station, v.attempt)
	}
	return checkOrigin(r, v.station, v.attempt, v.arrival.port)
}

// bridgeOf reads /s/STATION/a/N.
func bridgeOf(t Target) (station string, attempt int, ok bool) {
	s := t.segments
	if len(s) < bridgeSegments || s[0] != "s" || s[2] != "a" {
		return "", 0, false
	}
	n, err := strconv.Atoi(s[3])
	if err != nil || n < 1 || strconv.Itoa(n) != s[3] {
		return "", 0, false
	}
	return s[1], n, true
}

// upgrade reports whether a request wants the connection to become another one.
func upgrade(h http.Header) bool {
	for name := range h {
		if name == "Upgrade" || name == "Http2-Settings" || strings.HasPrefix(name, "Sec-Websocket-") {
			return true
		}
	}
	for _, list := range h["Connection"] {
		for item := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(item), "upgrade") {
				return true
			}
		}
	}
	return false
}

// admit decides whether the request may pass. Consume comes last: a refusal uses
// up nothing.
func (g *Gate) admit(r *http.Request, v *visit) error {
	now := g.opts.Now()
	if g.failures.wait(v.arrival.from, now) > 0 {
		return fault.New(fault.TooManyFailures, "admit a request: too many were refused")
	}
	claim := Claim{Peer: v.arrival.uid, Station: v.station, Attempt: v.attempt, Method: r.Method, Target: v.target}
	known := v.bridged
	if claim.Peer == nil {
		var ok bool
		claim.Principal, ok = bearerOf(r.Header)
		known = known && ok
	}
	var ok bool
	if claim.Ticket, ok = ticketOf(r.Header); !known || !ok {
		return unauthorized()
	}
	var err error
	if v.access, err = g.opts.Authorizer.Admit(r.Context(), claim); err != nil {
		return err
	}
	if v.route == nil {
		return fault.New(fault.StationNotReady, "admit a request: no bridge is open to the attempt")
	}
	if v.header, err = v.route.headers.forward(r.Header); err != nil {
		return err
	}
	if r.ContentLength > v.route.limits.Body {
		return fault.New(fault.BodyTooLarge, "admit a request: its body is too large")
	}
	return nil
}

// pass takes a place, then a use of the ticket, and sends the request.
func (g *Gate) pass(w http.ResponseWriter, r *http.Request, v visit) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	p := newPassage(v.route, v.access, w, cancel)
	if err := v.route.enter(p); err != nil {
		g.refuse(w, r, v, err)
		return
	}
	defer v.route.leave(p)
	if err := g.opts.Authorizer.Consume(ctx, v.access); err != nil {
		g.refuse(w, r, v, err)
		return
	}
	v.sent = true
	v.route.counters.requests.Add(1)
	v.route.active(g.opts.Now())
	defer func() { v.route.active(g.opts.Now()) }()
	if err := p.forward(ctx, w, r, v); err != nil {
		g.refuse(w, r, v, err)
	}
}

// refuse answers with a code, counts it, and remembers who guessed.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, v visit, err error) {
	f := refusal{code: fault.CodeOf(err)}
	now := g.opts.Now()
	switch f.code {
	case fault.Unauthorized:
		if v.sent { // by somebody who had the right then
			f.status = http.StatusBadGateway
		} else {
			g.failures.note(v.arrival.from, now)
		}
	case fault.TooManyFailures:
		f.wait = g.failures.wait(v.arrival.from, now)
	case fault.LengthRequired, fault.ProtocolRefused:
		f.close = true // what follows on the connection may be read in two ways
	case fault.StationStopping, fault.StationEnded, fault.AttemptReplaced, fault.TicketRevoked, fault.GateUnavailable:
		if v.sent {
			f.status = http.StatusBadGateway // it may have had its effect: not to be taken for refused
		}
	}
	if statuses[f.code] == 0 {
		g.opts.Log.Error("a request could not be decided", "err", err)
		f.code = fault.GateUnavailable
	}
	if v.route != nil { // only then is what the path says known not to be somebody's text
		v.route.refuse(f.code)
		g.opts.Log.Debug("refused a request", "station", v.station, "attempt", v.attempt, "refused", string(f.code))
	} else {
		g.strangers.refuse(f.code)
	}
	f.write(w, r)
}
