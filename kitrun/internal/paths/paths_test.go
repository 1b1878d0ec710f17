package paths_test

import (
	"os"
	"path/filepath"
	"testing"

	"drawbridge/kitrun/internal/paths"
)

func TestWithin(t *testing.T) {
	for _, tc := range []struct {
		path, dir string
		want      bool
	}{
		{"/a/b", "/a/b", true}, {"/a/b/c", "/a/b", true}, {"/a/bc", "/a/b", false}, {"/a", "/a/b", false}, {"/a", "/", true}, {"/", "/", true}, {"/", "/a", false},
	} {
		if got := paths.Within(tc.path, tc.dir); got != tc.want {
			t.Errorf("%s in %s: %v", tc.path, tc.dir, got)
		}
	}
}

func TestReal(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "there"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "there", "broken": "nowhere", "round": "round"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		path, want string
		missing    bool
	}{
		{"there", "there", false}, {"link", "there", false}, {"link/new/er", "there/new/er", true}, {"none/at/all", "none/at/all", true},
		{"broken", "", false}, {"broken/new", "", false}, {"round", "", false},
	} {
		got, missing, err := paths.Real(filepath.Join(dir, tc.path))
		if (err != nil) != (tc.want == "") || missing != tc.missing || err == nil && got != filepath.Join(dir, tc.want) {
			t.Errorf("%s: %s, missing %v, %v", tc.path, got, missing, err)
		}
	}
}
