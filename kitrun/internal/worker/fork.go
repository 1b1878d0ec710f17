package worker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/fault"
)

// forkAlgorithm names how the digest of a source tree is taken: every regular file
// in the order of its directory, names compared by UTF-16 code units, as byte 1,
// relative path, byte 0, size in 8 bytes (big endian), content.
const forkAlgorithm = "drawbridge-tree-1"

const maxForkDepth = 128

// forkDigest digests a tree, from descriptor to descriptor. Whatever is neither a
// directory nor a regular file is refused, as in storage admission.
func forkDigest(ctx context.Context, root string) (string, error) {
	f, err := os.OpenFile(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", unreadableFork(bare(err))
	}
	defer f.Close()
	t := forkWalk{ctx: ctx, sum: sha256.New(), buf: make([]byte, 64<<10)}
	if err := t.directory(f, "", 0); err != nil {
		if _, known := fault.As(err); known || ctx.Err() != nil {
			return "", err
		}
		return "", unreadableFork(err)
	}
	return digestOf(t.sum.Sum(nil)), nil
}

func unreadableFork(err error) error {
	return fault.New(fault.StorageInspector, "digest the workspace: %w", err)
}

type forkWalk struct {
	ctx context.Context
	sum hash.Hash
	buf []byte
}

func (t *forkWalk) directory(dir *os.File, prefix string, depth int) error {
	if depth > maxForkDepth {
		return unsupportedFork(storage.UnsupportedDirectory)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return bare(err)
	}
	slices.SortFunc(names, compareUTF16)
	for _, name := range names {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := t.entry(dir, name, prefix+name, depth); err != nil {
			return err
		}
	}
	return nil
}

func (t *forkWalk) entry(dir *os.File, name, path string, depth int) error {
	// NONBLOCK: a FIFO must not hold us up before it is refused.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, a socket
		return unsupportedFork(storage.UnsupportedEntry)
	case err != nil:
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return t.directory(f, path+"/", depth+1)
	case unix.S_IFREG:
		return t.file(f, path, st.Size)
	}
	return unsupportedFork(storage.UnsupportedEntry)
}

func (t *forkWalk) file(f *os.File, path string, size int64) error {
	t.sum.Write([]byte{1})
	io.WriteString(t.sum, path)
	t.sum.Write([]byte{0})
	t.sum.Write(binary.BigEndian.AppendUint64(nil, uint64(size)))
	n, err := io.CopyBuffer(struct{ io.Writer }{t.sum}, struct{ io.Reader }{io.LimitReader(f, size+1)}, t.buf)
	if err != nil {
		return bare(err)
	}
	if n != size {
		return fmt.Errorf("a file changed while it was read")
	}
	return nil
}

func unsupportedFork(reason string) error {
	return fault.New(fault.StorageRefused, "digest the workspace: %s", reason).With("reason", reason)
}

// compareUTF16 orders names as a JavaScript reader does without a locale.
func compareUTF16(a, b string) int {
	for i := 0; i < min(len(a), len(b)); i++ {
		if a[i] >= 0x80 || b[i] >= 0x80 {
			return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		}
		if a[i] != b[i] {
			break
		}
	}
	return strings.Compare(a, b)
}
