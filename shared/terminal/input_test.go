package terminal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

func bracketed(text string) string {
	return pasteBegin + strings.ReplaceAll(text, "\n", "\r") + pasteEnd
}

// Every byte arrives, once, between the brackets of one paste; nothing in a
// text means anything to tmux.
func TestPaste_Texts(t *testing.T) {
	r := startRecorder(t, true)
	ctx, c := context.Background(), r.s.client()
	texts := map[string]string{
		"one line":      "hello world",
		"lines":         "first\n\n  third\n",
		"only newlines": "\n\n",
		"tab":           "a\tb",
		"unicode":       "é e\u0301 漢字 🙂 \u200d \u2028",
		"tmux words":    "; kill-server ; #{pid} #(touch /tmp/x) %0 $HOME 'quoted\" \\ ~",
		"ends in ;":     "a;",
		"only ;":        ";",
		"dash":          "-d",
		"dollar":        "$(id) `id`",
		"32 KiB":        strings.Repeat("0123456789abcde\n", 2048),
		"100 KiB":       strings.Repeat("0123456789abcdef", 100<<6),
		"256 KiB":       strings.Repeat("漢", terminal.MaxPaste/3),
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			r.s.t = t
			if err := c.Paste(ctx, r.pane, text); err != nil || terminal.Typed(err) != fault.InputSent {
				t.Fatal(err)
			}
			r.expect(bracketed(text))
			r.expectNothingMore(bracketed(text))
			if b := r.buffers(); b != "" {
				t.Errorf("buffers left: %q", b)
			}
		})
	}
}

// Without bracketed paste the text arrives bare: on tmux 3.3a the agent's
// screen must have proven a composer.
func TestPaste_ProgramWithoutBrackets(t *testing.T) {
	r := startRecorder(t, false)
	if err := r.s.client().Paste(context.Background(), r.pane, "a\nb"); err != nil {
		if !fault.Is(err, fault.TerminalNotIdle) { // tmux versions that know refuse
			t.Fatal(err)
		}
		r.expectNothingMore("")
		return
	}
	r.expect("a\rb")
}

