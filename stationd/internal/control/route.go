package control

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/peer"
)

// route is one method of one path. A segment in braces takes any text.
type route struct {
	method, path string
	query        []string // the keys that it knows
	body         bool     // it takes one
	serve        func(*Server, *request) error
	doing        string // what it changes, where it does, with the segments in braces
}

// routes is the whole API (station §15).
var routes = []route{
	{"POST", "/v1/stations", nil, true, (*Server).start, "start a station"},
	{"GET", "/v1/stations", nil, false, (*Server).list, ""},
	{"GET", "/v1/stations/{station}", []string{"wait", "attempt"}, false, (*Server).status, ""},
	{"POST", "/v1/stations/{station}/attempts", nil, false, (*Server).replace, "replace the attempt of station {station}"},
	{"POST", "/v1/stations/{station}/stop", nil, false, (*Server).stop, "stop station {station}"},
	{"GET", "/v1/stations/{station}/logs", []string{"follow", "attempt"}, false, (*Server).logs, ""},
	{"POST", "/v1/stations/{station}/tickets", nil, true, (*Server).issueTicket, "issue a ticket for station {station}"},
	{"DELETE", "/v1/tickets/{ticket}", nil, false, (*Server).revokeTicket, "revoke ticket {ticket}"},
	{"GET", "/v1/stations/{station}/members", nil, false, (*Server).members, ""},
	{"PUT", "/v1/stations/{station}/members/{principal}", nil, true, (*Server).grant, "give principal {principal} a role on station {station}"},
	{"DELETE", "/v1/stations/{station}/members/{principal}", nil, false, (*Server).revokeRole, "take the role of principal {principal} on station {station} away"},
	{"GET", "/v1/principals", nil, false, (*Server).principals, ""},
	{"POST", "/v1/principals", nil, true, (*Server).addPrincipal, "add a principal"},
	{"DELETE", "/v1/principals/{principal}", nil, false, (*Server).revokePrincipal, "revoke principal {principal}"},
	{"GET", "/v1/stations/{station}/evidence", []string{"attempt", "verify", "export"}, false, (*Server).evidence, ""},
	{"POST", "/v1/leases/{lease}/release", nil, true, (*Server).release, "release lease {lease}"},
}

// request is one call of a principal.
type request struct {
	*http.Request
	w     http.ResponseWriter
	by    store.Principal
	vars  map[string]string
	query url.Values
	body  []byte
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	found, vars, err := match(r.Method, r.URL.EscapedPath())
	q := &request{Request: r, w: w, vars: vars}
	if err == nil {
		q.by, err = s.principal(r.Context())
	}
	if err == nil {
		err = q.read(found)
	}
	if err == nil {
		err = q.named(found, found.serve(s, q))
	}
	s.note(q, found, err)
	if err != nil {
		s.refuse(w, r, err)
	}
}

// match finds the route of a path, compared by whole segments as they arrived.
func match(method, path string) (found route, vars map[string]string, err error) {
	var allowed []string
	segments := strings.Split(path, "/")
	for _, r := range routes {
		vars, ok := r.matches(segments)
		switch {
		case ok && r.method == method:
			return r, vars, nil
		case ok:
			allowed = append(allowed, r.method)
		}
	}
	if allowed != nil {
		return route{}, nil, fault.New(fault.MethodNotAllowed, "this path takes %s", strings.Join(allowed, " and "))
	}
	return route{}, nil, fault.New(fault.NotFound, "the control API has no such path")
}

func (r route) matches(segments []string) (vars map[string]string, ok bool) {
	own := strings.Split(r.path, "/")
	if len(own) != len(segments) {
		return nil, false
	}
	vars = map[string]string{}
	for i, part := range own {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			vars[strings.TrimSuffix(name, "}")] = segments[i]
		} else if part != segments[i] {
			return nil, false
		}
	}
	return vars, true
}

