// Package tree reads, copies and removes directory trees that somebody else may
// change meanwhile, and takes the content hash of a kit over them (kit §2).
//
// It goes from descriptor to descriptor and follows no link below the directory
// that it was given, so renaming cannot lead it out. Only directories and regular
// files with names in UTF-8 are accepted; what changes while it is read is refused,
// never taken half and half. Symbolic links above a Dir that Open opens are
// resolved as usual, the last component never is.
//
// What a tree breaks is an *Invalid, which names the path below the root and why.
// Everything else is an error of the file system.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of one tree.
const (
	MaxEntries = 100_000
	MaxDepth   = 64 // directories below the root
	MaxBytes   = 2 << 30
)

// flags that open what is a directory at this moment, and nothing behind a link.
const directoryFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// fileFlags do not wait for the other end of a FIFO.
const fileFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// Invalid says what a tree holds that no kit may.
type Invalid struct {
	Path string // below the root, "." for the root
	Why  string
}

func (e *Invalid) Error() string { return fmt.Sprintf("%s: %s", quote(e.Path), e.Why) }

// quote shows a path that somebody else chose.
func quote(path string) string {
	if path == "" {
		return "."
	}
	if strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return fmt.Sprintf("%q", path)
	}
	return path
}

// Dir is an open directory. Its path is for messages alone.
type Dir struct {
	fd   int
	path string
}

// Open opens the directory at path, whose last component is no link.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	fd, err := retry(func() (int, error) { return unix.Open(path, directoryFlags, 0) })
	if err != nil {
		return nil, pathError("open", path, notDirectory(err))
	}
	return &Dir{fd, path}, nil
}

// Open opens a directory that stands in d.
func (d *Dir) Open(name string) (*Dir, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, directoryFlags, 0) })
	if err != nil {
		return nil, pathError("open", d.join(name), notDirectory(err))
	}
	return &Dir{fd, d.join(name)}, nil
}

// Ensure opens a directory that stands in d, and makes it when nothing does.
func (d *Dir) Ensure(name string) (*Dir, error) {
	if err := d.Mkdir(name, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return d.Open(name)
}

// Mkdir makes a directory; the umask applies.
func (d *Dir) Mkdir(name string, mode uint32) error {
	return pathError("make directory", d.join(name), unix.Mkdirat(d.fd, name, mode))
}

// Rmdir removes an empty directory.
func (d *Dir) Rmdir(name string) error {
	return pathError("remove directory", d.join(name), unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR))
}

// Rename moves what is called from to the name to, both in d.
func (d *Dir) Rename(from, to string) error {
	return pathError("rename", d.join(from), unix.Renameat(d.fd, from, d.fd, to))
}

// Sync makes what was made, renamed and removed in d durable.
func (d *Dir) Sync() error {
	_, err := retry(func() (int, error) { return 0, unix.Fsync(d.fd) })
	return pathError("sync", d.path, err)
}

// TryLock takes the directory for as long as it is open; ok is false when another
// process has it.
func (d *Dir) TryLock() (ok bool, err error) {
	_, err = retry(func() (int, error) { return 0, unix.Flock(d.fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, pathError("lock", d.path, err)
}

// Close closes the descriptor.
func (d *Dir) Close() { _ = unix.Close(d.fd) }

// Path is where the directory was when it was opened.
func (d *Dir) Path() string { return d.path }

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// Info is what is known of one entry without opening it.
type Info struct {
	identity
	links uint64
}

// IsDir and Regular tell the two kinds that a kit is made of.
func (i Info) IsDir() bool   { return i.mode&unix.S_IFMT == unix.S_IFDIR }
func (i Info) Regular() bool { return i.mode&unix.S_IFMT == unix.S_IFREG }

// IsLink tells a symbolic link.
func (i Info) IsLink() bool { return i.mode&unix.S_IFMT == unix.S_IFLNK }

// Same reports whether both are one file or directory.
func (i Info) Same(o Info) bool { return i.dev == o.dev && i.ino == o.ino }

// ModTime is in nanoseconds since 1970.
func (i Info) ModTime() int64 { return i.mtime }

// Stat looks at an entry of d and follows no link; the name "" or "." is d itself.
func (d *Dir) Stat(name string) (Info, error) {
	var st unix.Stat_t
	var err error
	if name == "" || name == "." {
		err = unix.Fstat(d.fd, &st)
	} else {
		err = unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return Info{}, pathError("look at", d.join(name), err)
	}
	return Info{identityOf(&st), uint64(st.Nlink)}, nil
}

// ReadFile reads a regular file of at most limit bytes that stands in d.
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	f, err := d.file(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &Invalid{name, "not a regular file"}
	}
	if info.Size() > limit {
		return nil, &Invalid{name, fmt.Sprintf("%d bytes, more than %d", info.Size(), limit)}
	}
	return readAll(f, limit, name)
}

// file opens what is no link, and reads through the standard library.
func (d *Dir) file(name string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, fileFlags, 0) })
	if errors.Is(err, unix.ELOOP) {
		return nil, &Invalid{name, "a symbolic link"}
	}
	if err != nil {
		return nil, pathError("open", d.join(name), err)
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// identity is what must be the same before and after reading.
type identity struct {
	dev, ino     uint64
	mode         uint32
	size         int64
	mtime, ctime int64 // nanoseconds
}

func identityOf(st *unix.Stat_t) identity {
	return identity{uint64(st.Dev), st.Ino, st.Mode, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

func identityAt(fd int) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return identity{}, err
	}
	return identityOf(&st), nil
}

// notDirectory tells a link from what is no directory; Linux says ENOTDIR of both.
func notDirectory(err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return errNotDirectory
	}
	return err
}

var errNotDirectory = errors.New("a symbolic link, or not a directory")

// IsNotDirectory reports whether err is of a path where a real directory should be.
func IsNotDirectory(err error) bool { return errors.Is(err, errNotDirectory) }

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
