package secretfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/secretfile"
)

const most = 64

// The one who named a file is told which, why, and what to do.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("open"), []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("open"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("open", at("link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, tc := range []struct{ name, says, hint string }{
		{"open", "open: read the test file: its mode 0644 lets others in", "chmod 600 open"},
		{at("open"), at("open") + ": read the test file: its mode 0644 lets others in", "chmod 600 " + at("open")},
		{"link", "link: read the test file: it is a symbolic link", "give the path of the file that it leads to"},
		{".", ".: read the test file: it is no regular file", "it must be a regular file of this user with mode 0600"},
		{"none", "none: read the test file: it cannot be opened: no such file or directory", ""},
	} {
		f, ok := fault.As(secretfile.Check("test file", tc.name))
		if !ok || f.Message != tc.says || f.Hint != tc.hint {
			t.Errorf("%s: got %+v", tc.name, f)
		}
	}
	other := fault.New(fault.BrokerUnavailable, "nobody there")
	if err := secretfile.Blame(other, "open"); err != error(other) {
		t.Errorf("got %v", err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{"good": 0o600, "open": 0o644, "group": 0o660} {
		if err := os.WriteFile(at(name), []byte("CANARY"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"empty": "", "large": strings.Repeat("x", most+1), "full": strings.Repeat("x", most)} {
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("good", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		code fault.Code
		why  string
		look bool // Look finds it, too
	}{
		{"good", "", "", false},
		{"full", "", "", false},
		{"open", fault.CredentialPermissions, "lets others in", true},
		{"group", fault.CredentialPermissions, "lets others in", true},
		{"link", fault.CredentialPermissions, "symbolic link", true},
		{"fifo", fault.CredentialPermissions, "no regular file", true},
		{".", fault.CredentialPermissions, "no regular file", true},
		{"empty", fault.CredentialUnavailable, "empty", true},
		{"large", fault.CredentialUnavailable, "larger than 64", false},
		{"none", fault.CredentialUnavailable, "no such file", true},
	} {
		data, state, err := secretfile.Read("test file", at(tc.name), most)
		if fault.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.code)
			continue
		}
		looked, err2 := secretfile.Look("test file", at(tc.name))
		if (err2 != nil) != tc.look {
			t.Errorf("%s: a look says %v", tc.name, err2)
		}
		if err == nil {
			if len(data) == 0 || state != looked {
				t.Errorf("%s: %d bytes, state %v, looked %v", tc.name, len(data), state, looked)
			}
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "read the test file: ") || !strings.Contains(text, tc.why) ||
			strings.Contains(text, dir) || strings.Contains(text, "CANARY") {
			t.Errorf("%s: %s", tc.name, text)
		}
	}
}

// A file that is replaced has another state.
func TestLook_State(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	var last secretfile.State
	for range 3 {
		if err := os.WriteFile(path+".new", []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		now, err := secretfile.Look("secret", path)
		if err != nil || now == last {
			t.Fatalf("%v, %v after %v", err, now, last)
		}
		last = now
	}
}
