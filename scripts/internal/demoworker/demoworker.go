// Package demoworker is the story of scripts/demo worker: a credential is lent to a
// real Codex in a locked container, which edits a file in its workspace, and then
// everything that the container could reach, and everything that is kept, is
// searched for the credential's bytes.
//
// The model behind the broker is scripted, so no account is needed; the credential
// is one for tests, and the provider's side of the story counts how often it
// arrived there. What is searched for is found where it must be (the capability in
// the container's environment), so a search that finds nothing means something.
package demoworker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/image"
	"drawbridge/scripts/internal/modelserver"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/store"
)

// Bounds of waiting.
const (
	readyWait = 30 * time.Second
	turnWait  = 5 * time.Minute
	lookEvery = 200 * time.Millisecond
)

// Networks that the story can be told in.
const (
	isolatedNetwork = "isolated"
	socketNetwork   = "socket"
)

// The task. What the scripted model does is said by the word SCN=.
const (
	task   = "Note in a file how many planks the bridge has. SCN=EDIT:planks"
	edited = "edited-planks.txt"
	want   = "hello\nmoon\n"
)

// Options say what the story is made of.
type Options struct {
	Brokerd, Kitrun string // the programs
	Host            string // the engine; "" for DOCKER_HOST
	Network         string // of the worker: isolated or socket; "" for isolated
}

// Outcome is what the story ended with.
type Outcome struct {
	Receipt  []byte   // as kitrun printed it
	File     string   // what the agent wrote
	Searched []string // what was searched, with sizes
	Found    []string // where a secret was found that must not be there
	Looks    int      // how often the running container was searched
	Provider int64    // requests that reached the provider with the credential
	Grant    store.Grant
}

// story is one run of it.
type story struct {
	rig.TB
	Options
	say        func(format string, args ...any)
	client     *engine.Client
	dir        string
	credential string
	network    string
	run        string
	upstream   string
	arrived    atomic.Int64
	env        []string
	hunt       hunt
}

// Run tells the story; tb ends it when something is not as it should be.
func Run(tb rig.TB, say func(format string, args ...any), o Options) Outcome {
	id := make([]byte, 8)
	_, _ = rand.Read(id)
	name := hex.EncodeToString(id)
	if o.Network == "" {
		o.Network = isolatedNetwork
	}
	s := &story{TB: tb, Options: o, say: say, credential: "test-demo-credential-" + name, network: "drawbridge-demo-" + name, run: "demo-" + name}
	s.hunt.secrets = map[string][]byte{"credential": []byte(s.credential)}
	var err error
	if s.client, err = engine.NewClient(o.Host); err != nil {
		tb.Fatalf("%v", err)
	}
	img := s.image()
	s.folders()
	s.provider()
	s.broker()
	var out Outcome
	s.turn(img, &out)
	s.evidence(&out)
	s.kept(&out)
	out.Provider = s.arrived.Load()
	return out
}

// image builds and loads the image of the worker.
func (s *story) image() string {
	begin := time.Now()
	program, err := rig.CodexPath(rig.CodexVersions[0])
	if err != nil {
		s.Fatalf("%v", err)
	}
	sources := image.Sources{Codex: program, Version: rig.CodexVersions[0], Tag: image.Tag}
	if sources.Busybox, err = image.Find("busybox-static", "/bin/busybox", "/usr/bin/busybox"); err != nil {
		s.Fatalf("%v", err)
	}
	if sources.Git, err = image.Find("git", "/usr/bin/git"); err != nil {
		s.Fatalf("%v", err)
	}
	img, err := image.New(s.Context(), sources)
	if err == nil {
		err = img.Load(s.Context(), s.client)
	}
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.say("the image with Codex %s is %.19s…, built and loaded in %.1f s", sources.Version, img.ID, time.Since(begin).Seconds())
	return img.ID
}

