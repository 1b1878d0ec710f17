package supervise_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/supervise"
)

// A shim that does not answer is ended with all that it holds; a process that is
// none is let live.
//
// Proves station 17.M14, 8 rule 6.
func TestKill(t *testing.T) {
	w := newWorld(t).start()
	w.launch("-children", "setsid,fork", "-deaf")
	inc := w.process.Incarnation()
	if err := unix.Kill(inc.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cleanup, err := supervise.Kill(t.Context(), w.options, w.spec.Runtime, inc)
	if err != nil || !cleanup.Signalled || w.alive() != 0 {
		t.Errorf("%+v, %v, %d left", cleanup, err, w.alive())
	}
	cleanup, err = supervise.Kill(t.Context(), w.options, w.spec.Runtime, inc)
	if err != nil || cleanup.Signalled {
		t.Errorf("once more: %+v, %v", cleanup, err)
	}

	other := exec.CommandContext(t.Context(), "sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	stranger, err := process.Of(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := supervise.Kill(t.Context(), w.options, w.spec.Runtime, stranger); !fault.Is(err, fault.ShimLost) || !stranger.Alive() {
		t.Errorf("a process that is no shim: %v", err)
	}
}

// The cgroup of a shim that is gone is removed, too.
func TestKill_Cgroup(t *testing.T) {
	w := newWorld(t)
	if w.options.Cgroup = supervise.CgroupParent(); w.options.Cgroup == "" {
		t.Skipf("%s: no cgroups can be made here", supervise.KindPIDNamespaceCgroup)
	}
	w.start()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.process.Incarnation().PID))
	if err != nil {
		t.Fatal(err)
	}
	group := filepath.Join(w.options.Cgroup, path.Base(strings.TrimSpace(string(text)[strings.Index(string(text), "0::"):])))
	if _, err := os.Stat(group); err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(w.process.Incarnation(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-w.process.Done()
	if _, err := supervise.Kill(t.Context(), w.options, w.spec.Runtime, w.process.Incarnation()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is still there: %v", err)
	}
}
