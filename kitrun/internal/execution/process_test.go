package execution_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// start runs the program with the world's options.
func (w *world) start(env ...string) *testkit.Process {
	w.Helper()
	data, err := json.Marshal(w.request)
	if err != nil {
		w.Fatal(err)
	}
	w.write("request.json", string(data))
	cmd := exec.Command(testkit.BuildProgram(w.T, "kitrun", "drawbridge_crashpoints"), "run", "--dest", w.opt.Dest, "--request="+w.opt.RequestFile,
		"--controller-root", w.opt.ControllerRoot, w.opt.KitID, "--store-dir", w.path("store"), "--runtime-dir", w.path("run"),
		"--docker-host", w.host.DockerHost, "--env", "TEST_DIR", "--grace", "1m")
	cmd.Env = append(append([]string{"HOME=" + w.dir}, w.host.Environ...), env...)
	return testkit.Start(w.T, cmd)
}

func (w *world) appears(name string) {
	w.Helper()
	testkit.Eventually(w.T, patience, func() bool { return w.exists(name) }, name, "appears")
}

// Proves kit 17.21.
func TestRun_Statuses(t *testing.T) {
	w := newWorld(t, `
		import fs from 'node:fs';
		export const run = ({ requestFile }) => JSON.parse(fs.readFileSync(requestFile)).give?.[0];`)
	for _, tc := range []struct {
		give any
		exit int
		want string
	}{
		{map[string]any{"status": "completed"}, 0, `{"status":"completed"}`},
		{map[string]any{"status": "waiting"}, 0, `{"status":"waiting"}`},
		{map[string]any{"status": "failed"}, 1, `{"status":"failed"}`},
		{map[string]any{"status": "cancelled"}, 1, `{"status":"cancelled"}`},
		{map[string]any{"status": "budget_exhausted"}, 1, `{"status":"budget_exhausted"}`},
		{map[string]any{"status": "sleeping"}, 1, `{"status":"sleeping"}`},
		{map[string]any{"status": []any{"completed"}}, 1, `{"status":["completed"]}`},
		{map[string]any{"n": 1}, 1, `{"n":1}`},
		{"completed", 1, `"completed"`},
		{nil, 1, `null`},
	} {
		t.Run(tc.want, func(t *testing.T) {
			w := *w
			w.T = t
			w.request["give"] = []any{tc.give}
			if tc.give == nil {
				delete(w.request, "give") // undefined
			}
			c := w.start().Exits(tc.exit)
			if got := c.Stdout.String(); got != tc.want+"\n" || c.Stderr.String() != "" {
				t.Errorf("stdout %q, stderr %q, want %s", got, c.Stderr.String(), tc.want)
			}
		})
	}
}

// Proves kit 17.22.
func TestRun_Large(t *testing.T) {
	t.Run("result", func(t *testing.T) {
		w := newWorld(t, `export const run = () => ({ status: 'completed', big: '<é"\n'.repeat(2 << 20) });`)
		text, err := json.Marshal(map[string]string{"big": strings.Repeat("<é\"\n", 2<<20)})
		if err != nil {
			t.Fatal(err)
		}
		want := `{"status":"completed",` + strings.ReplaceAll(string(text[1:]), `\u003c`, "<")
		c := w.start().Exits(0)
		if got := c.Stdout.String(); got != want+"\n" {
			t.Errorf("%d bytes, want %d: %.100q", len(got), len(want)+1, got)
		}
		out, err := w.run()
		if err != nil || string(out.Result) != want {
			t.Errorf("for Go programs: %d bytes, %v", len(out.Result), err)
		}
	})
	t.Run("error", func(t *testing.T) {
		w := newWorld(t, `export const run = () => { console.error('noise'); throw new Error('line\n'.repeat(400_000) + 'end'); };`)
		c := w.start().Exits(1)
		if want := "kitrun: " + strings.Repeat("line\n", 400_000) + "end\n"; c.Stderr.String() != want || c.Stdout.Len() != 0 {
			t.Errorf("stdout %d bytes, stderr %d, want %d", c.Stdout.Len(), len(c.Stderr.String()), len(want))
		}
	})
	t.Run("no message", func(t *testing.T) {
		w := newWorld(t, `export const run = () => { console.error('last words'); process.exit(7); };`)
		c := w.start().Exits(1)
		if got := c.Stderr.String(); c.Stdout.Len() != 0 || !strings.HasPrefix(got, "kitrun: the kit's process ended without a result: exit status 7\n") ||
			!strings.HasSuffix(got, "\nlast words\n") {
			t.Errorf("stdout %q, stderr %q", c.Stdout.String(), got)
		}
	})
}

// hanging is a kit that leaves a container and a child, and hangs.
func hanging(e *engine, onAbort string) string {
	return e.leaves() + `
		import { spawn } from 'node:child_process';
		import fs from 'node:fs';
		const dir = process.env.TEST_DIR;
		export async function run({ executionOwner, signal }) {
			await leave(executionOwner);
			spawn('sh', ['-c', 'trap "" TERM; while :; do sleep 1; done'], { stdio: 'ignore' });
			setInterval(() => {}, 1000);
			return new Promise((resolve) => {
				signal.addEventListener('abort', () => { fs.writeFileSync(dir + '/aborted', ''); ` + onAbort + ` });
				fs.writeFileSync(dir + '/running', '');
			});
		}`
}

