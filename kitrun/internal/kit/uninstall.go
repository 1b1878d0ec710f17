package kit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
)

// Removed is what Uninstall did.
type Removed struct {
	Path      string // where the copy was
	Warnings  []string
	Recovered Recovery
}

// Uninstall takes a kit out of a destination (kit §5).
func (k *Keeper) Uninstall(ctx context.Context, id, dest string) (out Removed, err error) {
	if err := CheckID(id); err != nil {
		return out, err
	}
	dest, err = Resolve(dest)
	if err != nil {
		return out, err
	}
	p, err := look(dest)
	if err != nil {
		return out, err
	}
	defer p.close()
	out.Path = p.kitRoot(id)
	reg, err := readRegistry(p.local)
	if err != nil {
		return out, err
	}
	if len(reg.find(id)) == 0 {
		_, err := one(reg, id, dest)
		return out, err
	}
	if p.repos == nil { // registered, and all copies are gone
		if p.repos, err = p.local.Ensure(reposName); err != nil {
			return out, unsafePath(err)
		}
	}
	l, err := acquire(p)
	if err != nil {
		return out, err
	}
	defer func() {
		if e := l.release(); e != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("the lock directory could not be removed: %v", e))
		}
	}()
	err = k.remove(ctx, l, id, &out)
	return out, err
}

// remove does it on a registry that nobody else writes.
func (k *Keeper) remove(ctx context.Context, l *lock, id string, out *Removed) error {
	p := l.place
	reg, err := readRegistry(p.local)
	if err != nil {
		return err
	}
	if out.Recovered, err = k.recover(ctx, l, reg); err != nil {
		return notRemoved(id, err)
	}
	if len(reg.find(id)) == 0 {
		_, err := one(reg, id, p.dest)
		return err
	}
	if err := k.noRun(ctx, p, id); err != nil {
		return err
	}
	aside := k.name(id, "old")
	err = p.repos.Rename(id, aside)
	present := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return notRemoved(id, err)
	}
	crashpoint.At("kit.removed")
	reg.drop(id)
	if err := reg.write(p.local, k.temporary()); err != nil {
		return notRemoved(id, errors.Join(err, back(p, present, aside, id)))
	}
	if err := p.local.Sync(); err != nil {
		return notRemoved(id, err)
	}
	crashpoint.At("kit.unregistered")
	if err := p.repos.RemoveAll(context.WithoutCancel(ctx), aside); err != nil {
		out.Warnings = append(out.Warnings, fmt.Sprintf("kit '%s' is uninstalled, and its copy could not be removed: %v", id, err))
	}
	return nil
}

func notRemoved(id string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if _, ok := fault.As(err); ok {
		return err
	}
	return fault.New(fault.KitInstall, "uninstall kit '%s': %w", id, err)
}