// principal is who the peer of the connection is, as committed now.
func (s *Server) principal(ctx context.Context) (store.Principal, error) {
	from, ok := ctx.Value(peerKey{}).(peer.Peer)
	if !ok {
		return store.Principal{}, fault.New(fault.PeerRefused, "the peer of this connection is not known")
	}
	p, ok, err := s.opts.Store.PrincipalOfPeer(ctx, int64(from.UID))
	if err == nil && !ok {
		err = fault.New(fault.PeerRefused, "uid %d is no principal here", from.UID).
			WithHint("the user that runs stationd adds it: stationd principal add NAME -uid %d", from.UID)
	}
	return p, err
}

// read takes the query and the body, and refuses what the route does not know.
func (q *request) read(r route) (err error) {
	if q.query, err = url.ParseQuery(q.URL.RawQuery); err != nil {
		return fault.New(fault.InvalidArguments, "the query is malformed")
	}
	for key, values := range q.query {
		if !slices.Contains(r.query, key) || len(values) != 1 {
			return fault.New(fault.InvalidArguments, "the query has %.40q, which this path does not take, or takes once", key)
		}
	}
	// A deadline of the server would also end requests that wait for something.
	ctl := http.NewResponseController(q.w)
	_ = ctl.SetReadDeadline(time.Now().Add(readWait))
	q.body, err = io.ReadAll(http.MaxBytesReader(q.w, q.Body, MaxBody))
	_ = ctl.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return fault.New(fault.InputTooLarge, "the body has more than %d bytes", MaxBody)
	case err != nil:
		return fault.New(fault.InvalidArguments, "read the body: %w", err)
	case !r.body && len(q.body) > 0:
		return fault.New(fault.InvalidArguments, "%s %s takes no body", r.method, r.path)
	}
	return nil
}

// named says what was being done to what where the Store could not be used: it does
// not know.
func (q *request) named(r route, err error) error {
	f, ok := fault.As(err)
	if !ok || r.doing == "" || f.Code != fault.StoreUnavailable && f.Code != fault.StoreBusy {
		return err
	}
	doing := r.doing
	for name, value := range q.vars {
		doing = strings.ReplaceAll(doing, "{"+name+"}", value[:min(len(value), 64)])
	}
	told := *f
	told.Message = doing + ": " + f.Message
	return &told
}

// decode reads the body into v, a pointer.
func (q *request) decode(v any) error {
	if err := strictjson.Decode(q.body, v, strictjson.Limits{MaxBytes: MaxBody}); err != nil {
		return fault.New(fault.JSONInvalid, "the body: %s", err)
	}
	return nil
}

// flag is a key of the query that stands for itself, or is true or false.
func (q *request) flag(key string) (bool, error) {
	switch value, given := q.query.Get(key), q.query.Has(key); {
	case !given, value == "false":
		return false, nil
	case value == "", value == "true":
		return true, nil
	}
	return false, fault.New(fault.InvalidArguments, "%s is neither true nor false", key)
}

// Levels of what a role allows on a station.
const (
	see     = iota // any role
	operate        // owner and manager
	own            // owner
)

// may gives the role of the caller on a station, if it is enough.
func (s *Server) may(q *request, stationID string, level int) (string, error) {
	role, err := s.opts.Store.Role(q.Context(), stationID, q.by.ID)
	if err != nil {
		return "", err
	}
	switch {
	case role == "":
		// Whoever has no role does not learn that the station exists.
		return "", fault.New(fault.NotFound, "there is no station %.64q for this principal", stationID).WithHint("stationd list shows the ids (stn_…) of yours")
	case level >= operate && role == store.RoleViewer:
		return "", fault.New(fault.RoleDenied, "a viewer sees status and evidence of station %s, and controls nothing", stationID)
	case level >= own && role != store.RoleOwner:
		return "", fault.New(fault.RoleDenied, "only an owner of station %s gives and takes roles", stationID)
	}
	return role, nil
}

// lease is the right to write, which only the acting stationd has.
func (s *Server) lease() (*store.Lease, error) {
	if l := s.opts.Manager.Lease(); l != nil {
		return l, nil
	}
	return nil, fault.New(fault.LeaseHeld, "this stationd does not act any more").WithHint("try again")
}
