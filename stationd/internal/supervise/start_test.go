package supervise_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// A shim can be started by a command that ends, as one does that came over SSH: it
// answers on ctl.sock, and is ended there.
func TestShim_Start(t *testing.T) {
	w := newWorld(t)
	var spec bytes.Buffer
	if err := wire.Write(&spec, w.spec); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), w.options.Shim, "start")
	cmd.Stdin = &spec
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var birth wire.Birth
	if err := wire.Decode(bytes.TrimSpace(out), &birth); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recorded, err := supervise.Recorded(w.spec.Runtime)
	if err != nil || recorded.PID != birth.PID || recorded.Start != birth.Start || !recorded.Alive() {
		t.Errorf("recorded %v, born %+v, %v", recorded, birth, err)
	}
	conn, err := net.Dial("unix", filepath.Join(w.spec.Runtime, wire.Control))
	if err != nil {
		t.Fatal(err)
	}
	c, err := supervise.Connect(t.Context(), conn, nonce)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if status, err := c.Status(t.Context()); err != nil || status.Birth != birth {
		t.Errorf("%+v, %v", status, err)
	}
	if err := c.Kill(t.Context(), "operator_stop"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := process.Wait(ctx, recorded); err != nil {
		t.Error(err)
	}
	if end, ok, err := supervise.Ended(w.spec.Runtime); err != nil || !ok || end.Reason != "operator_stop" || !end.Final {
		t.Errorf("%+v, %v, %v", end, ok, err)
	}
}

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
