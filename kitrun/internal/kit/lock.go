package kit

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
)

// staleAfter is the age below which nobody may remove a lock directory: the kits'
// public tool cannot be asked whether it is still at work.
const staleAfter = 10 * time.Minute

// lock is the lock directory of a destination, held. The directory excludes the
// public tool too; that its descriptor is locked tells other kitruns that the
// holder lives.
type lock struct {
	place *place
	dir   *tree.Dir
	info  tree.Info
}

// acquire makes the lock directory, or refuses.
func acquire(p *place) (*lock, error) {
	err := p.local.Mkdir(lockName, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.KitLocked, "change %s: its lock directory kits/local/%s is there", p.dest, lockName).
			WithHint("wait until the other install has ended; when it was killed, kitrun unlock --dest %s --yes", p.dest)
	}
	if err != nil {
		return nil, fault.New(fault.KitPath, "make the lock directory: %w", err)
	}
	l, err := adopt(p)
	if err != nil {
		_ = p.local.Rmdir(lockName)
		return nil, fault.New(fault.KitPath, "take the lock directory: %w", err)
	}
	return l, nil
}

// adopt takes the lock directory that is there. It is KitLocked when a kitrun
// lives that has it.
func adopt(p *place) (*lock, error) {
	dir, err := p.local.Open(lockName)
	if err != nil {
		return nil, err
	}
	l := &lock{place: p, dir: dir}
	l.info, err = dir.Stat("")
	if err == nil {
		var ok bool
		if ok, err = dir.TryLock(); err == nil && !ok {
			err = fault.New(fault.KitLocked, "unlock %s: a kitrun that is still at work holds the lock", p.dest).
				WithHint("wait for it, or end it first")
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return l, nil
}

// check refuses to go on when somebody removed the lock meanwhile.
func (l *lock) check() error {
	if l.held() {
		return nil
	}
	return fault.New(fault.KitLocked, "change %s: the lock directory was taken away meanwhile", l.place.dest)
}

func (l *lock) held() bool {
	now, err := l.place.local.Stat(lockName)
	return err == nil && now.Same(l.info)
}

// release removes the lock directory when it is still ours.
func (l *lock) release() error {
	defer l.dir.Close()
	if !l.held() {
		return nil
	}
	return l.place.local.Rmdir(lockName)
}

// Unlocked is what Unlock did.
type Unlocked struct {
	Removed  bool // there was a lock directory
	Recovery Recovery
}

// Unlock removes the lock directory that a killed install left, and puts right
// what it left half done. confirmed is the operator's word that none is at work.
func (k *Keeper) Unlock(ctx context.Context, dest string, confirmed bool) (out Unlocked, err error) {
	dest, err = Resolve(dest)
	if err != nil {
		return out, err
	}
	p, err := look(dest)
	if err != nil {
		return out, err
	}
	defer p.close()
	if p.local == nil {
		return out, nil
	}
	l, err := adopt(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return out, nil
	case err != nil:
		if _, ok := fault.As(err); !ok {
			err = fault.New(fault.KitPath, "unlock %s: %w", dest, err)
		}
		return out, err
	}
	if err := k.mayUnlock(l, confirmed); err != nil {
		l.dir.Close()
		return out, err
	}
	if out.Recovery, err = k.tidy(ctx, l); err != nil {
		l.dir.Close() // the lock directory stays: what it stands for is not put right
		return out, err
	}
	if err := l.release(); err != nil {
		return out, fault.New(fault.KitPath, "unlock %s: %w", dest, err)
	}
	out.Removed = true
	return out, nil
}

// tidy is the recovery of an unlock.
func (k *Keeper) tidy(ctx context.Context, l *lock) (Recovery, error) {
	reg, err := readRegistry(l.place.local)
	if err != nil {
		return Recovery{}, err
	}
	out, err := k.recover(ctx, l, reg)
	if err == nil {
		err = removeInnerLocks(l.place)
	}
	if err != nil && ctx.Err() == nil {
		err = fault.New(fault.KitInstall, "put right %s: %w", l.place.dest, err)
	}
	return out, err
}

func (k *Keeper) mayUnlock(l *lock, confirmed bool) error {
	age := k.now().Sub(time.Unix(0, l.info.ModTime()))
	switch {
	case age < staleAfter:
		return fault.New(fault.KitLocked, "unlock %s: the lock is %s old, not %s", l.place.dest, max(age, 0).Round(time.Second), staleAfter).
			WithHint("an install may still be at work; try again later")
	case !confirmed:
		return fault.New(fault.Usage, "unlock %s: not confirmed", l.place.dest).
			WithHint("the lock is %s old; --yes removes it", age.Round(time.Second))
	}
	return nil
}

func (k *Keeper) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}
