package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
)

// The whole receipt of a plain run, as readers of it see it.
func TestRun_Receipt(t *testing.T) {
	r, f := newFake(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.deps.Now = func() time.Time { return at }
	r.opts.OwnerID = "11111111-2222-3333-4444-555555555555"
	r.opts.Setup = &worker.Setup{Metadata: json.RawMessage(`{"tier": 1}`)}
	f.stderr = "a warning\n"
	receipt := r.run()
	if !receipt.Completed {
		t.Errorf("got %+v", receipt)
	}
	text := strings.NewReplacer(r.dir, "DIR", r.opts.InvocationID, "INVOCATION", r.opts.Image, "IMAGE").Replace(r.file(".receipt.json"))
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		for _, name := range []string{`"free_bytes": `, `"uid": `, `"gid": `, `"container_user": `} {
			if at := strings.Index(line, name); at >= 0 {
				lines[i] = line[:at+len(name)] + "…"
			}
		}
	}
	testkit.Golden(t, "receipt.json", []byte(strings.Join(lines, "\n")))
	row, err := r.deps.Store.Worker(t.Context(), r.opts.InvocationID)
	if err != nil {
		t.Fatal(err)
	}
	if row.State != "removed" || row.ReceiptDigest == "" || row.OwnerID != r.opts.OwnerID || row.RunID != r.opts.RunID {
		t.Errorf("row %+v", row)
	}
	if r.file(".context.json") != `{"stage":"test","canonical_workspace":"/canonical","unit_scope":["a"]}` || r.file(".stderr.log") != "a warning\n" ||
		r.file(".stdout.jsonl") != completeTurn {
		t.Error("the kept files are not what went in and came out")
	}
	if !strings.HasSuffix(r.file(".stdin.txt"), "\n\n"+r.file(".context.json")) {
		t.Error("without a prompt the context is not what codex gets")
	}
}

// Proves worker 17.3
func TestRun_Links(t *testing.T) {
	t.Run("context", func(t *testing.T) {
		r, f := newFake(t)
		if err := os.Symlink("request.json", r.path("context/link.json")); err != nil {
			t.Fatal(err)
		}
		r.opts.ContextFile = r.path("context/link.json")
		r.refused("option_invalid:contextFile")
		f.nothingMade()
	})
	t.Run("workspace", func(t *testing.T) {
		r, _ := newFake(t)
		real := r.opts.Workspace
		r.opts.Workspace = link(r, real)
		if err := os.Symlink(r.path("source"), r.path("overlay-link")); err != nil {
			t.Fatal(err)
		}
		addOverlay(r, r.path("overlay-link"), "/workspace/o")
		receipt := r.run()
		sources := map[string]string{}
		for _, m := range receipt.Observed.Mounts {
			sources[m.Destination] = m.Source
		}
		want := map[string]string{"/workspace": real, "/workspace/o": r.path("source"), "/treatment": r.path("source"), "/context/request.json": r.opts.ContextFile}
		if diff := cmp.Diff(want, sources); diff != "" {
			t.Error(diff)
		}
	})
}

