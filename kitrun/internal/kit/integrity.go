package kit

import (
	"context"
	"errors"
	"io/fs"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/strictjson"
)

// Integrity is how the copy of an installed kit compares with its entry.
type Integrity struct {
	State      State
	Recorded   string // hash of the entry, "" when it is none
	Observed   string // hash of the copy, "" when it was not read
	Diagnostic string // why the state is not installed
	seen       tree.Seen
}

// integrity reads the copy of one entry. root stays open for who goes on with it,
// and is nil when the copy could not be read. The error is the end of ctx alone.
func (p *place) integrity(ctx context.Context, e Entry) (in Integrity, root *tree.Dir, err error) {
	id := e.ID()
	in = Integrity{State: Broken, Recorded: e.Hash()}
	if !idForm.MatchString(id) {
		in.Diagnostic = "registry entry has an invalid kit id"
		return in, nil, nil
	}
	if want := reposPath + "/" + id; e.Text("installed_path") != want {
		in.Diagnostic = "installed_path must be the canonical relative path " + want + "; kitrun update " + id + " repairs it"
		return in, nil, nil
	}
	if p.repos == nil {
		err = fs.ErrNotExist
	} else {
		root, err = p.repos.Open(id)
	}
	if err == nil {
		in.seen, err = root.Hash(ctx, tree.Keep{Name: ManifestName, Limit: maxDocument})
	}
	if err != nil {
		if root != nil {
			root.Close()
		}
		switch {
		case ctx.Err() != nil:
			return in, nil, context.Cause(ctx)
		case root == nil && errors.Is(err, fs.ErrNotExist):
			in.State, in.Diagnostic = Missing, "installed kit copy is missing at "+p.kitRoot(id)
		default:
			in.Diagnostic = "cannot safely read the kit at " + p.kitRoot(id) + ": " + err.Error()
		}
		return in, nil, nil
	}
	in.Observed = in.seen.Hash
	switch {
	case !hashForm.MatchString(in.Recorded):
		in.Diagnostic = "registry hash is missing or is not a sha256 digest"
	case in.Recorded != in.Observed:
		in.State, in.Diagnostic = Drifted, "installed kit content does not match the registry hash"
	default:
		in.State = Installed
	}
	return in, root, nil
}

// Status is one installed kit as it is now.
type Status struct {
	Entry Entry
	Integrity
	Recover bool // interrupted changes were found, and none of their copies matches
}

// JSON is the form that the public tool prints, the entry first.
func (s Status) JSON() strictjson.Object {
	o := append(strictjson.Object(nil), s.Entry.Members...)
	set := func(name string, value any) {
		for i := range o {
			if o[i].Name == name {
				o[i].Value = value
				return
			}
		}
		o = append(o, strictjson.Member{Name: name, Value: value})
	}
	set("state", string(s.State))
	set("recorded_hash", orNull(s.Recorded))
	set("observed_hash", orNull(s.Observed))
	if s.Diagnostic != "" {
		set("diagnostic", s.Diagnostic)
	}
	if s.Recover {
		set("recovery_required", true)
	}
	return o
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// List gives the entries of a destination, by id, unchecked.
func List(dest string) ([]Entry, error) {
	dest, err := Resolve(dest)
	if err != nil {
		return nil, err
	}
	p, err := look(dest)
	if err != nil {
		return nil, err
	}
	defer p.close()
	reg, err := readRegistry(p.local)
	if err != nil {
		return nil, err
	}
	return reg.sorted(), nil
}

// Statuses reads the copies of a destination, of one kit when id is not "".
func Statuses(ctx context.Context, dest, id string) ([]Status, error) {
	dest, err := Resolve(dest)
	if err != nil {
		return nil, err
	}
	p, err := look(dest)
	if err != nil {
		return nil, err
	}
	defer p.close()
	reg, err := readRegistry(p.local)
	if err != nil {
		return nil, err
	}
	interrupted, err := leftovers(p)
	if err != nil {
		return nil, unsafePath(err)
	}
	var out []Status
	for _, e := range reg.sorted() {
		if id != "" && e.ID() != id {
			continue
		}
		in, root, err := p.integrity(ctx, e)
		if err != nil {
			return nil, err
		}
		if root != nil {
			root.Close()
		}
		s := Status{Entry: e, Integrity: in}
		if in.State != Installed {
			s.interrupted(ctx, p, reg, interrupted)
		}
		out = append(out, s)
	}
	return out, nil
}

// interrupted adds what an interrupted change has to do with a bad state.
func (s *Status) interrupted(ctx context.Context, p *place, reg *registry, all []left) {
	for _, of := range all {
		if of.id != s.Entry.ID() {
			continue
		}
		for _, name := range of.names {
			if matches(ctx, p, name, reg.find(of.id)) {
				s.Diagnostic += "; the registered copy stands beside it and is put back by the next install, update or unlock"
				return
			}
		}
		s.Recover = true
		s.Diagnostic += "; recovery_required: a change was interrupted, and none of its copies matches the registry"
	}
}
