package worker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// setup checks the host's part (worker §3).
func (j *job) setup(d Deps) error {
	if j.Setup == nil {
		j.Setup = &Setup{}
	}
	s := *j.Setup
	switch {
	case len(s.Bootstrap) > maxBootstrap || strings.Contains(s.Bootstrap, "\x00"):
		return invalid("workspaceSetup.bootstrap", "it has more than %d bytes or a NUL byte", maxBootstrap)
	case len(s.Prompt) > maxPrompt:
		return invalid("workspaceSetup.prompt", "it has more than %d bytes", maxPrompt)
	case len(s.Metadata) > maxMetadata:
		return invalid("workspaceSetup.metadata", "it has more than %d bytes", maxMetadata)
	}
	if s.Metadata != nil {
		if _, err := strictjson.Parse(s.Metadata, strictjson.Limits{MaxDepth: contextDepth}); err != nil {
			return invalid("workspaceSetup.metadata", "%w", err)
		}
	}
	mounts, err := j.overlays(s.Mounts, d)
	if err != nil {
		return err
	}
	s.Mounts = mounts
	j.Setup = &s
	return j.environment()
}

func (j *job) overlays(in []Overlay, d Deps) ([]Overlay, error) {
	unsafe := func(format string, args ...any) error {
		return fault.New(fault.MountUnsafe, "check the mounts of the set-up: "+format, args...)
	}
	if len(in) > maxMounts {
		return nil, unsafe("there are more than %d", maxMounts)
	}
	out := make([]Overlay, 0, len(in))
	for i, m := range in {
		to := m.Destination
		switch {
		case !targetForm.MatchString(to) || to != filepath.Clean(to):
			return nil, unsafe("destination %d is not a clean path below /workspace", i+1)
		case !filepath.IsAbs(m.Source):
			return nil, unsafe("source %d is not absolute", i+1)
		}
		for k, other := range out {
			if paths.Within(to, other.Destination) || paths.Within(other.Destination, to) {
				return nil, unsafe("destinations %d and %d contain each other", k+1, i+1)
			}
		}
		real, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			return nil, unsafe("source %d: %w", i+1, bare(err))
		}
		st, err := os.Stat(real)
		switch {
		case err != nil:
			return nil, unsafe("source %d: %w", i+1, bare(err))
		case !st.IsDir() && !st.Mode().IsRegular():
			return nil, unsafe("source %d is neither a directory nor a regular file", i+1)
		}
		dir := real
		if !st.IsDir() {
			dir = filepath.Dir(real)
		}
		if why := unsafeDir(dir, false, d); why != "" {
			return nil, unsafe("source %d: %s", i+1, why)
		}
		if j.ReadOnlyWorkspace {
			if err := mountPoint(filepath.Join(j.Workspace, strings.TrimPrefix(to, "/workspace/")), st.IsDir()); err != nil {
				return nil, unsafe("destination %d in a read-only workspace: %w", i+1, err)
			}
		}
		out = append(out, Overlay{Source: real, Destination: to})
	}
	return out, nil
}

// mountPoint checks that a place to mount on exists and is of the source's kind.
func mountPoint(path string, dir bool) error {
	st, err := os.Lstat(path)
	if err != nil {
		return bare(err)
	}
	if st.IsDir() != dir || !dir && !st.Mode().IsRegular() {
		return errors.New("the place to mount on is of another kind than the source")
	}
	return nil
}

func (j *job) environment() error {
	unsafe := func(format string, args ...any) error {
		return fault.New(fault.EnvironmentUnsafe, "check the environment of the set-up: "+format, args...)
	}
	if len(j.Setup.Environment) > maxEnvironment {
		return unsafe("there are %d variables, at most %d", len(j.Setup.Environment), maxEnvironment)
	}
	capability, total := j.ProviderProxy.Capability.Reveal(), 0
	for name, value := range j.Setup.Environment {
		total += len(name) + len(value) + 2
		switch {
		case !envForm.MatchString(name):
			return unsafe("the name %.80q is not A-Z, 0-9 and _, a letter first", name)
		case slices.ContainsFunc(reservedEnv, func(r string) bool { return reserves(r, name) }):
			return unsafe("the name %.80s is reserved", name)
		case strings.Contains(value, "\x00"):
			return unsafe("the value of %.80s holds a NUL byte", name)
		case strings.Contains(value, capability):
			return unsafe("the value of %.80s holds the capability", name)
		}
	}
	if total > maxEnvBytes {
		return unsafe("it has more than %d bytes", maxEnvBytes)
	}
	return nil
}

func reserves(rule, name string) bool {
	if prefix, ok := strings.CutSuffix(rule, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return rule == name
}
