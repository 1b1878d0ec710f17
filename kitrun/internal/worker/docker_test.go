package worker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/testkit/dockertest"
)

// Tests in this file run containers of the real engine with the fake codex.

// One look inside shows most of what a worker may and may not.
//
// Proves worker 17.5, 17.6, 17.9 and 17.10
func TestDocker_Inside(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.deps.Store = r.storeIn(r.path("fresh")) // it does not know the image yet
	dockertest.Sweep(t, "drawbridge.store="+r.deps.Store.ID())
	r.write("overlay-real/note.txt", "from the host\n")
	mkdir(r, r.path("workspace/sub"))
	r.opts.Setup = &worker.Setup{
		Mounts:      []worker.Overlay{{Source: link(r, r.path("overlay-real")), Destination: "/workspace/sub/over.lay"}},
		Environment: map[string]string{"GOOD_NAME": "a value, with: all = sorts\nof bytes"},
		Bootstrap:   "echo from the bootstrap >boot.txt",
	}
	r.words("status", "create /etc/x", "create /treatment/x", "create /context/request.json", "create /workspace/x", "create /tmp/x",
		"create /workspace/sub/over.lay/x", "read /workspace/sub/over.lay/note.txt", "read /treatment/treatment.md", "read /context/request.json",
		"read /workspace/boot.txt", "env GOOD_NAME", "env HOME", "env CODEX_HOME", "limits", "write big 20000000", "run git log --format=%s%an",
		"stat /codex-home", "env FAKE_CODEX", "interfaces", "run git status --porcelain")
	receipt := r.run()
	got := reports(t, receipt)
	for word, want := range map[string]string{
		"create /workspace/x": "ok", "create /tmp/x": "ok",
		"read /workspace/sub/over.lay/note.txt": "from the host\n",
		"read /treatment/treatment.md":          "frozen\n",
		"read /workspace/boot.txt":              "from the bootstrap\n",
		"env GOOD_NAME":                         "set a value, with: all = sorts\nof bytes",
		"env HOME":                              "set /tmp",
		"env CODEX_HOME":                        "set /codex-home",
	} {
		if got[word] != want {
			t.Errorf("%s: %q, want %q", word, got[word], want)
		}
	}
	for _, word := range []string{"create /etc/x", "create /treatment/x", "create /context/request.json", "create /workspace/sub/over.lay/x"} {
		if !strings.Contains(got[word], "read-only file system") {
			t.Errorf("%s: %q", word, got[word])
		}
	}
	for _, part := range []string{"CapEff=0000000000000000", "CapPrm=0000000000000000", "CapBnd=0000000000000000", "NoNewPrivs=1", "Seccomp=2"} {
		if !strings.Contains(got["status"], part) {
			t.Errorf("status lacks %s: %s", part, got["status"])
		}
	}
	if st, err := os.Stat(r.path("workspace/big")); err != nil || st.Size() != 16<<20 {
		t.Errorf("the file of 20 MB: %v, %v; want exactly 16 MiB", st, err)
	}
	if !strings.Contains(got["run git log --format=%s%an"], "seeddrawbridge") {
		t.Errorf("the seed commit: %q", got["run git log --format=%s%an"])
	}
	for _, m := range receipt.Observed.Mounts {
		if m.Destination == "/workspace/sub/over.lay" && (m.Source != r.path("overlay-real") || m.RW) {
			t.Errorf("the overlay in the receipt: %+v", m)
		}
	}
	if v := receipt.Observed.HarnessVersion; v == nil || *v != fakeVersion || receipt.Observed.EntrypointDigest == nil {
		t.Errorf("version %v, digest %v", v, receipt.Observed.EntrypointDigest)
	}
	if known, ok, err := r.deps.Store.WorkerImage(t.Context(), r.opts.Image); err != nil || !ok || known.HarnessVersion != fakeVersion {
		t.Errorf("the Store knows %+v, %v", known, err)
	}
	if !strings.Contains(got["interfaces"], "lo ") || strings.Contains(got["interfaces"], "eth") {
		t.Errorf("interfaces: %q", got["interfaces"])
	}
}

// A fork bomb ends at the bound of processes and takes nothing along.
//
// Proves worker 17.9
func TestDocker_ForkBomb(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("fork 1000")
	receipt := r.run()
	text := reports(t, receipt)["fork 1000"]
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	if n < 1 || n > 256 {
		t.Errorf("%q processes started", text)
	}
}

