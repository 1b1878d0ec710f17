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
	"sync"

	"golang.org/x/sys/unix"
)

// Prefix stands before the 64 hexadecimal digits of a content hash.
const Prefix = "sha256:"

// readBytes is how much of a file is read at once. Files up to it are read ahead.
const readBytes = 128 << 10

// buffers are what files are read into.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, readBytes)
	return &b
}}

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
	w := walk{ctx: ctx, visit: &h}
	if err := w.all(d.fd); err != nil {
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

func (h *hasher) enter(string, string) error  { return nil }
func (h *hasher) leave(string, identity) step { return step{} }

// file reads a small file while others are hashed, and a large one in its turn.
func (h *hasher) file(f file) step {
	switch {
	case f.excluded:
		return step{then: func() error { return same(f.fd, f.id, f.rel) }}
	case f.rel == h.keep.Name && f.id.size > h.keep.Limit:
		return step{then: func() error {
			return &Invalid{f.rel, fmt.Sprintf("%d bytes, more than %d", f.id.size, h.keep.Limit)}
		}}
	case f.rel == h.keep.Name:
		return step{then: func() error {
			var kept bytes.Buffer
			err := h.pour(io.MultiWriter(h.sum, &kept), f)
			h.kept = kept.Bytes()
			return err
		}}
	case f.id.size > readBytes:
		return step{then: func() error { return h.pour(h.sum, f) }}
	}
	var buf *[]byte
	return step{
		work: func() error {
			buf = buffers.Get().(*[]byte)
			if err := fill((*buf)[:f.id.size], f.fd, f.rel); err != nil {
				return err
			}
			return same(f.fd, f.id, f.rel)
		},
		then: func() error {
			h.begin(f.rel)
			h.sum.Write((*buf)[:f.id.size])
			h.sum.Write(zero)
			return nil
		},
		free: func() {
			if buf != nil {
				buffers.Put(buf)
			}
		},
	}
}

// pour hashes a whole file in its turn.
func (h *hasher) pour(to io.Writer, f file) error {
	h.begin(f.rel)
	if err := pour(to, f.fd, f.id.size, h.buf, f.rel); err != nil {
		return err
	}
	h.sum.Write(zero)
	return same(f.fd, f.id, f.rel)
}

func (h *hasher) begin(rel string) {
	h.sum.Write([]byte(rel))
	h.sum.Write(zero)
}

// fill reads a file that is as long as buf.
func fill(buf []byte, fd int, rel string) error {
	for len(buf) > 0 {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
		if err != nil {
			return pathError("read", quote(rel), err)
		}
		if n == 0 {
			return changed(rel)
		}
		buf = buf[n:]
	}
	return nil
}

// pour writes the size bytes of an open file to w; fewer mean that it changed, and
// more are found by who compares its identity.
func pour(w io.Writer, fd int, size int64, buf []byte, rel string) error {
	for size > 0 {
		part := buf[:min(size, int64(len(buf)))]
		if err := fill(part, fd, rel); err != nil {
			return err
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		size -= int64(len(part))
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
