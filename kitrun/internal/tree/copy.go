package tree

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// syncEach is up to how many files are made durable one by one. A tree of more is
// left to one sync of the file system, which also writes what others left there.
const syncEach = 64

// permissions are the bits that a copy keeps: it is never set-uid.
const permissions = 0o777

// CopyTo copies the tree below d to a new directory called name in parent, without
// what is excluded, with its permissions and its empty directories, and makes it
// durable. After an error a part of the copy is left.
func (d *Dir) CopyTo(ctx context.Context, parent *Dir, name string) error {
	root, err := d.Stat("")
	if err != nil {
		return err
	}
	c := copier{buf: make([]byte, readBytes)}
	defer c.close()
	if err := c.make(parent.fd, name, parent.join(name)); err != nil {
		return err
	}
	w := walk{ctx: ctx, visit: &c, skip: true, buf: make([]byte, direntBytes)}
	if err := w.directory(d.fd, "", 0, false); err != nil {
		return err
	}
	if c.files > syncEach {
		if _, err := retry(func() (int, error) { return 0, unix.Syncfs(c.open[0]) }); err != nil {
			return pathError("sync the file system of", parent.join(name), err)
		}
	}
	return c.leave("", root.identity)
}

// copier makes the counterpart of what a walk visits.
type copier struct {
	buf   []byte
	open  []int // the directories that are being filled, the root first
	files int
}

func (c *copier) close() {
	for _, fd := range c.open {
		_ = unix.Close(fd)
	}
}

// make makes an empty directory that is private until it is left.
func (c *copier) make(parent int, name, rel string) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil {
		return pathError("make directory", rel, err)
	}
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, directoryFlags, 0) })
	if err != nil {
		return pathError("open", rel, notDirectory(err))
	}
	c.open = append(c.open, fd)
	return nil
}

func (c *copier) enter(rel, name string, _ identity) error {
	return c.make(c.open[len(c.open)-1], name, quote(rel))
}

func (c *copier) leave(rel string, id identity) error {
	last := len(c.open) - 1
	fd := c.open[last]
	c.open = c.open[:last]
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, id.mode&permissions); err != nil {
		return pathError("set the mode of", quote(rel), err)
	}
	if c.files > syncEach {
		return nil
	}
	_, err := retry(func() (int, error) { return 0, unix.Fsync(fd) })
	return pathError("sync", quote(rel), err)
}

func (c *copier) file(rel, name string, from int, id identity, _ bool) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	to, err := retry(func() (int, error) { return unix.Openat(c.open[len(c.open)-1], name, flags, 0o600) })
	if err != nil {
		return pathError("make", quote(rel), err)
	}
	c.files++
	err = c.fill(to, from, rel, id)
	if closed := unix.Close(to); err == nil && closed != nil {
		err = pathError("close", quote(rel), closed)
	}
	return err
}

func (c *copier) fill(to, from int, rel string, id identity) error {
	if err := pour(descriptor(to), from, id.size, c.buf, rel); err != nil {
		return err
	}
	if err := unix.Fchmod(to, id.mode&permissions); err != nil {
		return pathError("set the mode of", quote(rel), err)
	}
	if c.files > syncEach {
		return nil
	}
	_, err := retry(func() (int, error) { return 0, unix.Fsync(to) })
	return pathError("sync", quote(rel), err)
}

// descriptor writes to an open file.
type descriptor int

func (d descriptor) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := retry(func() (int, error) { return unix.Write(int(d), p[done:]) })
		if err != nil {
			return done, fmt.Errorf("write: %w", err)
		}
		done += n
	}
	return len(p), nil
}
