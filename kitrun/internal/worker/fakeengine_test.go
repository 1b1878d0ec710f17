package worker_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/testkit"
)

// fakeEngine speaks so much of the engine's API that a whole run works on it,
// through the real client and a real socket, and lies as told. It says what an
// engine of API 1.41 says, or one of 1.51: the same documents with the members
// that newer engines add (after the published definition of the API, since none of
// those can be had here).
type fakeEngine struct {
	tb     testing.TB
	api    string
	stdout string // what the worker writes
	stderr string
	status int
	hang   bool // the worker does not end by itself

	info    func(map[string]any)                       // changes /info
	inspect func(c *fakeContainer, doc map[string]any) // changes what an inspection says
	remove  func(c *fakeContainer) (status int)        // 0: removed
	start   func(c *fakeContainer) (status int)        // 0: started
	create  func() (status int, said string)           // 0: created

	mu         sync.Mutex
	calls      []string
	images     map[string]bool
	containers map[string]*fakeContainer
	network    map[string]any
	seq        int
	stop       chan struct{}
	vanish     func() // ends the engine at once
}

type fakeContainer struct {
	id, name string
	body     map[string]any
	started  bool
	run      chan struct{} // closed at the start
	exit     chan struct{} // closed at the end
	status   int
	stdin    []byte
}

// newFake is newRig with a fake engine that has the image of the rig.
func newFake(tb testing.TB) (*rig, *fakeEngine) {
	tb.Helper()
	r := newRig(tb)
	f := &fakeEngine{tb: tb, api: "1.41", stdout: completeTurn, images: map[string]bool{r.opts.Image: true},
		containers: map[string]*fakeContainer{}, stop: make(chan struct{})}
	socket := filepath.Join(testkit.RuntimeDir(tb), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: f}}
	server.Start()
	f.vanish = sync.OnceFunc(func() {
		close(f.stop)
		l.Close()
		server.CloseClientConnections()
	})
	tb.Cleanup(func() {
		f.vanish()
		server.Close()
	})
	r.deps.Engine = engine(tb, "unix://"+socket)
	return r, f
}

// completeTurn is the record of one good turn.
const completeTurn = `{"type":"thread.started","thread_id":"t-1"}
{"type":"turn.started"}
{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"done"}}
{"type":"turn.completed","usage":{"input_tokens":20,"cached_input_tokens":6,"output_tokens":10}}
`

// made are the calls that make, start or change something.
func (f *fakeEngine) made() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return strings.HasPrefix(c, "GET ") || strings.HasPrefix(c, "HEAD ") })
}

// nothingMade wants that no container was asked for and nothing was pulled.
func (f *fakeEngine) nothingMade() {
	f.tb.Helper()
	if made := f.made(); len(made) > 0 {
		f.tb.Errorf("the engine was asked to: %q", made)
	}
}

// neverStarted wants that a container was made, never started, and removed.
func (f *fakeEngine) neverStarted() {
	f.tb.Helper()
	made := f.made()
	has := func(part string) bool {
		return slices.ContainsFunc(made, func(c string) bool { return strings.Contains(c, part) })
	}
	if !has("POST /containers/create") || has("/start") || !has("DELETE /containers/") {
		f.tb.Errorf("the engine was asked to: %q, want create and remove without start", made)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.containers) > 0 {
		f.tb.Error("the container is still there")
	}
}

