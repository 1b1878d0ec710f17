package house

import (
	"fmt"
	"slices"
	"strings"
)

// layers are the packages of shared from the ground up: a package imports only
// packages of a lower layer, or of its own noun (agent/rule and agent).
var layers = [][]string{
	{"fault", "strictjson", "version", "crashpoint"},
	{"process", "redact", "workernet", "secretfile"},
	{"store", "profile", "terminal", "httpd", "service", "sibling"},
	{"callback", "agent", "checkup"},
	{"handoff"},
	{"testkit"},
}

// reserved libraries and the packages that alone may import them. A name that
// ends in a slash means everything below it.
var reserved = map[string][]string{
	"database/sql":                     {"drawbridge/shared/store", "drawbridge/scripts/"},
	"github.com/mattn/go-sqlite3":      {"drawbridge/shared/store", "drawbridge/scripts/"},
	"github.com/docker/":               {"drawbridge/kitrun/"},
	"github.com/modelcontextprotocol/": {"drawbridge/bridge/", "drawbridge/scripts/"},
	"github.com/santhosh-tekuri/":      {}, // tests only
	"pgregory.net/rapid":               {},
	"go.uber.org/goleak":               {"drawbridge/shared/testkit"},
	"github.com/google/go-cmp/":        {"drawbridge/shared/testkit"},
	"github.com/rogpeppe/go-internal/": {"drawbridge/shared/testkit"},
	"github.com/creack/pty":            {},
	"testing":                          {"drawbridge/shared/testkit", "drawbridge/scripts/"},
	"drawbridge/shared/testkit":        {}, // tests only
}

// Imports checks the directions of imports, tests apart: who tests what is free,
// but for the two rules that testOnly names.
func Imports(packages []Package) []Finding {
	var findings []Finding
	support := Support(packages)
	for _, p := range packages {
		for _, imported := range p.Imports {
			if rule := direction(p.ImportPath, imported); rule != "" {
				findings = append(findings, Finding{p.ImportPath, rule})
			}
			if rule := reserve(p.ImportPath, imported); rule != "" && !support[p.ImportPath] {
				findings = append(findings, Finding{p.ImportPath, rule})
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if rule := testOnly(p.ImportPath, imported); rule != "" {
				findings = append(findings, Finding{p.ImportPath, "test " + rule})
			}
		}
	}
	return findings
}

// split gives module and package of one of our import paths.
func split(path string) (module, rest string, ours bool) {
	path, ours = strings.CutPrefix(path, "drawbridge/")
	if !ours {
		return "", "", false
	}
	module, rest, _ = strings.Cut(path, "/")
	return module, rest, true
}

func direction(from, to string) string {
	fromModule, fromPkg, _ := split(from)
	toModule, toPkg, ours := split(to)
	if !ours {
		return ""
	}
	switch {
	case toModule == "scripts" && fromModule != "scripts":
		return "imports " + to + "; nothing imports scripts"
	case fromModule == "shared" && toModule != "shared":
		return "imports " + to + "; shared knows no program"
	case fromModule != toModule && toModule != "shared":
		return "imports " + to + "; programs meet in the Store, never in each other's code"
	case fromModule == "shared":
		return upward(fromPkg, toPkg)
	}
	return ""
}

// upward refuses an arrow from a package of shared to its own layer or above.
func upward(from, to string) string {
	fromNoun, _, _ := strings.Cut(from, "/")
	toNoun, _, _ := strings.Cut(to, "/")
	if fromNoun == toNoun {
		return ""
	}
	fromLayer, toLayer := layer(fromNoun), layer(toNoun)
	switch {
	case fromLayer < 0:
		return "is a package of shared without a layer; give it one in scripts/internal/house"
	case toLayer < 0:
		return "" // reported where it stands
	case toLayer >= fromLayer:
		return fmt.Sprintf("imports shared/%s, which is not below it", to)
	}
	return ""
}

func layer(noun string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, noun) })
}

func reserve(from, to string) string {
	for library, allowed := range reserved {
		if !within(to, library) {
			continue
		}
		if !slices.ContainsFunc(allowed, func(a string) bool { return within(from, a) }) {
			return "imports " + to + ", which is reserved" + toWhom(allowed)
		}
	}
	return ""
}

func toWhom(allowed []string) string {
	if len(allowed) == 0 {
		return " to tests"
	}
	return " to " + strings.Join(allowed, ", ")
}

// within reports whether path is prefix itself, or below it when prefix ends in
// a slash.
func within(path, prefix string) bool {
	if below, ok := strings.CutSuffix(prefix, "/"); ok {
		return path == below || strings.HasPrefix(path, prefix)
	}
	return path == prefix
}

func testOnly(from, to string) string {
	fromModule, _, _ := split(from)
	toModule, _, ours := split(to)
	switch {
	case ours && toModule == "scripts" && fromModule != "scripts":
		return "imports " + to + "; nothing imports scripts"
	case within(to, "github.com/docker/") && fromModule != "kitrun":
		return "imports " + to + ", which is reserved to kitrun"
	}
	return ""
}
