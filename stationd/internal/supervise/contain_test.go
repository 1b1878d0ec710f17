package supervise_test

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// everyKind is every kind of child that the harness has.
const everyKind = "plain,setsid,fork,stopped,respawn"

// Proves station 17.K1, 17.K2, 17.K4, 17.K5: whatever the descendants do, none is left,
// for each kind that attempts are held with; stationd and its other children live on.
func TestEnd_Descendants(t *testing.T) {
	groups := supervise.CgroupParent()
	for _, kind := range []string{supervise.KindPIDNamespace, supervise.KindPIDNamespaceCgroup} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			if kind == supervise.KindPIDNamespaceCgroup {
				if groups == "" {
					t.Skipf("%s: no cgroups can be made here", kind)
				}
				w.options.Cgroup = groups
			}
			bystander := exec.Command("sleep", "60")
			if err := bystander.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()

			w.start()
			w.launch("-children", everyKind, "-deaf")
			if got := w.process.Containment(); got != kind {
				t.Errorf("containment %s", got)
			}
			testkit.Eventually(t, patience, func() bool { return w.alive() >= 5 }, "descendants")
			if err := w.process.Client().Signal(t.Context(), wire.Group, unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			cleanup, err := w.process.End(t.Context())
			if err != nil || len(cleanup.Left) != 0 {
				t.Fatalf("%+v, %v", cleanup, err)
			}
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if n := w.alive(); n != 0 {
					t.Fatalf("%d processes came back", n)
				}
			}
			if inc, err := process.Of(bystander.Process.Pid); err != nil || !inc.Alive() {
				t.Errorf("a stranger was ended: %v, %v", inc, err)
			}
		})
	}
}

// Proves station 17.K3, 17.K6: a process group leaves survivors behind and
// is never selected, and without a kind that holds, starting is refused: there is no
// weak kind to accept.
func TestProbe_Select(t *testing.T) {
	program := shim(t)
	r := supervise.Probe(t.Context(), program, testkit.RuntimeDir(t))
	for _, k := range r.Kinds {
		t.Logf("%-14s available %-5v selected %-5v %v %s", k.Name, k.Available, k.Selected, k.Took, k.Detail)
		if weak := k.Name == "process-group" || k.Name == "subreaper"; weak && k.Selected {
			t.Errorf("%s is selected", k.Name)
		}
	}
	o, kind, err := r.Select(program)
	if err != nil || !r.Network || !r.View || kind == "" || o.Shim != program {
		t.Errorf("%+v, %s, %v", o, kind, err)
	}
	if _, _, err := (supervise.Report{Kinds: []supervise.Kind{{Name: "process-group", Available: true}}}).Select(program); !fault.Is(err, fault.ContainmentMissing) {
		t.Errorf("a process group alone: %v", err)
	}
	broken := supervise.Probe(t.Context(), "/bin/false", testkit.RuntimeDir(t))
	if _, _, err := broken.Select("/bin/false"); !fault.Is(err, fault.ContainmentMissing) {
		t.Errorf("a shim that does not work: %v", err)
	}

	// The group's survivor, which is why: it ends by itself, and is ended here.
	hold := exec.Command(program, "hold")
	hold.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	below, err := process.Descendants(hold.Process.Pid)
	if err != nil || len(below) != 1 {
		t.Fatalf("%v, %v", below, err)
	}
	leaf, err := process.Of(below[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(-hold.Process.Pid, unix.SIGKILL)
	_ = hold.Wait()
	if !leaf.Alive() {
		t.Error("the group's kill reached a process in another session")
	}
	if err := process.Signal(leaf, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// Proves station 17.K7: children do not keep the leader's status, and end with the rest.
func TestEnd_LeaderFirst(t *testing.T) {
	w := newWorld(t).start()
	w.launch("-children", "plain,setsid,fork", "-deaf", "-exit-after", "1s", "-exit", "3")
	testkit.Eventually(t, patience, func() bool { return w.events.exited() != nil }, "exit")
	if e := w.events.exited(); e.Code == nil || *e.Code != 3 {
		t.Errorf("%+v", e)
	}
	stats, err := w.process.Client().Stats(t.Context())
	if err != nil || stats.Processes != 3 || w.alive() != 3 {
		t.Errorf("%+v, %v, %d alive", stats, err, w.alive())
	}
	if end, ok, err := supervise.Ended(w.spec.Runtime); err != nil || !ok || end.Code == nil || *end.Code != 3 || end.Final {
		t.Errorf("%+v, %v, %v", end, ok, err)
	}
	if _, err := w.process.End(t.Context()); err != nil || w.alive() != 0 {
		t.Errorf("%v, %d left", err, w.alive())
	}
}

// A shim that is killed from outside takes everything with it, and its status is
// known by nobody.
func TestEnd_ShimKilled(t *testing.T) {
	w := newWorld(t).start()
	w.launch("-children", "setsid,fork", "-deaf")
	if err := process.Signal(w.process.Incarnation(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-w.process.Done()
	if n := w.alive(); n != 0 {
		t.Errorf("%d left", n)
	}
	if _, ok, err := supervise.Ended(w.spec.Runtime); ok || err != nil {
		t.Errorf("exit.json: %v, %v", ok, err)
	}
	if cleanup, err := w.process.End(t.Context()); err != nil || cleanup.Signalled {
		t.Errorf("%+v, %v", cleanup, err)
	}
}
