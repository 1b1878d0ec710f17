package worker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
)

func TestForkDigest(t *testing.T) {
	dir := t.TempDir()
	// In the order in which they count: by UTF-16 code units in each directory.
	// U+1F600 is a surrogate pair (D83D…) and stands before U+FF5E.
	files := []struct{ path, content string }{
		{"A", "1"}, {"B/z", ""}, {"a", "two"}, {"a.d/b/c", "three\x00"}, {"a.d/c", "4"}, {"ab", "5"}, {"é", "6"}, {"\U0001F600", "7"}, {"\uFF5E", "8"},
	}
	var all bytes.Buffer
	for _, f := range files {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.content), 0o600); err != nil {
			t.Fatal(err)
		}
		all.WriteByte(1)
		all.WriteString(f.path)
		all.WriteByte(0)
		all.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f.content))))
		all.WriteString(f.content)
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil { // a directory alone counts for nothing
		t.Fatal(err)
	}
	sum := sha256.Sum256(all.Bytes())
	got, err := worker.ForkDigest(t.Context(), dir)
	if want := "sha256:" + hex.EncodeToString(sum[:]); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestForkDigest_Unsupported(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link":   func(p string) error { return os.Symlink("/etc", p) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"socket": func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
			_, err := worker.ForkDigest(t.Context(), dir)
			wantCode(t, err, fault.StorageRefused)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.ForkDigest(ctx, dir); err == nil {
		t.Error("a digest although it was cancelled")
	}
	_, err := worker.ForkDigest(t.Context(), filepath.Join(dir, "absent"))
	wantCode(t, err, fault.StorageInspector)
}

func TestCompareUTF16(t *testing.T) {
	ordered := []string{"", "A", "Ab", "a", "ab", "b", "é", "\U0001F600", "\U0001F601", "\uFF5E"}
	for i, a := range ordered {
		for k, b := range ordered {
			got := worker.CompareUTF16(a, b)
			if (got < 0) != (i < k) || (got == 0) != (i == k) {
				t.Errorf("compare %q with %q: %d", a, b, got)
			}
		}
	}
}
