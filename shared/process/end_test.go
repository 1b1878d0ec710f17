package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
)

// pids reads one pid a line and gives their incarnations.
func pids(t *testing.T, out interface{ Read([]byte) (int, error) }, n int) []process.Incarnation {
	t.Helper()
	var all []process.Incarnation
	lines := bufio.NewScanner(out)
	for len(all) < n && lines.Scan() {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		inc, err := process.Of(pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Signal(inc, syscall.SIGKILL) })
		all = append(all, inc)
	}
	return all
}

func allGone(t *testing.T, incs []process.Incarnation) {
	t.Helper()
	for _, inc := range incs {
		testkit.EventuallyNil(t, 2*time.Second, func() error {
			if gone, known := inc.Gone(); !gone || !known {
				return fmt.Errorf("process %d lives", inc.PID)
			}
			return nil
		})
	}
}

func TestEndGroup(t *testing.T) {
	group := &syscall.SysProcAttr{Setpgid: true}
	for _, tc := range []struct {
		name, script string
		grace        time.Duration
		atMost       time.Duration
	}{
		{"obeys TERM", "sleep 60 & echo $!; echo $$; wait", 10 * time.Second, 5 * time.Second},
		{"ignores TERM", "trap '' TERM; (trap '' TERM; sleep 60) & echo $!; echo $$; while :; do wait; done", 200 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inc, _, out := spawn(t, group, "sh", "-c", tc.script)
			members := pids(t, out, 2)
			begin := time.Now()
			if err := process.EndGroup(inc, tc.grace); err != nil {
				t.Fatal(err)
			}
			allGone(t, members)
			if took := time.Since(begin); took > tc.atMost {
				t.Errorf("took %v", took)
			}
			if err := process.EndGroup(inc, tc.grace); err != nil {
				t.Errorf("second end: %v", err)
			}
		})
	}
	t.Run("not a leader", func(t *testing.T) {
		inc, _, _ := spawn(t, nil, "sleep", "60")
		if err := process.EndGroup(inc, 0); !errors.Is(err, process.ErrUnproven) || !inc.Alive() {
			t.Errorf("EndGroup = %v, alive %v", err, inc.Alive())
		}
	})
}

func TestEndTree(t *testing.T) {
	testkit.Need(t, "setsid")
	for _, tc := range []struct {
		name, script string
		members      int
	}{
		{"children end with the root", "sleep 60 & echo $!; echo $$; trap 'kill $!; exit' TERM; wait", 2},
		{"child in a session of its own", "setsid sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done' & echo $$; wait", 2},
		{"all ignore TERM", "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & echo $$; while :; do wait; done", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inc, _, out := spawn(t, nil, "sh", "-c", tc.script)
			members := pids(t, out, tc.members)
			if err := process.EndTree(inc, 300*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			allGone(t, append(members, inc))
			if err := process.EndTree(inc, 0); err != nil {
				t.Errorf("second end: %v", err)
			}
		})
	}
	t.Run("other birth is left alone", func(t *testing.T) {
		inc, _, _ := spawn(t, nil, "sleep", "60")
		wrong := inc
		wrong.Start--
		if err := process.EndTree(wrong, 0); err != nil || !inc.Alive() {
			t.Errorf("EndTree = %v, alive %v", err, inc.Alive())
		}
	})
}

func TestWait_Cancel(t *testing.T) {
	inc, _, _ := spawn(t, nil, "sleep", "60")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := process.Wait(ctx, inc); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %v", err)
	}
}

// ownerMode makes the test binary a child that reports when its owner ends.
const ownerMode = "PROCESS_TEST_OWNER"

func init() {
	if os.Getenv(ownerMode) == "" {
		return
	}
	owner := process.OpenOwner()
	fmt.Println("watching", owner.Incarnation().PID)
	err := owner.Run(context.Background())
	fmt.Println("owner:", err)
	os.Exit(0)
}

// The owner is killed while a descendant keeps all its pipes open (core §16).
func TestOwner(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", exe+" & wait")
	cmd.Env = []string{ownerMode + "=1", "PATH=/usr/bin:/bin"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	if got, want := lines.Text(), fmt.Sprintf("watching %d", cmd.Process.Pid); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_ = cmd.Process.Kill()
	lines.Scan()
	if got, want := lines.Text(), "owner: "+process.ErrOwnerGone.Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_ = cmd.Wait()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := process.OpenOwner().Run(ctx); err != nil {
		t.Errorf("stopped: %v", err)
	}
	if err := (process.Owner{}).Run(ctx); err != nil {
		t.Errorf("no owner, stopped: %v", err)
	}
}

func TestBootTime(t *testing.T) {
	a := process.BootTime()
	testkit.Eventually(t, time.Second, func() bool { return process.BootTime() > a })
	if len(process.BootID()) != 36 {
		t.Errorf("boot id %q", process.BootID())
	}
}
