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

// visitor is told what a walk comes to, in the order of the hash.
type visitor interface {
	// enter opens a directory's counterpart; it is told before what is in it.
	enter(rel, name string, id identity) error
	// file is called with an open regular file, which it leaves open.
	file(rel, name string, fd int, id identity, excluded bool) error
	// leave follows the last entry of a directory.
	leave(rel string, id identity) error
}

// walk is one pass over a tree.
type walk struct {
	ctx      context.Context
	visit    visitor
	skip     bool // pass by what is excluded
	clock    settler
	buf      []byte
	entries  int
	bytes    int64
	unhashed string // the first excluded entry
}

// directory visits what stands in fd, which it leaves open.
func (w *walk) directory(fd int, rel string, depth int, excluded bool) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	before, err := identityAt(fd)
	if err == nil {
		err = w.clock.wait(fd, before)
	}
	if err != nil {
		return changedIfGone(err, rel)
	}
	all, err := names(fd, w.buf, rel)
	if err != nil {
		return err
	}
	if w.entries += len(all); w.entries > MaxEntries {
		return &Invalid{"", fmt.Sprintf("more than %d entries", MaxEntries)}
	}
	for _, name := range all {
		if err := w.entry(fd, below(rel, name), name, depth, excluded); err != nil {
			return err
		}
	}
	after, err := identityAt(fd)
	if err != nil {
		return pathError("look at", rel, err)
	}
	if before != after {
		return changed(rel)
	}
	return nil
}

func (w *walk) entry(parent int, rel, name string, depth int, excluded bool) error {
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
	defer unix.Close(fd)
	id, err := identityAt(fd)
	if err != nil {
		return pathError("look at", rel, err)
	}
	switch id.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if depth == MaxDepth {
			return &Invalid{rel, fmt.Sprintf("deeper than %d directories", MaxDepth)}
		}
		if err := w.visit.enter(rel, name, id); err != nil {
			return err
		}
		if err := w.directory(fd, rel, depth+1, excluded); err != nil {
			return err
		}
		return w.visit.leave(rel, id)
	case unix.S_IFREG:
		if err := w.clock.wait(fd, id); err != nil {
			return changedIfGone(err, rel)
		}
		if w.bytes += id.size; w.bytes > MaxBytes {
			return &Invalid{"", fmt.Sprintf("more than %d bytes", int64(MaxBytes))}
		}
		if err := w.visit.file(rel, name, fd, id, excluded); err != nil {
			return err
		}
		after, err := identityAt(fd)
		if err != nil {
			return pathError("look at", rel, err)
		}
		if id != after {
			return changed(rel)
		}
		return nil
	}
	return &Invalid{rel, "neither a regular file nor a directory"}
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
