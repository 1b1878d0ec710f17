package house

import (
	"fmt"
	"slices"
	"strings"
)

// single names packages of shared that may have fewer than two programs, and why.
var single = map[string]string{
	"testkit": "tests only",
}

// Sharing checks that every package of shared ends up in at least two programs:
// what one program needs lives in that program's module.
func Sharing(packages []Package) []Finding {
	users := map[string][]string{}
	var shared []string
	for _, p := range packages {
		module, rest, _ := split(p.ImportPath)
		if module == "shared" {
			shared = append(shared, rest)
			continue
		}
		if !slices.Contains(Programs, module) || p.Name != "main" {
			continue
		}
		for _, dep := range p.Deps {
			if m, r, ours := split(dep); ours && m == "shared" && !slices.Contains(users[r], module) {
				users[r] = append(users[r], module)
			}
		}
	}
	var findings []Finding
	for _, pkg := range shared {
		noun, _, _ := strings.Cut(pkg, "/")
		if single[noun] != "" || len(users[pkg]) >= 2 {
			continue
		}
		rule := "no program uses it"
		if len(users[pkg]) == 1 {
			rule = fmt.Sprintf("only %s uses it; code of one program lives in its own module", users[pkg][0])
		}
		findings = append(findings, Finding{"drawbridge/shared/" + pkg, rule})
	}
	return findings
}
