// Package launch is what happens to a station's spec before its daemon starts: it
// is read strictly, held against its profile, its command searched for secrets and
// hashed, the daemon's environment built from nothing, its workspace copied with a
// record of what was copied, and a harness from outside verified (station §6).
//
// Everything here refuses before a side effect that outlives it. stationd calls it
// in the order of station §6.8: Parse, Profiles.Resolve and Check before a row
// exists, Sync and Obtain under the attempt's Store lease, Environment and Fill
// when the port is known. The package owns no file but what Sync and Obtain are
// told to fill.
//
// modelAccess exists as a name to be refused; there is no code behind it.
package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/strictjson"
)

// Command is what the daemon is: an argument list, or text for /bin/sh.
type Command struct {
	Argv  []string `json:"argv"`
	Shell string   `json:"shell"`
}

// Modes of a Command, as evidence names them.
const (
	Argv  = "argv"
	Shell = "shell"
)

// Mode says which of the two it is.
func (c Command) Mode() string {
	if c.Shell != "" {
		return Shell
	}
	return Argv
}

// Words are the arguments as they were written, placeholders included.
func (c Command) Words() []string {
	if c.Shell != "" {
		return []string{c.Shell}
	}
	return slices.Clone(c.Argv)
}

// Redacted are the words as evidence may show them.
func (c Command) Redacted(r *redact.Redactor) []string {
	out := c.Words()
	for i, w := range out {
		out[i] = r.Text(w)
	}
	return out
}

// Hash identifies a command: SHA-256, as hexadecimal, of the canonical JSON of its
// mode, arguments before placeholders are filled, working directory in the
// workspace, names of variables and the harness's digest ("" for none).
func Hash(c Command, workdir string, envNames []string, artifactSHA256 string) (string, error) {
	names := slices.Sorted(slices.Values(envNames))
	data, err := strictjson.Canonical(map[string]any{
		"mode": c.Mode(), "argv": c.Words(), "workdir": workdirOf(workdir), "envNames": slices.Compact(names), "artifactSha256": artifactSHA256,
	})
	if err != nil {
		return "", fault.New(fault.SpecInvalid, "hash the command: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Place is where a daemon runs.
type Place struct {
	Workspace string // absolute
	Workdir   string // in it
	Port      int
}

// Dir is the daemon's working directory.
func (p Place) Dir() string { return filepath.Join(p.Workspace, p.Workdir) }

// Fill gives the argument list to execute: placeholders filled, and the program
// absolute. With an artifact the file is the artifact, whatever the first argument.
func (c Command) Fill(p Place, artifact bool) []string {
	fill := strings.NewReplacer("{port}", strconv.Itoa(p.Port), "{host}", "127.0.0.1", "{workdir}", p.Dir())
	if c.Shell != "" {
		return []string{"/bin/sh", "-c", fill.Replace(c.Shell)}
	}
	out := make([]string, len(c.Argv))
	for i, a := range c.Argv {
		out[i] = fill.Replace(a)
	}
	if !artifact && !filepath.IsAbs(out[0]) {
		out[0] = filepath.Join(p.Dir(), out[0])
	}
	return out
}

// workdirOf is the one form of a path in the workspace.
func workdirOf(dir string) string {
	if dir == "" {
		return "."
	}
	return path.Clean(dir)
}
