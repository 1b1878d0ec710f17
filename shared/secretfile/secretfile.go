// Package secretfile reads files that hold a secret: a regular file and no link, of
// this user or of root, that nobody else may open. All checks are made on the one
// descriptor that is read.
//
// Errors are credential_permissions for a file that is not private and
// credential_unavailable for one that cannot be had. None holds a byte of the content,
// and only Check and Blame, for the person who named the file, tell its path.
package secretfile

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

// State tells whether a file is the one that was read.
type State struct {
	dev, ino, size uint64
	mtime          unix.Timespec
}

func stateOf(st unix.Stat_t) State {
	return State{uint64(st.Dev), st.Ino, uint64(st.Size), st.Mtim}
}

// file is what it is in messages: "credential file".
type file string

// Read gives the content of a file of at most most bytes; what calls it in messages.
// The caller clears the content.
func Read(what, path string, most int64) ([]byte, State, error) {
	is := file(what)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, State{}, is.unopened(err)
	}
	f := os.NewFile(uintptr(fd), what)
	defer f.Close()
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return nil, State{}, is.unavailable("it cannot be looked at: %s", errnoText(err))
	}
	switch err := is.check(before); {
	case err != nil:
		return nil, State{}, err
	case before.Size > most:
		return nil, State{}, is.unavailable("it is larger than %d bytes", most)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil {
		err = unix.Fstat(fd, &after)
	}
	switch {
	case err != nil:
		clear(data)
		return nil, State{}, is.unavailable("it cannot be read")
	case stateOf(before) != stateOf(after) || int64(len(data)) != after.Size:
		clear(data)
		return nil, State{}, is.unavailable("it changed while it was read")
	}
	return data, stateOf(after), nil
}

// Look makes the checks of Read without reading.
func Look(what, path string) (State, error) {
	is := file(what)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return State{}, is.unopened(err)
	}
	return stateOf(st), is.check(st)
}

// Check makes the checks of Look for the person who named the file.
func Check(what, written string) error {
	_, err := Look(what, written)
	return Blame(err, written)
}

// Blame puts the path of a file, as it was written, before an error about what it
// is or holds, and into what there is to do. Every other error stays as it is.
func Blame(err error, written string) error {
	f, ok := fault.As(err)
	if !ok {
		return err
	}
	switch f.Code {
	case fault.CredentialPermissions, fault.CredentialUnavailable, fault.CredentialExpired:
	default:
		return err
	}
	told := *f
	told.Message, told.Err = written+": "+f.Message, err
	if f.Hint == openHint {
		told.Hint = "chmod 600 " + written
	}
	return &told
}

// openHint is that of a file which others may open.
const openHint = "chmod 600 it"

func (f file) unopened(err error) error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return f.link()
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return f.permissions("this user may not read it")
	case errors.Is(err, unix.ENXIO):
		return f.permissions("it is no regular file")
	}
	return f.unavailable("it cannot be opened: %s", errnoText(err))
}

func (f file) check(st unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return f.link()
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return f.permissions("it is no regular file")
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return f.permissions("it belongs to another user")
	case st.Mode&0o077 != 0:
		return f.permissions("its mode %04o lets others in", st.Mode&0o777).WithHint(openHint)
	case st.Size == 0:
		return f.unavailable("it is empty")
	}
	return nil
}

func (f file) link() error {
	return f.permissions("it is a symbolic link").WithHint("give the path of the file that it leads to")
}

func (f file) permissions(format string, args ...any) *fault.Error {
	return fault.New(fault.CredentialPermissions, "read the "+string(f)+": "+format, args...).
		WithHint("it must be a regular file of this user with mode 0600")
}

func (f file) unavailable(format string, args ...any) error {
	return fault.New(fault.CredentialUnavailable, "read the "+string(f)+": "+format, args...)
}

// errnoText is the system's word for an error, without the path.
func errnoText(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "unknown error"
}
