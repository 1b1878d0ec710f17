package lease_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
)

// A lease of this machine from its beginning to its end.
func TestLocal(t *testing.T) {
	p, base := newLocal(t)
	if err := p.Describe().Check(); err != nil {
		t.Fatal(err)
	}
	l := must[lease.Lease](t)(p.Acquire(t.Context(), request))
	if l.BootID != process.BootID() || time.Until(l.ExpiresAt) < lease.Life/2 {
		t.Errorf("%+v", l)
	}
	story(t, p, l)
	for _, dir := range []string{base.State, base.Run} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if err := p.Release(t.Context(), l, empty); err != nil {
		t.Errorf("once more: %v", err)
	}
	if _, err := p.Heartbeat(t.Context(), l); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("the heartbeat of a lease that is gone: %v", err)
	}
}

// A lease has one stationd: its lock ends with the process that holds it.
func TestLocal_Lock(t *testing.T) {
	p, base := newLocal(t)
	l := acquire(t, p)
	if _, err := p.Acquire(t.Context(), request); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("the same lease again: %v", err)
	}
	other := lease.NewLocal(base, supervise.Options{})
	defer other.Close()
	if _, err := other.Machine(t.Context(), l); !fault.Is(err, fault.LeaseHeld) {
		t.Errorf("another stationd: %v", err)
	}
	if err := other.Release(t.Context(), l, empty); !fault.Is(err, fault.LeaseHeld) {
		t.Errorf("another stationd: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	machine(t, other, l)
	if until, err := other.Heartbeat(t.Context(), l); err != nil || time.Until(until) < lease.Life/2 {
		t.Errorf("%v, %v", until, err)
	}
	if _, err := p.Heartbeat(t.Context(), l); !fault.Is(err, fault.LeaseHeld) {
		t.Errorf("the former one: %v", err)
	}
	// A directory in the place of the one that was locked is not the lease.
	work := filepath.Join(base.State, id)
	if err := os.Rename(work, work+"-moved"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(work, "lock"), "", 0o600)
	if _, err := other.Heartbeat(t.Context(), l); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("another directory: %v", err)
	}
	if err := errors.Join(os.RemoveAll(work), os.Rename(work+"-moved", work), other.Close()); err != nil {
		t.Fatal(err)
	}
}

// Release removes what the lease made, and keeps what it did not.
func TestLocal_ReleaseKeeps(t *testing.T) {
	p, base := newLocal(t)
	l := acquire(t, p)
	beside := filepath.Join(base.State, id, "someone-elses")
	write(t, beside, "text", 0o644)
	outside := filepath.Join(t.TempDir(), "file")
	write(t, outside, "text", 0o644)
	m := machine(t, p, l)
	if err := m.Prepare(t.Context(), user()); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"file": outside, "directory": filepath.Dir(outside)} {
		if err := os.Symlink(to, filepath.Join(m.Layout().Workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Release(t.Context(), l, empty); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("with something else in its directory: %v", err)
	}
	for _, path := range []string{beside, outside} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(m.Layout().Workspace); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the workspace is there: %v", err)
	}
	if err := os.Remove(beside); err != nil {
		t.Fatal(err)
	}
}

// Ids and directories that could lead elsewhere make no lease.
func TestLocal_Refused(t *testing.T) {
	p, base := newLocal(t)
	for _, bad := range []string{"", "x", "lse_", "lse_../../x", "lse_A", "../lse_a"} {
		if _, err := p.Acquire(t.Context(), lease.Request{Lease: bad}); !fault.Is(err, fault.LeaseUnavailable) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	acquire(t, p)
	if err := os.Chmod(base.Run, 0o711); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Heartbeat(t.Context(), lease.Lease{ID: id}); !fault.Is(err, fault.RuntimeDirUnsafe) {
		t.Errorf("open to others: %v", err)
	}
	if err := os.Chmod(base.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	base.Run = filepath.Join(base.Run, "a-directory-with-a-name-that-is-so-long-that-no-socket-fits-into-it-any-more")
	long := lease.NewLocal(base, supervise.Options{})
	if _, err := long.Acquire(t.Context(), request); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("a long path: %v", err)
	}
	if _, err := p.Machine(t.Context(), lease.Lease{ID: "lse_b"}); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("a lease that nobody made: %v", err)
	}
}

// A workspace of git is synced with what its grounding says, and the daemon's.
//
// Proves station 17.L1, 17.L2 for leases of this machine.
func TestLocal_Sync(t *testing.T) {
	p, _ := newLocal(t)
	m := machine(t, p, acquire(t, p))
	synced(t, m)
}

// synced syncs a repository and compares what arrived.
func synced(t *testing.T, m lease.Machine) {
	t.Helper()
	source := repository(t)
	if err := m.Prepare(t.Context(), user()); err != nil {
		t.Fatal(err)
	}
	g := must[launch.Grounding](t)(m.Sync(t.Context(), launch.Workspace{Source: source}))
	if want := "https://example.org/r.git"; g.Repo != want || g.Branch != "main" || len(g.SHA) != 40 || g.Dirty.Modified != 1 || g.Files != 3 {
		t.Errorf("%+v", g)
	}
	if got := treeDigest(t, m.Layout().Workspace); got != g.TreeDigest {
		t.Errorf("the tree is %s, and the grounding says %s", got, g.TreeDigest)
	}
	if _, err := os.Lstat(filepath.Join(m.Layout().Workspace, ".git")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the repository's own files are there")
	}
	checkOwner(t, m.Layout().Workspace)
	sum, err := m.FileSHA256(t.Context(), filepath.Join(m.Layout().Workspace, "bin", "serve"))
	if want := sha256Of("#!/bin/sh\nexit 0\n"); err != nil || sum != want {
		t.Errorf("%s, %v, want %s", sum, err, want)
	}
	if _, err := m.FileSHA256(t.Context(), m.Layout().Workspace); err == nil {
		t.Error("a directory has a digest")
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(source, "out")); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(t.Context(), user()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sync(t.Context(), launch.Workspace{Source: source, Include: "untracked"}); !fault.Is(err, fault.WorkspaceRefused) {
		t.Errorf("a link that leads out: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(m.Layout().Workspace, "out")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the link that leads out is there")
	}
}

// A cgroup that was made for a shim which never came goes with the runtime directory.
func TestLocal_WipeSweeps(t *testing.T) {
	dir := testkit.RuntimeDir(t)
	base := place.Base{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	groups := t.TempDir()
	p := lease.NewLocal(base, supervise.Options{Cgroup: groups})
	defer p.Close()
	m := machine(t, p, acquire(t, p))
	sum := sha256.Sum256([]byte(m.Layout().Runtime))
	group := filepath.Join(groups, "drawbridge-"+hex.EncodeToString(sum[:8]))
	if err := errors.Join(os.Mkdir(group, 0o700), m.Wipe(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(group); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup: %v", err)
	}
}
