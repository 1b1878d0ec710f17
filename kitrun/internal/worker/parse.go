package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/redact"
	"drawbridge/shared/strictjson"
)

// Bounds of the JSON form of options: it may hold prompt and metadata.
const (
	maxOptions = 48 << 20
	maxTimeout = 24 * time.Hour
)

// optionsJSON is the JSON form of Options (worker §2). Values that have a rule of
// their own stay raw until it is their turn, so that an error can name them.
type optionsJSON struct {
	Image             string           `json:"image"`
	Workspace         string           `json:"workspace"`
	SourceRoot        string           `json:"sourceRoot"`
	ContextFile       string           `json:"contextFile"`
	ArtifactRoot      string           `json:"artifactRoot"`
	ProviderProxy     *proxyJSON       `json:"providerProxy"`
	Model             string           `json:"model"`
	TimeoutMs         *int64           `json:"timeoutMs"`
	ReasoningEffort   string           `json:"reasoningEffort"`
	Network           string           `json:"network"`
	ReadOnlyWorkspace bool             `json:"readOnlyWorkspace"`
	InvocationID      string           `json:"invocationId"`
	RunID             string           `json:"runId"`
	OwnerID           string           `json:"ownerId"`
	WorkspaceSetup    *setupJSON       `json:"workspaceSetup"`
	StorageBudget     *budgetJSON      `json:"storageBudget"`
	ForbiddenRoots    *[]ForbiddenRoot `json:"forbiddenMountRoots"`
	Limits            Limits           `json:"limits"`
	User              string           `json:"user"`
}

type proxyJSON struct {
	BaseURL    string `json:"baseUrl"`
	Capability string `json:"capability"`
	Model      string `json:"model"`
}

type setupJSON struct {
	Prepare *struct {
		Argv     []string `json:"argv"`
		TimeoutS *float64 `json:"timeout_s"`
	} `json:"prepare"`
	Mounts      []Overlay         `json:"mounts"`
	Bootstrap   json.RawMessage   `json:"bootstrap"` // see textOf
	Prompt      json.RawMessage   `json:"prompt"`
	Metadata    json.RawMessage   `json:"metadata"`
	Environment map[string]string `json:"environment"`
}

type budgetJSON struct {
	Roots        []string `json:"roots"`
	MaxBytes     *int64   `json:"max_bytes"`
	MaxEntries   *int64   `json:"max_entries"`
	MaxFileBytes *int64   `json:"max_file_bytes"`
	MinFreeBytes *int64   `json:"min_free_bytes"`
}

// ParseOptions reads the JSON form of options, strictly: unknown members, members
// that are there twice and values of another type are refused as option_invalid.
// Files that stand for a text are read. What the values mean is checked by Run; a
// capability may be absent, for the caller to fill in.
func ParseOptions(data []byte) (Options, error) {
	var in optionsJSON
	if err := strictjson.Decode(data, &in, strictjson.Limits{MaxBytes: maxOptions, MaxDepth: 64}); err != nil {
		return Options{}, unreadable(data, err)
	}
	o := Options{
		Image: in.Image, Workspace: in.Workspace, SourceRoot: in.SourceRoot, ContextFile: in.ContextFile,
		ArtifactRoot: in.ArtifactRoot, Model: in.Model, ReasoningEffort: in.ReasoningEffort, Network: in.Network,
		ReadOnlyWorkspace: in.ReadOnlyWorkspace, InvocationID: in.InvocationID, RunID: in.RunID, OwnerID: in.OwnerID,
		Limits: in.Limits, User: in.User,
	}
	if in.TimeoutMs != nil {
		if *in.TimeoutMs < 1 || *in.TimeoutMs > maxTimeout.Milliseconds() {
			return Options{}, invalid("timeoutMs", "it is %d, not 1 to %d", *in.TimeoutMs, maxTimeout.Milliseconds())
		}
		o.Timeout = time.Duration(*in.TimeoutMs) * time.Millisecond
	}
	if p := in.ProviderProxy; p != nil {
		o.ProviderProxy = &ProviderProxy{BaseURL: p.BaseURL, Capability: redact.NewSecret(p.Capability), Model: p.Model}
	}
	if in.ForbiddenRoots != nil {
		o.ForbiddenRoots = append([]ForbiddenRoot{}, *in.ForbiddenRoots...)
	}
	if b := in.StorageBudget; b != nil {
		o.Storage = b.budget()
	}
	if in.WorkspaceSetup != nil {
		setup, err := in.WorkspaceSetup.setup()
		if err != nil {
			return Options{}, err
		}
		o.Setup = setup
	}
	return o, nil
}

