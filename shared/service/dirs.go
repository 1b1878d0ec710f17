package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

// product is the name of our folder below the XDG directories.
const product = "drawbridge"

// homeDir is $HOME when it is absolute, else the home of the uid.
func homeDir() string {
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return home
	}
	home, err := passwdHome()
	if err != nil {
		return ""
	}
	return home
}

// passwdHome is the home in the uid's passwd entry, whatever the environment
// says: processes of one user started by different Hosts must meet at one place.
func passwdHome() (string, error) {
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return "", fmt.Errorf("find the home of uid %d: %w", os.Getuid(), err)
	}
	if !filepath.IsAbs(u.HomeDir) {
		return "", fmt.Errorf("find the home of uid %d: the passwd entry has none", os.Getuid())
	}
	return u.HomeDir, nil
}

// StateRoot is $XDG_STATE_HOME/drawbridge, else ~/.local/state/drawbridge; ""
// when there is no home.
func StateRoot() string {
	if base := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, product)
	}
	home := homeDir()
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".local", "state", product)
}

// DefaultStoreDir is the default of -store-dir, "" when there is no home.
func DefaultStoreDir() string {
	root := StateRoot()
	if root == "" {
		return ""
	}
	return filepath.Join(root, "store")
}

// DefaultRuntimeDir is the default of -runtime-dir: always below the home of the
// uid, so that all Stores of one user lock the same terminals (core §3.2).
func DefaultRuntimeDir() (string, error) {
	home, err := passwdHome()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state", product, "run"), nil
}

// CheckPrivateDir says why EnsurePrivateDir would refuse path as it is, and changes
// nothing. What is not there is fs.ErrNotExist.
func CheckPrivateDir(path string) error {
	fd, st, err := openDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
		return unsafeDir(path, err.Error())
	}
	defer unix.Close(fd)
	return checkDir(path, st)
}

// EnsurePrivateDir makes path and what is missing above it with mode 0700, or
// checks that it is a real directory of this user that nobody else can write. A
// directory that others could only read is closed to them. Any other finding is
// runtime_dir_unsafe.
func EnsurePrivateDir(path string) error {
	if !filepath.IsAbs(path) {
		return unsafeDir(path, "the path is not absolute")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		var exists *os.PathError
		if errors.As(err, &exists) {
			err = exists.Err
		}
		return unsafeDir(path, err.Error())
	}
	// The descriptor is what is checked and changed, so nothing can be swapped.
	fd, st, err := openDir(path)
	if err != nil {
		return unsafeDir(path, err.Error())
	}
	defer unix.Close(fd)
	if err := checkDir(path, st); err != nil {
		return err
	}
	if st.Mode&0o7777 != 0o700 {
		if err := unix.Fchmod(fd, 0o700); err != nil {
			return unsafeDir(path, err.Error())
		}
	}
	return nil
}

// openDir opens a real directory.
func openDir(path string) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return fd, st, errors.New("not a real directory")
	case err != nil:
		return fd, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fd, st, err
	}
	return fd, st, nil
}

func checkDir(path string, st unix.Stat_t) error {
	switch {
	case int(st.Uid) != os.Geteuid():
		return unsafeDir(path, fmt.Sprintf("it belongs to uid %d", st.Uid))
	case st.Mode&0o022 != 0:
		return unsafeDir(path, "others can write to it")
	}
	return nil
}

func unsafeDir(path, why string) error {
	return fault.New(fault.RuntimeDirUnsafe, "use directory %s: %s", path, why).
		WithHint("it must be a directory of mode 0700 that belongs to the user of this program")
}
