// Package profile is Host Profile v1: the small JSON document by which an
// administrator says from which environment variable the trusted controller
// session is read, and how one callback is handed to the Host.
//
// A Profile selects an executable, so it is code-equivalent configuration: it
// is read from a file or the registry of built-ins, never from a model, a tool
// argument, a Store row or a callback's output. Parsing is strict and fails
// closed. bridge and outboxd freeze what they read at start (Capture) with its
// fingerprint, hand it to the programs they start by the relay variables
// (Relay, FromRelay), and compare it again before each use (Check).
//
// A Profile is immutable: nothing that a method returns reaches into it. The
// package starts no process, and reads no file but the Profile itself and, in
// Ready, the head of the callback executable.
package profile

import (
	"slices"
	"time"

	"drawbridge/shared/fault"
)

// Identity of the document format.
const (
	Schema    = "agent-knock-knock/host-profile"
	Version   = 1
	SchemaURL = "https://raw.githubusercontent.com/scotthuang/agent-knock-knock/main/schemas/host-profile-v1.schema.json"
)

// Drivers that v1 has.
const (
	EnvironmentDriver = "environment_v1"
	CommandTransport  = "command_json_v1"
)

// A Scope says which controller sessions one process may call back.
type Scope string

// The two scopes of environment_v1.
const (
	ScopeStartup    Scope = "startup_v1"     // the one session captured at start
	ScopeRouteBound Scope = "route_bound_v1" // the session persisted in each route
)

// A Disposition is the generic outcome of one callback attempt.
type Disposition string

// The four outcomes that an acknowledgement can map to.
const (
	Accepted         Disposition = "accepted"
	RetryableFailure Disposition = "retryable_failure"
	PermanentFailure Disposition = "permanent_failure"
	Uncertain        Disposition = "uncertain"
)

// Bounds of the document (host-profile §1). Lengths are code points.
const (
	MaxFile        = 262144 // bytes
	MaxTimeout     = 30 * time.Second
	MaxOutput      = 1 << 20 // bytes
	maxDepth       = 32
	maxID          = 64
	maxRevision    = 128
	maxRange       = 256
	maxVariable    = 128
	maxExecutable  = 4096
	maxArguments   = 64
	maxArgument    = 4096
	maxArgumentSum = 16384
	maxAllow       = 32
	maxMapping     = 16
	maxSession     = 1024
	maxTransport   = 64
	builtInPrefix  = "builtin-"
	relayPrefix    = "AKK_HOST_PROFILE_"
	root           = "$" // Path of the document itself
)

// A Profile is one parsed document. The zero Profile is of no use.
type Profile struct {
	doc         document
	fingerprint string
}

// document is the model that the fingerprint is taken over.
type document struct {
	id, revision      string
	host, rangeText   string
	parsed            versionRange
	sessionVariable   string
	scope             Scope // "" when the document has none
	executable        string
	arguments, allow  []string
	timeoutMS, output int64
	acknowledgement   Acknowledgement
}

// Acknowledgement says where the callback's one JSON document holds what.
type Acknowledgement struct {
	Disposition  string                 // JSON Pointer
	Mapping      map[string]Disposition // value at Disposition → outcome
	AcceptanceID string                 // JSON Pointer
	DeliveryID   string                 // JSON Pointer
	MessageID    string                 // JSON Pointer
}

// ID names the Profile.
func (p Profile) ID() string { return p.doc.id }

// Revision is the administrator's revision of it.
func (p Profile) Revision() string { return p.doc.revision }

// Host is the id of the Host that the Profile is for.
func (p Profile) Host() string { return p.doc.host }

// Range is compatibility.range as written.
func (p Profile) Range() string { return p.doc.rangeText }

// SessionVariable names the environment variable that holds the controller session.
func (p Profile) SessionVariable() string { return p.doc.sessionVariable }

// Scope is the effective scope: ScopeStartup when the document has none.
func (p Profile) Scope() Scope {
	if p.doc.scope == "" {
		return ScopeStartup
	}
	return p.doc.scope
}

// Standalone reports whether the bridge program itself may run under it.
func (p Profile) Standalone() bool { return p.Scope() != ScopeRouteBound }

// Transport is the callback driver, the transport of its routes.
func (p Profile) Transport() string { return CommandTransport }

// Executable is the callback executable's path.
func (p Profile) Executable() string { return p.doc.executable }

// Allow lists the variables that the callback child may see.
func (p Profile) Allow() []string { return slices.Clone(p.doc.allow) }

// Timeout bounds one callback child from its spawn.
func (p Profile) Timeout() time.Duration { return time.Duration(p.doc.timeoutMS) * time.Millisecond }

// MaxOutput bounds the child's stdout, and separately its stderr, in bytes.
func (p Profile) MaxOutput() int { return int(p.doc.output) }

// Acknowledgement gives a copy of the acknowledgement rules.
func (p Profile) Acknowledgement() Acknowledgement {
	a := p.doc.acknowledgement
	m := make(map[string]Disposition, len(a.Mapping))
	for k, v := range a.Mapping {
		m[k] = v
	}
	a.Mapping = m
	return a
}

// Fingerprint is "sha256:" and 64 hex digits over the canonical document.
func (p Profile) Fingerprint() string { return p.fingerprint }

// Environment gives the child's whole environment: those allow-listed variables
// that environ has. It is never nil, since a nil environment inherits everything.
func (p Profile) Environment(environ []string) []string {
	out := make([]string, 0, len(p.doc.allow))
	for _, name := range p.doc.allow {
		if v, ok := lookup(environ, name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// CaptureSession reads the trusted controller session from environ. The error
// never holds the value.
func (p Profile) CaptureSession(environ []string) (string, error) {
	name := p.doc.sessionVariable
	v, ok := lookup(environ, name)
	if !ok {
		return "", refuse(fault.ControllerSession, "controllerContext.sessionIdVariable", "%s is not set", name)
	}
	if why := invalidSession(v); why != "" {
		return "", refuse(fault.ControllerSession, "controllerContext.sessionIdVariable", "the value of %s %s", name, why)
	}
	return v, nil
}
