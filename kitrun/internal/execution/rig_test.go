package execution_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// patience is for processes on a machine that does much else.
const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manifest is that of the kits of tests.
const manifest = `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"sample.flow","path":"flow.json"}],` +
	`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`

// world is a destination with one kit, and a Store.
type world struct {
	*testing.T
	dir     string
	host    execution.Host
	opt     execution.Options
	request map[string]any
}

// newWorld installs a kit of these files; entry.mjs is text.
func newWorld(t *testing.T, text string, more ...string) *world {
	t.Helper()
	testkit.Need(t, "node")
	w := &world{T: t, dir: testkit.StoreDir(t)}
	for _, name := range []string{"source", "there", "there/dest"} {
		if err := os.Mkdir(w.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.write("source/kit.json", manifest)
	w.write("source/flow.json", "{}")
	w.write("source/entry.mjs", text)
	for i := 0; i < len(more); i += 2 {
		w.write("source/"+more[i], more[i+1])
	}
	w.install()
	db, err := store.Open(t.Context(), store.Options{Dir: w.path("store"), Program: "kitrun"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	w.host = execution.Host{
		Store: db, StoreDir: w.path("store"), RuntimeDir: w.path("run"), DockerHost: "unix:///nonexistent/docker.sock",
		Environ: []string{"PATH=" + os.Getenv("PATH"), "TEST_DIR=" + w.dir},
	}
	w.opt = execution.Options{
		KitID: "sample", Dest: w.path("there/dest"), RequestFile: w.path("request.json"), ControllerRoot: w.path("controller"), Env: []string{"TEST_DIR"},
	}
	w.request = map[string]any{"schema": "kontour.kit.execution_request", "version": "1.0", "kit_id": "sample"}
	return w
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

// copied is a file of the installed copy.
func (w *world) copied(name string) string {
	return "there/dest/kits/local/repositories/sample/" + name
}

func (w *world) install() {
	w.Helper()
	if _, err := new(kit.Keeper).Install(w.Context(), kit.InstallOptions{Source: w.path("source"), Dest: w.path("there/dest")}); err != nil {
		w.Fatal(err)
	}
}

// run writes the request and runs the kit.
func (w *world) run() (execution.Outcome, error) {
	w.Helper()
	data, err := json.Marshal(w.request)
	if err != nil {
		w.Fatal(err)
	}
	w.write("request.json", string(data))
	return w.host.Execute(w.Context(), w.opt)
}

// result is that of a run that must have one.
func (w *world) result() map[string]any {
	w.Helper()
	out, err := w.run()
	if err != nil {
		w.Fatalf("%v\n%s", err, out.Stderr)
	}
	var v map[string]any
	if err := json.Unmarshal(out.Result, &v); err != nil {
		w.Fatalf("%v in %.300s", err, out.Result)
	}
	return v
}

// timeout bounds the runs to come.
func (w *world) timeout(seconds float64) {
	w.request["execution"] = map[string]any{"timeout_s": seconds}
}

func (w *world) exists(name string) bool {
	_, err := os.Lstat(w.path(name))
	return err == nil
}

// last is the newest run in the Store.
func (w *world) last() store.KitRun {
	w.Helper()
	rows, err := w.host.Store.KitRuns(w.Context())
	if err != nil || len(rows) == 0 {
		w.Fatalf("%d runs, %v", len(rows), err)
	}
	return rows[0]
}

// engine stands in for a container engine, as far as looking for containers and
// removing them goes. A POST to /leave?owner=… makes one.
type engine struct {
	*httptest.Server
	socket string

	looked func(owner string)  // before an answer to a search
	refuse func(id string) int // status of a removal; 0 removes

	mu      sync.Mutex
	owners  map[string]string // by id
	removed []string
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{socket: filepath.Join(testkit.RuntimeDir(t), "docker.sock"), owners: map[string]string{}}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	listener, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	e.Listener.Close()
	e.Listener = listener
	e.Start()
	t.Cleanup(e.Close)
	return e
}

func (e *engine) host() string { return "unix://" + e.socket }

// leave makes a container of an owner.
func (e *engine) leave(owner string) (id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id = strings.ReplaceAll(uuid.NewString(), "-", "") + strings.Repeat("0", 32)
	e.owners[id] = owner
	return id
}

func (e *engine) left() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.owners)
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("API-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path[max(0, strings.Index(r.URL.Path, "/containers")):]
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case r.URL.Path == "/leave":
		fmt.Fprintf(w, "%q", e.leave(r.URL.Query().Get("owner")))
	case strings.HasSuffix(r.URL.Path, "/_ping"):
	case path == "/containers/json":
		e.list(w, r)
	case r.Method == http.MethodDelete && len(parts) == 2:
		e.remove(w, parts[1])
	case len(parts) == 3 && parts[2] == "json":
		e.mu.Lock()
		_, ok := e.owners[parts[1]]
		e.mu.Unlock()
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, `{"Config":{},"HostConfig":{},"State":{}}`)
	default:
		w.WriteHeader(http.StatusNotImplemented)
		fmt.Fprint(w, `{"message":"the stand-in does not do that"}`)
	}
}

func (e *engine) list(w http.ResponseWriter, r *http.Request) {
	var filters struct{ Label map[string]bool }
	if err := json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters); err != nil || len(filters.Label) != 1 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for label := range filters.Label {
		owner := strings.TrimPrefix(label, "kontour.worker.owner=")
		if e.looked != nil {
			e.looked(owner)
		}
		e.mu.Lock()
		found := []map[string]any{}
		for id, of := range e.owners {
			if of == owner {
				found = append(found, map[string]any{"Id": id, "State": "running", "Labels": map[string]string{"kontour.worker.owner": owner}})
			}
		}
		e.mu.Unlock()
		_ = json.NewEncoder(w).Encode(found)
	}
}

func (e *engine) remove(w http.ResponseWriter, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refuse != nil {
		if status := e.refuse(id); status != 0 {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"message":"no"}`)
			return
		}
	}
	if _, ok := e.owners[id]; !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	delete(e.owners, id)
	e.removed = append(e.removed, id)
	w.WriteHeader(http.StatusNoContent)
}

// leaves is a piece of a kit that leaves a container with its owner's label.
func (e *engine) leaves() string {
	return `
		import http from 'node:http';
		export const leave = (owner) => new Promise((resolve, reject) => http.request(
			{ socketPath: '` + e.socket + `', method: 'POST', path: '/leave?owner=' + owner, agent: false }, (r) => { r.resume(); r.on('end', resolve); }).on('error', reject).end());
`
}

// nodes are the Nodes of tests.
func nodes(t *testing.T, test func(t *testing.T, node string)) {
	t.Run("node", func(t *testing.T) { test(t, "node") })
	t.Run("node22", func(t *testing.T) {
		path := os.Getenv("DRAWBRIDGE_NODE22")
		if path == "" && os.Getenv("CI") == "true" {
			t.Fatal("DRAWBRIDGE_NODE22 names no Node (scripts/setup), and CI=true")
		}
		if path == "" {
			t.Skip("DRAWBRIDGE_NODE22 names no Node; scripts/setup prints it")
		}
		test(t, path)
	})
}
