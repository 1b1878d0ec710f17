package demoworker

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const secret = "test-secret-0123456789"

// short reads in small pieces.
type short struct{ r *bytes.Reader }

func (s short) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 7)]) }

// A secret is found wherever it lies, also across the edge of two pieces.
func TestHunt_Reader(t *testing.T) {
	for name, at := range map[string]int{
		"at the beginning": 0, "across the edge": chunk - 5, "one byte before the edge": chunk - len(secret) + 1, "behind it": chunk, "late": 3*chunk - 3,
	} {
		t.Run(name, func(t *testing.T) {
			data := append(bytes.Repeat([]byte("x"), at), secret...)
			for _, tail := range []int{0, 100} {
				h := &hunt{secrets: map[string][]byte{"it": []byte(secret)}}
				h.reader("here", "here", short{bytes.NewReader(append(data, make([]byte, tail)...))})
				if diff := cmp.Diff([]string{"it in here"}, h.found); diff != "" || h.sizes["here"] != int64(at+len(secret)+tail) {
					t.Errorf("%d bytes behind it: read %d (-want +got):\n%s", tail, h.sizes["here"], diff)
				}
			}
		})
	}
	h := &hunt{secrets: map[string][]byte{"it": []byte(secret)}}
	h.bytes("here", bytes.Repeat([]byte(secret[:len(secret)-1]), 2*chunk/len(secret)))
	if len(h.found) > 0 {
		t.Errorf("found %v where there is only the beginning of it", h.found)
	}
}

// Names, targets and contents are searched; what is skipped is not.
func TestHunt_Tree(t *testing.T) {
	dir := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "skipped"), 0o700), os.MkdirAll(filepath.Join(dir, "deep/er"), 0o700),
		os.WriteFile(filepath.Join(dir, "skipped/a"), []byte(secret), 0o600), os.WriteFile(filepath.Join(dir, "deep/er/a"), []byte("a "+secret), 0o600),
		os.WriteFile(filepath.Join(dir, "b-"+secret), nil, 0o600), os.Symlink(secret, filepath.Join(dir, "c")), os.WriteFile(filepath.Join(dir, "clean"), []byte("d"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	h := &hunt{secrets: map[string][]byte{"it": []byte(secret)}}
	h.tree("the tree", dir, "skipped")
	var got []string
	for _, where := range h.found {
		got = append(got, strings.ReplaceAll(where, dir+"/", ""))
	}
	slices.Sort(got)
	want := []string{"it in b-" + secret + " (its name)", "it in c (its target)", "it in deep/er/a"}
	if diff := cmp.Diff(want, got); diff != "" || len(h.failed) > 0 {
		t.Errorf("found (-want +got):\n%s\nfailed: %v", diff, h.failed)
	}
}

// The memory of a process is searched: this very one holds the secret.
func TestHunt_Memory(t *testing.T) {
	held := []byte(strings.ToUpper(secret))
	h := &hunt{secrets: map[string][]byte{"it": held}}
	h.memory("memory", os.Getpid())
	if len(h.found) != 1 || h.sizes["memory"] == 0 {
		t.Errorf("found %v in %d bytes", h.found, h.sizes["memory"])
	}
}
