package execution_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// A whole run and what stays of it: its row, and nothing else.
func TestExecute(t *testing.T) {
	w := newWorld(t, `export const run = () => ({ status: 'waiting', note: 'é <>' });`)
	out, err := w.run()
	if err != nil {
		t.Fatal(err)
	}
	if string(out.Result) != `{"status":"waiting","note":"é <>"}` || !out.Succeeded() || out.Status != "waiting" {
		t.Errorf("outcome %s, %+v", out.Result, out)
	}
	row := w.last()
	if row.InvocationID != out.InvocationID || row.State != store.KitRunFinished || row.Status != "waiting" || row.ExitCode != 0 || row.PID == 0 ||
		row.Dest != w.opt.Dest || !strings.HasPrefix(row.KitHash, "sha256:") || !strings.HasPrefix(row.RequestSHA256, "sha256:") {
		t.Errorf("row %+v", row)
	}
	left, err := filepath.Glob(w.path("run/kitrun/*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the runtime directory: %q, %v", left, err)
	}
	if leases, err := w.host.Store.Leases(t.Context(), "kitrun/"); err != nil || len(leases) > 0 && leases[0].Live {
		t.Errorf("leases: %+v, %v", leases, err)
	}
	if info, err := os.Stat(w.path("controller")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("controller root: %v, %v", info, err)
	}
}

// The next run after an update sees each of its modules. Proves kit 17.20.
func TestExecute_Updated(t *testing.T) {
	w := newWorld(t, `import { n } from './lib/n.mjs'; export const run = () => ({ n });`, "lib/n.mjs", `export const n = 1;`)
	if got := w.result()["n"]; got != 1.0 {
		t.Errorf("got %v", got)
	}
	w.write("source/lib/n.mjs", `export const n = 2;`)
	w.install()
	if got := w.result()["n"]; got != 2.0 {
		t.Errorf("after the update: got %v", got)
	}
}

// What a caller's Node is told has no effect on a kit's. Proves kit 17.41.
func TestExecute_Environment(t *testing.T) {
	w := newWorld(t, `
		export const run = async () => ({
			env: process.env, args: process.execArgv.length,
			found: await import('only-in-node-path').then(() => true, () => false),
		});`)
	w.write("modules/only-in-node-path/index.js", "")
	w.write("crash.cjs", "process.exit(9);")
	w.host.Environ = append(w.host.Environ, "NODE_OPTIONS=--require="+w.path("crash.cjs"), "NODE_PATH="+w.path("modules"), "NODE_EXTRA_CA_CERTS=/x",
		"LD_PRELOAD=/nonexistent.so", "DRAWBRIDGE_LIFELINE_FD=9", "OPENAI_API_KEY=secret", "LC_ALL=C.UTF-8", "ASKED=yes")
	w.opt.Env = append(w.opt.Env, "NODE_OPTIONS", "ASKED", "LD_PRELOAD", "ABSENT")
	got := w.result()
	env := got["env"].(map[string]any)
	want := map[string]any{
		"PATH": os.Getenv("PATH"), "TEST_DIR": w.dir, "LC_ALL": "C.UTF-8", "ASKED": "yes", "DOCKER_HOST": w.host.DockerHost,
		"NODE_DISABLE_COMPILE_CACHE": "1", "DRAWBRIDGE_KIT_RUN": w.last().InvocationID,
	}
	if diff := cmp.Diff(want, env); diff != "" || got["found"] != false {
		t.Error(diff, got["found"])
	}
}

// A kit that hangs is told at its deadline, killed 5 s later with its children, and
// all of it takes less than 7 s. Proves kit 17.27.
func TestExecute_Hangs(t *testing.T) {
	w := newWorld(t, `
		import { spawn } from 'node:child_process';
		import fs from 'node:fs';
		const dir = process.env.TEST_DIR;
		export function run({ signal }) {
			spawn('sh', ['-c', 'trap "" TERM; echo $$ > ' + dir + '/pid; while :; do sleep 1; done'], { stdio: 'ignore' });
			signal.addEventListener('abort', () => fs.writeFileSync(dir + '/aborted', String(Date.now())));
			return new Promise(() => {});
		}`)
	const timeout = 3
	w.timeout(timeout)
	begin := time.Now()
	out, err := w.run()
	took := time.Since(begin)
	if !fault.Is(err, fault.KitDeadline) || out.Result != nil {
		t.Errorf("got %v, %s", err, out.Result)
	}
	if !w.exists("aborted") {
		t.Error("the signal did not fire")
	}
	row := w.last()
	if spent := time.Duration(row.EndedAt-row.StartedAt) * time.Millisecond; spent < (timeout+5)*time.Second || spent > (timeout+7)*time.Second {
		t.Errorf("from its start to its end: %v (with everything: %v)", spent, took)
	}
	if row.State != store.KitRunFinished || row.ErrorCode != "kit_deadline_exceeded" || row.ExitCode != 1 {
		t.Errorf("row %+v", row)
	}
	data, err := os.ReadFile(w.path("pid"))
	var pid int
	if err != nil || json.Unmarshal(data, &pid) != nil {
		t.Fatal("the grandchild never ran")
	}
	testkit.Eventually(t, patience, func() bool {
		info, err := process.Stat(pid)
		return err != nil || info.Dead()
	}, "the grandchild is gone")
}

