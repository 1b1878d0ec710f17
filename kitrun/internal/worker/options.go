package worker

import (
	"context"
	"encoding/json"
	"time"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/redact"
)

// Networks (worker §6).
const (
	NetworkIsolated = "isolated" // the host's own addresses, nothing beyond
	NetworkSocket   = "socket"   // one socket file
	NetworkBridge   = "bridge"   // everything that the host can reach
	NetworkNone     = "none"     // nothing
)

// Kinds of forbidden roots (worker §8).
const (
	KindController   = "controller"
	KindHiddenOracle = "hidden-oracle"
	KindCredentials  = "credentials"
)

// Options say what to run. ParseOptions reads them from JSON; Run checks them.
type Options struct {
	Image         string
	Workspace     string
	SourceRoot    string
	ContextFile   string
	ArtifactRoot  string
	ProviderProxy *ProviderProxy
	Model         string
	Timeout       time.Duration // of the whole run, the preparation included

	ReasoningEffort   string // "" means medium
	Network           string // "" means isolated; on Docker Desktop bridge
	ReadOnlyWorkspace bool
	InvocationID      string // "" means a random one
	RunID             string
	OwnerID           string // "": none
	Setup             *Setup
	Storage           *StorageBudget  // nil means the default budget
	ForbiddenRoots    []ForbiddenRoot // nil means that nothing was inventoried
	Limits            Limits
	User              string // "" and "auto": who runs kitrun; or "UID:GID"

	// BrokerSocket is the socket file of the broker, for the network socket. It has
	// no JSON form: the host knows where its broker listens.
	BrokerSocket string
}

// ProviderProxy is what the worker is lent instead of a credential.
type ProviderProxy struct {
	BaseURL    string // http://host.docker.internal:PORT or …/v1
	Capability redact.Secret
	Model      string // must be the model of the run
}

// Setup is the host's part in preparing a workspace (worker §3). No member may
// come from the output of a model.
type Setup struct {
	Prepare     func(ctx context.Context, in PrepareInput) error // nil: nothing
	Mounts      []Overlay
	Bootstrap   string          // shell, run in the container before codex
	Prompt      string          // "": made of the context
	Metadata    json.RawMessage // copied to the receipt
	Environment map[string]string
}

// PrepareInput is all that a preparation is told.
type PrepareInput struct {
	Image      string         `json:"image"`
	Workspace  string         `json:"workspace"`
	SourceRoot string         `json:"sourceRoot"`
	RunID      string         `json:"runId"`
	Budget     storage.Budget `json:"budget"`
}

// Overlay is a read-only mount below /workspace.
type Overlay struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// StorageBudget bounds what the writable directories may hold.
type StorageBudget struct {
	Roots []string // nil: workspace, artifact root, and the context file's directory
	storage.Budget
}

// ForbiddenRoot is a directory or file of the host that no mount may overlap.
type ForbiddenRoot struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
}

// Limits lower the bounds of the container; zero fields leave the default.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
	TmpBytes    int64   `json:"tmp_bytes"`
}
