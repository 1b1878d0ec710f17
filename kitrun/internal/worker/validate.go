package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/strictjson"
)

// Bounds of options (worker §2, §3).
const (
	maxModel       = 256
	maxContext     = 16 << 20
	maxPrompt      = 16 << 20
	maxBootstrap   = 64 << 10
	maxMetadata    = 1 << 20
	maxMounts      = 64
	maxForbidden   = 64
	maxEnvironment = 64
	maxEnvBytes    = 64 << 10
	contextDepth   = 200
	leastMemory    = 16 << 20 // an engine takes no less than 6 MiB, and codex none of that
)

var (
	imageForm      = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
	baseURLForm    = regexp.MustCompile(`^http://host\.docker\.internal:([0-9]{1,5})(/v1)?$`)
	capabilityForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	invocationForm = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	runForm        = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)
	ownerForm      = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	userForm       = regexp.MustCompile(`^([0-9]{1,10}):([0-9]{1,10})$`)
	targetForm     = regexp.MustCompile(`^/workspace/[A-Za-z0-9._/-]+$`)
	envForm        = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

	efforts  = []string{"minimal", "low", "medium", "high", "xhigh"}
	networks = []string{NetworkIsolated, NetworkSocket, NetworkBridge, NetworkNone}
	kinds    = []string{KindController, KindHiddenOracle, KindCredentials}

	// reservedEnv are names that a set-up may not give; a star stands for any rest.
	reservedEnv = []string{"CODEX_HOME", "KONTOUR_PROVIDER_CAPABILITY", "HOME", "PATH", "LD_*", "DYLD_*", "NODE_OPTIONS", "BASH_ENV", "ENV",
		"IFS", "SHELLOPTS", "GIT_EXEC_PATH", "GIT_SSH_COMMAND", "PYTHONSTARTUP", "PERL5OPT", "RUBYOPT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
		"OPENAI_*", "ANTHROPIC_*", "DRAWBRIDGE_*"}

	// systemDirs are never given to a worker; what lies below them may be read.
	systemDirs = []string{"/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/dev", "/proc", "/sys", "/run", "/var/run"}
)

// job is what Options come to: checked, complete, every path real.
type job struct {
	Options
	port      int    // of the broker, inside the container
	context   []byte // bytes of the context file
	prompt    []byte
	budget    storage.Budget
	roots     []string
	forbidden []ForbiddenRoot // nil: no inventory
	limits    Limits
	uid, gid  int // of the container's user, where it is ours to choose
}

