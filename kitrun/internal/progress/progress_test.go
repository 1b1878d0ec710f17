package progress_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/kitrun/internal/progress"
	"drawbridge/kitrun/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// screen collects what is written.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// lines gives the drawings of a terminal, or the lines.
func (s *screen) lines() []string {
	return strings.Split(strings.Trim(strings.ReplaceAll(s.String(), "\r\x1b[K", "\n"), "\n"), "\n")
}

func event(state string) worker.Event {
	return worker.Event{InvocationID: "i", State: state, InputTokens: -1, OutputTokens: -1, ObservedBytes: -1, ObservedEntries: -1}
}

// in runs a Progress in a bubble with a clock of its own.
func in(t *testing.T, o progress.Options, play func(p *progress.Progress)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := progress.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		play(p)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Elsewhere than on a terminal there is a line for each step, and one every ten
// seconds that says where the run is.
func TestProgress_Lines(t *testing.T) {
	out := &screen{}
	var lent atomic.Pointer[progress.Lent]
	o := progress.Options{Out: out, Mode: progress.Lines, Lent: func(context.Context) (l progress.Lent, ok bool) {
		if now := lent.Load(); now != nil {
			return *now, true
		}
		return l, false
	}}
	in(t, o, func(p *progress.Progress) {
		e := event(worker.StateAdmitted)
		e.ObservedBytes, e.ObservedEntries = 1536, 1
		p.Event(e)
		synctest.Wait()
		e.State = worker.StateRunning
		p.Event(e)
		for i := range 5 { // no lines for these
			time.Sleep(time.Second)
			e.Events, e.Codex, e.Item = i+1, "item.completed", "command_execution"
			p.Event(e)
		}
		lent.Store(&progress.Lent{Requests: 2, Refused: 1, InputTokens: 12345, OutputTokens: 678})
		time.Sleep(6500 * time.Millisecond)
		e.State, e.Reason, e.InputTokens, e.OutputTokens = worker.StateEnding, "timeout", 20000, 900
		p.Event(e)
	})
	want := []string{
		"kitrun: 0:00 admitted; disk 1.5 KiB in 1 entry",
		"kitrun: 0:00 running; disk 1.5 KiB in 1 entry",
		"kitrun: 0:10 running; 5 events, last item.completed command_execution; 2 requests and 1 refused; tokens 12,345 in, 678 out; disk 1.5 KiB in 1 entry",
		"kitrun: 0:11 ending (timeout); 5 events, last item.completed command_execution; 2 requests and 1 refused; tokens 20,000 in, 900 out; disk 1.5 KiB in 1 entry",
	}
	if diff := cmp.Diff(want, out.lines()); diff != "" {
		t.Error(diff)
	}
}

// On a terminal one line is drawn again when something changes, at least each
// second, is as wide as the terminal allows, and is gone in the end.
func TestProgress_Terminal(t *testing.T) {
	out := &screen{}
	in(t, progress.Options{Out: out, Mode: progress.Terminal, Columns: func() int { return 29 }}, func(p *progress.Progress) {
		p.Event(event(worker.StateRunning))
		time.Sleep(1500 * time.Millisecond)
		fmt.Fprintln(p.Log(), "level=WARN msg=careful")
		e := event(worker.StateRunning)
		e.Events, e.Codex = 1, "turn.started"
		p.Event(e)
		time.Sleep(100 * time.Millisecond)
	})
	want := []string{
		"0:00 running", "0:01 running", "level=WARN msg=careful", "0:01 running", "0:01 running; 1 event, las",
	}
	got := strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\r' || r == '\n' })
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], "\x1b[K")
	}
	if n := len(got); n == 0 || got[n-1] != "" { // the line is lifted
		t.Fatalf("the last drawing is %q", got)
	}
	var drawn []string
	for _, line := range got {
		if line != "" {
			drawn = append(drawn, line)
		}
	}
	// The line stands behind what was logged without a start of its own.
	if diff := cmp.Diff(want, drawn); diff != "" {
		t.Error(diff)
	}
	for _, line := range drawn {
		if len(line) > 27 && !strings.HasPrefix(line, "level") {
			t.Errorf("a line of %d columns: %q", len(line), line)
		}
	}
}

func TestProgress_JSON(t *testing.T) {
	out := &screen{}
	o := progress.Options{Out: out, Mode: progress.JSON, Lent: func(context.Context) (progress.Lent, bool) {
		return progress.Lent{Requests: 1}, true
	}}
	in(t, o, func(p *progress.Progress) {
		p.Event(event(worker.StateAdmitted))
		time.Sleep(1500 * time.Millisecond)
		e := event(worker.StateRunning)
		e.Codex = "evil\x1b[2J"
		p.Event(e)
	})
	lines := out.lines()
	if len(lines) != 2 {
		t.Fatalf("got %q", lines)
	}
	var first, second map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil {
		t.Fatal(err)
	}
	if first["event"] != "progress" || first["state"] != "admitted" || first["lent"] != nil || first["invocation_id"] != "i" {
		t.Errorf("got %s", lines[0])
	}
	if second["state"] != "running" || second["lent"].(map[string]any)["requests"] != 1.0 || strings.Contains(lines[1], "\x1b") {
		t.Errorf("got %s", lines[1])
	}
}

