package worker

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the container (worker §4); options may lower them.
const (
	defaultMemory = 2 << 30
	defaultCPUs   = 2
	defaultPids   = 256
	defaultTmp    = 1 << 30
	codexHomeSize = "256m"
	maxOpenFiles  = 4096
	maxOutput     = 16 << 20 // of stdout and of stderr
	fileBlock     = 512      // of ulimit -f
)

// Places inside the container.
const (
	inWorkspace = "/workspace"
	inTreatment = "/treatment"
	inContext   = "/context/request.json"
	inCodexHome = "/codex-home"
	inTmp       = "/tmp"
	inBroker    = "/run/drawbridge"
	inRelay     = "/opt/drawbridge/relay"
)

// Names that the container carries.
const (
	labelRun        = "kontour.worker.run"
	LabelOwner      = "kontour.worker.owner" // whose value is an owner id
	labelInvocation = "drawbridge.invocation"
	labelStore      = "drawbridge.store"

	namePrefix    = "kontour-worker-"
	capabilityEnv = "KONTOUR_PROVIDER_CAPABILITY"
	hostName      = "host.docker.internal"
	hostGateway   = "host-gateway"
	provider      = "kontour_proxy"
)

// spec is the container of a turn.
func (j *job) spec(storeID string, n network) Spec {
	s := j.locked(storeID)
	s.Name = namePrefix + j.InvocationID
	s.Stdin = true
	s.Entrypoint = []string{"sh", "-c", j.bootstrap(n), "worker"}
	s.Command = append([]string{j.config()}, j.argv()...)
	s.Env = []string{capabilityEnv + "=" + j.ProviderProxy.Capability.Reveal(), "CODEX_HOME=" + inCodexHome, "HOME=" + inTmp}
	for _, name := range slices.Sorted(maps.Keys(j.Setup.Environment)) {
		s.Env = append(s.Env, name+"="+j.Setup.Environment[name])
	}
	s.WorkingDir = inWorkspace
	s.Mounts = []Mount{
		{Source: j.Workspace, Destination: inWorkspace, ReadWrite: !j.ReadOnlyWorkspace},
		{Source: j.SourceRoot, Destination: inTreatment},
		{Source: j.ContextFile, Destination: inContext},
	}
	for _, m := range j.Setup.Mounts {
		s.Mounts = append(s.Mounts, Mount{Source: m.Source, Destination: m.Destination})
	}
	s.Mounts = append(s.Mounts, n.mounts...)
	s.Network, s.ExtraHosts, s.DNS = n.name, n.hosts, n.dns
	return s
}

// locked is what every container of a run has: bounds, labels, and no way out.
func (j *job) locked(storeID string) Spec {
	labels := map[string]string{labelRun: j.RunID, labelInvocation: j.InvocationID, labelStore: storeID}
	if j.OwnerID != "" {
		labels[LabelOwner] = j.OwnerID
	}
	user := strconv.Itoa(j.uid) + ":" + strconv.Itoa(j.gid)
	return Spec{
		Image: j.Image, User: user, Labels: labels, Network: NetworkNone,
		Memory: j.limits.MemoryBytes, NanoCPUs: int64(j.limits.CPUs * 1e9), Pids: j.limits.Pids,
		Ulimits: []Ulimit{
			{"core", 0, 0}, {"fsize", j.budget.MaxFileBytes, j.budget.MaxFileBytes}, {"nofile", maxOpenFiles, maxOpenFiles},
		},
		Tmpfs: map[string]string{
			inTmp:       "rw,nosuid,nodev,size=" + size(j.limits.TmpBytes),
			inCodexHome: fmt.Sprintf("rw,nosuid,nodev,size=%s,mode=0700,uid=%d,gid=%d", codexHomeSize, j.uid, j.gid),
		},
	}
}

// size writes whole GiB as such, as the table of worker §4 has it.
func size(n int64) string {
	if n%(1<<30) == 0 {
		return strconv.FormatInt(n>>30, 10) + "g"
	}
	return strconv.FormatInt(n, 10)
}

