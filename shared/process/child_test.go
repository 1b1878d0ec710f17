package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
)

const sh = "/bin/sh"

func TestMain(m *testing.M) { testkit.Leak(m) }

// shell is a child that runs a script.
func shell(script string) process.Spec {
	return process.Spec{Path: sh, Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Timeout: 20 * time.Second}
}

// reap kills a descendant that a test made on purpose, by the pid it printed.
func reap(t *testing.T, text []byte) process.Incarnation {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("no pid in %q", text)
	}
	inc, err := process.Of(pid)
	if err != nil {
		return process.Incarnation{}
	}
	t.Cleanup(func() { _ = process.Signal(inc, unix.SIGKILL) })
	return inc
}

func TestRun_Ends(t *testing.T) {
	for _, tc := range []struct {
		name   string
		spec   process.Spec
		exit   int
		signal string
		limit  process.Limit
		stdout string
		stderr string
	}{
		{name: "success", spec: shell("echo out; echo err >&2"), stdout: "out\n", stderr: "err\n"},
		{name: "status", spec: shell("echo out; exit 7"), exit: 7, stdout: "out\n"},
		{name: "signal", spec: shell("echo out; kill -TERM $$"), exit: -1, signal: "SIGTERM", stdout: "out\n"},
		{name: "exactly the cap", spec: with(shell("printf 12345; printf 123 >&2"), func(s *process.Spec) { s.MaxStdout, s.MaxStderr = 5, 3 }), stdout: "12345", stderr: "123"},
		{name: "stdout beyond the cap", spec: with(shell("printf 123456; sleep 60"), func(s *process.Spec) { s.MaxStdout = 5 }), exit: -1, signal: "SIGKILL", limit: process.StdoutTooBig, stdout: "12345"},
		{name: "stderr beyond the cap", spec: with(shell("printf 1234 >&2; sleep 60"), func(s *process.Spec) { s.MaxStderr = 3 }), exit: -1, signal: "SIGKILL", limit: process.StderrTooBig, stderr: "123"},
		{name: "endless output", spec: with(shell("while :; do echo xxxxxxxx; done"), func(s *process.Spec) { s.MaxStdout = 10 }), exit: -1, signal: "SIGKILL", limit: process.StdoutTooBig, stdout: "xxxxxxxx\nx"},
		{name: "timeout", spec: with(shell("echo out; sleep 60"), func(s *process.Spec) { s.Timeout = 300 * time.Millisecond }), exit: -1, signal: "SIGKILL", limit: process.TimedOut, stdout: "out\n"},
		{name: "timeout, TERM ignored", spec: with(shell("trap '' TERM INT HUP; echo out; while :; do sleep 1; done"), func(s *process.Spec) { s.Timeout = 300 * time.Millisecond }), exit: -1, signal: "SIGKILL", limit: process.TimedOut, stdout: "out\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := process.Run(t.Context(), tc.spec)
			if res.Err != nil || !res.Ran {
				t.Fatalf("ran %v, err %v", res.Ran, res.Err)
			}
			if res.Exit != tc.exit || res.Signal != tc.signal || res.Limit != tc.limit {
				t.Errorf("exit %d, signal %q, limit %q, want %d, %q, %q", res.Exit, res.Signal, res.Limit, tc.exit, tc.signal, tc.limit)
			}
			if string(res.Stdout) != tc.stdout || string(res.Stderr) != tc.stderr {
				t.Errorf("stdout %q, stderr %q, want %q, %q", res.Stdout, res.Stderr, tc.stdout, tc.stderr)
			}
			if res.OK() != (tc.exit == 0 && tc.limit == "") {
				t.Errorf("OK = %v", res.OK())
			}
			if res.Elapsed > 10*time.Second {
				t.Errorf("took %v", res.Elapsed)
			}
		})
	}
}

func with(s process.Spec, f func(*process.Spec)) process.Spec { f(&s); return s }

// A child that exits at once after too much output is over the cap as well,
// whether the reader saw the overflow before the exit or after it.
func TestRun_OverflowAtExit(t *testing.T) {
	for i := range 20 {
		res := process.Run(t.Context(), with(shell("printf 123456"), func(s *process.Spec) { s.MaxStdout = 5 }))
		if res.Limit != process.StdoutTooBig || string(res.Stdout) != "12345" {
			t.Fatalf("round %d: limit %q, stdout %q", i, res.Limit, res.Stdout)
		}
	}
}