// Proves worker 17.7
func TestRun_Prepare(t *testing.T) {
	t.Run("once, before the container, with five members", func(t *testing.T) {
		r, f := newFake(t)
		calls := 0
		r.opts.Setup = &worker.Setup{Prepare: func(_ context.Context, in worker.PrepareInput) error {
			calls++
			f.nothingMade()
			got, err := json.Marshal(in)
			if err != nil {
				return err
			}
			want := `{"image":"` + r.opts.Image + `","workspace":"` + r.path("workspace") + `","sourceRoot":"` + r.path("source") + `","runId":"` +
				r.opts.RunID + `","budget":{"max_bytes":134217728,"max_entries":10000,"max_file_bytes":16777216,"min_free_bytes":4294967296}}`
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Error(diff)
			}
			r.write("workspace/prepared.txt", "prepared")
			return nil
		}}
		receipt := r.run()
		if calls != 1 {
			t.Errorf("called %d times", calls)
		}
		// main.txt, prepared.txt and request.json; what was prepared is admitted again.
		if got := receipt.Observed.StorageAdmission.ObservedEntries; got != 3 {
			t.Errorf("%d entries admitted, want 3", got)
		}
	})
	t.Run("an excess refuses", func(t *testing.T) {
		r, f := newFake(t)
		r.opts.Storage = &worker.StorageBudget{Budget: budget()}
		r.opts.Storage.MaxFileBytes = 100
		r.opts.Setup = &worker.Setup{Prepare: func(context.Context, worker.PrepareInput) error {
			r.write("workspace/big", strings.Repeat("x", 101))
			return nil
		}}
		r.refused("storage_admission_refused:" + storage.OverFile)
		f.nothingMade()
	})
	t.Run("a mount that it exchanged refuses", func(t *testing.T) {
		for _, dir := range []string{"source", "overlay"} {
			r, f := newFake(t)
			mkdir(r, r.path("secret"))
			mkdir(r, r.path("overlay"))
			r.opts.Setup = &worker.Setup{Prepare: func(context.Context, worker.PrepareInput) error {
				return errors.Join(os.Rename(r.path(dir), r.path("moved")), os.Symlink(r.path("secret"), r.path(dir)))
			}}
			addOverlay(r, r.path("overlay"), "/workspace/overlay")
			r.refused("mount_unsafe")
			f.neverStarted()
			r.gone()
		}
	})
	t.Run("its error refuses", func(t *testing.T) {
		r, f := newFake(t)
		r.opts.Setup = &worker.Setup{Prepare: func(context.Context, worker.PrepareInput) error { return errors.New("no") }}
		r.refused("prepare_failed")
		f.nothingMade()
	})
	t.Run("its time is the run's", func(t *testing.T) {
		r, f := newFake(t)
		r.opts.Timeout = 50 * time.Millisecond
		r.opts.Setup = &worker.Setup{Prepare: func(ctx context.Context, _ worker.PrepareInput) error {
			<-ctx.Done()
			return nil
		}}
		r.refused("worker_not_started:timeout")
		f.nothingMade()
	})
}

