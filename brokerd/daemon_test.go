package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const (
	limit     = 40 * time.Second // for a condition that must come true
	secret    = "test-credential-0123456789abcdef"
	model     = "model-a"
	crashTag  = "drawbridge_crashpoints"
	fixedBody = `{"error":{"message":"Provider capability request refused"}}`
	body      = `{"model":"model-a","input":"hello","stream":true}`
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(creatorVariable); dir != "" {
		os.Exit(creator(dir))
	}
	testkit.Leak(m)
}

// world is one Store, looked at by the test, with a provider that is scripted and a
// credential file.
type world struct {
	t    *testing.T
	dir  string // of the Store
	home string
	auth string // credential file
	*store.Store
	*provider
}

func newWorld(t *testing.T) *world {
	t.Helper()
	home := testkit.StoreDir(t)
	s, err := store.Open(context.Background(), store.Options{Dir: filepath.Join(home, "store"), Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w := &world{t: t, dir: filepath.Join(home, "store"), home: home, Store: s, provider: newProvider(t)}
	w.auth = w.write("auth.json", `{"OPENAI_API_KEY":"`+secret+`"}`)
	return w
}

// write makes a private file in the home.
func (w *world) write(name, content string) string {
	w.t.Helper()
	path := filepath.Join(w.home, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// provider is the scripted upstream: it answers with one event of usage, after
// whatever a test has it do first.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	before   func(w http.ResponseWriter, r *http.Request)
}

const event = `data: {"type":"response.completed","response":{"model":"model-a-real","usage":{"input_tokens":10,"output_tokens":5}}}` + "\n\n"

func newProvider(t *testing.T) *provider {
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.requests, p.bodies = append(p.requests, r), append(p.bodies, string(data))
		before := p.before
		p.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		if before != nil {
			before(w, r)
		}
		io.WriteString(w, event)
	}))
	t.Cleanup(p.Server.Close)
	return p
}

func (p *provider) script(before func(w http.ResponseWriter, r *http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = before
}

// seen is how many requests reached the provider.
func (p *provider) seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
}

// request is one that reached the provider.
func (p *provider) request(i int) *http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[i]
}

// held has the provider send a first event and then wait for the end of the
// request or of the test.
func (p *provider) held(t *testing.T) (begun <-chan struct{}) {
	first, end := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(end) })
	p.script(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: {}\n\n")
		http.NewResponseController(w).Flush()
		first <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-end:
		}
	})
	return first
}

// child is one brokerd process.
type child struct {
	t        *testing.T
	cmd      *exec.Cmd
	lifeline *os.File // nil: an operator's
	ended    chan struct{}
	once     sync.Once
	out      bytes.Buffer
	notify   *net.UnixConn
}

// serve starts a brokerd on 127.0.0.1 with the scripted provider, as an operator
// does, and waits until it serves. Arguments with a = in front of a dash are
// variables of the environment.
func (w *world) serve(args ...string) *child {
	w.t.Helper()
	return w.start(false, args...).told("READY=1")
}

func (w *world) start(sibling bool, args ...string) *child {
	w.t.Helper()
	var env []string
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		if strings.HasPrefix(a, "-") || !strings.Contains(a, "=") {
			return false
		}
		env = append(env, a)
		return true
	})
	socket := filepath.Join(testkit.RuntimeDir(w.t), "n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		w.t.Fatal(err)
	}
	d := &child{t: w.t, ended: make(chan struct{}), notify: notify}
	all := []string{"serve", "-store-dir", w.dir, "-log-level", "debug", "-log-format", "text"}
	if !slices.Contains(args, "-test-upstream") {
		all = append(all, "-test-upstream", w.URL)
	}
	if !slices.Contains(args, "-listen") {
		all = append(all, "-listen", "127.0.0.1")
	}
	d.cmd = exec.Command(testkit.BuildProgram(w.t, "brokerd", crashTag), append(all, args...)...)
	d.cmd.Env = append([]string{"HOME=" + w.home, "NOTIFY_SOCKET=" + socket, "PATH=" + os.Getenv("PATH")}, env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if sibling {
		read, write, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		defer read.Close()
		d.lifeline = write
		d.cmd.ExtraFiles = []*os.File{read}
		d.cmd.Env = append(d.cmd.Env, "DRAWBRIDGE_LIFELINE_FD=3")
	}
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		d.cmd.Wait()
		close(d.ended)
	}()
	w.t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.ended
		d.cut()
		notify.Close()
		if w.t.Failed() {
			w.t.Logf("brokerd %d:\n%s", d.cmd.Process.Pid, d.out.String())
		}
	})
	return d
}

