package profile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/fault"
)

// Names of the private relay. They carry no secret; the session variable goes
// beside them under its own name.
const (
	relaySelection   = relayPrefix + "SELECTION"
	relaySource      = relayPrefix + "SOURCE"
	relayFingerprint = relayPrefix + "FINGERPRINT"
	relayHost        = relayPrefix + "HOST"
	relayHostVersion = relayPrefix + "HOST_VERSION"
)

var relayNames = []string{relaySelection, relaySource, relayFingerprint, relayHost, relayHostVersion}

// ErrNoRelay says that none of the relay variables is set.
var ErrNoRelay = errors.New("no Host Profile relay in the environment")

// Captured is what a program froze about its Profile at start. Session is
// authority: it goes into routes and ownership columns and nowhere else.
type Captured struct {
	Selection       string // built-in id or canonical path
	Source          string // SourceBuiltIn or SourceFile
	Fingerprint     string
	Host            string
	HostVersion     string
	Scope           Scope
	SessionVariable string
	Session         string // empty only under ScopeRouteBound
	Route           Route  // of every Turn and Watch that the process creates
}

// Format keeps the session out of every fmt verb and log line.
func (c Captured) Format(s fmt.State, _ rune) { io.WriteString(s, c.shown()) }

// LogValue is Format for slog.
func (c Captured) LogValue() slog.Value { return slog.StringValue(c.shown()) }

func (c Captured) shown() string {
	return "Profile " + c.Route.ProfileID + " revision " + c.Route.ProfileRevision + " of Host " + c.Host
}

// Capture freezes p: Host and version must fit and the session must be in
// environ. Under ScopeRouteBound each route brings its own session, so none is
// read; only programs that accept that scope may go on with it.
func Capture(p Profile, src Source, host, version string, environ []string) (Captured, error) {
	if err := p.Compatible(host, version); err != nil {
		return Captured{}, err
	}
	c := Captured{
		Selection: src.Selection, Source: src.Kind, Fingerprint: p.Fingerprint(),
		Host: host, HostVersion: version, Scope: p.Scope(), SessionVariable: p.SessionVariable(),
	}
	if p.Standalone() {
		session, err := p.CaptureSession(environ)
		if err != nil {
			return Captured{}, err
		}
		c.Session = session
	}
	c.Route = newRoute(p, c.Session)
	return c, nil
}

// Relay gives the environment by which a sibling gets the same Profile: the
// five relay variables and the session under its own name.
func (c Captured) Relay() []string {
	out := []string{
		relaySelection + "=" + c.Selection,
		relaySource + "=" + c.Source,
		relayFingerprint + "=" + c.Fingerprint,
		relayHost + "=" + c.Host,
		relayHostVersion + "=" + c.HostVersion,
	}
	if c.Session != "" {
		out = append(out, c.SessionVariable+"="+c.Session)
	}
	return out
}

// HasRelay reports whether any relay variable is set, also to nothing.
func HasRelay(environ []string) bool {
	return slices.ContainsFunc(relayNames, func(n string) bool { _, ok := lookup(environ, n); return ok })
}

// FromRelay reads the relay, loads the Profile it names and captures it again.
// None of the five set is ErrNoRelay; some of them host_profile_relay_incomplete;
// another document than the relayed one host_profile_changed.
func FromRelay(environ []string) (Captured, error) { return fromRelay(environ, BuiltIns()) }

func fromRelay(environ []string, reg Registry) (Captured, error) {
	if !HasRelay(environ) {
		return Captured{}, ErrNoRelay
	}
	values := map[string]string{}
	for _, n := range relayNames {
		v, _ := lookup(environ, n)
		if v == "" {
			return Captured{}, refuse(fault.RelayIncomplete, "", "%s is not set, though other relay variables are", n)
		}
		values[n] = v
	}
	want := Captured{Selection: values[relaySelection], Source: values[relaySource], Fingerprint: values[relayFingerprint]}
	p, err := want.load(reg)
	if err != nil {
		return Captured{}, err
	}
	return Capture(p, Source{want.Source, want.Selection}, values[relayHost], values[relayHostVersion], environ)
}

// Check reads the Profile again and fails with host_profile_changed unless it is
// still the captured one, byte for byte of its canonical form.
func (c Captured) Check() (Profile, error) { return c.load(BuiltIns()) }

func (c Captured) load(reg Registry) (Profile, error) {
	p, src, err := Load(c.Selection, reg)
	if err != nil {
		return Profile{}, &ProfileError{Class: fault.ProfileChanged, Detail: "the captured Profile cannot be read again", Err: err}
	}
	if src.Kind != c.Source || src.Selection != c.Selection || p.Fingerprint() != c.Fingerprint {
		return Profile{}, refuse(fault.ProfileChanged, "", "the Profile is not the captured one")
	}
	return p, nil
}

func invalidSession(v string) string {
	if !utf8.ValidString(v) {
		return "is not valid UTF-8"
	}
	return clean(v, maxSession)
}

// lookup reads one variable of an environment list; the first of a name counts,
// as in the process itself.
func lookup(environ []string, name string) (string, bool) {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}
