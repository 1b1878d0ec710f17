package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/testkit"
)

// The test binary is the shim when it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv("SHIM_TEST") == "shim" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	testkit.Leak(m)
}

const wait = 20 * time.Second

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		args   string
		exit   int
		stdout string
		stderr string // part of it
	}{
		{"version", 0, "station-shim ", ""},
		{"version --json", 0, `{"program":"station-shim","version":"`, ""},
		{"help", 0, "DESCRIPTION", ""},
		{"relay", 2, "", "relay needs -listen and -connect"},
		{"relay -listen 127.0.0.1:0", 2, "", "relay needs -listen and -connect"},
		{"relay -listen 0.0.0.0:1 -connect /x", 2, "", "want a loopback address"},
		{"relay -listen 127.0.0.1:0 -connect x", 2, "", "want the absolute path"},
		{"init", 2, "", "stationd starts it"},
		{"exec", 2, "", "exec is started by init"},
		{"lease", 2, "", "read the request"},
		{"other", 2, "", `unknown command "other"`},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit := run(t.Context(), strings.Fields(tc.args), &stdout, &stderr)
			if exit != tc.exit || !strings.HasPrefix(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, … %q …", exit, stdout.String(), stderr.String(), tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
}

// command starts the program in a process of its own.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), "SHIM_TEST=shim")
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func status(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// The status of the command is that of the relay, its arguments stay as they are
// even where they look like flags, and stdin, stdout and stderr are its own.
func TestRelay_Command(t *testing.T) {
	for _, tc := range []struct {
		name    string
		command []string
		stdin   string
		exit    int
		stdout  string
		stderr  string // part of it
	}{
		{"status", []string{"sh", "-c", "exit 7"}, "", 7, "", ""},
		{"arguments", []string{"printf", "%s,", "-listen", "--", "a b"}, "", 0, "-listen,--,a b,", ""},
		{"stdin", []string{"cat"}, "twelve", 0, "twelve", ""},
		{"stderr", []string{"sh", "-c", "echo said >&2"}, "", 0, "", "said"},
		{"signal", []string{"sh", "-c", "kill -XFSZ $$"}, "", 128 + 25, "", ""},
		{"orphan", []string{"sh", "-c", "(sh -c 'exit 3' &) ; exit 5"}, "", 5, "", ""},
		{"unknown", []string{"no-such-program"}, "", 70, "", "start no-such-program"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd, stdout, stderr := command(t, append([]string{"relay", "-listen", "127.0.0.1:0", "-connect", "/none", "--"}, tc.command...)...)
			cmd.Stdin = strings.NewReader(tc.stdin)
			exit := status(cmd.Run())
			if exit != tc.exit || stdout.String() != tc.stdout || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, … %q …", exit, stdout, stderr, tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
}

// A signal reaches the command, and what the command makes of it is the end.
func TestRelay_Signal(t *testing.T) {
	cmd, stdout, stderr := command(t, "relay", "-listen", "127.0.0.1:0", "-connect", "/none", "--",
		"sh", "-c", `trap 'echo caught; exit 9' TERM; kill -TERM $PPID; while :; do sleep 0.01; done`)
	if exit := status(cmd.Run()); exit != 9 || stdout.String() != "caught\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want 9 and caught", exit, stdout, stderr)
	}
}

// Without a command the relay serves until SIGTERM, with status 0; and what it
// serves is the socket.
func TestRelay_Serve(t *testing.T) {
	dir := testkit.RuntimeDir(t)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "model") })}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	defer serving.Wait()
	defer server.Close()

	port := freePort(t)
	cmd, _, stderr := command(t, "relay", "-listen", port, "-connect", socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait}
	var got string
	testkit.EventuallyNil(t, wait, func() error {
		resp, err := client.Get("http://" + port)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		got = string(body)
		return err
	})
	if got != "model" {
		t.Errorf("got %q through the relay, want model", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := status(cmd.Wait()); exit != 0 {
		t.Errorf("exit %d, stderr %q, want 0", exit, stderr)
	}
}

// freePort is an address that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The program that scripts/build makes needs no library, and reaches nothing of
// the Store.
func TestStatic(t *testing.T) {
	out := filepath.Join(t.TempDir(), "station-shim")
	cmd := exec.Command("go", "build", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, said)
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program names a loader")
		}
	}
	list := exec.Command("go", "list", "-deps", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	deps, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(deps)) {
		if dep == "database/sql" || strings.Contains(dep, "sqlite") || strings.HasSuffix(dep, "shared/store") {
			t.Errorf("the shim reaches %s", dep)
		}
	}
}
