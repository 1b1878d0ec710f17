package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit/dockertest"
)

// engine gives the world the engine of the tests, and the fake image.
func (w *world) engine() (image string) {
	w.Helper()
	w.env = append(w.env, "DOCKER_HOST="+dockertest.Host(w.T))
	w.Cleanup(func() {
		if status, said := dockertest.Try(w.T, http.MethodDelete, "/networks/"+w.network, nil); status != http.StatusNoContent && status != http.StatusNotFound {
			w.Errorf("remove network: status %d: %s", status, said)
		}
	})
	w.Cleanup(func() { // registered later, so that it comes first
		for _, r := range w.runs() {
			dockertest.Sweep(w.T, "kontour.worker.owner="+r.OwnerID)
		}
	})
	w.upstream()
	return dockertest.FakeImage(w.T)
}

// containers counts those of an owner.
func (w *world) containers(owner string) int {
	w.Helper()
	var found []any
	dockertest.Call(w.T, http.MethodGet, `/containers/json?all=1&filters={"label":["kontour.worker.owner=`+owner+`"]}`, nil, &found)
	return len(found)
}

// The example kit of docs/kits.md: a grant, one worker, a result, and nothing left.
func TestRun_HelloKit(t *testing.T) {
	w := newWorld(t)
	image := w.engine()
	w.install("examples/hello-kit")
	for member, v := range map[string]any{
		"kit_id": "hello-kit", "prompt": strings.TrimSpace(prompt("respond hello", "text hello.txt hi", "final done")),
		"engine_sandbox": map[string]any{"image": image, "worker_root": w.path("worker")},
		"execution":      map[string]any{"model": testModel, "timeout_s": 80},
		"parameters":     map[string]any{"storage_budget": map[string]any{"min_free_bytes": 0}},
	} {
		w.request[member] = v
	}
	p := w.start("kitrun", w.args("--auth-file", w.path("auth.json"))).Exits(0)
	var got struct {
		Status, Final, Receipt string
		Requests               int
	}
	if err := json.Unmarshal(p.Stdout.Bytes(), &got); err != nil || got.Status != "completed" || got.Final != "done" || got.Requests != 1 {
		t.Fatalf("%v in %s", err, p.Stdout)
	}
	if data, err := os.ReadFile(w.path("workspace/hello.txt")); string(data) != "hi\n" {
		t.Errorf("workspace: %q, %v", data, err)
	}
	if _, err := os.Stat(got.Receipt); err != nil {
		t.Error(err)
	}
	var rows []map[string]any
	data, err := os.ReadFile(w.path("controller/provider-observations.json"))
	if err != nil || json.Unmarshal(data, &rows) != nil || len(rows) != 1 {
		t.Errorf("observations %s, %v", data, err)
	}
	run := w.runs()[0]
	if n := w.containers(run.OwnerID); n != 0 || run.State != store.KitRunFinished {
		t.Errorf("%d containers, row %+v", n, run)
	}
	db := w.db()
	defer db.Close()
	if grants, err := db.GrantsOfRun(t.Context(), run.InvocationID); err != nil || len(grants) != 1 || grants[0].State != store.GrantClosed || grants[0].OwnerID != run.OwnerID {
		t.Errorf("grants %+v, %v", grants, err)
	}
	if strings.Contains(p.Stdout.String()+p.Stderr.String(), testCredential) || !strings.Contains(p.Stderr.String(), " completed after ") {
		t.Errorf("stderr %s", p.Stderr.String())
	}
}

