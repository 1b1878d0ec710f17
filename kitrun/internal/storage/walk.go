package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// openDirectory opens what is a directory at this moment, and nothing behind a link.
const openDirectory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

const (
	// readBytes is how much of a directory is read at once; each hand keeps one
	// such buffer for each depth.
	readBytes = 32 << 10
	// hands look at different directories at the same time: most of the time goes
	// into the kernel, one entry after the other.
	hands = 2
)

// walk is one inspection. It is over as soon as there is a reason or an error.
type walk struct {
	ctx     context.Context
	budget  Budget
	devices map[uint64]bool // whose free room is counted

	over  atomic.Bool
	mu    sync.Mutex // guards all below
	seen  Observation
	err   error
	hands sync.WaitGroup
	free  chan *hand // without work
}

// hand walks one directory at a time.
type hand struct {
	*walk
	levels []level
	st     unix.Stat_t // of the entry at hand; not one of the heap for each
}

// level is what is kept of a directory while those below it are walked.
type level struct {
	buf   []byte
	names []string
}

func newWalk(ctx context.Context, b Budget) *walk {
	w := &walk{ctx: ctx, budget: b, devices: map[uint64]bool{}, free: make(chan *hand, hands)}
	w.seen = Observation{Budget: b, FreeBytes: math.MaxInt64}
	for range hands - 1 {
		w.free <- &hand{walk: w}
	}
	return w
}

// run walks all roots and gives what was seen.
func (w *walk) run(roots []string) (Observation, error) {
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
			return w.seen, err
		}
		open = append(open, r)
	}
	w.saw(0, 0, "")
	first := &hand{walk: w}
	for _, r := range open {
		first.directory(r.fd, r.device, 0)
	}
	w.free <- first // others may have more
	w.hands.Wait()
	w.seen.Allowed = w.seen.Reason == ""
	return w.seen, w.err
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
	device, err := deviceOf(fd)
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

// saw counts entries, the size of a file, and a reason; the first reason ends the
// walk, and what other hands see after it does not count. The order of the bounds
// is that of the verdict.
func (w *walk) saw(entries, size int64, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.seen
	if s.Reason != "" || w.err != nil {
		return
	}
	s.ObservedEntries += entries
	s.ObservedBytes = add(s.ObservedBytes, size)
	s.LargestFileBytes = max(s.LargestFileBytes, size)
	switch {
	case reason != "":
		s.Reason = reason
	case s.FreeBytes < w.budget.MinFreeBytes:
		s.Reason = FreeFloor
	case s.ObservedBytes > w.budget.MaxBytes:
		s.Reason = OverBytes
	case s.ObservedEntries > w.budget.MaxEntries:
		s.Reason = OverEntries
	case s.LargestFileBytes > w.budget.MaxFileBytes:
		s.Reason = OverFile
	default:
		return
	}
	w.over.Store(true)
}

// fail ends the walk without a verdict.
func (w *walk) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && w.seen.Reason == "" {
		w.err = err
	}
	w.over.Store(true)
}

// directory walks the directory that fd is open on, depth directories below its
// root. It leaves fd open.
func (h *hand) directory(fd int, device uint64, depth int) {
	for len(h.levels) <= depth {
		h.levels = append(h.levels, level{})
	}
	if h.levels[depth].buf == nil {
		h.levels[depth].buf = make([]byte, readBytes)
	}
	for !h.over.Load() {
		if err := h.ctx.Err(); err != nil {
			h.fail(err)
			return
		}
		n, err := retry(func() (int, error) { return unix.Getdents(fd, h.levels[depth].buf) })
		switch {
		case errors.Is(err, unix.ENOENT): // removed meanwhile
			return
		case err != nil:
			h.fail(fmt.Errorf("read a directory: %w", err))
			return
		case n == 0:
			return
		}
		_, _, names := unix.ParseDirent(h.levels[depth].buf[:n], -1, h.levels[depth].names[:0])
		h.levels[depth].names = names // for its room; deeper levels have their own
		for _, name := range names {
			if h.entry(fd, name, device, depth); h.over.Load() {
				return
			}
		}
	}
}

func (h *hand) entry(parent int, name string, device uint64, depth int) {
	err := unix.Fstatat(parent, name, &h.st, unix.AT_SYMLINK_NOFOLLOW)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fstatat(parent, name, &h.st, unix.AT_SYMLINK_NOFOLLOW)
	}
	switch {
	case errors.Is(err, unix.ENOENT): // it was there, and counts
		h.saw(1, 0, "")
		return
	case err != nil:
		h.fail(fmt.Errorf("look at an entry: %w", err))
		return
	}
	switch h.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.saw(1, h.st.Size, "")
	case unix.S_IFDIR:
		if h.saw(1, 0, ""); !h.over.Load() {
			h.below(parent, name, device, depth+1)
		}
	default:
		h.saw(1, 0, UnsupportedEntry)
	}
}

// below walks a directory by the descriptor that it is opened with: what stands
// under its name by now may be another thing, but nothing outside.
func (h *hand) below(parent int, name string, device uint64, depth int) {
	if depth > maxDepth {
		h.saw(0, 0, UnsupportedDirectory)
		return
	}
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, openDirectory, 0) })
	if errors.Is(err, unix.ENOENT) {
		return
	}
	if err != nil {
		h.saw(0, 0, UnsupportedDirectory)
		return
	}
	here, err := deviceOf(fd)
	if err != nil || here != device {
		unix.Close(fd)
		if err != nil {
			h.fail(err)
		} else {
			h.saw(0, 0, UnsupportedDirectory)
		}
		return
	}
	select {
	case other := <-h.free:
		h.hands.Go(func() {
			defer unix.Close(fd)
			other.directory(fd, device, depth)
			h.free <- other
		})
	default:
		h.directory(fd, device, depth)
		unix.Close(fd)
	}
}

func deviceOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at a directory: %w", err)
	}
	return uint64(st.Dev), nil
}

// add keeps a sum of sparse files from wrapping around.
func add(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// retry repeats a call that a signal interrupted. It is for the few calls that are
// made once a directory.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
