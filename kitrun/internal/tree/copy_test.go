package tree_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/tree"
)

// modes lists a tree as "path mode".
func modes(t *testing.T, root string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		rel, _ := filepath.Rel(root, path)
		out = append(out, fmt.Sprintf("%s %v", rel, info.Mode()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Proves kit 17.9.
func TestCopyTo(t *testing.T) {
	root := files(t, map[string]string{
		"run.sh": "#!", "secret": "s", "plain": "p", "empty/inner/": "", "d/f": "f", "closed/f": "x",
		".git/HEAD": "ref", "d/__pycache__/m.pyc": "c", ".pytest_cache/v": "c", "sub/.git": "gitdir: elsewhere",
	})
	for path, mode := range map[string]os.FileMode{"run.sh": 0o755, "secret": 0o600, "plain": 0o644, "closed": 0o555, "closed/f": 0o444, "": 0o750} {
		if err := os.Chmod(filepath.Join(root, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "plain"), 0o644|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	dir := open(t, to)
	if err := open(t, root).CopyTo(t.Context(), dir, "copy"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		". drwxr-x---", "closed dr-xr-xr-x", "closed/f -r--r--r--", "d drwxr-xr-x", "d/f -rw-r--r--", "empty drwxr-xr-x", "empty/inner drwxr-xr-x",
		"plain -rw-r--r--", "run.sh -rwxr-xr-x", "secret -rw-------", "sub drwxr-xr-x",
	}
	if diff := cmp.Diff(want, modes(t, filepath.Join(to, "copy"))); diff != "" {
		t.Errorf("copy (-want +got):\n%s", diff)
	}
	if err := open(t, root).CopyTo(t.Context(), dir, "copy"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("copied over what is there: %v", err)
	}
	if err := dir.RemoveAll(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	if names, err := dir.List(); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
}

// A tree of more files than are synced one by one.
func TestCopyTo_Many(t *testing.T) {
	content := map[string]string{}
	for i := range 200 {
		content[fmt.Sprintf("d%d/f%d", i%7, i)] = strings.Repeat("x", i)
	}
	root, to := files(t, content), t.TempDir()
	if err := open(t, root).CopyTo(t.Context(), open(t, to), "copy"); err != nil {
		t.Fatal(err)
	}
	if got, want := hashOf(t, filepath.Join(to, "copy")), hashOf(t, root); got != want {
		t.Errorf("hash of the copy %s, want %s", got, want)
	}
}

func TestRemoveAll(t *testing.T) {
	base := t.TempDir()
	outside := files(t, map[string]string{"kept": "x"})
	write(t, base, map[string]string{"a/b/c": "1", "a/n\xff": "2", "file": "3"})
	if err := os.Symlink(outside, filepath.Join(base, "a", "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a/b", "a"} {
		if err := os.Chmod(filepath.Join(base, path), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, base)
	for _, name := range []string{"a", "file", "nothing"} {
		if err := d.RemoveAll(t.Context(), name); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if names, err := d.List(); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

// Whoever is not root, and may not read a directory, removes it all the same.
func TestRemoveAll_Unreadable(t *testing.T) {
	const variable = "TREE_TEST_REMOVE"
	if dir := os.Getenv(variable); dir != "" {
		if err := open(t, dir).RemoveAll(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		return
	}
	base := t.TempDir()
	write(t, base, map[string]string{"a/b/c": "1", "a/d/e": "2"})
	cmd := exec.Command(os.Args[0], "-test.run=^TestRemoveAll_Unreadable$")
	cmd.Env = append(os.Environ(), variable+"="+base)
	if os.Geteuid() == 0 {
		const nobody = 65534
		err := filepath.WalkDir(base, func(path string, _ os.DirEntry, _ error) error { return os.Chown(path, nobody, nobody) })
		if err != nil {
			t.Fatal(err)
		}
		for at := base; at != "/"; at = filepath.Dir(at) {
			if info, err := os.Stat(at); err != nil || info.Mode()&0o001 == 0 {
				if err := os.Chmod(at, info.Mode().Perm()|0o711); err != nil {
					t.Fatal(err)
				}
			}
		}
		program := filepath.Join(base, "test") // where everybody may run it
		data, err := os.ReadFile(os.Args[0])
		if err == nil {
			err = os.WriteFile(program, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Dir = program, base
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	for _, path := range []string{"a/b", "a/d", "a"} {
		if err := os.Chmod(filepath.Join(base, path), 0); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Lstat(filepath.Join(base, "a")); err == nil {
		t.Error("it is still there")
	}
}

func TestReplace(t *testing.T) {
	base := t.TempDir()
	d := open(t, base)
	for _, data := range []string{"one", "two"} {
		if err := d.Replace("file", ".file.new", []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got, err := d.ReadFile("file", 3); err != nil || string(got) != data {
			t.Errorf("read %q, %v, want %q", got, err, data)
		}
	}
	if err := os.Mkdir(filepath.Join(base, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Replace("dir", ".dir.new", nil); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if names, err := d.List(); err != nil || !cmp.Equal(names, []string{"dir", "file"}) {
		t.Errorf("left: %q, %v", names, err)
	}
	var invalid *tree.Invalid
	if _, err := d.ReadFile("file", 2); !errors.As(err, &invalid) {
		t.Errorf("over the limit: %v", err)
	}
	if err := os.Symlink("file", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dir"} {
		if _, err := d.ReadFile(name, 3); !errors.As(err, &invalid) {
			t.Errorf("read %s: %v", name, err)
		}
	}
}

// A walk that ends early leaves no descriptor open, whatever it was reading ahead.
func TestWalk_EndsEarly(t *testing.T) {
	content := map[string]string{}
	for i := range 300 {
		content[fmt.Sprintf("d%d/e%d/f%d", i%5, i%3, i)] = strings.Repeat("x", i*100)
	}
	root, to := files(t, content), t.TempDir()
	for _, at := range []string{"d0/e1/l", "d4/e2/l", "a"} {
		if err := os.Symlink("x", filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
		d, into := open(t, root), open(t, to)
		before := descriptors(t)
		if _, err := d.Hash(t.Context(), tree.Keep{}); err == nil {
			t.Error("a link was hashed")
		}
		if err := d.CopyTo(t.Context(), into, "copy-"+filepath.Base(filepath.Dir(at))); err == nil {
			t.Error("a link was copied")
		}
		if after := descriptors(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", at, before, after)
		}
		if err := os.Remove(filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