// check makes a job of options. It reads the file system and asks no engine.
func check(o Options, d Deps) (*job, error) {
	j := &job{Options: o, budget: storage.DefaultBudget()}
	for _, step := range []func(Deps) error{j.names, j.lent, j.paths, j.limit, j.setup, j.storage, j.inventory, j.input} {
		if err := step(d); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// names checks what needs no look at anything.
func (j *job) names(d Deps) error {
	if j.ReasoningEffort == "" {
		j.ReasoningEffort = "medium"
	}
	if j.InvocationID == "" {
		j.InvocationID = d.NewID()
	}
	ms := j.Timeout.Milliseconds()
	switch {
	case !imageForm.MatchString(j.Image):
		return invalid("image", "it is not sha256: and 64 lower hex digits").
			WithHint("tags and repository digests are refused, since what they name can change; `scripts/worker-image -load` builds the image, loads it and prints its id")
	case j.Model == "" || len(j.Model) > maxModel:
		return invalid("model", "it has %d bytes, not 1 to %d", len(j.Model), maxModel)
	case strings.ContainsFunc(j.Model, func(r rune) bool {
		return r == '"' || r == '\\' || unicode.IsControl(r) || r == unicode.ReplacementChar
	}):
		return invalid("model", "it holds a quote, a backslash or a control character")
	case ms < 1 || j.Timeout > maxTimeout:
		return invalid("timeoutMs", "it is %d, not 1 to %d", ms, maxTimeout.Milliseconds())
	case !slices.Contains(efforts, j.ReasoningEffort):
		return invalid("reasoningEffort", "it is none of %s", strings.Join(efforts, " "))
	case j.Network != "" && !slices.Contains(networks, j.Network):
		return invalid("network", "it is none of %s", strings.Join(networks, " "))
	case !invocationForm.MatchString(j.InvocationID):
		return invalid("invocationId", "it is not 1 to 63 of a-z, 0-9 and -")
	case !runForm.MatchString(j.RunID):
		return invalid("runId", "it is not 1 to 128 of a-z, 0-9, ., _ and -, the first a letter or digit")
	case j.OwnerID != "" && !ownerForm.MatchString(j.OwnerID):
		return invalid("ownerId", "it is not a UUID in lower case")
	}
	return j.identity()
}

func (j *job) identity() error {
	j.uid, j.gid = os.Geteuid(), os.Getegid()
	if j.User == "" || j.User == "auto" {
		j.User = ""
		return nil
	}
	m := userForm.FindStringSubmatch(j.User)
	if m == nil {
		return invalid("user", `it is neither "auto" nor "UID:GID"`)
	}
	uid, err1 := strconv.ParseInt(m[1], 10, 32)
	gid, err2 := strconv.ParseInt(m[2], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return invalid("user", "an id is too large")
	}
	j.uid, j.gid, j.User = int(uid), int(gid), fmt.Sprintf("%d:%d", uid, gid)
	return nil
}

// lent checks the capability and where it leads.
func (j *job) lent(Deps) error {
	p := j.ProviderProxy
	if p == nil {
		return invalid("providerProxy", "it is missing")
	}
	m := baseURLForm.FindStringSubmatch(p.BaseURL)
	if m == nil {
		return invalid("providerProxy.baseUrl", "it is not http://host.docker.internal:PORT or that with /v1")
	}
	port, err := strconv.Atoi(m[1])
	switch {
	case err != nil || port < 1 || port > 65535:
		return invalid("providerProxy.baseUrl", "its port is not 1 to 65535")
	case !capabilityForm.MatchString(p.Capability.Reveal()):
		return invalid("providerProxy.capability", "it is not 64 lower hex digits")
	case p.Model != j.Model:
		return invalid("providerProxy.model", "it is not the model of the run")
	}
	j.port = port
	return nil
}

// limit checks the bounds of the container, which may only be lowered.
func (j *job) limit(Deps) error {
	j.limits = Limits{MemoryBytes: defaultMemory, CPUs: defaultCPUs, Pids: defaultPids, TmpBytes: defaultTmp}
	l := j.Limits
	switch {
	case l.MemoryBytes != 0 && (l.MemoryBytes < leastMemory || l.MemoryBytes > defaultMemory):
		return invalid("limits.memory_bytes", "it is %d, not %d to %d", l.MemoryBytes, leastMemory, int64(defaultMemory))
	case l.CPUs != 0 && !(l.CPUs >= 0.01 && l.CPUs <= defaultCPUs):
		return invalid("limits.cpus", "it is not 0.01 to %g", float64(defaultCPUs))
	case l.Pids != 0 && (l.Pids < 1 || l.Pids > defaultPids):
		return invalid("limits.pids", "it is %d, not 1 to %d", l.Pids, defaultPids)
	case l.TmpBytes != 0 && (l.TmpBytes < 1<<20 || l.TmpBytes > defaultTmp):
		return invalid("limits.tmp_bytes", "it is %d, not %d to %d", l.TmpBytes, 1<<20, int64(defaultTmp))
	}
	if l.MemoryBytes != 0 {
		j.limits.MemoryBytes = l.MemoryBytes
	}
	if l.CPUs != 0 {
		j.limits.CPUs = l.CPUs
	}
	if l.Pids != 0 {
		j.limits.Pids = l.Pids
	}
	if l.TmpBytes != 0 {
		j.limits.TmpBytes = l.TmpBytes
	}
	return nil
}

// storage settles the directories that are watched. The workspace is always among
// them: a budget that does not see it would be none.
func (j *job) storage(Deps) error {
	roots := []string{j.Workspace, j.ArtifactRoot, filepath.Dir(j.ContextFile)}
	if s := j.Storage; s != nil {
		j.budget = s.Budget
		if err := s.Budget.Check(); err != nil {
			return invalid("storageBudget", "%w", err)
		}
		if s.Roots != nil {
			if slices.ContainsFunc(s.Roots, func(p string) bool { return !filepath.IsAbs(p) }) {
				return invalid("storageBudget.roots", "a root is not absolute")
			}
			if len(s.Roots) > storage.MaxRoots-1 {
				return invalid("storageBudget.roots", "there are more than %d", storage.MaxRoots-1)
			}
			roots = append([]string{j.Workspace}, s.Roots...)
		}
	}
	real, err := storage.Roots(roots)
	if err != nil {
		return err
	}
	j.roots = real
	return nil
}

// inventory makes the forbidden roots real.
func (j *job) inventory(Deps) error {
	const option = "forbiddenMountRoots"
	if j.ForbiddenRoots == nil {
		return nil
	}
	if len(j.ForbiddenRoots) > maxForbidden {
		return invalid(option, "there are more than %d", maxForbidden)
	}
	j.forbidden = []ForbiddenRoot{}
	for i, f := range j.ForbiddenRoots {
		if !slices.Contains(kinds, f.Kind) {
			return invalid(option, "the kind of entry %d is none of %s", i+1, strings.Join(kinds, " "))
		}
		if !filepath.IsAbs(f.Path) {
			return invalid(option, "the path of entry %d is not absolute", i+1)
		}
		real, err := filepath.EvalSymlinks(f.Path)
		if err != nil {
			return invalid(option, "the path of entry %d, %w", i+1, named(f.Path, bare(err)))
		}
		j.forbidden = append(j.forbidden, ForbiddenRoot{f.Kind, real})
	}
	return nil
}

// defaultPrompt stands before the context where the host gives no prompt.
const defaultPrompt = "Carry out exactly the following stage request. Frozen treatment files are under /treatment. " +
	"Stay within the permitted output scope. Return the requested structured result.\n\n"

// input reads the context and settles the prompt; neither may hold the capability.
func (j *job) input(Deps) error {
	data, err := readRegular(j.ContextFile, maxContext)
	if err != nil {
		return invalid("contextFile", "%w", err)
	}
	if err := object(data); err != nil {
		return invalid("contextFile", "%w", err)
	}
	j.context, j.prompt = data, []byte(j.Setup.Prompt)
	if len(j.prompt) == 0 {
		j.prompt = append([]byte(defaultPrompt), data...)
	}
	capability := j.ProviderProxy.Capability.Reveal()
	for _, in := range []struct{ option, text string }{
		{"contextFile", string(j.context)}, {"workspaceSetup.prompt", string(j.prompt)},
		{"workspaceSetup.bootstrap", j.Setup.Bootstrap}, {"workspaceSetup.metadata", string(j.Setup.Metadata)},
	} {
		if strings.Contains(in.text, capability) {
			return invalid(in.option, "it holds the capability")
		}
	}
	return nil
}

// object checks that data is one JSON object.
func object(data []byte) error {
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: maxContext, MaxDepth: contextDepth})
	if err != nil {
		return err
	}
	if _, ok := tree.(map[string]any); !ok {
		return errors.New("it is not a JSON object")
	}
	return nil
}

// member gives one member of the context, null when it is absent.
func (j *job) member(name string) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(j.context, &all) == nil && all[name] != nil {
		return all[name]
	}
	return json.RawMessage("null")
}