// The program gets its arguments as they are, the input on stdin, and PATH alone.
//
// Proves worker 17.8
func TestPrepareCommand(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "prepare")
	text := "#!/bin/sh\nprintf '%s\\n' \"$@\" >" + dir + "/args\ncat >" + dir + "/stdin\nenv >" + dir + "/env\n[ \"$1\" != fail ]\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SECRET_OF_THE_HOST", "x")
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	in := worker.PrepareInput{Image: "i", Workspace: "/w", SourceRoot: "/s", RunID: "r"}

	call, err := worker.PrepareCommand([]string{script, "a;touch " + dir + "/shell", "$HOME"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := call(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if got, want := read("args"), "a;touch "+dir+"/shell\n$HOME\n"; got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if _, err := os.Lstat(filepath.Join(dir, "shell")); err == nil {
		t.Error("a shell read the arguments")
	}
	if got, want := read("stdin"), `{"image":"i","workspace":"/w","sourceRoot":"/s","runId":"r","budget":{"max_bytes":0,"max_entries":0,"max_file_bytes":0,"min_free_bytes":0}}`; got != want {
		t.Errorf("stdin %q, want %q", got, want)
	}
	if got := read("env"); strings.Contains(got, "SECRET_OF_THE_HOST") || !strings.Contains(got, "PATH=") {
		t.Errorf("environment %q", got)
	}

	for _, argv := range [][]string{{script, "fail"}, {dir + "/absent"}} {
		call, err := worker.PrepareCommand(argv, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		r, f := newFake(t)
		r.opts.Setup = &worker.Setup{Prepare: call}
		r.refused("prepare_failed")
		f.nothingMade()
	}
}

// What only the last look finds counts, too: here something is written while the
// container is being removed.
//
// Proves worker 17.16
func TestRun_ViolationAtTheEnd(t *testing.T) {
	r, f := newFake(t)
	r.opts.Storage = &worker.StorageBudget{Budget: budget()}
	r.opts.Storage.MaxFileBytes = 1000
	f.stdout = completeTurn + strings.Repeat("x", 100_000)
	f.remove = func(c *fakeContainer) int {
		if !strings.HasSuffix(c.name, "-image") {
			r.write("workspace/late", strings.Repeat("x", 1001))
		}
		return 0
	}
	receipt := r.run()
	if receipt.StorageViolation == nil || *receipt.StorageViolation != storage.OverFile || receipt.Completed || receipt.Usage.Complete {
		t.Errorf("got %+v", receipt)
	}
	if got := len(r.file(".stdout.jsonl")); got != 64<<10 {
		t.Errorf("%d bytes of output are kept", got)
	}
}

// Proves worker 17.22 and 17.23
func TestRun_Incomplete(t *testing.T) {
	for _, tc := range []struct {
		name, stdout string
		status       int
		completed    bool
	}{
		{"no thread", lines(begun, done), 0, false},
		{"two threads", lines(thread, thread, begun, done), 0, false},
		{"two turns", lines(thread, begun, begun, done), 0, false},
		{"no completion", lines(thread, begun), 0, false},
		{"failed", lines(thread, begun, failed), 1, false},
		{"no JSON", lines(thread, begun, "x", done), 0, false},
		{"another status", completeTurn, 3, false},
		{"an error before the turn", lines(thread, `{"type":"item.completed","item":{"type":"error","message":"m"}}`, begun, message("ok"), done), 0, true},
		{"without usage", lines(thread, begun, message("ok"), `{"type":"turn.completed"}`), 0, true},
		{"negative usage", lines(thread, begun, message("ok"), `{"type":"turn.completed","usage":{"input_tokens":-1,"output_tokens":1}}`), 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			f.stdout, f.status = tc.stdout, tc.status
			receipt := r.run()
			if receipt.Completed != tc.completed {
				t.Errorf("completed %t", receipt.Completed)
			}
			if got := *receipt.Terminal.Status; got != int64(tc.status) {
				t.Errorf("status %d", got)
			}
			measured := tc.completed && strings.Contains(tc.stdout, `"input_tokens":20`)
			if receipt.Usage.Complete != measured {
				t.Errorf("usage %+v", receipt.Usage)
			}
			if tc.completed != (receipt.ProviderThreadID != nil && receipt.Final != nil && *receipt.Final == "ok") {
				t.Errorf("thread %v, final %v", receipt.ProviderThreadID, receipt.Final)
			}
		})
	}
}

// A second run of an invocation is refused before anything is made, whether the
// files or only the row are there.
//
// Proves worker 17.25
func TestRun_Twice(t *testing.T) {
	r, f := newFake(t)
	r.run()
	entries, err := os.ReadDir(r.opts.ArtifactRoot)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 5 {
		t.Errorf("%d files", len(entries))
	}
	for _, e := range entries {
		st, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode() != 0o400 {
			t.Errorf("%s has mode %v", e.Name(), st.Mode())
		}
	}
	before := len(f.made())
	r.refused("output_exists")
	for _, suffix := range []string{".context.json", ".stdin.txt", ".stdout.jsonl", ".stderr.log"} { // one is enough
		if err := os.Remove(filepath.Join(r.opts.ArtifactRoot, r.opts.InvocationID+suffix)); err != nil {
			t.Fatal(err)
		}
	}
	r.refused("output_exists")
	if err := os.Remove(filepath.Join(r.opts.ArtifactRoot, r.opts.InvocationID+".receipt.json")); err != nil {
		t.Fatal(err)
	}
	r.refused("output_exists") // the Store knows it
	if after := len(f.made()); after != before {
		t.Errorf("the engine was asked to: %q", f.made()[before:])
	}
}

// Newer engines get the same calls as old ones. The newer one is recorded from the
// definition of its API; the older one runs for real in the other tests.
//
// Proves worker 17.34
func TestRun_NewerEngine(t *testing.T) {
	calls := map[string][]string{}
	for _, api := range []string{"1.41", "1.51"} {
		r, f := newFake(t)
		f.api = api
		receipt := r.run()
		if !receipt.Completed || receipt.Observed.HarnessVersion == nil || *receipt.Observed.HarnessVersion != "1.2.3" {
			t.Errorf("API %s: %+v", api, receipt)
		}
		calls[api] = f.calls
	}
	if diff := cmp.Diff(calls["1.41"], calls["1.51"]); diff != "" {
		t.Error(diff)
	}
}

// An engine that is not there, or goes away at any call, leaves a typed error.
func TestRun_EngineFails(t *testing.T) {
	t.Run("not there", func(t *testing.T) {
		r, _ := newFake(t)
		r.deps.Engine = engine(t, "unix://"+r.path("no.sock"))
		r.refused("docker_unavailable")
	})
	t.Run("an address that is no socket", func(t *testing.T) {
		for _, host := range []string{"tcp://127.0.0.1:2375", "unix://relative", "http://x", "ssh://x"} {
			if _, err := worker.NewDocker(host); !fault.Is(err, fault.DockerUnavailable) {
				t.Errorf("%s: %v", host, err)
			}
		}
	})
	t.Run("create", func(t *testing.T) {
		r, f := newFake(t)
		f.create = func() (int, string) { return 409, "the name is in use by " + r.capability() }
		err := r.refused("worker_not_started:engine")
		if !strings.Contains(err.Error(), worker.CapabilityWord) {
			t.Errorf("got %v", err)
		}
		r.gone()
		r.noFiles()
	})
	t.Run("start", func(t *testing.T) {
		r, f := newFake(t)
		f.start = func(*fakeContainer) int { return 500 }
		r.refused("worker_not_started:engine")
		r.gone()
		r.noFiles()
	})
	t.Run("a start that happened nevertheless", func(t *testing.T) {
		r, f := newFake(t)
		f.start = func(c *fakeContainer) int {
			f.mu.Lock()
			c.started = true
			f.mu.Unlock()
			close(c.run)
			return 500
		}
		if receipt := r.run(); !receipt.Completed {
			t.Errorf("got %+v", receipt)
		}
	})
}

// A disk that is too full for the output still takes the receipt, which says that
// nothing was kept.
func TestRun_OutputNotKept(t *testing.T) {
	r, f := newFake(t)
	if err := unix.Mount("tmpfs", r.opts.ArtifactRoot, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Skipf("this user may not mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(r.opts.ArtifactRoot, 0); err != nil {
			t.Error(err)
		}
	})
	r.opts.Storage = &worker.StorageBudget{Budget: budget()}
	f.stdout = completeTurn + strings.Repeat("x", 1<<20)
	receipt, err := worker.Run(t.Context(), r.opts, r.deps)
	wantCode(t, err, fault.ReceiptUnwritten)
	if receipt.Schema == "" || receipt.Completed || receipt.StdoutDigest != "" || !receipt.ContainerRemoved {
		t.Errorf("got %+v", receipt)
	}
	r.file(".receipt.json")
	if _, err := os.Lstat(filepath.Join(r.opts.ArtifactRoot, r.opts.InvocationID+".stdout.jsonl")); err == nil {
		t.Error("a part of the output passes for the whole")
	}
	r.gone()
}

// A run whose row another process settled meanwhile does not start its container.
func TestRun_RowTaken(t *testing.T) {
	r, f := newFake(t)
	r.deps.Progress = func(e worker.Event) {
		if e.State != worker.StateCreated {
			return
		}
		row, err := r.deps.Store.Worker(context.Background(), r.opts.InvocationID)
		if err != nil {
			t.Error(err)
		}
		if ok, err := r.deps.Store.WorkerEnded(context.Background(), row, "removed", ""); err != nil || !ok {
			t.Error(ok, err)
		}
	}
	r.refused("lease_lost")
	f.neverStarted()
	r.gone()
	r.noFiles()
}

// An engine that goes away in the middle of a turn: nothing more is known of the
// container, the receipt says so, and the row stays for a sweep.
func TestRun_EngineGone(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	f.stdout = lines(thread, begun)
	f.hang = true
	r.deps.Progress = func(e worker.Event) {
		if e.Codex == "turn.started" {
			f.vanish()
		}
	}
	receipt, err := worker.Run(t.Context(), r.opts, r.deps)
	wantCode(t, err, fault.RemovalUnverified)
	if receipt.Schema == "" || receipt.Completed || receipt.ContainerRemoved || receipt.Terminal.Status != nil {
		t.Errorf("got %+v", receipt)
	}
	if got := r.file(".receipt.json"); !strings.Contains(got, `"container_removed": false`) || !strings.Contains(got, `"status": null`) {
		t.Error("the receipt is not what was seen")
	}
	row, err := r.deps.Store.Worker(t.Context(), r.opts.InvocationID)
	if err != nil || row.State != "unverified" || row.ReceiptDigest == "" {
		t.Errorf("row %+v, %v", row, err)
	}
}

// What happens is told in order, and the last word says how it ended.
func TestRun_Progress(t *testing.T) {
	r, f := newFake(t)
	f.stdout = lines(thread, begun, message("a"), done)
	var states []string
	var last worker.Event
	r.deps.Progress = func(e worker.Event) {
		if len(states) == 0 || states[len(states)-1] != e.State {
			states = append(states, e.State)
		}
		last = e
	}
	r.run()
	want := []string{worker.StateAdmitted, worker.StateCreated, worker.StateRunning, worker.StateEnding, worker.StateRemoved, worker.StateCompleted}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	if last.Codex != "turn.completed" || last.InputTokens != 20 || last.OutputTokens != 10 || last.Events != 4 || last.ObservedBytes <= 0 {
		t.Errorf("last: %+v", last)
	}
}