// Taking more memory than there is ends the worker; its receipt says so.
func TestDocker_Memory(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("memory 300000000")
	r.opts.Limits.MemoryBytes = 64 << 20
	receipt := r.run()
	if receipt.Completed || receipt.Terminal.Status == nil || *receipt.Terminal.Status == 0 {
		t.Errorf("got %+v", receipt.Terminal)
	}
	if !receipt.Terminal.OOM {
		t.Errorf("the kernel's kill is not in the receipt: %+v", receipt.Terminal)
	}
}

// Proves worker 17.15
func TestDocker_DiskFilling(t *testing.T) {
	t.Parallel()
	const step, most = 64 << 10, 4 << 20
	r := newDocker(t).words("flood stdout 200000", "grow bulk.bin 65536 10ms")
	r.opts.Storage = &worker.StorageBudget{Budget: budget()}
	r.opts.Storage.MaxBytes = most
	receipt := r.run()
	if receipt.StorageViolation == nil || *receipt.StorageViolation != storage.OverBytes || receipt.Completed || receipt.Usage.Complete {
		t.Errorf("got %+v", receipt)
	}
	if receipt.Terminal.Status == nil || *receipt.Terminal.Status != 137 || receipt.Terminal.Signal == nil || *receipt.Terminal.Signal != "SIGKILL" {
		t.Errorf("terminal %+v", receipt.Terminal)
	}
	// At 100 steps a second the file shows how long the worker lived on.
	st, err := os.Stat(r.path("workspace/bulk.bin"))
	if err != nil {
		t.Fatal(err)
	}
	if over := st.Size() - most; over > 100*step {
		t.Errorf("the worker wrote %d bytes past its budget, more than a second's worth", over)
	}
	if got := len(r.file(".stdout.jsonl")); got > 64<<10 {
		t.Errorf("%d bytes of output are kept", got)
	}
	if !strings.Contains(r.file(".receipt.json"), `"source": "unavailable"`) {
		t.Error("the usage is not unavailable")
	}
}