var (
	versionPrefix = regexp.MustCompile(`^/v(1\.[0-9]+)(/.*)$`)
	someID        = regexp.MustCompile(`[0-9a-f]{64}`)
)

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if m := versionPrefix.FindStringSubmatch(path); m != nil {
		if path = m[2]; m[1] != f.api {
			f.tb.Errorf("a call of API %s to an engine of %s", m[1], f.api)
		}
	}
	w.Header().Set("Api-Version", f.api)
	f.mu.Lock()
	f.calls = append(f.calls, req.Method+" "+someID.ReplaceAllString(path, "ID"))
	f.mu.Unlock()
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/_ping":
		io.WriteString(w, "OK")
	case path == "/info":
		doc := map[string]any{"OSType": "linux", "OperatingSystem": "Debian GNU/Linux 12", "ServerVersion": "20.10.24", "NCPU": 2,
			"SecurityOptions": []string{"name=seccomp,profile=default"}, "DefaultRuntime": "runc", "CgroupVersion": "2",
			"MemoryLimit": true, "SwapLimit": true, "PidsLimit": true, "CpuCfsQuota": true}
		if f.info != nil {
			f.info(doc)
		}
		f.answer(w, 200, doc)
	case parts[0] == "images" && len(parts) == 3 && req.Method == "GET":
		if !f.images[parts[1]] {
			f.refuse(w, 404, "No such image: "+parts[1])
			return
		}
		f.answer(w, 200, map[string]any{"Id": parts[1]})
	case path == "/containers/create":
		f.createContainer(w, req)
	case path == "/containers/json":
		f.list(w, req)
	case parts[0] == "containers" && len(parts) >= 2:
		f.container(w, req, parts[1], append(parts, "")[2])
	case path == "/networks" && req.Method == "GET":
		list := []any{}
		if f.network != nil {
			list = append(list, f.network)
		}
		f.answer(w, 200, list)
	default:
		f.refuse(w, 404, "page not found")
	}
}

func (f *fakeEngine) answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if doc != nil {
		json.NewEncoder(w).Encode(doc)
	}
}

func (f *fakeEngine) refuse(w http.ResponseWriter, status int, said string) {
	f.answer(w, status, map[string]string{"message": said})
}

func (f *fakeEngine) createContainer(w http.ResponseWriter, req *http.Request) {
	if f.create != nil {
		if status, said := f.create(); status != 0 {
			f.refuse(w, status, said)
			return
		}
	}
	var body map[string]any
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		f.refuse(w, 400, err.Error())
		return
	}
	f.mu.Lock()
	f.seq++
	c := &fakeContainer{id: fmt.Sprintf("%064x", f.seq), name: req.URL.Query().Get("name"), body: body,
		run: make(chan struct{}), exit: make(chan struct{})}
	f.containers[c.id] = c
	f.mu.Unlock()
	f.answer(w, 201, map[string]any{"Id": c.id, "Warnings": []string{}})
}

func (f *fakeEngine) find(id string) *fakeContainer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.containers[id]
}

func (f *fakeEngine) list(w http.ResponseWriter, req *http.Request) {
	var filter struct{ Label map[string]bool }
	json.Unmarshal([]byte(req.URL.Query().Get("filters")), &filter)
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []any{}
	for _, c := range f.containers {
		labels, _ := c.body["Labels"].(map[string]any)
		ok := true
		for want := range filter.Label {
			name, value, _ := strings.Cut(want, "=")
			ok = ok && labels[name] == value
		}
		if ok {
			out = append(out, map[string]any{"Id": c.id, "State": c.state(), "Labels": labels, "Created": 1})
		}
	}
	f.answer(w, 200, out)
}

func (c *fakeContainer) state() string {
	select {
	case <-c.exit:
		return "exited"
	default:
	}
	if c.started {
		return "running"
	}
	return "created"
}

func (f *fakeEngine) container(w http.ResponseWriter, req *http.Request, id, what string) {
	c := f.find(id)
	if c == nil {
		f.refuse(w, 404, "No such container: "+id)
		return
	}
	switch {
	case what == "json":
		f.answer(w, 200, f.describe(c))
	case what == "attach":
		f.attach(w, c)
	case what == "wait":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		select {
		case <-c.exit:
			json.NewEncoder(w).Encode(map[string]any{"StatusCode": c.status})
		case <-req.Context().Done():
		case <-f.stop:
		}
	case what == "start":
		if f.start != nil {
			if status := f.start(c); status != 0 {
				f.refuse(w, status, "the start was refused")
				return
			}
		}
		f.mu.Lock()
		c.started = true
		f.mu.Unlock()
		close(c.run)
		w.WriteHeader(204)
	case what == "kill":
		f.end(c, 137)
		w.WriteHeader(204)
	case req.Method == "DELETE":
		if f.remove != nil {
			if status := f.remove(c); status != 0 {
				f.refuse(w, status, "the removal was refused")
				return
			}
		}
		f.end(c, 137)
		f.mu.Lock()
		delete(f.containers, id)
		f.mu.Unlock()
		w.WriteHeader(204)
	default:
		f.refuse(w, 404, "page not found")
	}
}

