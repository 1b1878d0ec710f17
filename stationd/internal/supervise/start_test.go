package supervise_test

import (
	"os"
	"path/filepath"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// A specification that cannot be meant is refused with what is wrong, and nothing is
// left running.
func TestStart_Refused(t *testing.T) {
	for name, change := range map[string]func(*world){
		"nonce":     func(w *world) { w.spec.Nonce = "short" },
		"port":      func(w *world) { w.spec.Port = 0 },
		"workspace": func(w *world) { w.spec.Workspace = "/nothing/there" },
		"link": func(w *world) {
			w.spec.Home = filepath.Join(w.dir, "link")
			if err := os.Symlink("home", w.spec.Home); err != nil {
				w.Fatal(err)
			}
		},
		"hidden in view": func(w *world) { w.spec.Hide = []string{filepath.Join(w.spec.Workspace, "state")} },
		"no shim":        func(w *world) { w.options.Shim = "/nothing/there" },
		"another":        func(w *world) { w.options.Shim = "/bin/false" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change(w)
			p, err := supervise.Start(t.Context(), w.options, w.spec)
			if err == nil {
				w.own(p)
				t.Fatal("it was started")
			}
			if code := fault.CodeOf(err); code != fault.ShimFailed && code != fault.ContainmentMissing {
				t.Errorf("%s: %v", code, err)
			}
			if _, err := os.Stat(filepath.Join(w.spec.Runtime, wire.PID)); err == nil {
				t.Error("a shim was there")
			}
		})
	}
}

// The shim beside a program that has none is said to be missing.
func TestShim_Beside(t *testing.T) {
	if path, err := supervise.Shim(); !fault.Is(err, fault.ShimUnavailable) {
		t.Errorf("%s, %v", path, err)
	}
}
