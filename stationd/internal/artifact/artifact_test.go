package artifact_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/stationd/internal/artifact"
)

func write(t testing.TB, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func list(t testing.TB, root string, most int64, paths ...string) artifact.Manifest {
	t.Helper()
	m, err := artifact.List(root, paths, most)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Proves station 17.V5: regular files only, at and below the paths; nothing is
// followed, opened that is not a file, or waited for.
func TestList(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	write(t, root, "out/a", "first")
	write(t, root, "out/deep/er/b", "")
	write(t, root, "report.txt", "second")
	write(t, root, "other", "is not asked for")
	write(t, outside, "secret", "outside")
	for name, target := range map[string]string{"out/link": filepath.Join(outside, "secret"), "out/dirlink": outside, "out/inside": "a", "through": "out", "asked": outside} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]uint32{"out/pipe": unix.S_IFIFO, "out/socket": unix.S_IFSOCK} {
		if err := unix.Mknod(filepath.Join(root, name), mode|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(root, "out/null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	want := artifact.Manifest{Files: []artifact.File{
		{Path: "out/a", Bytes: 5, SHA256: sum("first")},
		{Path: "out/deep/er/b", SHA256: sum("")},
		{Path: "report.txt", Bytes: 6, SHA256: sum("second")},
	}}
	paths := []string{"out", "./report.txt", "out/a", "out//", "none", "none/x", "through/a", "asked", "asked/secret", "../" + filepath.Base(outside), "out/pipe", "out/link", "out/a/x"}
	if diff := cmp.Diff(want, list(t, root, 0, paths...)); diff != "" {
		t.Error(diff)
	}
	if got := list(t, root, 0); len(got.Files) != 0 || got.Truncated {
		t.Errorf("without paths: %+v", got)
	}
	if got := list(t, root, 0, "."); len(got.Files) != 4 {
		t.Errorf("the whole workspace: %+v", got)
	}
	for _, bad := range []string{filepath.Join(root, "through"), filepath.Join(root, "report.txt"), filepath.Join(root, "none")} {
		if _, err := artifact.List(bad, paths, 0); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// Proves station 17.V5: the bounds on files, bytes and depth.
func TestList_Bounds(t *testing.T) {
	root := t.TempDir()
	for i := range artifact.MaxFiles + 5 {
		write(t, root, fmt.Sprintf("many/%04d", i), "x")
	}
	if got := list(t, root, 0, "many"); len(got.Files) != artifact.MaxFiles || !got.Truncated || got.Files[artifact.MaxFiles-1].Path != "many/0999" {
		t.Errorf("%d files, truncated %v", len(got.Files), got.Truncated)
	}
	write(t, root, "big/1", strings.Repeat("a", 600))
	write(t, root, "big/2", strings.Repeat("b", 600))
	write(t, root, "big/3", "c")
	want := []artifact.File{
		{Path: "big/1", Bytes: 600, SHA256: sum(strings.Repeat("a", 600))},
		{Path: "big/2", Bytes: 400, SHA256: sum(strings.Repeat("b", 400)), Truncated: true},
		{Path: "big/3", SHA256: sum(""), Truncated: true},
	}
	if diff := cmp.Diff(want, list(t, root, 1000, "big").Files); diff != "" {
		t.Error(diff)
	}
	// A file of a tebibyte takes no more than the bound.
	write(t, root, "sparse/1", "")
	if err := os.Truncate(filepath.Join(root, "sparse/1"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if got := list(t, root, 1<<62, "sparse").Files; len(got) != 1 || got[0].Bytes != artifact.MaxBytes || !got[0].Truncated {
		t.Errorf("sparse: %+v", got)
	}
	deep := strings.Repeat("d/", 100)
	write(t, root, "deep/"+deep+"f", "x")
	if got := list(t, root, 0, "deep"); len(got.Files) != 0 || !got.Truncated {
		t.Errorf("deep: %+v", got)
	}
	write(t, root, "names/\xff\xfe", "x")
	if got := list(t, root, 0, "names").Files; len(got) != 1 || got[0].Path != "names/\uFFFD" {
		t.Errorf("a name that is no text: %+v", got)
	}
}

// Proves station 17.V5: a file that grows, or is replaced, while it is read gives what
// it was when it was opened, and says so.
func TestList_Growing(t *testing.T) {
	root := t.TempDir()
	block := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	write(t, root, "out/log", string(block))
	f, err := os.OpenFile(filepath.Join(root, "out/log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := f.Write(block[:4<<10]); err != nil {
				done <- err
				return
			}
			if info, err := f.Stat(); err == nil && info.Size() > 32<<20 { // bounded
				_ = f.Truncate(1 << 20)
			}
		}
	}()
	seen := false
	for range 200 {
		got := list(t, root, 0, "out").Files
		if len(got) != 1 || got[0].Bytes > 33<<20 {
			t.Errorf("%+v", got)
		}
		if seen = seen || got[0].Truncated; seen {
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("a file that grows all the time was never noticed")
	}
}

// Proves station 17.V5: names that change between a file, a directory and links while
// they are looked at never lead outside.
func TestList_Swapped(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	write(t, outside, "secret", "outside")
	write(t, root, "out/x/secret", "inside")
	link := filepath.Join(root, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		x := filepath.Join(root, "out/x")
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, x, unix.RENAME_EXCHANGE); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	found := 0
	for range 2000 {
		for _, f := range list(t, root, 0, "out", "out/x/secret").Files {
			found++
			if f.SHA256 != sum("inside") {
				t.Errorf("read %+v", f)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("the file inside was never found")
	}
}
