// Package scripted is a scripted coding agent for tests and benchmarks of many
// panes: a real process on a real terminal whose screen and transcript are those
// of Codex 0.171.0 with its conversation in its own process, and whose work is
// chosen by words of the request.
//
// A test or benchmark binary becomes the agent by calling Main at its start when
// Wanted says so; Install copies the binary under the name that discovery looks
// for. It proves nothing about Codex: journeys with the real one do.
//
// Words of a request:
//
//	hold:PATH   the turn ends when PATH exists
//	fail        the turn ends with an error
//	ask         the turn waits behind an approval dialog (y: goes on, Escape: aborted)
//	run:COMMAND as ask, for this command, _ for a space; several come one by one
//	quiz        the turn waits behind a questionnaire of two questions; quiz:secret has
//	            a secret one, quiz:stuck ignores Enter, quiz:deaf the arrows
//	late:MS     the acceptance record is written MS milliseconds after Enter
//	deaf        Enter is ignored, the draft stays
//	paint:MS    what was pasted is shown MS milliseconds later
//	dull:MS     Enter is heard, and acted upon MS milliseconds later
//	drop        Enter clears the draft, no record is ever written
//	quit        the process ends in the middle of the turn
//
// Where the environment names a file in StampVariable, each completion appends a
// line to it: the reading of CLOCK_MONOTONIC, in nanoseconds, when the record was
// about to be written, and the request's first word. To the file that KeysVariable
// names it adds every byte that it reads from its terminal. ThreadsVariable makes
// it hold so many threads instead of one. The closed commands /status, /clear and
// /resume ID work; MuteVariable makes them fail.
package scripted

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Names are the file names of the agents' executables.
const (
	Name       = "codex"
	ClaudeName = "claude"
)

// Versions are what the agents say they are.
const (
	Version       = "0.171.0"
	ClaudeVersion = "2.1.332"
)

// Variables of the agent's environment.
const (
	StampVariable   = "SCRIPTED_STAMPS"  // file for the times of completions
	KeysVariable    = "SCRIPTED_KEYS"    // file for all input
	ThreadsVariable = "SCRIPTED_THREADS" // number of threads that are held
)

// tickEvery is how often an open turn is looked at.
const tickEvery = 20 * time.Millisecond

// Wanted reports whether this process was started as an agent. The executable
// tells, not its first argument: discovery runs it by another name.
func Wanted() bool { return self() == Name || self() == ClaudeName }

func self() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Base(exe)
}

// Install puts a copy of the running binary into dir as Codex and gives its path.
// A hard link is used where possible.
func Install(dir string) (string, error) { return install(dir, Name) }

// InstallClaude is the same for Claude Code.
func InstallClaude(dir string) (string, error) { return install(dir, ClaudeName) }

func install(dir, name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if os.Link(self, path) == nil {
		return path, nil
	}
	data, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, data, 0o700)
}

// Main runs the agent and gives its exit status. CODEX_HOME names the home of
// Codex, CLAUDE_CONFIG_DIR or HOME that of Claude Code.
func Main() int {
	if self() == ClaudeName {
		return claudeMain()
	}
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("codex-cli " + Version)
		return 0
	}
	a, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer a.stop()
	loop(a)
	return 0
}

// A program is an agent as the loop sees it.
type program interface {
	// keys consumes whole keys and pastes and gives back what is not whole yet.
	keys(b []byte) []byte
	// escape is a lone Escape.
	escape()
	// step moves the open turn; false ends the process.
	step() bool
	// idle reports that nothing is to be moved.
	idle() bool
	// draw paints the whole screen.
	draw()
}

type agent struct {
	thread string
	cwd    string
	home   string
	locks  []*os.File // of its thread, then of those that it holds besides
	rec    *recorder
	old    *term.State

	width, height int
	draft         string
	answer        string
	printed       []string // rows of closed commands
	turn          *turn
	quiz          *quiz
}

type turn struct {
	id     string
	text   string
	accept time.Time // when the acceptance record is due; zero: written
	asks   []string  // commands that are still to be asked for
	call   string    // id of the unanswered call
	asking string    // its command
	calls  int       // that were made
}

func start() (*agent, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	a := &agent{thread: uuid.Must(uuid.NewV7()).String(), cwd: cwd, home: os.Getenv("CODEX_HOME")}
	locks := filepath.Join(a.home, "thread-writer-locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	threads, _ := strconv.Atoi(os.Getenv(ThreadsVariable))
	for id := a.thread; len(a.locks) < max(threads, 1); id = uuid.Must(uuid.NewV7()).String() {
		f, err := os.Create(filepath.Join(locks, id+".lock"))
		if err != nil {
			return nil, err
		}
		_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // as Codex holds it
		a.locks = append(a.locks, f)
	}
	a.rec = &recorder{home: a.home, thread: a.thread, cwd: cwd}
	if a.old, err = term.MakeRaw(int(os.Stdin.Fd())); err != nil {
		return nil, err
	}
	if a.width, a.height, err = term.GetSize(int(os.Stdout.Fd())); err != nil {
		return nil, err
	}
	fmt.Print("\x1b[?1049h\x1b[?2004h")
	a.draw()
	return a, nil
}

func (a *agent) stop() {
	fmt.Print("\x1b[?2004l\x1b[?1049l")
	_ = term.Restore(int(os.Stdin.Fd()), a.old)
	for _, f := range a.locks {
		_ = os.Remove(f.Name())
	}
}

// loop reads keys and moves the open turn on. The reading goroutine ends with
// the process.
func loop(a program) {
	keys := make(chan []byte)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := os.Stdin.Read(buf)
			if err != nil {
				close(keys)
				return
			}
			if path := os.Getenv(KeysVariable); path != "" {
				add(path, buf[:n])
			}
			keys <- bytes.Clone(buf[:n])
		}
	}()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var pending []byte
	for {
		// An idle agent, as a real one, wakes for nothing.
		if a.idle() && len(pending) == 0 {
			tick.Stop()
		} else {
			tick.Reset(tickEvery)
		}
		select {
		case b, ok := <-keys:
			if !ok {
				return
			}
			pending = a.keys(append(pending, b...))
			a.draw()
		case <-tick.C:
			if bytes.Equal(pending, []byte{0x1b}) {
				pending = nil
				a.escape()
				a.draw()
			}
			if !a.step() {
				return
			}
		}
	}
}

