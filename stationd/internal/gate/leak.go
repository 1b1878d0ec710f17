package gate

import (
	"net/http"
	"slices"
	"strings"
)

// ticketKeys are the query keys under which people put tickets, folded.
var ticketKeys = []string{"ticket", "bridgeticket", "stationticket", "drawbridgeticket"}

// Bounds of the search.
const (
	leakChars  = 20 // token characters behind a prefix that make it a token
	leakRounds = 8  // decodings, each undoing one layer of escapes
)

// ticketInURL reports whether a request gives a ticket or a principal's secret
// away where addresses are logged and passed on: in the target as it came or
// under any number of escapes, or in Referer (station §10.3).
func ticketInURL(target string, h http.Header) bool {
	if tokenIn(target) || slices.ContainsFunc(h.Values("Referer"), tokenIn) {
		return true
	}
	_, query, _ := strings.Cut(target, "?")
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' || r == '?' || r == '#' }) {
		key, _, _ := strings.Cut(pair, "=")
		if slices.Contains(ticketKeys, fold(settle(key))) {
			return true
		}
	}
	return false
}

// tokenIn finds a token's prefix with enough of its characters behind it.
func tokenIn(text string) bool {
	text = settle(text)
	for _, prefix := range []string{ticketPrefix, principalPrefix} {
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, prefix)
			if !ok {
				break
			}
			if len(after) >= leakChars && !strings.ContainsFunc(after[:leakChars], notToken) {
				return true
			}
			rest = after
		}
	}
	return false
}

func notToken(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// settle undoes escapes until nothing changes; what is no escape stays.
func settle(text string) string {
	for range leakRounds {
		if !strings.Contains(text, "%") {
			break
		}
		next := unescape(text)
		if next == text {
			break
		}
		text = next
	}
	return text
}

// unescape undoes one layer and leaves broken escapes alone.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			b.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// fold makes the spellings of a key equal.
func fold(key string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(key))
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}
