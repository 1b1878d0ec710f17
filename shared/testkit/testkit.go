// Package testkit is what tests of several packages share: private directories,
// a clock that only moves when told, golden files, waiting for a condition,
// programs built from this repository, and the leak check. Only tests import it.
//
// Helpers take a testing.TB, clean up after themselves and fail the test instead
// of returning an error.
package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// poll is the pause between two looks of Eventually.
const poll = 2 * time.Millisecond

// Need skips the test when a program is not on PATH. With CI=true it fails
// instead: there a skipped test would prove nothing.
func Need(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, name := range programs {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			tb.Fatalf("%s is not on PATH, and CI=true", name)
		}
		tb.Skipf("%s is not on PATH", name)
	}
}

// Eventually fails the test unless cond holds within d.
func Eventually(tb testing.TB, d time.Duration, cond func() bool, what ...any) {
	tb.Helper()
	for end := time.Now().Add(d); ; time.Sleep(poll) {
		if cond() {
			return
		}
		if time.Now().After(end) {
			tb.Fatal(append([]any{"condition does not hold after", d}, what...)...)
		}
	}
}

// EventuallyNil fails the test unless f returns nil within d; the last error is
// part of the failure.
func EventuallyNil(tb testing.TB, d time.Duration, f func() error) {
	tb.Helper()
	for end := time.Now().Add(d); ; time.Sleep(poll) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("after %v still: %v", d, err)
		}
	}
}

// RuntimeDir makes a private directory with a path short enough for sockets,
// which hold 107 bytes.
func RuntimeDir(tb testing.TB) string { return privateDir(tb, "db-run-") }

// StoreDir makes a private, empty directory for a Store.
func StoreDir(tb testing.TB) string { return privateDir(tb, "db-store-") }

func privateDir(tb testing.TB, prefix string) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", prefix) // mode 0700
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove %s: %v", dir, err)
		}
	})
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return dir
}

// Leak runs the tests of a package and fails when a goroutine is left. It does
// not return: func TestMain(m *testing.M) { testkit.Leak(m) }.
func Leak(m *testing.M) { goleak.VerifyTestMain(m) }
