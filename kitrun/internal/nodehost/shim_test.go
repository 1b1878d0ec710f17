package nodehost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/shared/fault"
)

// The child holds on to the socket until its outcome is acknowledged, by the right
// id, and fails when nobody does. Proves kit 17.25.
func TestChild_Acknowledged(t *testing.T) {
	support := filepath.Join(t.TempDir(), "support")
	if err := nodehost.WriteSupport(support); err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(files(t, map[string]string{"entry.mjs": `export const run = () => ({ status: 'completed' });`}), "entry.mjs")
	// begin runs the child and reads its result.
	begin := func(t *testing.T) (socket *os.File, ended chan error, stderr *bytes.Buffer) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		socket, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
		defer theirs.Close()
		cmd := exec.Command(node(t), filepath.Join(support, "child.mjs"))
		stderr = &bytes.Buffer{}
		cmd.Env, cmd.ExtraFiles, cmd.Stderr = []string{"DRAWBRIDGE_IPC_FD=3"}, []*os.File{theirs}, stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended = make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); socket.Close() })
		for _, want := range []string{"ready", "result"} {
			if kind, err := nodehost.ReadFrame(socket); kind != want || err != nil {
				t.Fatalf("the child sent %q, %v, want %q", kind, err, want)
			}
			if want == "ready" {
				send(t, socket, map[string]any{"kind": "start", "deliveryId": "d", "module": module, "export": "run", "args": map[string]any{}})
			}
		}
		return socket, ended, stderr
	}
	t.Run("the right id", func(t *testing.T) {
		socket, ended, _ := begin(t)
		send(t, socket, map[string]any{"kind": "outcome-ack", "deliveryId": "another"})
		select {
		case err := <-ended:
			t.Fatalf("another id released it: %v", err)
		case <-time.After(300 * time.Millisecond): // there is no event to wait for when nothing happens
		}
		send(t, socket, map[string]any{"kind": "outcome-ack", "deliveryId": "d"})
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		socket, ended, stderr := begin(t)
		socket.Close()
		if err := <-ended; err == nil || !bytes.Contains(stderr.Bytes(), []byte("kitrun: the outcome of the kit was not taken: ")) {
			t.Errorf("got %v, %s", err, stderr)
		}
	})
}

func send(t *testing.T, socket *os.File, message any) {
	t.Helper()
	if err := nodehost.WriteFrame(socket, message); err != nil {
		t.Fatal(err)
	}
}

