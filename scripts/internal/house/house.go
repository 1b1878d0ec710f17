// Package house holds the rules of this repository that no compiler knows: who
// may import whom, what may live in shared, how long a file may be, which words
// have no place here, and that docs/errors.md is the list of codes. scripts/check
// runs it through cmd/house; a finding names the place and the rule.
package house

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Programs are the modules that make a program each.
var Programs = []string{"bridge", "outboxd", "watchd", "stationd", "brokerd", "kitrun"}

// Modules are all modules of the workspace.
var Modules = append(slices.Clone(Programs), "shared", "scripts")

// A Finding is one broken rule.
type Finding struct {
	Place string // package, file or file:line
	Rule  string
}

func (f Finding) String() string { return f.Place + ": " + f.Rule }

// Write writes the generated pages.
func Write(ctx context.Context, root string) error {
	files, err := tracked(ctx, root)
	if err != nil {
		return err
	}
	proofs, _, err := Proofs(root, files)
	if err != nil {
		return err
	}
	for name, page := range map[string][]byte{ErrorsPage: Errors(), ProofsPage: proofs} {
		if err := os.WriteFile(filepath.Join(root, name), page, 0o644); err != nil {
			return fmt.Errorf("write a page: %w", err)
		}
	}
	return nil
}

// Check runs every rule on the repository at root.
func Check(ctx context.Context, root string) ([]Finding, error) {
	var findings []Finding
	packages, err := load(ctx, root)
	if err != nil {
		return nil, err
	}
	findings = append(findings, Imports(packages)...)
	findings = append(findings, Sharing(packages)...)
	files, err := tracked(ctx, root)
	if err != nil {
		return nil, err
	}
	found, err := Files(root, files, Support(packages))
	if err != nil {
		return nil, err
	}
	findings = append(findings, found...)
	current, err := os.ReadFile(filepath.Join(root, ErrorsPage))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the page of codes: %w", err)
	}
	if !bytes.Equal(current, Errors()) {
		findings = append(findings, Finding{ErrorsPage, "differs from shared/fault; write it with: go run ./scripts/cmd/house -write"})
	}
	page, found, err := Proofs(root, files)
	if err != nil {
		return nil, err
	}
	findings = append(findings, found...)
	current, err = os.ReadFile(filepath.Join(root, ProofsPage))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the page of proofs: %w", err)
	}
	if !bytes.Equal(current, page) {
		findings = append(findings, Finding{ProofsPage, "differs from the tags of the tests; write it with: go run ./scripts/cmd/house -write"})
	}
	found, err = versions(ctx, root)
	if err != nil {
		return nil, err
	}
	findings = append(findings, found...)
	sort.SliceStable(findings, func(i, j int) bool { return findings[i].Place < findings[j].Place })
	return findings, nil
}

// A Package is what `go list` says of one package.
type Package struct {
	ImportPath   string
	Name         string
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

// load lists the packages of every module, each module alone: a build with
// GOWORK=off is what a user of one program gets.
func load(ctx context.Context, root string) ([]Package, error) {
	var all []Package
	for _, module := range Modules {
		out, err := goList(ctx, filepath.Join(root, module), "-json=ImportPath,Name,Imports,Deps,TestImports,XTestImports", "./...")
		if err != nil {
			return nil, err
		}
		dec := json.NewDecoder(bytes.NewReader(out))
		for {
			var p Package
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("list the packages of %s: %w", module, err)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

func goList(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w: %s", dir, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// tracked lists the files that git has or would take, relative to root.
func tracked(ctx context.Context, root string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the repository: %w", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

// versions compares, for each program, the library versions of a build alone
// with those of the workspace.
func versions(ctx context.Context, root string) ([]Finding, error) {
	const format = `{{with .Module}}{{if .Version}}{{.Path}} {{.Version}}{{end}}{{end}}`
	var findings []Finding
	for _, program := range Programs {
		dir := filepath.Join(root, program)
		alone, err := goList(ctx, dir, "-deps", "-f", format, ".")
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", format, ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"))
		together, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the versions of %s in the workspace: %w", program, err)
		}
		has := lines(together)
		for _, version := range lines(alone) {
			if strings.HasPrefix(version, "drawbridge/") {
				continue // always the one beside it
			}
			if !slices.Contains(has, version) {
				findings = append(findings, Finding{program + "/go.mod", "a build alone uses " + version + ", the workspace another version; run go work sync and tidy"})
			}
		}
	}
	return findings, nil
}

func lines(out []byte) []string {
	var all []string
	for _, line := range strings.Split(string(out), "\n") {
		if line != "" && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
