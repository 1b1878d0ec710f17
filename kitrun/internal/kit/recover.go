package kit

import (
	"context"
	"regexp"
	"slices"

	"drawbridge/kitrun/internal/tree"
)

// leftover are the names beside the copies that an interrupted change leaves: of
// ours, and of the kits' public tool, which takes the same lock.
var leftover = regexp.MustCompile(`^\.([a-z][a-z0-9-]*)\.(?:(?:new|old)-[0-9a-f]+|flow-agents-[0-9]+-[0-9a-f]{12}\.(?:tmp|old))$`)

// innerLock is a second lock of the public tool, held only under the first.
var innerLock = regexp.MustCompile(`^\.[a-z][a-z0-9-]*\.flow-agents\.lock$`)

// registryTemporary are registries that were never renamed.
var registryTemporary = regexp.MustCompile(`^\.installed-kits\.json\.new-[0-9a-f]+$`)

// Recovery is what was found of changes that were interrupted, by kit id.
type Recovery struct {
	Cleaned  []string // the installed copy was right; the rest was deleted
	Restored []string // the copy that the registry names got its place back
	Required []string // no copy matches the registry; nothing was deleted
}

// recover puts right what an interrupted change left. It runs under the lock, so
// whatever it finds is nobody's work in progress.
func (k *Keeper) recover(ctx context.Context, l *lock, reg *registry) (Recovery, error) {
	var out Recovery
	p := l.place
	names, err := p.local.List()
	if err != nil {
		return out, err
	}
	for _, name := range names {
		if registryTemporary.MatchString(name) {
			if err := p.local.Unlink(name); err != nil {
				return out, err
			}
		}
	}
	left, err := leftovers(p)
	if err != nil {
		return out, err
	}
	for _, of := range left {
		done, err := k.recoverKit(ctx, p, reg, of)
		if err != nil {
			return out, err
		}
		list := map[string]*[]string{cleaned: &out.Cleaned, restored: &out.Restored, required: &out.Required}[done]
		*list = append(*list, of.id)
	}
	return out, nil
}

// left are the leftovers of one kit.
type left struct {
	id    string
	names []string
}

// leftovers finds what is left, by kit.
func leftovers(p *place) (out []left, err error) {
	if p.repos == nil {
		return nil, nil
	}
	names, err := p.repos.List()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		m := leftover.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		i := slices.IndexFunc(out, func(l left) bool { return l.id == m[1] })
		if i < 0 {
			i, out = len(out), append(out, left{id: m[1]})
		}
		out[i].names = append(out[i].names, name)
	}
	return out, nil
}

const (
	cleaned  = "cleaned"
	restored = "restored"
	required = "required"
)

func (k *Keeper) recoverKit(ctx context.Context, p *place, reg *registry, of left) (string, error) {
	entries := reg.find(of.id)
	// Without an entry the kit is not installed, and no copy can be right.
	done := cleaned
	if len(entries) > 0 && !matches(ctx, p, of.id, entries) {
		i := slices.IndexFunc(of.names, func(name string) bool { return matches(ctx, p, name, entries) })
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if i < 0 {
			return required, nil
		}
		aside := k.name(of.id, "old")
		if _, err := p.repos.Stat(of.id); err == nil {
			if err := p.repos.Rename(of.id, aside); err != nil {
				return "", err
			}
			of.names = append(of.names, aside)
		}
		if err := p.repos.Rename(of.names[i], of.id); err != nil {
			return "", err
		}
		if err := p.repos.Sync(); err != nil {
			return "", err
		}
		of.names = slices.Delete(of.names, i, i+1)
		done = restored
	}
	for _, name := range of.names {
		if err := p.repos.RemoveAll(ctx, name); err != nil {
			return "", err
		}
	}
	return done, nil
}

// matches reports whether the tree called name has a hash that an entry records.
func matches(ctx context.Context, p *place, name string, entries []Entry) bool {
	dir, err := p.repos.Open(name)
	if err != nil {
		return false
	}
	defer dir.Close()
	seen, err := dir.Hash(ctx, tree.Keep{})
	return err == nil && slices.ContainsFunc(entries, func(e Entry) bool { return e.Hash() == seen.Hash })
}

// removeInnerLocks removes what the public tool left of its second lock. It holds
// that one only while it holds the first, which is ours now.
func removeInnerLocks(p *place) error {
	if p.repos == nil {
		return nil
	}
	names, err := p.repos.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if innerLock.MatchString(name) {
			if err := p.repos.Rmdir(name); err != nil {
				return err
			}
		}
	}
	return nil
}
