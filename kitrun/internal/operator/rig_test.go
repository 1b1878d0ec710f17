package operator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

const (
	patience   = 60 * time.Second
	credential = "test-CANARY-0123456789abcdef" // what --test-upstream takes
	model      = "gpt-test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream stands in for the provider.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests int
	auth     []string
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		u.mu.Lock()
		u.requests++
		u.auth = append(u.auth, r.Header.Get("Authorization"))
		u.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"type":"response.completed","response":{"model":"m","usage":{"input_tokens":100,"output_tokens":7}}}`+"\n\n")
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.requests
}

// world is a folder with the programs, a workspace and a Store, on the engine of
// the tests.
type world struct {
	t        *testing.T
	dir      string
	host     string
	network  string
	upstream *upstream
	options  map[string]any
	run      string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	host := dockertest.Host(t)
	w := &world{
		t: t, dir: testkit.StoreDir(t), host: host, network: "operator-" + uuid.NewString()[:8], upstream: newUpstream(t),
		run: "operator-" + uuid.NewString(),
	}
	for _, name := range []string{"bin", "workspace", "source", "context", "artifacts", "home", "config/drawbridge"} {
		if err := os.MkdirAll(w.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	testkit.PutProgram(t, testkit.BuildProgram(t, "kitrun", "drawbridge_crashpoints"), w.path("bin/kitrun"))
	testkit.PutProgram(t, testkit.BuildProgram(t, "brokerd", "drawbridge_crashpoints"), w.path("bin/brokerd"))
	w.write("config/drawbridge/brokerd.json", `{"test-upstream":"`+w.upstream.URL+`"}`)
	w.write("auth.json", `{"OPENAI_API_KEY":"`+credential+`"}`)
	w.write("context/request.json", `{"stage":"test"}`)
	w.options = map[string]any{
		"image": dockertest.FakeImage(t), "workspace": w.path("workspace"), "sourceRoot": w.path("source"),
		"contextFile": w.path("context/request.json"), "artifactRoot": w.path("artifacts"), "model": model,
		"timeoutMs": 60_000, "runId": w.run, "invocationId": "op-" + uuid.NewString(),
		"storageBudget": map[string]any{"min_free_bytes": 0},
	}
	t.Cleanup(func() {
		if status, said := dockertest.Try(t, http.MethodDelete, "/networks/"+w.network, nil); status != http.StatusNoContent && status != http.StatusNotFound {
			t.Errorf("remove network: status %d: %s", status, said)
		}
	})
	dockertest.Sweep(t, "kontour.worker.run="+w.run)
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// prompt makes the fake codex do things.
func (w *world) prompt(words ...string) *world {
	w.options["workspaceSetup"] = map[string]any{"prompt": "fake: " + strings.Join(words, "\nfake: ") + "\n"}
	return w
}

// args are those of worker run with the credential, and more.
func (w *world) args(more ...string) []string {
	w.t.Helper()
	data, err := json.Marshal(w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("options.json", string(data))
	args := []string{"worker", "run", "--options", w.path("options.json"), "--network", w.network, "--runtime-dir", w.path("run")}
	return append(append(args, "--store-dir", w.path("store")), more...)
}

func (w *world) withAuth(more ...string) []string {
	return w.args(append([]string{"--auth-file", w.path("auth.json")}, more...)...)
}

func (w *world) environ(extra ...string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.path("home"), "XDG_CONFIG_HOME=" + w.path("config"), "DOCKER_HOST=" + w.host, "LANG=C.UTF-8",
		"OPENAI_API_KEY=CANARY-environment",
	}, extra...)
}

// start runs kitrun or brokerd with args.
func (w *world) start(name string, args []string, env ...string) *program {
	w.t.Helper()
	cmd := exec.Command(w.path("bin/"+name), args...)
	cmd.Env = w.environ(env...)
	return &program{testkit.Start(w.t, cmd), w}
}

// program is one process of the world's.
type program struct {
	*testkit.Process
	w *world
}

func (p *program) exits(want int) *program {
	p.w.t.Helper()
	p.Exits(want)
	return p
}

// receipt reads what was printed.
func (p *program) receipt() receipt {
	p.w.t.Helper()
	var r receipt
	if err := json.Unmarshal(p.Stdout.Bytes(), &r); err != nil {
		p.w.t.Fatalf("%v in %s", err, p.Stdout)
	}
	return r
}

// receipt is the part of one that these tests look at.
type receipt struct {
	Completed bool
	Final     *string
	Terminal  struct{ Cancelled bool }
	Observed  struct {
		NetworkMode string `json:"network_mode"`
		Credentials *bool  `json:"credentials_mounted"`
	}
	ContainerRemoved bool `json:"container_removed"`
}

func (w *world) db() *store.Store {
	w.t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: w.path("store"), Program: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

// grants waits until all grants of the run are at their end and gives them.
func (w *world) grants(want int) []store.Grant {
	w.t.Helper()
	s := w.db()
	var all []store.Grant
	testkit.Eventually(w.t, patience, func() bool {
		var err error
		if all, err = s.GrantsOfRun(w.t.Context(), w.run); err != nil {
			w.t.Fatal(err)
		}
		open := 0
		for _, g := range all {
			if g.Open() {
				open++
			}
		}
		return len(all) == want && open == 0
	}, want, "grants at their end")
	return all
}

// containers counts those of the run, in whatever state.
func (w *world) containers() int {
	w.t.Helper()
	var found []struct{ ID string }
	dockertest.Call(w.t, http.MethodGet, `/containers/json?all=1&filters=%7B%22label%22%3A%5B%22kontour.worker.run%3D`+w.run+`%22%5D%7D`, nil, &found)
	return len(found)
}

// quiet waits until no brokerd of the world lives.
func (w *world) quiet() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() bool { return len(w.brokerds()) == 0 }, "no brokerd lives")
}

// brokerds are the pids of the world's brokerd.
func (w *world) brokerds() []int {
	w.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	var out []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		if exe, err := os.Readlink("/proc/" + e.Name() + "/exe"); err == nil && exe == w.path("bin/brokerd") {
			out = append(out, pid)
		}
	}
	return out
}

// noSecrets demands that no secret stands in what the programs wrote.
func (w *world) noSecrets(texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		if strings.Contains(text, "CANARY") {
			w.t.Errorf("a secret is shown: %s", text)
		}
	}
	for _, dir := range []string{"store", "artifacts", "run", "workspace"} {
		_ = filepath.WalkDir(w.path(dir), func(path string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte("CANARY")) {
					w.t.Errorf("%s holds a secret", path)
				}
			}
			return nil
		})
	}
}
