package kit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
)

func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// kitrun is the program with its crash points.
func kitrun(t *testing.T, at string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testkit.BuildProgram(t, "kitrun", "drawbridge_crashpoints"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "DRAWBRIDGE_TEST_EXIT_AT=" + at}
	return cmd
}

// versions are two contents of one kit, and their hashes.
func versions(t *testing.T, files int) (sources [2]string, hashes [2]string) {
	t.Helper()
	for i := range sources {
		content := map[string]string{"which": fmt.Sprint(i)}
		for n := range files {
			content[fmt.Sprintf("d%d/f%d", n%7, n)] = strings.Repeat(fmt.Sprint(i), 100*n)
		}
		sources[i] = sample(t, content)
		hashes[i] = install(t, sources[i], t.TempDir()).Hash
	}
	return sources, hashes
}

// afterCrash unlocks, and checks that the kit is one of the wanted ones and that
// nothing else is left.
func afterCrash(t *testing.T, dest string, want ...string) string {
	t.Helper()
	if _, err := later().Unlock(t.Context(), dest, true); err != nil {
		t.Fatal(err)
	}
	v, err := kit.Verify(t.Context(), "sample", dest)
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{repos(dest) + "/.*", filepath.Dir(registry(dest)) + "/.*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
	for _, hash := range want {
		if v.Hash == hash {
			return hash
		}
	}
	t.Fatalf("verified %s, want one of %q", v.Hash, want)
	return ""
}

// Proves kit 17.12.
func TestUpdate_CrashPoints(t *testing.T) {
	sources, hashes := versions(t, 0)
	for _, tc := range []struct{ at, want string }{
		{"kit.locked", hashes[0]},
		{"kit.copied", hashes[0]},
		{"kit.moved_away", hashes[0]},
		{"kit.in_place", hashes[0]},
		{"kit.registered", hashes[1]},
		{"kit.cleaned", hashes[1]},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			dest := t.TempDir()
			install(t, sources[0], dest)
			out, err := kitrun(t, tc.at, "install", sources[1], "--dest", dest, "--update").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != crashpoint.ExitCode {
				t.Fatalf("it ended with %v, not at the crash point:\n%s", err, out)
			}
			if _, err := tryInstall(t, sources[1], dest, update); err == nil {
				t.Error("the lock of a killed install was broken by the next")
			}
			afterCrash(t, dest, tc.want)
			if out := install(t, sources[1], dest, update); out.Hash != hashes[1] {
				t.Errorf("the update again: %+v", out)
			}
			afterCrash(t, dest, hashes[1])
		})
	}
}

// Ctrl-C in the middle of an update undoes it, or comes too late for that; it
// leaves no lock.
func TestUpdate_Interrupted(t *testing.T) {
	sources, hashes := versions(t, 60)
	dest := t.TempDir()
	install(t, sources[0], dest)
	cmd := kitrun(t, "", "install", sources[1], "--dest", dest, "--update")
	cmd.Env = append(cmd.Env, "DRAWBRIDGE_TEST_STOP_AT=kit.locked")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() bool {
		info, err := process.Stat(cmd.Process.Pid)
		return err == nil && info.State == 'T'
	}, "it stands at the crash point")
	if _, err := os.Stat(lockDir(dest)); err != nil {
		t.Error(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGCONT} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	_ = cmd.Wait()
	want := hashes[0]
	switch exit := cmd.ProcessState.ExitCode(); {
	case exit == 0:
		want = hashes[1] // done before the signal was seen
	case exit != 1 || !strings.Contains(stderr.String(), "interrupted"):
		t.Errorf("exit %d, stderr %q", exit, stderr.String())
	}
	if _, err := os.Stat(lockDir(dest)); err == nil {
		t.Error("the lock is left")
	}
	afterCrash(t, dest, want)
}

