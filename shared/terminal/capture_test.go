package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// Every kind of pane gives exactly its height in lines, and what tmux itself
// captures, in one call.
func TestCapture_Kinds(t *testing.T) {
	s := startServer(t, "-s", "tiny", "-x", "20", "-y", "5", "cat")
	s.tmux("set-option", "-g", "remain-on-exit", "on")
	s.tmux("new-session", "-d", "-s", "big", "-x", "300", "-y", "100", "seq 1 500; exec cat")
	s.tmux("new-session", "-d", "-s", "mid", "-x", "80", "-y", "24", "printf '漢字漢字 🙂 e\u0301\\n%0200d\\n\\033[1;31mred\\033[0m\\n' 7; exec cat")
	s.tmux("new-window", "-d", "-t", "mid:", "printf '\\033[?1049hfull screen'; exec cat")
	s.tmux("new-window", "-d", "-t", "mid:", "echo last words")
	s.tmux("new-window", "-d", "-t", "mid:", "seq 1 100; exec cat")
	s.tmux("split-window", "-d", "-t", "%5", "echo upper; exec cat")
	for id, text := range map[string]string{"%1": "500", "%2": "red", "%3": "full screen", "%4": "Pane is dead", "%5": "100", "%6": "upper"} {
		s.waitFor(id, text)
	}
	s.tmux("copy-mode", "-t", "%5")
	eventually(t, "pane %4 is dead", func() bool { return s.tmux("display-message", "-p", "-t", "%4", "#{pane_dead}") == "1" })

	panes := s.panes()
	got, err := s.client().Capture(context.Background(), panes)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 7 {
		t.Fatalf("%d screens of 7 panes", len(got))
	}
	for _, p := range panes {
		screen, ok := got[p.Key()]
		if !ok {
			t.Fatalf("pane %s has no screen", p.ID)
		}
		if n := lines(screen.Text); n != p.Height || screen.Text[len(screen.Text)-1] != '\n' {
			t.Errorf("pane %s: %d lines, want %d", p.ID, n, p.Height)
		}
		if want := s.tmux("capture-pane", "-e", "-p", "-t", p.ID) + "\n"; string(screen.Text) != want {
			t.Errorf("pane %s: got %q, want %q", p.ID, clip(screen.Text), clip([]byte(want)))
		}
		p.Session, p.Window, p.Index = "", 0, 0
		if screen.Pane != p {
			t.Errorf("pane %s: facts %+v, want %+v", p.ID, screen.Pane, p)
		}
	}
	for id, want := range map[string]terminal.Pane{"%3": {Alternate: true}, "%4": {Dead: true}, "%5": {InMode: true}} {
		p := got[s.pane(id).Key()].Pane
		if p.Alternate != want.Alternate || p.Dead != want.Dead || p.InMode != want.InMode {
			t.Errorf("pane %s: alternate %v, dead %v, in mode %v", id, p.Alternate, p.Dead, p.InMode)
		}
	}
}

// A pane that vanished after the listing is absent and spoils no other; several
// servers are captured in one call.
func TestCapture_VanishedAndSeveralServers(t *testing.T) {
	a, b := startServer(t), startServer(t)
	for range 5 {
		a.tmux("new-window", "-d", "cat")
	}
	panes := append(a.panes(), b.panes()...)
	a.tmux("kill-pane", "-t", "%0")
	a.tmux("kill-pane", "-t", "%3")
	a.tmux("kill-pane", "-t", "%5")
	got, err := a.client().Capture(context.Background(), panes)
	if err != nil || len(got) != 4 {
		t.Fatalf("%d screens and %v, want 4 of 7", len(got), err)
	}
	for _, p := range panes {
		gone := p.Endpoint.Socket == a.socket && (p.ID == "%0" || p.ID == "%3" || p.ID == "%5")
		if _, ok := got[p.Key()]; ok == gone {
			t.Errorf("pane %s of %s: present %v", p.ID, p.Endpoint.Socket, ok)
		}
	}
}

// More panes than one invocation takes.
func TestCapture_Batches(t *testing.T) {
	s := startServer(t)
	p := s.panes()[0]
	many := make([]terminal.Pane, 450)
	for i := range many {
		many[i] = p
		many[i].ID = fmt.Sprintf("%%%d", 1000+i)
	}
	many[449] = p
	got, err := s.client().Capture(context.Background(), many)
	if _, ok := got[p.Key()]; err != nil || len(got) != 1 || !ok {
		t.Errorf("%d screens, %v, want the one pane that exists", len(got), err)
	}
}

