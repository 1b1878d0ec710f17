package profile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"drawbridge/shared/strictjson"
)

// Identity of the route format.
const (
	RouteSchema  = "agent-knock-knock/callback-route"
	RouteVersion = 1
	maxRoute     = 16 << 10 // bytes of one route document
)

// A Route says which Profile and controller session a callback belongs to. It
// is frozen into each Turn and Watch. Package callback has it as its own word;
// it stands here because capturing a Profile makes one.
type Route struct {
	Schema              string
	Version             int
	Transport           string
	ProfileID           string
	ProfileRevision     string
	ControllerSessionID string
	Capabilities        *Capabilities // nil: the document had none
}

// Capabilities are what the Host says it can do with a callback; nil: not said.
type Capabilities struct {
	Wake    *bool `json:"wake"`
	Respond *bool `json:"respond"`
}

// Format keeps the controller session out of every fmt verb and log line.
func (r Route) Format(s fmt.State, _ rune) { io.WriteString(s, r.shown()) }

// LogValue is Format for slog.
func (r Route) LogValue() slog.Value { return slog.StringValue(r.shown()) }

func (r Route) shown() string {
	return "route of Profile " + r.ProfileID + " revision " + r.ProfileRevision
}

func newRoute(p Profile, session string) Route {
	yes := true
	return Route{
		Schema: RouteSchema, Version: RouteVersion, Transport: p.Transport(),
		ProfileID: p.ID(), ProfileRevision: p.Revision(), ControllerSessionID: session,
		Capabilities: &Capabilities{Wake: &yes, Respond: &yes},
	}
}

// ParseRoute reads one route strictly: exactly its members, each of its form.
func ParseRoute(data []byte) (Route, error) {
	var wire struct {
		Schema              *string       `json:"schema"`
		Version             *int          `json:"version"`
		Transport           *string       `json:"transport"`
		ProfileID           *string       `json:"profile_id"`
		ProfileRevision     *string       `json:"profile_revision"`
		ControllerSessionID *string       `json:"controller_session_id"`
		Capabilities        *Capabilities `json:"capabilities"`
	}
	if err := strictjson.Decode(data, &wire, strictjson.Limits{MaxBytes: maxRoute}); err != nil {
		return Route{}, fmt.Errorf("parse callback route: %w", err)
	}
	for _, s := range []*string{wire.Schema, wire.Transport, wire.ProfileID, wire.ProfileRevision, wire.ControllerSessionID} {
		if s == nil {
			return Route{}, errors.New("parse callback route: a required member is absent or null")
		}
	}
	if wire.Version == nil {
		return Route{}, errors.New("parse callback route: version is absent or null")
	}
	r := Route{
		Schema: *wire.Schema, Version: *wire.Version, Transport: *wire.Transport, ProfileID: *wire.ProfileID,
		ProfileRevision: *wire.ProfileRevision, ControllerSessionID: *wire.ControllerSessionID, Capabilities: wire.Capabilities,
	}
	if err := r.Valid(); err != nil {
		return Route{}, fmt.Errorf("parse callback route: %w", err)
	}
	return r, nil
}

// Valid reports what is wrong with a route. The transport may be one that we do
// not have: that is another failure, with a code of its own.
func (r Route) Valid() error {
	switch {
	case r.Schema != RouteSchema:
		return errors.New("schema is not " + RouteSchema)
	case r.Version != RouteVersion:
		return fmt.Errorf("version is not %d", RouteVersion)
	case clean(r.Transport, maxTransport) != "":
		return errors.New("transport is malformed")
	case clean(r.ProfileID, maxID) != "" || !idPattern.MatchString(r.ProfileID):
		return errors.New("profile_id is malformed")
	case clean(r.ProfileRevision, maxRevision) != "" || !revisionPattern.MatchString(r.ProfileRevision):
		return errors.New("profile_revision is malformed")
	case invalidSession(r.ControllerSessionID) != "":
		return errors.New("controller_session_id is malformed")
	}
	return nil
}

// Canonical gives the route's canonical JSON, the form that rows keep.
func (r Route) Canonical() []byte {
	m := map[string]any{
		"schema": r.Schema, "version": int64(r.Version), "transport": r.Transport, "profile_id": r.ProfileID,
		"profile_revision": r.ProfileRevision, "controller_session_id": r.ControllerSessionID,
	}
	if c := r.Capabilities; c != nil {
		caps := map[string]any{}
		if c.Wake != nil {
			caps["wake"] = *c.Wake
		}
		if c.Respond != nil {
			caps["respond"] = *c.Respond
		}
		m["capabilities"] = caps
	}
	out, err := strictjson.Canonical(m)
	if err != nil {
		panic("profile: route has no canonical form: " + err.Error()) // text of a valid route is UTF-8
	}
	return out
}
