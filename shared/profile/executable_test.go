package profile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/fault"
)

// Proves host-profile 15.16, host-profile 15.17, host-profile 15.18 (readiness).
func TestReady(t *testing.T) {
	d := dir(t)
	program := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(d, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(name, target string) string {
		t.Helper()
		path := filepath.Join(d, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(d, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	shell := program("zsh", "\x7fELF", 0o755) // a shell by name; where links lead is what matters
	path, none := []string{"PATH"}, []string{}
	long := "#!" + strings.Repeat(" ", 300) + "/usr/bin/env node\n"
	for _, c := range []struct {
		name, executable string
		allow            []string
		ok               bool
	}{
		{"a binary", binary, none, true},
		{"a link to a binary", link("callback", binary), none, true},
		{"a link to a shell", link("harmless", shell), path, false},
		{"a link to a link to a shell", link("harmless2", filepath.Join(d, "harmless")), path, false},
		{"the real shell behind a link", link("harmless3", "/bin/sh"), path, false},
		{"missing", filepath.Join(d, "none"), path, false},
		{"below a file", filepath.Join(binary, "x"), path, false},
		{"a directory", filepath.Join(d, "dir"), path, false},
		{"not executable", program("plain", "#!/bin/sh\n", 0o644), path, false},
		{"env shebang without PATH", program("env1", "#!/usr/bin/env node\n", 0o755), none, false},
		{"env shebang with PATH", program("env2", "#!/usr/bin/env node\n", 0o755), path, true},
		{"spaced env shebang", program("env3", "#! \t/usr/bin/env node\n", 0o755), none, false},
		{"bare env shebang", program("env4", "#!/usr/bin/env", 0o755), none, false},
		{"env shebang with CRLF", program("env5", "#!/usr/bin/env\r\n", 0o755), none, false},
		{"env-like shebang", program("env6", "#!/usr/bin/envoy node\n", 0o755), none, true},
		{"env in the second line", program("env7", "#!/bin/x\n#!/usr/bin/env node\n", 0o755), none, true},
		{"env beyond 256 bytes", program("env8", long, 0o755), none, true},
		{"absolute interpreter, even a shell", program("sh1", "#!/bin/sh\n", 0o755), none, true},
		{"an empty file", program("empty", "", 0o755), none, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustParse(t, edit(t, "callback.executable", c.executable, "callback.environment.allow", c.allow))
			err := p.Ready()
			if c.ok {
				if err != nil {
					t.Errorf("not ready: %v", err)
				}
				return
			}
			refused(t, err, fault.CallbackExecutable, "callback.executable")
		})
	}
}
