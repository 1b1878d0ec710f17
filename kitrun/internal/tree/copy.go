package tree

import (
	"context"

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
	c := copier{}
	if err := c.make(parent.fd, name, parent.join(name)); err != nil {
		return err
	}
	w := walk{ctx: ctx, visit: &c, skip: true}
	err := w.all(d.fd)
	c.close()
	if err != nil || c.files <= syncEach {
		return err
	}
	_, err = retry(func() (int, error) { return 0, unix.Syncfs(parent.fd) })
	return pathError("sync the file system of", parent.join(name), err)
}

// copier makes the counterpart of what a walk visits.
type copier struct {
	open  []int // the directories that are being filled, the root first
	files int
}

// close closes what a walk that failed did not leave.
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

func (c *copier) enter(rel, name string) error {
	return c.make(c.open[len(c.open)-1], name, quote(rel))
}

func (c *copier) leave(rel string, id identity) step {
	last := len(c.open) - 1
	fd, sync := c.open[last], c.files <= syncEach
	c.open = c.open[:last]
	return step{
		then: func() error { return finish(fd, id, sync, rel) },
		free: func() { _ = unix.Close(fd) },
	}
}

func (c *copier) file(f file) step {
	c.files++
	to, sync := c.open[len(c.open)-1], c.files <= syncEach
	return step{work: func() error {
		if err := copyFile(to, f, sync); err != nil {
			return err
		}
		return same(f.fd, f.id, f.rel)
	}}
}

func copyFile(dir int, f file, sync bool) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	to, err := retry(func() (int, error) { return unix.Openat(dir, f.name, flags, 0o600) })
	if err != nil {
		return pathError("make", quote(f.rel), err)
	}
	buf := buffers.Get().(*[]byte)
	err = pour(named{descriptor(to), f.rel}, f.fd, f.id.size, *buf, f.rel)
	buffers.Put(buf)
	if err == nil {
		err = finish(to, f.id, sync, f.rel)
	}
	if closed := unix.Close(to); err == nil && closed != nil {
		err = pathError("close", quote(f.rel), closed)
	}
	return err
}

// finish gives a copy its permissions and makes it durable.
func finish(fd int, id identity, sync bool, rel string) error {
	if err := unix.Fchmod(fd, id.mode&permissions); err != nil {
		return pathError("set the mode of", quote(rel), err)
	}
	if !sync {
		return nil
	}
	_, err := retry(func() (int, error) { return 0, unix.Fsync(fd) })
	return pathError("sync", quote(rel), err)
}

// named says in its errors which file of the copy they are of.
type named struct {
	descriptor
	rel string
}

func (n named) Write(p []byte) (int, error) {
	done, err := n.descriptor.Write(p)
	return done, pathError("write", quote(n.rel), err)
}

// descriptor writes to an open file.
type descriptor int

func (d descriptor) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := retry(func() (int, error) { return unix.Write(int(d), p[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}