// The kinds of absence that tell on the server.
func TestCapture_ServerGone(t *testing.T) {
	s := startServer(t)
	p := s.panes()[0]
	s.tmux("kill-server")
	eventually(t, "the server is gone", func() bool { return !p.Endpoint.Server.Alive() })

	next := startServerAt(t, s.socket)
	if np := next.panes()[0]; np.ID != p.ID || np.Key() == p.Key() {
		t.Fatalf("the next server's pane is %s with key equal %v", np.ID, np.Key() == p.Key())
	}
	got, err := next.client().Capture(context.Background(), []terminal.Pane{p})
	if len(got) != 0 || err != nil {
		t.Errorf("got %v, %v, want no screen", got, err)
	}
	for what, err := range map[string]error{
		"Paste": next.client().Paste(context.Background(), p, "text"),
		"Press": next.client().Press(context.Background(), p, terminal.Enter),
	} {
		if !fault.Is(err, fault.TerminalNotFound) || terminal.Typed(err) != fault.InputNone {
			t.Errorf("%s: got %v, want terminal_not_found", what, err)
		}
	}
	if _, err := next.client().Settled(context.Background(), p, 0, patient); !fault.Is(err, fault.TerminalNotFound) {
		t.Errorf("Settled: got %v, want terminal_not_found", err)
	}
}

// A pane that prints what looks like frames gets them back as its own lines.
func TestCapture_ForgedFrames(t *testing.T) {
	const n = "00112233445566778899aabbccddeeff"
	text := n + " 1 %1 1 80 24 0 0 0 /dev/pts/0\r\n" + n + " end\r\nend\r\n"
	s := startServer(t)
	r := s.addRecorder(true, text)
	s.tmux("new-window", "-d", "echo innocent; exec cat")
	s.waitFor("%2", "innocent")
	got, err := s.client().Capture(context.Background(), s.panes())
	if err != nil || len(got) != 3 {
		t.Fatalf("%d screens, %v", len(got), err)
	}
	if forged := got[r.pane.Key()]; !strings.HasPrefix(string(forged.Text), strings.ReplaceAll(text, "\r", "")) || lines(forged.Text) != 24 {
		t.Errorf("the forger's screen is %q", clip(forged.Text))
	}
	if other := got[s.pane("%2").Key()]; !strings.HasPrefix(string(other.Text), "innocent\n") || lines(other.Text) != 24 {
		t.Errorf("the other's screen is %q", clip(other.Text))
	}
}

// A user's hook that prints spoils screens; that is said, and not taken for
// vanished panes or session names. Looking and typing are not disturbed.
func TestHooksThatPrint(t *testing.T) {
	r := startRecorder(t, true)
	for _, after := range []string{"capture-pane", "display-message", "list-panes", "load-buffer", "paste-buffer", "send-keys"} {
		r.s.tmux("set-hook", "-g", "after-"+after, "display-message -p 'HOOK "+after+"'")
	}
	ctx, c := context.Background(), r.s.client()
	got, err := c.Capture(ctx, []terminal.Pane{r.pane})
	if len(got) != 0 || !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("Capture: %d screens, %v, want observation_unavailable", len(got), err)
	}
	listing, err := c.Panes(ctx)
	if err != nil || len(listing.Panes) != 0 || len(listing.Errors) != 1 || listing.Errors[0].Problem != terminal.SocketUnreadable {
		t.Errorf("Panes: %+v, %v, want one unreadable socket", listing, err)
	}
	if _, err := c.Look(ctx, r.pane); err != nil {
		t.Errorf("Look: %v", err)
	}
	if err := c.Paste(ctx, r.pane, "text"); err != nil {
		t.Errorf("Paste: %v", err)
	}
	if err := c.Press(ctx, r.pane, terminal.Enter); err != nil {
		t.Errorf("Press: %v", err)
	}
	r.expect(bracketed("text") + "\r")
	r.s.tmux("copy-mode", "-t", r.pane.ID)
	if err := c.Press(ctx, r.pane, terminal.Enter); !fault.Is(err, fault.TerminalNotIdle) {
		t.Errorf("Press in a mode: %v", err)
	}
}