// unreadable names the option at which reading ended, and where that is.
func unreadable(data []byte, err error) error {
	var e *strictjson.Error
	name := "options"
	if errors.As(err, &e) && e.Pointer != "" {
		// The first name comes from outside: it is shown only when it is one of ours.
		first, _, _ := strings.Cut(e.Pointer[1:], "/")
		if optionNames[first] {
			name = strings.ReplaceAll(strings.TrimPrefix(e.Pointer, "/"), "/", ".")
		}
	}
	if e == nil || e.Offset <= 0 || e.Offset > int64(len(data)) {
		return invalid(name, "%w", err)
	}
	before := data[:e.Offset]
	out := invalid(name, "%w, line %d, column %d", err, bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
	if e.Kind == strictjson.Unknown {
		if near := nearest(strings.TrimPrefix(e.Pointer, "/")); near != "" {
			return out.WithHint("is %s meant?", near)
		}
	}
	return out
}

// nearest gives the option that a name differs from in case and underscores, or by
// two letters that changed places; "": there is none.
func nearest(name string) string {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "") }
	given := plain(name)
	for _, option := range sortedKeys(optionNames) {
		want := plain(option)
		if given == want {
			return option
		}
		for i := 0; i+1 < len(given); i++ {
			if given[:i]+given[i+1:i+2]+given[i:i+1]+given[i+2:] == want {
				return option
			}
		}
	}
	return ""
}

// optionNames are the members of optionsJSON.
var optionNames = func() map[string]bool {
	names := map[string]bool{}
	for _, n := range strings.Fields(`image workspace sourceRoot contextFile artifactRoot providerProxy model timeoutMs reasoningEffort
		network readOnlyWorkspace invocationId runId ownerId workspaceSetup storageBudget forbiddenMountRoots limits user`) {
		names[n] = true
	}
	return names
}()

func (b *budgetJSON) budget() *StorageBudget {
	out := &StorageBudget{Roots: b.Roots, Budget: storage.DefaultBudget()}
	for _, f := range []struct {
		to   *int64
		from *int64
	}{
		{&out.MaxBytes, b.MaxBytes}, {&out.MaxEntries, b.MaxEntries},
		{&out.MaxFileBytes, b.MaxFileBytes}, {&out.MinFreeBytes, b.MinFreeBytes},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return out
}

func (s *setupJSON) setup() (*Setup, error) {
	out := &Setup{Mounts: s.Mounts, Environment: s.Environment, Metadata: s.Metadata}
	var err error
	if out.Bootstrap, err = textOf("workspaceSetup.bootstrap", s.Bootstrap, maxBootstrap); err != nil {
		return nil, err
	}
	if out.Prompt, err = textOf("workspaceSetup.prompt", s.Prompt, maxPrompt); err != nil {
		return nil, err
	}
	if out.Prompt == "" && s.Prompt != nil {
		return nil, invalid("workspaceSetup.prompt", "it is empty")
	}
	if s.Prepare != nil {
		timeout := defaultPrepare
		if s.Prepare.TimeoutS != nil {
			timeout = time.Duration(*s.Prepare.TimeoutS * float64(time.Second))
		}
		if out.Prepare, err = PrepareCommand(s.Prepare.Argv, timeout); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// textOf reads a string, or {"file":"/abs/path"} whose content it is; "" when
// there is neither.
func textOf(option string, raw json.RawMessage, most int64) (string, error) {
	if raw == nil {
		return "", nil
	}
	if isText(raw) {
		return text(raw), nil
	}
	var f struct {
		File string `json:"file"`
	}
	if err := strictjson.Decode(raw, &f, strictjson.Limits{}); err != nil || !filepath.IsAbs(f.File) {
		return "", invalid(option, `it is neither a string nor {"file": an absolute path}`)
	}
	data, err := readRegular(f.File, most)
	if err != nil {
		return "", invalid(option, "read its file: %w", err)
	}
	return string(data), nil
}

// readRegular reads a file that is no link and no longer than most.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, bare(err)
	case !st.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case st.Size() > most:
		return nil, tooLong(most)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, bare(err)
	}
	if int64(len(data)) > most {
		return nil, tooLong(most)
	}
	return data, nil
}

// PrepareCommand makes a preparation of a program that is run without a shell,
// with PATH as its environment and the input as JSON on its stdin. It fails when
// the program does not exit with 0 within timeout.
func PrepareCommand(argv []string, timeout time.Duration) (func(context.Context, PrepareInput) error, error) {
	return prepareCommand(argv, timeout)
}
