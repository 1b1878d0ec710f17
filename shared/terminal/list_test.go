package terminal_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

func TestPanes_Facts(t *testing.T) {
	s := startServer(t, "-s", "main", "-x", "90", "-y", "30", "cat")
	s.tmux("split-window", "-d", "-t", "%0", "cat")
	s.tmux("new-session", "-d", "-s", "small", "-x", "20", "-y", "5", "cat")
	s.tmux("copy-mode", "-t", "%2")
	s.tmux("set-option", "-g", "remain-on-exit", "on")
	s.tmux("new-window", "-d", "-t", "main:", "true")
	eventually(t, "the fourth pane is dead", func() bool { return s.tmux("display-message", "-p", "-t", "%3", "#{pane_dead}") == "1" })

	server, err := process.Of(s.pid())
	if err != nil {
		t.Fatal(err)
	}
	ep := terminal.Endpoint{Socket: s.socket, Server: server}
	want := []terminal.Pane{
		{Endpoint: ep, ID: "%0", Session: "main", Window: 0, Index: 0, Width: 90, Height: 15},
		{Endpoint: ep, ID: "%1", Session: "main", Window: 0, Index: 1, Width: 90, Height: 14},
		{Endpoint: ep, ID: "%3", Session: "main", Window: 1, Index: 0, Width: 90, Height: 30, Dead: true},
		{Endpoint: ep, ID: "%2", Session: "small", Window: 0, Index: 0, Width: 20, Height: 5, InMode: true},
	}
	got := s.panes()
	for i, p := range got {
		if pid := s.tmux("display-message", "-p", "-t", p.ID, "#{pane_pid} #{pane_tty}"); pid != fmt.Sprint(p.PID, " ", p.TTY) {
			t.Errorf("pane %s: pid and tty %d %s, tmux says %s", p.ID, p.PID, p.TTY, pid)
		}
		got[i].PID, got[i].TTY = 0, ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("panes (-want +got):\n%s", diff)
	}
}

// A session may be called anything; no name hides or invents a pane.
func TestPanes_SessionNames(t *testing.T) {
	names := []string{
		"two words", "a:b.c", "tab\tin", "line\nin", "é 漢字 🙂", "100%", "%41", "#{pid}", "##(id)", "'", "\"", "a;b", "-d",
		"\x01\x1b[31m", "\xff\xfe", " ", "$0", "%0", "=main", strings.Repeat("long", 200),
	}
	s := startServer(t)
	for _, n := range names {
		s.tmux("new-session", "-d", "-s", n, "-x", "80", "-y", "24", "cat")
	}
	var want, got []string
	for line := range strings.Lines(s.tmux("list-sessions", "-F", "#{session_name}")) {
		want = append(want, strings.TrimSuffix(line, "\n"))
	}
	ids := map[string]bool{}
	for _, p := range s.panes() {
		got = append(got, p.Session)
		id := terminal.ID("codex", p, p.PID)
		parsed, err := terminal.ParseID(id)
		if err != nil || parsed.Session != p.Session || strings.ContainsAny(id, " \t\n") {
			t.Errorf("id %q of session %q parses to %+v, %v", id, p.Session, parsed, err)
		}
		ids[id] = true
		if again, err := s.client().Look(context.Background(), p); err != nil || again != p {
			t.Errorf("Look at session %q: got %q, %v", p.Session, again.Session, err)
		}
	}
	sort.Strings(want)
	sort.Strings(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sessions (-tmux +listed):\n%s", diff)
	}
	if len(ids) != len(names)+1 {
		t.Errorf("%d ids for %d sessions", len(ids), len(names)+1)
	}
}

