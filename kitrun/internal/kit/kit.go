// Package kit keeps kits in a workspace: it checks a source, copies it below the
// destination, records its content hash, and proves later that the copy is still
// what was recorded (kit §1–§5). File formats, hash and lock directory are those
// of the kits' public tool, so that both work on one destination.
//
// On disk it owns, below the destination:
//
//	kits/local/installed-kits.json                the registry
//	kits/local/repositories/<id>/                 the copies
//	kits/local/.installed-kits.flow-agents.lock/  there while something is changed
//
// Whatever changes the destination holds the lock directory, and makes the next
// state beside the old one: a copy is complete and durable before it gets its
// name, the registry is replaced by a rename, and what was replaced is deleted
// last. Killed in between, it leaves the lock directory and one of the names
// .<id>.new-* and .<id>.old-*. Unlock, and everything else that takes the lock,
// then lets that copy win whose hash is in the registry; where none is, nothing
// is deleted and recovery_required is reported.
//
// Nothing of a kit is run here, and nothing is fetched but a git source that was
// named.
package kit

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
)

// Names below the destination.
const (
	registryName = "installed-kits.json"
	lockName     = ".installed-kits.flow-agents.lock"
	reposName    = "repositories"
	reposPath    = "kits/local/repositories" // as the registry writes it
)

// ManifestName is the file that makes a directory a kit.
const ManifestName = "kit.json"

// Bounds of the files that are read whole.
const (
	maxDocument = 4 << 20
	maxNesting  = 128
)

// State is what is known of an installed kit's copy.
type State string

// The states of an installed kit.
const (
	Installed State = "installed"
	Missing   State = "missing" // registered, the copy is not there
	Drifted   State = "drifted" // the copy has another hash
	Broken    State = "invalid" // the entry or the copy breaks a rule
)

var idForm = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// CheckID refuses what is no kit id.
func CheckID(id string) error {
	if idForm.MatchString(id) {
		return nil
	}
	return fault.New(fault.KitID, "%q is not a kit id", cut(id)).
		WithHint("a kit id is lower-case letters, digits and dashes, a letter first; kitrun list shows the installed ones")
}

// cut shortens what somebody else wrote, for a message.
func cut(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// Keeper does the work. Its fields may be zero.
type Keeper struct {
	Now   func() time.Time
	NewID func() string // a new part of a name, for what is temporary

	// Live reports whether a run of the kit is under way. Without it none is.
	Live func(ctx context.Context, dest, id string) (bool, error)

	// Wait bounds how long an update waits for runs to end.
	Wait time.Duration
}

// place is a destination whose directories are open. local and repos are nil as
// long as they are not there.
type place struct {
	dest               string // absolute
	root, local, repos *tree.Dir
}

func (p *place) close() {
	for _, d := range []*tree.Dir{p.root, p.local, p.repos} {
		if d != nil {
			d.Close()
		}
	}
}

// kitRoot is where the copy of a kit is.
func (p *place) kitRoot(id string) string {
	return filepath.Join(p.dest, filepath.FromSlash(reposPath), id)
}

// Resolve makes a destination absolute.
func Resolve(dest string) (string, error) {
	if dest == "" {
		return "", fault.New(fault.Usage, "no destination is given").WithHint("--dest names the workspace that the kits are in")
	}
	abs, err := filepath.Abs(dest)
	if err != nil {
		return "", fault.New(fault.KitPath, "resolve the destination: %w", err)
	}
	return abs, nil
}

// look opens a destination as it is. What is missing stays nil.
func look(dest string) (*place, error) {
	p, err := walkDown(dest, (*tree.Dir).Open)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.close()
		return nil, unsafePath(err)
	}
	return p, nil
}

// prepare opens a destination and makes what is missing of it.
func prepare(dest string) (*place, error) {
	if err := makeAll(dest); err != nil {
		return nil, unsafePath(err)
	}
	p, err := walkDown(dest, (*tree.Dir).Ensure)
	if err != nil {
		p.close()
		return nil, unsafePath(err)
	}
	return p, nil
}

// walkDown opens the directories one after the other, none through a link.
func walkDown(dest string, step func(*tree.Dir, string) (*tree.Dir, error)) (*place, error) {
	p := &place{dest: dest}
	var err error
	if p.root, err = tree.Open(dest); err != nil {
		return p, err
	}
	kits, err := step(p.root, "kits")
	if err != nil {
		return p, err
	}
	defer kits.Close()
	if p.local, err = step(kits, "local"); err != nil {
		return p, err
	}
	p.repos, err = step(p.local, reposName)
	return p, err
}

func unsafePath(err error) error {
	f := fault.New(fault.KitPath, "use the destination: %w", err)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return f.WithHint("this user must be able to write there")
	case tree.IsNotDirectory(err), errors.Is(err, syscall.ENOTDIR):
		return f.WithHint("the destination and the directories kits/local/repositories in it must be real directories, no links")
	}
	return f
}