// folders makes the directories of the run, and the credential file.
func (s *story) folders() {
	dir, err := os.MkdirTemp("", "drawbridge-demo-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.dir = dir
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Errorf("%v", err)
		}
	})
	for _, sub := range []string{"home", "store", "run", "workspace", "source", "context", "artifacts", "secret", "logs", "door"} {
		if err := os.Mkdir(s.path(sub), 0o700); err != nil {
			s.Fatalf("%v", err)
		}
	}
	s.write("workspace/README.md", "# The bridge\n")
	s.write("source/rules.md", "Planks are counted from the left.\n")
	s.write("context/request.json", `{"stage":"demo"}`+"\n")
	s.write("secret/auth.json", `{"OPENAI_API_KEY":"`+s.credential+`"}`+"\n")
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.path("home")}
	if host := s.Host; host != "" {
		s.env = append(s.env, "DOCKER_HOST="+host)
	} else if host := os.Getenv("DOCKER_HOST"); host != "" {
		s.env = append(s.env, "DOCKER_HOST="+host)
	}
}

func (s *story) path(name string) string { return filepath.Join(s.dir, name) }

func (s *story) write(name, text string) {
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.Fatalf("%v", err)
	}
}

// provider starts the scripted model, behind a door that counts the credential.
func (s *story) provider() {
	model, err := modelserver.Listen("")
	if err != nil {
		s.Fatalf("%v", err)
	}
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = model.Close()
		s.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- modelserver.New(modelserver.Options{}).Run(ctx, model) }()
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: model.Addr().String()})
	front := &http.Server{ReadHeaderTimeout: readyWait, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+s.credential {
			http.Error(w, "no credential", http.StatusUnauthorized)
			return
		}
		s.arrived.Add(1)
		behind.ServeHTTP(w, r)
	})}
	go func() { ended <- front.Serve(door) }()
	s.Cleanup(func() {
		cancel()
		_ = front.Close()
		for range 2 {
			if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.Errorf("%v", err)
			}
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	s.upstream = "http://" + door.Addr().String() + "/v1"
	s.say("the scripted provider listens at %s; it takes nothing but the host's credential", s.upstream)
}

// broker starts brokerd and waits until it serves.
func (s *story) broker() {
	socket := s.path("run/n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		s.Fatalf("%v", err)
	}
	defer notify.Close()
	log, err := os.Create(s.path("logs/brokerd"))
	if err != nil {
		s.Fatalf("%v", err)
	}
	defer log.Close()
	listen := "auto"
	if s.Network == socketNetwork {
		listen = "unix:" + s.path("door/s")
	}
	cmd := exec.Command(s.Brokerd, "serve", "-store-dir", s.path("store"), "-log-level", "debug", "-network", s.network,
		"-test-upstream", s.upstream, "-listen", listen)
	cmd.Env = append(s.env, "NOTIFY_SOCKET="+socket)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.Fatalf("%v", err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			s.Errorf("brokerd: %v", err)
		}
		s.removeNetwork()
	})
	if err := notify.SetReadDeadline(time.Now().Add(readyWait)); err != nil {
		s.Fatalf("%v", err)
	}
	for buf := make([]byte, 1024); ; {
		n, err := notify.Read(buf)
		if err != nil {
			s.Fatalf("brokerd is not ready: %v\n%s", err, s.tail("logs/brokerd"))
		}
		if bytes.Contains(buf[:n], []byte("READY=1")) {
			break
		}
	}
	s.say("brokerd serves the Store, process %d", cmd.Process.Pid)
}

func (s *story) removeNetwork() {
	ctx, cancel := context.WithTimeout(context.Background(), readyWait)
	defer cancel()
	_, err := s.client.Call(ctx, http.MethodDelete, "/networks/"+s.network, nil)
	var no *engine.Refused
	if err != nil && !(errors.As(err, &no) && no.Status == http.StatusNotFound) {
		s.Errorf("remove the network: %v", err)
	}
}

// tail is the end of a file, for an error.
func (s *story) tail(name string) string {
	data, err := os.ReadFile(s.path(name))
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}

