package gate

import (
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/fault"
)

// Bounds of a request target (station §11.3).
const (
	maxPath     = 4096
	maxQuery    = 8192
	maxSegments = 128
)

// Target is a request target in its one form. What the checks look at and what
// the daemon gets are both made from it.
type Target struct {
	segments []string // decoded; none is empty, "." or ".."
	slash    bool     // the path ends with a slash
	query    string   // as it came
	queried  bool     // there was a question mark
}

// ParseTarget brings a raw request target into its one form, or refuses it with
// target_invalid: absolute form, "*" and an authority, bytes that have no place
// in a path, escapes that hide a separator, a control character or another
// escape, text that is not UTF-8, and a path that climbs above floor segments.
// The path keeps to floor once it has that many segments.
func ParseTarget(raw string, floor int) (Target, error) {
	path, query, queried := strings.Cut(raw, "?")
	segments, slash, why := canonical(path, floor)
	if why == "" {
		why = badQuery(query)
	}
	if why != "" {
		return Target{}, fault.New(fault.TargetInvalid, "read the request target: %s", why)
	}
	return Target{segments: segments, slash: slash, query: query, queried: queried}, nil
}

// ParsePrefix reads the path prefix of a ticket: a path without a query.
func ParsePrefix(raw string) (string, error) {
	t, err := ParseTarget(raw, 0)
	if err != nil {
		return "", err
	}
	if t.queried {
		return "", fault.New(fault.TargetInvalid, "read the path prefix: it has a query")
	}
	t.slash = false
	return t.Path(), nil
}

// Path is the path as it is sent.
func (t Target) Path() string {
	if len(t.segments) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, s := range t.segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	if t.slash {
		b.WriteByte('/')
	}
	return b.String()
}

// String is the whole target as it is sent.
func (t Target) String() string {
	if t.queried {
		return t.Path() + "?" + t.query
	}
	return t.Path()
}

// url is the target for an outgoing request. Path and RawPath agree, so that
// net/http writes exactly Path().
func (t Target) url(host string) *url.URL {
	plain := "/" + strings.Join(t.segments, "/")
	if t.slash && len(t.segments) > 0 {
		plain += "/"
	}
	return &url.URL{
		Scheme: "http", Host: host,
		Path: plain, RawPath: t.Path(),
		RawQuery: t.query, ForceQuery: t.queried && t.query == "",
	}
}

// Within reports whether the path lies under prefix, compared by whole segments,
// case and all. A prefix that is not in the form of ParsePrefix contains nothing.
func (t Target) Within(prefix string) bool {
	p, err := ParseTarget(prefix, 0)
	return err == nil && !p.queried &&
		len(t.segments) >= len(p.segments) && slices.Equal(t.segments[:len(p.segments)], p.segments)
}

// below drops the first n segments.
func (t Target) below(n int) Target {
	t.segments = t.segments[n:]
	return t
}

// canonical is the work of ParseTarget on a path; why names what is wrong.
func canonical(path string, floor int) (segments []string, slash bool, why string) {
	switch {
	case !strings.HasPrefix(path, "/"):
		return nil, false, "it does not begin with a slash"
	case len(path) > maxPath:
		return nil, false, "the path is too long"
	}
	raw := strings.Split(path[1:], "/")
	for _, r := range raw {
		s, why := decode(r)
		if why != "" {
			return nil, false, why
		}
		switch s {
		case "", ".":
			slash = true
			continue
		case "..":
			if n := len(segments); n == 0 || n == floor {
				return nil, false, "it climbs above its root"
			}
			segments = segments[:len(segments)-1]
			slash = true
			continue
		}
		if len(segments) == maxSegments {
			return nil, false, "it has too many segments"
		}
		segments, slash = append(segments, s), false
	}
	return segments, slash && len(segments) > 0, ""
}

// decode undoes the escapes of one segment. Since no escape may stand for a
// percent sign, a second decoding finds nothing: one decoding is the fixed point.
func decode(raw string) (text, why string) {
	b := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '%' {
			if !plain(c) {
				return "", "it holds a byte that has to be escaped"
			}
			b = append(b, c)
			continue
		}
		if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
			return "", "it holds a broken escape"
		}
		c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
		if c < 0x20 || c == 0x7f || strings.IndexByte(`/\%;`, c) >= 0 {
			return "", "it holds an escape that hides a separator or a control character"
		}
		b = append(b, c)
		i += 2
	}
	if !utf8.Valid(b) {
		return "", "it is not UTF-8"
	}
	text = string(b)
	if strings.ContainsFunc(text, func(r rune) bool { return 0x80 <= r && r <= 0x9f }) {
		return "", "it holds a control character"
	}
	return text, ""
}

// plain reports whether a byte may stand in a target unescaped.
func plain(c byte) bool {
	return 0x21 <= c && c <= 0x7e && strings.IndexByte("\\\"<>^{}|`#;", c) < 0
}

// badQuery checks bytes and escapes; the query itself is passed on as it came.
func badQuery(query string) (why string) {
	if len(query) > maxQuery {
		return "the query is too long"
	}
	for i := 0; i < len(query); i++ {
		switch c := query[i]; {
		case !plain(c):
			return "the query holds a byte that has to be escaped"
		case c == '%' && (i+2 >= len(query) || !isHex(query[i+1]) || !isHex(query[i+2])):
			return "the query holds a broken escape"
		}
	}
	return ""
}

// resolve applies a relative reference to the path, the way a browser would
// (RFC 3986 §5.2), and brings the result into the one form.
func (t Target) resolve(ref string) (Target, error) {
	path, query, queried := strings.Cut(ref, "?")
	switch {
	case strings.HasPrefix(path, "//"), scheme(path):
		return Target{}, fault.New(fault.TargetInvalid, "resolve a reference: it names another place")
	case path == "" && !queried:
		return t, nil
	case path == "":
		return ParseTarget(t.Path()+"?"+query, 0)
	case !strings.HasPrefix(path, "/"):
		base := t.Path()
		path = base[:strings.LastIndexByte(base, '/')+1] + path
	}
	if queried {
		path += "?" + query
	}
	return ParseTarget(path, 0)
}

// scheme reports whether a reference begins with a scheme.
func scheme(ref string) bool {
	colon, slash := strings.IndexByte(ref, ':'), strings.IndexByte(ref, '/')
	return colon >= 0 && (slash < 0 || colon < slash)
}

// cutOrigin takes an origin from the front of a URL.
func cutOrigin(raw, origin string) (rest string, ok bool) {
	if len(raw) < len(origin) || !strings.EqualFold(raw[:len(origin)], origin) {
		return raw, false
	}
	switch rest = raw[len(origin):]; {
	case rest == "":
		return "/", true
	case rest[0] == '/' && !strings.HasPrefix(rest, "//"):
		return rest, true
	case rest[0] == '?':
		return "/" + rest, true
	}
	return raw, false
}