// What comes out of the container cannot speak to the terminal.
func TestProgress_HostileNames(t *testing.T) {
	for _, name := range []string{"\x1b]0;title\a", "a b", "x\r\ny", strings.Repeat("x", 65), "\u202eabc"} {
		out := &screen{}
		in(t, progress.Options{Out: out, Mode: progress.Lines}, func(p *progress.Progress) {
			e := event(worker.StateRunning)
			e.Events, e.Codex, e.Item, e.Reason = 1, name, name, name
			p.Event(e)
		})
		if want := "kitrun: 0:00 running ((unnamed)); 1 event, last (unnamed) (unnamed)\n"; out.String() != want {
			t.Errorf("%q: got %q", name, out.String())
		}
	}
}

// A reader that has gone to sleep holds nobody up, and the steps are not lost.
func TestProgress_SlowReader(t *testing.T) {
	in(t, progress.Options{Mode: progress.JSON, Out: io.Discard}, func(*progress.Progress) {})
	r, w := io.Pipe()
	p := progress.New(progress.Options{Mode: progress.JSON, Out: w})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.Event(event(worker.StateAdmitted))
	p.Event(event(worker.StateCreated))
	for i := range 100_000 {
		e := event(worker.StateRunning)
		e.Events = i + 1
		p.Event(e)
	}
	p.Event(event(worker.StateRemoved))
	p.Event(event(worker.StateCompleted))
	read := make(chan []byte)
	go func() { data, _ := io.ReadAll(r); read <- data }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.Close()
	data := string(<-read)
	for _, state := range []string{"admitted", "created", "removed", "completed"} {
		if !strings.Contains(data, `"state":"`+state+`"`) {
			t.Errorf("%s is lost", state)
		}
	}
	if n := strings.Count(data, "\n"); n > 3000 {
		t.Errorf("%d lines were kept", n)
	}
}

func TestModeFor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if got := progress.ModeFor(w, false); got != progress.Lines {
		t.Errorf("a pipe: %v", got)
	}
	if got := progress.ModeFor(&bytes.Buffer{}, true); got != progress.JSON {
		t.Errorf("events asked for: %v", got)
	}
}

func TestWords(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{progress.Elapsed(-time.Second), "0:00"},
		{progress.Elapsed(7 * time.Second), "0:07"},
		{progress.Elapsed(754 * time.Second), "12:34"},
		{progress.Elapsed(3723 * time.Second), "1:02:03"},
		{progress.Bytes(0), "0 B"},
		{progress.Bytes(1023), "1023 B"},
		{progress.Bytes(1024), "1.0 KiB"},
		{progress.Bytes(134217728), "128.0 MiB"},
		{progress.Bytes(1<<63 - 1), "8.0 EiB"},
		{progress.Tokens(0, 1234567), "tokens 0 in, 1,234,567 out"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestOutcome(t *testing.T) {
	status := func(n int64) *int64 { return &n }
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		name string
		r    worker.Receipt
		want string
	}{
		{"completed", worker.Receipt{Completed: true, Usage: worker.Usage{Complete: true, InputTokens: 2000, OutputTokens: 1}},
			"worker i: completed after 1:05; tokens 2,000 in, 1 out"},
		{"timeout", worker.Receipt{Terminal: worker.Terminal{Timeout: true}}, "worker i: killed at its deadline after 1:05"},
		{"cancelled", worker.Receipt{Terminal: worker.Terminal{Cancelled: true}}, "worker i: cancelled after 1:05"},
		{"violation", worker.Receipt{StorageViolation: text("writable_byte_budget")}, "worker i: killed: writable_byte_budget after 1:05"},
		{"overflow", worker.Receipt{Terminal: worker.Terminal{Overflow: true}}, "worker i: killed: too much output after 1:05"},
		{"memory", worker.Receipt{Terminal: worker.Terminal{OOM: true, Status: status(137)}}, "worker i: out of memory after 1:05"},
		{"status", worker.Receipt{Terminal: worker.Terminal{Status: status(3)}}, "worker i: failed with status 3 after 1:05"},
		{"killed", worker.Receipt{Terminal: worker.Terminal{Status: status(137), Signal: text("SIGKILL")}},
			"worker i: failed with status 137 (killed from elsewhere, as kitrun worker cancel does) after 1:05"},
		{"a reason", worker.Receipt{Terminal: worker.Terminal{Status: status(1)}, Failure: `status 401: "bad" key`},
			`worker i: failed with status 1 after 1:05: Codex says "status 401: \"bad\" key"`},
		{"no turn", worker.Receipt{Terminal: worker.Terminal{Status: status(0)}}, "worker i: no complete turn after 1:05"},
	} {
		tc.r.Observed.InvocationID = "i"
		if got := progress.Outcome(tc.r, 65*time.Second); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}
