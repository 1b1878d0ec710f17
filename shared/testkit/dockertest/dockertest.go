// Package dockertest finds the Docker engine that tests use, gives it the images
// of the worker, and removes what a test made there. It speaks plain HTTP on the
// engine's socket: no test needs the engine's client library for that.
//
// The engine is the one of DOCKER_HOST, else that of /var/run/docker.sock. When
// none answers a test is skipped with the reason; with CI=true it fails, since a
// skipped test would prove nothing there. scripts/test starts an engine of its
// own when there is none.
package dockertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/testkit"
)

const (
	defaultHost = "unix:///var/run/docker.sock"
	// timeout bounds one call.
	timeout = 30 * time.Second
	// loadTimeout bounds building and loading an image: 315 MB of Codex on a
	// machine that does much else.
	loadTimeout = 5 * time.Minute
	maxAnswer   = 16 << 20
)

// Host is the engine as DOCKER_HOST has it. It skips the test when none answers.
func Host(tb testing.TB) string {
	tb.Helper()
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = defaultHost
	}
	if err := ping(host); err != nil {
		missing(tb, fmt.Sprintf("no Docker engine answers at %s: %v", host, err))
	}
	return host
}

func missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(why + ", and CI=true")
	}
	tb.Skip(why)
}

var pinged sync.Map // host → true: an engine that answered is not asked again

func ping(host string) error {
	if _, ok := pinged.Load(host); ok {
		return nil
	}
	status, body, err := call(host, http.MethodGet, "/_ping", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body)
	}
	pinged.Store(host, true)
	return nil
}

// Call makes one request of the API and decodes the answer into v, which may be
// nil. It fails the test when the engine refuses.
func Call(tb testing.TB, method, path string, body, v any) {
	tb.Helper()
	status, answer := Try(tb, method, path, body)
	if status < 200 || status > 299 {
		tb.Fatalf("engine: %s %s: status %d: %s", method, path, status, answer)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(answer, v); err != nil {
		tb.Fatalf("engine: %s %s: %v in %s", method, path, err, answer)
	}
}

// Try is Call that leaves it to the test what a refusal means.
func Try(tb testing.TB, method, path string, body any) (status int, answer []byte) {
	tb.Helper()
	var in []byte
	if body != nil {
		var err error
		if in, err = json.Marshal(body); err != nil {
			tb.Fatal(err)
		}
	}
	status, answer, err := call(Host(tb), method, path, in)
	if err != nil {
		tb.Fatalf("engine: %s %s: %v", method, path, err)
	}
	return status, answer
}

func call(host, method, path string, body []byte) (int, []byte, error) {
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return 0, nil, errors.New("want unix:// and the path of a socket")
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequest(method, "http://engine"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, answer, err
}

// FakeImage is the id of the image whose codex does what its prompt says
// (scripts/internal/fakecodex lists the words), loaded into the engine.
func FakeImage(tb testing.TB) string {
	tb.Helper()
	return loaded(tb, "-fake")
}

// WorkerImage is the id of the image with the pinned Codex, loaded into the
// engine. It skips the test when Codex is not installed (scripts/setup).
func WorkerImage(tb testing.TB) string {
	tb.Helper()
	const variable = "DRAWBRIDGE_CODEX_0_171_0"
	if path := os.Getenv(variable); path == "" {
		missing(tb, variable+" names no Codex; scripts/setup prints it")
	} else if _, err := os.Stat(path); err != nil {
		missing(tb, fmt.Sprintf("%s names no Codex: %v", variable, err))
	}
	return loaded(tb)
}

// images remembers what this test process loaded, by flags.
var images = struct {
	sync.Mutex
	ids map[string]string
}{ids: map[string]string{}}

func loaded(tb testing.TB, flags ...string) string {
	tb.Helper()
	host := Host(tb)
	testkit.Need(tb, "busybox", "git")
	images.Lock()
	defer images.Unlock()
	key := strings.Join(flags, " ")
	if id, ok := images.ids[key]; ok {
		return id
	}
	// The tool loads only what the engine does not have yet.
	program := testkit.BuildProgram(tb, "scripts/cmd/workerimage")
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(flags, "-load", "-host", host)...)
	cmd.Dir = testkit.Root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("worker-image %s: %v\n%s", key, err, stderr.String())
	}
	id := strings.TrimSpace(string(out))
	images.ids[key] = id
	return id
}

// Sweep removes, at the end of the test, all containers and then all networks
// that carry the label ("name=value").
func Sweep(tb testing.TB, label string) {
	tb.Helper()
	filter := url.QueryEscape(`{"label":["` + label + `"]}`)
	tb.Cleanup(func() {
		var containers []struct{ ID string }
		Call(tb, http.MethodGet, "/containers/json?all=1&filters="+filter, nil, &containers)
		for _, c := range containers {
			if status, said := Try(tb, http.MethodDelete, "/containers/"+c.ID+"?force=1&v=1", nil); status != http.StatusNoContent && status != http.StatusNotFound {
				tb.Errorf("remove container %s: status %d: %s", c.ID, status, said)
			}
		}
		var networks []struct{ ID string }
		Call(tb, http.MethodGet, "/networks?filters="+filter, nil, &networks)
		for _, n := range networks {
			if status, said := Try(tb, http.MethodDelete, "/networks/"+n.ID, nil); status != http.StatusNoContent && status != http.StatusNotFound {
				tb.Errorf("remove network %s: status %d: %s", n.ID, status, said)
			}
		}
	})
}

// Relay is the path of the static program that carries the worker's connections
// in the socket network.
func Relay(tb testing.TB) string {
	tb.Helper()
	return testkit.BuildStatic(tb, "stationd/shim")
}
