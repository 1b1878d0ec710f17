package tree_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/tree"
)

// files makes a directory with these files; a name that ends in a slash is a
// directory.
func files(t testing.TB, content map[string]string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, root, content)
	return root
}

func write(t testing.TB, root string, content map[string]string) {
	t.Helper()
	for name, data := range content {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t testing.TB, path string) *tree.Dir {
	t.Helper()
	d, err := tree.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func hashOf(t testing.TB, root string) string {
	t.Helper()
	seen, err := open(t, root).Hash(t.Context(), tree.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	return seen.Hash
}

// reference is the content hash, written a second time from the words of kit §2:
// it collects whole paths and sorts them by code units, part by part.
func reference(t testing.TB, root string) string {
	t.Helper()
	type file struct {
		path  string
		parts [][]uint16
	}
	var all []file
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		f := file{path: rel}
		for _, part := range strings.Split(rel, "/") {
			if part == ".git" || part == "__pycache__" || part == ".pytest_cache" {
				return err
			}
			f.parts = append(f.parts, utf16.Encode([]rune(part)))
		}
		all = append(all, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b file) int { return slices.CompareFunc(a.parts, b.parts, slices.Compare[[]uint16]) })
	var bytes []byte
	for _, f := range all {
		data, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Fatal(err)
		}
		bytes = append(append(append(append(bytes, f.path...), 0), data...), 0)
	}
	sum := sha256.Sum256(bytes)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Proves kit 17.1.
func TestHash_Vectors(t *testing.T) {
	for _, tc := range []struct {
		name    string
		content map[string]string
		want    string
	}{
		{"one file", map[string]string{"a": "x"}, "9702daf1994748818090bc1579c00984a67885e04aea8046fb1f1c5826564acb"},
		{"a directory comes at its bare name", map[string]string{"a/b": "1", "a-b": "2"}, "ac2cae8ac3fb6d9f9e3ff98d8b21c3f6a9a1a79c20e8b9e03d96c660332e3e65"},
		{"nothing", nil, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := hashOf(t, files(t, tc.content)); got != "sha256:"+tc.want {
				t.Errorf("hash %s, want sha256:%s", got, tc.want)
			}
		})
	}

	// An astral name comes before U+FB00 and U+FFFD, whose bytes are smaller.
	root := files(t, map[string]string{"😀": "1", "ﬀ": "2", "\ufffdz": "3", "é": "4", "e\u0301": "5"})
	ordered := func(names ...string) string {
		var all strings.Builder
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&all, "%s\x00%s\x00", name, data)
		}
		sum := sha256.Sum256([]byte(all.String()))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	got := hashOf(t, root)
	if want := ordered("e\u0301", "é", "😀", "ﬀ", "\ufffdz"); got != want {
		t.Errorf("order of code units: hash %s, want %s", got, want)
	}
	if bytes := ordered("e\u0301", "é", "ﬀ", "\ufffdz", "😀"); got == bytes {
		t.Error("the order of bytes gives the same hash; it must not")
	}
}

