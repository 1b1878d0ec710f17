// Package artifact lists what a daemon left as evidence: regular files below its
// workspace, with their sizes and digests (station §13.2).
//
// Nothing is followed: every directory and file is opened from the directory above
// it, as what it is at that moment. Devices, pipes, sockets and links are passed
// over. What is read is bounded however many files there are, however large they
// are and however fast they grow. The package reads only, and imports nothing that
// could not run on the machine of any lease.
package artifact

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a manifest.
const (
	MaxFiles = 1000
	MaxBytes = 64 << 20 // that are read, of all files together

	maxPaths   = 1 << 20 // bytes of all paths together
	maxEntries = 20_000  // that are looked at
	maxDepth   = 64
)

// Manifest is what was found, sorted by path.
type Manifest struct {
	Files     []File `json:"files"`
	Truncated bool   `json:"truncated,omitempty"` // more is there: over a bound, or not readable
}

// File is one regular file.
type File struct {
	Path      string `json:"path"`                // relative to the workspace
	Bytes     int64  `json:"bytes"`               // that the digest covers
	SHA256    string `json:"sha256"`              // of the first Bytes bytes
	Truncated bool   `json:"truncated,omitempty"` // the file has others: it is over a bound, or changed while it was read
}

// List lists the files at and below paths, which are relative to root, a directory
// that nothing but its owner may replace. maxBytes bounds what is read; 0 means
// MaxBytes. What does not exist is not there; only a root that cannot be opened is
// an error.
func List(root string, paths []string, maxBytes int64) (Manifest, error) {
	if maxBytes <= 0 || maxBytes > MaxBytes {
		maxBytes = MaxBytes
	}
	fd, err := retry(func() (int, error) {
		return unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return Manifest{}, fmt.Errorf("list artifacts: open the workspace: %w", err)
	}
	defer unix.Close(fd)
	l := &lister{left: maxBytes, seen: map[string]bool{}}
	for _, p := range paths {
		l.path(fd, p)
	}
	slices.SortFunc(l.files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return Manifest{Files: l.files, Truncated: l.more}, nil
}

type lister struct {
	files   []File
	more    bool
	left    int64 // bytes that may still be read
	names   int   // bytes of paths so far
	entries int
	seen    map[string]bool
}

// path goes down to one of the paths, from directory to directory.
func (l *lister) path(root int, path string) {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		switch part {
		case "", ".":
		case "..":
			return // no path in the workspace
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		l.directory(root, "", 0)
		return
	}
	at := root
	for i, part := range parts {
		rel := strings.Join(parts[:i+1], "/")
		if i == len(parts)-1 {
			l.entry(at, part, rel, i)
		} else if fd, err := openDirectory(at, part); err != nil {
			break
		} else {
			defer unix.Close(fd)
			at = fd
		}
	}
}

// entry takes what stands under a name.
func (l *lister) entry(parent int, name, rel string, depth int) {
	if l.seen[rel] {
		return
	}
	l.seen[rel] = true
	if l.entries++; l.entries > maxEntries || depth > maxDepth || len(l.files) >= MaxFiles || l.names+len(rel) > maxPaths {
		l.more = true
		return
	}
	// O_PATH looks without opening: no pipe blocks, no device notices.
	fd, err := retry(func() (int, error) {
		return unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		l.more = l.more || !errors.Is(err, unix.ENOENT)
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		l.more = true
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		l.file(fd, rel)
	case unix.S_IFDIR:
		if below, err := openDirectory(parent, name); err == nil {
			l.directory(below, rel, depth+1)
			unix.Close(below)
		} else {
			l.more = true
		}
	}
}

// directory takes the entries of an open directory in the order of their names.
func (l *lister) directory(fd int, rel string, depth int) {
	own, err := retry(func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		l.more = true
		return
	}
	dir := os.NewFile(uintptr(own), "directory")
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && err != io.EOF {
		l.more = true
	}
	slices.Sort(names)
	for _, name := range names {
		if l.entries > maxEntries || len(l.files) >= MaxFiles {
			l.more = true
			return
		}
		below := name
		if rel != "" {
			below = rel + "/" + name
		}
		l.entry(fd, name, below, depth)
	}
}

// file reads the inode that fd stands for, whatever has its name by now: as many
// bytes as it had when it was opened, within the bound.
func (l *lister) file(fd int, rel string) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		l.more = true
		return
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil || !before.Mode().IsRegular() {
		l.more = true
		return
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, min(before.Size(), l.left)))
	l.left -= n
	l.names += len(rel)
	out := File{Path: strings.ToValidUTF8(rel, "\uFFFD"), Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}
	after, statErr := f.Stat()
	out.Truncated = err != nil || statErr != nil || n != after.Size() || !after.ModTime().Equal(before.ModTime())
	l.files = append(l.files, out)
}

func openDirectory(parent int, name string) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
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
