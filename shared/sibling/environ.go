package sibling

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Variables that every sibling gets from its starter's own environment. Nothing
// else of it is passed on: it may hold keys of the Host (design, override 11).
var baseNames = []string{"PATH", "HOME", "USER", "LANG", "TMPDIR"}

var basePrefixes = []string{"LC_", "XDG_"}

// Environment builds a sibling's environment: the base variables and those
// named by also, as environ has them, then extra. Of a name set twice the
// later one counts.
func Environment(environ, also, extra []string) []string {
	out := []string{}
	for _, entry := range environ {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			continue
		}
		if slices.Contains(baseNames, name) || slices.Contains(also, name) ||
			slices.ContainsFunc(basePrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			out = append(out, entry)
		}
	}
	return append(out, extra...)
}

// Beside gives the path of a program in the directory of the running one. It
// need not exist: a sibling that cannot start is a state, not an error.
func Beside(name string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the program's own directory: %w", err)
	}
	return filepath.Join(filepath.Dir(exe), name), nil
}