// The shims speak to their host: callbacks, aborts, pushes that come before the
// reply of the call that caused them, and errors with their codes. Proves kit 17.37,
// 17.39 for the protocol.
func TestRun_Shims(t *testing.T) {
	eachNode(t, func(t *testing.T, node string) {
		o := entry(t, node, `
			import { runCodexDockerWorker, parseCodexEvents, dockerHostGatewayArgs, dockerHostUserArgs } from '@kontourai/flow-agents/docker-worker';
			import { startProviderProxy } from '@kontourai/flow-agents/provider-broker';
			import { DEFAULT_STORAGE } from '@kontourai/flow-agents/storage-admission';
			const failed = (error) => [error.message, error.code];
			const parsed = (...events) => { try { return parseCodexEvents(events.map((e) => JSON.stringify(e)).join('\n')).final; } catch (error) { return error.message; } };
			export async function run({ signal }) {
				const broker = await startProviderProxy({ model: 'm', authFile: '/a' });
				const seen = [];
				const receipt = await runCodexDockerWorker({ model: 'm', signal, workspaceSetup: {
					prompt: 'p', prepare: async (input) => { seen.push(input.runId); if (input.runId === 'bad') throw new Error('not prepared'); return 7; } } });
				const rows = [...broker.evidence];
				const abort = new AbortController();
				const aborted = runCodexDockerWorker({ model: 'abort', signal: abort.signal }).catch(failed);
				setTimeout(() => abort.abort(), 20);
				const closing = [broker.close(), broker.close()];
				await Promise.all(closing);
				const thread = { type: 'thread.started', thread_id: 't' }, begun = { type: 'turn.started' };
				const done = { type: 'turn.completed', usage: { input_tokens: 1, output_tokens: 2 } };
				return {
					receipt, seen, rows, counters: broker.counters, after: broker.evidence.length, same: closing[0] === closing[1], baseUrl: broker.baseUrl,
					aborted: await aborted, fetch: await startProviderProxy({ fetchImpl: fetch }).catch(failed),
					cyclic: await (async () => { const a = {}; a.a = a; return runCodexDockerWorker(a); })().then(() => 'ran', () => 'refused'),
					parsed: [
						parsed(thread, begun, { type: 'item.completed', item: { type: 'agent_message', text: 'said' } }, done), parsed(begun, done), parsed(thread, thread, begun, done),
						parsed(thread, begun), parsed(thread, begun, { type: 'turn.failed' }, done), parsed(thread, begun, { type: 'turn.completed' }),
					],
					args: [dockerHostGatewayArgs('linux'), dockerHostGatewayArgs('darwin'), dockerHostUserArgs('linux', { uid: 1, gid: 2 }), dockerHostUserArgs('darwin', { uid: 1, gid: 2 })],
					storage: DEFAULT_STORAGE.max_entries,
				};
			}`)
		var mu sync.Mutex
		var calls []string
		o.Ports = portsFunc(func(ctx context.Context, p *nodehost.Peer, method string, params json.RawMessage) (any, error) {
			mu.Lock()
			calls = append(calls, method)
			mu.Unlock()
			var in struct {
				Model          string
				WorkspaceSetup struct {
					Prompt  string
					Prepare struct{ Callback string }
				}
			}
			if err := json.Unmarshal(params, &in); err != nil {
				return nil, err
			}
			switch method {
			case "broker.start":
				return map[string]any{"id": "g1", "baseUrl": "http://b", "capability": "c", "model": "m", "transport_mode": "live", "counters": map[string]int{"received": 0}}, nil
			case "broker.close":
				p.Push("broker.evidence", "g1", map[string]int{"n": 2})
				return struct{}{}, nil
			}
			if in.Model == "abort" {
				<-ctx.Done()
				return nil, fault.New(fault.WorkerNotStarted, "it was aborted")
			}
			handle := in.WorkspaceSetup.Prepare.Callback
			got, err := p.Back(ctx, handle, map[string]string{"runId": "good"})
			if err != nil || string(got) != "7" {
				return nil, fmt.Errorf("prepare gave %s, %v", got, err)
			}
			_, err = p.Back(ctx, handle, map[string]string{"runId": "bad"})
			p.Push("broker.evidence", "g1", map[string]int{"n": 1})
			p.Push("broker.counters", "g1", map[string]int{"received": 3})
			return map[string]any{"prompt": in.WorkspaceSetup.Prompt, "refused": fmt.Sprint(err)}, nil
		})
		got := result(t, run(t, t.Context(), o))
		want := map[string]any{
			"receipt": map[string]any{"prompt": "p", "refused": "not prepared"}, "seen": []any{"good", "bad"}, "rows": []any{map[string]any{"n": 1.0}},
			"counters": map[string]any{"received": 3.0}, "after": 2.0, "same": true, "baseUrl": "http://b",
			"aborted": []any{"it was aborted", "worker_not_started"},
			"fetch":   []any{"fetchImpl is not taken: requests leave through brokerd alone", "fetchImpl_unsupported"}, "cyclic": "refused",
			"parsed": []any{
				"said", "one observed provider thread required", "one observed provider thread required", "one complete turn required",
				"one complete turn required", "terminal token usage missing",
			},
			"args": []any{[]any{"--add-host", "host.docker.internal:host-gateway"}, []any{}, []any{"--user", "1:2"}, []any{}}, "storage": 10000.0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		slices.Sort(calls) // each is served beside the others
		if diff := cmp.Diff([]string{"broker.close", "broker.start", "worker.run", "worker.run"}, calls); diff != "" {
			t.Error(diff)
		}
	})
}
