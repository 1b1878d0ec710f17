// Package callback holds the words that bridge, watchd and outboxd share about
// a notification to the Host: the Route it belongs to, the Envelope that is
// frozen into its row, and the Outcome of one attempt.
//
// Ids are digests of what they name, so that the same event always has the same
// delivery id and idempotency key, across restarts and programs (core §6–8).
// Nothing here does I/O; rows are package store's, delivery is outboxd's.
package callback

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"drawbridge/shared/profile"
	"drawbridge/shared/strictjson"
)

// Identity of the envelope format.
const (
	EnvelopeSchema  = "agent-knock-knock/callback-envelope"
	EnvelopeVersion = 1
	maxEnvelope     = 8 << 20 // bytes: a body of 1 MiB in its longest escaped form, and room
)

// Prefixes of the ids.
const (
	deliveryPrefix     = "callback-delivery-"
	idempotencyPrefix  = "agent-knock-knock:"
	notificationPrefix = "terminal-watch-notification-"
	terminalPrefix     = "msg-terminal-"
	notificationSchema = "agent-knock-knock/terminal-watch-notification"
	terminalDigits     = 32 // hex digits of the digest in a terminal message id
)

// Lanes: of one Turn at most one row per lane is open.
const (
	LaneLifecycle    = "turn_lifecycle"
	LaneNotification = "turn_notification"
	LaneWatch        = "watch"
)

// Types of an Event (core §8.1).
const (
	EventDone             = "done"
	EventError            = "error"
	EventQuestion         = "question"
	EventBlocked          = "blocked"
	EventProgress         = "progress"
	EventApprovalRequired = "approval_required" // this and the next five: Watch only
	EventCompleted        = "completed"
	EventFailed           = "failed"
	EventTimedOut         = "timed_out"
	EventInvalidated      = "invalidated"
	EventCancelled        = "cancelled"
)

// Kinds of a Source.
const (
	SourceTurn  = "managed_turn"
	SourceWatch = "terminal_watch"
)

// Route says which Profile and controller session a callback belongs to.
type Route = profile.Route

// Capabilities are what the Host says it can do with a callback.
type Capabilities = profile.Capabilities

// ParseRoute reads one route strictly.
func ParseRoute(data []byte) (Route, error) { return profile.ParseRoute(data) }

// A Source is what the event is about: a managed Turn or a Terminal Watch.
type Source struct {
	Kind           string // SourceTurn or SourceWatch
	SessionID      string // Turn only, as the next two
	TurnID         string
	ConversationID string // the Turn's id under its public name
	WatchID        string // Watch only, as the next
	TerminalID     string
}

// TurnSource names a managed Turn.
func TurnSource(sessionID, turnID string) Source {
	return Source{Kind: SourceTurn, SessionID: sessionID, TurnID: turnID, ConversationID: turnID}
}

// WatchSource names a Terminal Watch.
func WatchSource(watchID, terminalID string) Source {
	return Source{Kind: SourceWatch, WatchID: watchID, TerminalID: terminalID}
}

// An Event is what happened, in the words that the Host's model reads.
type Event struct {
	ID               string // message id, or notification id of a Watch
	Type             string
	Body             string // plain text
	RequiresResponse bool
	Metadata         map[string]any // nil: none; public facts only
}

// An Envelope is one notification, complete and immutable.
type Envelope struct {
	DeliveryID     string
	IdempotencyKey string
	Route          EnvelopeRoute
	Source         Source
	Event          Event
}

// EnvelopeRoute is the envelope's copy of the route: identity without capabilities.
type EnvelopeRoute struct {
	Transport           string
	ProfileID           string
	ProfileRevision     string
	ControllerSessionID string
}

// Identity gives the part of r that an envelope keeps.
func Identity(r Route) EnvelopeRoute {
	return EnvelopeRoute{r.Transport, r.ProfileID, r.ProfileRevision, r.ControllerSessionID}
}

// TurnEnvelope makes the envelope of a Turn's event; both ids are the digest of
// route, source and event. Bytes of the body that are not UTF-8 become U+FFFD.
func TurnEnvelope(r Route, src Source, ev Event) Envelope {
	e := newEnvelope(r, src, ev)
	digest := digestOf(mustCanonical(map[string]any{
		"version": int64(EnvelopeVersion), "route": e.Route.tree(), "source": e.Source.tree(), "event": e.Event.tree(),
	}))
	e.DeliveryID, e.IdempotencyKey = deliveryPrefix+digest, idempotencyPrefix+digest
	return e
}

// WatchEnvelope makes the envelope of a Watch's event, whose ID is the
// notification id (WatchNotificationID) and becomes the delivery id.
func WatchEnvelope(r Route, src Source, ev Event) Envelope {
	e := newEnvelope(r, src, ev)
	e.DeliveryID = ev.ID
	e.IdempotencyKey = idempotencyPrefix + "terminal-watch:" + src.WatchID + ":" + ev.ID
	return e
}

func newEnvelope(r Route, src Source, ev Event) Envelope {
	ev.Body = strings.ToValidUTF8(ev.Body, "\uFFFD")
	return Envelope{Route: Identity(r), Source: src, Event: ev}
}