func TestPaste_RefusedTexts(t *testing.T) {
	r := startRecorder(t, true)
	for name, tt := range map[string]struct {
		text string
		want fault.Code
	}{
		"empty":          {"", fault.InvalidArguments},
		"escape":         {"a\x1b[201~b", fault.InvalidArguments},
		"carriage":       {"a\rb", fault.InvalidArguments},
		"NUL":            {"a\x00", fault.InvalidArguments},
		"DEL":            {"\x7f", fault.InvalidArguments},
		"C1":             {"\u009b201~", fault.InvalidArguments},
		"not UTF-8":      {"\x9b201~", fault.InvalidArguments},
		"lone surrogate": {"\xed\xa0\x80", fault.InvalidArguments},
		"too long":       {strings.Repeat("x", terminal.MaxPaste+1), fault.InputTooLarge},
	} {
		err := r.s.client().Paste(context.Background(), r.pane, tt.text)
		if !fault.Is(err, tt.want) || terminal.Typed(err) != fault.InputNone {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
	r.expectNothingMore("")
}

func TestPress_Keys(t *testing.T) {
	r := startRecorder(t, true)
	ctx, c := context.Background(), r.s.client()
	want := ""
	for _, k := range []struct {
		key   terminal.Key
		bytes string
	}{
		{terminal.Enter, "\r"},
		{terminal.Escape, "\x1b"},
		{terminal.Tab, "\t"},
		{terminal.Space, " "},
		{terminal.Up, "\x1b[A"},
		{terminal.Down, "\x1b[B"},
		{terminal.Right, "\x1b[C"},
		{terminal.Left, "\x1b[D"},
		{terminal.Yes, "y"},
		{terminal.LineEnd, "\x05"},
		{terminal.KillLine, "\x15"},
		{terminal.NewLine, "\n"},
	} {
		if err := c.Press(ctx, r.pane, k.key); err != nil {
			t.Fatalf("%s: %v", k.key, err)
		}
		want += k.bytes
		r.expect(want)
	}
	for _, k := range []terminal.Key{"", "C-c", "C-d", "1", "enter", "Enter ; kill-server", "-l"} {
		if err := c.Press(ctx, r.pane, k); err == nil || terminal.Typed(err) != fault.InputNone {
			t.Errorf("key %q was not refused: %v", k, err)
		}
	}
	r.expectNothingMore(want)
}

// States of a pane in which nothing may be typed: nothing is, and it is said.
func TestInput_Refusals(t *testing.T) {
	tests := []struct {
		name     string
		set, end []string // tmux commands; %p is the pane
		want     fault.Code
	}{
		{"copy mode", []string{"copy-mode -t %p"}, []string{"copy-mode -q -t %p"}, fault.TerminalNotIdle},
		{"two modes", []string{"copy-mode -t %p", "choose-tree -t %p"}, []string{"copy-mode -q -t %p"}, fault.TerminalNotIdle},
		{"clock mode", []string{"clock-mode -t %p"}, []string{"copy-mode -q -t %p"}, fault.TerminalNotIdle},
		{"input disabled", []string{"select-pane -d -t %p"}, []string{"select-pane -e -t %p"}, fault.TerminalNotIdle},
		{"synchronized", []string{"set-option -w -t %p synchronize-panes on"}, []string{"set-option -w -t %p synchronize-panes off"}, fault.TerminalNotIdle},
	}
	r := startRecorder(t, true)
	ctx, c := context.Background(), r.s.client()
	run := func(commands []string) {
		for _, cmd := range commands {
			r.s.tmux(strings.Fields(strings.ReplaceAll(cmd, "%p", r.pane.ID))...)
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.s.t = t
			run(tt.set)
			for name, err := range map[string]error{
				"Paste": c.Paste(ctx, r.pane, "text"),
				"Press": c.Press(ctx, r.pane, terminal.Enter),
			} {
				e, ok := fault.As(err)
				if !ok || e.Code != tt.want || e.Hint == "" || !e.Retry || terminal.Typed(err) != fault.InputNone {
					t.Errorf("%s: got %v, want %s", name, err, tt.want)
				}
			}
			run(tt.end)
			r.expectNothingMore("")
			if b := r.buffers(); b != "" {
				t.Errorf("buffers left: %q", b)
			}
			if err := c.Paste(ctx, r.pane, "after"); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			r.expectNothingMore(bracketed("after"))
		})
	}
}

func TestInput_GonePanes(t *testing.T) {
	r := startRecorder(t, true)
	ctx, c := context.Background(), r.s.client()
	check := func(name string, p terminal.Pane, want fault.Code) {
		t.Helper()
		for what, err := range map[string]error{
			"Paste": c.Paste(ctx, p, "text"),
			"Press": c.Press(ctx, p, terminal.Enter),
		} {
			if !fault.Is(err, want) || terminal.Typed(err) != fault.InputNone {
				t.Errorf("%s, %s: got %v, want %s", name, what, err, want)
			}
		}
	}
	never := r.pane
	never.ID = "%99"
	check("no such pane", never, fault.TerminalNotFound)
	for _, id := range []string{"", "main", "main:0", "%0;kill-server", "%", "%01", "0"} {
		bad := r.pane
		bad.ID = id
		check("target "+id, bad, fault.Internal)
	}

	if err := syscall.Kill(r.pane.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pane is dead", func() bool { return r.s.pane(r.pane.ID).Dead })
	check("dead pane", r.pane, fault.TerminalChanged)
	if b := r.buffers(); b != "" {
		t.Errorf("buffers left: %q", b)
	}

	again := startServer(t)
	p := again.pane("%0")
	again.tmux("kill-server")
	eventually(t, "the server is gone", func() bool { return !p.Endpoint.Server.Alive() })
	check("server gone", p, fault.TerminalNotFound)

	// The socket is gone, though the server's process may live: nothing starts one.
	lost := r.pane
	lost.Endpoint.Socket = filepath.Join(socketDir(t), "none")
	check("socket gone", lost, fault.ObservationUnavail)
	if _, err := os.Stat(lost.Endpoint.Socket); err == nil {
		t.Error("a server was started")
	}
	if _, err := c.Look(ctx, lost); !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("Look without socket: %v", err)
	}
	if _, err := c.Capture(ctx, []terminal.Pane{lost}); !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("Capture without socket: %v", err)
	}

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := c.Paste(cancelled, r.pane, "text"); !errors.Is(err, context.Canceled) || terminal.Typed(err) != fault.InputNone {
		t.Errorf("cancelled: %v", err)
	}
}

// There is no moment between the comparison and the paste: while the pane goes
// in and out of copy mode, each paste is whole and bracketed, or refused.
func TestPaste_ModeRace(t *testing.T) {
	r := startRecorder(t, true)
	c := r.s.client()
	stop := make(chan struct{})
	toggled := make(chan struct{})
	go func() {
		defer close(toggled)
		script := strings.Repeat("copy-mode -t "+r.pane.ID+"\ncopy-mode -q -t "+r.pane.ID+"\n", 20)
		for {
			select {
			case <-stop:
				_ = r.s.command("copy-mode", "-q", "-t", r.pane.ID).Run()
				return
			default:
			}
			_ = r.s.command("copy-mode", "-t", r.pane.ID).Run()
			cmd := r.s.command("source-file", "-")
			cmd.Stdin = strings.NewReader(script)
			_ = cmd.Run()
		}
	}()
	want, refused := "", 0
	for i := range 60 {
		text := fmt.Sprintf("paste\n%d", i)
		err := c.Paste(context.Background(), r.pane, text)
		switch {
		case err == nil:
			want += bracketed(text)
		case fault.Is(err, fault.TerminalNotIdle) && terminal.Typed(err) == fault.InputNone:
			refused++
		default:
			t.Error(err)
		}
	}
	close(stop)
	<-toggled
	t.Logf("%d of 60 refused", refused)
	r.expectNothingMore(want)
}

