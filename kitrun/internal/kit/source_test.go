package kit_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
)

// Proves kit 17.14.
func TestRecordSource(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		ok         bool
	}{
		{"plain", "https://example.org/kits/sample#v1", true},
		{"other scripts", "Käse 😀", true},
		{"1024 units", strings.Repeat("😀", 512), true},
		{"1025 units", strings.Repeat("😀", 512) + "x", false},
		{"1025 letters", strings.Repeat("x", 1025), false},
		{"empty", "", false},
		{"blank", " \t", false},
		{"blank in front", " x", false},
		{"no-break space behind", "x\u00a0", false},
		{"byte order mark in front", "\ufeffx", false},
		{"line end inside", "a\nb", false},
		{"escape", "a\x1b[31mb", false},
		{"C1 control", "a\u0085b", false},
		{"right-to-left override", "a\u202eb", false},
		{"zero-width joiner", "a\u200db", false},
		{"line separator", "a\u2028b", false},
		{"paragraph separator", "a\u2029b", false},
		{"not UTF-8", "a\xffb", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dest := t.TempDir()
			set := func(o *kit.InstallOptions) { o.RecordSource = &tc.text }
			if tc.ok {
				if out := install(t, sample(t, nil), dest, set); out.Source != tc.text {
					t.Errorf("recorded %q", out.Source)
				}
				return
			}
			unchanged(t, dest, func() {
				_, err := tryInstall(t, sample(t, nil), dest, set)
				wantCode(t, err, fault.Usage)
			})
		})
	}
	text := "fine"
	for _, source := range []string{"https://example.invalid/kit.git", "file:///nowhere", "/nowhere/kit.git", "git+ssh://example.invalid/x"} {
		_, err := tryInstall(t, source, t.TempDir(), func(o *kit.InstallOptions) { o.RecordSource = &text })
		wantCode(t, err, fault.Usage)
	}
	_, err := tryInstall(t, sample(t, nil), t.TempDir(), func(o *kit.InstallOptions) { o.Ref = "main" })
	wantCode(t, err, fault.Usage)
}

// git runs git in dir with a configuration of its own.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// repository makes a kit in a git repository with a tag v1 behind its newest
// commit.
func repository(t *testing.T) string {
	t.Helper()
	source := sample(t, map[string]string{"which": "first"})
	git(t, source, "init", "-q", "-b", "main")
	git(t, source, "add", "-A")
	git(t, source, "commit", "-q", "-m", "first")
	git(t, source, "tag", "v1")
	write(t, source, map[string]string{"which": "second"})
	git(t, source, "commit", "-q", "-a", "-m", "second")
	return source
}

