package lease_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/nettest"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/wire"
)

// A lease over SSH has the same story as one of this machine.
//
// Proves station 17.Z4 for the provider.
func TestSSH(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	p := h.provider(t)
	if err := p.Describe().Check(); err != nil {
		t.Fatal(err)
	}
	l := must[lease.Lease](t)(p.Acquire(t.Context(), request))
	story(t, p, l)
	for _, dir := range []string{"leases", "run"} {
		if left, err := os.ReadDir(filepath.Join(h.remote.Dir, dir)); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if left, err := os.ReadDir(h.scratch); err == nil && len(left) != 0 {
		t.Errorf("left here: %v", left)
	}
	if err := p.Release(t.Context(), l, empty); err != nil {
		t.Errorf("once more: %v", err)
	}
	if n := h.line.count(); n != 1 {
		t.Errorf("%d connections for one lease", n)
	}
}

// A machine that shows another key gets nothing: no request, no file, no key.
func TestSSH_HostKey(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	other, _ := newKey(t, filepath.Join(t.TempDir(), "other"))
	for name, key := range map[string]string{"another": other, "another kind": rsaKey(t)} {
		wrong := *h
		wrong.remote.HostKey = key
		p := wrong.provider(t)
		_, err := p.Acquire(t.Context(), request)
		if !fault.Is(err, fault.HostKeyRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Heartbeat(t.Context(), lease.Lease{ID: id}); !fault.Is(err, fault.HostKeyRefused) {
			t.Errorf("%s, again: %v", name, err)
		}
	}
	if exists(h.remote.Dir) {
		t.Error("something was written there")
	}
	if _, err := h.provider(t).Acquire(t.Context(), request); err != nil {
		t.Errorf("the right key: %v", err)
	}
}

func rsaKey(t *testing.T) string {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(key))
}

// What keeps stationd out is said, without a path or a key.
func TestSSH_Unreachable(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	dir := t.TempDir()
	_, stranger := newKey(t, filepath.Join(dir, "stranger"))
	_, open := newKey(t, filepath.Join(dir, "open"))
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "text"), "text", 0o600)
	for name, tc := range map[string]struct {
		change func(*lease.Remote)
		says   string
	}{
		"a stranger's key": {func(r *lease.Remote) { r.KeyFile = stranger }, "unable to authenticate"},
		"no key file":      {func(r *lease.Remote) { r.KeyFile = filepath.Join(dir, "none") }, "cannot be opened"},
		"an open key file": {func(r *lease.Remote) { r.KeyFile = open }, "0600"},
		"no key in it":     {func(r *lease.Remote) { r.KeyFile = filepath.Join(dir, "text") }, "holds no private key"},
		"no agent":         {func(r *lease.Remote) { r.KeyFile, r.Agent = "", filepath.Join(dir, "none") }, "reach the agent"},
		"nobody there":     {func(r *lease.Remote) { r.Port = 1 }, "refused"},
	} {
		other := *h
		tc.change(&other.remote)
		_, err := other.provider(t).Acquire(t.Context(), request)
		if !fault.Is(err, fault.ProviderUnreachable) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "no agent" && strings.Contains(fmt.Sprint(err), dir) {
			t.Errorf("%s: the path is told: %v", name, err)
		}
		// What is wrong on this side is seen without dialling.
		mine := name != "a stranger's key" && name != "nobody there"
		if err := other.remote.Usable(); (err != nil) != mine || mine && !fault.Is(err, fault.ProvidersInvalid) {
			t.Errorf("%s: a look gives %v", name, err)
		}
	}
}

// An agent's key opens the machine, too; and a lease belongs to the machine where it
// was made.
func TestSSH_Agent(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	data, err := os.ReadFile(h.remote.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ssh.ParseRawPrivateKey(data)
	if err != nil {
		t.Fatal(err)
	}
	keys := agent.NewKeyring()
	if err := keys.Add(agent.AddedKey{PrivateKey: private}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(testkit.RuntimeDir(t), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _ = agent.ServeAgent(keys, conn); conn.Close() })
		}
	})
	defer serving.Wait()
	defer l.Close()
	h.remote.KeyFile, h.remote.Agent = "", socket
	p := h.provider(t)
	got := acquire(t, p)
	other := *h
	other.remote.User = "somebody"
	if err := other.provider(t).Release(t.Context(), got, empty); !fault.Is(err, fault.LeaseUnavailable) {
		t.Errorf("another user there: %v", err)
	}
	if _, err := p.Heartbeat(t.Context(), got); err != nil {
		t.Error(err)
	}
}

// The same promises as on this machine.
//
// Proves station 17.L1, 17.L2, 17.L6, 17.L7 over SSH, and 17.M14 for its machines.
func TestSSH_Machine(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	p := h.provider(t)
	m := machine(t, p, acquire(t, p))
	t.Run("sync", func(t *testing.T) { synced(t, m) })
	t.Run("artifact", func(t *testing.T) { swapped(t, m) })
	t.Run("hung", func(t *testing.T) { hung(t, m) })
	if left, err := os.ReadDir(h.scratch); err != nil || len(left) != 0 {
		t.Errorf("left here: %v, %v", left, err)
	}
}

