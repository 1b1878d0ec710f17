package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/store"
)

// A daemon is a running watchd.
type daemon struct {
	w   *world
	cmd *exec.Cmd
	log bytes.Buffer
}

func (w *world) start() *daemon {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	d := &daemon{w: w, cmd: exec.Command(self, "serve", "-store-dir", w.root, "-runtime-dir", w.runtime, "-interval", interval.String())}
	d.cmd.Env = []string{serving + "=1", "HOME=" + w.dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TMUX_TMPDIR=" + w.dir}
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait()
		}
		if w.t.Failed() {
			w.t.Logf("watchd %d:\n%s", d.cmd.Process.Pid, &d.log)
		}
	})
	return d
}

// holds counts the live monitor leases of this watchd, and those of others.
func (d *daemon) holds() (own, others int, sweeps bool) {
	d.w.t.Helper()
	rows, err := d.w.store.Leases(context.Background(), "")
	if err != nil {
		d.w.t.Fatal(err)
	}
	for _, r := range rows {
		mine := strings.Contains(r.Holder, fmt.Sprintf("/%d/", d.cmd.Process.Pid))
		switch {
		case !r.Live:
		case r.Name == store.WatchdLease():
			sweeps = mine
		case strings.HasPrefix(r.Name, "monitor/") && mine:
			own++
		case strings.HasPrefix(r.Name, "monitor/"):
			others++
		}
	}
	return own, others, sweeps
}

// followed waits until this watchd alone follows n Turns.
func (d *daemon) followed(n int, within time.Duration) {
	d.w.t.Helper()
	eventually(d.w.t, within, func() error {
		if own, others, sweeps := d.holds(); own != n || others != 0 || !sweeps {
			return fmt.Errorf("follows %d of %d turns, others %d; sweeps: %v", own, n, others, sweeps)
		}
		return nil
	})
}

// Two watchd on one Store: one follows all Turns, the other stands by; when the
// first is killed all of them move, and each end is told once, that which was
// written while nobody looked too.
//
// Proves core 19.21 with processes, core 19.62 for watchd, for no other program is
// there, and host-profile 15.36: it needs no Profile.
func TestServe_Takeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	panes := []*pane{w.working(), w.working(), w.working(), w.working()}
	first := w.start()
	first.followed(4, patience)
	second := w.start()
	panes[0].open()
	panes[0].ended(patience)
	first.followed(3, patience)
	if own, _, sweeps := second.holds(); own != 0 || sweeps {
		t.Errorf("the second follows %d turns; sweeps: %v", own, sweeps)
	}

	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it sees nothing more
		t.Fatal(err)
	}
	panes[1].open()
	eventually(t, patience, func() error {
		return is(strings.Contains(w.tmuxDo("capture-pane", "-p", "-t", panes[1].tid), "ECHO: "+panes[1].name), "the answer is shown")
	})
	killed := time.Now()
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	panes[1].ended(20 * time.Second)
	second.followed(2, 20*time.Second-time.Since(killed))
	panes[2].open()
	panes[3].open()
	for _, p := range panes[2:] {
		p.ended(patience)
	}
	for _, p := range panes {
		p.told(1)
	}

	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if own, others, sweeps := second.holds(); own != 0 || others != 0 || sweeps {
		t.Errorf("leases left: %d own, %d others, sweeps: %v", own, others, sweeps)
	}
}

// Proves host-profile 15.36 for watchd: a relay that is only partly set stops the
// start before anything is opened.
func TestServe_BrokenRelay(t *testing.T) {
	t.Setenv("AKK_HOST_PROFILE_SOURCE", "file")
	root := filepath.Join(private(t), "store")
	var out, log bytes.Buffer
	code := run(t.Context(), []string{"serve", "-store-dir", root, "-runtime-dir", private(t)}, strings.NewReader(""), &out, &log)
	if code != 2 || out.Len() != 0 || !strings.Contains(log.String(), "is not set") {
		t.Errorf("status %d, %q, %q", code, out.String(), log.String())
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("a Store was made: %v", err)
	}
}
