package kit_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// recorded is a destination as the kits' public tool 6.3.0 left it.
const recorded = "testdata/reference"

// Proves kit 17.5.
func TestInstall_AsRecorded(t *testing.T) {
	dest := t.TempDir()
	times := strings.Split(read(t, registry(recorded)), `"installed_at": "`)[1:]
	for i, from := range []struct{ source, as string }{
		{"testdata/public/valid-local-kit", "/srv/kits/valid-local-kit"},
		{"testdata/public/mixed-runtime-kit", "/srv/kits/mixed-runtime-kit"},
		{"testdata/public/valid-unknown-extension", "/srv/kits/valid-unknown-extension"},
		{"testdata/plain", `Käse 😀 <&> "q"`},
	} {
		at, err := time.Parse(time.RFC3339, times[i][:len("2026-12-01T00:00:00Z")])
		if err != nil {
			t.Fatal(err)
		}
		k := kit.Keeper{Now: func() time.Time { return at.Add(999 * time.Millisecond).In(time.FixedZone("", 3600)) }}
		if _, err := k.Install(t.Context(), kit.InstallOptions{Source: from.source, Dest: dest, RecordSource: &from.as}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, registry(recorded)), read(t, registry(dest))); diff != "" {
		t.Errorf("registry (-recorded +ours):\n%s", diff)
	}
	names := func(root string) (out []string) {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				rel, _ := filepath.Rel(root, path)
				out = append(out, rel+"\x00"+read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if diff := cmp.Diff(names(repos(recorded)), names(repos(dest))); diff != "" {
		t.Errorf("copies (-recorded +ours):\n%s", diff)
	}
}

// Proves kit 17.1, 17.5.
func TestVerify_Recorded(t *testing.T) {
	dest := t.TempDir()
	if err := os.CopyFS(dest, os.DirFS(recorded)); err != nil {
		t.Fatal(err)
	}
	all, err := kit.Statuses(t.Context(), dest, "")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	hashes := map[string]string{}
	for _, s := range all {
		data, err := strictjson.Indented(s.JSON())
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(string(data) + "\n")
		hashes[s.Entry.ID()] = s.Observed
	}
	if diff := cmp.Diff(read(t, dest, "status.txt"), text.String()); diff != "" {
		t.Errorf("status (-recorded +ours):\n%s", diff)
	}
	for id, want := range map[string]string{ // kit §2
		"example-kit":           "sha256:5c4a560bec81c24a2de5393d36ff7eb974a7a270fb0857534e9e410cf7728b64",
		"mixed-runtime-kit":     "sha256:a713bfaa57f5f992978c81b49d0963e33afe1d87e30c1c3bb8d635265fecc138",
		"unknown-extension-kit": "sha256:5cfbed442bf3cad240e456b05d372bc1e7a33758e9db212540ac1640943fa139",
	} {
		if hashes[id] != want {
			t.Errorf("hash of %s: %s, want %s", id, hashes[id], want)
		}
	}
	v, err := kit.Verify(t.Context(), "plain", dest)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(repos(dest), "plain")
	if v.KitRoot != root || v.ModulePath != filepath.Join(root, "entry.mjs") || v.Descriptor.Export != "run" || v.Hash != hashes["plain"] {
		t.Errorf("verified: %+v", v)
	}
	_, err = kit.Verify(t.Context(), "example-kit", dest)
	wantCode(t, err, fault.KitNotRunnable)
}

// Proves kit 17.8.
func TestInstall_Again(t *testing.T) {
	dest := filepath.Join(t.TempDir(), "new", "workspace")
	source := sample(t, nil)
	first := install(t, source, dest)
	if first.Change != kit.New || first.Path != filepath.Join(repos(dest), "sample") {
		t.Errorf("first: %+v", first)
	}
	unchanged(t, dest, func() {
		if out := install(t, source, dest); out.Change != kit.Unchanged {
			t.Errorf("again: %+v", out)
		}
		other := sample(t, map[string]string{"more": "x"})
		_, err := tryInstall(t, other, dest)
		wantCode(t, err, fault.KitConflict)
		if got := fault.ExitCode(err); got != 2 {
			t.Errorf("exit status of a conflict: %d", got)
		}
		if !strings.Contains(err.Error(), "already installed from "+source) {
			t.Errorf("conflict: %v", err)
		}
	})

	other := sample(t, map[string]string{"more": "x"})
	out := install(t, other, dest, update)
	if out.Change != kit.Replaced || out.Hash == first.Hash {
		t.Errorf("update: %+v", out)
	}
	if v, err := kit.Verify(t.Context(), "sample", dest); err != nil || v.Hash != out.Hash {
		t.Errorf("verify: %+v, %v", v, err)
	}

	// The same source with other content, with a missing copy, and by force.
	write(t, other, map[string]string{"more": "y"})
	if out := install(t, other, dest); out.Change != kit.Replaced {
		t.Errorf("other content: %+v", out)
	}
	if err := os.RemoveAll(out.Path); err != nil {
		t.Fatal(err)
	}
	if out := install(t, other, dest); out.Change != kit.Replaced {
		t.Errorf("missing copy: %+v", out)
	}
	write(t, out.Path, map[string]string{"drift": "z"})
	if out := install(t, other, dest, force); out.Change != kit.Replaced {
		t.Errorf("by force: %+v", out)
	}
	if _, err := kit.Verify(t.Context(), "sample", dest); err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(filepath.Join(repos(dest), ".*")); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
}

// installed_at stays while the source does, and nobody asks for an update.
func TestInstall_When(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	now := fixed()
	k := kit.Keeper{Now: func() time.Time { return now }}
	at := func(o kit.InstallOptions) string {
		t.Helper()
		now = now.Add(time.Hour)
		o.Source, o.Dest = source, dest
		if _, err := k.Install(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		all, err := kit.List(dest)
		if err != nil || len(all) != 1 {
			t.Fatalf("%d entries, %v", len(all), err)
		}
		return all[0].Text("installed_at")
	}
	if got := at(kit.InstallOptions{}); got != "2026-12-01T01:02:47Z" {
		t.Errorf("new: %s", got)
	}
	if got := at(kit.InstallOptions{Force: true}); got != "2026-12-01T01:02:47Z" {
		t.Errorf("by force: %s", got)
	}
	if got := at(kit.InstallOptions{Update: true}); got != "2026-12-01T03:02:47Z" {
		t.Errorf("update: %s", got)
	}
}

// Proves kit 17.3.
func TestInstall_Tree(t *testing.T) {
	for name, do := range map[string]func(root string) error{
		"link":        func(root string) error { return os.Symlink("kit.json", filepath.Join(root, "l")) },
		"link in git": func(root string) error { return os.Symlink("x", filepath.Join(root, ".git", "l")) },
		"FIFO":        func(root string) error { return unix.Mkfifo(filepath.Join(root, "p"), 0o600) },
		"name":        func(root string) error { return os.WriteFile(filepath.Join(root, "\xfe"), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			source, dest := sample(t, map[string]string{".git/HEAD": "x"}), t.TempDir()
			install(t, sample(t, nil), dest)
			if err := do(source); err != nil {
				t.Fatal(err)
			}
			unchanged(t, dest, func() {
				_, err := tryInstall(t, source, dest, update)
				wantCode(t, err, fault.KitTree)
			})
		})
	}
}

// Proves kit 17.9.
func TestInstall_Copy(t *testing.T) {
	source, dest := sample(t, map[string]string{
		".git/HEAD": "x", "lib/__pycache__/m.pyc": "x", ".pytest_cache/v": "x", "sub/.git": "gitdir: elsewhere", "bin/tool": "#!", "private": "p", "empty/": "",
	}), t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "private": 0o600} {
		if err := os.Chmod(filepath.Join(source, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	out := install(t, source, dest)
	for name, want := range map[string]string{
		"bin/tool": "-rwxr-xr-x", "private": "-rw-------", "empty": "drwxr-xr-x", "sub": "drwxr-xr-x",
		".git": "", "lib/__pycache__": "", ".pytest_cache": "", "sub/.git": "",
	} {
		got := ""
		if info, err := os.Lstat(filepath.Join(out.Path, name)); err == nil {
			got = info.Mode().String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if _, err := kit.Verify(t.Context(), "sample", dest); err != nil {
		t.Error(err)
	}
}

// Proves kit 17.10.
func TestInstall_Unsafe(t *testing.T) {
	link := func(t *testing.T, to, from string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		code fault.Code
		make func(t *testing.T, outside string) (source, dest string)
	}{
		{"dest is a link", fault.KitPath, func(t *testing.T, outside string) (string, string) {
			dest := filepath.Join(t.TempDir(), "dest")
			link(t, outside, dest)
			return sample(t, nil), dest
		}},
		{"kits/local is a link out", fault.KitPath, func(t *testing.T, outside string) (string, string) {
			dest := t.TempDir()
			link(t, outside, filepath.Join(dest, "kits", "local"))
			return sample(t, nil), dest
		}},
		{"repositories is a link out", fault.KitPath, func(t *testing.T, outside string) (string, string) {
			dest := t.TempDir()
			link(t, outside, repos(dest))
			return sample(t, nil), dest
		}},
		{"the copy is a link out", fault.KitPath, func(t *testing.T, outside string) (string, string) {
			dest := t.TempDir()
			link(t, outside, filepath.Join(repos(dest), "sample"))
			return sample(t, nil), dest
		}},
		{"the registry is a link", fault.KitRegistry, func(t *testing.T, outside string) (string, string) {
			dest := t.TempDir()
			link(t, filepath.Join(outside, "file"), registry(dest))
			return sample(t, nil), dest
		}},
		{"source in target", fault.KitPath, func(t *testing.T, _ string) (string, string) {
			dest := t.TempDir()
			source := filepath.Join(repos(dest), "sample", "deep")
			if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(source, os.DirFS(sample(t, nil))); err != nil {
				t.Fatal(err)
			}
			return source, dest
		}},
		{"source is the target", fault.KitPath, func(t *testing.T, _ string) (string, string) {
			dest := t.TempDir()
			return install(t, sample(t, nil), dest).Path, dest
		}},
		{"target in source", fault.KitPath, func(t *testing.T, _ string) (string, string) {
			source := sample(t, nil)
			return source, source
		}},
		{"target in source through a link", fault.KitPath, func(t *testing.T, _ string) (string, string) {
			source := sample(t, nil)
			through := filepath.Join(t.TempDir(), "through")
			link(t, source, through)
			return source, filepath.Join(through, "dest")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			outside := t.TempDir()
			write(t, outside, map[string]string{"file": `{"schema_version":"1.0","kits":[]}`})
			source, dest := tc.make(t, outside)
			unchanged(t, outside, func() {
				unchanged(t, source, func() {
					_, err := tryInstall(t, source, dest, update)
					wantCode(t, err, tc.code)
				})
			})
			if _, err := os.Lstat(lockDir(dest)); err == nil {
				t.Error("the lock directory is left")
			}
		})
	}
}

// Proves kit 17.13.
func TestInstall_RegistryFails(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	first := install(t, source, dest)
	write(t, source, map[string]string{"more": "x"})
	k := kit.Keeper{NewID: func() string { return "taken" }}
	write(t, dest, map[string]string{"kits/local/.installed-kits.json.new-taken/": ""}) // in the way of the temporary file
	unchanged(t, dest, func() {
		_, err := k.Install(t.Context(), kit.InstallOptions{Source: source, Dest: dest})
		wantCode(t, err, fault.KitInstall)
	})
	if v, err := kit.Verify(t.Context(), "sample", dest); err != nil || v.Hash != first.Hash {
		t.Errorf("verify: %+v, %v", v, err)
	}
	// A first install leaves nothing.
	other := t.TempDir()
	write(t, other, map[string]string{"kits/local/.installed-kits.json.new-taken/": "", "kits/local/repositories/": ""})
	unchanged(t, other, func() {
		_, err := k.Install(t.Context(), kit.InstallOptions{Source: source, Dest: other})
		wantCode(t, err, fault.KitInstall)
	})
}

func TestInstall_Cancelled(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	install(t, source, dest)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unchanged(t, dest, func() {
		_, err := new(kit.Keeper).Install(ctx, kit.InstallOptions{Source: source, Dest: dest, Update: true})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestInstall_WhileRunning(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	install(t, source, dest)
	live := 2
	k := kit.Keeper{Live: func(_ context.Context, d, id string) (bool, error) {
		if d != dest || id != "sample" {
			t.Errorf("asked for %s in %s", id, d)
		}
		live--
		return live >= 0, nil
	}}
	unchanged(t, dest, func() {
		_, err := k.Install(t.Context(), kit.InstallOptions{Source: source, Dest: dest, Force: true})
		wantCode(t, err, fault.KitInUse)
		_, err = k.Uninstall(t.Context(), "sample", dest)
		wantCode(t, err, fault.KitInUse)
	})
	live, k.Wait = 2, time.Minute
	if _, err := k.Install(t.Context(), kit.InstallOptions{Source: source, Dest: dest, Update: true}); err != nil {
		t.Errorf("an update waits for two looks: %v", err)
	}
	live, k.Wait = 1<<30, time.Millisecond
	_, err := k.Install(t.Context(), kit.InstallOptions{Source: source, Dest: dest, Update: true})
	wantCode(t, err, fault.KitInUse)
}

func TestUpdate(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	first := install(t, source, dest)
	write(t, source, map[string]string{"more": "x"})
	out, err := new(kit.Keeper).Update(t.Context(), "sample", dest)
	if err != nil || out.Change != kit.Replaced || out.Hash == first.Hash || out.Source != source {
		t.Errorf("update: %+v, %v", out, err)
	}
	_, err = new(kit.Keeper).Update(t.Context(), "other", dest)
	wantCode(t, err, fault.KitNotInstalled)
	write(t, source, map[string]string{"kit.json": strings.Replace(manifest, `"id":"sample"`, `"id":"renamed"`, 1)})
	unchanged(t, dest, func() {
		_, err := new(kit.Keeper).Update(t.Context(), "sample", dest)
		wantCode(t, err, fault.KitConflict)
	})
	text := "somewhere else"
	if _, err := tryInstall(t, sample(t, nil), dest, update, func(o *kit.InstallOptions) { o.RecordSource = &text }); err != nil {
		t.Fatal(err)
	}
	_, err = new(kit.Keeper).Update(t.Context(), "sample", dest)
	wantCode(t, err, fault.KitConflict)
}

func TestUninstall(t *testing.T) {
	dest := t.TempDir()
	out := install(t, sample(t, nil), dest)
	install(t, "testdata/plain", dest)
	if _, err := new(kit.Keeper).Uninstall(t.Context(), "sample", dest); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(out.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
	all, err := kit.List(dest)
	if err != nil || len(all) != 1 || all[0].ID() != "plain" {
		t.Errorf("left in the registry: %v, %v", all, err)
	}
	_, err = new(kit.Keeper).Uninstall(t.Context(), "sample", dest)
	wantCode(t, err, fault.KitNotInstalled)
	_, err = new(kit.Keeper).Uninstall(t.Context(), "plain", filepath.Join(dest, "nowhere"))
	wantCode(t, err, fault.KitNotInstalled)
	if err := os.RemoveAll(repos(dest)); err != nil {
		t.Fatal(err)
	}
	if _, err := new(kit.Keeper).Uninstall(t.Context(), "plain", dest); err != nil {
		t.Errorf("without its copy: %v", err)
	}
}