// A result is not believed as long as its process lives. Proves kit 17.28.
func TestExecute_KeepsATimer(t *testing.T) {
	w := newWorld(t, `export function run() { setInterval(() => {}, 1000); return { status: 'completed' }; }`)
	w.timeout(1.5)
	w.opt.Grace = 100 * time.Millisecond
	if out, err := w.run(); !fault.Is(err, fault.KitDeadline) || out.Result != nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("got %v, %s", err, out.Result)
	}
}

// Proves kit 17.42.
func TestExecute_Drifts(t *testing.T) {
	for name, text := range map[string]string{
		"changes": `fs.appendFileSync(new URL('./flow.json', import.meta.url), ' ')`,
		"adds":    `fs.mkdirSync(new URL('./__pycache__', import.meta.url))`,
		"throws":  `fs.appendFileSync(new URL('./flow.json', import.meta.url), ' '); throw new Error('no')`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, `import fs from 'node:fs'; export function run() { `+text+`; return { status: 'completed' }; }`)
			out, err := w.run()
			if fault.CodeOf(err) != "kit_drifted_during_run" || out.Result != nil || w.last().ErrorCode != "kit_drifted_during_run" {
				t.Errorf("got %v, %s", err, out.Result)
			}
		})
	}
}

// Containers are looked for when the process is gone, and only the run's own are
// removed; a result does not hide them. Proves kit 17.30, 17.31.
func TestExecute_LeavesWorkers(t *testing.T) {
	e := newEngine(t)
	w := newWorld(t, `
		import { leave } from './leave.mjs';
		export async function run({ executionOwner }) { await leave(executionOwner); return { status: 'completed' }; }`, "leave.mjs", e.leaves())
	w.host.DockerHost = e.host()
	foreign := e.leave("00000000-0000-4000-8000-000000000000")
	var mu sync.Mutex
	looks := 0
	e.looked = func(owner string) {
		mu.Lock()
		defer mu.Unlock()
		looks++
		row := w.last()
		inc, err := process.ParseIncarnation(fmt.Sprintf("%d/%s", row.PID, row.PIDBirth))
		if err != nil || owner != row.OwnerID {
			t.Errorf("looked for %s: %v", owner, err)
			return
		}
		if gone, known := inc.Gone(); !gone || !known {
			t.Error("containers are looked for while the process lives")
		}
	}
	out, err := w.run()
	if !fault.Is(err, fault.KitWorkersLeft) || !strings.Contains(err.Error(), "kit left owned workers running") || out.Result != nil {
		t.Errorf("got %v, %s", err, out.Result)
	}
	if row := w.last(); row.Removed != 1 || row.ErrorCode != "kit_left_workers" {
		t.Errorf("row %+v", row)
	}
	if e.left() != 1 || len(e.removed) != 1 || e.removed[0] == foreign {
		t.Errorf("%d are left, removed were %q", e.left(), e.removed)
	}
	if looks != 3 { // what is there; what is to be removed; what is left
		t.Errorf("%d looks", looks)
	}
}

// Proves kit 17.32.
func TestExecute_Unverified(t *testing.T) {
	t.Run("removal fails", func(t *testing.T) {
		e := newEngine(t)
		e.refuse = func(string) int { return http.StatusInternalServerError }
		w := newWorld(t, `
			import { leave } from './leave.mjs';
			export async function run({ executionOwner }) { await leave(executionOwner); return { status: 'completed' }; }`, "leave.mjs", e.leaves())
		w.host.DockerHost = e.host()
		w.unverified()
	})
	t.Run("no engine, and an image in the request", func(t *testing.T) {
		w := newWorld(t, `export const run = () => ({ status: 'completed' });`)
		w.request["engine_sandbox"] = map[string]any{"image": "sha256:0"}
		w.unverified()
	})
	t.Run("no engine, and a worker was asked for", func(t *testing.T) {
		w := newWorld(t, `
			import { runCodexDockerWorker } from '@kontourai/flow-agents/docker-worker';
			export const run = () => runCodexDockerWorker({}).catch((error) => ({ status: 'completed', error: error.message }));`)
		w.unverified()
	})
}