// Pastes into different panes at one time do not mix.
func TestPaste_Parallel(t *testing.T) {
	s := startServer(t)
	recorders := make([]recorder, 6)
	for i := range recorders {
		recorders[i] = s.addRecorder(true, "")
	}
	c := s.client()
	var wg sync.WaitGroup
	for i, r := range recorders {
		wg.Go(func() {
			for n := range 4 {
				if err := c.Paste(context.Background(), r.pane, fmt.Sprintf("pane %d text %d", i, n)); err != nil {
					t.Error(err)
				}
				if err := c.Press(context.Background(), r.pane, terminal.Enter); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i, r := range recorders {
		want := ""
		for n := range 4 {
			want += bracketed(fmt.Sprintf("pane %d text %d", i, n)) + "\r"
		}
		r.expectNothingMore(want)
	}
}

// A server that does not answer leaves the outcome open, and the error says so.
func TestInput_StoppedServer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: waits for the client's deadline")
	}
	r := startRecorder(t, true)
	server, c := r.pane.Endpoint.Server, r.s.client()
	if err := syscall.Kill(server.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(server.PID, syscall.SIGCONT) })
	ctx := context.Background()
	var paste, press error
	var list terminal.Listing
	var wg sync.WaitGroup
	wg.Go(func() { paste = c.Paste(ctx, r.pane, "text") })
	wg.Go(func() { press = c.Press(ctx, r.pane, terminal.Enter) })
	wg.Go(func() { list, _ = c.Panes(ctx) })
	wg.Wait()
	for name, err := range map[string]error{"Paste": paste, "Press": press} {
		e, ok := fault.As(err)
		if !ok || e.Code != fault.SubmissionUncertain || e.Retry || terminal.Typed(err) != fault.InputPossible {
			t.Errorf("%s: got %v, want submission_uncertain with possible input", name, err)
		}
	}
	if len(list.Panes) != 0 || len(list.Errors) != 1 || list.Errors[0].Problem != terminal.SocketUnreadable {
		t.Errorf("Panes: got %+v, want one unreadable socket", list)
	}
	if err := syscall.Kill(server.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.s.tmux("send-keys", "-t", r.pane.ID, "Z")
	eventually(t, "the pane reads again", func() bool {
		got, _ := os.ReadFile(r.file)
		return strings.Contains(string(got), "Z")
	})
	got, _ := os.ReadFile(r.file)
	t.Logf("typed after the server went on: %q", got)
	if strings.Count(string(got), "text") > 1 || strings.Count(string(got), "\r") > 1 {
		t.Errorf("typed more than once: %q", got)
	}
}

// A client that dies in the middle, or answers nonsense, proves nothing.
func TestInput_UnclearAnswers(t *testing.T) {
	s := startServer(t)
	p := s.pane("%0")
	for name, script := range map[string]string{
		"killed":        "kill -9 $$",
		"silent":        "exit 0",
		"failed":        "echo lost server >&2; exit 1",
		"wrong nonce":   "echo 00112233445566778899aabbccddeeff done",
		"late mischief": "echo x; echo 'no server running on /x' >&2; exit 1",
	} {
		fake := filepath.Join(t.TempDir(), "tmux")
		if err := os.WriteFile(fake, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		c := terminal.New(terminal.Options{TmuxPath: fake})
		for what, err := range map[string]error{
			"Paste": c.Paste(context.Background(), p, "text"),
			"Press": c.Press(context.Background(), p, terminal.Enter),
		} {
			if !fault.Is(err, fault.SubmissionUncertain) || terminal.Typed(err) != fault.InputPossible {
				t.Errorf("%s, %s: got %v, want submission_uncertain", name, what, err)
			}
		}
	}
	c := terminal.New(terminal.Options{TmuxPath: "/nonexistent/tmux"})
	if err := c.Paste(context.Background(), p, "text"); !errors.Is(err, terminal.ErrNoTmux) || terminal.Typed(err) != fault.InputNone {
		t.Errorf("no tmux: got %v", err)
	}
	self, err := process.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	foreign := p
	foreign.Endpoint.Server = self
	foreign.Endpoint.Server.Namespace++
	if err := s.client().Press(context.Background(), foreign, terminal.Enter); !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("server of another pid namespace: got %v", err)
	}
}
