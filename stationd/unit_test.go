package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"drawbridge/shared/testkit"
)

// The units of scripts/units say what stationd relies on, systemd reads them, and the
// directories that they name are taken (station §15).
func TestUnits(t *testing.T) {
	testkit.Need(t, "systemd-analyze")
	w := newWorld(t)
	for name, lines := range map[string][]string{
		"stationd.service": {"Type=notify", "WatchdogSec=30", "Delegate=yes", "KillMode=mixed"},
		"stationd.socket":  {"FileDescriptorName=bridge", "ListenStream=127.0.0.1:7117"},
	} {
		data, err := os.ReadFile(filepath.Join(testkit.Root(), "scripts", "units", name))
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Split(string(data), "\n")
		for _, line := range lines {
			if !slices.Contains(all, line) {
				t.Errorf("%s has no line %s", name, line)
			}
		}
		// Only the program need not stand there.
		w.write(name, strings.ReplaceAll(string(data), "/usr/local/bin/stationd", w.path("bin", "stationd")))
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", w.path("stationd.service"), w.path("stationd.socket")).CombinedOutput()
	if err != nil || strings.Contains(string(out), "stationd") {
		t.Errorf("%v\n%s", err, out)
	}
}
