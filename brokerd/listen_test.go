package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

// opens reports whether something listens at an address of this machine.
func opens(host string, port int64) bool {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.FormatInt(port, 10)), time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func (w *world) endpoint() store.Endpoint {
	w.t.Helper()
	all, err := w.Endpoints(context.Background())
	if err != nil || len(all) != 1 {
		w.t.Fatalf("endpoints: %+v, %v", all, err)
	}
	return all[0]
}

// Proves broker 18.29: with a native engine auto binds the gateway of the workers'
// network and nothing else; all binds everything.
func TestListen_Auto(t *testing.T) {
	host := dockertest.Host(t)
	name := fmt.Sprintf("drawbridge-test-auto-%d", os.Getpid())
	t.Cleanup(func() { dockertest.Try(t, "DELETE", "/networks/"+name, nil) })
	w := newWorld(t)
	d := w.serve("-listen", "auto", "-docker-host", host, "-network", name)
	e := w.endpoint()
	if e.BindReason != "auto: gateway of network "+name || net.ParseIP(e.BindAddress) == nil {
		t.Errorf("got %+v", e)
	}
	if !opens(e.BindAddress, e.Port) || opens("127.0.0.1", e.Port) || opens("::1", e.Port) {
		t.Errorf("gateway open %t, loopback open %t, want the gateway alone", opens(e.BindAddress, e.Port), opens("127.0.0.1", e.Port))
	}
	var found []struct {
		Name     string
		Internal bool
	}
	dockertest.Call(t, "GET", "/networks?filters="+`%7B%22name%22%3A%5B%22`+name+`%22%5D%7D`, nil, &found)
	if len(found) != 1 || !found[0].Internal {
		t.Errorf("network: %+v", found)
	}
	d.signal(syscall.SIGKILL).exits(-1)
	again := w.serve("-listen", "auto", "-docker-host", host, "-network", name) // the network is there, and the port is taken again
	if next := w.endpoint(); next.BindAddress != e.BindAddress || next.Port != e.Port {
		t.Errorf("after a crash: %s %d, want %s %d", next.BindAddress, next.Port, e.BindAddress, e.Port)
	}
	again.signal(syscall.SIGTERM).exits(0)
	w.serve("-listen", "all")
	all := w.endpoint()
	if !opens(e.BindAddress, all.Port) || !opens("127.0.0.1", all.Port) {
		t.Error("all does not listen everywhere")
	}
}

// Without an engine auto listens everywhere, and says so in one warning.
func TestListen_AutoWithoutEngine(t *testing.T) {
	w := newWorld(t)
	d := w.serve("-listen", "auto", "-docker-host", "unix:///nonexistent/docker.sock")
	if e := w.endpoint(); !strings.Contains(e.BindReason, "no container engine answers") || !opens("127.0.0.1", e.Port) {
		t.Errorf("got %+v", e)
	}
	d.signal(syscall.SIGTERM).exits(0)
	if n := strings.Count(d.out.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, d.out.String())
	}
}

// A socket file is private, answers, takes the place of a dead one, is not taken
// from a living one, and is gone after the stop.
func TestListen_Socket(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(testkit.RuntimeDir(t), "b", "b.sock")
	d := w.serve("-listen", "unix:"+path, "-relay-port", "8788", "-listen", "127.0.0.1")
	g := w.lend(func(n *store.NewGrant) { n.Request.Endpoint = store.EndpointUnix })
	if g.BaseURL != "http://host.docker.internal:8788" || g.BindAddress != "unix:"+path {
		t.Errorf("got %s at %s", g.BaseURL, g.BindAddress)
	}
	for p, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if st, err := os.Lstat(p); err != nil || st.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", p, st.Mode(), err, want)
		}
	}
	g.postBySocket(path, 200)
	if other := w.lend(nil); strings.HasSuffix(other.BaseURL, ":8788") {
		t.Errorf("a grant for TCP got %s", other.BaseURL)
	}
	x := newWorld(t)
	x.start(false, "-listen", "unix:"+path).exits(69)
	d.signal(syscall.SIGKILL).exits(-1)
	next := w.serve("-listen", "unix:"+path, "-relay-port", "8788", "-listen", "127.0.0.1")
	g.postBySocket(path, 200) // the grant goes on
	next.signal(syscall.SIGTERM).exits(0)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start(false, "-listen", "unix:"+path).exits(69)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a file that is no socket was removed: %v", err)
	}
}

func (l lent) postBySocket(path string, want int) {
	l.w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	req, err := http.NewRequest(http.MethodPost, "http://host.docker.internal/responses", strings.NewReader(body))
	if err != nil {
		l.w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.capability)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		l.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); resp.StatusCode != want || err != nil {
		l.w.t.Errorf("got %d, %s, %v", resp.StatusCode, data, err)
	}
}

// Socket activation: the listener is the service manager's, and -listen must not be
// given besides.
func TestListen_Inherited(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	activated := func(args ...string) *exec.Cmd {
		program := testkit.BuildProgram(t, "brokerd", crashTag)
		// The variable must name the process itself; the shell becomes it.
		cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, program, "serve", "-store-dir", w.dir, "-test-upstream", w.URL}, args...)...)
		cmd.Env = []string{"HOME=" + w.home, "LISTEN_FDS=1", "PATH=" + os.Getenv("PATH")}
		cmd.ExtraFiles = []*os.File{file}
		return cmd
	}
	refused := activated("-listen", "127.0.0.1")
	if out, err := refused.CombinedOutput(); err == nil || refused.ProcessState.ExitCode() != 2 {
		t.Errorf("both: got %v: %s", err, out)
	}
	cmd := activated()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	g := w.lend(nil)
	if want := int64(l.Addr().(*net.TCPAddr).Port); w.endpoint().Port != want || w.endpoint().BindReason != "inherited" {
		t.Errorf("got %+v, want port %d", w.endpoint(), want)
	}
	g.post(200)
}
