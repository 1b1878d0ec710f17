package rule

import (
	"fmt"
	"regexp"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// threadSlot stands in a command's text for the thread that it names.
const threadSlot = "{thread}"

var threadPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// nativeJSON is what an agent version does by commands of its own. Nothing else
// that begins with a slash is ever typed.
type nativeJSON struct {
	Profile  string                 `json:"profile"`  // name of the proven behaviour, shown to the caller
	Commands map[string]commandJSON `json:"commands"` // by operation: status, new, resume
	Choices  []rowJSON              `json:"choices"`  // highlighted row of the popup that a typed command opens; group command
	Around   []rowJSON              `json:"around"`   // further rows that may stand below a typed command
	Card     *cardJSON              `json:"card"`     // what status shows
}

// commandJSON is one closed command. The text of resume holds {thread} once.
type commandJSON struct {
	Text    string `json:"text"`
	Dismiss string `json:"dismiss"` // key that closes what the command opened; "" where it leaves nothing open
	Columns int    `json:"columns"` // least pane in which the outcome can be read
	Rows    int    `json:"rows"`
}

// The compiled forms.
type (
	command struct {
		text          string
		dismiss       terminal.Key
		columns, rows int
	}
	native struct {
		profile         string
		commands        map[agent.Op]command
		choices, around []row
		card            *card
	}
)

// Profile names the behaviour that the native commands were proven with; ""
// where the file has none.
func (f *File) Profile() string {
	if n := f.engine().native; n != nil {
		return n.profile
	}
	return ""
}

// Command gives the closed command for op; thread is for agent.OpResume.
func (f *File) Command(op agent.Op, thread string) (agent.Command, error) {
	e := f.engine()
	if e.native == nil {
		return agent.Command{}, noCommand(f, op)
	}
	c, ok := e.native.commands[op]
	if !ok {
		return agent.Command{}, noCommand(f, op)
	}
	out := agent.Command{Text: c.text, Dismiss: c.dismiss, Columns: c.columns, Rows: c.rows, Profile: e.native.profile}
	if strings.Contains(c.text, threadSlot) {
		if !threadPattern.MatchString(thread) {
			return agent.Command{}, fault.New(fault.InvalidArguments, "make the %s command of %s: %.60q is no thread id in lower case", op, f.agent, thread).Safe()
		}
		out.Text = strings.Replace(c.text, threadSlot, thread, 1)
	}
	text := out.Text
	out.Standing = func(s terminal.Screen) bool { return e.standing(text, s) }
	return out, nil
}

// standing reports whether the composer holds exactly one closed command, and
// Enter would run it: either it would be sent as it stands, or the popup that it
// opened highlights exactly its name.
func (f *engine) standing(text string, s terminal.Screen) bool {
	if s.Pane.Dead {
		return false
	}
	parsed := screen.Parse(s.Text, s.Pane.Width, s.Pane.Height)
	if r := f.judge(parsed); r.State == agent.Idle && r.Composer.Seen && r.Composer.Held == "" {
		return r.Composer.Draft == text
	}
	at, m := f.composer.last(parsed)
	if parsed.Cut || at < 0 || m.held != "" || strings.TrimRight(parsed.Rows[at].From(f.composer.indent), " ") != text {
		return false
	}
	name, _, _ := strings.Cut(text, " ")
	hits := 0
	for i := max(0, at-f.popups.window); i < len(parsed.Rows); i++ {
		r := parsed.Rows[i]
		if i == at {
			continue
		}
		if got, ok := f.chosen(r); ok {
			if got != name {
				return false
			}
			hits++
			continue
		}
		if i > at && !r.Blank() && !f.below(r) {
			return false
		}
	}
	return hits == 1
}

// chosen gives the command that a popup's highlighted row names.
func (f *engine) chosen(r screen.Row) (string, bool) {
	for _, c := range f.native.choices {
		if sub, _, ok := c.match(r); ok {
			return c.group(r, sub, "command"), true
		}
	}
	return "", false
}

// below reports whether a row may stand below a typed command.
func (f *engine) below(r screen.Row) bool {
	for _, p := range f.popups.rows {
		if p.row.matches(r) {
			return true
		}
	}
	for _, ft := range f.footer {
		if ft.means != meansBusy && ft.means != meansBlocked && ft.row.matches(r) {
			return true
		}
	}
	return anyMatches(f.native.around, r)
}

func noCommand(f *File, op agent.Op) error {
	return fault.New(fault.VersionUnsupported, "find the %s command of %s: rule file %s proves none", op, f.agent, f.name).Safe()
}

func (c *compiler) native(at string, j *nativeJSON) *native {
	if j == nil {
		return nil
	}
	out := &native{profile: j.Profile, commands: map[agent.Op]command{}}
	if !wordPattern.MatchString(j.Profile) {
		c.fail(at+"/profile", "is not a lower case word")
	}
	if len(j.Commands) == 0 {
		c.fail(at+"/commands", "is empty")
	}
	for name, cj := range j.Commands {
		cat := at + "/commands/" + name
		c.oneOf(cat, name, string(agent.OpStatus), string(agent.OpNew), string(agent.OpResume))
		out.commands[agent.Op(name)] = c.command(cat, name, cj)
	}
	out.choices, out.around = c.rowList(at+"/choices", j.Choices), c.rowList(at+"/around", j.Around)
	for i, r := range out.choices {
		cat := fmt.Sprintf("%s/choices/%d", at, i)
		c.groups(cat, r, "command")
		if len(j.Choices[i].Style) == 0 {
			c.fail(cat+"/style", "tests nothing: every row of the popup would be highlighted")
		}
	}
	if j.Card != nil {
		out.card = c.card(at+"/card", j.Card)
	}
	if _, ok := out.commands[agent.OpStatus]; ok != (j.Card != nil) {
		c.fail(at+"/card", "belongs to the command %q: without a card its outcome proves nothing", agent.OpStatus)
	}
	return out
}

func (c *compiler) command(at, op string, j commandJSON) command {
	out := command{text: j.Text, columns: j.Columns, rows: j.Rows}
	if !strings.HasPrefix(j.Text, "/") || strings.TrimSpace(j.Text) != j.Text || strings.ContainsAny(j.Text, "\n\t") {
		c.fail(at+"/text", "is not one line that begins with a slash")
	}
	want := 0
	if op == string(agent.OpResume) {
		want = 1
	}
	if strings.Count(j.Text, threadSlot) != want {
		c.fail(at+"/text", "must hold %s %d times", threadSlot, want)
	}
	if j.Dismiss != "" {
		out.dismiss = c.key(at+"/dismiss", j.Dismiss)
	}
	c.within(at+"/columns", j.Columns, 0, 1000)
	c.within(at+"/rows", j.Rows, 0, 1000)
	return out
}

// groups checks that an expression has the groups that the engine reads.
func (c *compiler) groups(at string, r row, names ...string) {
	for _, n := range names {
		if r.re != nil && r.re.SubexpIndex(n) < 0 {
			c.fail(at+"/text", "has no group %s", n)
		}
	}
}

// pattern compiles an expression over a whole text.
func (c *compiler) pattern(at, text string) *regexp.Regexp {
	re, err := regexp.Compile(`^(?:` + text + `)$`)
	if err != nil || text == "" {
		c.fail(at, "is not an expression: %s", fmt.Sprint(err))
		return nil
	}
	return re
}
