package worker

import (
	"encoding/json"

	"drawbridge/kitrun/internal/storage"
)

// Schema of a receipt. Names and meanings are those that readers of seed 003's
// receipts know; more members may come, none changes.
const (
	ReceiptSchema  = "kontour.flow-agents.docker_worker_receipt"
	ReceiptVersion = "1.0"
)

// Receipt proves what was run and what was kept of it; not that the work is good,
// and not which physical model did it.
type Receipt struct {
	Schema           string   `json:"schema"`
	Version          string   `json:"version"`
	Completed        bool     `json:"completed"`
	Observed         Facts    `json:"observed"`
	StorageViolation *string  `json:"storage_violation"`
	Terminal         Terminal `json:"terminal"`
	ProviderThreadID *string  `json:"provider_thread_id"`
	Usage            Usage    `json:"usage"`
	Final            *string  `json:"final"`
	ContainerRemoved bool     `json:"container_removed"`
	StdoutDigest     string   `json:"stdout_digest"`
	StderrDigest     string   `json:"stderr_digest"`
	StartedAt        string   `json:"started_at"`
	EndedAt          string   `json:"ended_at"`

	// Failure is what Codex said of a turn that it gave up; "": nothing. The record
	// has it in the output, so that the receipt does not repeat it.
	Failure string `json:"-"`
}

// Facts are what was observed of the container, its image and its surroundings.
type Facts struct {
	ExecutionOwner       *string             `json:"execution_owner"`
	InvocationID         string              `json:"invocation_id"`
	ContainerID          string              `json:"container_id"`
	Image                string              `json:"image"`
	ArgvModel            string              `json:"argv_model"`
	ReasoningEffort      string              `json:"reasoning_effort"`
	ReasoningObservation string              `json:"reasoning_observation"`
	ModelObservation     string              `json:"model_observation"`
	Provider             string              `json:"provider"`
	ProviderObservation  string              `json:"provider_observation"`
	Harness              string              `json:"harness"`
	HarnessVersion       *string             `json:"harness_version"`
	EntrypointDigest     *string             `json:"cli_entrypoint_digest"`
	StorageAdmission     storage.Observation `json:"storage_admission"`
	CanonicalWorkspace   json.RawMessage     `json:"canonical_workspace"`
	UnitScope            json.RawMessage     `json:"unit_scope"`
	SourceForkDigest     string              `json:"source_fork_digest"`
	SourceForkAlgorithm  string              `json:"source_fork_digest_algorithm"`
	ReadOnlyWorkspace    bool                `json:"read_only_workspace"`
	ContextDigest        string              `json:"context_digest"`
	InitialPromptDigest  string              `json:"initial_prompt_digest"`
	StdinDigest          string              `json:"stdin_digest"`
	HostSetup            json.RawMessage     `json:"host_setup"`
	Mounts               []ReceiptMount      `json:"mounts"`
	Network              string              `json:"network"`
	NetworkMode          string              `json:"network_mode"`
	NetworkHostServices  string              `json:"network_host_services"`
	ExtraHosts           []string            `json:"extra_hosts"`
	ReadOnlyRoot         bool                `json:"read_only_root"`
	HostIdentity         HostIdentity        `json:"host_identity"`
	ForbiddenRoots       []ForbiddenRoot     `json:"forbidden_mount_roots"`
	ControllerMounted    *bool               `json:"controller_mounted"`
	HiddenOraclesMounted *bool               `json:"hidden_oracles_mounted"`
	CredentialsMounted   *bool               `json:"credentials_mounted"`
}

// ReceiptMount is one observed mount.
type ReceiptMount struct {
	Destination string `json:"destination"`
	Source      string `json:"source"`
	RW          bool   `json:"rw"`
}

// HostIdentity says as whom the container ran.
type HostIdentity struct {
	UID             int      `json:"uid"` // of kitrun
	GID             int      `json:"gid"`
	ContainerUser   string   `json:"container_user"` // as inspected; "unverified" on Docker Desktop
	UsernsMode      string   `json:"userns_mode"`
	SecurityOptions []string `json:"daemon_security_options"`
}

// Terminal is how the container ended.
type Terminal struct {
	Status    *int64  `json:"status"` // null: no exit was observed
	Timeout   bool    `json:"timeout"`
	Overflow  bool    `json:"overflow"`
	Cancelled bool    `json:"cancelled"`
	OOM       bool    `json:"oom"`
	Signal    *string `json:"signal"`
}

// Usage is what the turn reported to have used.
type Usage struct {
	Complete        bool // false: nothing was measured, and no count is meant
	InputTokens     int64
	OutputTokens    int64
	CachedInput     *int64 // nil: not reported
	ReasoningOutput *int64
	CacheWriteInput *int64
}

// Sources of a Usage.
const (
	usageMeasured    = "codex-turn-completed"
	usageUnavailable = "unavailable"
)

// MarshalJSON writes counts only when they were measured.
func (u Usage) MarshalJSON() ([]byte, error) {
	if !u.Complete {
		return json.Marshal(struct {
			Complete bool   `json:"complete"`
			Source   string `json:"source"`
		}{false, usageUnavailable})
	}
	return json.Marshal(struct {
		Complete        bool   `json:"complete"`
		Source          string `json:"source"`
		InputTokens     int64  `json:"input_tokens"`
		OutputTokens    int64  `json:"output_tokens"`
		CachedInput     *int64 `json:"cached_input_tokens"`
		ReasoningOutput *int64 `json:"reasoning_output_tokens,omitempty"`
		CacheWriteInput *int64 `json:"cache_write_input_tokens,omitempty"`
	}{true, usageMeasured, u.InputTokens, u.OutputTokens, u.CachedInput, u.ReasoningOutput, u.CacheWriteInput})
}
