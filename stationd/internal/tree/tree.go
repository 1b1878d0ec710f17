// Package tree is a workspace as evidence knows it, and on its way to another
// machine: the digest over modes, names and contents, which both machines compute
// from what they have on their disks, and the archive in between.
//
// A tree holds regular files and symbolic links; directories exist for them only.
// Nothing is written through a link, or outside the root.
package tree

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a tree.
const (
	MaxFiles = 200_000
	MaxBytes = 8 << 30
)

// File modes, as git writes them.
const (
	File    = "100644"
	Program = "100755"
	Link    = "120000"
)

// Line stands for one entry in the digest. sum is of a file's content, or of where
// a link leads.
func Line(mode, name string, sum [sha256.Size]byte) string {
	return fmt.Sprintf("%s %s %x\n", mode, name, sum)
}

// Digest is SHA-256 over the sorted lines, as hexadecimal. It sorts them in place.
func Digest(lines []string) string {
	slices.Sort(lines)
	sum := sha256.New()
	for _, l := range lines {
		_, _ = io.WriteString(sum, l)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Of is the digest of what lies in a directory.
func Of(dir string) (string, error) {
	var lines []string
	err := walk(dir, func(e entry) error {
		sum := sha256.New()
		_, err := io.Copy(sum, e.content)
		lines = append(lines, Line(e.mode, e.name, [sha256.Size]byte(sum.Sum(nil))))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("digest the workspace: %w", err)
	}
	return Digest(lines), nil
}

// entry is a file, or a link whose content is where it leads.
type entry struct {
	mode, name string
	size       int64
	content    io.Reader
}

// walk visits the entries of a directory that nobody changes meanwhile.
func walk(dir string, visit func(entry) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			to, err := root.Readlink(name)
			if err != nil {
				return err
			}
			return visit(entry{Link, name, int64(len(to)), strings.NewReader(to)})
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return errors.Join(err, fmt.Errorf("%s is neither a file nor a link", name))
		}
		mode := File
		if info.Mode().Perm()&0o100 != 0 {
			mode = Program
		}
		return visit(entry{mode, name, info.Size(), f})
	})
}

// Pack writes what lies in a directory as an archive.
func Pack(ctx context.Context, dir string, w io.Writer) error {
	out := tar.NewWriter(w)
	err := walk(dir, func(e entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: e.size, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch e.mode {
		case Program:
			h.Mode = 0o755
		case Link:
			to, err := io.ReadAll(e.content)
			if err != nil {
				return err
			}
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, string(to), 0
			return out.WriteHeader(h)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.CopyN(out, e.content, e.size)
		return err
	})
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("pack the workspace: %w", err)
	}
	return nil
}

// Unpack writes an archive of Pack into an empty directory.
func Unpack(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack the workspace: %w", err)
	}
	defer root.Close()
	in := tar.NewReader(r)
	left := int64(MaxBytes)
	for n := 0; ; n++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		switch {
		case err != nil:
		case n == MaxFiles || h.Size > left:
			err = errors.New("too many files, or too much")
		case !filepath.IsLocal(h.Name):
			err = errors.New("a name leads out of it")
		default:
			left -= h.Size
			err = unpack(root, h, in)
		}
		if err != nil {
			return fmt.Errorf("unpack the workspace: %w", err)
		}
	}
}

func unpack(root *os.Root, h *tar.Header, content io.Reader) error {
	if dir := path.Dir(h.Name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%s is neither a file nor a link", h.Name)
	}
	perm := fs.FileMode(h.Mode).Perm() & 0o755
	f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(perm), f.Close())
}