// turn runs the worker and searches its container while it runs.
func (s *story) turn(img string, out *Outcome) {
	options, err := json.Marshal(map[string]any{
		"image": img, "workspace": s.path("workspace"), "sourceRoot": s.path("source"), "contextFile": s.path("context/request.json"),
		"artifactRoot": s.path("artifacts"), "network": s.Network, "model": rig.Model, "timeoutMs": turnWait.Milliseconds(), "runId": s.run, "invocationId": s.run,
		"workspaceSetup":      map[string]any{"prompt": task + "\n"},
		"forbiddenMountRoots": []map[string]string{{"kind": "controller", "path": s.path("store")}},
		"storageBudget":       map[string]any{"min_free_bytes": 0},
	})
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.write("options.json", string(options))
	ctx, cancel := context.WithTimeout(s.Context(), turnWait+readyWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Kitrun, "worker", "run", "-store-dir", s.path("store"), "-network", s.network,
		"-options", s.path("options.json"), "-auth-file", s.path("secret/auth.json"))
	cmd.Env = s.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = readyWait
	var receipt, log bytes.Buffer
	cmd.Stdout = &receipt
	cmd.Stderr = io.MultiWriter(&log, &lines{say: s.say})
	if err := cmd.Start(); err != nil {
		s.Fatalf("%v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for running := true; running; {
		select {
		case err = <-ended:
			running = false
		case <-time.After(lookEvery):
			s.look(ctx, out)
		}
	}
	s.write("logs/kitrun", log.String())
	if err != nil {
		s.Fatalf("kitrun worker run: %v\n%s\nbrokerd:\n%s", err, log.String(), s.tail("logs/brokerd"))
	}
	out.Receipt = receipt.Bytes()
	file, err := os.ReadFile(s.path("workspace/" + edited))
	if err != nil || string(file) != want {
		s.Fatalf("the workspace has not the file that the agent was told to write: %q, %v", file, err)
	}
	out.File = string(file)
	if out.Looks == 0 {
		s.Fatalf("the container was never seen running")
	}
	s.say("the worker has ended and its container is gone; it was searched %d times while it ran", out.Looks)
}

// lines passes each whole line on.
type lines struct {
	say  func(format string, args ...any)
	rest string
}

func (l *lines) Write(p []byte) (int, error) {
	all := strings.Split(l.rest+string(p), "\n")
	l.rest = all[len(all)-1]
	for _, line := range all[:len(all)-1] {
		l.say("%s", line)
	}
	return len(p), nil
}

// evidence reads what the broker says of the grant.
func (s *story) evidence(out *Outcome) {
	db, err := store.Open(s.Context(), store.Options{Dir: s.path("store"), Program: "demo", ReadOnly: true})
	if err != nil {
		s.Fatalf("%v", err)
	}
	defer db.Close()
	grants, err := db.GrantsOfRun(s.Context(), s.run)
	if err != nil || len(grants) != 1 {
		s.Fatalf("%d grants for the run, %v, want one", len(grants), err)
	}
	out.Grant = grants[0]
	s.say("grant %s is %s: %d requests were let through, and the capability opens nothing any more", out.Grant.ID, out.Grant.State, out.Grant.Forwarded)
}

// kept searches everything that is left of the run on the host, the credential file
// itself apart.
func (s *story) kept(out *Outcome) {
	for _, what := range []struct{ name, dir string }{
		{"the workspace", "workspace"}, {"the treatment", "source"}, {"the context", "context"}, {"receipt and output", "artifacts"},
		{"the Store", "store"}, {"logs of brokerd and kitrun", "logs"}, {"the runtime directory", "run"}, {"the home", "home"},
	} {
		s.hunt.tree(what.name, s.path(what.dir))
	}
	s.hunt.bytes("the printed receipt", out.Receipt)
	out.Searched, out.Found = s.hunt.summary(), s.hunt.found
	if len(s.hunt.failed) > 0 {
		s.Fatalf("not everything could be searched: %v", s.hunt.failed)
	}
}

// Print writes what the story ended with.
func (o Outcome) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nreceipt\n%s\n%s\n%s\nsearched for the credential, and for the capability that was lent\n", o.Receipt, edited, indent(o.File))
	for _, what := range o.Searched {
		fmt.Fprintf(&b, "  %s\n", what)
	}
	if len(o.Found) == 0 {
		fmt.Fprintf(&b, "found nowhere that it must not be; the provider got the credential, %d times\n", o.Provider)
	} else {
		fmt.Fprintf(&b, "FOUND in %s\n", strings.Join(o.Found, ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n"
}