// Proves host-profile 15.27 for the environment: exactly what is given, nothing
// of ours, and nil is empty.
func TestRun_Environment(t *testing.T) {
	t.Setenv("DRAWBRIDGE_CANARY", "must-not-leak")
	env := []string{"B=2", "A=one word\nand a line"}
	got := process.Run(t.Context(), process.Spec{Path: "/usr/bin/env", Args: []string{"-0"}, Env: env})
	if want := "B=2\x00A=one word\nand a line\x00"; string(got.Stdout) != want {
		t.Errorf("environment %q, want %q", got.Stdout, want)
	}
	for name, env := range map[string][]string{"nil": nil, "empty": {}} {
		got := process.Run(t.Context(), process.Spec{Path: "/usr/bin/env", Args: []string{"-0"}, Env: env})
		if !got.OK() || len(got.Stdout) != 0 {
			t.Errorf("%s: environment %q, %+v", name, got.Stdout, got)
		}
	}
}

// Proves host-profile 15.28: the body reaches stdin byte for byte.
func TestRun_Stdin(t *testing.T) {
	body := bytes.Repeat([]byte("$(touch x) `y` \"q\" 'r'\n\x00\xff€;|&"), 1<<20/32)
	got := process.Run(t.Context(), process.Spec{Path: "/bin/cat", Stdin: body, MaxStdout: len(body)})
	if !got.OK() || !bytes.Equal(got.Stdout, body) {
		t.Errorf("%d of %d bytes came back, %+v", len(got.Stdout), len(body), got.Err)
	}
	empty := process.Run(t.Context(), process.Spec{Path: "/bin/cat"})
	if !empty.OK() || len(empty.Stdout) != 0 {
		t.Errorf("without input: %+v", empty)
	}
	unread := process.Run(t.Context(), with(shell("exec 0<&-; echo done"), func(s *process.Spec) { s.Stdin = body }))
	if !unread.OK() || string(unread.Stdout) != "done\n" {
		t.Errorf("input not read: %+v", unread)
	}
}

func TestRun_Group(t *testing.T) {
	got := process.Run(t.Context(), shell("ps -o pid=,pgid= -p $$; pwd"))
	var pid, pgid int
	var dir string
	if _, err := fmt.Sscan(string(got.Stdout), &pid, &pgid, &dir); err != nil || pid != pgid || dir != "/" {
		t.Errorf("pid %d, group %d, directory %q, %v", pid, pgid, dir, err)
	}
}

func TestRun_NeverRan(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("\x7fELF not really"), 0o755); err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(dir, "busy")
	f, err := os.OpenFile(busy, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name        string
		ctx         context.Context
		path        string
		args        []string
		unavailable bool
	}{
		{name: "missing", path: filepath.Join(dir, "no"), unavailable: true},
		{name: "below a file", path: filepath.Join(plain, "x"), unavailable: true},
		{name: "not executable", path: plain, unavailable: true},
		{name: "directory", path: dir, unavailable: true},
		{name: "relative", path: "sh", unavailable: true},
		{name: "not a program", path: broken},
		{name: "being written", path: busy},
		{name: "arguments too long", path: sh, args: []string{strings.Repeat("x", 8<<20)}},
		{name: "context done", ctx: cancelled, path: sh},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			started := false
			res := process.Run(ctx, process.Spec{Path: tc.path, Args: tc.args, Started: func(process.Incarnation) { started = true }})
			var start *process.StartError
			if res.Ran || started || !errors.As(res.Err, &start) {
				t.Fatalf("ran %v, started %v, err %v", res.Ran, started, res.Err)
			}
			if start.Unavailable() != tc.unavailable {
				t.Errorf("%v: unavailable = %v, want %v", start, start.Unavailable(), tc.unavailable)
			}
			if res.OK() || res.Exit != -1 || len(res.Err.Error()) > 300 {
				t.Errorf("exit %d, error of %d bytes", res.Exit, len(res.Err.Error()))
			}
		})
	}
}

