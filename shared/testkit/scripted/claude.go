package scripted

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/term"
)

// claude is the look-alike of Claude Code.
type claude struct {
	cwd string
	reg *registry
	rec *transcript
	old *term.State

	width, height int
	history       []string // drawn rows above the composer
	draft         string
	pastes        map[string]string // long pastes of the draft, by what stands for them
	pasted        int               // long pastes so far
	stash         string
	armed         time.Time // Ctrl-C was pressed on an empty composer
	turn          *claudeTurn
	open          box // what stands in place of the composer
	queued        []string
	resume        string // session that is being resumed
	resumeAt      time.Time
	quit          bool
}

// A box stands where the composer was until it is decided.
type box interface {
	rows(c *claude) []string
	key(c *claude, k string)
	waiting() string // what the registry says
}

type claudeTurn struct {
	text, source string
	shown        string            // what the composer held
	pastes       map[string]string // and what stood for long pastes in it
	prompt       string            // id of the prompt
	parent       string            // tip of the chain before it
	accept       time.Time         // when the acceptance record is due; zero: written
	said         bool              // text was put out
	calls        []*toolCall
	ready        time.Time // the records of the end are due; zero: not yet idle
}

// A toolCall is one call of the turn, answered in order.
type toolCall struct {
	id, name  string
	input     object
	assistant string // uuid of its record, "" until written
	done      bool
}

func claudeMain() int {
	session, resumed := "", false
	for i, arg := range os.Args {
		switch {
		case arg == "--version":
			fmt.Println(ClaudeVersion + " (Claude Code)")
			return 0
		case (arg == "--session-id" || arg == "--resume") && i+1 < len(os.Args):
			session, resumed = os.Args[i+1], arg == "--resume"
		}
	}
	c, err := startClaude(session, resumed)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.stop()
	loop(c)
	return 0
}

func startClaude(session string, resumed bool) (*claude, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	home := os.Getenv("CLAUDE_CONFIG_DIR")
	if home == "" {
		home = filepath.Join(os.Getenv("HOME"), ".claude")
	}
	if session == "" {
		session = uuid.NewString()
	}
	c := &claude{cwd: cwd, pastes: map[string]string{}}
	c.rec = &transcript{home: home, session: session, cwd: cwd}
	if resumed {
		if err := c.rec.resume(); err != nil {
			return nil, err
		}
	}
	if c.old, err = term.MakeRaw(int(os.Stdin.Fd())); err != nil {
		return nil, err
	}
	if c.width, c.height, err = term.GetSize(int(os.Stdout.Fd())); err != nil {
		return nil, err
	}
	if c.reg, err = register(home, session, cwd); err != nil {
		return nil, err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		c.stop()
		os.Exit(0)
	}()
	fmt.Print("\x1b[?1049h\x1b[?2004h")
	c.history = []string{"", bold + "Claude Code" + plain + " " + grey + "v" + ClaudeVersion + plain, grey + cwd + plain}
	c.reg.set("idle", "")
	c.draw()
	return c, nil
}

func (c *claude) stop() {
	fmt.Print("\x1b[?2004l\x1b[?1049l")
	_ = term.Restore(int(os.Stdin.Fd()), c.old)
	fmt.Printf("%sResume this session with:%s\nclaude --resume %s\n", dim, plain, c.rec.session)
	c.reg.remove()
}

// claudeKeys are the keys that are more than one byte, by their name here.
var claudeKeys = []struct{ bytes, name string }{
	{"\x1b[A", "up"}, {"\x1bOA", "up"}, {"\x1b[B", "down"}, {"\x1bOB", "down"}, {"\x1b[C", "right"}, {"\x1b[D", "left"},
	{"\x1b[Z", "backtab"}, {"\r", "enter"}, {"\t", "tab"}, {"\n", "newline"}, {"\x03", "interrupt"}, {"\x13", "stash"},
	{"\x15", "kill"}, {"\x7f", "backspace"},
}

func (c *claude) keys(b []byte) []byte {
next:
	for len(b) > 0 {
		if bytes.HasPrefix(b, []byte(pasteBegin)) {
			i := bytes.Index(b, []byte(pasteEnd))
			if i < 0 {
				return b
			}
			c.paste(string(b[len(pasteBegin):i]))
			b = b[i+len(pasteEnd):]
			continue
		}
		for _, k := range claudeKeys {
			if bytes.HasPrefix(b, []byte(k.bytes)) {
				c.key(k.name)
				b = b[len(k.bytes):]
				continue next
			}
		}
		if b[0] == 0x1b {
			if len(b) == 1 || bytes.HasPrefix([]byte(pasteBegin), b) {
				return b // the clock decides whether it is a lone Escape
			}
			c.escape()
			b = b[1:]
			continue
		}
		if !utf8.FullRune(b) {
			return b
		}
		r, n := utf8.DecodeRune(b)
		c.key(string(r))
		b = b[n:]
	}
	return nil
}

