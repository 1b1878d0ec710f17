package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/supervise"
)

// idle refuses while the lease's shim lives.
func (p *Place) idle(what string) error {
	inc, err := supervise.Recorded(p.layout.Runtime)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		alive, unsure := Alive(inc)
		if !alive && unsure == nil {
			return nil
		}
		err = errors.Join(unsure, errors.New("its shim lives"))
	}
	return fault.New(fault.CleanupFailed, "%s the lease %s: %w", what, p.id, cause(err))
}

// Wipe removes the runtime directory.
func (p *Place) Wipe() error {
	if err := p.idle("wipe"); err != nil {
		return err
	}
	if err := removeTree(p.layout.Runtime); err != nil {
		return unavailable("wipe the lease %s: %w", p.id, cause(err))
	}
	return nil
}

// Release removes what Make and Prepare made, and nothing else: the directory with
// something else in it stays, and that is an error. What is not there any more is
// none.
func (p *Place) Release() error {
	if err := p.idle("release"); err != nil {
		return err
	}
	l := p.layout
	for _, path := range []string{l.Runtime, l.Workspace, l.Home, l.Temp, l.Harness} {
		if err := removeTree(path); err != nil {
			return unavailable("release the lease %s: %w", p.id, cause(err))
		}
	}
	left, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && slices.ContainsFunc(left, func(e fs.DirEntry) bool { return e.Name() != lockName }) {
		err = errors.New("there is something else in its directory")
	}
	if err == nil { // the lock last: until then the next try finds the lease
		err = os.RemoveAll(p.dir)
	}
	if err != nil {
		return unavailable("release the lease %s: %w", p.id, cause(err))
	}
	return nil
}

// removeTree removes a directory with all in it, also what its daemon closed
// against its own user. Links are removed, not followed.
func removeTree(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, _ error) error { // before a directory is read
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, private)
		}
		return nil
	})
	return os.RemoveAll(path)
}
