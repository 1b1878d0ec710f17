package kit

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

const schemaVersion = "1.0"

var hashForm = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)

// Entry is one kit of the registry, as written.
type Entry struct{ Members strictjson.Object }

// Text gives a member that is a string, "" for any other.
func (e Entry) Text(name string) string { return text(e.Members, name) }

// ID, Hash and Source are what the entry says, unchecked.
func (e Entry) ID() string     { return e.Text("id") }
func (e Entry) Hash() string   { return e.Text("hash") }
func (e Entry) Source() string { return e.Text("source") }

// registry is the file of installed kits. Members that nobody here knows stay as
// they are, and so does the order.
type registry struct {
	members strictjson.Object
	kits    []any
}

// readRegistry reads the registry that stands in local; without a file, or without
// local, it is empty.
func readRegistry(local *tree.Dir) (*registry, error) {
	empty := &registry{members: strictjson.Object{{Name: "schema_version", Value: schemaVersion}, {Name: "kits", Value: []any{}}}}
	if local == nil {
		return empty, nil
	}
	data, err := local.ReadFile(registryName, maxDocument)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return nil, badRegistry("%w", err)
	}
	return parseRegistry(data)
}

func parseRegistry(data []byte) (*registry, error) {
	doc, _, err := strictjson.ParseOrdered(data, strictjson.Limits{MaxBytes: maxDocument, MaxDepth: maxNesting})
	if err != nil {
		return nil, badRegistry("%w", err)
	}
	members, ok := doc.(strictjson.Object)
	if !ok {
		return nil, badRegistry("it is not a JSON object")
	}
	if text(members, "schema_version") != schemaVersion {
		return nil, badRegistry(`schema_version is not "1.0"`)
	}
	list, _ := members.Get("kits")
	kits, ok := list.([]any)
	if !ok {
		return nil, badRegistry("it has no list kits")
	}
	return &registry{members, kits}, nil
}

func badRegistry(format string, args ...any) error {
	return fault.New(fault.KitRegistry, "read the registry of installed kits: "+format, args...).
		WithHint("kits/local/%s in the destination is put right by hand, or moved away and the kits installed again", registryName)
}

// entries are the entries that are objects, in the order of the file.
func (r *registry) entries() (out []Entry) {
	for _, v := range r.kits {
		if o, ok := v.(strictjson.Object); ok {
			out = append(out, Entry{o})
		}
	}
	return out
}

// sorted are the entries by id.
func (r *registry) sorted() []Entry {
	out := r.entries()
	slices.SortStableFunc(out, func(a, b Entry) int { return strings.Compare(a.ID(), b.ID()) })
	return out
}

// find gives the entries of one kit; a sound registry has at most one.
func (r *registry) find(id string) (out []Entry) {
	for _, e := range r.entries() {
		if e.ID() == id {
			out = append(out, e)
		}
	}
	return out
}

// put replaces the entry of the same id, or appends. Further entries of that id
// go.
func (r *registry) put(e Entry) {
	var kits []any
	placed := false
	for _, v := range r.kits {
		switch {
		case !isEntry(v, e.ID()):
			kits = append(kits, v)
		case !placed:
			kits, placed = append(kits, e.Members), true
		}
	}
	if !placed {
		kits = append(kits, e.Members)
	}
	r.kits = kits
}

func isEntry(v any, id string) bool {
	o, ok := v.(strictjson.Object)
	return ok && text(o, "id") == id
}

// drop removes the entries of one kit.
func (r *registry) drop(id string) {
	r.kits = slices.DeleteFunc(slices.Clone(r.kits), func(v any) bool { return isEntry(v, id) })
}

// bytes is the file, byte for byte as the kits' public tool writes it.
func (r *registry) bytes() ([]byte, error) {
	members := slices.Clone(r.members)
	for i := range members {
		if members[i].Name == "kits" {
			kits := r.kits
			if kits == nil {
				kits = []any{}
			}
			members[i].Value = kits
		}
	}
	data, err := strictjson.Indented(members)
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// write replaces the file; the caller makes it durable.
func (r *registry) write(local *tree.Dir, temporary string) error {
	info, err := local.Stat(registryName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Regular():
		return badRegistry("it is not a regular file")
	}
	data, err := r.bytes()
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return badRegistry("it would become larger than %d bytes", maxDocument)
	}
	return local.Replace(registryName, temporary, data)
}
