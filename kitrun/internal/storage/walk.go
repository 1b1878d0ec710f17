package storage

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// openDirectory opens what is a directory at this moment, and nothing behind a link.
const openDirectory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// readBytes is how much of a directory is read at once; one such buffer is kept
// for each depth.
const readBytes = 32 << 10

// walk is one inspection. It is over as soon as seen has a reason.
type walk struct {
	ctx     context.Context
	seen    Observation
	budget  Budget
	devices map[uint64]bool // whose free room is counted
	levels  []level
}

// level is what is kept of a directory while those below it are walked.
type level struct {
	buf   []byte
	names []string
}

func (w *walk) all(roots []string) error {
	w.budget, w.devices, w.seen.FreeBytes = w.seen.Budget, map[uint64]bool{}, math.MaxInt64
	var open []root
	defer func() {
		for _, r := range open {
			unix.Close(r.fd)
		}
	}()
	// The free room of all roots is known before the first entry is looked at,
	// so an entry that ends the walk does not hide it.
	for _, path := range roots {
		r, err := w.open(path)
		if err != nil {
			return err
		}
		open = append(open, r)
	}
	for _, r := range open {
		if w.over() {
			return nil
		}
		if err := w.directory(r.fd, r.device, 0); err != nil {
			return err
		}
	}
	w.over()
	return nil
}

type root struct {
	fd     int
	device uint64
}

// open opens a root and takes the free room of its file system into account.
func (w *walk) open(path string) (root, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, openDirectory, 0) })
	if err != nil {
		return root{}, fmt.Errorf("open a root: %w", err)
	}
	device, err := w.deviceOf(fd)
	if err != nil {
		unix.Close(fd)
		return root{}, err
	}
	if !w.devices[device] {
		w.devices[device] = true
		var fs unix.Statfs_t
		if _, err := retry(func() (int, error) { return 0, unix.Fstatfs(fd, &fs) }); err != nil {
			unix.Close(fd)
			return root{}, fmt.Errorf("look at the file system of a root: %w", err)
		}
		w.seen.FreeBytes = min(w.seen.FreeBytes, free(fs))
	}
	return root{fd, device}, nil
}

// free gives the bytes that a user who is not root may still write.
func free(fs unix.Statfs_t) int64 {
	block := uint64(fs.Frsize)
	if block == 0 {
		block = uint64(fs.Bsize)
	}
	if block != 0 && fs.Bavail > math.MaxInt64/block {
		return math.MaxInt64
	}
	return int64(fs.Bavail * block)
}

// directory walks the directory that fd is open on, depth directories below its
// root. It leaves fd open.
func (w *walk) directory(fd int, device uint64, depth int) error {
	if len(w.levels) == depth {
		w.levels = append(w.levels, level{buf: make([]byte, readBytes)})
	}
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		n, err := retry(func() (int, error) { return unix.Getdents(fd, w.levels[depth].buf) })
		switch {
		case errors.Is(err, unix.ENOENT): // removed meanwhile
			return nil
		case err != nil:
			return fmt.Errorf("read a directory: %w", err)
		case n == 0:
			return nil
		}
		_, _, names := unix.ParseDirent(w.levels[depth].buf[:n], -1, w.levels[depth].names[:0])
		w.levels[depth].names = names // for its room; deeper levels have their own
		for _, name := range names {
			if err := w.entry(fd, name, device, depth); err != nil || w.over() {
				return err
			}
		}
	}
}

func (w *walk) entry(parent int, name string, device uint64, depth int) error {
	w.seen.ObservedEntries++
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("look at an entry: %w", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		w.seen.ObservedBytes = add(w.seen.ObservedBytes, st.Size)
		w.seen.LargestFileBytes = max(w.seen.LargestFileBytes, st.Size)
	case unix.S_IFDIR:
		return w.below(parent, name, device, depth+1)
	default:
		w.seen.Reason = UnsupportedEntry
	}
	return nil
}

// below walks a directory by the descriptor that it is opened with: what stands
// under its name by now may be another thing, but nothing outside.
func (w *walk) below(parent int, name string, device uint64, depth int) error {
	if depth > maxDepth {
		w.seen.Reason = UnsupportedDirectory
		return nil
	}
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, openDirectory, 0) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		w.seen.Reason = UnsupportedDirectory
		return nil
	}
	defer unix.Close(fd)
	here, err := w.deviceOf(fd)
	if err != nil {
		return err
	}
	if here != device {
		w.seen.Reason = UnsupportedDirectory
		return nil
	}
	return w.directory(fd, device, depth)
}

func (w *walk) deviceOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at a directory: %w", err)
	}
	return uint64(st.Dev), nil
}

// over decides whether the walk goes on, in the order of the verdict.
func (w *walk) over() bool {
	s := &w.seen
	switch {
	case s.Reason != "":
	case s.FreeBytes < w.budget.MinFreeBytes:
		s.Reason = FreeFloor
	case s.ObservedBytes > w.budget.MaxBytes:
		s.Reason = OverBytes
	case s.ObservedEntries > w.budget.MaxEntries:
		s.Reason = OverEntries
	case s.LargestFileBytes > w.budget.MaxFileBytes:
		s.Reason = OverFile
	}
	return s.Reason != ""
}

// add keeps a sum of sparse files from wrapping around.
func add(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
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
