package supervise_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/testkit"
)

// ordinary are the tests that an ordinary user passes, too.
const ordinary = "^(TestProcess|TestDaemon_[^R].*|TestDaemon_Re.*|TestEnd_LeaderFirst|TestAdopt|TestLoopback_Outside|TestCheckUser|TestProbe_Select)$"

// Without root everything is the same, by a user namespace.
//
// Proves station 17.Z5, 17.L11, 17.L13, 17.L15, 17.E1 for the shim.
func TestOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("every test here runs as an ordinary user already")
	}
	dir, err := os.MkdirTemp("", "db-user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, daemon, daemon); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"test": self, "shim": shim(t), "harness": harness(t)} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run", ordinary, "-test.v", "-test.timeout", "120s")
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, "CI=" + os.Getenv("CI"),
		shimVariable + "=" + filepath.Join(dir, "shim"), harnessVariable + "=" + filepath.Join(dir, "harness"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: daemon, Gid: daemon}}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", daemon, err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Errorf("skipped as uid %d:\n%s", daemon, out)
	}
	testkit.Eventually(t, patience, func() bool { left, _ := filepath.Glob(filepath.Join(dir, "db-run-*")); return len(left) == 0 })
}
