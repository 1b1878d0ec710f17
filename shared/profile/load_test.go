package profile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// padded gives the starter with white space up to size bytes.
func padded(size int) []byte {
	return append(bytes.Repeat([]byte(" "), size-len(profile.Starter())), profile.Starter()...)
}

// Proves host-profile 15.7.
func TestLoad_Size(t *testing.T) {
	d := dir(t)
	if _, _, err := profile.Load(write(t, d, "max.json", padded(262144)), profile.Registry{}); err != nil {
		t.Errorf("262,144 bytes: %v", err)
	}
	_, _, err := profile.Load(write(t, d, "over.json", padded(262145)), profile.Registry{})
	refused(t, err, fault.ProfileTooLarge, "")

	grow := func(name string, from, by int) error {
		path := write(t, d, name, padded(from))
		_, err := profile.ReadFile(path, func() {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(bytes.Repeat([]byte(" "), by)); err != nil {
				t.Fatal(err)
			}
		})
		return err
	}
	refused(t, grow("grow-over.json", 262144, 1), fault.ProfileTooLarge, "")
	refused(t, grow("grow.json", 4096, 1), fault.ProfileUnreadable, "")
}

// Proves host-profile 15.8.
func TestLoad_Path(t *testing.T) {
	d := dir(t)
	real := write(t, d, "real.JSON", profile.Starter())
	text := write(t, d, "x.txt", profile.Starter())
	link := func(name, target string) string {
		t.Helper()
		path := filepath.Join(d, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := link("good", real) // the target's name counts, not the link's
	_, src, err := profile.Load(good, profile.Registry{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (profile.Source{Kind: profile.SourceFile, Selection: real}); src != want {
		t.Errorf("got %v, want %v", src, want)
	}
	t.Run("relative to the working directory", func(t *testing.T) {
		t.Chdir(d)
		_, src, err := profile.Load("./real.JSON", profile.Registry{})
		if err != nil || src.Selection != real {
			t.Errorf("got %v, %v", src, err)
		}
	})
	if err := os.Mkdir(filepath.Join(d, "dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(d, "fifo.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, selection := range map[string]string{
		"link to text": link("link.json", text), "directory": filepath.Join(d, "dir.json"), "fifo": filepath.Join(d, "fifo.json"),
		"text": text, "missing": filepath.Join(d, "none.json"), "dangling": link("dangling.json", filepath.Join(d, "gone.json")),
		"loop": link("loop.json", filepath.Join(d, "loop.json")), "device": "/dev/null", "empty": "", "NUL": "a\x00.json", "padded": " " + real,
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := profile.Load(selection, profile.Registry{})
			refused(t, err, fault.ProfilePathInvalid, "")
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		locked := write(t, d, "locked.json", profile.Starter())
		if err := errors.Join(os.Chmod(locked, 0), os.Chmod(d, 0o755), os.Chmod(filepath.Dir(d), 0o755)); err != nil {
			t.Fatal(err)
		}
		// Root reads everything; this thread is somebody else to the file system
		// until it ends with the test.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err := unix.Setfsuid(65534); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err := profile.Load(locked, profile.Registry{})
		refused(t, err, fault.ProfileUnreadable, "")
	})
}

// Proves host-profile 15.10.
func TestRegistry_ReservedIDs(t *testing.T) {
	reg, err := profile.NewRegistry(edit(t, "id", "builtin-x"), edit(t, "id", "acme"))
	if err != nil {
		t.Fatal(err)
	}
	d := dir(t)
	for _, id := range []string{"builtin-x", "builtin-other", "acme"} {
		_, _, err := profile.Load(write(t, d, "p.json", edit(t, "id", id)), reg)
		refused(t, err, fault.ProfileReservedID, "id")
	}
	if _, _, err := profile.Load(write(t, d, "p.json", profile.Starter()), reg); err != nil {
		t.Errorf("a free id: %v", err)
	}
	// A built-in id wins over a file of the same name.
	t.Chdir(d)
	write(t, d, "acme", profile.Starter())
	p, src, err := profile.Load("acme", reg)
	if err != nil || p.ID() != "acme" || src != (profile.Source{Kind: profile.SourceBuiltIn, Selection: "acme"}) {
		t.Errorf("got %s from %v, %v", p.ID(), src, err)
	}
	var ids []string
	for _, p := range reg.List() {
		ids = append(ids, p.ID())
	}
	if got, want := strings.Join(ids, " "), "acme builtin-x"; got != want {
		t.Errorf("list: got %s, want %s", got, want)
	}
	if _, err := profile.NewRegistry(profile.Starter(), profile.Starter()); err == nil {
		t.Error("an id was registered twice")
	}
}

// The shipped Profiles call the bridge beside the running program, whatever its
// path holds, and their documents are otherwise fixed.
func TestBuiltIns(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, p := range profile.BuiltIns().List() {
		ids = append(ids, p.ID()+" for "+p.Host()+" "+p.Range()+" by "+p.SessionVariable())
		if want := filepath.Join(filepath.Dir(exe), "bridge"); p.Executable() != want {
			t.Errorf("%s calls %s, want %s", p.ID(), p.Executable(), want)
		}
		if !p.Standalone() {
			t.Errorf("%s is not for a stand-alone bridge", p.ID())
		}
		if loaded, src, err := profile.Load(p.ID(), profile.BuiltIns()); err != nil || src.Kind != profile.SourceBuiltIn || loaded.Fingerprint() != p.Fingerprint() {
			t.Errorf("load %s: %v, %v", p.ID(), src, err)
		}
	}
	want := []string{"builtin-claude-code for claude-code >=2.1.0 <3.0.0 by CLAUDE_CODE_SESSION_ID", "builtin-codex for codex >=0.148.0 <1.0.0 by CODEX_BRIDGE_SESSION"}
	if !slices.Equal(ids, want) {
		t.Errorf("built-ins %q, want %q", ids, want)
	}
	for path, ok := range map[string]bool{`/opt/a "b"/bridge`: true, "/opt/é/bridge": true, "/opt/${x}/bridge": false, "bridge": false} {
		reg, err := profile.BuiltInsAt(path)
		if (err == nil) != ok {
			t.Errorf("at %s: %v", path, err)
		}
		for _, p := range reg.List() {
			if p.Executable() != path {
				t.Errorf("at %s: %s", path, p.Executable())
			}
		}
	}
}
