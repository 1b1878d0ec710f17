package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/image"
	"drawbridge/shared/testkit"
)

// inside makes the test binary the helper in a network namespace of its own.
const inside = "ENGINE_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		if err := helper(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.Leak(m)
}

// An engine that ends, with a network and a running container in it, leaves the
// machine as it was: no interface, no firewall rule, no mount, no process, no file.
// It runs in a network namespace of its own, where no other daemon is.
func TestRun_LeavesNothing(t *testing.T) {
	testkit.Need(t, "dockerd", "ip", "iptables", "busybox", "git")
	if os.Geteuid() != 0 {
		t.Skip("only root can start an engine")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), inside+"=1", "DOCKER_HOST=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func helper() error {
	before, err := look()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var host string
	var using error
	err = engine.Run(ctx, func(at string) {
		host = at
		if second := engine.Run(ctx, func(string) {}); !errors.Is(second, engine.ErrOther) {
			using = fmt.Errorf("a second engine: got %v, want %v", second, engine.ErrOther)
		} else {
			using = use(ctx, at)
		}
		cancel()
	})
	if err := errors.Join(err, using); err != nil {
		return err
	}
	after, err := look()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(before, after); diff != "" {
		return fmt.Errorf("the machine before and after (-before +after):\n%s", diff)
	}
	dir := filepath.Dir(strings.TrimPrefix(host, "unix://"))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %v, want that it is gone", dir, err)
	}
	return gone(dir)
}

// use loads an image and leaves a network and a running container behind.
func use(ctx context.Context, host string) error {
	dir, err := os.MkdirTemp("", "engine-test-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	codex := filepath.Join(dir, "codex")
	if err := image.BuildFake(ctx, codex); err != nil {
		return err
	}
	img, err := image.New(ctx, image.Sources{Busybox: "/bin/busybox", Git: "/usr/bin/git", Codex: codex, Version: "fake", Tag: image.FakeTag})
	if err != nil {
		return err
	}
	e, err := image.NewEngine(host)
	if err != nil {
		return err
	}
	if err := e.Load(ctx, img); err != nil {
		return err
	}
	for _, request := range []struct{ path, body string }{
		{"/networks/create", `{"Name":"left","Driver":"bridge","Internal":true}`},
		{"/containers/create?name=left", `{"Image":"` + img.ID + `","Cmd":["sleep","1000"],"HostConfig":{"NetworkMode":"left"}}`},
		{"/containers/left/start", ``},
	} {
		if err := post(ctx, host, request.path, request.body); err != nil {
			return err
		}
	}
	return nil
}

func post(ctx context.Context, host, path, body string) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(host, "unix://"))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode > 299 {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, said)
	}
	return err
}

// look is what an engine could change on the machine.
func look() (map[string]string, error) {
	seen := map[string]string{}
	for name, args := range map[string][]string{
		"links":  {"ip", "-brief", "link"},
		"routes": {"ip", "route"},
		"filter": {"iptables", "-S"},
		"nat":    {"iptables", "-t", "nat", "-S"},
	} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%v: %w: %s", args, err, out)
		}
		seen[name] = string(out)
	}
	forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return nil, err
	}
	seen["forwarding"] = string(forward)
	return seen, nil
}

// gone checks that no mount and no process speaks of dir.
func gone(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	if bytes.Contains(mounts, []byte(dir)) {
		return fmt.Errorf("something is mounted below %s:\n%s", dir, mounts)
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, at := range all {
		if line, err := os.ReadFile(at); err == nil && bytes.Contains(line, []byte(dir)) {
			return fmt.Errorf("%s is still there: %q", at, line)
		}
	}
	return nil
}
