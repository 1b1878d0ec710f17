package nodehost_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
)

// All four host modules resolve without a node_modules, wherever the import stands;
// nothing else does, and another thread is told why. Proves kit 17.35.
func TestRun_Imports(t *testing.T) {
	eachNode(t, func(t *testing.T, node string) {
		dir := files(t, map[string]string{
			"lib/helper.mjs": `
				import * as broker from '@kontourai/flow-agents/provider-broker';
				import * as execution from '@kontourai/flow-agents/kit-execution';
				export const names = [...Object.keys(broker), ...Object.keys(execution)];
				export const later = async () => Object.keys(await import('@kontourai/flow-agents/storage-admission'));`,
			"lib/thread.mjs": `
				import { parentPort } from 'node:worker_threads';
				parentPort.postMessage(await import('@kontourai/flow-agents/docker-worker').then(() => 'found', (error) => error.message));`,
			"entry.mjs": `
				import * as worker from '@kontourai/flow-agents/docker-worker';
				import { createRequire } from 'node:module';
				import { Worker } from 'node:worker_threads';
				import { names, later } from './lib/helper.mjs';
				const code = (f) => f().then(() => 'found', (error) => error.code);
				const thread = () => new Promise((resolve) => {
					const worker = new Worker(new URL('./lib/thread.mjs', import.meta.url));
					worker.once('message', resolve);
					worker.once('error', (error) => resolve(String(error)));
				});
				export async function run() {
					let required = 'none';
					try { required = typeof createRequire(import.meta.url)('@kontourai/flow-agents/docker-worker').runCodexDockerWorker; } catch (e) { required = e.code; }
					return {
						names: [...Object.keys(worker), ...names, ...await later(), ...Object.keys(await import('@kontourai/flow-agents/kit-execution'))].sort(),
						subpath: await code(() => import('@kontourai/flow-agents/other')),
						package: await code(() => import('@kontourai/flow-agents')),
						thread: await thread(), required, environment: Object.keys(process.env).filter((n) => n.startsWith('DRAWBRIDGE_')),
					};
				}`,
		})
		out := run(t, t.Context(), options(t, node, filepath.Join(dir, "entry.mjs")))
		got := result(t, out)
		required := "function"
		if strings.HasPrefix(out.Node, "v20.") {
			required = "MODULE_NOT_FOUND" // only registerHooks serves require
		}
		want := map[string]any{
			"names": []any{
				"DEFAULT_STORAGE", "admitStorage", "dockerHostGatewayArgs", "dockerHostUserArgs", "executeInstalledKit", "executeInstalledKit",
				"inspectStorage", "parseCodexEvents", "parseKitExecution", "parseKitExecution", "resolveDockerHostIdentity", "runCodexDockerWorker",
				"startProviderProxy", "verifyInstalledKit", "verifyInstalledKit", "watchStorage",
			},
			"subpath": "ERR_MODULE_NOT_FOUND", "package": "ERR_MODULE_NOT_FOUND", "required": required, "environment": []any{},
			"thread": "the host modules of @kontourai/flow-agents work only in the main thread of a process that kitrun started",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// What a kit starts itself, a thread or a process with the same options, begins
// without the socket and without an error.
func TestRun_ThreadsAndChildren(t *testing.T) {
	eachNode(t, func(t *testing.T, node string) {
		got := result(t, run(t, t.Context(), entry(t, node, `
			import { Worker } from 'node:worker_threads';
			import { fork } from 'node:child_process';
			import fs from 'node:fs';
			export async function run() {
				const thread = await new Promise((resolve, reject) => new Worker("require('node:worker_threads').parentPort.postMessage(1)", { eval: true })
					.on('message', resolve).on('error', reject));
				const file = import.meta.dirname ? import.meta.dirname + '/child.mjs' : new URL('child.mjs', import.meta.url).pathname;
				fs.writeFileSync(file, 'process.send(2)');
				const child = await new Promise((resolve, reject) => fork(file, { stdio: 'ignore' }).on('message', resolve).on('exit', (code) => reject(new Error('exit ' + code))));
				return { thread, child };
			}`)))
		if got["thread"] != 1.0 || got["child"] != 2.0 {
			t.Errorf("got %v", got)
		}
	})
}

// With the hooks left out the installed package counts.
func TestRun_NoHooks(t *testing.T) {
	dir := files(t, map[string]string{
		"node_modules/@kontourai/flow-agents/package.json": `{"name":"@kontourai/flow-agents","exports":{"./docker-worker":"./own.mjs"}}`,
		"node_modules/@kontourai/flow-agents/own.mjs":      `export const own = true;`,
		"entry.mjs": `import * as worker from '@kontourai/flow-agents/docker-worker'; export const run = () => ({ own: worker.own ?? false });`,
	})
	for _, no := range []bool{false, true} {
		o := options(t, node(t), filepath.Join(dir, "entry.mjs"))
		o.NoHooks = no
		if got := result(t, run(t, t.Context(), o))["own"]; got != no {
			t.Errorf("without hooks %t: the package's own module is used: %v", no, got)
		}
	}
}

// A large result comes as it was sent, whatever the kit prints. Proves kit 17.26,
// 17.22 for the protocol.
func TestRun_Result(t *testing.T) {
	o := entry(t, node(t), `
		export async function run(args) {
			console.log('{"status":"failed"}');
			process.stdout.write('x'.repeat(1 << 20));
			console.error('last words');
			return { big: 'é\u2028'.repeat(1 << 20), args: Object.keys(args), signal: args.signal instanceof AbortSignal };
		}`)
	out := run(t, t.Context(), o)
	got := result(t, out)
	if big := strings.Repeat("é\u2028", 1<<20); got["big"] != big || !strings.Contains(string(out.Result), big) {
		t.Error("the result is not what was sent")
	}
	if diff := cmp.Diff([]any{"requestFile", "signal"}, got["args"]); diff != "" || got["signal"] != true {
		t.Error(diff, got["signal"])
	}
	if string(out.Stderr) != "last words\n" || !strings.HasPrefix(out.Node, "v") || out.Cancelled || out.Unfinished != nil {
		t.Errorf("outcome: %q, %+v", out.Stderr, out)
	}
	if out := run(t, t.Context(), entry(t, node(t), `export const run = () => {};`)); string(out.Result) != "null" {
		t.Errorf("an entry that returns nothing has the result %s", out.Result)
	}
}

// What is no result has a message of its own. Proves kit 17.23 but for frames.
func TestRun_Thrown(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"an error", `export const run = async () => { throw new RangeError('x'.repeat(2 << 20)); };`, strings.Repeat("x", 2<<20)},
		{"no error", `export const run = () => { throw 7; };`, "7"},
		{"a BigInt", `export const run = () => ({ n: 1n });`, "the kit's result is not JSON: Do not know how to serialize a BigInt"},
		{"a cycle", `export const run = () => { const a = {}; a.a = a; return a; };`, "the kit's result is not JSON: Converting circular structure to JSON"},
		{"too large", `export const run = () => 'x'.repeat((64 << 20) + 1);`, "the kit's result is too large: "},
		{"no function", `export const run = 1;`, "the kit's module exports no function run"},
		{"no module", `import './missing.mjs';`, "Cannot find module "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := run(t, t.Context(), entry(t, node(t), tc.text))
			if out.Thrown == nil || out.Err != nil || out.Result != nil {
				t.Fatalf("outcome %v, %.100s\n%s", out.Err, out.Result, out.Stderr)
			}
			if got := *out.Thrown; !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %.200q, want %.200q", got, tc.want)
			}
		})
	}
}

