package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"drawbridge/shared/process"
)

// A Pane is one tmux pane of the rig. Its methods do what a person at the
// keyboard does; they never judge a screen for the product.
type Pane struct {
	ID      string // "%3"
	Target  string // session:window.pane, as tmux prints it
	Agent   string // Codex or Claude; empty in a shell
	Dir     string // work tree
	Home    string // agent home: CODEX_HOME, HOME of Claude Code
	Version string // agent version
	Process process.Incarnation
	PID     int // the agent's process

	r *Rig
}

// Type sends text as single keys, as fast as tmux does. A newline is Enter.
func (p *Pane) Type(text string) {
	p.r.tb.Helper()
	p.r.Tmux("send-keys", "-t", p.ID, "-l", "--", text)
}

// Paste pastes text with paste brackets where the program wants them.
func (p *Pane) Paste(text string) {
	p.r.tb.Helper()
	file := filepath.Join(p.r.Dir, "paste"+strings.TrimPrefix(p.ID, "%"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.r.tb.Fatalf("rig: paste: %v", err)
	}
	buffer := "rig" + strings.TrimPrefix(p.ID, "%")
	p.r.Tmux("load-buffer", "-b", buffer, file)
	p.r.Tmux("paste-buffer", "-p", "-d", "-r", "-b", buffer, "-t", p.ID)
}

// Key presses one key by its tmux name: Enter, Escape, Down, C-u.
func (p *Pane) Key(name string) {
	p.r.tb.Helper()
	p.r.Tmux("send-keys", "-t", p.ID, name)
}

// Submit pastes text, waits until the screen shows its end, and presses Enter.
func (p *Pane) Submit(text string) {
	p.r.tb.Helper()
	p.Paste(text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	tail := lines[len(lines)-1]
	if len(tail) > 40 {
		tail = tail[:40]
	}
	p.Await("the pasted draft", func(s Screen) bool {
		return s.Composer.Seen && (strings.Contains(s.Text, tail) || strings.Contains(s.Text, "[Pasted "))
	})
	p.Key("Enter")
}

// Run submits text and waits until the agent can take the next message.
func (p *Pane) Run(text string) {
	p.r.tb.Helper()
	before := p.ended()
	p.Submit(text)
	p.r.Eventually(screenWait, "the end of the turn "+text, func() bool { return p.ended() > before })
	p.AwaitIdle()
}

// ended counts the turns that the agent's own records call finished.
func (p *Pane) ended() int {
	n := 0
	for _, file := range p.Rollouts() {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // created this moment
		}
		if p.Agent == Claude {
			n += claudeEnded(string(raw))
			continue
		}
		n += strings.Count(string(raw), `"type":"task_complete"`) + strings.Count(string(raw), `"type":"turn_aborted"`)
	}
	return n
}

// Screen takes the pane's screen now.
func (p *Pane) Screen() Screen {
	p.r.tb.Helper()
	return p.look(p.Styled())
}

func (p *Pane) look(styled string) Screen {
	if p.Agent == Claude {
		return LookClaude(styled)
	}
	return Look(styled)
}

// Styled is the screen with its escape sequences.
func (p *Pane) Styled() string {
	p.r.tb.Helper()
	return p.r.Tmux("capture-pane", "-e", "-p", "-t", p.ID)
}

// Await polls the screen until ok holds.
func (p *Pane) Await(what string, ok func(Screen) bool) Screen {
	p.r.tb.Helper()
	var last Screen
	if !p.r.poll(screenWait, func() bool { last = p.Screen(); return ok(last) }) {
		p.r.tb.Fatalf("rig: pane %s does not show %s within %s; it shows:\n%s", p.ID, what, screenWait, last.Text)
	}
	return last
}

// AwaitText waits until the screen contains text.
func (p *Pane) AwaitText(text string) Screen {
	p.r.tb.Helper()
	return p.Await(fmt.Sprintf("%q", text), func(s Screen) bool { return strings.Contains(s.Text, text) })
}

// AwaitIdle waits until the agent shows an empty composer, twice.
func (p *Pane) AwaitIdle() Screen {
	p.r.tb.Helper()
	var since time.Time
	return p.Await("an idle composer", func(s Screen) bool {
		if !p.settled(s) {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= idleFor
	})
}

// Rollouts lists the transcripts of the pane's home, oldest first.
func (p *Pane) Rollouts() []string {
	if p.Agent == Claude {
		return p.claudeTranscripts()
	}
	files, err := filepath.Glob(filepath.Join(p.Home, "sessions", "*", "*", "*", "rollout-*.jsonl"))
	if err != nil {
		return nil // the pattern is right; there is no other error
	}
	sort.Slice(files, func(i, j int) bool { return filepath.Base(files[i]) < filepath.Base(files[j]) })
	return files
}

// Kill ends the agent's process with SIGKILL; the pane stays, with a shell.
func (p *Pane) Kill() {
	p.r.tb.Helper()
	if err := process.Signal(p.Process, killSignal); err != nil {
		p.r.tb.Fatalf("rig: kill the agent of pane %s: %v", p.ID, err)
	}
	p.r.Eventually(exitWait, "the end of the agent", func() bool { gone, known := p.Process.Gone(); return gone && known })
	removeClaudeSockets([]process.Incarnation{p.Process})
}

// Close removes the pane with all that runs in it.
func (p *Pane) Close() {
	p.r.tb.Helper()
	p.r.Tmux("kill-pane", "-t", p.ID)
}

// Screen is what a pane shows.
type Screen struct {
	Styled   string
	Text     string // without escape sequences, trailing blanks and empty last rows
	Composer Composer
}

// Composer is the agent's input box as a person sees it.
type Composer struct {
	Seen  bool
	Empty bool // its text is dim: a placeholder
	Ready bool // it is drawn whole: a row below it names the model (Codex), or its lower rule is there
}

var (
	escapes = regexp.MustCompile(`\x1b\[[0-9;:]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)`)
	dim     = regexp.MustCompile(`\x1b\[(?:[0-9;]*;)?2(?:;[0-9;]*)?m`)
)

// Model is the model name in the rig's configuration, and so in footers.
const Model = "gpt-5-codex"

// Look reads a styled capture of Codex. It is deliberately simpler than the
// product's own reading: it only has to know when a person would type.
func Look(styled string) Screen {
	s, rows, plain := bare(styled)
	for i := len(rows) - 1; i >= 0; i-- {
		if !strings.HasPrefix(plain[i], "›") {
			continue
		}
		s.Composer.Seen = true
		_, after, _ := strings.Cut(rows[i], "›")
		s.Composer.Empty = dim.MatchString(after)
		for _, below := range plain[i+1:] {
			s.Composer.Ready = s.Composer.Ready || strings.Contains(below, Model)
		}
		break
	}
	return s
}

// bare takes the escape sequences off.
func bare(styled string) (s Screen, rows, plain []string) {
	rows = strings.Split(strings.TrimRight(styled, "\n"), "\n")
	plain = make([]string, len(rows))
	for i, row := range rows {
		plain[i] = strings.TrimRight(escapes.ReplaceAllString(row, ""), " ")
	}
	return Screen{Styled: styled, Text: strings.TrimRight(strings.Join(plain, "\n"), "\n")}, rows, plain
}

// Idle reports an empty composer of a ready agent without a busy line.
func (s Screen) Idle() bool {
	return s.Composer.Seen && s.Composer.Empty && s.Composer.Ready && !s.Busy()
}

// Busy reports the line of a running turn; a turn that streams shows none.
func (s Screen) Busy() bool { return strings.Contains(s.Text, "esc to interrupt") }
