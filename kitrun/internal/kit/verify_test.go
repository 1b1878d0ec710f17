package kit_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
)

// Proves kit 17.17.
func TestVerify_Refused(t *testing.T) {
	replace := func(old, new string) func(t *testing.T, dest, root string) {
		return func(t *testing.T, dest, _ string) {
			text := read(t, registry(dest))
			if !strings.Contains(text, old) {
				t.Fatalf("no %q in %s", old, text)
			}
			if err := os.WriteFile(registry(dest), []byte(strings.Replace(text, old, new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	add := func(files map[string]string) func(t *testing.T, dest, root string) {
		return func(t *testing.T, _, root string) { write(t, root, files) }
	}
	must := func(do func(dest, root string) error) func(t *testing.T, dest, root string) {
		return func(t *testing.T, dest, root string) {
			if err := do(dest, root); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, dest, root string)
		id    string
		code  fault.Code
		state kit.State // of status, "" when it is not asked
	}{
		{"no kit id", nil, "../sample", fault.KitID, ""},
		{"unknown id", nil, "other", fault.KitNotInstalled, ""},
		{"no registry", must(func(dest, _ string) error { return os.Remove(registry(dest)) }), "", fault.KitNotInstalled, ""},
		{"two entries", func(t *testing.T, dest, _ string) {
			text := read(t, registry(dest))
			entry := text[strings.Index(text, "    {\n") : strings.Index(text, "    }\n")+len("    }")]
			replace(entry, entry+",\n"+entry)(t, dest, "")
		}, "", fault.KitAmbiguous, ""},
		{"drifted", add(map[string]string{"lib/entry.mjs": "export const run = 1;\n"}), "", fault.KitDrifted, kit.Drifted},
		{"a file more", add(map[string]string{"more": ""}), "", fault.KitDrifted, kit.Drifted},
		{"missing", must(func(_, root string) error { return os.RemoveAll(root) }), "", fault.KitMissing, kit.Missing},
		{"all copies missing", must(func(dest, _ string) error { return os.RemoveAll(repos(dest)) }), "", fault.KitMissing, kit.Missing},
		{"a link in the copy", must(func(_, root string) error { return os.Symlink("flow.json", filepath.Join(root, "l")) }), "", fault.KitTree, kit.Broken},
		{"the copy is a link", must(func(_, root string) error {
			return errors.Join(os.Rename(root, root+"2"), os.Symlink("sample2", root))
		}), "", fault.KitTree, kit.Broken},
		{"path not canonical", replace("kits/local/repositories/sample", "kits/local/repositories/../repositories/sample"), "", fault.KitEntry, kit.Broken},
		{"path absolute", func(t *testing.T, dest, root string) {
			replace(`"kits/local/repositories/sample"`, `"`+root+`"`)(t, dest, root)
		}, "", fault.KitEntry, kit.Broken},
		{"hash not sha256", replace("sha256:", "sha512:"), "", fault.KitEntry, kit.Broken},
		{"hash in capitals", func(t *testing.T, dest, _ string) {
			text := read(t, registry(dest))
			_, hash, _ := strings.Cut(text, `"sha256:`)
			replace(hash[:64], strings.Repeat("A", 64))(t, dest, "")
		}, "", fault.KitEntry, kit.Broken},
		{"__pycache__ added", add(map[string]string{"lib/__pycache__/x.pyc": ""}), "", fault.KitUnhashed, kit.Installed},
		{".git directory added", add(map[string]string{".git/": ""}), "", fault.KitUnhashed, kit.Installed},
		{".git file added deep", add(map[string]string{"a/b/c/.git": ""}), "", fault.KitUnhashed, kit.Installed},
		{".pytest_cache file added", add(map[string]string{".pytest_cache": ""}), "", fault.KitUnhashed, kit.Installed},
		{"module through a link", must(func(_, root string) error {
			return errors.Join(os.Rename(filepath.Join(root, "lib"), filepath.Join(root, "real")), os.Symlink("real", filepath.Join(root, "lib")))
		}), "", fault.KitTree, kit.Broken},
		{"registry is no JSON", replace("{", ""), "", fault.KitRegistry, ""},
		{"registry of another version", replace(`"1.0"`, `"2.0"`), "", fault.KitRegistry, ""},
		{"registry without kits", replace(`"kits"`, `"kitz"`), "", fault.KitRegistry, ""},
		{"registry is a link", must(func(dest, _ string) error {
			return errors.Join(os.Rename(registry(dest), dest+"/r"), os.Symlink(dest+"/r", registry(dest)))
		}), "", fault.KitRegistry, ""},
		{"registry is a directory", must(func(dest, _ string) error {
			return errors.Join(os.Remove(registry(dest)), os.Mkdir(registry(dest), 0o755))
		}), "", fault.KitRegistry, ""},
		{"registry too large", func(t *testing.T, dest, _ string) {
			write(t, dest, map[string]string{"kits/local/installed-kits.json": strings.Repeat(" ", 4<<20) + read(t, registry(dest))})
		}, "", fault.KitRegistry, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dest := t.TempDir()
			out := install(t, sample(t, nil), dest)
			if tc.spoil != nil {
				tc.spoil(t, dest, out.Path)
			}
			id := tc.id
			if id == "" {
				id = "sample"
			}
			unchanged(t, dest, func() {
				v, err := kit.Verify(t.Context(), id, dest)
				wantCode(t, err, tc.code)
				if diff := cmp.Diff(kit.Verified{}, v); diff != "" {
					t.Errorf("a refusal with facts: %s", diff)
				}
				all, err := kit.Statuses(t.Context(), dest, id)
				switch {
				case tc.code == fault.KitRegistry:
					wantCode(t, err, fault.KitRegistry)
					_, err := kit.List(dest)
					wantCode(t, err, fault.KitRegistry)
				case err != nil:
					t.Error(err)
				case tc.state != "" && (len(all) != 1 || all[0].State != tc.state):
					t.Errorf("status: %+v, want %s", all, tc.state)
				}
			})
			if tc.code == fault.KitRegistry {
				unchanged(t, dest, func() {
					_, err := tryInstall(t, sample(t, nil), dest, update)
					wantCode(t, err, fault.KitRegistry)
					_, err = new(kit.Keeper).Uninstall(t.Context(), "sample", dest)
					wantCode(t, err, fault.KitRegistry)
				})
			}
		})
	}
}

func TestVerify_Entry(t *testing.T) {
	// kit.json with another entry than the one that was installed is drift; one that
	// a careless tool registered is not run when the module is missing.
	dest := t.TempDir()
	out := install(t, sample(t, nil), dest)
	if err := os.Rename(filepath.Join(out.Path, "lib", "entry.mjs"), filepath.Join(out.Path, "lib", "other.mjs")); err != nil {
		t.Fatal(err)
	}
	adopt(t, dest, "sample")
	_, err := kit.Verify(t.Context(), "sample", dest)
	wantCode(t, err, fault.KitNotRunnable)
	if err := os.Mkdir(filepath.Join(out.Path, "lib", "entry.mjs"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = kit.Verify(t.Context(), "sample", dest)
	wantCode(t, err, fault.KitNotRunnable)
	if err := os.Remove(filepath.Join(out.Path, "kit.json")); err != nil {
		t.Fatal(err)
	}
	adopt(t, dest, "sample")
	_, err = kit.Verify(t.Context(), "sample", dest)
	wantCode(t, err, fault.KitNotRunnable)
}

// A destination without anything is empty, not broken.
func TestStatuses_Nothing(t *testing.T) {
	for _, dest := range []string{t.TempDir(), filepath.Join(t.TempDir(), "nowhere")} {
		if all, err := kit.Statuses(t.Context(), dest, ""); err != nil || len(all) > 0 {
			t.Errorf("statuses: %v, %v", all, err)
		}
		if all, err := kit.List(dest); err != nil || len(all) > 0 {
			t.Errorf("list: %v, %v", all, err)
		}
		if _, err := os.Stat(filepath.Join(dest, "kits")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("looking made something: %v", err)
		}
	}
	_, err := kit.List("")
	wantCode(t, err, fault.Usage)
}
