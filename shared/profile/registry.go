package profile

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Starter is the example document of host-profile §12, byte for byte.
//
//go:embed schema/starter.json
var starter string

//go:embed schema/host-profile-v1.schema.json
var publishedSchema string

// Starter gives the example Profile that an administrator edits.
func Starter() []byte { return []byte(starter) }

// PublishedSchema gives the JSON Schema (draft 2020-12) of the structural part,
// for editors. Parse is the authority.
func PublishedSchema() []byte { return []byte(publishedSchema) }

// A Registry holds the built-in Profiles by id. The zero Registry is empty.
type Registry struct {
	byID map[string]Profile
}

// The built-in Profiles, but for the place where drawbridge lies.
//
//go:embed schema/builtin-*.json
var builtInFiles embed.FS

// bridgeHere stands in them for the bridge beside the running program.
const bridgeHere = "/drawbridge/bridge"

// BuiltIns gives the registry of this release: the Hosts that are called back in
// their own tmux pane, each tested with the real program. Their callback is the
// bridge that lies beside the running program, so their fingerprints differ from
// one installation to the next, and agree between its programs. Where the program
// cannot tell its place there are none.
func BuiltIns() Registry { return builtIns() }

var builtIns = sync.OnceValue(func() Registry {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return Registry{}
	}
	reg, err := builtInsAt(filepath.Join(filepath.Dir(exe), "bridge"))
	if err != nil { // the path is one that no Profile may name
		return Registry{}
	}
	return reg
})

// builtInsAt gives the built-in Profiles with bridge as their executable.
func builtInsAt(bridge string) (Registry, error) {
	path, err := json.Marshal(bridge)
	if err != nil {
		return Registry{}, err
	}
	names, err := fs.Glob(builtInFiles, "schema/builtin-*.json")
	if err != nil {
		return Registry{}, err
	}
	var documents [][]byte
	for _, name := range names {
		data, err := builtInFiles.ReadFile(name)
		if err != nil {
			return Registry{}, err
		}
		documents = append(documents, bytes.Replace(data, []byte(`"`+bridgeHere+`"`), path, 1))
	}
	return NewRegistry(documents...)
}

// NewRegistry parses documents as built-ins: they alone may use the reserved
// ids. Two of one id are refused.
func NewRegistry(documents ...[]byte) (Registry, error) {
	reg := Registry{byID: map[string]Profile{}}
	for i, data := range documents {
		p, err := parse(data, Registry{}, true)
		if err != nil {
			return Registry{}, fmt.Errorf("parse built-in Profile %d: %w", i, err)
		}
		if reg.Has(p.ID()) {
			return Registry{}, fmt.Errorf("built-in Profile %s: registered twice", p.ID())
		}
		reg.byID[p.ID()] = p
	}
	return reg, nil
}

// Has reports whether id is a built-in.
func (r Registry) Has(id string) bool { _, ok := r.byID[id]; return ok }

// Lookup gives the built-in of that id.
func (r Registry) Lookup(id string) (Profile, bool) { p, ok := r.byID[id]; return p, ok }

// List gives the built-ins sorted by id.
func (r Registry) List() []Profile {
	out := make([]Profile, 0, len(r.byID))
	for _, p := range r.byID {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Profile) int { return strings.Compare(a.ID(), b.ID()) })
	return out
}