// What a terminal puts around a paste.
const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

func (a *agent) idle() bool { return a.turn == nil }

func (a *agent) keys(b []byte) []byte {
	const begin, end = pasteBegin, pasteEnd
	for len(b) > 0 {
		if a.quiz != nil {
			return a.quizKeys(b)
		}
		switch {
		case bytes.HasPrefix(b, []byte(begin)):
			i := bytes.Index(b, []byte(end))
			if i < 0 {
				return b
			}
			if !a.dialog() {
				a.draft += strings.ReplaceAll(string(b[len(begin):i]), "\r", "\n")
				time.Sleep(word(a.draft, "paint:"))
			}
			b = b[i+len(end):]
		case len(b) < len(begin) && b[0] == 0x1b:
			return b
		case b[0] == 0x1b:
			a.escape()
			b = b[1:]
		case b[0] == '\r':
			a.enter()
			b = b[1:]
		case a.dialog():
			if b[0] == 'y' {
				a.answerCall("approved")
			}
			b = b[1:]
		case b[0] == 0x15:
			a.draft = ""
			b = b[1:]
		default:
			a.draft += string(b[:1])
			b = b[1:]
		}
	}
	return b
}

func (a *agent) dialog() bool { return a.turn != nil && a.turn.call != "" }

func (a *agent) enter() {
	text := strings.TrimSpace(a.draft)
	if text == "" || has(text, "deaf") || a.dialog() {
		return
	}
	if strings.HasPrefix(text, "/") && a.turn == nil {
		a.command(text)
		return
	}
	time.Sleep(word(text, "dull:"))
	a.draft = ""
	if has(text, "drop") {
		return
	}
	if a.turn != nil { // a steer: a second message of the same turn
		a.rec.user(a.turn.id, text)
		return
	}
	a.turn = &turn{id: uuid.Must(uuid.NewV7()).String(), text: text, accept: time.Now().Add(word(text, "late:"))}
}

func (a *agent) escape() {
	if a.turn == nil || !a.turn.accept.IsZero() {
		return
	}
	if a.turn.call != "" {
		a.answerCall("aborted by user")
	}
	a.rec.aborted(a.turn.id)
	a.quiz = nil
	a.turn, a.answer = nil, "■ Conversation interrupted"
}

func (a *agent) answerCall(output string) {
	a.rec.output(a.turn.call, output)
	a.turn.call = ""
}

// ask opens the dialog of the next command, if there is one.
func (a *agent) ask() {
	t := a.turn
	if len(t.asks) == 0 {
		return
	}
	t.asking, t.asks = t.asks[0], t.asks[1:]
	t.calls++
	t.call = fmt.Sprintf("call_%s_%d", t.id[:8], t.calls)
	a.rec.call(t.call, a.cwd, t.asking)
}

// commands gives what a request asks for.
func commands(text string) []string {
	var out []string
	for _, f := range strings.Fields(text) {
		if c, ok := strings.CutPrefix(f, "run:"); ok {
			out = append(out, strings.ReplaceAll(c, "_", " "))
		} else if f == "ask" {
			out = append(out, "touch /tmp/scripted")
		}
	}
	return out
}

func (a *agent) step() bool {
	t := a.turn
	switch {
	case t == nil, !t.accept.IsZero() && time.Now().Before(t.accept):
		return true
	case !t.accept.IsZero():
		a.rec.began(t.id)
		a.rec.user(t.id, t.text)
		t.accept = time.Time{}
		t.asks = commands(t.text)
		if a.question(); a.quiz == nil {
			a.ask()
		}
	case has(t.text, "quit"):
		return false
	case t.call != "":
		return true
	case len(t.asks) > 0:
		a.ask()
	default:
		if path := argument(t.text, "hold:"); path != "" {
			if _, err := os.Stat(path); err != nil {
				return true
			}
		}
		a.answer = "ECHO: " + t.text
		if has(t.text, "fail") {
			a.rec.failed(t.id, "scripted failure")
			a.answer = "■ scripted failure"
		} else {
			at := monotonic()
			a.rec.completed(t.id, "ECHO: "+t.text)
			stamp(at, t.text)
		}
		a.turn = nil
	}
	a.draw()
	return true
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// stamp notes when the turn of text ended, where somebody asked for it. One
// write is one line, however many agents share the file.
func stamp(at int64, text string) {
	path := os.Getenv(StampVariable)
	if path == "" {
		return
	}
	add(path, fmt.Appendf(nil, "%d %s\n", at, strings.Fields(text)[0]))
}

// add appends to a file in one write.
func add(path string, data []byte) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		panic(err)
	}
}

func has(text, w string) bool {
	for _, f := range strings.Fields(text) {
		if f == w {
			return true
		}
	}
	return false
}

func argument(text, prefix string) string {
	for _, f := range strings.Fields(text) {
		if v, ok := strings.CutPrefix(f, prefix); ok {
			return v
		}
	}
	return ""
}

func word(text, prefix string) time.Duration {
	n, _ := strconv.Atoi(argument(text, prefix))
	return time.Duration(n) * time.Millisecond
}