func TestUninstall_CrashPoints(t *testing.T) {
	for at, installed := range map[string]bool{"kit.removed": true, "kit.unregistered": false} {
		t.Run(at, func(t *testing.T) {
			dest := t.TempDir()
			hash := install(t, sample(t, nil), dest).Hash
			err := kitrun(t, at, "uninstall", "sample", "--dest", dest).Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != crashpoint.ExitCode {
				t.Fatalf("it ended with %v, not at the crash point", err)
			}
			if installed {
				afterCrash(t, dest, hash)
				return
			}
			if _, err := later().Unlock(t.Context(), dest, true); err != nil {
				t.Fatal(err)
			}
			if names, err := os.ReadDir(repos(dest)); err != nil || len(names) > 0 {
				t.Errorf("left: %v, %v", names, err)
			}
		})
	}
}

// A first install that is killed leaves nothing, or the kit.
func TestInstall_CrashPoints(t *testing.T) {
	source := sample(t, nil)
	for _, at := range []string{"kit.locked", "kit.copied", "kit.in_place", "kit.registered"} {
		t.Run(at, func(t *testing.T) {
			dest := t.TempDir()
			if err := kitrun(t, at, "install", source, "--dest", dest).Run(); err == nil {
				t.Fatal("it did not end at the crash point")
			}
			if _, err := later().Unlock(t.Context(), dest, true); err != nil {
				t.Fatal(err)
			}
			out := install(t, source, dest)
			if want := at == "kit.registered"; (out.Change == kit.Unchanged) != want {
				t.Errorf("install after it: %+v", out)
			}
			afterCrash(t, dest, out.Hash)
		})
	}
}

// memory is a directory on a file system without a disk, where there is one: what
// a killed process leaves is the same, and a hundred rounds take seconds.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kit-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Proves kit 17.12. Updates killed at a hundred random moments leave the old kit or
// the new one, never a mix.
func TestUpdate_Killed(t *testing.T) {
	const workspaces, rounds = 4, 25
	seed := uint64(time.Now().UnixNano())
	sources, hashes := versions(t, 40)
	var old, updated atomic.Int32
	t.Run("workspaces", func(t *testing.T) {
		for n := range workspaces {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				k := killer{sources: sources, hashes: hashes, dest: memory(t), random: rand.New(rand.NewPCG(seed, uint64(n)))}
				k.have = install(t, sources[0], k.dest).Hash
				k.measure(t)
				for range rounds {
					if k.round(t) {
						updated.Add(1)
					} else {
						old.Add(1)
					}
				}
			})
		}
	})
	t.Logf("of %d updates %d left the old kit and %d the new one", workspaces*rounds, old.Load(), updated.Load())
	if old.Load() == 0 || updated.Load() == 0 {
		t.Errorf("all rounds ended alike (seed %d)", seed)
	}
}

// killer updates one kit to and fro, and kills the update.
type killer struct {
	sources, hashes [2]string
	dest            string
	random          *rand.Rand
	have            string        // hash of what is installed
	whole           time.Duration // of an undisturbed update
}

// measure takes the shortest of some undisturbed updates.
func (k *killer) measure(t *testing.T) {
	k.whole = time.Hour
	for range 3 {
		cmd := kitrun(t, "", "install", k.sources[0], "--dest", k.dest, "--update")
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		k.whole = min(k.whole, time.Since(begin))
	}
}

// round kills one update at a random moment and reports whether the new kit is
// there afterwards.
func (k *killer) round(t *testing.T) bool {
	next := 0
	if k.have == k.hashes[0] {
		next = 1
	}
	cmd := kitrun(t, "", "install", k.sources[next], "--dest", k.dest, "--update")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Duration(k.random.Int64N(int64(k.whole*5/4))), func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // killed, or done before
	timer.Stop()
	got := afterCrash(t, k.dest, k.have, k.hashes[next])
	if which := read(t, repos(k.dest), "sample", "which"); k.hashes[which[0]-'0'] != got {
		t.Fatalf("the file of version %s under the hash of the other", which)
	}
	changed := got != k.have
	k.have = got
	return changed
}
