package rig

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of the public harnesses that stations run, as programs.
const (
	SandboxAgent = "sandbox-agent"
	OpenCode     = "opencode"
)

// reviewed lists the programs with their digests, from the root of the repository.
const reviewed = "scripts/harnesses/SHA256SUMS"

// Harness is a public harness: the program, and the digest that was reviewed.
type Harness struct{ Path, SHA256 string }

// FindHarness finds a harness: the program that scripts/setup names in a variable,
// else that in the cache that it fills.
func FindHarness(name string) (Harness, error) {
	root, err := Root()
	if err != nil {
		return Harness{}, err
	}
	digest, inside, err := digestOf(filepath.Join(root, reviewed), name)
	if err != nil {
		return Harness{}, err
	}
	path := os.Getenv("DRAWBRIDGE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
	if path == "" {
		cache, err := cacheDir()
		if err != nil {
			return Harness{}, err
		}
		path = filepath.Join(cache, "harnesses", inside)
	}
	if path, err = executable(path); err != nil {
		return Harness{}, fmt.Errorf("%s is not installed: run scripts/setup: %w", name, err)
	}
	return Harness{path, digest}, nil
}

// digestOf reads the line of one program.
func digestOf(list, name string) (digest, path string, err error) {
	f, err := os.Open(list)
	if err != nil {
		return "", "", fmt.Errorf("find %s: %w", name, err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if digest, path, ok := strings.Cut(lines.Text(), "  "); ok && filepath.Base(path) == name {
			return digest, path, nil
		}
	}
	return "", "", fmt.Errorf("find %s: it is not in %s", name, list)
}
