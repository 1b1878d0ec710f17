package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/fault"
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
			WithHint("tags and repository digests are refused, since what they name can change; `docker image inspect --format {{.Id}} NAME` gives the id")
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

// paths makes the paths real and keeps directories apart that must be.
func (j *job) paths(d Deps) error {
	for _, p := range []struct {
		option string
		path   *string
		writes bool // the worker or we write there
	}{{"workspace", &j.Workspace, !j.ReadOnlyWorkspace}, {"sourceRoot", &j.SourceRoot, false}, {"artifactRoot", &j.ArtifactRoot, true}} {
		real, err := realDir(*p.path)
		if err != nil {
			return invalid(p.option, "%w", err)
		}
		if why := unsafeDir(real, p.writes, d); why != "" {
			return invalid(p.option, "%s", why)
		}
		*p.path = real
	}
	if within(j.ArtifactRoot, j.Workspace) || within(j.Workspace, j.ArtifactRoot) {
		return invalid("artifactRoot", "it and the workspace contain each other").
			WithHint("a worker could forge its own receipts: use directories beside each other")
	}
	st, err := os.Lstat(j.ArtifactRoot)
	if err != nil {
		return invalid("artifactRoot", "%w", bare(err))
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
		return invalid("artifactRoot", "it belongs to another user")
	}
	if st.Mode().Perm()&0o077 != 0 {
		return invalid("artifactRoot", "its mode is %04o, which lets others in", st.Mode().Perm()).WithHint("chmod 700 it")
	}
	return j.contextFile(d)
}

func (j *job) contextFile(d Deps) error {
	const option = "contextFile"
	if !filepath.IsAbs(j.ContextFile) {
		return invalid(option, "it is missing or not absolute")
	}
	st, err := os.Lstat(j.ContextFile)
	switch {
	case err != nil:
		return invalid(option, "%w", bare(err))
	case !st.Mode().IsRegular():
		return invalid(option, "it is not a regular file")
	case st.Size() > maxContext:
		return invalid(option, "it has more than %d bytes", maxContext)
	}
	real, err := filepath.EvalSymlinks(j.ContextFile)
	if err != nil {
		return invalid(option, "%w", bare(err))
	}
	if why := unsafeDir(filepath.Dir(real), false, d); why != "" {
		return invalid(option, "its directory: %s", why)
	}
	j.ContextFile = real
	return nil
}

// realDir gives the real path of an existing directory.
func realDir(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("it is missing or not absolute")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", bare(err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", bare(err)
	}
	if !st.IsDir() {
		return "", errors.New("it is not a directory")
	}
	return real, nil
}

// unsafeDir says why a real directory may not be used, "" when it may. Neither the
// Store nor the runtime directory nor the engine's socket may be inside it.
func unsafeDir(dir string, writes bool, d Deps) string {
	if dir == "/" {
		return "it is the root of the file system"
	}
	for _, sys := range systemDirs {
		for _, name := range spellings(sys) {
			if dir == name || writes && within(dir, name) {
				return "it is a directory of the system"
			}
		}
	}
	private := []string{d.RuntimeDir}
	if d.Store != nil {
		private = append(private, d.Store.Dir())
	}
	for _, p := range private {
		for _, name := range spellings(p) {
			if within(dir, name) || within(name, dir) {
				return "it overlaps a private directory of drawbridge"
			}
		}
	}
	if d.Engine != nil {
		for _, name := range spellings(socketDir(d.Engine.Host())) {
			if within(name, dir) {
				return "it holds the socket of the container engine"
			}
		}
	}
	return ""
}

// spellings gives a path as it is and as it really is; nothing for "".
func spellings(path string) []string {
	if path == "" {
		return nil
	}
	out := []string{filepath.Clean(path)}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != out[0] {
		out = append(out, real)
	}
	return out
}

// within reports whether path is dir or below it, by components.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
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
			if within(to, other.Destination) || within(other.Destination, to) {
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
			return invalid(option, "the path of entry %d: %w", i+1, bare(err))
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

// ownedBy refuses a workspace of another user than the container's: git and a
// process without capabilities could not work in it.
func (j *job) ownedBy() error {
	var st unix.Stat_t
	if err := unix.Stat(j.Workspace, &st); err != nil {
		return invalid("workspace", "%w", err)
	}
	if int(st.Uid) != j.uid {
		return fault.New(fault.WorkspaceOwner, "check the workspace: it belongs to uid %d, and the container would run as %d", st.Uid, j.uid).
			WithHint("chown the workspace, or run as its owner")
	}
	return nil
}

func tooLong(most int64) error { return fmt.Errorf("it has more than %d bytes", most) }

// bare drops the path that the standard library puts into its errors.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
