package house

import (
	"fmt"
	"slices"
	"strings"
)

// Support finds the packages that only tests use: testkit, and those of a
// program's module that its main does not reach but a test imports.
func Support(packages []Package) map[string]bool {
	reached, tested := map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		if p.Name == "main" {
			reached[p.ImportPath] = true
			for _, dep := range p.Deps {
				reached[dep] = true
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			tested[imported] = true
		}
	}
	support := map[string]bool{}
	for _, p := range packages {
		module, rest, _ := split(p.ImportPath)
		noun, _, _ := strings.Cut(rest, "/")
		support[p.ImportPath] = module == "shared" && noun == "testkit" ||
			slices.Contains(Programs, module) && tested[p.ImportPath] && !reached[p.ImportPath]
	}
	return support
}

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
			m, r, ours := split(dep)
			if ours && m != "shared" {
				r = m + "/" + r // of the program's own module
			}
			if ours && !slices.Contains(users[r], module) {
				users[r] = append(users[r], module)
			}
		}
	}
	var findings []Finding
	support := Support(packages)
	for _, p := range packages {
		module, rest, _ := split(p.ImportPath)
		if slices.Contains(Programs, module) && p.Name != "main" && !support[p.ImportPath] && !slices.Contains(users[module+"/"+rest], module) {
			findings = append(findings, Finding{p.ImportPath, "neither the program nor a test uses it"})
		}
	}
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
