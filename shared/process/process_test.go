package process_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
)

// spawn starts a process that a test may kill; it is reaped at the end.
func spawn(t *testing.T, attr *syscall.SysProcAttr, name string, args ...string) (process.Incarnation, *exec.Cmd, io.Reader) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = attr
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SECRET=s3cr3t", "EMPTY=", "TWO=a=b"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inc, err := process.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return inc, cmd, out
}

func TestIncarnation_Text(t *testing.T) {
	self := process.Self()
	got, err := process.ParseIncarnation(self.String())
	if err != nil || got != self {
		t.Errorf("ParseIncarnation(%q) = %+v, %v, want %+v", self, got, err, self)
	}
	if want := fmt.Sprintf("%d/%s", self.PID, self.Birth()); self.String() != want {
		t.Errorf("String = %q, want %q", self.String(), want)
	}
	text := self.String()
	for _, bad := range []string{
		"", "12", text + " ", " " + text, "0" + text, "-" + text, strings.Replace(text, "/", "//", 1),
		strings.ToUpper(text), "99999999999/" + self.Birth(), text + "9999999999999999999999", text + "\n",
	} {
		if inc, err := process.ParseIncarnation(bad); err == nil {
			t.Errorf("ParseIncarnation(%q) = %+v", bad, inc)
		}
	}
}

func FuzzParseIncarnation(f *testing.F) {
	f.Add(process.Self().String())
	f.Add("1/00000000-0000-0000-0000-000000000000:4026531836:0")
	f.Add("01/x:y:z")
	f.Fuzz(func(t *testing.T, text string) {
		if inc, err := process.ParseIncarnation(text); err == nil && inc.String() != text {
			t.Fatalf("%q is read as %q", text, inc)
		}
	})
}

func TestIncarnation_Gone(t *testing.T) {
	self := process.Self()
	other := func(f func(*process.Incarnation)) process.Incarnation { i := self; f(&i); return i }
	for _, tc := range []struct {
		name        string
		inc         process.Incarnation
		gone, known bool
	}{
		{"self", self, false, true},
		{"other start", other(func(i *process.Incarnation) { i.Start++ }), true, true},
		{"other boot", other(func(i *process.Incarnation) { i.BootID = "00000000-0000-0000-0000-000000000000" }), true, true},
		{"other namespace", other(func(i *process.Incarnation) { i.Namespace++ }), false, false},
		{"no such pid", other(func(i *process.Incarnation) { i.PID = 1 << 22 }), true, true},
		{"zero", process.Incarnation{}, false, false},
		{"no boot id", other(func(i *process.Incarnation) { i.BootID = "" }), false, false},
		{"negative pid", other(func(i *process.Incarnation) { i.PID = -1 }), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if gone, known := tc.inc.Gone(); gone != tc.gone || known != tc.known {
				t.Errorf("Gone = %v, %v, want %v, %v", gone, known, tc.gone, tc.known)
			}
			if got := tc.inc.Alive(); got != (tc.known && !tc.gone) {
				t.Errorf("Alive = %v", got)
			}
		})
	}
}

// A zombie runs nothing and holds nothing, so it counts as gone.
func TestIncarnation_Zombie(t *testing.T) {
	inc, _, _ := spawn(t, nil, "true")
	testkit.Eventually(t, 5*time.Second, func() bool {
		info, err := process.Stat(inc.PID)
		return err == nil && info.State == 'Z'
	})
	if gone, known := inc.Gone(); !gone || !known {
		t.Errorf("Gone = %v, %v", gone, known)
	}
	if err := process.Signal(inc, unix.SIGTERM); !errors.Is(err, process.ErrGone) {
		t.Errorf("Signal = %v", err)
	}
	if err := process.Wait(t.Context(), inc); err != nil {
		t.Errorf("Wait = %v", err)
	}
}

func TestStat(t *testing.T) {
	inc, cmd, _ := spawn(t, &syscall.SysProcAttr{Setsid: true}, "sleep", "60")
	got, err := process.Stat(inc.PID)
	if err != nil {
		t.Fatal(err)
	}
	want := process.Info{
		PID: cmd.Process.Pid, PPID: os.Getpid(), PGRP: inc.PID, Session: inc.PID, TTY: 0, TPGID: -1,
		Start: inc.Start, Threads: 1, Comm: got.Comm, State: got.State,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stat (-want +got):\n%s", diff)
	}
	if _, err := process.Stat(1 << 22); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent process: %v", err)
	}
	if _, err := process.Stat(0); err == nil {
		t.Error("pid 0 has a state")
	}
}

