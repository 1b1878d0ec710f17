package redact

import "strings"

// maxName bounds how much of a name's end is looked at.
const maxName = 64

// nameKind says what a name gives away about its value.
type nameKind int

const (
	ordinary nameKind = iota
	secretName
	headerName // a secret header: its value is the rest of the line, and folded lines
	schemeName // bearer, basic
)

// secretEnds are the ends of names of secrets, folded: lower case without
// separators (station §14).
var secretEnds = []string{
	"token", "secret", "password", "passwd", "apikey", "authkey", "accesskey", "privatekey",
	"credential", "credentials", "authorization", "cookie", "signature", "sessionkey",
}

// flagNames are flags whose value is a secret although the name alone is not one
// of a setting (station §6.3).
var flagNames = map[string]bool{"auth": true, "bearer": true}

// kindOf classifies a name.
func kindOf(name []byte) nameKind {
	var room [maxName]byte
	folded := fold(room[:0], name)
	if len(folded) < 5 {
		return ordinary
	}
	switch string(folded) {
	case "bearer", "basic":
		return schemeName
	}
	if hasEnd(folded, "authorization") || hasEnd(folded, "cookie") {
		return headerName
	}
	for _, end := range secretEnds {
		if hasEnd(folded, end) {
			return secretName
		}
	}
	return ordinary
}

// secretKey reports whether the value of a member or attribute is a secret.
func secretKey(name string) bool {
	k := kindOf([]byte(name))
	return k == secretName || k == headerName
}

func hasEnd(folded []byte, end string) bool {
	return len(folded) >= len(end) && string(folded[len(folded)-len(end):]) == end
}

// fold appends the last maxName bytes of name in lower case without separators.
func fold(dst, name []byte) []byte {
	if len(name) > maxName {
		name = name[len(name)-maxName:]
	}
	for _, c := range name {
		if c == '_' || c == '-' || c == '.' || c == ' ' {
			continue
		}
		dst = append(dst, lower(c))
	}
	return dst
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// signedQuery reports whether a query parameter's name makes the whole query a
// credential: signed upload and download URLs.
func signedQuery(name []byte) bool {
	var room [maxName]byte
	switch string(fold(room[:0], name)) {
	case "sig", "xamzsignature", "xgoogsignature":
		return true
	}
	return false
}

// cloudQuery reports whether a query parameter belongs to such a signature.
func cloudQuery(name []byte) bool {
	low := strings.ToLower(string(name))
	return strings.HasPrefix(low, "x-amz-") || strings.HasPrefix(low, "x-goog-")
}