// Proves kit 17.2.
func TestHash_WhatCounts(t *testing.T) {
	base := map[string]string{"a": "12", "b": "3", "d/c": "", "run.sh": "#!"}
	want := hashOf(t, files(t, base))
	change := func(name string, same bool, do func(root string) error) {
		t.Run(name, func(t *testing.T) {
			root := files(t, base)
			if err := do(root); err != nil {
				t.Fatal(err)
			}
			if got := hashOf(t, root); (got == want) != same {
				t.Errorf("the same hash: %v, want %v", got == want, same)
			}
		})
	}
	change("modes", true, func(root string) error {
		return errors.Join(os.Chmod(filepath.Join(root, "run.sh"), 0o755), os.Chmod(filepath.Join(root, "a"), 0o600), os.Chmod(filepath.Join(root, "d"), 0o700))
	})
	change("times", true, func(root string) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, "a"), []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0)
	})
	change("an empty directory", true, func(root string) error { return os.MkdirAll(filepath.Join(root, "x", "y"), 0o755) })
	change("what is excluded", true, func(root string) error {
		write(t, root, map[string]string{".git/config": "x", "d/__pycache__/m.pyc": "y", "d/.pytest_cache": "a file"})
		return nil
	})
	change("a file renamed", false, func(root string) error { return os.Rename(filepath.Join(root, "a"), filepath.Join(root, "a2")) })
	change("a byte moved to the next file", false, func(root string) error {
		write(t, root, map[string]string{"a": "1", "b": "23"})
		return nil
	})
	change("an empty file", false, func(root string) error {
		write(t, root, map[string]string{"empty": ""})
		return nil
	})
	change("a dot file", false, func(root string) error {
		write(t, root, map[string]string{".gitignore": "x"})
		return nil
	})
	change("node_modules", false, func(root string) error {
		write(t, root, map[string]string{"node_modules/m/index.js": "x"})
		return nil
	})
}

// Proves kit 17.3.
func TestHash_Refused(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(root string) error
		why  string
	}{
		{"link", func(root string) error { return os.Symlink("a", filepath.Join(root, "l")) }, "l: a symbolic link"},
		{"dangling link", func(root string) error { return os.Symlink("nowhere", filepath.Join(root, "d", "l")) }, "d/l: a symbolic link"},
		{"link to a directory", func(root string) error { return os.Symlink("d", filepath.Join(root, "l")) }, "l: a symbolic link"},
		{"link in .git", func(root string) error { return os.Symlink("x", filepath.Join(root, ".git", "l")) }, ".git/l: a symbolic link"},
		{"FIFO", func(root string) error { return unix.Mkfifo(filepath.Join(root, "p"), 0o644) }, "p: neither a regular file nor a directory"},
		{"socket", func(root string) error { return unix.Mknod(filepath.Join(root, "s"), unix.S_IFSOCK|0o644, 0) }, "s: neither a regular file nor a directory"},
		{"name", func(root string) error { return os.WriteFile(filepath.Join(root, "n\xff"), nil, 0o644) }, `"n\xff": its name is not valid UTF-8`},
		{"too deep", func(root string) error { return os.MkdirAll(filepath.Join(root, strings.Repeat("d/", 65)), 0o755) }, "deeper than 64 directories"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := files(t, map[string]string{"a": "1", "d/b": "2", ".git/c": "3"})
			if err := tc.do(root); err != nil {
				t.Fatal(err)
			}
			_, err := open(t, root).Hash(t.Context(), tree.Keep{})
			var invalid *tree.Invalid
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tc.why) {
				t.Errorf("err = %v, want … %s", err, tc.why)
			}
		})
	}
	root := files(t, nil)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, link + "/"} {
		if _, err := tree.Open(path); !tree.IsNotDirectory(err) {
			t.Errorf("open a link: %v", err)
		}
	}
	if _, err := tree.Open(filepath.Join(root, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open nothing: %v", err)
	}
}

