package profile

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

var (
	idPattern       = regexp.MustCompile(`^[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*$`)
	revisionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)
	variablePattern = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
	mappingKey      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`)
)

// Names that change how a child loads code (host-profile §1, §14).
var unsafeVariables = map[string]bool{
	"BASH_ENV": true, "ENV": true, "LD_LIBRARY_PATH": true, "LD_PRELOAD": true, "NODE_OPTIONS": true,
	"NODE_PATH": true, "SHELLOPTS": true,
	"LD_AUDIT": true, "PERL5OPT": true, "PYTHONSTARTUP": true, "RUBYOPT": true,
}

// Prefixes that belong to a loader, to the relay or to our own programs.
var reservedPrefixes = []string{"DYLD_", relayPrefix, "DRAWBRIDGE_"}

func isControl(r rune) bool { return r < 0x20 || r == 0x7F }

// clean says why s is no clean string of at most limit code points; "" if it is.
func clean(s string, limit int) string {
	switch {
	case s == "":
		return "must not be empty"
	case utf8.RuneCountInString(s) > limit:
		return "is too long"
	case strictjson.TrimSpace(s) != s:
		return "must not begin or end with white space"
	case strings.ContainsFunc(s, isControl):
		return "must not contain control characters"
	}
	return ""
}

func checkVariable(path, name string) error {
	if len(name) > maxVariable || !variablePattern.MatchString(name) {
		return refuse(fault.ProfileVariableUnsafe, path, "must match ^[A-Z_][A-Z0-9_]*$ and be at most %d long", maxVariable)
	}
	if unsafeVariables[name] {
		return refuse(fault.ProfileVariableUnsafe, path, "%s changes how programs load code", name)
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(name, p) {
			return refuse(fault.ProfileVariableUnsafe, path, "names beginning %s are reserved", p)
		}
	}
	return nil
}
