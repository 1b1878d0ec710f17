package launch_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/launch"
)

// repository is a git work tree with one commit.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	testkit.Need(t, "git")
	r := &repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	r.write("a.txt", "one\n", 0o644)
	r.write("bin/run", "#!/bin/sh\n", 0o755)
	r.write("gone.txt", "soon\n", 0o644)
	r.write(".gitignore", "ignored\n", 0o644)
	r.link("bin/link", "../a.txt")
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "first")
	return r
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=T", "-c", "user.email=t@x.test"}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repository) write(name, text string, mode fs.FileMode) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) link(name, to string) {
	r.t.Helper()
	if err := os.Symlink(to, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// files are the regular files and links of a workspace.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// Proves station 17.L1: against git and sha256sum themselves.
func TestGrounding(t *testing.T) {
	testkit.Need(t, "sha256sum")
	r := newRepository(t)
	r.git("remote", "add", "origin", "https://user:hunter2@git.test/team/app.git?token=hunter2")
	r.write("a.txt", "two\n", 0o644)
	r.write("added.txt", "new\n", 0o644)
	r.git("add", "added.txt")
	if err := os.Remove(filepath.Join(r.dir, "gone.txt")); err != nil {
		t.Fatal(err)
	}
	r.write("loose.txt", "loose\n", 0o644)
	r.write("ignored", "ignored\n", 0o644)

	dest := t.TempDir()
	g, err := launch.Sync(t.Context(), launch.Workspace{Source: r.dir, Include: "untracked"}, dest)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{".gitignore", "a.txt", "added.txt", "bin/link", "bin/run", "loose.txt"}, files(t, dest)); d != "" {
		t.Errorf("copied (-want +got):\n%s", d)
	}
	want := launch.Grounding{
		Repo: "https://git.test/team/app.git", SHA: r.git("rev-parse", "HEAD"), Branch: "main", Files: 6,
		Dirty: launch.Dirty{Modified: 1, Added: 1, Deleted: 1, Untracked: 1}, Bytes: g.Bytes,
	}
	script := `git -C "$1" status --porcelain -z | tr '\0' '\n' | sort | sha256sum | cut -c1-64
cd "$2"; { for f in $(find . -type f | sed 's,^\./,,'); do m=100644; [ -x "$f" ] && m=100755; echo "$m $f $(sha256sum <"$f" | cut -c1-64)"; done
for l in $(find . -type l | sed 's,^\./,,'); do echo "120000 $l $(printf %s "$(readlink "$l")" | sha256sum | cut -c1-64)"; done; } | sort | sha256sum | cut -c1-64
cat $(find . -type f) | wc -c`
	cmd := exec.Command("sh", "-c", script, "sh", r.dir, dest)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Fields(string(out))
	want.Dirty.Digest, want.TreeDigest = said[0], said[1]
	if d := cmp.Diff(want, g); d != "" || said[2] != fmt.Sprint(g.Bytes) {
		t.Errorf("grounding (-want +got), %s bytes:\n%s", said[2], d)
	}

	// A commit: its own files, and nothing of the work tree.
	r.git("checkout", "-q", "--detach")
	dest = t.TempDir()
	at, err := launch.Sync(t.Context(), launch.Workspace{Source: r.dir, Ref: "main"}, dest)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{".gitignore", "a.txt", "bin/link", "bin/run", "gone.txt"}, files(t, dest)); d != "" {
		t.Errorf("copied of a commit (-want +got):\n%s", d)
	}
	text, _ := os.ReadFile(filepath.Join(dest, "a.txt"))
	if at.SHA != g.SHA || at.Branch != "detached" || at.Dirty.Modified != 0 || string(text) != "one\n" {
		t.Errorf("%+v, a.txt %q", at, text)
	}
	for remote, want := range map[string]string{"git@git.test:team/app.git": "git.test:team/app.git", "ssh://u:p@git.test/x": "ssh://git.test/x", "/home/me/app": "", "file:///home/me/app": ""} {
		r.git("remote", "set-url", "origin", remote)
		if g, err := launch.Sync(t.Context(), launch.Workspace{Source: r.dir, Ref: "main"}, t.TempDir()); err != nil || g.Repo != want {
			t.Errorf("remote %s: %q, %v, want %q", remote, g.Repo, err, want)
		}
	}
}

