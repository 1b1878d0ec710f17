package tree

import (
	"context"
	"errors"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// Replace puts a file called name with this content into d, or the old one stays:
// it is written under the name temporary, made durable, and renamed. That it has its
// new name is durable after Sync.
func (d *Dir) Replace(name, temporary string, data []byte) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, temporary, flags, 0o666) })
	if err != nil {
		return pathError("make", d.join(temporary), err)
	}
	_, err = descriptor(fd).Write(data)
	if err == nil {
		_, err = retry(func() (int, error) { return 0, unix.Fsync(fd) })
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err == nil {
		err = unix.Renameat(d.fd, temporary, d.fd, name)
	}
	if err != nil {
		_ = unix.Unlinkat(d.fd, temporary, 0)
		return pathError("write", d.join(name), err)
	}
	return nil
}

// Unlink removes what is no directory; what is not there is no error.
func (d *Dir) Unlink(name string) error {
	err := unix.Unlinkat(d.fd, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return pathError("remove", d.join(name), err)
}

// RemoveAll removes what is called name in d with everything below it. What is not
// there is no error. Directories without permission are opened up first.
func (d *Dir) RemoveAll(ctx context.Context, name string) error {
	return removeAll(ctx, d.fd, name, d.join(name))
}

func removeAll(ctx context.Context, parent int, name, path string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return pathError("remove", path, err)
	}
	fd, err := openToRemove(parent, name)
	if err != nil {
		return pathError("remove", path, notDirectory(err))
	}
	defer unix.Close(fd)
	for {
		// What was removed makes room for what was not listed; a name may be any bytes.
		all, err := anyNames(fd)
		if err != nil {
			return pathError("remove", path, err)
		}
		if len(all) == 0 {
			break
		}
		for _, below := range all {
			if err := removeAll(ctx, fd, below, path+"/"+below); err != nil {
				return err
			}
		}
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pathError("remove", path, err)
	}
	return nil
}

// openToRemove opens a directory so that its entries can be removed.
func openToRemove(parent int, name string) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, directoryFlags, 0) })
	if errors.Is(err, unix.EACCES) {
		if err := openUp(parent, name); err != nil {
			return -1, err
		}
		fd, err = retry(func() (int, error) { return unix.Openat(parent, name, directoryFlags, 0) })
	}
	if err != nil {
		return -1, err
	}
	if id, err := identityAt(fd); err == nil && id.mode&0o700 != 0o700 {
		_ = unix.Fchmod(fd, 0o700) // if it may not, removing says why
	}
	return fd, nil
}

// openUp makes a directory readable that cannot be opened. It goes by a descriptor
// that needs no permission: not every kernel changes a mode without following a link.
func openUp(parent int, name string) error {
	fd, err := retry(func() (int, error) {
		return unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}

func anyNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	buf := make([]byte, direntBytes)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return nil, err
		}
		if _, _, out := unix.ParseDirent(buf[:n], -1, nil); len(out) > 0 {
			return out, nil
		}
	}
}