// Two servers give out the same pane ids; the keys tell them apart.
func TestPanes_TwoServersWithEqualIDs(t *testing.T) {
	a, b := startServer(t), startServer(t)
	link := filepath.Join(socketDir(t), "link")
	if err := os.Symlink(a.socket, link); err != nil {
		t.Fatal(err)
	}
	// The link names a's socket again: its panes are not listed twice.
	all, err := terminal.New(terminal.Options{Sockets: []string{a.socket, b.socket, link}}).Panes(context.Background())
	if err != nil || len(all.Errors) > 0 {
		t.Fatalf("Panes: %v, %v", err, all.Errors)
	}
	if len(all.Panes) != 2 || all.Panes[0].ID != "%0" || all.Panes[1].ID != "%0" {
		t.Fatalf("got %+v, want %%0 of each server", all.Panes)
	}
	if all.Panes[0].Key() == all.Panes[1].Key() {
		t.Error("two terminals have one key")
	}
	if all.Panes[0].Endpoint.Socket != a.socket || all.Panes[1].Endpoint.Socket != b.socket {
		t.Error("the order is not that of the configuration")
	}
}

func TestPanes_SharedWindowsAreListedOnce(t *testing.T) {
	s := startServer(t)
	s.tmux("new-session", "-d", "-t", "main", "-s", "aaa") // sorts before main
	s.tmux("new-session", "-d", "-s", "other", "cat")
	s.tmux("link-window", "-s", "main:0", "-t", "other:7")
	var got []string
	for _, p := range s.panes() {
		got = append(got, fmt.Sprintf("%s:%d", p.Session, p.Window))
	}
	if diff := cmp.Diff([]string{"main:0", "other:0"}, got); diff != "" {
		t.Errorf("panes (-want +got):\n%s", diff)
	}
}

// A server without sessions is no error.
func TestPanes_NoSessions(t *testing.T) {
	s := startServer(t)
	s.tmux("set-option", "-g", "exit-empty", "off")
	s.tmux("kill-session", "-t", "=main")
	if got := s.panes(); len(got) != 0 {
		t.Errorf("got %+v, want no panes", got)
	}
}

// A socket that gives no panes is reported, not taken for an empty one.
func TestPanes_SocketProblems(t *testing.T) {
	dir := socketDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stale := startServer(t)
	if err := syscall.Kill(stale.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mute, err := net.Listen("unix", filepath.Join(dir, "mute")) // closes each connection
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { mute.Close(); <-served })
	live := startServer(t)

	tests := []struct {
		name, socket string
		want         terminal.SocketProblem
	}{
		{"server killed", stale.socket, terminal.SocketStale},
		{"no file", filepath.Join(dir, "none"), terminal.SocketMissing},
		{"no such name", "drawbridge-test-no-such-name", terminal.SocketMissing},
		{"regular file", file, terminal.SocketForeign},
		{"directory", dir, terminal.SocketForeign},
		{"not tmux", filepath.Join(dir, "mute"), terminal.SocketUnreadable},
		{"relative", "x/y", terminal.SocketInvalid},
		{"empty", "", terminal.SocketInvalid},
		{"dots", "..", terminal.SocketInvalid},
		{"NUL", "a\x00b", terminal.SocketInvalid},
	}
	var sockets []string
	for _, tt := range tests {
		sockets = append(sockets, tt.socket)
	}
	eventually(t, "the killed server is gone", func() bool {
		got, _ := terminal.New(terminal.Options{Sockets: []string{stale.socket}}).Panes(context.Background())
		return len(got.Errors) == 1 && got.Errors[0].Problem == terminal.SocketStale
	})
	got, err := terminal.New(terminal.Options{Sockets: append(sockets, live.socket)}).Panes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Panes) != 1 || len(got.Errors) != len(tests) {
		t.Fatalf("%d panes and %d errors, want 1 and %d: %v", len(got.Panes), len(got.Errors), len(tests), got.Errors)
	}
	for i, tt := range tests {
		e := got.Errors[i]
		if e.Socket != tt.socket || e.Problem != tt.want || e.Reason == "" {
			t.Errorf("%s: got %+v, want %s", tt.name, e, tt.want)
		}
	}
}