func (w *world) unverified() {
	w.Helper()
	out, err := w.run()
	if !fault.Is(err, fault.KitUnverified) || !strings.HasPrefix(err.Error(), "owned worker termination unverified") || out.Result != nil {
		w.Errorf("got %v, %s", err, out.Result)
	}
}

// verifyInstalledKit answers at once, and as kitrun verify does. Proves kit 17.36.
func TestExecute_ShimVerifies(t *testing.T) {
	nodes(t, func(t *testing.T, node string) {
		w := newWorld(t, `
			import { verifyInstalledKit, parseKitExecution } from '@kontourai/flow-agents/kit-execution';
			import fs from 'node:fs';
			const tried = (f) => { try { return f(); } catch (error) { return error.code; } };
			export function run() {
				const dest = process.env.TEST_DIR + '/there/dest';
				const copies = process.env.TEST_DIR + '/copy';
				fs.cpSync(dest, copies, { recursive: true });
				const copy = copies + '/kits/local/repositories/sample/';
				const out = { verified: verifyInstalledKit({ kitId: 'sample', dest }), none: parseKitExecution({}) };
				out.unknown = tried(() => verifyInstalledKit({ kitId: 'other', dest }));
				fs.writeFileSync(copy + 'lib/__pycache__', '');
				out.cache = tried(() => verifyInstalledKit({ kitId: 'sample', dest: copies }));
				fs.rmSync(copy + 'lib/__pycache__');
				fs.appendFileSync(copy + 'flow.json', ' ');
				out.drifted = tried(() => verifyInstalledKit({ kitId: 'sample', dest: copies }));
				fs.symlinkSync('flow.json', copy + 'link');
				out.link = tried(() => verifyInstalledKit({ kitId: 'sample', dest: copies }));
				fs.rmSync(copy, { recursive: true });
				out.missing = tried(() => verifyInstalledKit({ kitId: 'sample', dest: copies }));
				out.bad = ['../e.mjs', '/e.mjs', 'a/../e.mjs', 'a\\e.mjs', './e.mjs', 'a//e.mjs', '__pycache__/e.mjs', '.git/e.mjs', 'e.js'].map((module) =>
					tried(() => parseKitExecution({ execution: { contract: 'kontour.kit.execution_request@1.0', module, export: 'run' } })));
				return out;
			}`, "lib/a-b", "2", "lib/a/b", "1", "lib/😀", "astral", "lib/ﬀ", "ligature", "lib/é", "composed", "lib/big", strings.Repeat("x", 1<<20), "bin/.keep", "")
		w.opt.Node = node
		got := w.result()
		v, err := kit.Verify(t.Context(), "sample", w.opt.Dest)
		if err != nil {
			t.Fatal(err)
		}
		bad := make([]any, 9)
		for i := range bad {
			bad[i] = "kit_not_runnable"
		}
		want := map[string]any{
			"verified": map[string]any{
				"kitRoot": v.KitRoot, "modulePath": v.ModulePath, "hash": v.Hash,
				"descriptor": map[string]any{"contract": "kontour.kit.execution_request@1.0", "module": "entry.mjs", "export": "run"},
			},
			"none": nil, "unknown": "kit_not_installed", "cache": "kit_unhashed_content", "drifted": "kit_drifted", "link": "kit_tree_invalid",
			"missing": "kit_missing", "bad": bad,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// A kit runs another one, which has an owner and a row of its own; no deeper.
func TestExecute_Nested(t *testing.T) {
	w := newWorld(t, `
		import { executeInstalledKit } from '@kontourai/flow-agents/kit-execution';
		export async function run({ requestFile, controllerRoot, executionOwner }) {
			const deeper = await executeInstalledKit({ kitId: 'sample', dest: process.env.TEST_DIR + '/there/dest', requestFile, controllerRoot })
				.catch((error) => error.message);
			return { status: 'completed', owner: executionOwner, deeper };
		}`)
	got := w.result()
	deeper := got["deeper"].(map[string]any)
	if deeper["owner"] == got["owner"] || deeper["deeper"] != "kit.execute: runs nest at most 2 deep" {
		t.Errorf("got %v", got)
	}
	if rows, err := w.host.Store.KitRuns(t.Context()); err != nil || len(rows) != 2 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// What the operator ends ends the nested run at the same time.
func TestExecute_NestedCancelled(t *testing.T) {
	w := newWorld(t, `
		import { executeInstalledKit } from '@kontourai/flow-agents/kit-execution';
		import fs from 'node:fs';
		const dir = process.env.TEST_DIR;
		export async function run({ requestFile, controllerRoot, signal }) {
			if (fs.existsSync(dir + '/outer')) {
				fs.writeFileSync(dir + '/inner', '');
				return new Promise((resolve) => signal.addEventListener('abort', () => resolve({ status: 'cancelled' })));
			}
			fs.writeFileSync(dir + '/outer', '');
			return executeInstalledKit({ kitId: 'sample', dest: dir + '/there/dest', requestFile, controllerRoot });
		}`)
	w.write("request.json", `{"schema":"kontour.kit.execution_request","version":"1.0","kit_id":"sample"}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := w.host.Execute(ctx, w.opt)
		ended <- err
	}()
	testkit.Eventually(t, patience, func() bool { return w.exists("inner") }, "the inner run is under way")
	live := execution.Live(w.path("store"))
	for id, want := range map[string]bool{"sample": true, "other": false} {
		if got, err := live(t.Context(), w.opt.Dest, id); got != want || err != nil {
			t.Errorf("a run of %s is under way: %t, %v, want %t", id, got, err, want)
		}
	}
	// An installed kit is not taken away while it runs (kit §13).
	if _, err := (&kit.Keeper{Live: live}).Uninstall(t.Context(), "sample", w.opt.Dest); !fault.Is(err, fault.KitInUse) {
		t.Errorf("uninstall: %v", err)
	}
	begin := time.Now()
	cancel()
	if err := <-ended; !fault.Is(err, fault.KitCancelled) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	rows, err := w.host.Store.KitRuns(t.Context())
	if err != nil || len(rows) != 2 || rows[0].ErrorCode != "kit_cancelled" || rows[1].ErrorCode != "kit_cancelled" {
		t.Errorf("%+v, %v", rows, err)
	}
	if got, err := execution.Live(w.path("none"))(t.Context(), w.opt.Dest, "sample"); got || err != nil || w.exists("none") {
		t.Errorf("without a Store: %t, %v", got, err)
	}
}

// A kit looks at storage and watches it.
func TestExecute_Storage(t *testing.T) {
	w := newWorld(t, `
		import { inspectStorage, admitStorage, watchStorage } from '@kontourai/flow-agents/storage-admission';
		import fs from 'node:fs';
		export async function run() {
			const dir = process.env.TEST_DIR + '/space';
			const budget = { roots: [dir], max_bytes: 1000, max_entries: 10, max_file_bytes: 1000, min_free_bytes: 0 };
			const seen = await inspectStorage(budget);
			const admitted = (await admitStorage(budget)).allowed;
			const violation = await new Promise((resolve) => {
				const watch = watchStorage(budget, (v) => { watch.close(); resolve([v.reason, watch.violation === v]); }, { intervalMs: 20 });
				fs.writeFileSync(dir + '/large', 'x'.repeat(2000));
			});
			const refused = await admitStorage(budget).catch((error) => [error.message, error.code]);
			const many = new Set((await Promise.all(Array.from({ length: 500 }, () => inspectStorage(budget)))).map((o) => o.reason));
			const reasons = await Promise.all(Array.from({ length: 65 }, () => new Promise((resolve) => {
				watchStorage({ ...budget, max_bytes: 1e6, max_file_bytes: 1e6 }, (v) => resolve(v.reason));
				setTimeout(resolve, 1500);
			})));
			return { bytes: seen.observed_bytes, entries: seen.observed_entries, admitted, violation, refused, many: [...many], watches: reasons.filter((r) => r) };
		}`)
	w.write("space/a", "12345")
	got := w.result()
	want := map[string]any{
		"bytes": 5.0, "entries": 1.0, "admitted": true, "violation": []any{"writable_byte_budget", true},
		"refused": []any{"storage_admission_refused:writable_byte_budget", "storage_admission_refused"},
		"many":    []any{"writable_byte_budget"},
		"watches": []any{"option_invalid"}, // one too many
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What cannot be written before the kit ends the run with its row settled.
func TestExecute_NoSupport(t *testing.T) {
	w := newWorld(t, ran)
	w.write("run", "a file")
	if _, err := w.run(); !fault.Is(err, fault.RuntimeDirUnsafe) {
		t.Errorf("got %v", err)
	}
	if row := w.last(); row.State != store.KitRunFinished || row.ErrorCode != string(fault.RuntimeDirUnsafe) || row.ExitCode != 1 {
		t.Errorf("row %+v", row)
	}
	if w.exists("ran") {
		t.Error("the entry ran")
	}
}
