// Package storage looks at the directories that a worker may write to: how many
// bytes and entries they hold, how large the largest file is, how much room the
// file system has left, and whether all of it is within a budget (worker §7).
//
// The walk is made for trees that somebody else changes meanwhile. It goes from
// descriptor to descriptor, follows no link and never resolves a path below a
// root, so that renaming cannot lead it out. Only directories and regular files
// are accepted; anything else is a reason to refuse. It reads no content, and no
// name, path or content is in what it gives back. It writes nothing, and what it
// finds too large is never cleaned up.
//
// A caller makes its Roots once, admits them before a worker starts, watches them
// while it runs, and inspects them a last time after the end.
package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/shared/fault"
)

// Bounds of an inspection.
const (
	MaxRoots = 16
	maxDepth = 128 // directories below a root
	limit    = 10 * time.Second
)

// Reasons not to allow what was observed.
const (
	UnsupportedDirectory = "unsupported_writable_directory" // cannot be entered, on another device, too deep
	UnsupportedEntry     = "unsupported_writable_entry"     // link, FIFO, socket, device
	FreeFloor            = "filesystem_free_floor"
	OverBytes            = "writable_byte_budget"
	OverEntries          = "writable_entry_budget"
	OverFile             = "writable_file_budget"

	// InspectionFailed is for a Watcher alone: what cannot be seen is not allowed.
	InspectionFailed = "writable_scope_inspection_failed"
)

// Budget is what the directories may hold together. A value equal to its bound is
// allowed.
type Budget struct {
	MaxBytes     int64 `json:"max_bytes"`
	MaxEntries   int64 `json:"max_entries"`
	MaxFileBytes int64 `json:"max_file_bytes"`
	MinFreeBytes int64 `json:"min_free_bytes"` // on each file system, for whoever is not root
}

// DefaultBudget is the budget of a worker that names none.
func DefaultBudget() Budget {
	return Budget{MaxBytes: 128 << 20, MaxEntries: 10_000, MaxFileBytes: 16 << 20, MinFreeBytes: 4 << 30}
}

// Check refuses bounds below zero, by the name of the first.
func (b Budget) Check() error {
	for _, bound := range []struct {
		name  string
		value int64
	}{
		{"max_bytes", b.MaxBytes}, {"max_entries", b.MaxEntries}, {"max_file_bytes", b.MaxFileBytes}, {"min_free_bytes", b.MinFreeBytes},
	} {
		if bound.value < 0 {
			return fmt.Errorf("%s is %d, less than 0", bound.name, bound.value)
		}
	}
	return nil
}

// Observation is what one inspection saw, and its verdict. An inspection ends at
// the first reason, so the sums of one that is not allowed are those up to there.
type Observation struct {
	Allowed          bool   `json:"allowed"`
	Reason           string `json:"reason"` // "" when allowed; null in JSON
	ObservedBytes    int64  `json:"observed_bytes"`
	ObservedEntries  int64  `json:"observed_entries"`
	LargestFileBytes int64  `json:"largest_file_bytes"`
	FreeBytes        int64  `json:"free_bytes"` // the least of all file systems
	Budget           Budget `json:"budget"`
}

// MarshalJSON writes an absent reason as null.
func (o Observation) MarshalJSON() ([]byte, error) {
	type sums Observation // without this method
	var reason *string
	if o.Reason != "" {
		reason = &o.Reason
	}
	return json.Marshal(struct {
		Allowed bool    `json:"allowed"`
		Reason  *string `json:"reason"`
		sums            // the two above hide its own
	}{o.Allowed, reason, sums(o)})
}

// Roots resolves directories to where they really are and drops those that lie
// in another one. The order is kept.
func Roots(dirs []string) ([]string, error) {
	if len(dirs) == 0 || len(dirs) > MaxRoots {
		return nil, unavailable(fmt.Errorf("%d directories given, not 1 to %d", len(dirs), MaxRoots))
	}
	var real []string
	for i, path := range dirs {
		dir, err := realDirectory(path)
		if err != nil {
			return nil, unavailable(fmt.Errorf("directory %d of %d: %w", i+1, len(dirs), err))
		}
		real = append(real, dir)
	}
	var out []string
	for i, dir := range real {
		if slices.Contains(real[:i], dir) ||
			slices.ContainsFunc(real, func(other string) bool { return dir != other && paths.Within(dir, other) }) {
			continue
		}
		out = append(out, dir)
	}
	return out, nil
}

func realDirectory(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("a directory is not given by its absolute path")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", bare(err)
	}
	info, err := os.Lstat(real)
	if err != nil {
		return "", bare(err)
	}
	if !info.IsDir() {
		return "", errors.New("not a directory")
	}
	return real, nil
}

// bare takes the path out of an error: it may be private.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return err
}

// Inspect looks at everything below roots, which come from Roots. An error means
// that it could not look (storage_inspector_unavailable), or that ctx has ended.
func Inspect(ctx context.Context, roots []string, b Budget) (Observation, error) {
	if err := b.Check(); err != nil {
		return Observation{}, unavailable(err)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen, err := newWalk(bounded, b).run(roots)
	switch {
	case err == nil:
		return seen, nil
	case ctx.Err() != nil:
		return Observation{}, context.Cause(ctx)
	case bounded.Err() != nil:
		err = fmt.Errorf("not done within %v", limit)
	}
	return Observation{}, unavailable(err)
}

// Admit is Inspect for a worker that is about to start: what is not allowed is an
// error, storage_admission_refused with the reason in its message and details.
func Admit(ctx context.Context, roots []string, b Budget) (Observation, error) {
	seen, err := Inspect(ctx, roots, b)
	if err != nil || seen.Allowed {
		return seen, err
	}
	return seen, fault.New(fault.StorageRefused, "admit storage: %s", seen.Reason).
		With("reason", seen.Reason).With("observation", seen).WithHint("%s", remedies[seen.Reason])
}

// remedies say what an operator can do about a reason.
var remedies = map[string]string{
	UnsupportedDirectory: "a writable directory holds one that cannot be entered, is a mount point, or lies deeper than 128 directories",
	UnsupportedEntry:     "a writable directory holds a symbolic link, FIFO, socket or device; find DIR ! -type f ! -type d lists them",
	FreeFloor:            "free room on the file system, or lower min_free_bytes",
	OverBytes:            "give the worker a smaller copy, or raise max_bytes",
	OverEntries:          "give the worker a smaller copy, or raise max_entries",
	OverFile:             "leave large files out of the copy, or raise max_file_bytes",
}

func unavailable(err error) error {
	return fault.New(fault.StorageInspector, "inspect storage: %w", err).
		WithHint("every directory must exist, be readable by this user and be given by its absolute path")
}