func TestPanes_SocketPathTooLong(t *testing.T) {
	dir := filepath.Join(socketDir(t), strings.Repeat("d", 90))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "0123456789")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := terminal.New(terminal.Options{Sockets: []string{path}}).Panes(context.Background())
	if err != nil || len(got.Errors) != 1 || got.Errors[0].Problem != terminal.SocketInvalid {
		t.Errorf("got %+v, %v, want one invalid socket", got, err)
	}
}

// An inherited TMUX or TMUX_TMPDIR decides nothing; a name stands in /tmp/tmux-<uid>.
func TestPanes_InheritedEnvironment(t *testing.T) {
	other := startServer(t)
	t.Setenv("TMUX", fmt.Sprintf("%s,%d,0", other.socket, other.pid()))
	t.Setenv("TMUX_PANE", "%0")
	t.Setenv("TMUX_TMPDIR", filepath.Dir(other.socket))

	name := fmt.Sprintf("drawbridge-test-%d", os.Getpid())
	dir := fmt.Sprintf("/tmp/tmux-%d", os.Getuid())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(filepath.Join(dir, name)) }) // after the server's end
	named := startServerAt(t, filepath.Join(dir, name))

	got, err := terminal.New(terminal.Options{Sockets: []string{name}}).Panes(context.Background())
	if err != nil || len(got.Errors) > 0 || len(got.Panes) != 1 || got.Panes[0].Endpoint.Socket != named.socket {
		t.Errorf("got %+v, %v, want the pane of %s", got, err, named.socket)
	}
	got, err = terminal.New(terminal.Options{}).Panes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range got.Panes {
		if p.Endpoint.Socket != filepath.Join(dir, "default") {
			t.Errorf("the default socket gave a pane of %s", p.Endpoint.Socket)
		}
	}
}

func TestPanes_NoTmux(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, path := range map[string]string{"not on PATH": "", "named and missing": "/nonexistent/tmux"} {
		_, err := terminal.New(terminal.Options{TmuxPath: path}).Panes(context.Background())
		e, ok := fault.As(err)
		if !ok || e.Code != fault.ObservationUnavail || e.Hint == "" || !errors.Is(err, terminal.ErrNoTmux) {
			t.Errorf("%s: got %v, want observation_unavailable with a hint", name, err)
		}
	}
}

// The client gets this socket, no server start, and none of our environment.
func TestPanes_ClientInvocation(t *testing.T) {
	s := startServer(t)
	dir := t.TempDir()
	script := "#!/bin/sh\nenv > " + dir + "/env\nprintf '%s\\n' \"$@\" > " + dir + "/args\nps -o pgid= -p $$ > " + dir + "/pgid\nexit 1\n"
	fake := filepath.Join(dir, "tmux")
	if err := os.WriteFile(fake, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMUX", "x,1,0")
	t.Setenv("ANTHROPIC_API_KEY", "canary")
	t.Setenv("LC_TIME", "C")
	got, err := terminal.New(terminal.Options{Sockets: []string{s.socket}, TmuxPath: fake}).Panes(context.Background())
	if err != nil || len(got.Errors) != 1 || got.Errors[0].Problem != terminal.SocketUnreadable {
		t.Fatalf("got %+v, %v, want one unreadable socket", got, err)
	}
	args, _ := os.ReadFile(filepath.Join(dir, "args"))
	if want := "-N\n-u\n-S\n" + s.socket + "\nsource-file\n-\n"; string(args) != want {
		t.Errorf("arguments %q, want %q", args, want)
	}
	env, _ := os.ReadFile(filepath.Join(dir, "env"))
	for line := range strings.Lines(string(env)) {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case name == "PATH", name == "HOME", name == "LANG", name == "TERM", strings.HasPrefix(name, "LC_"):
		case name == "PWD", name == "_", name == "SHLVL", name == "OLDPWD": // the shell's own
		default:
			t.Errorf("the client got %s", line)
		}
	}
	if !strings.Contains(string(env), "LC_TIME=C\n") {
		t.Error("the client did not get LC_TIME")
	}
}

