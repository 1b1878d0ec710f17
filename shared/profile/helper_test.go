package profile_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

const starterFingerprint = "sha256:0346d0c8503f62a94f53450f51a0cbef82cb1b2bcb8d0f448018b3e751d9bf67"

// gone removes a member in edit.
type gone struct{}

// edit gives the starter document with the member at each dotted path set.
func edit(t testing.TB, changes ...any) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(profile.Starter(), &doc); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		path := strings.Split(changes[i].(string), ".")
		at := doc
		for _, step := range path[:len(path)-1] {
			at = at[step].(map[string]any)
		}
		last := path[len(path)-1]
		if _, ok := changes[i+1].(gone); ok {
			delete(at, last)
		} else {
			at[last] = changes[i+1]
		}
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustParse(t testing.TB, data []byte) profile.Profile {
	t.Helper()
	p, err := profile.Parse(data)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	return p
}

// refused demands one class, and one path unless it is "*".
func refused(t *testing.T, err error, class fault.Code, path string) {
	t.Helper()
	pe, ok := err.(*profile.ProfileError)
	if !ok {
		t.Errorf("got %v, want a ProfileError of class %s", err, class)
		return
	}
	if pe.Class != class || path != "*" && pe.Path != path {
		t.Errorf("got class %s at %q (%v), want %s at %q", pe.Class, pe.Path, pe, class, path)
	}
	if fault.CodeOf(err) != class {
		t.Errorf("fault code: got %s, want %s", fault.CodeOf(err), class)
	}
}

func write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func repeat(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// dir is a temporary directory by its canonical path.
func dir(t testing.TB) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}
