package tree_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/stationd/internal/tree"
)

func fill(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, perm := range map[string]os.FileMode{"a": 0o644, "bin/run": 0o755, "sub/deep/" + strings.Repeat("long", 60): 0o600} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content of "+name), perm); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../a", filepath.Join(dir, "sub", "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What is unpacked is what was packed, and one changed thing is another digest.
func TestUnpack(t *testing.T) {
	from := fill(t)
	want, err := tree.Of(from)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tree.Pack(t.Context(), from, &archive); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := tree.Unpack(bytes.NewReader(archive.Bytes()), to); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Of(to); err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if err := tree.Unpack(bytes.NewReader(archive.Bytes()), to); err == nil {
		t.Error("it was unpacked over what is there")
	}
	if err := tree.Unpack(bytes.NewReader(archive.Bytes()[:archive.Len()/2]), t.TempDir()); err == nil {
		t.Error("half an archive is one")
	}
	for name, change := range map[string]func() error{
		"mode":    func() error { return os.Chmod(filepath.Join(to, "a"), 0o755) },
		"content": func() error { return os.WriteFile(filepath.Join(to, "bin/run"), []byte("other"), 0o755) },
		"link": func() error {
			return os.Rename(filepath.Join(to, "sub/link"), filepath.Join(to, "sub/renamed"))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		got, err := tree.Of(to)
		if err != nil || got == want {
			t.Errorf("%s: the same digest, %v", name, err)
		}
		want = got
	}
}

// An archive that would write elsewhere is refused.
func TestUnpack_Outside(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]tar.Header{
		"up":        {{Name: "../x", Typeflag: tar.TypeReg}},
		"absolute":  {{Name: filepath.Join(outside, "x"), Typeflag: tar.TypeReg}},
		"by a link": {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "out/x", Typeflag: tar.TypeReg}},
		"device":    {{Name: "null", Typeflag: tar.TypeChar}},
		"hard link": {{Name: "x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range headers {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := tree.Unpack(&archive, dir); err == nil {
			t.Errorf("%s: unpacked", name)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Errorf("%s: outside are %v, %v", name, left, err)
		}
	}
}
