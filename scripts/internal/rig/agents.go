package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Versions of Codex that the rig has, newest first.
var CodexVersions = []string{"0.171.0", "0.148.0"}

// CodexPath finds the native program of a Codex version: the variable that
// scripts/setup prints, else the cache that it fills.
func CodexPath(version string) (string, error) {
	variable := "DRAWBRIDGE_CODEX_" + strings.ReplaceAll(version, ".", "_")
	if path := os.Getenv(variable); path != "" {
		return executable(path)
	}
	modules, err := NodeModules()
	if err != nil {
		return "", err
	}
	const inside = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
	alias := filepath.Join(modules, "codex-"+version)
	if _, err := os.Stat(alias); err != nil {
		return "", fmt.Errorf("codex %s is not installed and %s is not set: run scripts/setup", version, variable)
	}
	for _, at := range []string{filepath.Join(alias, "node_modules", inside), filepath.Join(modules, inside)} {
		if path, err := executable(at); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("codex %s has no program below %s: run scripts/setup again", version, modules)
}

// NodeModules is the directory of the installed npm packages.
func NodeModules() (string, error) {
	if dir := os.Getenv("DRAWBRIDGE_NODE_MODULES"); dir != "" {
		return dir, nil
	}
	cache := os.Getenv("DRAWBRIDGE_CACHE")
	if cache == "" {
		root, err := Root()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(root, ".cache")
	}
	return filepath.Join(cache, "agents", "node_modules"), nil
}

// Root is the root of the repository: the nearest directory upwards with go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("find the repository: no go.work above the current directory")
		}
		dir = up
	}
}

func executable(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find the agent: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("find the agent: %s is not an executable file", path)
	}
	return filepath.EvalSymlinks(path)
}