// Proves worker 17.17
func TestDocker_Deadline(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("ignore", "hang")
	for _, r.opts.Timeout = range []time.Duration{4 * time.Second, 20 * time.Second} {
		receipt, err := worker.Run(t.Context(), r.opts, r.deps)
		if worker.Reason(err) == "worker_not_started:timeout" {
			r.opts.InvocationID += "-again" // a machine so slow that nothing had started
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !receipt.Terminal.Timeout || receipt.Terminal.Cancelled || receipt.Completed || !receipt.ContainerRemoved || *receipt.Terminal.Status != 137 {
			t.Errorf("got %+v", receipt)
		}
		r.gone()
		r.file(".receipt.json")
		return
	}
	t.Fatal("nothing started in 20 s")
}

// A prompt that nobody reads, longer than every buffer on its way, holds up nothing.
func TestDocker_IgnoresStdin(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.opts.Setup = &worker.Setup{Prompt: strings.Repeat("x", 8<<20), Environment: map[string]string{"FAKE_CODEX": "print unread; exit 7"}}
	receipt := r.run()
	if receipt.Completed || *receipt.Terminal.Status != 7 || !strings.Contains(r.file(".stdout.jsonl"), "unread") {
		t.Errorf("got %+v", receipt.Terminal)
	}
	if got := len(r.file(".stdin.txt")); got != 8<<20 {
		t.Errorf("%d bytes of stdin are kept", got)
	}
}

// Proves worker 17.18
func TestDocker_Cancelled(t *testing.T) {
	t.Parallel()
	t.Run("during prepare", func(t *testing.T) {
		t.Parallel()
		r := newDocker(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r.opts.Setup = &worker.Setup{Prepare: func(ctx context.Context, _ worker.PrepareInput) error {
			cancel()
			return ctx.Err()
		}}
		_, err := worker.Run(ctx, r.opts, r.deps)
		if worker.Reason(err) != "worker_not_started:cancelled" {
			t.Errorf("got %v", err)
		}
		r.gone()
		r.noFiles()
	})
	t.Run("between create and start", func(t *testing.T) {
		t.Parallel()
		r := newDocker(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r.deps.Progress = func(e worker.Event) {
			if e.State == worker.StateCreated {
				cancel()
			}
		}
		_, err := worker.Run(ctx, r.opts, r.deps)
		if worker.Reason(err) != "worker_not_started:cancelled" {
			t.Errorf("got %v", err)
		}
		r.gone()
		r.noFiles()
	})
	t.Run("during the turn", func(t *testing.T) {
		t.Parallel()
		r := newDocker(t).words("hang")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r.deps.Progress = func(e worker.Event) {
			if e.Codex == "turn.started" {
				cancel()
			}
		}
		receipt, err := worker.Run(ctx, r.opts, r.deps)
		if err != nil {
			t.Fatal(err)
		}
		if !receipt.Terminal.Cancelled || receipt.Terminal.Timeout || receipt.Completed || !receipt.ContainerRemoved {
			t.Errorf("got %+v", receipt)
		}
		r.gone()
		r.file(".receipt.json")
	})
}

// Proves worker 17.21
func TestDocker_Overflow(t *testing.T) {
	r := newDocker(t).words("flood stdout 30000000", "hang")
	stop, peak := make(chan struct{}), make(chan uint64)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() {
		most := uint64(0)
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(5 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapInuse)
			}
		}
	}()
	receipt := r.run()
	close(stop)
	if most := <-peak; most > before.HeapInuse+24<<20 {
		t.Errorf("memory grew by %d bytes", most-before.HeapInuse)
	}
	if !receipt.Terminal.Overflow || receipt.Completed || *receipt.Terminal.Status != 137 {
		t.Errorf("got %+v", receipt.Terminal)
	}
	if got := len(r.file(".stdout.jsonl")); got != 16<<20 {
		t.Errorf("%d bytes are kept", got)
	}
}

// Lines of 10 MiB, and an output of exactly the bound, are no overflow.
func TestDocker_LongLine(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("flood stderr 16777216 10485760", "final "+strings.Repeat("y", 1<<20))
	receipt := r.run()
	if !receipt.Completed || receipt.Terminal.Overflow || len(*receipt.Final) != 1<<20 || len(r.file(".stderr.log")) != 16<<20 {
		t.Errorf("got %+v, %d bytes of stderr", receipt.Terminal, len(r.file(".stderr.log")))
	}
}

// Proves worker 17.24
func TestDocker_Leak(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("leak")
	receipt := r.run()
	if receipt.Final == nil || !strings.Contains(*receipt.Final, worker.CapabilityWord) {
		t.Errorf("final %v", receipt.Final)
	}
	entries, err := os.ReadDir(r.opts.ArtifactRoot)
	if err != nil {
		t.Fatal(err)
	}
	digests := map[string]string{".stdout.jsonl": receipt.StdoutDigest, ".stderr.log": receipt.StderrDigest,
		".stdin.txt": receipt.Observed.StdinDigest, ".context.json": receipt.Observed.ContextDigest}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.opts.ArtifactRoot, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(r.capability())) {
			t.Errorf("%s holds the capability", e.Name())
		}
		suffix := strings.TrimPrefix(e.Name(), r.opts.InvocationID)
		sum := sha256.Sum256(data)
		if want := digests[suffix]; want != "" && want != "sha256:"+hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the digest in the receipt is of other bytes", e.Name())
		}
		if (suffix == ".stdout.jsonl" || suffix == ".stderr.log") && !bytes.Contains(data, []byte(worker.CapabilityWord)) {
			t.Errorf("%s does not show where the capability was", e.Name())
		}
	}
	row, err := json.Marshal(receipt)
	if err != nil || bytes.Contains(row, []byte(r.capability())) {
		t.Errorf("the receipt holds the capability (%v)", err)
	}
}