func TestPanes_Cancelled(t *testing.T) {
	s := startServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.client().Panes(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestVersion(t *testing.T) {
	testkit.Need(t, "tmux")
	got, err := terminal.New(terminal.Options{}).Version(context.Background())
	if err != nil || !strings.HasPrefix(got, "tmux ") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestParseListing(t *testing.T) {
	const n = "00112233445566778899aabbccddeeff"
	rec := func(fields string) string { return n + " " + fields + " " + n + "\n" }
	good, end := rec("7 %0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 main"), rec("end 7")
	tests := []struct {
		name, out string
		sessions  []string
		ok        bool
	}{
		{"no panes", end, nil, true},
		{"one", good + end, []string{"main"}, true},
		{"raw newline and blanks in a name", rec("7 %0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 a\n 7 %1 b") + good + end, []string{"a\n 7 %1 b", "main"}, true},
		{"empty pane without process", rec("7 %4 0 80 24 1 0 0  $0 0 1 main") + end, []string{"main"}, true},
		{"several modes", rec("7 %4 5 80 24 0 2 0 /dev/pts/1 $0 0 1 main") + end, []string{"main"}, true},
		{"nothing", "", nil, false},
		{"no end", good, nil, false},
		{"cut", good + end[:len(end)-1], nil, false},
		{"cut in a record", good[:40], nil, false},
		{"foreign output first", "hook\n" + good + end, nil, false},
		{"foreign output between", good + "hook\n" + end, nil, false},
		{"foreign output last", good + end + "hook\n", nil, false},
		{"two servers", good + rec("end 8"), nil, false},
		{"bad pane id", rec("7 0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 main") + end, nil, false},
		{"pane id with a zero", rec("7 %00 9 80 24 0 0 0 /dev/pts/1 $0 0 0 main") + end, nil, false},
		{"height zero", rec("7 %0 9 80 0 0 0 0 /dev/pts/1 $0 0 0 main") + end, nil, false},
		{"negative", rec("7 %0 -9 80 24 0 0 0 /dev/pts/1 $0 0 0 main") + end, nil, false},
		{"no session", rec("7 %0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 ") + end, nil, false},
		{"few fields", rec("7 %0 9") + end, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			records, server, err := terminal.ParseListing([]byte(tt.out), n)
			if (err == nil) != tt.ok {
				t.Fatalf("error %v, want ok %v", err, tt.ok)
			}
			var got []string
			for _, r := range records {
				p, _, _ := r.Parts()
				got = append(got, p.Session)
			}
			if diff := cmp.Diff(tt.sessions, got); tt.ok && (diff != "" || server != 7) {
				t.Errorf("server %d, sessions (-want +got):\n%s", server, diff)
			}
		})
	}
}

func FuzzParseListing(f *testing.F) {
	const n = "00112233445566778899aabbccddeeff"
	end := n + " end 7 " + n + "\n"
	f.Add([]byte(n + " 7 %0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 main " + n + "\n" + end))
	f.Add([]byte(n + " 7 %0 9 80 24 0 0 0 /dev/pts/1 $0 0 0 a\nb " + n + "\n" + end))
	f.Add([]byte(end))
	f.Add([]byte(n + " 7         " + n + "\n"))
	f.Add([]byte("no server running on /tmp/x\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		records, server, err := terminal.ParseListing(out, n)
		if err != nil {
			return
		}
		for _, r := range records {
			p, s, _ := r.Parts()
			if s != server || p.ID[0] != '%' || p.Session == "" || p.Height < 1 || p.PID < 0 {
				t.Errorf("accepted %+v of server %d", p, s)
			}
		}
	})
}
