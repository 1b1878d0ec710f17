package supervise_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// A stationd that starts anew finds the shim, its daemon, the credential, and the
// output that the old one had not taken.
//
// Proves station 17.M10 for the shim.
func TestAdopt(t *testing.T) {
	w := newWorld(t).start()
	started := w.run(wire.Launch{
		Args: []string{"harness", "-port", "1", "-bind", "2000", "-print", "said once"}, Env: []string{"STATION_ID=x"}, Dir: w.spec.Workspace,
		Credential: "the-daemon's-own", File: "credential",
	})
	testkit.Eventually(t, patience, func() bool { return strings.Contains(w.events.of(wire.Stdout), "said once") })
	inc := w.process.Incarnation()
	recorded, err := supervise.Recorded(w.spec.Runtime)
	if err != nil || recorded != inc {
		t.Errorf("recorded %v, is %v, %v", recorded, inc, err)
	}
	if err := w.process.Detach(); err != nil {
		t.Fatal(err)
	}
	p, err := supervise.Adopt(t.Context(), w.spec.Runtime, recorded)
	if err != nil {
		t.Fatal(err)
	}
	before := w.events
	w.process, w.events = p, gather(p.Client())
	status, err := p.Client().Status(t.Context())
	if err != nil || status.Started == nil || status.Started.PID != started.PID || status.Credential != "the-daemon's-own" || status.Birth.PID != inc.PID {
		t.Errorf("%+v, %v", status, err)
	}
	if err := p.Client().Signal(t.Context(), wire.Group, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() bool { return w.events.exited() != nil })
	if again := w.events.of(wire.Stdout); strings.Contains(again, "said once") {
		t.Errorf("taken twice: %q after %q", again, before.of(wire.Stdout))
	}
	if _, err := p.End(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := process.Stat(inc.PID); err == nil {
		t.Error("the shim that this process started is not reaped")
	}
}

// What was not acknowledged is told again; an older connection gives way.
func TestClient_TakesOver(t *testing.T) {
	w := newWorld(t)
	w.spec.Artifact = nil
	p, err := supervise.Start(t.Context(), w.options, w.spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.End(context.Background())
	if _, err := p.Client().Launch(t.Context(), wire.Launch{Args: []string{"/bin/sh", "-c", "echo out; echo err >&2; exit 5"}, Dir: w.spec.Workspace}); err != nil {
		t.Fatal(err)
	}
	for m := range p.Client().Events() {
		if m.Event == wire.EventOutput { // read, but never acknowledged
			break
		}
	}
	conn, err := p.Dial(t.Context(), wire.Control)
	if err != nil {
		t.Fatal(err)
	}
	c, err := supervise.Connect(t.Context(), conn, nonce)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	again := gather(c)
	testkit.Eventually(t, patience, func() bool {
		e := again.exited()
		return again.of(wire.Stdout) == "out\n" && again.of(wire.Stderr) == "err\n" && e != nil && *e.Code == 5
	})
	for range p.Client().Events() { // until it ends
	}
	if err := p.Client().Ping(t.Context()); !fault.Is(err, fault.ShimLost) {
		t.Errorf("the older connection: %v", err)
	}
	if err := c.Kill(t.Context(), "operator_stop"); err != nil {
		t.Error(err)
	}
	<-p.Done()
	if end, ok, err := supervise.Ended(w.spec.Runtime); err != nil || !ok || end.Reason != wire.ReasonExited || !end.Final || *end.Code != 5 {
		t.Errorf("%+v, %v, %v", end, ok, err)
	}
}

// Proves station 17.M11, 17.M14 for what supervise says: a pid that is
// another process, a zombie, a wrong nonce are no shim, and nothing is signalled.
func TestAdopt_Lost(t *testing.T) {
	w := newWorld(t).start()
	w.launch()
	inc := w.process.Incarnation()
	other := inc
	other.Start++

	zombie := exec.Command("sleep", "60")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	dead, err := process.Of(zombie.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zombie.Wait() }()
	if err := zombie.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() bool { info, err := process.Stat(dead.PID); return err == nil && info.State == 'Z' })

	stranger := w.dir + "/elsewhere"
	if err := os.Mkdir(stranger, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		runtime string
		inc     process.Incarnation
	}{
		"start time": {w.spec.Runtime, other},
		"zombie":     {w.spec.Runtime, dead},
		"not a shim": {w.spec.Runtime, process.Self()},
		"no nonce":   {stranger, inc},
	} {
		if _, err := supervise.Adopt(t.Context(), tc.runtime, tc.inc); !fault.Is(err, fault.ShimLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.spec.Runtime, wire.Nonce), []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := supervise.Adopt(t.Context(), w.spec.Runtime, inc); !fault.Is(err, fault.ShimLost) {
		t.Errorf("wrong nonce: %v", err)
	}
	if _, err := w.try("/health"); err != nil {
		t.Errorf("something was signalled: %v", err)
	}
}

// Proves station 17.M5, 17.M15 for the shim: without a stationd it ends
// everything when the TTL passes, and when nobody came back.
func TestShim_Alone(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(*wire.Spec)
		reason string
	}{
		"ttl":    {func(s *wire.Spec) { s.Deadline = process.BootTime() + 4000; s.GraceMS = 60_000 }, wire.ReasonTTL},
		"orphan": {func(s *wire.Spec) { s.OrphanMS = 1000 }, wire.ReasonOrphaned},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.set(&w.spec)
			w.start()
			w.launch("-children", "setsid,fork", "-deaf")
			inc := w.process.Incarnation()
			if err := w.process.Detach(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := process.Wait(ctx, inc); err != nil {
				t.Fatal(err)
			}
			if n := w.alive(); n != 0 {
				t.Errorf("%d left", n)
			}
			if end, ok, err := supervise.Ended(w.spec.Runtime); err != nil || !ok || end.Reason != tc.reason || !end.Final {
				t.Errorf("%+v, %v, %v", end, ok, err)
			}
		})
	}
}

// An attended shim leaves the TTL to its stationd for the grace.
func TestShim_Attended(t *testing.T) {
	w := newWorld(t)
	w.spec.Deadline, w.spec.GraceMS, w.spec.OrphanMS = process.BootTime()+1, 1500, 1
	w.options.AllowRoot = false
	began := time.Now()
	w.start()
	<-w.process.Done()
	if took := time.Since(began); took < time.Second {
		t.Errorf("it ended after %v", took)
	}
}
