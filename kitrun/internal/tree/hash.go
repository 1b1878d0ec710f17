package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"golang.org/x/sys/unix"
)

// Prefix stands before the 64 hexadecimal digits of a content hash.
const Prefix = "sha256:"

// readBytes is how much of a file is read at once.
const readBytes = 256 << 10

// Seen is what one reading of a tree found.
type Seen struct {
	Hash     string // "sha256:…"
	Entries  int
	Bytes    int64
	Unhashed string // the first entry that the hash leaves out, below the root; "" when there is none
	Kept     []byte // content of the file that Keep named, nil when there is none
}

// Keep names a file at the root whose content is wanted: it comes from the same
// reading that was hashed.
type Keep struct {
	Name  string
	Limit int64
}

// Hash reads the whole tree below d and gives its content hash: over each file in
// walk order its path, a zero byte, its content, a zero byte.
func (d *Dir) Hash(ctx context.Context, keep Keep) (Seen, error) {
	h := hasher{sum: sha256.New(), buf: make([]byte, readBytes), keep: keep}
	w := walk{ctx: ctx, visit: &h, buf: make([]byte, direntBytes)}
	if err := w.directory(d.fd, "", 0, false); err != nil {
		return Seen{}, err
	}
	return Seen{
		Hash:    Prefix + hex.EncodeToString(h.sum.Sum(nil)),
		Entries: w.entries, Bytes: w.bytes, Unhashed: w.unhashed, Kept: h.kept,
	}, nil
}

type hasher struct {
	sum  hash.Hash
	buf  []byte
	keep Keep
	kept []byte
}

var zero = []byte{0}

func (h *hasher) enter(string, string, identity) error { return nil }
func (h *hasher) leave(string, identity) error         { return nil }

func (h *hasher) file(rel, _ string, fd int, id identity, excluded bool) error {
	if excluded {
		return nil
	}
	to := io.Writer(h.sum)
	if rel == h.keep.Name {
		if id.size > h.keep.Limit {
			return &Invalid{rel, fmt.Sprintf("%d bytes, more than %d", id.size, h.keep.Limit)}
		}
		kept := bytes.NewBuffer(make([]byte, 0, id.size))
		to = io.MultiWriter(h.sum, kept)
		defer func() { h.kept = kept.Bytes() }()
	}
	h.sum.Write([]byte(rel))
	h.sum.Write(zero)
	if err := pour(to, fd, id.size, h.buf, rel); err != nil {
		return err
	}
	h.sum.Write(zero)
	return nil
}

// pour writes the size bytes of an open file to w; fewer mean that it changed, and
// more are found by who compares its identity.
func pour(w io.Writer, fd int, size int64, buf []byte, rel string) error {
	for size > 0 {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[:min(size, int64(len(buf)))]) })
		if err != nil {
			return pathError("read", quote(rel), err)
		}
		if n == 0 {
			return changed(rel)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// readAll reads to the end of r, which is not more than limit bytes.
func readAll(r io.Reader, limit int64, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > limit:
		return nil, &Invalid{name, fmt.Sprintf("more than %d bytes", limit)}
	}
	return data, nil
}

// Missing reports whether err says that the tree itself is not there.
func Missing(err error) bool { return errors.Is(err, unix.ENOENT) }
