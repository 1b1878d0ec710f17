package supervise_test

import (
	"os/exec"
	"path/filepath"
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
	groups := func() []string {
		all, err := filepath.Glob(filepath.Join(w.options.Cgroup, "drawbridge-*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := groups()
	w.start()
	if len(groups()) != len(before)+1 {
		t.Fatalf("%v after %v", groups(), before)
	}
	if err := process.Signal(w.process.Incarnation(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-w.process.Done()
	if _, err := supervise.Kill(t.Context(), w.options, w.spec.Runtime, w.process.Incarnation()); err != nil {
		t.Error(err)
	}
	if after := groups(); len(after) != len(before) {
		t.Errorf("%v after %v", after, before)
	}
}