// cut ends the lifeline, as the end of whoever started it does.
func (d *child) cut() {
	d.once.Do(func() {
		if d.lifeline != nil {
			d.lifeline.Close()
		}
	})
}

// told waits until the daemon has said text on its notification socket.
func (d *child) told(text string) *child {
	d.t.Helper()
	d.notify.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, 4096)
	for {
		n, err := d.notify.Read(buf)
		if err != nil {
			d.t.Fatalf("brokerd did not say %q: %v", text, err)
		}
		if strings.Contains(string(buf[:n]), text) {
			return d
		}
	}
}

// exits waits for the end and demands the status; -1 is death by a signal.
func (d *child) exits(want int) {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(limit):
		d.t.Fatal("brokerd does not end")
	}
	if got := d.cmd.ProcessState.ExitCode(); got != want {
		d.t.Errorf("brokerd ended with %d, want %d", got, want)
	}
}

func (d *child) signal(sig syscall.Signal) *child {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	return d
}

// lent is a grant with its capability.
type lent struct {
	store.Grant
	capability string
	w          *world
}

// ask inserts a requested grant.
func (w *world) ask(change func(*store.NewGrant)) lent {
	w.t.Helper()
	capability, hash := redact.NewCapability()
	n := store.NewGrant{CapabilitySHA256: hash, CredentialRef: w.auth, Request: store.GrantRequest{Model: model}}
	if change != nil {
		change(&n)
	}
	g, err := w.CreateGrant(context.Background(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return lent{g, capability.Reveal(), w}
}

// lend takes out a grant.
func (w *world) lend(change func(*store.NewGrant)) lent {
	w.t.Helper()
	l := w.ask(change)
	g, err := w.AwaitGrant(context.Background(), l.ID, limit)
	if err != nil {
		w.t.Fatal(err)
	}
	l.Grant = g
	return l
}

// now reads the grant again.
func (l lent) now() store.Grant {
	l.w.t.Helper()
	g, err := l.w.Store.Grant(context.Background(), l.ID)
	if err != nil {
		l.w.t.Fatal(err)
	}
	return g
}

// becomes waits for a state.
func (l lent) becomes(state string) store.Grant {
	l.w.t.Helper()
	var g store.Grant
	eventually(l.w.t, l.ID+" is "+state, func() bool { g = l.now(); return g.State == state })
	return g
}

// url is where the worker would find the broker, on this machine.
func (l lent) url() string {
	rest := strings.TrimPrefix(l.BaseURL, "http://host.docker.internal:")
	return "http://127.0.0.1:" + rest + "/responses"
}

// send makes one request of its own connection.
func (l lent) send(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+l.capability)
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// post is send that reads the answer and demands the status; refusals have the one
// body.
func (l lent) post(want int) string {
	l.w.t.Helper()
	resp, err := l.send(context.Background(), body)
	if err != nil {
		l.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		l.w.t.Fatal(err)
	}
	if resp.StatusCode != want {
		l.w.t.Errorf("got %d %s (%s), want %d", resp.StatusCode, data, resp.Header.Get("X-Drawbridge-Refusal"), want)
	}
	if resp.StatusCode != http.StatusOK && string(data) != fixedBody {
		l.w.t.Errorf("body of the refusal: %s", data)
	}
	return resp.Header.Get("X-Drawbridge-Refusal")
}

// rows are the evidence, decoded.
func (l lent) rows() (rows []map[string]any) {
	l.w.t.Helper()
	all, err := l.w.Evidence(context.Background(), l.ID)
	if err != nil {
		l.w.t.Fatal(err)
	}
	for _, r := range all {
		var row map[string]any
		if err := json.Unmarshal(r, &row); err != nil {
			l.w.t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// outcomes waits until no row is reserved and gives how each ended.
func (l lent) outcomes() (out []string) {
	l.w.t.Helper()
	eventually(l.w.t, "no row is open", func() bool {
		out = nil
		for _, r := range l.rows() {
			out = append(out, fmt.Sprint(r["outcome"]))
		}
		return !slices.Contains(out, store.RequestReserved)
	})
	return out
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// brokerd runs a command on the Store and gives what it prints, and its status.
func (w *world) brokerd(args ...string) (stdout string, status int) {
	w.t.Helper()
	cmd := exec.Command(testkit.BuildProgram(w.t, "brokerd", crashTag), append(args, "-store-dir", w.dir)...)
	cmd.Env = []string{"HOME=" + w.home}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	if errs.Len() > 0 {
		w.t.Logf("brokerd %v: %s", args, errs.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}