// setting is one value of codex's configuration, as TOML.
type setting struct{ table, key, value string }

// providerTable is the table of our provider.
const providerTable = "model_providers." + provider

// settings stand in the private file and once more on the command line, where
// nothing that a project brings along can win over them.
func (j *job) settings() []setting {
	return []setting{
		{"", "model_provider", quote(provider)},
		{"", "model_reasoning_effort", quote(j.ReasoningEffort)},
		{providerTable, "name", quote("OpenAI via scoped host proxy")},
		{providerTable, "base_url", quote(j.ProviderProxy.BaseURL)},
		{providerTable, "env_key", quote(capabilityEnv)},
		{providerTable, "wire_api", quote("responses")},
		{providerTable, "requires_openai_auth", "false"},
		{providerTable, "supports_websockets", "false"},
		{providerTable, "request_max_retries", "1"},
		{providerTable, "stream_max_retries", "1"},
		// No boundary, since a command has the same uid; it keeps the capability out of
		// transcripts. The boundary is what the capability opens.
		{"shell_environment_policy", "exclude", `["KONTOUR_*"]`},
	}
}

// config is CODEX_HOME/config.toml.
func (j *job) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model = %s\n", quote(j.Model))
	table := ""
	for _, s := range j.settings() {
		if s.table != table {
			table = s.table
			fmt.Fprintf(&b, "[%s]\n", table)
		}
		fmt.Fprintf(&b, "%s = %s\n", s.key, s.value)
	}
	// Without these Codex waits at its end for hosts that no worker reaches.
	b.WriteString("[analytics]\nenabled = false\n[otel]\nmetrics_exporter = \"none\"\n")
	fmt.Fprintf(&b, "[projects.%s]\ntrust_level = \"trusted\"\n", quote(inWorkspace))
	return b.String()
}

// quote writes a TOML basic string; check refuses what it could not hold.
func quote(s string) string { return `"` + s + `"` }

// argv is codex's command line. The container is the sandbox: codex's own cannot
// start in it.
func (j *job) argv() []string {
	argv := []string{"codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"}
	for _, s := range j.settings() {
		argv = append(argv, "--config", strings.TrimPrefix(s.table+"."+s.key, ".")+"="+s.value)
	}
	return append(argv, "--model", j.Model, "-")
}

// bootstrap is the shell text that makes the configuration and the seed commit and
// becomes codex. A step that fails means that codex never starts.
func (j *job) bootstrap(n network) string {
	const git = "git -c user.name=drawbridge -c user.email=drawbridge@localhost -c commit.gpgsign=false -c gc.auto=0 -c init.defaultBranch=main "
	steps := []string{
		"ulimit -f " + strconv.FormatInt(j.budget.MaxFileBytes/fileBlock, 10),
		`mkdir -p "$CODEX_HOME"`,
		`printf '%s' "$1" >"$CODEX_HOME/config.toml"`,
		"shift",
	}
	if !j.ReadOnlyWorkspace {
		steps = append(steps, git+"init -q")
	}
	if j.Setup.Bootstrap != "" {
		steps = append(steps, "{\n"+j.Setup.Bootstrap+"\n}")
	}
	if !j.ReadOnlyWorkspace {
		steps = append(steps, git+"add -A", git+"commit -q --allow-empty --no-verify -m seed")
	}
	return strings.Join(append(steps, n.entry+`"$@"`), " && ")
}

// relayEntry becomes the relay, which becomes the parent of codex once it listens.
func relayEntry(port int, socket string) string {
	return fmt.Sprintf("exec %s relay --listen 127.0.0.1:%d --connect %s -- ", inRelay, port, path.Join(inBroker, socket))
}

// prepareInput is what a preparation is told.
func (j *job) prepareInput() PrepareInput {
	return PrepareInput{Image: j.Image, Workspace: j.Workspace, SourceRoot: j.SourceRoot, RunID: j.RunID, Budget: j.budget}
}
