package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/gate/gatetest"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// patience bounds every wait of these tests.
const patience = 10 * time.Second

// harness is a running harness, pid 1 of a pid namespace of its own: when it is
// killed, all its descendants are.
type harness struct {
	*exec.Cmd
	testing.TB
	exe  string // a file of its own, so that its processes can be told
	addr string
	out  *bufio.Reader
}

func startHarness(t *testing.T, env []string, args ...string) *harness {
	t.Helper()
	built, err := os.ReadFile(testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo"))
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "testharness")
	if err := os.WriteFile(exe, built, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &harness{Cmd: exec.Command(exe, args...), TB: t, exe: exe}
	h.Env = env
	h.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		h.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		h.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		h.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
	stdout, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no pid namespaces here, and CI=true: %v", err)
		}
		t.Skipf("no pid namespaces here: %v", err)
	}
	t.Cleanup(func() {
		_ = h.Process.Kill()
		_ = h.Wait()
	})
	h.out = bufio.NewReader(stdout)
	for h.addr == "" {
		line, err := h.out.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended before it listened: %v", err)
		}
		_, h.addr, _ = strings.Cut(strings.TrimSpace(line), "listening on ")
	}
	return h
}

// alive counts the harness's processes that are no zombies.
func (h *harness) alive() (n int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if exe, err := os.Readlink(dir + "/exe"); err == nil && exe == h.exe {
			n++
		}
	}
	return n
}

// ask gets a path of the harness itself.
func (h *harness) ask(method, path string, body io.Reader) (*http.Response, []byte) {
	h.Helper()
	r, err := http.NewRequest(method, "http://"+h.addr+path, body)
	if err != nil {
		h.Fatal(err)
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatal(err)
	}
	return resp, data
}

// value is the result of a look.
func (h *harness) value(method, path string) (out struct {
	OK    bool
	Value any
	Error string
}) {
	h.Helper()
	_, data := h.ask(method, path, strings.NewReader("text"))
	if err := json.Unmarshal(data, &out); err != nil {
		h.Fatalf("%s: %q: %v", path, data, err)
	}
	return out
}

func TestHarness_Looks(t *testing.T) {
	h := startHarness(t, []string{"A=1"}, "-udp", "127.0.0.1:0")
	if resp, body := h.ask("GET", "/health", nil); resp.StatusCode != 200 || string(body) != "{\"ok\":true}\n" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if _, body := h.ask("GET", "/environment", nil); !bytes.Contains(body, []byte(`{"A":"1"}`)) {
		t.Errorf("environment %s", body)
	}
	if _, body := h.ask("GET", "/process", nil); !bytes.Contains(body, []byte(`"pid":1,`)) {
		t.Errorf("process %s", body)
	}
	file := url.QueryEscape(filepath.Join(t.TempDir(), "file"))
	for path, ok := range map[string]bool{
		"POST /write?path=" + file: true, "POST /write?path=/no/such/dir": false,
		"GET /read?path=/no/such": false, "GET /list?path=/proc/self": true, "GET /list?path=/no/such": false,
		"GET /dial?address=" + h.addr: true, "GET /dial?network=unix&address=/no/such": false,
		"GET /dial?address=" + h.addr + "&send=" + url.QueryEscape("GET /health HTTP/1.0\r\n\r\n"): true,
		"GET /fetch?url=" + url.QueryEscape("http://"+h.addr+"/health"):                            true,
		"GET /drain?address=127.0.0.1:1":                                                           false, "GET /drain?address=a:1&proxy=" + h.addr: false,
		"POST /signal?pid=0": false, "POST /signal?pid=1&signal=0": true, "POST /trace?pid=0": false,
	} {
		method, path, _ := strings.Cut(path, " ")
		if got := h.value(method, path); got.OK != ok {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := h.value("GET", "/read?path="+file); got.Value != "text" {
		t.Errorf("what was written: %+v", got)
	}
}

func TestHarness_Drains(t *testing.T) {
	h := startHarness(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Write(make([]byte, 1<<20))
			c.Close()
		}
	}()
	if got := h.value("GET", "/drain?address="+l.Addr().String()); !got.OK || got.Value.(map[string]any)["bytes"] != float64(1<<20) {
		t.Errorf("%+v", got)
	}
	if _, body := h.ask("GET", "/events?count=1&stamp=1", nil); !bytes.HasPrefix(body, []byte("id: 1\ndata: 1")) || len(body) < 30 {
		t.Errorf("%q", body)
	}
}

func TestHarness_Children(t *testing.T) {
	h := startHarness(t, nil, "-children", "plain,setsid,fork", "-deaf", "-child-listen", "127.0.0.1:0")
	testkit.Eventually(t, patience, func() bool { return h.alive() == 4 }, "three descendants")
	if err := h.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.ask("GET", "/health", nil) // it lives
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() bool { return h.alive() == 0 }, "nobody is left")

	for _, kind := range []string{"respawn", "stopped", "what"} {
		var stderr bytes.Buffer
		if code := run([]string{"-children", kind}, io.Discard, &stderr); code != 1 {
			t.Errorf("%s: exit %d", kind, code)
		}
	}
	contained := startHarness(t, []string{"STATION_ID=stn_test"}, "-children", "respawn,stopped")
	testkit.Eventually(t, patience, func() bool { return contained.alive() >= 2 }, "it has children")
	_ = contained.Process.Kill()
	testkit.Eventually(t, patience, func() bool { return contained.alive() == 0 }, "nobody is left")
}

