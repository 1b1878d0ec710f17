package kit

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Verified is an installed kit that may be run.
type Verified struct {
	ID         string
	KitRoot    string // absolute
	ModulePath string // absolute
	Hash       string // "sha256:…"
	Descriptor Execution
}

// JSON is what `kitrun verify -json` prints.
func (v Verified) JSON() strictjson.Object {
	return strictjson.Object{
		{Name: "id", Value: v.ID},
		{Name: "kit_root", Value: v.KitRoot},
		{Name: "module_path", Value: v.ModulePath},
		{Name: "hash", Value: v.Hash},
		{Name: "descriptor", Value: v.Descriptor.Members},
	}
}

// Verify proves that an installed kit is what was installed and can be run (kit
// §5): nothing of it is run when it gives an error.
func Verify(ctx context.Context, id, dest string) (Verified, error) {
	if err := CheckID(id); err != nil {
		return Verified{}, err
	}
	dest, err := Resolve(dest)
	if err != nil {
		return Verified{}, err
	}
	p, err := look(dest)
	if err != nil {
		return Verified{}, err
	}
	defer p.close()
	reg, err := readRegistry(p.local)
	if err != nil {
		return Verified{}, err
	}
	e, err := one(reg, id, dest)
	if err != nil {
		return Verified{}, err
	}
	in, root, err := p.integrity(ctx, e)
	if err != nil {
		return Verified{}, err
	}
	if root != nil {
		defer root.Close()
	}
	if err := in.refuse(id, dest); err != nil {
		return Verified{}, err
	}
	v := Verified{ID: id, KitRoot: p.kitRoot(id), Hash: in.Observed}
	d, err := executable(root, in.seen)
	if err != nil {
		f, _ := fault.As(err)
		f.Message = "verify kit '" + id + "': " + f.Message
		return Verified{}, f
	}
	v.Descriptor, v.ModulePath = d, filepath.Join(v.KitRoot, filepath.FromSlash(d.Module))
	return v, nil
}

// refuse makes an error of every state but installed.
func (in Integrity) refuse(id, dest string) error {
	code := fault.KitEntry
	switch {
	case in.State == Installed:
		return nil
	case in.State == Missing:
		code = fault.KitMissing
	case in.State == Drifted:
		code = fault.KitDrifted
	case in.Observed == "" && strings.HasPrefix(in.Diagnostic, "cannot"):
		code = fault.KitTree
	}
	return fault.New(code, "verify kit '%s': %s", id, in.Diagnostic).
		With("state", string(in.State)).WithHint("kitrun update %s --dest %s installs it again", id, dest)
}

// executable finds the entry of a copy that was just hashed, by the descriptor
// that was hashed.
func executable(root *tree.Dir, seen tree.Seen) (Execution, error) {
	if seen.Unhashed != "" {
		return Execution{}, fault.New(fault.KitUnhashed, "%s is in the copy, and its hash does not cover it", seen.Unhashed).
			WithHint("remove it, or install the kit again")
	}
	if seen.Kept == nil {
		return Execution{}, notRunnable("it has no kit.json")
	}
	doc, _, err := strictjson.ParseOrdered(seen.Kept, strictjson.Limits{MaxBytes: maxDocument, MaxDepth: maxNesting})
	if err != nil {
		return Execution{}, notRunnable("kit.json: %w", err)
	}
	members, ok := doc.(strictjson.Object)
	if !ok {
		return Execution{}, notRunnable("kit.json is not a JSON object")
	}
	d, err := parseExecution(members)
	switch {
	case err != nil:
		return Execution{}, notRunnable("$.execution: %w", err)
	case d == nil:
		return Execution{}, notRunnable("kit.json declares no execution entry")
	}
	if err := regular(root, strings.Split(d.Module, "/")); err != nil {
		return Execution{}, notRunnable("module %s: %w", d.Module, err)
	}
	return *d, nil
}

func notRunnable(format string, args ...any) error {
	return fault.New(fault.KitNotRunnable, format, args...).
		WithHint("kit.json of a kit that runs has execution with contract, module and export")
}

// regular goes down to a regular file and through no link.
func regular(root *tree.Dir, parts []string) error {
	at := root
	for i, part := range parts {
		info, err := at.Stat(part)
		if err != nil {
			return err
		}
		if i == len(parts)-1 {
			if !info.Regular() {
				return errors.New("it is not a regular file")
			}
			return nil
		}
		next, err := at.Open(part)
		if err != nil {
			return err
		}
		defer next.Close()
		at = next
	}
	return nil
}