// Proves station 17.L2
func TestWhatNeverReachesTheLease(t *testing.T) {
	r := newRepository(t)
	mark := filepath.Join(t.TempDir(), "mark")
	r.write(".git/hooks/post-checkout", "#!/bin/sh\ntouch "+mark+"\n", 0o755)
	r.write(".git/hooks/fsmonitor", "#!/bin/sh\ntouch "+mark+"\n", 0o755)
	r.git("config", "core.fsmonitor", filepath.Join(r.dir, ".git/hooks/fsmonitor"))
	r.git("config", "http.extraHeader", "Authorization: hunter2")
	if err := os.Remove(mark); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for name, w := range map[string]launch.Workspace{"work tree": {Source: r.dir, Include: "untracked"}, "commit": {Source: r.dir, Ref: "HEAD"}} {
		dest := t.TempDir()
		if _, err := launch.Sync(t.Context(), w, dest); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, f := range files(t, dest) {
			if text, _ := os.ReadFile(filepath.Join(dest, f)); strings.HasPrefix(f, ".git/") || strings.Contains(string(text), "hunter2") {
				t.Errorf("%s: %s reached the lease", name, f)
			}
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something of the repository was executed")
	}

	r.git("config", "--unset", "core.fsmonitor")
	for name, make := range map[string]func(r *repository){
		"absolute":       func(r *repository) { r.link("out", "/etc/passwd") },
		"above":          func(r *repository) { r.write("bin/x", "", 0o644); r.link("bin/out", "../../x") },
		"through a link": func(r *repository) { r.write("d/e/f", "", 0o644); r.link("d/up", ".."); r.link("out", "d/up/../x") },
		"the repository": func(r *repository) { r.link("out", "d"); r.link("d", "..") },
		"round":          func(r *repository) { r.link("x", "y"); r.link("y", "x") },
		"through two links": func(r *repository) {
			r.link("here", ".")
			r.write("b/c", "", 0o644)
			r.link("b/up", "../here/here")
			r.link("out", "b/up/../../etc")
		},
	} {
		r := &repository{t, t.TempDir()}
		r.git("init", "-q")
		make(r)
		r.git("add", "-A")
		r.git("commit", "-q", "-m", "links")
		for _, w := range []launch.Workspace{{Source: r.dir}, {Source: r.dir, Ref: "HEAD"}} {
			if _, err := launch.Sync(t.Context(), w, t.TempDir()); !fault.Is(err, fault.WorkspaceRefused) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := launch.Sync(t.Context(), launch.Workspace{Source: t.TempDir()}, t.TempDir()); !fault.Is(err, fault.WorkspaceRefused) {
		t.Errorf("no repository: %v", err)
	}
	if _, err := launch.Sync(t.Context(), launch.Workspace{Source: r.dir, Ref: "gone"}, t.TempDir()); !fault.Is(err, fault.WorkspaceRefused) {
		t.Errorf("no such commit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := launch.Sync(ctx, launch.Workspace{Source: r.dir}, t.TempDir()); err == nil {
		t.Error("copied after the end")
	}
	if g, err := launch.Sync(t.Context(), launch.Workspace{}, t.TempDir()); err != nil || g.Files != 0 || len(g.TreeDigest) != 64 {
		t.Errorf("no source: %+v, %v", g, err)
	}
}

// A file that became a pipe after it was looked at holds nobody up.
func TestSync_BecamePipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "a"), 0o600); err != nil {
		t.Fatal(err)
	}
	copied := make(chan error, 1)
	go func() { copied <- launch.CopyFile(dir, "a") }()
	select {
	case err := <-copied:
		if !fault.Is(err, fault.WorkspaceRefused) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for somebody to write into the pipe")
	}
}
