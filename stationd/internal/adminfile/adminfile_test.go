package adminfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"drawbridge/stationd/internal/adminfile"
)

// Proves station 17.C4
func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "profiles.json")
	if err := os.WriteFile(path, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o644: true, 0o400: true, 0o620: false, 0o602: false, 0o666: false, 0o664: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if data, err := adminfile.Read(path, 8); (err == nil && string(data) == "12345678") != want {
			t.Errorf("mode %v: %q, %v", mode, data, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := adminfile.Read(path, 7); err == nil {
		t.Error("a file over the bound was read")
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{fifo, dir, path + "-"} {
		if _, err := adminfile.Read(p, 8); err == nil {
			t.Errorf("%s was read", filepath.Base(p))
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := adminfile.Read(path, 8); err == nil {
			t.Error("somebody else's file was read")
		}
	}
}