// Proves kit 17.23, 17.24, 17.25, 17.40.
func TestRun_Protocol(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		word string
		code fault.Code
		want string
	}{
		{"old", fault.KitNode, "this is Node v18.17.0; kits need 20.6 or newer"},
		{"not ready", fault.KitProtocol, "did not begin as it should"},
		{"too large", fault.KitProtocol, "67108865 bytes, more than 67108864"},
		{"no JSON", fault.KitProtocol, "no JSON at byte"},
		{"unknown", fault.KitProtocol, "a message of an unknown kind"},
		{"twice", fault.KitProtocol, "terminal envelope is invalid or duplicated"},
		{"result and error", fault.KitProtocol, "terminal envelope is invalid or duplicated"},
		{"foreign", fault.KitProtocol, "terminal envelope is invalid or duplicated"},
		{"many calls", fault.KitProtocol, "more than 1024 calls open at once"},
		{"same call", fault.KitProtocol, "the id of another one"},
		{"closed", fault.KitNoResult, "ended without a result: exit status 0"},
		{"no result", fault.KitNoResult, "ended without a result: exit status 3"},
	} {
		t.Run(tc.word, func(t *testing.T) {
			o := options(t, self, "/m.mjs")
			o.Env = append(o.Env, standIn+"="+tc.word)
			o.Ports = portsFunc(func(ctx context.Context, _ *nodehost.Peer, _ string, _ json.RawMessage) (any, error) {
				<-ctx.Done() // until the end of the run
				return nil, ctx.Err()
			})
			out := run(t, t.Context(), o)
			if !fault.Is(out.Err, tc.code) || !strings.Contains(out.Err.Error(), tc.want) || out.Result != nil {
				t.Errorf("got %v %q, want %s, … %q …", fault.CodeOf(out.Err), out.Err, tc.code, tc.want)
			}
		})
	}
	t.Run("spaced", func(t *testing.T) {
		o := options(t, self, "/m.mjs")
		o.Env = append(o.Env, standIn+"=spaced")
		out := run(t, t.Context(), o)
		if want := `{"b":1, "a":1.0, "x":"\u00e9<"}`; string(out.Result) != want || out.Err != nil {
			t.Errorf("got %s, %v, want %s", out.Result, out.Err, want)
		}
	})
}

