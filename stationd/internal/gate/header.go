package gate

import (
	"encoding/base64"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

// Bounds of headers (station §11.4, §11.5).
const (
	maxHeaderValue = 4 << 10
	maxLastEventID = 1 << 10
	maxExtra       = 32 // names in headerAllow
)

// requestHeaders reach the daemon; nothing else does, but for what the gate sets.
var requestHeaders = canonicalNames(`Accept Accept-Language Content-Type Content-Length Content-Encoding If-Match
	If-None-Match If-Modified-Since If-Unmodified-Since Range Last-Event-ID X-Request-Id Idempotency-Key
	Mcp-Session-Id Mcp-Protocol-Version`)

// answerHeaders reach the client, and below them those that may stand several
// times, since they are lists.
var (
	answerHeaders = canonicalNames(`Content-Type Content-Length Content-Encoding Content-Language Content-Disposition
		Content-Range Accept-Ranges Cache-Control ETag Last-Modified Vary Retry-After X-Request-Id Mcp-Session-Id`)
	answerLists = canonicalNames(`Content-Encoding Content-Language Accept-Ranges Cache-Control Vary`)
)

// daemonIssued are request headers whose value the daemon made: it may look like
// a token and still be none of ours.
var daemonIssued = canonicalNames(`Last-Event-ID Mcp-Session-Id If-Match If-None-Match`)

// neverExtra may not be named in headerAllow; a name that ends in "-" means all
// that begin with it. The first line is what would carry authority or the
// identity of a proxy to the daemon, or change the framing; the second what the
// gate sets; the third what would give an answer power over a browser.
var neverExtra = strings.Fields(strings.ToLower(`
	Authorization Cookie Host Connection Keep-Alive Proxy- TE Trailer Transfer-Encoding Upgrade Forwarded X-Forwarded- X-Real-IP Via Cf- X-Amz- X-Goog- X-Azure- Drawbridge- Expect Origin Referer Content-Length Sec- HTTP2-Settings
	User-Agent Accept-Encoding Location X-Content-Type-Options Referrer-Policy Content-Security-Policy Cross-Origin- X-Accel-Buffering Date
	Set-Cookie Set-Cookie2 Clear-Site-Data Service-Worker-Allowed Alt-Svc Strict-Transport-Security Access-Control- WWW-Authenticate Server Refresh Link Content-Location`))

// tokens finds credentials by their form.
var tokens = redact.New(redact.Options{})

// headerList is which headers pass, both ways.
type headerList struct{ request, answer map[string]bool }

// newHeaderList adds the names of a bridge's headerAllow to the fixed lists, or
// refuses one of them.
func newHeaderList(extra []string, credential Credential) (headerList, error) {
	if len(extra) > maxExtra {
		return headerList{}, fault.New(fault.BridgeInvalid, "read headerAllow: %d names, at most %d", len(extra), maxExtra)
	}
	l := headerList{set(requestHeaders), set(answerHeaders)}
	for _, name := range extra {
		key := textproto.CanonicalMIMEHeaderKey(name)
		if !token(name) {
			return headerList{}, fault.New(fault.HeaderNotAllowable, "read headerAllow: a name is not a header's")
		}
		if forbidden(name) || folded(key) == folded(credential.name) {
			return headerList{}, fault.New(fault.HeaderNotAllowable, "read headerAllow: %s may not pass", key)
		}
		l.request[key], l.answer[key] = true, true
	}
	return l, nil
}

// forbidden reports whether neverExtra names a header.
func forbidden(name string) bool {
	name = folded(name)
	return slices.ContainsFunc(neverExtra, func(never string) bool {
		return name == never || strings.HasSuffix(never, "-") && strings.HasPrefix(name, never)
	})
}

// folded is a header's name as a daemon may take it: what stands behind CGI or WSGI
// knows no difference between - and _.
func folded(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// forward makes the header map of the daemon's request, new and from the list.
// Content-Length is left to net/http.
func (l headerList) forward(in http.Header) (http.Header, error) {
	out := make(http.Header, len(l.request))
	for name := range l.request {
		values := in[name]
		if len(values) == 0 || name == "Content-Length" {
			continue
		}
		limit := maxHeaderValue
		if name == "Last-Event-Id" {
			limit = maxLastEventID
		}
		switch v := values[0]; {
		case len(values) > 1:
			return nil, fault.New(fault.HeaderRefused, "read the header %s: it is repeated", name)
		case len(v) > limit || !visible(v):
			return nil, fault.New(fault.HeaderRefused, "read the header %s: too long, or not text", name)
		case tokenIn(v), !slices.Contains(daemonIssued, name) && tokens.Finds([]byte(v)):
			return nil, fault.New(fault.HeaderRefused, "read the header %s: it holds a credential", name)
		default:
			out[name] = []string{v}
		}
	}
	return out, nil
}

// copyAnswer adds the daemon's headers that may pass to out. A value that repeats
// the daemon's own credential is left out.
func (l headerList) copyAnswer(out, in http.Header, credential Credential) error {
	for name := range l.answer {
		values := in[name]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 && !slices.Contains(answerLists, name) {
			return fault.New(fault.DaemonAnswer, "read the daemon's header %s: it is repeated", name)
		}
		v := strings.Join(values, ", ")
		switch {
		case len(v) > maxHeaderValue || !visible(v):
			return fault.New(fault.DaemonAnswer, "read the daemon's header %s: too long, or not text", name)
		case credential.in(v):
		default:
			out[name] = []string{v}
		}
	}
	return nil
}

// visible reports whether a value holds no control character but the tab.
func visible(v string) bool {
	return !strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f })
}