// Proves kit 17.15.
func TestInstall_Git(t *testing.T) {
	testkit.Need(t, "git")
	source := repository(t)
	// Hooks that an operator's own configuration would give every clone.
	home, marker := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	hook := "#!/bin/sh\ntouch " + marker + "\n"
	for _, dir := range []string{"template/hooks", "hooks"} {
		write(t, home, map[string]string{dir + "/post-checkout": hook, dir + "/reference-transaction": hook})
		for _, name := range []string{"post-checkout", "reference-transaction"} {
			if err := os.Chmod(filepath.Join(home, dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, home, map[string]string{".gitconfig": "[init]\n\ttemplateDir = " + home + "/template\n[core]\n\thooksPath = " + home + "/hooks\n[safe]\n\tdirectory = *\n"})
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	for _, tc := range []struct {
		name, source, ref, recorded, which string
	}{
		{"newest", "file://" + source, "", "file://" + source, "second"},
		{"fragment", "file://" + source + "#v1", "", "file://" + source + "#v1", "first"},
		{"ref", "file://" + source, "v1", "file://" + source + "#v1", "first"},
		{"fragment over ref", "file://" + source + "#main", "v1", "file://" + source + "#main", "second"},
		{"git+file", "git+file://" + source + "#v1", "", "git+file://" + source + "#v1", "first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dest := t.TempDir()
			out := install(t, tc.source, dest, func(o *kit.InstallOptions) { o.Ref = tc.ref })
			if out.Source != tc.recorded || !out.Git || read(t, out.Path, "which") != tc.which {
				t.Errorf("out %+v, which %q", out, read(t, out.Path, "which"))
			}
			all, err := kit.List(dest)
			if err != nil || len(all) != 1 || all[0].Source() != tc.recorded {
				t.Errorf("list: %v, %v", all, err)
			}
			unchanged(t, dest, func() {
				if out := install(t, tc.source, dest, func(o *kit.InstallOptions) { o.Ref = tc.ref }); out.Change != kit.Unchanged {
					t.Errorf("again: %+v", out)
				}
			})
			if tc.name == "fragment" {
				if out, err := new(kit.Keeper).Update(t.Context(), "sample", dest); err != nil || out.Change != kit.Replaced {
					t.Errorf("update: %+v, %v", out, err)
				}
			}
			if _, err := os.Stat(filepath.Join(out.Path, ".git")); err == nil {
				t.Error("the copy has a .git")
			}
		})
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a hook ran")
	}
	for _, bad := range []string{"file://" + source + "#nothing", "file:///nowhere/at/all", "ext::sh -c 'touch " + marker + "' x.git"} {
		dest := t.TempDir()
		unchanged(t, dest, func() {
			_, err := tryInstall(t, bad, dest)
			wantCode(t, err, fault.KitClone)
		})
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a transport ran a command")
	}
	_, err := tryInstall(t, "file://"+source, t.TempDir(), func(o *kit.InstallOptions) { o.Ref = "--upload-pack=touch " + marker })
	wantCode(t, err, fault.Usage)
}

// Proves kit 17.15.
func TestInstall_GitAsksNobody(t *testing.T) {
	testkit.Need(t, "git")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="kits"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer srv.Close()
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	write(t, dir, map[string]string{"ask": "#!/bin/sh\ntouch " + asked + "\necho x\n"})
	if err := os.Chmod(filepath.Join(dir, "ask"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", dir)
	t.Setenv("GIT_ASKPASS", filepath.Join(dir, "ask"))
	t.Setenv("SSH_ASKPASS", filepath.Join(dir, "ask"))
	for _, source := range []string{srv.URL + "/kit.git", strings.Replace(srv.URL, "//", "//someone:hush-word@", 1) + "/kit.git#v1"} {
		dest := t.TempDir()
		unchanged(t, dest, func() {
			_, err := tryInstall(t, source, dest)
			wantCode(t, err, fault.KitClone)
			if strings.Contains(err.Error(), "hush-word") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
	if _, err := os.Stat(asked); err == nil {
		t.Error("somebody was asked for a password")
	}
}

func TestIsGit(t *testing.T) {
	for source, want := range map[string]bool{
		"https://x/y": true, "http://x": true, "ssh://x": true, "file:///x": true, "git+https://x": true, "/x/y.git": true, "git@x:y.git": true,
		"/x/y": false, "x.git/y": false, "kit": false, "./https://x": false,
	} {
		if got := kit.IsGit(source); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}

func TestWithoutUser(t *testing.T) {
	for in, want := range map[string][2]string{
		"https://example.org/a.git":               {"https://example.org/a.git", ""},
		"https://token@example.org/a.git":         {"https://example.org/a.git", "token"},
		"https://u:p%40q@example.org:8443/a?b=@c": {"https://example.org:8443/a?b=@c", "u:p%40q"},
		"git+https://u:p@example.org/a.git":       {"git+https://example.org/a.git", "u:p"},
		"ssh://git@example.org/a.git":             {"ssh://git@example.org/a.git", ""},
		"ssh://git:p@example.org:22/a.git":        {"ssh://git@example.org:22/a.git", "p"},
		"git@example.org:a.git":                   {"git@example.org:a.git", ""},
		"/srv/a@b.git":                            {"/srv/a@b.git", ""},
	} {
		public, secret := kit.WithoutUser(in)
		if public != want[0] || secret != want[1] {
			t.Errorf("%s: %q, %q, want %q", in, public, secret, want)
		}
	}
}