// A kit of the public kind: its broker with a registered budget, one turn, another
// that is aborted, evidence, and a result that waits; it never closes what it took
// out. Proves kit 17.37, 17.38, 17.39, 17.44.
func TestRun_Worker(t *testing.T) {
	w := newWorld(t)
	image := w.engine()
	w.kit(`
		import fs from 'node:fs';
		import path from 'node:path';
		import { fileURLToPath } from 'node:url';
		import { runCodexDockerWorker, parseCodexEvents, resolveDockerHostIdentity } from '@kontourai/flow-agents/docker-worker';
		import { startProviderProxy } from '@kontourai/flow-agents/provider-broker';
		export async function run({ requestFile, controllerRoot, authFile, executionOwner }) {
			const request = JSON.parse(fs.readFileSync(requestFile));
			const { model } = request.execution;
			const { image, worker_root, artifact_root, forbidden_mount_roots, owner_id } = request.engine_sandbox;
			const broker = await startProviderProxy({
				authFile, model, maxRequests: 5, ledgerFile: path.join(controllerRoot, 'provider-budget.json'),
				requestBindingDigest: 'sha256:' + 'ab'.repeat(32), initializeLedger: true });
			const contextFile = path.join(worker_root, 'context.json');
			fs.writeFileSync(contextFile, '{}');
			const prepared = [];
			const turn = (prompt, more = {}) => runCodexDockerWorker({
				image, workspace: request.workspace, sourceRoot: fileURLToPath(new URL('./rules', import.meta.url)), contextFile, artifactRoot: artifact_root,
				providerProxy: { baseUrl: broker.baseUrl, capability: broker.capability, model: broker.model },
				model, timeoutMs: 3600_000, runId: 'aidlc-' + executionOwner, ownerId: owner_id, network: 'bridge', forbiddenMountRoots: forbidden_mount_roots,
				storageBudget: { max_bytes: 1 << 20, max_entries: 100, max_file_bytes: 1 << 20, min_free_bytes: 0 },
				workspaceSetup: { prepare: async (input) => { prepared.push(input); }, prompt, metadata: { stage: 'test' } }, ...more });
			const receipt = await turn(request.prompt);
			const rows = broker.evidence.length, { forwarded, max_requests } = broker.counters;
			const abort = new AbortController();
			const hanging = turn('fake: hang\n', { signal: abort.signal, workspaceSetup: { prompt: 'fake: hang\n' } });
			setTimeout(() => abort.abort(), 1500);
			const cancelled = await hanging.then((r) => r.terminal.cancelled, (error) => error.code);
			const stdout = fs.readFileSync(path.join(artifact_root, receipt.observed.invocation_id + '.stdout.jsonl'), 'utf8');
			fs.writeFileSync(path.join(controllerRoot, 'provider-observations-' + executionOwner + '.json'), JSON.stringify(broker.evidence));
			return {
				status: 'waiting', receipt, prepared, rows, forwarded, max_requests, cancelled, thread: parseCodexEvents(stdout).provider_thread_id,
				baseUrl: broker.baseUrl, capability: broker.capability, mode: broker.transport_mode, uid: (await resolveDockerHostIdentity({})).uid };
		}`)
	w.write("source/rules/a.md", "rule\n")
	w.write("source/flow.json", "{ }")
	w.install(w.path("source"))
	w.request["execution"] = map[string]any{"model": testModel, "timeout_s": 80, "reasoning_effort": "medium"}
	w.request["prompt"] = prompt("respond hello", "final done")
	w.request["engine_sandbox"] = map[string]any{
		"image": image, "worker_root": w.path("worker"), "artifact_root": w.path("artifacts"), "owner_id": "11111111-1111-4111-8111-111111111111",
		"forbidden_mount_roots": []any{ // one that kitrun adds, too
			map[string]any{"kind": "hidden-oracle", "path": w.path("oracle")}, map[string]any{"kind": "credentials", "path": w.path("auth.json")},
		},
	}
	for _, dir := range []string{"artifacts", "oracle"} {
		if err := os.Mkdir(w.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A brokerd that goes on after the run.
	broker := w.start("brokerd", []string{"serve", "-store-dir", w.path("store"), "-runtime-dir", w.path("run"), "-network", w.network})
	p := w.start("kitrun", w.args("--auth-file", w.path("auth.json"))).Exits(0)
	var got struct {
		Status      string
		Receipt     json.RawMessage
		Prepared    []map[string]any
		Rows        int
		Forwarded   int
		MaxRequests int `json:"max_requests"`
		Cancelled   any
		Thread      string
		BaseURL     string `json:"baseUrl"`
		Capability  string
		Mode        string
		UID         int
	}
	if err := json.Unmarshal(p.Stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, p.Stdout)
	}
	run := w.runs()[0]
	var receipt struct {
		Completed        bool
		ProviderThreadID string `json:"provider_thread_id"`
		Observed         struct {
			ExecutionOwner string `json:"execution_owner"`
			InvocationID   string `json:"invocation_id"`
			NetworkMode    string `json:"network_mode"`
			Image          string
			Forbidden      []struct{ Kind, Path string } `json:"forbidden_mount_roots"`
			Controller     *bool                         `json:"controller_mounted"`
			Oracles        *bool                         `json:"hidden_oracles_mounted"`
			Credentials    *bool                         `json:"credentials_mounted"`
		}
	}
	if err := json.Unmarshal(got.Receipt, &receipt); err != nil {
		t.Fatal(err)
	}
	o := receipt.Observed
	if !receipt.Completed || receipt.ProviderThreadID != got.Thread || o.ExecutionOwner != run.OwnerID || o.NetworkMode != "isolated" {
		t.Errorf("receipt %s", got.Receipt)
	}
	for name, mounted := range map[string]*bool{"controller": o.Controller, "oracle": o.Oracles, "credentials": o.Credentials} {
		if mounted == nil || *mounted {
			t.Errorf("%s: not checked against the mounts, or mounted", name)
		}
	}
	kinds := map[string]string{}
	for _, f := range o.Forbidden {
		if kinds[f.Path] != "" {
			t.Errorf("%s stands twice", f.Path)
		}
		kinds[f.Path] = f.Kind
	}
	if diff := cmp.Diff(map[string]string{w.path("controller"): "controller", w.path("oracle"): "hidden-oracle", w.path("auth.json"): "credentials"}, kinds); diff != "" {
		t.Error(diff)
	}
	file, err := os.ReadFile(w.path("artifacts/" + o.InvocationID + ".receipt.json"))
	var compact bytes.Buffer
	if err != nil || json.Compact(&compact, file) != nil || compact.String() != string(got.Receipt) {
		t.Errorf("the receipt is not the file: %v\n%s\n%s", err, compact.String(), got.Receipt)
	}
	if len(got.Prepared) != 1 {
		t.Fatalf("prepare was called %d times", len(got.Prepared))
	}
	var members []string
	for name := range got.Prepared[0] {
		members = append(members, name)
	}
	slices.Sort(members)
	if diff := cmp.Diff([]string{"budget", "image", "runId", "sourceRoot", "workspace"}, members); diff != "" {
		t.Error(diff)
	}
	if got.Rows != 1 || got.Forwarded != 1 || got.MaxRequests != 5 || got.Cancelled != true || got.Mode != "mocked-test-only" || got.UID != os.Geteuid() {
		t.Errorf("rows %d, forwarded %d of %d, cancelled %v, mode %s, uid %d", got.Rows, got.Forwarded, got.MaxRequests, got.Cancelled, got.Mode, got.UID)
	}
	if files, err := filepath.Glob(w.path("controller/provider-*")); err != nil || len(files) != 2 {
		t.Errorf("in the controller root: %q, %v", files, err)
	}
	w.revoked(run, got.BaseURL, got.Capability)
	if n := w.containers(run.OwnerID); n != 0 {
		t.Errorf("%d containers", n)
	}
	broker.Signal(15)
	broker.Exits(0)
}

// revoked proves that a capability opens nothing at a broker that still serves.
func (w *world) revoked(run store.KitRun, baseURL, capability string) {
	w.Helper()
	db := w.db()
	defer db.Close()
	grants, err := db.GrantsOfRun(w.Context(), run.InvocationID)
	if err != nil || len(grants) != 1 || grants[0].Open() || grants[0].RunID != run.InvocationID || grants[0].OwnerID != run.OwnerID {
		w.Fatalf("grants %+v, %v", grants, err)
	}
	if beyond := grants[0].ExpiresAt - run.DeadlineAt; beyond < 50_000 || beyond > 61_000 {
		w.Errorf("the grant ends %d ms after the run's deadline", beyond)
	}
	at := strings.TrimPrefix(baseURL[strings.LastIndex(baseURL, ":"):], ":")
	host, _, _ := strings.Cut(grants[0].BindAddress, ":")
	request, err := http.NewRequest(http.MethodPost, "http://"+host+":"+at+"/responses", strings.NewReader(`{"model":"`+testModel+`"}`))
	if err != nil {
		w.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+capability)
	request.Header.Set("Content-Type", "application/json")
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		w.Errorf("the capability after the run: status %d", answer.StatusCode)
	}
}
