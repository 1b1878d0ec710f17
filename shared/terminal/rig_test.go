package terminal_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/term"

	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// The test binary plays the programs in the panes and the holders of locks:
// roleVar names the part.
const (
	roleVar = "TERMINAL_TEST_ROLE"
	fileVar = "TERMINAL_TEST_FILE"
	textVar = "TERMINAL_TEST_TEXT"
	patient = 20 * time.Second
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVar); role {
	case "":
	case "record":
		record()
	case "hold":
		hold()
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
	testkit.Leak(m)
}

// record puts its terminal into raw mode, asks for bracketed paste if the file's
// name says so, shows a text, and appends every byte it gets to the file.
func record() {
	path := os.Getenv(fileVar)
	if _, err := term.MakeRaw(0); err != nil {
		os.Exit(3)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(4)
	}
	if strings.HasSuffix(path, ".bracket") {
		fmt.Print("\x1b[?2004h")
	}
	fmt.Print(os.Getenv(textVar) + "READY")
	_, _ = io.Copy(out, os.Stdin)
	os.Exit(0)
}

// A server is one real tmux server on a private socket.
type server struct {
	t      testing.TB
	socket string
}

// socketDir is short: a socket path has 107 bytes.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "dbt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// startServer starts a server with one session; it dies with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	return startServerAt(t, filepath.Join(socketDir(t), "s"), args...)
}

func startServerAt(t testing.TB, socket string, args ...string) *server {
	t.Helper()
	testkit.Need(t, "tmux")
	s := &server{t: t, socket: socket}
	if len(args) == 0 {
		args = []string{"-s", "main", "-x", "80", "-y", "24", "cat"}
	}
	s.tmux(append([]string{"-f", "/dev/null", "new-session", "-d"}, args...)...)
	inc, err := process.Of(s.pid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if inc.Alive() {
			_ = s.command("kill-server").Run()
		}
		eventually(t, "the tmux server has ended", func() bool { return !inc.Alive() })
	})
	return s
}

func (s *server) command(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append([]string{"-u", "-S", s.socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm", "HOME=/nonexistent", "SHELL=/bin/sh"}
	return cmd
}

func (s *server) tmux(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (s *server) pid() int {
	s.t.Helper()
	var pid int
	if _, err := fmt.Sscan(s.tmux("display-message", "-p", "#{pid}"), &pid); err != nil {
		s.t.Fatal(err)
	}
	return pid
}

func (s *server) client() *terminal.Tmux {
	return terminal.New(terminal.Options{Sockets: []string{s.socket}})
}

// panes lists the server's panes and demands that nothing else happened.
func (s *server) panes() []terminal.Pane {
	s.t.Helper()
	got, err := s.client().Panes(context.Background())
	if err != nil || len(got.Errors) > 0 {
		s.t.Fatalf("Panes: %v, %v", err, got.Errors)
	}
	return got.Panes
}

func (s *server) pane(id string) terminal.Pane {
	s.t.Helper()
	for _, p := range s.panes() {
		if p.ID == id {
			return p
		}
	}
	s.t.Fatalf("no pane %s", id)
	return terminal.Pane{}
}

// recorder is the part of a pane's program.
type recorder struct {
	s    *server
	pane terminal.Pane
	file string
}

// startRecorder starts a server whose first pane records.
func startRecorder(t testing.TB, bracket bool) recorder {
	t.Helper()
	s := startServer(t)
	s.tmux("set-option", "-g", "remain-on-exit", "on")
	return s.addRecorder(bracket, "")
}

// addRecorder opens a window with a recorder and waits until it reads.
func (s *server) addRecorder(bracket bool, text string) recorder {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "input")
	if bracket {
		file += ".bracket"
	}
	id := s.tmux(append([]string{"new-window", "-d", "-P", "-F", "#{pane_id}"}, recordArgs(file, text)...)...)
	s.waitFor(id, "READY")
	return recorder{s: s, pane: s.pane(id), file: file}
}

func recordArgs(file, text string) []string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{"-e", roleVar + "=record", "-e", fileVar + "=" + file, "-e", textVar + "=" + text, exe}
}

// waitFor waits until the pane shows text.
func (s *server) waitFor(id, text string) {
	s.t.Helper()
	eventually(s.t, "pane "+id+" shows "+text, func() bool {
		return strings.Contains(s.tmux("capture-pane", "-p", "-t", id), text)
	})
}

// expect waits for exactly want in the recorder's file.
func (r recorder) expect(want string) {
	r.s.t.Helper()
	var got []byte
	eventually(r.s.t, "the recorder has its input", func() bool {
		got, _ = os.ReadFile(r.file)
		return len(got) >= len(want)
	})
	if string(got) != want {
		r.s.t.Fatalf("recorded %q, want %q", clip(got), clip([]byte(want)))
	}
}

// expectNothingMore proves that no byte is under way: a key that is pressed by
// other means afterwards is the next thing recorded.
func (r recorder) expectNothingMore(before string) {
	r.s.t.Helper()
	r.s.tmux("send-keys", "-t", r.pane.ID, "Z")
	r.expect(before + "Z")
	if err := os.Truncate(r.file, 0); err != nil {
		r.s.t.Fatal(err)
	}
}

func (r recorder) buffers() string { return r.s.tmux("list-buffers", "-F", "#{buffer_name}") }

func clip(b []byte) string {
	if len(b) > 400 {
		return fmt.Sprintf("%s … (%d bytes)", b[:400], len(b))
	}
	return string(b)
}

// hold is the part of a lock's holder: it says so, starts a child if asked, and
// waits for the end of its input.
func hold() {
	dir, key, _ := strings.Cut(os.Getenv(fileVar), "|")
	lock, err := terminal.Lock(context.Background(), dir, key, patient)
	if err != nil {
		fmt.Println(err)
		os.Exit(5)
	}
	if rec := os.Getenv(textVar); rec == "child" {
		child := exec.Command("sleep", "300")
		if err := child.Start(); err != nil {
			os.Exit(6)
		}
		fmt.Println("child", child.Process.Pid)
	}
	signal.Ignore(syscall.SIGHUP)
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	lock.Unlock()
	os.Exit(0)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, patient, ok, what)
}

func lines(b []byte) int { return bytes.Count(b, []byte("\n")) }