// An older Node that knows --import names itself. Proves kit 17.40.
func TestRun_OldNode(t *testing.T) {
	dir := files(t, map[string]string{"old.cjs": `Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '20.5.1' } });`})
	wrapper := filepath.Join(dir, "node")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nexec "+node(t)+" --require "+dir+"/old.cjs \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out := run(t, t.Context(), entry(t, wrapper, `export const run = () => 1;`))
	if want := "this is Node v20.5.1; kits need 20.6 or newer"; !fault.Is(out.Err, fault.KitNode) || out.Err.Error() != want {
		t.Errorf("got %v, want %s", out.Err, want)
	}
	o := entry(t, "/nonexistent/node", "")
	if _, err := nodehost.Run(t.Context(), o); !fault.Is(err, fault.KitNode) {
		t.Errorf("a Node that is not there: %v", err)
	}
}

// A kit that hangs is told, then killed with everything in its group.
func TestRun_Cancelled(t *testing.T) {
	dir := t.TempDir()
	o := entry(t, node(t), `
		import { spawn } from 'node:child_process';
		import fs from 'node:fs';
		export function run({ signal }) {
			const child = spawn('sh', ['-c', 'trap "" TERM; echo $$ > `+dir+`/pid; while :; do sleep 1; done'], { stdio: 'ignore' });
			signal.addEventListener('abort', () => fs.writeFileSync('`+dir+`/aborted', ''));
			return new Promise(() => {});
		}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pid := make(chan int, 1)
	go func() {
		defer cancel()
		var n int
		for end := time.Now().Add(patience); n == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			data, _ := os.ReadFile(filepath.Join(dir, "pid"))
			_ = json.Unmarshal(data, &n)
		}
		pid <- n
	}()
	out := run(t, ctx, o)
	if !out.Cancelled || !fault.Is(out.Err, fault.KitNoResult) {
		t.Errorf("outcome %+v", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "aborted")); err != nil {
		t.Error("the signal did not fire")
	}
	n := <-pid
	testkit.Eventually(t, patience, func() bool {
		info, err := process.Stat(n)
		return err != nil || info.Dead()
	}, "the grandchild is gone")
}

// Kill does not wait for the grace.
func TestRun_Kill(t *testing.T) {
	o := entry(t, node(t), `export const run = () => new Promise(() => {});`)
	kill := make(chan struct{})
	o.Grace, o.Kill = patience, kill
	o.Started = func(process.Incarnation) error { close(kill); return nil }
	begin := time.Now()
	if out := run(t, t.Context(), o); !out.Cancelled || out.Result != nil {
		t.Errorf("outcome %+v", out)
	}
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("it took %v", took)
	}
}

// Who inherited stderr does not delay the end. Proves kit 17.29.
func TestRun_HeldStderr(t *testing.T) {
	o := entry(t, node(t), `
		import { spawn } from 'node:child_process';
		export function run() {
			const child = spawn('sleep', ['300'], { detached: true, stdio: ['ignore', 'ignore', 'inherit'] });
			child.unref();
			return { pid: child.pid };
		}`)
	begin := time.Now()
	out := run(t, t.Context(), o)
	took := time.Since(begin)
	pid := int(result(t, out)["pid"].(float64))
	if inc, err := process.Of(pid); err == nil {
		defer process.EndGroup(inc, 0)
	} else {
		t.Errorf("the grandchild is gone: %v", err)
	}
	if took > patience/2 {
		t.Errorf("it took %v", took)
	}
}

// What a kit did not wait for is named.
func TestRun_Unfinished(t *testing.T) {
	o := entry(t, node(t), `
		import { runCodexDockerWorker } from '@kontourai/flow-agents/docker-worker';
		export function run() { runCodexDockerWorker({}).catch(() => {}); return { status: 'completed' }; }`)
	ended := false
	o.Ports = portsFunc(func(ctx context.Context, _ *nodehost.Peer, _ string, _ json.RawMessage) (any, error) {
		<-ctx.Done()
		ended = true
		return nil, ctx.Err()
	})
	out := run(t, t.Context(), o)
	if diff := cmp.Diff([]string{"worker.run"}, out.Unfinished); diff != "" || !ended {
		t.Error(diff, ended)
	}
}