// Proves kit 17.33.
func TestRun_Interrupted(t *testing.T) {
	e := newEngine(t)
	t.Run("once", func(t *testing.T) {
		w := newWorld(t, hanging(e, `process.exitCode = 0; resolve({ status: 'completed' }); setTimeout(() => process.exit(), 10);`))
		w.host.DockerHost = e.host()
		c := w.start()
		w.appears("running")
		c.Signal(syscall.SIGINT)
		c.Exits(1)
		if !w.exists("aborted") || c.Stdout.Len() != 0 || !strings.Contains(c.Stderr.String(), "kitrun: the run of kit 'sample' was cancelled") {
			t.Errorf("aborted %t, stdout %q, stderr %q", w.exists("aborted"), c.Stdout.String(), c.Stderr.String())
		}
		w.over()
	})
	t.Run("twice", func(t *testing.T) {
		w := newWorld(t, hanging(e, ``))
		w.host.DockerHost = e.host()
		c := w.start()
		w.appears("running")
		c.Signal(syscall.SIGTERM)
		w.appears("aborted")
		begin := time.Now()
		c.Signal(syscall.SIGINT)
		c.Exits(1)
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("it took %v", took)
		}
		w.over()
	})
	if n := e.left(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}

// over demands that the last run has an end and no process.
func (w *world) over() {
	w.Helper()
	row := w.last()
	if row.EndedAt == 0 {
		w.Errorf("row %+v", row)
	}
	w.noProcess(row)
}

// noProcess demands that nothing of a run's process group lives.
func (w *world) noProcess(row store.KitRun) {
	w.Helper()
	if row.PID == 0 {
		return
	}
	testkit.Eventually(w.T, patience, func() bool { return len(group(row.PID)) == 0 }, "the process group is gone")
}

// group lists the living members of a process group.
func group(pgrp int) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscanf(entry.Name(), "%d", &pid); err != nil {
			continue
		}
		if info, err := process.Stat(pid); err == nil && info.PGRP == pgrp && !info.Dead() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A kitrun that is killed: the next one ends what is left, also of a process group
// that has lost its leader. Proves kit 17.34.
func TestRun_Killed(t *testing.T) {
	for _, tc := range []struct {
		name, onAbort string
		leader        bool // it lives on without its kitrun
	}{
		{"the kit goes on", ``, true},
		{"the kit ends, its child goes on", `process.exit();`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(t)
			w := newWorld(t, hanging(e, tc.onAbort))
			w.host.DockerHost = e.host()
			c := w.start()
			w.appears("running")
			row := w.last()
			grant, err := w.host.Store.CreateGrant(t.Context(), store.NewGrant{
				CapabilitySHA256: [32]byte{1}, CredentialRef: "/auth.json", Request: store.GrantRequest{Model: "m"}, RunID: row.InvocationID, OwnerID: row.OwnerID,
			})
			if err != nil {
				t.Fatal(err)
			}
			foreign := e.leave("00000000-0000-4000-8000-000000000000")
			c.Signal(syscall.SIGKILL)
			c.Exits(-1)
			if !tc.leader {
				testkit.Eventually(t, patience, func() bool { return len(group(row.PID)) == 1 }, "the leader is gone, its child is not")
			}
			if err := w.host.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.noProcess(row)
			now, err := w.host.Store.KitRun(t.Context(), row.InvocationID)
			if err != nil || now.State != store.KitRunLost || now.Removed != 1 {
				t.Errorf("row %+v, %v", now, err)
			}
			if g, err := w.host.Store.Grant(t.Context(), grant.ID); err != nil || g.CloseRequestedAt == 0 || g.CloseReason != "run_lost" {
				t.Errorf("grant %+v, %v", g, err)
			}
			if e.left() != 1 || e.removed[0] == foreign {
				t.Errorf("%d containers are left", e.left())
			}
			if w.exists("run/kitrun/" + row.InvocationID) {
				t.Error("support files are left")
			}
			if err := w.host.Recover(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Wherever kitrun ends, the next one puts it right. Proves kit 17.34 for the
// crash points of a run.
func TestRun_CrashPoints(t *testing.T) {
	e := newEngine(t)
	w := newWorld(t, e.leaves()+`export async function run({ executionOwner }) { await leave(executionOwner); return { status: 'completed' }; }`)
	w.host.DockerHost = e.host()
	for _, tc := range []struct{ at, state string }{
		{"kit_run_begun", store.KitRunLost},
		{"kit_run_running", store.KitRunLost},
		{"kit_process_gone", store.KitRunLost},
		{"kit_grants_closed", store.KitRunLost},
		{"kit_workers_gone", store.KitRunLost},
		{"kit_run_ended", store.KitRunFinished},
	} {
		t.Run(tc.at, func(t *testing.T) {
			w := *w
			w.T = t
			w.start("DRAWBRIDGE_TEST_EXIT_AT=" + tc.at).Exits(crashpoint.ExitCode)
			if err := w.host.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			if row := w.last(); row.State != tc.state {
				t.Errorf("row %+v", row)
			}
			w.over()
			if n := e.left(); n != 0 {
				t.Errorf("%d containers are left", n)
			}
		})
	}
	if open, err := w.host.Store.OpenKitRuns(t.Context()); err != nil || len(open) > 0 {
		t.Errorf("open: %+v, %v", open, err)
	}
}
