package testkit_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// recorder is a testing.TB that notes failures and skips.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic(r) }
func (r *recorder) Fatal(...any)          { r.failed = true; panic(r) }
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; panic(r) }
func (r *recorder) run(f func())          { defer func() { _ = recover() }(); f() }

func TestNeed(t *testing.T) {
	for _, tc := range []struct {
		name, ci, program string
		failed, skipped   bool
	}{
		{"there", "", "go", false, false},
		{"missing", "", "no-such-program-at-all", false, true},
		{"missing in CI", "true", "no-such-program-at-all", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("CI", tc.ci)
			r := &recorder{TB: t}
			r.run(func() { testkit.Need(r, tc.program) })
			if r.failed != tc.failed || r.skipped != tc.skipped {
				t.Errorf("failed %v, skipped %v, want %v, %v", r.failed, r.skipped, tc.failed, tc.skipped)
			}
		})
	}
}

func TestEventually(t *testing.T) {
	n := 0
	testkit.Eventually(t, time.Second, func() bool { n++; return n == 3 })
	testkit.EventuallyNil(t, time.Second, func() error {
		if n++; n < 6 {
			return errors.New("not yet")
		}
		return nil
	})
	r := &recorder{TB: t}
	r.run(func() { testkit.Eventually(r, time.Millisecond, func() bool { return false }) })
	if !r.failed {
		t.Error("a condition that never holds did not fail the test")
	}
}

func TestClock(t *testing.T) {
	c := testkit.NewClock()
	wall, boot := c.Now(), c.Boot()
	c.Advance(1500 * time.Millisecond)
	c.Step(-time.Hour)
	if got, want := c.Now(), wall.Add(1500*time.Millisecond-time.Hour); !got.Equal(want) {
		t.Errorf("wall = %v, want %v", got, want)
	}
	if got, want := c.Boot(), boot+1500; got != want {
		t.Errorf("boot = %d, want %d", got, want)
	}
}

func TestDirs(t *testing.T) {
	for _, dir := range []string{testkit.RuntimeDir(t), testkit.StoreDir(t)} {
		fi, err := os.Stat(dir)
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, fi.Mode(), err)
		}
	}
}

func TestGolden(t *testing.T) {
	testkit.Golden(t, "golden.txt", []byte("one\ntwo\n"))
	if testkit.Updating() {
		return
	}
	r := &recorder{TB: t}
	testkit.Golden(r, "golden.txt", []byte("one\nthree\n"))
	if !r.failed {
		t.Error("a difference did not fail the test")
	}
}

func TestBuildProgram(t *testing.T) {
	path := testkit.BuildProgram(t, "kitrun")
	if again := testkit.BuildProgram(t, "kitrun"); again != path {
		t.Errorf("built twice: %s, %s", path, again)
	}
	if tagged := testkit.BuildProgram(t, "kitrun", "some_tag"); tagged == path {
		t.Error("tags make no difference")
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "kitrun ") {
		t.Errorf("version: %q, %v", out, err)
	}
}

func TestRoot(t *testing.T) {
	if _, err := os.Stat(filepath.Join(testkit.Root(), "go.work")); err != nil {
		t.Error(err)
	}
}
