package supervise

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/wire"
)

// Bounds of a probe.
const (
	probeTime = 30 * time.Second
	probePort = 7 // nothing is sent there
)

// Kind is one way to hold and to end a daemon with all its descendants.
type Kind struct {
	Name      string        `json:"name"`
	Available bool          `json:"available"`
	Selected  bool          `json:"selected"` // attempts use it
	Took      time.Duration `json:"took_ns,omitempty"`
	Detail    string        `json:"detail,omitempty"`
}

// Report is what doctor tells of this machine (station §8 rule 1).
type Report struct {
	Kinds   []Kind `json:"kinds"`   // strongest first
	Network bool   `json:"network"` // a closed network namespace is made: egress is denied by the kernel
	View    bool   `json:"view"`    // and a mount view of its own
	cgroup  string
}

// Probe tries each kind for real: a throwaway child whose own child left its
// session and is deaf to TERM is ended, and counted afterwards. runtime is a
// directory for the probe's own directories.
func Probe(ctx context.Context, shim, runtime string) Report {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var r Report
	r.cgroup = CgroupParent()
	space := probeNamespace(ctx, shim, runtime)
	r.Network, r.View = space.Available, space.Available // one start makes all or none
	group := Kind{Name: "cgroup2", Detail: "no cgroup2 directory that this user may make groups in"}
	if r.cgroup != "" {
		group = probeCgroup(ctx, shim, r.cgroup)
	}
	space.Selected = space.Available
	group.Selected = space.Available && group.Available
	if !group.Available {
		r.cgroup = ""
	}
	r.Kinds = []Kind{space, group,
		{Name: "freezer", Detail: "not used by this version"},
		{Name: "systemd-scope", Detail: "not used by this version"},
		{Name: "subreaper", Detail: "never selected: a process that respawns itself gets away"},
		{Name: "process-group", Available: true, Detail: "never selected: who starts a session of his own gets away; carries the first signal of a stop"},
	}
	return r
}

// Select gives the options with which shims are started, and what an attempt's
// containment is called. A kind that a daemon can leave is never selected.
func (r Report) Select(shim string) (Options, string, error) {
	at := slices.IndexFunc(r.Kinds, func(k Kind) bool { return k.Selected && k.Name == KindPIDNamespace })
	if at < 0 {
		why := ""
		if len(r.Kinds) > 0 && r.Kinds[0].Detail != "" {
			why = ": " + r.Kinds[0].Detail
		}
		return Options{}, "", fault.New(fault.ContainmentMissing, "this machine offers no containment that a daemon cannot leave%s", why).
			WithHint("stationd doctor says what was tried; who is not root needs unprivileged user namespaces")
	}
	if r.cgroup != "" {
		return Options{Shim: shim, Cgroup: r.cgroup}, KindPIDNamespaceCgroup, nil
	}
	return Options{Shim: shim}, KindPIDNamespace, nil
}

// probeNamespace starts a whole shim and ends it.
func probeNamespace(ctx context.Context, shim, runtime string) Kind {
	k := Kind{Name: KindPIDNamespace}
	fail := func(err error) Kind { k.Detail = fault.CleanLine(err.Error()); return k }
	dir, err := os.MkdirTemp(runtime, "probe-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fail(err)
	}
	for _, name := range []string{"run", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return fail(err)
		}
	}
	work, program := filepath.Join(dir, "work"), filepath.Join(dir, "work", "hold")
	data, err := os.ReadFile(shim)
	if err == nil {
		err = os.WriteFile(program, data, 0o500)
	}
	if err != nil {
		return fail(err)
	}
	spec := wire.Spec{
		Runtime: filepath.Join(dir, "run"), Nonce: rand.Text() + rand.Text(), UID: os.Geteuid(),
		Workspace: work, Home: work, Temp: work, Port: probePort, Deadline: process.BootTime() + probeTime.Milliseconds(),
	}
	if os.Geteuid() == 0 {
		spec.RunAs = &wire.User{UID: nobody, GID: nobody}
		for _, path := range []string{work, program} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				return fail(err)
			}
		}
	}
	p, err := Start(ctx, Options{Shim: shim}, spec)
	if err != nil {
		return fail(err)
	}
	_, err = p.Client().Launch(ctx, wire.Launch{Args: []string{program, "hold"}, Env: []string{}, Dir: work})
	if err == nil {
		err = held(ctx, p.Client())
	}
	cleanup, ended := p.End(context.WithoutCancel(ctx))
	switch {
	case err != nil:
		return fail(err)
	case ended != nil:
		return fail(ended)
	}
	k.Available, k.Took = true, cleanup.Took
	return k
}

// nobody runs the probe's child where stationd is root.
const nobody = 65534

// held waits until the probe's child has its own child.
func held(ctx context.Context, c *Client) error {
	for {
		select {
		case m, ok := <-c.Events():
			if !ok || m.Event == wire.EventExit {
				return fmt.Errorf("the probe's child ended")
			}
			if m.Event == wire.EventOutput && m.Stream == wire.Stdout {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// probeCgroup ends a child and its child by their cgroup alone.
func probeCgroup(ctx context.Context, shim, parent string) Kind {
	k := Kind{Name: "cgroup2"}
	fail := func(err error) Kind { k.Detail = fault.CleanLine(err.Error()); return k }
	group, err := makeCgroup(parent, "probe-"+rand.Text()[:8])
	if err != nil {
		return fail(err)
	}
	defer group.Close()
	path := group.Name()
	defer os.Remove(path)
	cmd := exec.CommandContext(ctx, shim, "hold")
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(group.Fd())}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fail(err)
	}
	_, heard := out.Read(make([]byte, 1))
	began := time.Now()
	killed := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	if killed != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // it leads a group of its own, and is not reaped yet
	}
	_ = cmd.Wait()
	for killed == nil {
		populated, err := cgroupPopulated(path)
		if err != nil {
			return fail(err)
		}
		if !populated {
			break
		}
		if ctx.Err() != nil {
			return fail(ctx.Err())
		}
		time.Sleep(endPoll)
	}
	if killed == nil {
		killed = heard
	}
	if killed != nil {
		return fail(killed)
	}
	k.Available, k.Took = true, time.Since(began)
	return k
}