// Canonical gives the envelope's canonical JSON, the form that its row keeps.
func (e Envelope) Canonical() []byte {
	return mustCanonical(map[string]any{
		"schema": EnvelopeSchema, "version": int64(EnvelopeVersion),
		"delivery_id": e.DeliveryID, "idempotency_key": e.IdempotencyKey,
		"route": e.Route.tree(), "source": e.Source.tree(), "event": e.Event.tree(),
	})
}

func (r EnvelopeRoute) tree() map[string]any {
	return map[string]any{
		"transport": r.Transport, "profile_id": r.ProfileID, "profile_revision": r.ProfileRevision,
		"controller_session_id": r.ControllerSessionID,
	}
}

func (s Source) tree() map[string]any {
	if s.Kind == SourceWatch {
		return map[string]any{"kind": s.Kind, "watch_id": s.WatchID, "terminal_id": s.TerminalID}
	}
	return map[string]any{"kind": s.Kind, "session_id": s.SessionID, "turn_id": s.TurnID, "conversation_id": s.ConversationID}
}

func (ev Event) tree() map[string]any {
	m := map[string]any{"id": ev.ID, "type": ev.Type, "body": ev.Body, "requires_response": ev.RequiresResponse}
	if ev.Metadata != nil {
		m["metadata"] = ev.Metadata
	}
	return m
}

// ParseEnvelope reads the stored form strictly: exactly the members of its kind.
func ParseEnvelope(data []byte) (Envelope, error) {
	e, err := parseEnvelope(data)
	if err != nil {
		return Envelope{}, fmt.Errorf("parse callback envelope: %w", err)
	}
	return e, nil
}

func parseEnvelope(data []byte) (Envelope, error) {
	var wire struct {
		Schema         string `json:"schema"`
		Version        int    `json:"version"`
		DeliveryID     string `json:"delivery_id"`
		IdempotencyKey string `json:"idempotency_key"`
		Route          struct {
			Transport           string `json:"transport"`
			ProfileID           string `json:"profile_id"`
			ProfileRevision     string `json:"profile_revision"`
			ControllerSessionID string `json:"controller_session_id"`
		} `json:"route"`
		Source struct {
			Kind           string  `json:"kind"`
			SessionID      *string `json:"session_id"`
			TurnID         *string `json:"turn_id"`
			ConversationID *string `json:"conversation_id"`
			WatchID        *string `json:"watch_id"`
			TerminalID     *string `json:"terminal_id"`
		} `json:"source"`
		Event struct {
			ID               string         `json:"id"`
			Type             string         `json:"type"`
			Body             *string        `json:"body"`
			RequiresResponse *bool          `json:"requires_response"`
			Metadata         map[string]any `json:"metadata"`
		} `json:"event"`
	}
	if err := strictjson.Decode(data, &wire, strictjson.Limits{MaxBytes: maxEnvelope}); err != nil {
		return Envelope{}, err
	}
	if wire.Schema != EnvelopeSchema || wire.Version != EnvelopeVersion {
		return Envelope{}, errors.New("another schema or version")
	}
	for _, s := range []string{
		wire.DeliveryID, wire.IdempotencyKey, wire.Route.Transport, wire.Route.ProfileID,
		wire.Route.ProfileRevision, wire.Route.ControllerSessionID, wire.Event.ID, wire.Event.Type,
	} {
		if s == "" {
			return Envelope{}, errors.New("a required member is absent or empty")
		}
	}
	if wire.Event.Body == nil || wire.Event.RequiresResponse == nil {
		return Envelope{}, errors.New("the event is incomplete")
	}
	if _, err := strictjson.Canonical(wire.Event.Metadata); err != nil {
		return Envelope{}, fmt.Errorf("metadata: %w", err)
	}
	turn := []*string{wire.Source.SessionID, wire.Source.TurnID, wire.Source.ConversationID}
	watch := []*string{wire.Source.WatchID, wire.Source.TerminalID}
	e := Envelope{
		DeliveryID: wire.DeliveryID, IdempotencyKey: wire.IdempotencyKey, Route: EnvelopeRoute(wire.Route),
		Event: Event{wire.Event.ID, wire.Event.Type, *wire.Event.Body, *wire.Event.RequiresResponse, wire.Event.Metadata},
	}
	switch {
	case wire.Source.Kind == SourceTurn && all(turn) && none(watch):
		e.Source = Source{Kind: SourceTurn, SessionID: *turn[0], TurnID: *turn[1], ConversationID: *turn[2]}
	case wire.Source.Kind == SourceWatch && all(watch) && none(turn):
		e.Source = WatchSource(*watch[0], *watch[1])
	default:
		return Envelope{}, errors.New("the source is neither a Turn nor a Watch")
	}
	return e, nil
}

func all(list []*string) bool {
	for _, s := range list {
		if s == nil || *s == "" {
			return false
		}
	}
	return true
}

func none(list []*string) bool {
	for _, s := range list {
		if s != nil {
			return false
		}
	}
	return true
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// mustCanonical writes what TurnEnvelope and its like were given; only a value
// in Metadata that has no JSON form can fail, which is a fault in the program.
func mustCanonical(m map[string]any) []byte {
	out, err := strictjson.Canonical(m)
	if err != nil {
		panic("callback: envelope has no canonical form: " + err.Error())
	}
	return out
}