// A respawned pane keeps its id and key; its new process is told.
func TestRespawned(t *testing.T) {
	r := startRecorder(t, true)
	ctx, c := context.Background(), r.s.client()
	r.s.tmux(append([]string{"respawn-pane", "-k", "-t", r.pane.ID}, recordArgs(r.file, "second ")...)...)
	r.s.waitFor(r.pane.ID, "second READY")

	got, err := c.Capture(ctx, []terminal.Pane{r.pane})
	if s, ok := got[r.pane.Key()]; err != nil || !ok || s.Pane.PID == r.pane.PID {
		t.Errorf("Capture: got %+v, %v, want another pid", s.Pane, err)
	}
	if _, err := c.CaptureOne(ctx, r.pane); !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("CaptureOne: got %v, want terminal_changed", err)
	}
	_, err = c.Settled(ctx, r.pane, 0, patient)
	if !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("Settled: got %v, want terminal_changed", err)
	}
	if _, err := c.Look(ctx, r.pane); !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("Look: got %v, want terminal_changed", err)
	}
	if err := c.Paste(ctx, r.pane, "text"); !fault.Is(err, fault.TerminalChanged) || terminal.Typed(err) != fault.InputNone {
		t.Errorf("Paste: got %v, want terminal_changed", err)
	}
	if err := c.Press(ctx, r.pane, terminal.Enter); !fault.Is(err, fault.TerminalChanged) || terminal.Typed(err) != fault.InputNone {
		t.Errorf("Press: got %v, want terminal_changed", err)
	}
	r.expectNothingMore("")
	if b := r.buffers(); b != "" {
		t.Errorf("buffers left: %q", b)
	}
}

func TestSettled(t *testing.T) {
	s := startServer(t)
	s.tmux("new-window", "-d", "while :; do date +%N; sleep 0.01; done")
	stop := t.TempDir() + "/stop"
	s.tmux("new-window", "-d", "while ! test -e "+stop+"; do date +%N; sleep 0.01; done; echo quiet; exec cat")
	ctx, c := context.Background(), s.client()

	begin := time.Now()
	got, err := c.Settled(ctx, s.pane("%0"), 120*time.Millisecond, patient)
	if err != nil || lines(got.Text) != 24 || time.Since(begin) < 120*time.Millisecond {
		t.Errorf("still pane: %d lines after %s, %v", lines(got.Text), time.Since(begin), err)
	}

	eventually(t, "the pane is busy", func() bool { return len(s.tmux("capture-pane", "-p", "-t", "%1")) > 40 })
	got, err = c.Settled(ctx, s.pane("%1"), time.Second, 3*time.Second) // the loop may stand still for a while on a busy machine
	if !fault.Is(err, fault.TerminalNotIdle) || !errors.Is(err, terminal.ErrUnsettled) || lines(got.Text) != 24 {
		t.Errorf("busy pane: %d lines, %v, want terminal_not_idle and the last screen", lines(got.Text), err)
	}

	p := s.pane("%2")
	time.AfterFunc(200*time.Millisecond, func() { _ = os.WriteFile(stop, nil, 0o600) })
	got, err = c.Settled(ctx, p, 100*time.Millisecond, patient)
	if err != nil || !bytes.Contains(got.Text, []byte("quiet")) {
		t.Errorf("calming pane: %q, %v", clip(got.Text), err)
	}

	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := c.Settled(short, s.pane("%1"), time.Second, patient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("caller's deadline: got %v", err)
	}
}