// token reports whether name can be a header's name.
func token(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return notToken(r) // the printable rest of RFC 9110 has no use here
	})
}

// Credential is what the daemon wants to see, added by the gate to every request
// (station §10.5). The zero Credential adds nothing.
type Credential struct {
	name   string // canonical
	value  redact.Secret
	secret redact.Secret // alone
}

// ParseCredential reads a spec's inject: bearer, basic:USER or header:NAME.
func ParseCredential(inject string, secret redact.Secret) (Credential, error) {
	kind, rest, _ := strings.Cut(inject, ":")
	c := Credential{name: "Authorization", secret: secret}
	switch kind {
	case "bearer":
		if rest != "" {
			break
		}
		c.value = redact.NewSecret("Bearer " + secret.Reveal())
		return c, nil
	case "basic":
		if rest == "" || strings.ContainsRune(rest, ':') || !visible(rest) {
			break
		}
		c.value = redact.NewSecret("Basic " + base64.StdEncoding.EncodeToString([]byte(rest+":"+secret.Reveal())))
		return c, nil
	case "header":
		c.name = textproto.CanonicalMIMEHeaderKey(rest)
		framing := slices.Contains(requestHeaders, c.name) || forbidden(rest) && !strings.EqualFold(rest, "Authorization")
		if !token(rest) || framing {
			break
		}
		c.value = secret
		return c, nil
	}
	return Credential{}, fault.New(fault.BridgeInvalid, "read inject: it is neither bearer nor basic:USER nor header:NAME of a free header")
}

// Apply adds the credential to a request's headers.
func (c Credential) Apply(h http.Header) {
	if c.name != "" {
		h[c.name] = []string{c.value.Reveal()}
	}
}

// in reports whether the credential stands in a header value.
func (c Credential) in(v string) bool {
	if c.secret.IsZero() {
		return false
	}
	_, bare, _ := strings.Cut(c.value.Reveal(), " ")
	return strings.Contains(v, c.secret.Reveal()) || bare != "" && strings.Contains(v, bare)
}

func canonicalNames(list string) []string {
	names := strings.Fields(list)
	for i, name := range names {
		names[i] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return names
}

func set(names []string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}