func TestHarness_Ends(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		end  func(*harness)
		code int
	}{
		"TERM":   {[]string{"-term-exit", "7"}, func(h *harness) { _ = h.Process.Signal(syscall.SIGTERM) }, 7},
		"asked":  {nil, func(h *harness) { h.ask("POST", "/exit?code=5", nil) }, 5},
		"itself": {[]string{"-exit-after", "50ms", "-exit", "3"}, func(*harness) {}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHarness(t, nil, tc.args...)
			tc.end(h)
			_, _ = io.Copy(io.Discard, h.out)
			_ = h.Wait()
			if code := h.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("exit %d, want %d", code, tc.code)
			}
		})
	}
}

func TestHarness_Talks(t *testing.T) {
	h := startHarness(t, []string{"S=secret value"}, "-print", "it is ", "-print-env", "S", "-repeat", "2", "-flood", "100", "-exit-after", "200ms", "-ready-after", "50ms")
	out, err := io.ReadAll(h.out)
	all := string(out)
	if err != nil || !strings.Contains(all, "flood") && len(all) > 1000 {
		t.Errorf("%v, %q", err, all)
	}
	var stderr bytes.Buffer
	for _, args := range [][]string{{"-nonsense"}, {"extra"}} {
		if code := run(args, io.Discard, &stderr); code != 2 {
			t.Errorf("%v: exit %d", args, code)
		}
	}
}

// Proves station 17.Z3 (gate side): the harness's misbehaviour at the other end of
// a gate. What passes, and what of it, is what the gate's own tests say.
func TestHarness_BehindGate(t *testing.T) {
	h := startHarness(t, []string{"TOKEN=daemon-own-credential"}, "-guard", "basic:agent", "-guard-env", "TOKEN")
	send := behindGate(t, h)
	for _, tc := range []struct {
		method, path string
		status       int
		body         string // part of it; "!" in front: broken off
	}{
		{"GET", "/health", 200, `{"ok":true}`},
		{"POST", "/echo", 200, "the body"},
		{"GET", "/headers?a=b", 200, `"target":"/headers?a=b"`},
		{"GET", "/events?count=2", 200, "id: 2\ndata: x\n\n"},
		{"GET", "/events?count=1&end=crlf", 200, "id: 1\r\ndata: x\r\n\r\n"},
		{"GET", "/events?count=1&size=2000000", 200, `"reason":"event_too_large"`},
		{"GET", "/status?code=503", 503, ""},
		{"GET", "/status?code=401", 502, "daemon_auth_failed"},
		{"GET", "/redirect?to=/health", 302, ""},
		{"GET", "/redirect?to=http://evil/", 502, "redirect_outside"},
		{"GET", "/cookies", 200, "<script>1</script>"},
		{"GET", "/interim", 200, "body"},
		{"GET", "/slow?for=10ms", 200, `{"ok":true}`},
		{"GET", "/cut", 200, "!"},
		{"GET", "/raw?text=nonsense", 502, "daemon_unreachable"},
		{"GET", "/nothing", 404, ""},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			resp, body, err := send(tc.method, tc.path)
			if broken := tc.body == "!"; broken != (err != nil) {
				t.Fatalf("%q, %v", body, err)
			} else if !broken && (resp.StatusCode != tc.status || !strings.Contains(body, tc.body)) {
				t.Errorf("%d %.200q, want %d with %s", resp.StatusCode, body, tc.status, tc.body)
			}
			for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin", "Server", "Www-Authenticate", "Trailer"} {
				if v := resp.Header.Get(name); v != "" || len(resp.Trailer) > 0 {
					t.Errorf("%s: %s, trailers %v", name, v, resp.Trailer)
				}
			}
		})
	}
}

// behindGate opens a gate to a harness and gives what sends a request through it.
func behindGate(t *testing.T, h *harness) func(method, path string) (*http.Response, string, error) {
	t.Helper()
	auth := gatetest.New()
	auth.Ready("local", "ada", "stn_x", "lse_x")
	bearer := auth.Principal("local", "ada")
	auth.Role("stn_x", "ada", "owner")
	ticket := auth.Issue(gate.Ticket{ID: "tkt_x", Principal: "ada", Station: "stn_x", Attempt: 1, Prefix: "/", ExpiresAt: time.Now().Add(time.Hour)})
	l, err := gate.Listen(gate.DefaultListen)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(gate.Options{Listeners: []net.Listener{l}, Authorizer: auth, Changes: auth.Changes()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	credential, err := gate.ParseCredential("basic:agent", redact.NewSecret("daemon-own-credential"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(h.addr)
	number, _ := strconv.Atoi(port)
	if _, err := g.Open(gate.Bridge{
		Station: "stn_x", Attempt: 1, Port: number, Credential: credential,
		Dial: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", h.addr) },
	}); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(method, path string) (*http.Response, string, error) {
		t.Helper()
		var sent io.Reader
		if method == "POST" {
			sent = strings.NewReader("the body")
		}
		r, err := http.NewRequest(method, "http://"+l.Addr().String()+gate.BridgePath("stn_x", 1)+path, sent)
		if err != nil {
			t.Fatal(err)
		}
		r.Close = true
		r.Header.Set("Authorization", "Bearer "+bearer)
		r.Header.Set("Drawbridge-Ticket", ticket)
		resp, err := client.Do(r)
		if err != nil {
			return &http.Response{}, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp, string(body), err
	}
}

// A child that should listen and does not is no secret: the harness ends, and says why.
func TestChild_DoesNotListen(t *testing.T) {
	path := testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo")
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-children", "fork", "-child-listen", "192.0.2.1:9")
	cmd.Env = []string{}
	said, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(said), "the child of kind fork does not listen: listen tcp 192.0.2.1:9") {
		t.Errorf("%d: %s", code, said)
	}
}
