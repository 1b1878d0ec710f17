package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
	"drawbridge/shared/workernet"
)

// checkupWorld is a world in which doctor finds nothing wrong, with an engine that
// says what the test wants.
type checkupWorld struct {
	*world
	info       map[string]any
	networks   []any
	containers []any
}

func newCheckup(t *testing.T) *checkupWorld {
	w := &checkupWorld{world: newWorld(t), networks: []any{}, containers: []any{}, info: map[string]any{
		"OSType": "linux", "OperatingSystem": "Debian GNU/Linux 12", "ServerVersion": "20.10.24", "NCPU": 2, "DefaultRuntime": "runc", "CgroupVersion": "2",
		"SecurityOptions": []string{"name=apparmor", "name=seccomp,profile=default", "name=cgroupns"},
		"MemoryLimit":     true, "SwapLimit": true, "PidsLimit": true, "CpuCfsQuota": true,
	}}
	socket := filepath.Join(testkit.RuntimeDir(t), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(w.serve)}}
	server.Start()
	t.Cleanup(server.Close)
	w.env = append(w.env, "DOCKER_HOST=unix://"+socket)
	w.program("brokerd", "#!/bin/sh\n", 0o700)
	shim, err := os.ReadFile(testkit.BuildStatic(t, "stationd/shim"))
	if err != nil {
		t.Fatal(err)
	}
	w.program("station-shim", string(shim), 0o700)
	return w
}

func (w *checkupWorld) program(name, text string, mode os.FileMode) {
	w.Helper()
	if err := os.RemoveAll(w.path("bin/" + name)); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.path("bin/"+name), []byte(text), mode); err != nil {
		w.Fatal(err)
	}
}

// serve answers questions; doctor asks for nothing else.
func (w *checkupWorld) serve(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("API-Version", "1.41")
	rw.Header().Set("Content-Type", "application/json")
	var doc any
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/_ping"):
		return
	case r.Method != http.MethodGet:
		w.Errorf("doctor asks for %s %s", r.Method, path)
	case strings.HasSuffix(path, "/info"):
		doc = w.info
	case strings.HasSuffix(path, "/networks"):
		doc = w.networks
	case strings.HasSuffix(path, "/containers/json"):
		doc = w.containers
	}
	if doc == nil {
		rw.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(rw).Encode(doc)
}

// finding is one check of the report.
type finding struct{ Name, Status, Detail, Hint string }

// doctor runs it and gives the findings, and what the whole report says.
func (w *checkupWorld) doctor(exit int, more ...string) (map[string]finding, string) {
	w.Helper()
	p := w.start("kitrun", append([]string{"doctor", "-json", "--store-dir", w.path("store"), "--runtime-dir", w.path("run"), "--network", w.network}, more...)).Exits(exit)
	var r struct {
		OK     bool
		Checks []finding
	}
	if err := json.Unmarshal(p.Stdout.Bytes(), &r); err != nil {
		w.Fatalf("%v in %s", err, p.Stdout)
	}
	if r.OK != (exit == 0) {
		w.Errorf("ok %v, exit %d", r.OK, exit)
	}
	out := map[string]finding{}
	for _, c := range r.Checks {
		out[c.Name] = c
	}
	return out, p.Stdout.String()
}

// Where nothing is wrong doctor says so, and makes nothing.
func TestDoctor_Good(t *testing.T) {
	w := newCheckup(t)
	all, text := w.doctor(0)
	names := []string{"node", "engine", "worker_network", "brokerd", "station_shim", "store", "directories", "leftovers", "disk"}
	for _, name := range names {
		if c := all[name]; c.Status != "ok" && name != "disk" {
			t.Errorf("%+v", c)
		}
	}
	if len(all) != len(names) || !strings.Contains(text, `"bounds":["memory","swap","pids","cpu"]`) || !strings.Contains(text, `"hook":"register`) {
		t.Errorf("got %s", text)
	}
	for _, name := range []string{"store", "run"} {
		if _, err := os.Lstat(w.path(name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	p := w.start("kitrun", []string{"doctor", "--store-dir", w.path("store"), "--runtime-dir", w.path("run")}).Exits(0)
	if got := p.Stdout.String(); !strings.Contains(got, "engine          ok  host unix://") || strings.Count(got, "\n") < len(names) {
		t.Errorf("the table:\n%s", got)
	}
}

// Each thing that can be wrong is found, with what to do about it, and keeps no
// other check from being made.
func TestDoctor_Findings(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*checkupWorld) (more []string)
		check  string
		exit   int
		detail string
	}{
		{"no node", func(*checkupWorld) []string { return []string{"--node", "/nonexistent/node"} }, "node", 69, "kit_node_unavailable"},
		{"no Node", func(*checkupWorld) []string { return []string{"--node", "true"} }, "node", 69, "does not answer as Node does"},
		{"an old Node", func(w *checkupWorld) []string {
			w.program("old", "#!/bin/sh\necho '{\"version\":\"20.5.1\",\"hook\":\"register\"}'\n", 0o700)
			return []string{"--node", w.path("bin/old")}
		}, "node", 69, "this is Node v20.5.1"},
		{"no engine", func(*checkupWorld) []string { return []string{"--docker-host", "unix:///nonexistent/docker.sock"} }, "engine", 69, "docker_unavailable"},
		{"an engine elsewhere", func(*checkupWorld) []string { return []string{"--docker-host", "tcp://127.0.0.1:1"} }, "engine", 69, "docker_unavailable"},
		{"user ids are mapped", security("name=seccomp,profile=default", "name=userns"), "engine", 69, "docker_identity_unqualified"},
		{"seccomp is off", security("name=seccomp,profile=unconfined"), "engine", 69, "not bounded by seccomp"},
		{"no seccomp", security("name=apparmor"), "engine", 0, "has no seccomp"},
		{"no bound of processes", without("PidsLimit"), "engine", 69, "cannot bound pids"},
		{"no bound of memory", without("MemoryLimit"), "engine", 69, "cannot bound memory"},
		{"no bound of swap", without("SwapLimit"), "engine", 0, "cannot bound swap"},
		{"a network of somebody else", func(w *checkupWorld) []string {
			w.networks = []any{map[string]any{"Name": w.network, "Id": "n1", "Driver": "bridge"}}
			return nil
		}, "worker_network", 69, "network_unqualified"},
		{"no brokerd", func(w *checkupWorld) []string { return w.gone("bin/brokerd") }, "brokerd", 69, "dependency_missing"},
		{"a brokerd that cannot be run", func(w *checkupWorld) []string { w.program("brokerd", "", 0o600); return nil }, "brokerd", 69, "dependency_missing"},
		{"no shim", func(w *checkupWorld) []string { return w.gone("bin/station-shim") }, "station_shim", 0, "does not lie beside"},
		{"a shim that is no program", func(w *checkupWorld) []string { w.program("station-shim", "#!/bin/sh\n", 0o700); return nil }, "station_shim", 0, "no static program"},
		{"a directory that is no Store", func(w *checkupWorld) []string { w.write("store/foreign", ""); return nil }, "store", 69, "store_unavailable"},
		{"a runtime directory that others can write", func(w *checkupWorld) []string {
			w.write("run/x", "")
			if err := os.Chmod(w.path("run"), 0o777); err != nil {
				w.Fatal(err)
			}
			return nil
		}, "directories", 69, "others can write to it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newCheckup(t)
			all, _ := w.doctor(tc.exit, tc.change(w)...)
			want := map[int]string{0: "warning", 69: "error"}[tc.exit]
			got := all[tc.check]
			if len(all) != 9 || got.Status != want || !strings.Contains(got.Detail, tc.detail) || got.Hint == "" && tc.check != "store" {
				t.Errorf("%d checks, %+v", len(all), got)
			}
			for name, c := range all {
				if name != tc.check && c.Status == "error" {
					t.Errorf("%+v, too", c)
				}
			}
		})
	}
}