// Proves kit 17.4.
func TestHash_Changing(t *testing.T) {
	const size = 1 << 20
	contents := []string{strings.Repeat("a", size), strings.Repeat("b", size)}
	var whole []string
	for _, c := range contents {
		whole = append(whole, hashOf(t, files(t, map[string]string{"f": c})))
	}
	root := files(t, map[string]string{"f": contents[0]})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		var err error
		other := filepath.Join(filepath.Dir(root), "other")
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			if err = os.WriteFile(other, []byte(contents[i%2]), 0o644); err == nil {
				err = os.Rename(other, filepath.Join(root, "f"))
			}
		}
		ended <- err
	}()
	refused := 0
	for range 40 {
		seen, err := open(t, root).Hash(t.Context(), tree.Keep{})
		var invalid *tree.Invalid
		switch {
		case errors.As(err, &invalid) && strings.Contains(err.Error(), "changed while it was read"):
			refused++
		case err != nil:
			t.Errorf("hash: %v", err)
		case !slices.Contains(whole, seen.Hash):
			t.Errorf("the hash of neither content: %s", seen.Hash)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if refused == 0 {
		t.Error("no change was noticed")
	}
}

// name gives a random name out of the characters that sort badly.
func name(r *rand.Rand) string {
	alphabet := []string{"a", "b", "-", ".", "A", "0", "é", "e\u0301", "\u07ff", "\u0800", "\ud7ff", "\ue000", "ﬀ", "\ufffd", "\uffff", "😀", "𐀀", "\U0010ffff", "_"}
	var b strings.Builder
	for range 1 + r.IntN(4) {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	if s := b.String(); s != "." && s != ".." {
		return s
	}
	return "dots"
}

// Random trees have the hash of the second implementation, and so have their
// copies.
func TestHash_Property(t *testing.T) {
	const seed = 20261130
	r := rand.New(rand.NewPCG(seed, seed))
	excluded := []string{".git", "__pycache__", ".pytest_cache"}
	for round := range 60 {
		content := map[string]string{}
		taken := map[string]bool{} // as a directory, or as a file
		for range 1 + r.IntN(30) {
			path := ""
			for range r.IntN(4) {
				part := name(r)
				if r.IntN(12) == 0 {
					part = excluded[r.IntN(3)]
				}
				path += part + "/"
			}
			path += name(r)
			usable := !taken[path]
			for p := filepath.Dir(path); p != "."; p = filepath.Dir(p) {
				if _, isFile := content[p]; isFile {
					usable = false
				}
			}
			if !usable {
				continue
			}
			for p := filepath.Dir(path); p != "."; p = filepath.Dir(p) {
				taken[p] = true
			}
			taken[path] = true
			content[path] = strings.Repeat("\x00é", r.IntN(1<<uint(r.IntN(12))))
		}
		root := files(t, content)
		want := reference(t, root)
		if got := hashOf(t, root); got != want {
			t.Fatalf("round %d, seed %d: hash %s, want %s of %q", round, seed, got, want, content)
		}
		if round%10 > 0 {
			continue
		}
		to := t.TempDir()
		if err := open(t, root).CopyTo(t.Context(), open(t, to), "copy"); err != nil {
			t.Fatal(err)
		}
		if got := hashOf(t, filepath.Join(to, "copy")); got != want {
			t.Fatalf("round %d, seed %d: the copy has hash %s, want %s", round, seed, got, want)
		}
	}
}

func FuzzCompare(f *testing.F) {
	for _, pair := range [][2]string{{"a", "b"}, {"a", "ab"}, {"😀", "ﬀ"}, {"\ue000", "𐀀"}, {"\ud7ff", "\U0010ffff"}, {"é", "e\u0301"}, {"", "x"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = strings.ToValidUTF8(a, "?"), strings.ToValidUTF8(b, "?")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := tree.Compare(a, b); sign(got) != want {
			t.Errorf("Compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func sign(n int) int {
	return max(-1, min(1, n))
}

func TestHash_Keep(t *testing.T) {
	root := files(t, map[string]string{"kit.json": "{}", "d/kit.json": "no", "d/.git": "file"})
	d := open(t, root)
	got, err := d.Hash(t.Context(), tree.Keep{Name: "kit.json", Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	got.Hash = ""
	if diff := cmp.Diff(tree.Seen{Entries: 4, Bytes: 8, Unhashed: "d/.git", Kept: []byte("{}")}, got); diff != "" {
		t.Errorf("seen (-want +got):\n%s", diff)
	}
	if _, err := d.Hash(t.Context(), tree.Keep{Name: "kit.json", Limit: 1}); err == nil || !strings.Contains(err.Error(), "more than 1") {
		t.Errorf("over the limit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Hash(ctx, tree.Keep{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
