package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a workspace with all that a run needs, and a Store of its own.
type rig struct {
	testing.TB
	dir  string
	fast string // holds the Store
	opts worker.Options
	deps worker.Deps
}

// newRig makes one without an engine, for an image that nobody has.
func newRig(tb testing.TB) *rig {
	tb.Helper()
	dir := testkit.StoreDir(tb) // short, private, resolved
	for _, name := range []string{"workspace", "source", "context", "artifacts"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	r := &rig{TB: tb, dir: dir}
	r.write("context/request.json", `{"stage":"test","canonical_workspace":"/canonical","unit_scope":["a"]}`)
	r.write("source/treatment.md", "frozen\n")
	r.write("workspace/main.txt", "hello\n")
	secret, _ := redact.NewCapability()
	r.opts = worker.Options{
		Image:        "sha256:" + strings.Repeat("ab", 32),
		Workspace:    r.path("workspace"),
		SourceRoot:   r.path("source"),
		ContextFile:  r.path("context/request.json"),
		ArtifactRoot: r.path("artifacts"),
		ProviderProxy: &worker.ProviderProxy{BaseURL: "http://host.docker.internal:41273", Capability: secret,
			Model: "gpt-test"},
		Model:        "gpt-test",
		Timeout:      time.Minute,
		Network:      worker.NetworkNone,
		InvocationID: "i-" + uuid.NewString(),
		RunID:        "run-" + uuid.NewString(),
	}
	r.deps = worker.Deps{Store: r.openStore(), RuntimeDir: r.path("run")}
	return r
}

// newDocker is newRig with the engine of the tests and the image of the fake codex.
func newDocker(tb testing.TB) *rig {
	tb.Helper()
	host := dockertest.Host(tb)
	image := dockertest.FakeImage(tb)
	r := newRig(tb)
	r.opts.Image = image
	r.deps.Engine = engine(tb, host)
	dockertest.Sweep(tb, "drawbridge.store="+r.deps.Store.ID())
	// A Store that knows the image needs no container of its own to look at it.
	if err := r.deps.Store.SaveWorkerImage(context.Background(), store.WorkerImage{Image: image, HarnessVersion: fakeVersion,
		HarnessDigest: "sha256:" + strings.Repeat("0", 64)}); err != nil {
		tb.Fatal(err)
	}
	return r
}

// fakeVersion is what the fake codex calls itself.
const fakeVersion = "0.0.0-fake"

func engine(tb testing.TB, host string) worker.Engine {
	tb.Helper()
	e, err := worker.NewDocker(host)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
	})
	return e
}

// openStore opens the Store of the rig, in memory where there is such a place: the
// tests make many.
func (r *rig) openStore() *store.Store {
	r.Helper()
	if r.fast == "" {
		var err error
		if r.fast, err = os.MkdirTemp("/dev/shm", "worker-test-"); err != nil {
			r.fast = r.dir
		} else {
			r.Cleanup(func() { os.RemoveAll(r.fast) })
		}
	}
	return r.storeIn(filepath.Join(r.fast, "store"))
}

// storeIn opens the Store in a directory.
func (r *rig) storeIn(dir string) *store.Store {
	r.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: dir, Program: "kitrun"})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.Error(err)
		}
	})
	return s
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, text string) {
	r.Helper()
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o700); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(r.path(name), []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

// words makes the prompt of words for the fake codex.
func (r *rig) words(words ...string) *rig {
	if r.opts.Setup == nil {
		r.opts.Setup = &worker.Setup{}
	}
	r.opts.Setup.Prompt = "fake: " + strings.Join(words, "\nfake: ") + "\n"
	return r
}

// run runs the turn and wants a receipt.
func (r *rig) run() worker.Receipt {
	r.Helper()
	receipt, err := worker.Run(r.ctx(), r.opts, r.deps)
	if err != nil {
		r.Fatalf("run: %v", err)
	}
	r.gone()
	return receipt
}

func (r *rig) ctx() context.Context {
	if t, ok := r.TB.(*testing.T); ok {
		return t.Context()
	}
	return context.Background()
}

// refused wants an error of that reason, and nothing made.
func (r *rig) refused(want string) error {
	r.Helper()
	receipt, err := worker.Run(r.ctx(), r.opts, r.deps)
	if err == nil {
		r.Fatalf("run: a receipt, want %s: %+v", want, receipt)
	}
	if got := worker.Reason(err); got != want {
		r.Fatalf("refused with %s (%v), want %s", got, err, want)
	}
	if receipt.Schema != "" {
		r.Error("a refusal comes with a receipt")
	}
	if len(r.capability()) > 8 && strings.Contains(err.Error(), r.capability()) {
		r.Error("the error holds the capability")
	}
	return err
}

func (r *rig) capability() string { return r.opts.ProviderProxy.Capability.Reveal() }

// gone wants no container of this Store, and every row removed.
func (r *rig) gone() {
	r.Helper()
	left, err := worker.List(context.Background(), r.deps, "")
	if err != nil {
		r.Fatal(err)
	}
	if len(left) > 0 {
		r.Errorf("workers are left: %+v", left)
	}
}

// file reads one of the files of the invocation.
func (r *rig) file(suffix string) string {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.opts.ArtifactRoot, r.opts.InvocationID+suffix))
	if err != nil {
		r.Fatal(err)
	}
	return string(data)
}

// reports are what the fake codex found out, by word.
func reports(tb testing.TB, receipt worker.Receipt) map[string]string {
	tb.Helper()
	if receipt.Final == nil {
		tb.Fatalf("no final message: %+v", receipt.Terminal)
	}
	var list []struct{ Word, Result string }
	if err := json.Unmarshal([]byte(*receipt.Final), &list); err != nil {
		tb.Fatalf("%v in %s", err, *receipt.Final)
	}
	out := map[string]string{}
	for _, r := range list {
		out[r.Word] = r.Result
	}
	return out
}

func budget() storage.Budget {
	b := storage.DefaultBudget()
	b.MinFreeBytes = 0
	return b
}

func wantCode(tb testing.TB, err error, want fault.Code) {
	tb.Helper()
	if got := fault.CodeOf(err); got != want {
		tb.Fatalf("got %s (%v), want %s", got, err, want)
	}
}

// hintOf gives the hint of an error.
func hintOf(err error) string {
	if f, ok := fault.As(err); ok {
		return f.Hint
	}
	return ""
}