// Proves worker 17.26
func TestDocker_NoArgumentNoLog(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("print "+"here", "hang")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan string, 1)
	r.deps.Progress = func(e worker.Event) {
		if e.Codex == "turn.started" {
			select {
			case seen <- r.opts.InvocationID:
			default:
			}
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Run(ctx, r.opts, r.deps)
		ended <- err
	}()
	select {
	case <-seen:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatalf("%d processes, %v", len(lines), err)
	}
	codex := false
	for _, name := range lines {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		codex = codex || bytes.Contains(data, []byte("--dangerously-bypass-approvals-and-sandbox"))
		if bytes.Contains(data, []byte(r.capability())) {
			t.Errorf("%s holds the capability", name)
		}
	}
	if !codex {
		t.Error("the worker's own process was not among those looked at")
	}
	status, said := dockertest.Try(t, http.MethodGet, "/containers/kontour-worker-"+r.opts.InvocationID+"/logs?stdout=1&stderr=1", nil)
	if status == http.StatusOK && len(said) > 0 && !bytes.Contains(said, []byte("does not support reading")) {
		t.Errorf("the engine keeps a log: %d %q", status, said)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Proves worker 17.1
func TestDocker_NothingIsPulled(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.opts.Image = "sha256:" + strings.Repeat("0123456789abcdef", 4)
	r.refused("image_unknown")
	r.gone()
	status, _ := dockertest.Try(t, http.MethodGet, "/images/"+r.opts.Image+"/json", nil)
	if status != http.StatusNotFound {
		t.Errorf("the engine knows the image now: %d", status)
	}
}

// The workspace of another user is refused. This needs a user who may give files
// away.
//
// Proves worker 17.30
func TestDocker_WorkspaceOwner(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	if err := os.Chown(r.opts.Workspace, 4711, 4711); err != nil {
		t.Skipf("this user may not give files away: %v", err)
	}
	r.refused("workspace_owner")
	r.gone()
	// With that user's id the container works in it.
	r.opts.User = "4711:4711"
	if err := os.Chown(r.path("workspace/main.txt"), 4711, 4711); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"source/treatment.md", "context/request.json"} {
		chmod(r, r.path(p), 0o644)
	}
	chmod(r, r.path("source"), 0o755)
	receipt := r.words("status", "text made.txt x").run()
	if !receipt.Completed || !strings.Contains(reports(t, receipt)["status"], "uid=4711 gid=4711") {
		t.Errorf("got %+v, stderr %s", receipt.Terminal, r.file(".stderr.log"))
	}
	var st unix.Stat_t
	if err := unix.Stat(r.path("workspace/made.txt"), &st); err != nil || st.Uid != 4711 {
		t.Errorf("made.txt: %v, %v", st.Uid, err)
	}
}

// A bootstrap that fails means that codex never ran, and the receipt shows why.
func TestDocker_BootstrapFails(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.opts.Setup = &worker.Setup{Bootstrap: "echo oh no >&2; exit 9"}
	receipt := r.run()
	if receipt.Completed || *receipt.Terminal.Status != 9 || !strings.Contains(r.file(".stderr.log"), "oh no") || r.file(".stdout.jsonl") != "" {
		t.Errorf("got %+v", receipt.Terminal)
	}
}

// A read-only workspace is not touched: no seed commit, no file.
func TestDocker_ReadOnlyWorkspace(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("create /workspace/x", "read /workspace/main.txt")
	r.opts.ReadOnlyWorkspace = true
	receipt := r.run()
	got := reports(t, receipt)
	if !strings.Contains(got["create /workspace/x"], "read-only") || got["read /workspace/main.txt"] != "hello\n" {
		t.Errorf("got %q", got)
	}
	if entries, err := os.ReadDir(r.opts.Workspace); err != nil || len(entries) != 1 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

// A container that somebody else kills, or removes from under the run, ends the
// turn; nothing is left and there is a receipt.
func TestDocker_EndedFromOutside(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, method, path string
	}{
		{"killed", http.MethodPost, "/kill"},
		{"removed", http.MethodDelete, "?force=1"},
		{"stopped", http.MethodPost, "/stop?t=0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newDocker(t).words("hang")
			var once bool
			r.deps.Progress = func(e worker.Event) {
				if e.Codex == "turn.started" && !once {
					once = true
					dockertest.Call(t, tc.method, "/containers/kontour-worker-"+r.opts.InvocationID+tc.path, nil, nil)
				}
			}
			receipt := r.run()
			end := receipt.Terminal
			if receipt.Completed || !receipt.ContainerRemoved || end.Status == nil || *end.Status == 0 || end.Cancelled {
				t.Errorf("got %+v", end)
			}
			if tc.name != "stopped" && (*end.Status != 137 || end.Signal == nil) { // SIGTERM comes first there
				t.Errorf("status %d", *end.Status)
			}
		})
	}
}

// The engine that is here speaks its own version of the API.
//
// Proves worker 17.34
func TestDocker_Version(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	info, err := r.deps.Engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var version struct{ ApiVersion, Version string }
	dockertest.Call(t, http.MethodGet, "/version", nil, &version)
	if info.APIVersion != version.ApiVersion || info.Version != version.Version {
		t.Errorf("settled on %s of %s, the engine says %s of %s", info.APIVersion, info.Version, version.ApiVersion, version.Version)
	}
}

// swapping exchanges two directories for as long as the engine starts a container.
type swapping struct {
	worker.Engine
	swap func()
}

func (s *swapping) Start(ctx context.Context, id string) error {
	s.swap()
	defer s.swap()
	return s.Engine.Start(ctx, id)
}

// A directory that is exchanged and put back around the start is found all the same:
// what is in the container decides.
func TestDocker_ExchangedAroundStart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"workspace", "source"} {
		r := newDocker(t).words("respond hello")
		mkdir(r, r.path("secret"))
		at := r.path(name)
		r.deps.Engine = &swapping{r.deps.Engine, func() {
			if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, r.path("secret"), unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
			}
		}}
		r.opts.Storage = &worker.StorageBudget{Budget: budget()}
		r.refused("mount_unsafe")
		r.gone()
	}
}
