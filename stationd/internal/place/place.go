// Package place is what a lease is on its machine: directories of its own, and
// what is done in them. stationd uses it for leases of this machine, the shim for
// those of another one (station §5.3).
//
//	<state>/<lease>/          0700, of who keeps the lease
//	    lock                  held while the lease is used
//	    work  home  tmp       0700, of the daemon's user
//	    harness               0700: a verified harness
//	<run>/<lease>/            0700: sockets, and files of the shim
//
// Sockets have a directory elsewhere because their paths are short. No path has a
// link in it: the daemon's view is built from them. While a daemon lives nothing
// here is written to, and no file of a daemon is opened through a link.
package place

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

const (
	private    = 0o700
	maxSocket  = 107 // bytes of a unix socket's path
	maxProgram = 1 << 30
	lockName   = "lock"
)

// ids are ids of leases: they become names of directories.
var ids = regexp.MustCompile(`^lse_[a-z0-9]{1,40}$`)

// Base is where the leases of a machine lie. The directories are made when they
// are missing.
type Base struct {
	State string `json:"state"`
	Run   string `json:"run"`
}

// Layout is where the parts of a lease lie: absolute, without links. UID is who keeps
// them, and a daemon's, when its spec names no user.
type Layout struct {
	UID       int    `json:"uid"`
	Runtime   string `json:"runtime"`
	Workspace string `json:"workspace"`
	Home      string `json:"home"`
	Temp      string `json:"temp"`
	Harness   string `json:"harness"`
}

// A Place is one lease's.
type Place struct {
	id     string
	dir    string
	layout Layout
}

// Open names the places of a lease. It makes only the directories of base.
func Open(base Base, id string) (*Place, error) {
	if !ids.MatchString(id) {
		return nil, unavailable("use the lease: its id is none")
	}
	state, err := privateDir(base.State)
	if err != nil {
		return nil, err
	}
	run, err := privateDir(base.Run)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(state, id)
	p := &Place{id: id, dir: dir, layout: Layout{
		UID: os.Geteuid(), Runtime: filepath.Join(run, id), Workspace: filepath.Join(dir, "work"), Home: filepath.Join(dir, "home"),
		Temp: filepath.Join(dir, "tmp"), Harness: filepath.Join(dir, "harness"),
	}}
	if longest := filepath.Join(p.layout.Runtime, wire.Egress); len(longest) > maxSocket {
		return nil, unavailable("use the lease %s: paths of its sockets would have %d bytes, and %d are possible", id, len(longest), maxSocket).
			WithHint("choose a runtime directory with a shorter path")
	}
	return p, nil
}