// A line that is cut ends nothing: the daemon runs on, requests fail meanwhile, and
// afterwards everything goes on, the way out included. What was said is told once.
//
// Proves station 17.Z4 for the cut.
func TestSSH_Cut(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	p := h.provider(t)
	m := machine(t, p, acquire(t, p))
	if err := m.Prepare(t.Context(), user()); err != nil {
		t.Fatal(err)
	}
	obtained := must[launch.Obtained](t)(m.Obtain(t.Context(), harness(t)))
	out := must[net.Listener](t)(m.Listen(t.Context(), wire.Egress))
	var serving sync.WaitGroup
	serving.Go(func() { greet(out) })
	defer serving.Wait()
	defer out.Close()
	a := &attempt{TB: t, machine: m, spec: specification(t, m, obtained)}
	a.spec.Egress = true
	a.own(must[lease.Shim](t)(m.StartShim(t.Context(), a.spec, false)))
	a.launch("-print", "said once", "-deaf")
	wayOut := func() error {
		got, err := a.get("/dial?send=hello&address=" + wire.ProxyAddress)
		if err == nil && !strings.Contains(got, "greetings") {
			err = errors.New(got)
		}
		return err
	}
	testkit.EventuallyNil(t, patience, wayOut)
	testkit.Eventually(t, patience, func() bool { return strings.Contains(a.told.of(wire.Stdout), "said once\n") })
	inc := a.shim.Incarnation()
	detached(t, inc.PID)
	began := time.Now()
	h.line.cut()
	testkit.Eventually(t, patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return fault.Is(a.shim.Client().Ping(ctx), fault.ShimLost)
	})
	if _, err := m.Alive(t.Context(), inc); !fault.Is(err, fault.ProviderUnreachable) {
		t.Errorf("while it is cut: %v", err)
	}
	if _, err := a.shim.End(t.Context()); !fault.Is(err, fault.CleanupFailed) {
		t.Errorf("the end while it is cut is not proven: %v", err)
	}
	if _, err := p.Heartbeat(t.Context(), lease.Lease{ID: id}); !fault.Is(err, fault.ProviderUnreachable) {
		t.Errorf("the heartbeat while it is cut: %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", inc.PID)); err != nil {
		t.Errorf("the shim ended with the line: %v", err)
	}
	h.line.mend()
	if err := a.shim.Client().Ping(t.Context()); err != nil { // it waits
		t.Error(err)
	}
	t.Logf("resumed after %v", time.Since(began))
	if _, err := a.get("/health"); err != nil {
		t.Error(err)
	}
	testkit.EventuallyNil(t, patience, wayOut)
	if said := strings.Count(a.told.of(wire.Stdout), "said once"); said != 1 || a.told.closed() {
		t.Errorf("told %d times, ended %v", said, a.told.closed())
	}
	select {
	case <-a.shim.Done():
		t.Error("the shim is said to have ended")
	default:
	}

	// And when the shim ends by itself, that is seen.
	if err := a.shim.Client().Kill(t.Context(), "operator_stop"); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, patience, a.told.closed)
	<-a.shim.Done()
	if end, ok, err := m.Ended(t.Context()); err != nil || !ok || end.Reason != "operator_stop" {
		t.Errorf("%+v, %v, %v", end, ok, err)
	}
}

// detached checks that a shim has nothing of the session that it came from: no
// descriptor but /dev/null, no terminal, no session but its own.
func detached(t *testing.T, pid int) {
	t.Helper()
	info := must[process.Info](t)(process.Stat(pid))
	if info.Session != pid || info.TTY != 0 {
		t.Errorf("%+v", info)
	}
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil || to != os.DevNull {
			t.Errorf("descriptor %d: %s, %v", fd, to, err)
		}
	}
	if words, err := process.Cmdline(pid); err != nil || !slices.Equal(words, []string{"station-shim", "init"}) {
		t.Errorf("arguments %q, %v", words, err)
	}
}

// A machine that does not answer is not waited for longer than who asks wants, and
// its connection is given up.
func TestSSH_Stall(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	p := h.provider(t)
	p.Impatient()
	l := acquire(t, p)
	h.line.stall()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Heartbeat(ctx, l); !fault.Is(err, fault.ProviderUnreachable) {
		t.Errorf("who waits 50 ms: %v", err)
	}
	if _, err := p.Heartbeat(t.Context(), l); !fault.Is(err, fault.ProviderUnreachable) {
		t.Errorf("who waits: %v", err)
	}
	h.line.mend()
	testkit.EventuallyNil(t, patience, func() error { _, err := p.Heartbeat(t.Context(), l); return err })
}

// The user there may be an ordinary one; then the daemon is that user.
func TestSSH_Ordinary(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	h := newHost(t)
	h.ordinary(t)
	p := h.provider(t)
	l := acquire(t, p)
	m := machine(t, p, l)
	if err := m.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	obtained := must[launch.Obtained](t)(m.Obtain(t.Context(), harness(t)))
	a := &attempt{TB: t, machine: m, spec: specification(t, m, obtained)}
	a.spec.RunAs = &wire.User{UID: daemon + 1, GID: daemon + 1}
	if _, err := m.StartShim(t.Context(), a.spec, false); !fault.Is(err, fault.RunAsRequired) {
		t.Errorf("another user for the daemon: %v", err)
	}
	a.spec.RunAs = nil
	a.own(must[lease.Shim](t)(m.StartShim(t.Context(), a.spec, false)))
	a.launch("-children", "setsid,fork", "-deaf")
	got, err := a.get("/process")
	if err != nil || !strings.Contains(got, fmt.Sprintf(`"uid":%d`, daemon)) {
		t.Errorf("%s, %v", got, err)
	}
	if c, err := a.shim.End(t.Context()); err != nil || !c.Signalled || len(c.Left) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	closed := filepath.Join(m.Layout().Workspace, "closed") // what it closed against itself goes, too
	write(t, filepath.Join(closed, "file"), "text", 0o600)
	if err := errors.Join(os.Chown(closed, daemon, daemon), os.Chmod(closed, 0)); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), l, empty); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(h.remote.Dir, "leases")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// greet answers whoever comes.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, len("hello")))
		_, _ = io.WriteString(conn, "greetings\n")
		_ = conn.Close()
	}
}