// Proves host-profile 15.29: a grandchild in the group is gone within a second
// of the timeout.
func TestRun_TimeoutEndsGroup(t *testing.T) {
	res := process.Run(t.Context(), with(shell("sleep 60 & echo $!; wait"), func(s *process.Spec) { s.Timeout = 300 * time.Millisecond }))
	if res.Limit != process.TimedOut || res.Elapsed > 1300*time.Millisecond {
		t.Errorf("limit %q after %v", res.Limit, res.Elapsed)
	}
	grandchild := reap(t, res.Stdout)
	testkit.Eventually(t, time.Second, func() bool {
		gone, known := grandchild.Gone()
		return grandchild.IsZero() || (gone && known)
	})
}

// A grandchild in a session of its own survives the group kill and must not
// hold Run back.
func TestRun_TimeoutDoesNotWaitForEscaped(t *testing.T) {
	testkit.Need(t, "setsid")
	res := process.Run(t.Context(), with(shell("setsid sh -c 'echo $$; exec sleep 60' & wait"), func(s *process.Spec) { s.Timeout = 500 * time.Millisecond }))
	if res.Limit != process.TimedOut || !res.Held || res.Elapsed > 2*time.Second {
		t.Errorf("limit %q, held %v after %v", res.Limit, res.Held, res.Elapsed)
	}
	reap(t, res.Stdout)
}

func TestRun_Cancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	res := process.Run(ctx, with(shell("echo out; sleep 60"), func(s *process.Spec) {
		s.Started = func(inc process.Incarnation) {
			if inc.PID == 0 {
				t.Error("no incarnation")
			}
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	}))
	if res.Limit != process.Cancelled || res.Signal != "SIGKILL" || res.Elapsed > 5*time.Second {
		t.Errorf("limit %q, signal %q after %v", res.Limit, res.Signal, res.Elapsed)
	}
}

// After a clean exit a descendant that holds stdout is left alone, and is waited
// for only as long as the answer may still come (dryrun §6).
func TestRun_DescendantHoldsStdout(t *testing.T) {
	whole := func(b []byte) bool { return bytes.HasSuffix(b, []byte("}\n")) }
	const delay = 600 * time.Millisecond
	for _, tc := range []struct {
		name     string
		script   string
		complete func([]byte) bool
		want     string
		atLeast  time.Duration
		atMost   time.Duration
	}{
		{"whole answer: at once", `sleep 60 & echo $! >&2; echo '{"a":1}'`, whole, "{\"a\":1}\n", 0, delay - 100*time.Millisecond},
		{"answer not whole: the delay", `sleep 60 & echo $! >&2; echo '{"a":'`, whole, "{\"a\":\n", delay, 5 * time.Second},
		{"nobody can tell: the delay", `sleep 60 & echo $! >&2; echo '{"a":1}'`, nil, "{\"a\":1}\n", delay, 5 * time.Second},
		{"rest comes from the descendant", `(sleep 0.2; echo '1}'; exec sleep 60) & echo $! >&2; printf '{"a":'`, whole, "{\"a\":1}\n", 150 * time.Millisecond, delay - 100*time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := shell(tc.script)
			spec.Complete, spec.WaitDelay = tc.complete, delay
			res := process.Run(t.Context(), spec)
			alive := reap(t, res.Stderr)
			if res.Exit != 0 || res.Limit != process.None || string(res.Stdout) != tc.want || !res.Held {
				t.Errorf("%+v, stdout %q, want %q", res, res.Stdout, tc.want)
			}
			if res.Elapsed < tc.atLeast || res.Elapsed > tc.atMost {
				t.Errorf("took %v, want %v to %v", res.Elapsed, tc.atLeast, tc.atMost)
			}
			if !alive.Alive() {
				t.Error("the descendant was killed after a clean exit")
			}
		})
	}
}

// Nothing of a child stays open or unreaped here.
func TestRun_LeavesNothing(t *testing.T) {
	before, err := process.Descriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		script := "echo x"
		if i%3 == 0 {
			script = "sleep 60"
		}
		process.Run(t.Context(), with(shell(script), func(s *process.Spec) { s.Timeout = 30 * time.Millisecond }))
	}
	after, err := process.Descriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if len(after) > len(before)+1 { // the runtime may have opened its poller
		t.Errorf("%d descriptors before, %d after: %v", len(before), len(after), after)
	}
	below, err := process.Descendants(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range below {
		t.Errorf("left: %+v", info)
	}
}

func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		if res := process.Run(b.Context(), process.Spec{Path: "/bin/true"}); !res.OK() {
			b.Fatal(res.Err)
		}
	}
}