// privateDir makes a directory that only this user may enter, and gives its path
// without links.
func privateDir(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", unavailable("use the directory of leases: its path is not absolute")
	}
	if err := os.MkdirAll(path, private); err != nil {
		return "", unavailable("make the directory of leases: %w", err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", unavailable("use the directory of leases: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(real, &st); err != nil {
		return "", unavailable("use the directory of leases: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return "", fault.New(fault.RuntimeDirUnsafe, "use the directory of leases: others may enter it, or it is another user's").
			WithHint("give it to the user of stationd, mode 0700")
	}
	return real, nil
}

func unavailable(format string, args ...any) *fault.Error {
	return fault.New(fault.LeaseUnavailable, format, args...)
}

// Layout says where the parts are, whether they exist or not.
func (p *Place) Layout() Layout { return p.layout }

// Dir is the lease's own directory.
func (p *Place) Dir() string { return p.dir }

// Make makes the lease's directory. A lease is made once.
func (p *Place) Make() error {
	if err := os.Mkdir(p.dir, private); err != nil {
		return unavailable("make the lease %s: %w", p.id, cause(err))
	}
	if err := os.WriteFile(filepath.Join(p.dir, lockName), nil, 0o600); err != nil {
		_ = os.Remove(p.dir)
		return unavailable("make the lease %s: %w", p.id, cause(err))
	}
	return nil
}

// Lock takes the lease for this process, until the file is closed. Another
// process's is fault.LeaseHeld.
func (p *Place) Lock() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(p.dir, lockName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, unavailable("lock the lease %s: %w", p.id, cause(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.LeaseHeld, "lock the lease %s: another stationd uses it", p.id)
		}
		return nil, unavailable("lock the lease %s: %w", p.id, err)
	}
	return f, nil
}

// Holds reports whether a lock is still the lease's.
func (p *Place) Holds(lock *os.File) error {
	here, err := os.Lstat(filepath.Join(p.dir, lockName))
	if err != nil {
		return unavailable("look at the lease %s: %w", p.id, cause(err))
	}
	held, err := lock.Stat()
	if err != nil || !os.SameFile(here, held) {
		return unavailable("look at the lease %s: its directory is another now", p.id)
	}
	return nil
}

// cause is an error without the path in it, which no client is to see.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Prepare makes every directory anew, empty. Those of the daemon belong to runAs,
// when it is given.
func (p *Place) Prepare(runAs *wire.User) error {
	if err := p.idle("prepare"); err != nil {
		return err
	}
	if _, err := os.Lstat(p.dir); err != nil {
		return unavailable("prepare the lease %s: %w", p.id, cause(err))
	}
	l := p.layout
	for _, dir := range []string{l.Runtime, l.Harness, l.Workspace, l.Home, l.Temp} {
		if err := removeTree(dir); err != nil {
			return unavailable("prepare the lease %s: %w", p.id, cause(err))
		}
		if err := os.Mkdir(dir, private); err != nil {
			return unavailable("prepare the lease %s: %w", p.id, cause(err))
		}
		if dir != l.Runtime && dir != l.Harness {
			if err := own(dir, runAs); err != nil {
				return unavailable("prepare the lease %s: %w", p.id, cause(err))
			}
		}
	}
	return nil
}

// Give gives everything in the workspace to runAs, when it is given.
func (p *Place) Give(runAs *wire.User) error {
	err := filepath.WalkDir(p.layout.Workspace, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return own(path, runAs)
	})
	if err != nil {
		return unavailable("give the workspace to its user: %w", cause(err))
	}
	return nil
}

// own changes who a file belongs to, or a link itself.
func own(path string, user *wire.User) error {
	if user == nil {
		return nil
	}
	return os.Lchown(path, user.UID, user.GID)
}

// FileSHA256 is the digest of a program. Links are followed: /usr/bin/python3 is
// often one.
func FileSHA256(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("read it: %w", cause(err))
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxProgram {
		return "", errors.New("it is no regular file of a sensible size")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read it: %w", cause(err))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Addresses are those of this machine.
func Addresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr())
		}
	}
	return out, nil
}

// Here completes an incarnation of a process of this machine: its pid namespace is
// this process's, whoever wrote it down.
func Here(inc process.Incarnation) process.Incarnation {
	inc.Namespace = process.Self().Namespace
	return inc
}

// Alive reports whether a process lives; a zombie does not.
func Alive(inc process.Incarnation) (bool, error) {
	gone, known := Here(inc).Gone()
	if !known {
		return false, fmt.Errorf("look for process %d: %w", inc.PID, process.ErrUnproven)
	}
	return !gone, nil
}

// Kill ends a shim of the lease, and proves that nothing of it is left.
func (p *Place) Kill(ctx context.Context, o supervise.Options, inc process.Incarnation) (supervise.Cleanup, error) {
	return supervise.Kill(ctx, o, p.layout.Runtime, Here(inc))
}

// Socket listens on a socket of the runtime directory, in the place of an older one.
func (p *Place) Socket(name string) (*net.UnixListener, error) {
	path, err := p.socket(name)
	if err != nil {
		return nil, err
	}
	if err := p.unlink(name); err != nil {
		return nil, unavailable("listen on %s: %w", name, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, unavailable("listen on %s: %w", name, err)
	}
	return l, nil
}

func (p *Place) socket(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || name == ".." || name == "." {
		return "", unavailable("listen: not a name of a socket")
	}
	return filepath.Join(p.layout.Runtime, name), nil
}