// inlineLines and inlineChars bound what a paste may have to stay visible.
const (
	inlineLines = 3
	inlineChars = 800
)

// pasteID is the mark of pasted content in records; it is the session's.
const pasteID = "6ac7"

func (c *claude) paste(text string) {
	if s, ok := c.open.(*sheet); ok && s.typing() {
		for _, r := range text {
			s.key(c, string(r))
		}
		return
	}
	if c.open != nil {
		return // every other dialog ignores pastes
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r", "\n"), "\t", "    ")
	lines := strings.Count(text, "\n")
	if lines < inlineLines && utf8.RuneCountInString(text) <= inlineChars {
		c.draft += text
		return
	}
	for mark, held := range c.pastes { // the same once more shows it
		if held == text && strings.Contains(c.draft, mark) {
			c.draft = strings.Replace(c.draft, mark, text, 1)
			delete(c.pastes, mark)
			return
		}
	}
	c.pasted++
	mark := fmt.Sprintf("[Pasted text #%d]", c.pasted)
	if lines > 0 {
		mark = fmt.Sprintf("[Pasted text #%d +%d lines]", c.pasted, lines)
	}
	c.pastes[mark] = text
	c.draft += mark
}

// prompt is what the draft is recorded as.
func (c *claude) prompt() string {
	text := c.draft
	for mark, held := range c.pastes {
		text = strings.Replace(text, mark, fmt.Sprintf("\n\n<pasted_content id=%q>\n%s\n</pasted_content id=%q>\n", pasteID, held, pasteID), 1)
	}
	if len(c.pastes) > 0 && strings.HasSuffix(text, ">\n") {
		return text
	}
	return strings.TrimRight(text, " \n")
}

func (c *claude) key(k string) {
	if c.open != nil {
		c.open.key(c, k)
		return
	}
	if k != "interrupt" {
		c.armed = time.Time{}
	}
	switch k {
	case "enter":
		c.enter()
	case "newline":
		c.draft += "\n"
	case "interrupt":
		switch {
		case c.turn != nil:
			c.escape()
		case time.Since(c.armed) < time.Second:
			c.quit = true
		default:
			c.armed = time.Now()
			c.clearDraft()
		}
	case "stash":
		if c.draft != "" {
			c.stash = c.draft
			c.clearDraft()
		} else {
			c.draft, c.stash = c.stash, ""
		}
	case "kill":
		if i := strings.LastIndexByte(c.draft, '\n'); i >= 0 {
			c.draft = c.draft[:i]
		} else {
			c.clearDraft()
		}
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(c.draft)
		c.draft = c.draft[:len(c.draft)-n]
	case "up", "down", "left", "right", "tab", "backtab":
	default:
		c.draft += k
	}
}

func (c *claude) clearDraft() {
	c.draft = ""
	clear(c.pastes)
}

func (c *claude) enter() {
	shown, pastes, text := c.draft, maps.Clone(c.pastes), c.prompt()
	bare := strings.TrimSpace(c.draft)
	switch {
	case bare == "" || has(text, "deaf"):
		return
	case strings.HasPrefix(bare, "!"):
		c.clearDraft()
		c.say("  ⎿  ran outside any turn")
		return
	case command.MatchString(bare):
		c.clearDraft()
		c.command(bare)
		return
	}
	c.clearDraft()
	if has(text, "drop") {
		return
	}
	if c.stash != "" {
		c.draft, c.stash = c.stash, ""
	}
	if c.turn != nil {
		c.queued = append(c.queued, text)
		c.rec.queue("enqueue", text)
		return
	}
	c.begin(text, shown, "typed")
	c.turn.pastes = pastes
}

// begin starts a turn: the registry says so first, the record follows.
func (c *claude) begin(text, shown, source string) {
	c.echo(shown)
	c.turn = &claudeTurn{text: text, source: source, shown: shown, prompt: uuid.NewString(), parent: c.rec.tip, accept: time.Now().Add(word(text, "late:"))}
	c.reg.set("busy", "")
}

// command is a slash command; a path is a prompt.
var command = regexp.MustCompile(`^/[a-z][a-z-]*(?: |$)`)

func (c *claude) command(text string) {
	name, arg, _ := strings.Cut(text, " ")
	c.echo(text)
	switch name {
	case "/status":
		c.show(&panel{kind: "status"})
	case "/clear", "/new":
		c.history = nil
		c.echo(text)
		c.rec.fresh(uuid.NewString())
		c.rec.local("clear")
		c.reg.session = c.rec.session
		c.reg.set("idle", "")
	case "/resume":
		if arg == "" {
			c.show(&panel{kind: "resume"})
			return
		}
		if _, err := os.Stat(c.rec.path(arg)); err != nil {
			c.say("  ⎿  Session " + bold + arg + plain + " was not found.")
			return
		}
		c.resume, c.resumeAt = arg, time.Now().Add(100*time.Millisecond)
		c.reg.session = arg
		c.reg.set("busy", "")
	case "/exit":
		c.quit = true
	default:
		c.say("  ⎿  Unknown command: " + name)
		c.rec.informational("Unknown command: " + name)
	}
}

// show opens a box.
func (c *claude) show(b box) {
	c.open = b
	c.reg.set("waiting", b.waiting())
}

// shut closes the box; the turn goes on, or the pane is idle.
func (c *claude) shut() {
	c.open = nil
	if c.turn != nil {
		c.reg.set("busy", "")
	} else {
		c.reg.set("idle", "")
	}
}

func (c *claude) escape() {
	switch {
	case c.open != nil:
		c.open.key(c, "escape")
	case c.turn == nil:
	case !c.turn.accept.IsZero():
	case !c.turn.said:
		// Before any output nothing is recorded, and the prompt comes back: the next
		// one takes its place in the chain.
		c.rec.tip = c.turn.parent
		c.draft = c.turn.shown
		maps.Copy(c.pastes, c.turn.pastes)
		c.finish()
	default:
		c.rec.partial("Some of the answer")
		c.rec.interrupted(c.turn.prompt, "[Request interrupted by user]")
		c.say("  ⎿  Interrupted · What should Claude do instead?")
		c.finish()
	}
}

// finish ends the turn; what is queued is sent as the next one.
func (c *claude) finish() {
	c.turn = nil
	c.reg.set("idle", "")
	if len(c.queued) == 0 {
		return
	}
	text := strings.Join(c.queued, "\n")
	for _, q := range c.queued {
		c.rec.queue("dequeue", q)
	}
	c.queued = nil
	c.begin(text, text, "queued")
}

func (c *claude) idle() bool { return c.turn == nil && c.resume == "" && c.armed.IsZero() && !c.quit }

func (c *claude) step() bool {
	if c.quit {
		return false
	}
	if !c.armed.IsZero() && time.Since(c.armed) > time.Second {
		c.armed = time.Time{}
		c.draw()
	}
	if c.resume != "" && time.Now().After(c.resumeAt) {
		c.rec.session = c.resume
		_ = c.rec.resume() // it was there a moment ago
		c.resume = ""
		c.reg.set("idle", "")
		c.draw()
	}
	if c.turn == nil {
		return true
	}
	return c.advance(c.turn)
}

// advance does the next thing of the turn that is due.
func (c *claude) advance(t *claudeTurn) bool {
	switch {
	case !t.accept.IsZero() && time.Now().Before(t.accept):
		return true
	case !t.accept.IsZero():
		c.rec.user(t.prompt, t.source, t.text)
		t.accept = time.Time{}
		t.calls = callsOf(t.text, c.cwd)
		if has(t.text, "talk") {
			t.said = true
			c.say("\x1b[38;5;231m●" + plain + " Some of the answer")
		}
		if len(t.calls) > 0 {
			t.said = true
			// The dialog is there before the record of what it asks.
			c.show(boxOf(t.calls[0], c))
		}
	case has(t.text, "quit"):
		return false
	case slices.ContainsFunc(t.calls, func(k *toolCall) bool { return k.assistant == "" }):
		c.rec.calls(t.calls)
	case c.open != nil:
		return true
	case slices.ContainsFunc(t.calls, func(k *toolCall) bool { return !k.done }):
		i := slices.IndexFunc(t.calls, func(k *toolCall) bool { return !k.done })
		c.show(boxOf(t.calls[i], c))
	default:
		return c.conclude(t)
	}
	c.draw()
	return true
}

// conclude ends the turn when it may end.
func (c *claude) conclude(t *claudeTurn) bool {
	if path := argument(t.text, "hold:"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return true
		}
	}
	if has(t.text, "fail") {
		c.rec.failed("API Error: 400 scripted failure")
		c.say("\x1b[38;5;220m● API Error: 400 scripted failure" + plain)
		c.finish()
		c.draw()
		return true
	}
	if t.ready.IsZero() {
		// The registry is idle before the last records are there.
		t.ready = time.Now().Add(word(t.text, "lag:"))
		c.reg.set("idle", "")
		c.say("\x1b[38;5;231m●" + plain + " " + clipRow(firstLine("ECHO: "+strings.TrimSpace(t.text)), c.width-2))
	}
	if time.Now().Before(t.ready) {
		return true
	}
	at := monotonic()
	c.rec.completed("ECHO: " + strings.TrimSpace(t.text))
	stamp(at, t.text)
	c.finish()
	c.draw()
	return true
}

// decided takes the person's decision about the first open call.
func (c *claude) decided(accepted bool, output string, result any) {
	t := c.turn
	for _, k := range t.calls {
		if k.done {
			continue
		}
		if k.assistant == "" {
			c.rec.calls(t.calls)
		}
		k.done = true
		c.rec.result(t.prompt, k, accepted, output, result)
		break
	}
	c.shut()
	if !accepted {
		c.rec.interrupted(t.prompt, "[Request interrupted by user for tool use]")
		c.say("  ⎿  Interrupted · What should Claude do instead?")
		c.finish()
	}
}