func security(options ...string) func(*checkupWorld) []string {
	return func(w *checkupWorld) []string { w.info["SecurityOptions"] = options; return nil }
}

func without(bound string) func(*checkupWorld) []string {
	return func(w *checkupWorld) []string { w.info[bound] = false; return nil }
}

func (w *checkupWorld) gone(name string) []string {
	w.Helper()
	if err := os.Remove(w.path(name)); err != nil {
		w.Fatal(err)
	}
	return nil
}

// What killed runs left is counted, and left where it is.
func TestDoctor_Leftovers(t *testing.T) {
	w := newCheckup(t)
	db, err := store.Open(t.Context(), store.Options{Dir: w.path("store"), Program: "kitrun", Holder: "kitrun/x/1/0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w.containers = []any{map[string]any{"Id": strings.Repeat("ab", 32), "State": "running", "Created": 1,
		"Labels": map[string]string{"drawbridge.store": db.ID(), "drawbridge.invocation": "i-1"}}}
	// Of the holder of this row it is known that it is dead: its process would have
	// begun in another life of the machine.
	err = db.BeginKitRun(t.Context(), store.NewKitRun{InvocationID: "r1", KitID: "sample", Dest: "/d", KitHash: "sha256:0", RequestSHA256: "sha256:0", ControllerRoot: "/c", OwnerID: "o"})
	if err != nil {
		t.Fatal(err)
	}
	all, text := w.doctor(0)
	if got := all["leftovers"]; got.Status != "warning" || !strings.Contains(text, `"workers":1`) || !strings.Contains(got.Hint, "kitrun worker sweep") {
		t.Errorf("%+v in %s", got, text)
	}
	if all["store"].Status != "ok" || !strings.Contains(text, `"state":"present"`) {
		t.Errorf("%+v", all["store"])
	}
}

// The rules of scripts/worker-firewall are looked for where the network is.
func TestDoctor_Network(t *testing.T) {
	w := newCheckup(t)
	w.networks = []any{map[string]any{
		"Name": w.network, "Id": strings.Repeat("c", 64), "Driver": "bridge", "Internal": true,
		"Options": map[string]string{workernet.ICCOption: workernet.ICCValue}, "Labels": map[string]string{workernet.Label: workernet.LabelValue},
		"IPAM": map[string]any{"Config": []any{map[string]string{"Subnet": "127.0.0.0/8", "Gateway": "127.0.0.1"}}},
	}}
	all, text := w.doctor(0)
	got := all["worker_network"]
	if !strings.Contains(text, `"device":"br-cccccccccccc"`) {
		t.Errorf("got %s", text)
	}
	_, err := exec.LookPath("iptables")
	switch known := err == nil && os.Geteuid() == 0 && exec.Command("iptables", "-w", "-S", "INPUT").Run() == nil; {
	case known && (got.Status != "warning" || !strings.Contains(got.Hint, "worker-firewall")):
		t.Errorf("without rules: %+v", got)
	case !known && (got.Status != "ok" || !strings.Contains(text, `"rules":"unknown"`)):
		t.Errorf("rules that cannot be seen: %+v", got)
	}
}

// A real engine is found good, and nothing is left on it.
func TestDocker_Doctor(t *testing.T) {
	host := dockertest.Host(t)
	w := newCheckup(t)
	all, text := w.doctor(0, "--docker-host", host)
	if c := all["engine"]; c.Status == "error" || !strings.Contains(text, fmt.Sprintf(`"host":%q`, host)) {
		t.Errorf("%+v", c)
	}
}
