package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	e, err := engine.NewClient(host)
	if err != nil {
		return err
	}
	if err := img.Load(ctx, e); err != nil {
		return err
	}
	for _, request := range []struct{ path, body string }{
		{"/networks/create", `{"Name":"left","Driver":"bridge","Internal":true}`},
		{"/containers/create?name=left", `{"Image":"` + img.ID + `","Cmd":["sleep","1000"],"HostConfig":{"NetworkMode":"left"}}`},
		{"/containers/left/start", ``},
	} {
		if _, err := e.Call(ctx, http.MethodPost, request.path, strings.NewReader(request.body)); err != nil {
			return fmt.Errorf("%s: %w", request.path, err)
		}
	}
	return nil
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

// Engines elsewhere are not this machine's.
func TestNewClient(t *testing.T) {
	got := map[string]bool{}
	for _, host := range []string{"unix:///run/x.sock", "tcp://127.0.0.1:2375", "ssh://host", "/run/x.sock"} {
		_, err := engine.NewClient(host)
		got[host] = err == nil
	}
	want := map[string]bool{"unix:///run/x.sock": true, "tcp://127.0.0.1:2375": false, "ssh://host": false, "/run/x.sock": false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hosts that are taken (-want +got):\n%s", diff)
	}
}
