package main

import (
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
	"testing"

	"github.com/google/uuid"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const (
	testCredential = "test-CANARY-0123456789abcdef" // what --test-upstream takes
	testModel      = "gpt-test"
	testManifest   = `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"sample.flow","path":"flow.json"}],` +
		`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`
)

// world is a folder with the programs, a destination, a Store and a request.
type world struct {
	*testing.T
	dir     string
	network string
	env     []string
	request map[string]any
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testkit.Need(t, "node")
	w := &world{T: t, dir: testkit.StoreDir(t), network: "kit-" + uuid.NewString()[:8]}
	for _, name := range []string{"bin", "home", "config/drawbridge", "work", "workspace", "worker"} {
		if err := os.MkdirAll(w.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.put("kitrun")
	w.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.path("home"), "XDG_CONFIG_HOME=" + w.path("config"), "LANG=C.UTF-8", "TEST_DIR=" + w.dir,
		"DOCKER_HOST=unix:///nonexistent/docker.sock",
	}
	w.request = map[string]any{"schema": "kontour.kit.execution_request", "version": "1.0", "kit_id": "sample", "workspace": w.path("workspace")}
	return w
}

// put gives a program a home of the world's: it looks for its siblings beside it.
func (w *world) put(name string) {
	w.Helper()
	testkit.PutProgram(w.T, testkit.BuildProgram(w.T, name, "drawbridge_crashpoints"), w.path("bin/"+name))
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o700); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// kit installs a kit whose entry is text.
func (w *world) kit(text string) *world {
	w.Helper()
	w.write("source/kit.json", testManifest)
	w.write("source/flow.json", "{}")
	w.write("source/entry.mjs", text)
	w.install(w.path("source"))
	return w
}

func (w *world) install(source string) {
	w.Helper()
	w.start("kitrun", []string{"install", source, "--dest", w.path("work"), "--store-dir", w.path("store")}).Exits(0)
}

// args are those of run, and more.
func (w *world) args(more ...string) []string {
	w.Helper()
	data, err := json.Marshal(w.request)
	if err != nil {
		w.Fatal(err)
	}
	w.write("request.json", string(data))
	args := []string{"run", w.request["kit_id"].(string), "--dest=" + w.path("work"), "--request", w.path("request.json"), "--controller-root", w.path("controller")}
	args = append(args, "--store-dir", w.path("store"), "--runtime-dir", w.path("run"), "--network", w.network, "--env", "TEST_DIR")
	return append(args, more...)
}

func (w *world) start(name string, args []string, env ...string) *testkit.Process {
	w.Helper()
	cmd := exec.Command(w.path("bin/"+name), args...)
	cmd.Env = append(append([]string(nil), w.env...), env...)
	return testkit.Start(w.T, cmd)
}

// runs reads the rows of the Store.
func (w *world) runs() []store.KitRun {
	w.Helper()
	db := w.db()
	defer db.Close()
	rows, err := db.KitRuns(context.WithoutCancel(w.Context()))
	if err != nil {
		w.Fatal(err)
	}
	return rows
}

func (w *world) db() *store.Store {
	w.Helper()
	db, err := store.Open(context.WithoutCancel(w.Context()), store.Options{Dir: w.path("store"), Program: "test", ReadOnly: true})
	if err != nil {
		w.Fatal(err)
	}
	return db
}

// upstream stands in for the provider.
func (w *world) upstream() {
	w.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(rw, `data: {"type":"response.completed","response":{"model":"m","usage":{"input_tokens":100,"output_tokens":7}}}`+"\n\n")
	}))
	w.Cleanup(server.Close)
	w.put("brokerd")
	w.write("config/drawbridge/brokerd.json", `{"test-upstream":"`+server.URL+`"}`)
	w.write("auth.json", `{"OPENAI_API_KEY":"`+testCredential+`"}`)
}

// prompt makes the fake codex do things.
func prompt(words ...string) string { return "fake: " + strings.Join(words, "\nfake: ") + "\n" }
