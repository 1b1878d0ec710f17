package profile

import (
	_ "embed" // for the two documents below
	"fmt"
	"slices"
	"strings"
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

// BuiltIns gives the registry of this release. No Host Profile has been
// reviewed for shipping yet, so it is empty.
func BuiltIns() Registry { return Registry{} }

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
