package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Excluded reports whether a file of this name, or below a directory of this
// name, stays out of the content hash and is not copied.
func Excluded(name string) bool {
	return name == ".git" || name == "__pycache__" || name == ".pytest_cache"
}

// Compare orders names by their UTF-16 code units, as JavaScript orders strings.
// Byte order differs where a name beyond U+FFFF meets one in U+E000…U+FFFF.
func Compare(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		// Lead bytes from F0 are surrogate pairs, D800…DFFF; EE and EF are
		// U+E000…U+FFFF, the only characters that they come before.
		if x >= 0xee && y >= 0xee && (x >= 0xf0) != (y >= 0xf0) {
			return int(y) - int(x)
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// direntBytes is how much of a directory is read at once.
const direntBytes = 32 << 10

// names lists a directory in the order of Compare.
func names(fd int, buf []byte, rel string) ([]string, error) {
	var out []string
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, pathError("read", quote(rel), err)
	}
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return nil, changedIfGone(err, rel)
		}
		if n == 0 {
			break
		}
		_, _, out = unix.ParseDirent(buf[:n], -1, out)
		if len(out) > MaxEntries {
			return nil, &Invalid{rel, fmt.Sprintf("more than %d entries", MaxEntries)}
		}
	}
	for _, name := range out {
		if !utf8.ValidString(name) {
			return nil, &Invalid{below(rel, name), "its name is not valid UTF-8"}
		}
	}
	slices.SortFunc(out, Compare)
	return out, nil
}

// List gives the names in d, sorted by Compare.
func (d *Dir) List() ([]string, error) {
	return names(d.fd, make([]byte, direntBytes), "")
}

// visitor turns what a walk comes to into steps. It is asked in the order of the
// hash, ahead of the steps that it gave before.
type visitor interface {
	// enter is told before what is in a directory; what it does is done at once.
	enter(rel, name string) error
	// file does something with an open regular file, and gives it back open.
	file(f file) step
	// leave follows the last entry of a directory, the root's is last of all.
	leave(rel string, id identity) step
}

// file is a regular file that a walk came to.
type file struct {
	rel, name string
	fd        int
	id        identity
	excluded  bool // from the hash
}

// walk is one pass over a tree.
type walk struct {
	ctx      context.Context
	visit    visitor
	skip     bool // pass by what is excluded
	line     *pipeline
	clock    settler
	buf      []byte
	entries  int
	bytes    int64
	unhashed string // the first excluded entry
}

// all walks the tree that fd is open on, and leaves it open.
func (w *walk) all(fd int) error {
	w.buf = make([]byte, direntBytes)
	return runPipeline(w.ctx, func(p *pipeline) error {
		w.line = p
		return w.directory(fd, "", 0, false, func() {})
	})
}

// directory visits what stands in fd, which is freed when all of it is done.
func (w *walk) directory(fd int, rel string, depth int, excluded bool, free func()) error {
	before, err := w.list(fd, rel, depth, excluded)
	if err != nil {
		free()
		return err
	}
	s := w.visit.leave(rel, before)
	leave := s.then
	s.then = func() error {
		if err := same(fd, before, rel); err != nil || leave == nil {
			return err
		}
		return leave()
	}
	s.free = both(s.free, free)
	w.line.add(s)
	return nil
}

// list visits the entries of a directory and gives its identity before that.
func (w *walk) list(fd int, rel string, depth int, excluded bool) (identity, error) {
	before, err := identityAt(fd)
	if err == nil {
		err = w.clock.wait(fd, before)
	}
	if err != nil {
		return before, changedIfGone(err, rel)
	}
	all, err := names(fd, w.buf, rel)
	if err != nil {
		return before, err
	}
	if w.entries += len(all); w.entries > MaxEntries {
		return before, &Invalid{"", fmt.Sprintf("more than %d entries", MaxEntries)}
	}
	for _, name := range all {
		if err := w.entry(fd, below(rel, name), name, depth, excluded); err != nil {
			return before, err
		}
	}
	return before, nil
}

// same refuses what is not the same any more after it was read.
func same(fd int, before identity, rel string) error {
	after, err := identityAt(fd)
	if err != nil {
		return pathError("look at", rel, err)
	}
	if before != after {
		return changed(rel)
	}
	return nil
}

func both(a, b func()) func() {
	return func() {
		if a != nil {
			a()
		}
		b()
	}
}

func (w *walk) entry(parent int, rel, name string, depth int, excluded bool) error {
	if w.line.ctx.Err() != nil {
		return context.Cause(w.line.ctx)
	}
	if Excluded(name) {
		if w.unhashed == "" {
			w.unhashed = rel
		}
		if w.skip {
			return nil
		}
		excluded = true
	}
	fd, err := retry(func() (int, error) { return unix.Openat(parent, name, fileFlags, 0) })
	if err != nil {
		return unopened(parent, name, rel, err)
	}
	free := func() { _ = unix.Close(fd) }
	id, err := identityAt(fd)
	if err == nil {
		switch {
		case id.mode&unix.S_IFMT == unix.S_IFREG:
			return w.regular(file{rel, name, fd, id, excluded}, free)
		case id.mode&unix.S_IFMT != unix.S_IFDIR:
			err = &Invalid{rel, "neither a regular file nor a directory"}
		case depth == MaxDepth:
			err = &Invalid{rel, fmt.Sprintf("deeper than %d directories", MaxDepth)}
		default:
			err = w.visit.enter(rel, name)
		}
	}
	if err != nil {
		free()
		return err
	}
	return w.directory(fd, rel, depth+1, excluded, free)
}

func (w *walk) regular(f file, free func()) error {
	if err := w.clock.wait(f.fd, f.id); err != nil {
		free()
		return changedIfGone(err, f.rel)
	}
	if w.bytes += f.id.size; w.bytes > MaxBytes {
		free()
		return &Invalid{"", fmt.Sprintf("more than %d bytes", int64(MaxBytes))}
	}
	s := w.visit.file(f)
	s.free = both(s.free, free)
	w.line.add(s)
	return nil
}

// unopened says why an entry could not be opened: a socket has no reader (ENXIO).
func unopened(parent int, name, rel string, err error) error {
	var st unix.Stat_t
	if unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			return &Invalid{rel, "a symbolic link"}
		case unix.S_IFREG, unix.S_IFDIR:
		default:
			return &Invalid{rel, "neither a regular file nor a directory"}
		}
	}
	return changedIfGone(err, rel)
}

// changedIfGone: what was listed and is not there any more has changed.
func changedIfGone(err error, rel string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errUnsettled):
		return changed(rel)
	case errors.Is(err, unix.ELOOP):
		return &Invalid{rel, "a symbolic link"}
	}
	return pathError("read", quote(rel), err)
}

func changed(rel string) error { return &Invalid{rel, "it changed while it was read"} }

func below(rel, name string) string {
	if rel == "" {
		return name
	}
	return rel + "/" + name
}