func TestLook(t *testing.T) {
	s := startServer(t, "-s", "a b", "-x", "80", "-y", "24", "cat")
	ctx, c := context.Background(), s.client()
	p := s.pane("%0")
	if got, err := c.Look(ctx, p); err != nil || got != p {
		t.Errorf("unchanged: got %+v, %v, want %+v", got, err, p)
	}
	s.tmux("copy-mode", "-t", "%0")
	if got, err := c.Look(ctx, p); err != nil || !got.InMode {
		t.Errorf("in a mode: got %+v, %v", got, err)
	}
	s.tmux("new-window", "-d", "cat")
	gone := s.pane("%1")
	s.tmux("kill-pane", "-t", "%1")
	if _, err := c.Look(ctx, gone); !fault.Is(err, fault.TerminalNotFound) {
		t.Errorf("pane gone: got %v, want terminal_not_found", err)
	}
	// Another server at the socket while the one that is meant lives on.
	other := startServer(t)
	elsewhere := p
	elsewhere.Endpoint.Socket = other.socket
	if _, err := c.Look(ctx, elsewhere); !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("other server: got %v, want terminal_changed", err)
	}
	if err := c.Press(ctx, elsewhere, terminal.Enter); !fault.Is(err, fault.TerminalChanged) {
		t.Errorf("Press at another server: got %v, want terminal_changed", err)
	}
	s.tmux("kill-server")
	eventually(t, "the server is gone", func() bool { return !p.Endpoint.Server.Alive() })
	if _, err := c.Look(ctx, p); !fault.Is(err, fault.TerminalNotFound) {
		t.Errorf("server gone: got %v, want terminal_not_found", err)
	}
}

func TestParseFrames(t *testing.T) {
	const n = "00112233445566778899aabbccddeeff"
	head := func(id string, height int) string {
		return fmt.Sprintf("%s 7 %s 9 80 %d 0 0 0 /dev/pts/1\n", n, id, height)
	}
	tests := []struct {
		name, out string
		want      []string // id and body
		whole     bool
	}{
		{"two", head("%0", 2) + "a\nb\n" + head("%1", 1) + "\n" + n + " end\n", []string{"%0 a\nb\n", "%1 \n"}, true},
		{"gone pane", n + " 7        \n" + head("%1", 1) + "c\n" + n + " end\n", []string{"%1 c\n"}, true},
		{"gone pane last", head("%1", 1) + "c\n" + n + " 7        \n" + n + " end\n", []string{"%1 c\n"}, true},
		{"cut in the body", head("%0", 2) + "a\nb\n" + head("%1", 3) + "c\n", []string{"%0 a\nb\n"}, false},
		{"cut behind the body", head("%0", 2) + "a\nb\n", nil, false},
		{"cut in the header", head("%0", 1) + "a\n" + n + " 7 %1", []string{"%0 a\n"}, false},
		{"short body", head("%0", 3) + "a\nb\n" + head("%1", 1) + "c\n" + n + " end\n", []string{}, false},
		{"long body", head("%0", 1) + "a\nhook\n" + head("%1", 1) + "c\n" + n + " end\n", []string{"%1 c\n"}, false},
		{"foreign output first", "hook\n" + head("%1", 1) + "c\n" + n + " end\n", []string{"%1 c\n"}, false},
		{"malformed header", n + " 7 %0 x 80 1 0 0 0 \n" + head("%1", 1) + "c\n" + n + " end\n", []string{"%1 c\n"}, false},
		{"other nonce in the body", head("%0", 2) + "f" + head("%1", 1) + "c\n" + n + " end\n", []string{"%0 f" + head("%1", 1) + "c\n"}, true},
		{"output behind the end", head("%1", 1) + "c\n" + n + " end\nx", []string{"%1 c\n"}, false},
		{"nothing", "", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			frames, whole := terminal.ParseFrames([]byte(tt.out), n)
			var got []string
			for _, f := range frames {
				p, _, body := f.Parts()
				got = append(got, p.ID+" "+string(body))
			}
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", tt.want) || whole != tt.whole {
				t.Errorf("got %q, whole %v, want %q, %v", got, whole, tt.want, tt.whole)
			}
		})
	}
}

func FuzzParseFrames(f *testing.F) {
	const n = "00112233445566778899aabbccddeeff"
	f.Add([]byte(n + " 7 %0 9 80 2 0 0 0 /dev/pts/1\na\nb\n" + n + " end\n"))
	f.Add([]byte(n + " 7        \n" + n + " 7 %1 9 80 1 0 1 1 /dev/pts/1\n\x1b[1mx\n" + n + " end\n"))
	f.Add([]byte("\n" + n + " 7 %1 9 80 1 0 1 1 /dev/pts/1"))
	f.Add([]byte(n + " end\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		frames, _ := terminal.ParseFrames(out, n)
		for _, fr := range frames {
			p, _, body := fr.Parts()
			if lines(body) != p.Height || body[len(body)-1] != '\n' {
				t.Errorf("frame %+v has %d lines", p, lines(body))
			}
			if !bytes.Contains(out, body) {
				t.Error("a body that was not in the output")
			}
		}
	})
}