func (f *fakeEngine) end(c *fakeContainer, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-c.exit:
	default:
		c.status = status
		close(c.exit)
	}
}

// attach is the worker itself: it reads all of stdin, writes its output, and ends.
// The container that looks for codex's version has none of either.
func (f *fakeEngine) attach(w http.ResponseWriter, c *fakeContainer) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		f.tb.Error(err)
		return
	}
	defer conn.Close()
	contentType := "application/vnd.docker.raw-stream"
	if f.api != "1.41" {
		contentType = "application/vnd.docker.multiplexed-stream"
	}
	fmt.Fprintf(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: %s\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n", contentType)
	select {
	case <-c.run:
	case <-c.exit:
		return
	case <-f.stop:
		return
	}
	if strings.HasSuffix(c.name, "-image") {
		frame(conn, 1, "codex-cli 1.2.3\n"+strings.Repeat("cd", 32)+"  /usr/bin/codex\n")
		f.end(c, 0)
		return
	}
	go func() { // a kill ends the reading
		select {
		case <-c.exit:
		case <-f.stop:
		}
		conn.SetReadDeadline(time.Now())
	}()
	c.stdin, _ = io.ReadAll(rw)
	frame(conn, 1, f.stdout)
	frame(conn, 2, f.stderr)
	if f.hang {
		select {
		case <-c.exit:
		case <-f.stop:
		}
		return
	}
	f.end(c, f.status)
}

// frame writes text as the engine multiplexes it.
func frame(w io.Writer, stream byte, text string) {
	for len(text) > 0 {
		part := text[:min(len(text), 32<<10)]
		text = text[len(part):]
		head := binary.BigEndian.AppendUint32([]byte{stream, 0, 0, 0}, uint32(len(part)))
		if _, err := w.Write(append(head, part...)); err != nil {
			return
		}
	}
}

// describe is an inspection.
func (f *fakeEngine) describe(c *fakeContainer) map[string]any {
	host, _ := c.body["HostConfig"].(map[string]any)
	config := map[string]any{}
	for name, value := range c.body {
		if name != "HostConfig" && name != "NetworkingConfig" {
			config[name] = value
		}
	}
	host["Runtime"] = "runc"
	host["MaskedPaths"] = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}
	host["ReadonlyPaths"] = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	config["Env"] = append([]any{"PATH=/usr/bin:/bin"}, list(config["Env"])...)
	mounts := []any{}
	for _, m := range list(host["Mounts"]) {
		m := m.(map[string]any)
		readOnly, _ := m["ReadOnly"].(bool)
		mounts = append(mounts, map[string]any{"Type": "bind", "Source": m["Source"], "Destination": m["Target"], "Mode": "", "RW": !readOnly,
			"Propagation": "rprivate"})
	}
	f.mu.Lock()
	state := map[string]any{"Status": c.state(), "Running": c.state() == "running", "OOMKilled": false, "ExitCode": c.status,
		"StartedAt": "0001-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}
	if c.started {
		state["StartedAt"] = "2026-01-02T03:04:05.6Z"
	}
	f.mu.Unlock()
	doc := map[string]any{"Id": c.id, "Name": "/" + c.name, "Image": config["Image"], "State": state, "Config": config,
		"HostConfig": host, "Mounts": mounts, "AppArmorProfile": "docker-default"}
	if f.api != "1.41" {
		doc["ImageManifestDescriptor"] = map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json",
			"digest": "sha256:" + strings.Repeat("0", 64), "size": 1, "platform": map[string]any{"architecture": "amd64", "os": "linux"}}
		host["CgroupnsMode"], host["Annotations"], host["ConsoleSize"] = "private", map[string]string{}, []int{0, 0}
	}
	if f.inspect != nil {
		f.inspect(c, doc)
	}
	return doc
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}
