package lease_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// story is an attempt on a lease, as its manager goes through it, up to the lease's
// release. Every kind of provider has it.
func story(t *testing.T, p lease.Provider, l lease.Lease) {
	t.Helper()
	ctx := t.Context()
	m := must[lease.Machine](t)(p.Machine(ctx, l))
	defer m.Close()
	if boot, err := m.BootID(ctx); err != nil || boot != l.BootID {
		t.Errorf("boot %s, %v", boot, err)
	}
	if m.Network() != egress.Netns {
		t.Error(m.Network())
	}
	addresses, err := m.Addresses(ctx)
	if err != nil || !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.IsLoopback() }) {
		t.Errorf("addresses %v, %v", addresses, err)
	}
	if err := m.Prepare(ctx, user()); err != nil {
		t.Fatal(err)
	}
	if g, err := m.Sync(ctx, launch.Workspace{}); err != nil || g.Files != 0 {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := m.Recorded(ctx); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody is recorded yet: %v", err)
	}
	if _, ok, err := m.Ended(ctx); ok || err != nil {
		t.Errorf("nobody ended yet: %v", err)
	}

	a := begin(t, m, nil, "-print", "hello", "-children", "setsid,fork", "-deaf")
	inc := a.shim.Incarnation()
	recorded, err := m.Recorded(ctx)
	if err != nil || recorded.PID != inc.PID || recorded.Start != inc.Start || recorded.BootID != inc.BootID {
		t.Errorf("recorded %v, is %v, %v", recorded, inc, err)
	}
	if alive, err := m.Alive(ctx, inc); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	for name, change := range map[string]func(*process.Incarnation){
		"another start": func(i *process.Incarnation) { i.Start++ },
		"another boot":  func(i *process.Incarnation) { i.BootID = "0" },
	} {
		other := inc
		change(&other)
		if alive, err := m.Alive(ctx, other); alive || err != nil {
			t.Errorf("%s: alive %v, %v", name, alive, err)
		}
		if c, err := m.Kill(ctx, other); err != nil && !fault.Is(err, fault.CleanupFailed) || c.Signalled {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if _, err := m.AdoptShim(ctx, other); !fault.Is(err, fault.ShimLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.shim.Client().Ping(ctx); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, patience, func() bool { return strings.Contains(a.told.of(wire.Stdout), "hello\n") })
	if _, err := a.get("/health"); err != nil {
		t.Errorf("something was signalled: %v", err)
	}
	for name, do := range map[string]func() error{
		"wipe": func() error { return m.Wipe(ctx) }, "prepare": func() error { return m.Prepare(ctx, user()) },
		"release": func() error { return p.Release(ctx, l, empty) },
	} {
		if err := do(); !fault.Is(err, fault.CleanupFailed) {
			t.Errorf("%s while the shim lives: %v", name, err)
		}
	}

	// The next stationd finds it.
	if err := a.shim.Detach(); err != nil {
		t.Fatal(err)
	}
	a.own(must[lease.Shim](t)(m.AdoptShim(ctx, recorded)))
	if _, err := a.get("/health"); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(m.Layout().Workspace, "out", "result"), "done", 0o644)
	got, err := m.Artifacts(ctx, []string{"out"}, 0)
	if err != nil || len(got.Files) != 1 || got.Files[0] != (artifact.File{Path: "out/result", Bytes: 4, SHA256: sha256Of("done")}) {
		t.Errorf("%+v, %v", got, err)
	}

	cleanup, err := a.shim.End(ctx)
	if err != nil || !cleanup.Signalled || len(cleanup.Left) != 0 {
		t.Errorf("%+v, %v", cleanup, err)
	}
	<-a.shim.Done()
	testkit.Eventually(t, patience, a.told.closed)
	if alive, err := m.Alive(ctx, inc); alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if c, err := m.Kill(ctx, inc); err != nil || c.Signalled {
		t.Errorf("%+v, %v", c, err)
	}
	if err := m.Wipe(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(m.Layout().Runtime); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the runtime directory: %v", err)
	}
	for name, proof := range map[string]*lease.Proof{"none": nil, "not empty": {}} {
		if err := p.Release(ctx, l, proof); !fault.Is(err, fault.CleanupFailed) {
			t.Errorf("proof %s: %v", name, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Release(ctx, l, empty); err != nil {
		t.Error(err)
	}
}

// hung ends a shim that does not answer any more.
func hung(t *testing.T, m lease.Machine) {
	t.Helper()
	a := begin(t, m, nil)
	if err := a.shim.Detach(); err != nil {
		t.Fatal(err)
	}
	inc := a.shim.Incarnation()
	if err := process.Signal(place.Here(inc), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if c, err := m.Kill(t.Context(), inc); err != nil || !c.Signalled {
		t.Errorf("%+v, %v", c, err)
	}
	if alive, err := m.Alive(t.Context(), inc); alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if c, err := m.Kill(t.Context(), process.Self()); c.Signalled || !fault.Is(err, fault.ShimLost) {
		t.Errorf("this test: %+v, %v", c, err)
	}
}

func TestLocal_Hung(t *testing.T) {
	p, _ := newLocal(t)
	hung(t, machine(t, p, acquire(t, p)))
}

// A harness that is not what was verified is not executed.
//
// Proves station 17.L6, 17.L7 for leases of this machine.
func TestLocal_Artifact(t *testing.T) {
	p, _ := newLocal(t)
	swapped(t, machine(t, p, acquire(t, p)))
}

// swapped obtains a harness with a wrong digest, and one whose file is another when
// the shim opens it.
func swapped(t *testing.T, m lease.Machine) {
	t.Helper()
	ctx := t.Context()
	if err := m.Prepare(ctx, user()); err != nil {
		t.Fatal(err)
	}
	good := harness(t)
	wrong := good
	wrong.SHA256 = strings.Repeat("0", 64)
	if _, err := m.Obtain(ctx, wrong); !fault.Is(err, fault.IntegrityFailed) {
		t.Errorf("a wrong digest: %v", err)
	}
	if _, err := m.Obtain(ctx, launch.Artifact{Path: good.Path}); !fault.Is(err, fault.ArtifactUnpinned) {
		t.Errorf("no digest: %v", err)
	}
	if left, err := os.ReadDir(m.Layout().Harness); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	obtained := must[launch.Obtained](t)(m.Obtain(ctx, good))
	if filepath.Dir(obtained.Path) != m.Layout().Harness || obtained.SHA256 != good.SHA256 {
		t.Errorf("%+v", obtained)
	}
	marker := filepath.Join(m.Layout().Workspace, "executed")
	if err := os.Remove(obtained.Path); err != nil {
		t.Fatal(err)
	}
	write(t, obtained.Path, "#!/bin/sh\ntouch "+marker+"\n", 0o555)
	if s, err := m.StartShim(ctx, specification(t, m, obtained), false); !fault.Is(err, fault.IntegrityFailed) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("it was executed")
	}
}

// A daemon without run_as, or as root, is refused where root keeps the lease.
func TestLocal_Root(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an ordinary user has no root to give away")
	}
	p, _ := newLocal(t)
	m := machine(t, p, acquire(t, p))
	if err := m.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	spec := specification(t, m, launch.Obtained{})
	spec.Artifact = nil
	for _, tc := range []struct {
		as   *wire.User
		code fault.Code
	}{{nil, fault.RunAsRequired}, {&wire.User{}, fault.RootRefused}} {
		spec.RunAs = tc.as
		if _, err := m.StartShim(t.Context(), spec, false); !fault.Is(err, tc.code) {
			t.Errorf("%+v: %v", tc.as, err)
		}
	}
	spec.RunAs = &wire.User{}
	s := must[lease.Shim](t)(m.StartShim(t.Context(), spec, true))
	if s.Containment() != supervise.KindPIDNamespace {
		t.Error(s.Containment())
	}
	if _, err := s.End(t.Context()); err != nil {
		t.Error(err)
	}
}

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// treeDigest is computed from what is on the disk, independent of package launch.
func treeDigest(t *testing.T, root string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := "100644"
		var content []byte
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			mode = "120000"
			var to string
			to, err = os.Readlink(path)
			content = []byte(to)
		case info.Mode().Perm()&0o100 != 0:
			mode = "100755"
			fallthrough
		default:
			content, err = os.ReadFile(path)
		}
		lines = append(lines, fmt.Sprintf("%s %s %x\n", mode, rel, sha256.Sum256(content)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return sha256Of(strings.Join(lines, ""))
}

// checkOwner fails when something belongs to another than the daemon.
func checkOwner(t *testing.T, root string) {
	t.Helper()
	u := user()
	if u == nil {
		return
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != u.UID || int(st.Gid) != u.GID {
				t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
