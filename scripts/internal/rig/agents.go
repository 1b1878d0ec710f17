package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of the agents, as list shows them.
const (
	Codex  = "codex"
	Claude = "claude"
)

// Versions that the rig has, newest first.
var (
	CodexVersions  = []string{"0.171.0", "0.148.0"}
	ClaudeVersions = []string{"2.1.332", "2.1.263"}
)

// program says where npm puts the native program of an agent.
type program struct {
	variable string // begins the name of the variable with its path
	alias    string // begins the name of the installed package
	inside   string // path below a node_modules directory
}

var programs = map[string]program{
	Codex:  {"DRAWBRIDGE_CODEX_", "codex-", "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"},
	Claude: {"DRAWBRIDGE_CLAUDE_", "claude-code-", "@anthropic-ai/claude-code-linux-x64/claude"},
}

// CodexPath finds the native program of a Codex version: the variable that
// scripts/setup prints, else the cache that it fills.
func CodexPath(version string) (string, error) { return ProgramPath(Codex, version) }

// ClaudePath is the same for Claude Code.
func ClaudePath(version string) (string, error) { return ProgramPath(Claude, version) }

// ProgramPath is the same for an agent by name. A version that is not pinned is
// looked for where `scripts/rig learn` puts it.
func ProgramPath(agent, version string) (string, error) {
	p, ok := programs[agent]
	if !ok {
		return "", fmt.Errorf("find the program of %q: want %s or %s", agent, Codex, Claude)
	}
	variable := p.variable + strings.ReplaceAll(version, ".", "_")
	if path := os.Getenv(variable); path != "" {
		return executable(path)
	}
	modules, err := NodeModules()
	if err != nil {
		return "", err
	}
	alias := filepath.Join(modules, p.alias+version)
	if _, err := os.Stat(alias); err != nil {
		if learned, err := LearnedDir(agent, version); err == nil {
			if path, err := executable(filepath.Join(learned, "node_modules", p.inside)); err == nil {
				return path, nil
			}
		}
		return "", fmt.Errorf("%s %s is not installed and %s is not set: run scripts/setup", agent, version, variable)
	}
	for _, at := range []string{filepath.Join(alias, "node_modules", p.inside), filepath.Join(modules, p.inside)} {
		if path, err := executable(at); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s %s has no program below %s: run scripts/setup again", agent, version, modules)
}

// NodeModules is the directory of the installed npm packages.
func NodeModules() (string, error) {
	if dir := os.Getenv("DRAWBRIDGE_NODE_MODULES"); dir != "" {
		return dir, nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "agents", "node_modules"), nil
}

// LearnedDir is where everything about a version goes that is not pinned: its
// program, its recordings, the rules that were derived for it.
func LearnedDir(agent, version string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "learned", agent+"-"+version), nil
}

// cacheDir is what scripts/setup fills.
func cacheDir() (string, error) {
	if cache := os.Getenv("DRAWBRIDGE_CACHE"); cache != "" {
		return cache, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, ".cache"), nil
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