// A process names itself; the name must not shift the fields.
func TestStat_HostileName(t *testing.T) {
	src, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a) Z 1 (b c)")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	inc, _, _ := spawn(t, nil, path, "60")
	testkit.EventuallyNil(t, 5*time.Second, func() error {
		got, err := process.Stat(inc.PID)
		if err != nil || got.PPID != os.Getpid() || got.State == 'Z' || got.Comm != "a) Z 1 (b c)" {
			return fmt.Errorf("stat = %+v, %v", got, err)
		}
		return nil
	})
}

func TestFacts(t *testing.T) {
	inc, cmd, _ := spawn(t, nil, "sleep", "60")
	testkit.Eventually(t, 5*time.Second, func() bool { // exec has happened
		args, err := process.Cmdline(inc.PID)
		return err == nil && len(args) == 2 && args[1] == "60"
	})
	env, err := process.Environ(inc.PID)
	if want := map[string]string{"PATH": "/usr/bin:/bin", "SECRET": "s3cr3t", "EMPTY": "", "TWO": "a=b"}; err != nil || !cmp.Equal(env, want) {
		t.Errorf("environment %v, %v", env, err)
	}
	wd, _ := os.Getwd()
	if got, err := process.Cwd(inc.PID); err != nil || got != wd {
		t.Errorf("cwd %q, %v, want %q", got, err, wd)
	}
	exe, err := process.Exe(inc.PID)
	real, _ := filepath.EvalSymlinks(cmd.Path)
	fi, _ := os.Stat(real)
	st := fi.Sys().(*syscall.Stat_t)
	want := process.Executable{Path: real, Dev: st.Dev, Ino: st.Ino, Size: fi.Size(), MTime: fi.ModTime()}
	if diff := cmp.Diff(want, exe); err != nil || diff != "" {
		t.Errorf("exe %v (-want +got):\n%s", err, diff)
	}
	fds, err := process.Descriptors(inc.PID)
	if err != nil || len(fds) < 3 || fds[0].FD != 0 || !strings.HasPrefix(fds[1].Target, "pipe:[") {
		t.Errorf("descriptors %v, %v", fds, err)
	}
}

// A program that was updated while it runs shows the old file as deleted.
func TestExe_Replaced(t *testing.T) {
	src, _ := exec.LookPath("sleep")
	data, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "agent")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	inc, _, _ := spawn(t, nil, path, "60")
	testkit.Eventually(t, 5*time.Second, func() bool {
		exe, err := process.Exe(inc.PID)
		return err == nil && exe.Path == path && !exe.Deleted
	})
	if err := os.WriteFile(path+".new", data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	exe, err := process.Exe(inc.PID)
	if err != nil || exe.Path != path || !exe.Deleted || exe.Size != int64(len(data)) {
		t.Errorf("exe %+v, %v", exe, err)
	}
}

func TestDescendants(t *testing.T) {
	inc, _, out := spawn(t, nil, "sh", "-c", "sh -c 'sleep 61 & sleep 62 & wait' & wait")
	_ = out
	var got []process.Info
	testkit.EventuallyNil(t, 5*time.Second, func() (err error) {
		if got, err = process.Descendants(inc.PID); err == nil && len(got) != 3 {
			err = fmt.Errorf("%d descendants", len(got))
		}
		return err
	})
	seen := map[int]bool{inc.PID: true}
	for _, info := range got {
		if !seen[info.PPID] {
			t.Errorf("%+v comes before its parent", info)
		}
		seen[info.PID] = true
	}
	if err := process.EndTree(inc, time.Second); err != nil {
		t.Error(err)
	}
}

func TestSignal(t *testing.T) {
	inc, cmd, _ := spawn(t, nil, "sleep", "60")
	wrong := inc
	wrong.Start--
	if err := process.Signal(wrong, unix.SIGKILL); !errors.Is(err, process.ErrGone) {
		t.Errorf("other birth: %v", err)
	}
	foreign := inc
	foreign.Namespace++
	if err := process.Signal(foreign, unix.SIGKILL); !errors.Is(err, process.ErrUnproven) {
		t.Errorf("other namespace: %v", err)
	}
	for _, pid := range []int{0, 1, -1, os.Getpid()} {
		bad := inc
		bad.PID = pid
		if err := process.Signal(bad, unix.SIGKILL); !errors.Is(err, process.ErrUnproven) {
			t.Errorf("pid %d: %v", pid, err)
		}
	}
	if !inc.Alive() {
		t.Fatal("the process was hit")
	}
	if err := process.Signal(inc, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(t.Context(), inc); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v", ws.Signal())
	}
}
