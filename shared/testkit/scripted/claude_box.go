package scripted

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// callsOf gives the calls that the words of a request want.
func callsOf(text, cwd string) []*toolCall {
	call := func(name string, input object) *toolCall {
		return &toolCall{id: "toolu_" + strings.ReplaceAll(uuid.NewString(), "-", ""), name: name, input: input}
	}
	bash := func(command, why string) *toolCall {
		return call("Bash", object{"command": command, "description": why})
	}
	option := func(label, about string) any { return object{"label": label, "description": about} }
	size := object{"question": "Which size?", "header": "Size", "multiSelect": false,
		"options": []any{option("Small", "Little."), option("Large", "Big.")}}
	switch {
	case has(text, "ask"):
		return []*toolCall{bash("touch /tmp/scripted", "scripted")}
	case has(text, "both"):
		return []*toolCall{bash("touch /tmp/scripted-1", "The first of two"), bash("touch /tmp/scripted-2", "The second of two")}
	case has(text, "wall"):
		return []*toolCall{bash(strings.TrimSuffix(strings.Repeat("touch /tmp/scripted\n", 60), "\n"), "A wall of commands")}
	case has(text, "write"):
		return []*toolCall{call("Write", object{"file_path": cwd + "/scripted.txt", "content": "hello\nworld\n"})}
	case has(text, "fetch"):
		return []*toolCall{call("WebFetch", object{"url": "https://docs.example/page", "prompt": "What does the page say?"})}
	case has(text, "plan"):
		return []*toolCall{call("ExitPlanMode", object{"plan": "# A plan\n\n1. Open the door.\n2. Close the door.\n"})}
	case has(text, "pick"):
		return []*toolCall{call("AskUserQuestion", object{"questions": []any{size}})}
	case has(text, "picks"):
		checks := object{"question": "Which checks should run?", "header": "Checks", "multiSelect": true,
			"options": []any{option("Unit", "Tests of the packages."), option("Lint", "The linters."), option("Race", "The race detector.")}}
		return []*toolCall{call("AskUserQuestion", object{"questions": []any{checks, size}})}
	}
	return nil
}

// boxOf gives the dialog about a call.
func boxOf(k *toolCall, c *claude) box {
	text := func(name string) string { s, _ := k.input[name].(string); return s }
	d := &dialog{question: "Do you want to proceed?", footer: "Esc to cancel · Tab to amend"}
	switch k.name {
	case "AskUserQuestion":
		return newSheet(k.input["questions"].([]any))
	case "ExitPlanMode":
		d.plan = true
		d.title, d.body = "Ready to code?", strings.Split(strings.TrimSpace(strings.TrimPrefix(text("plan"), "# ")), "\n")
		d.question = "Claude has written up a plan and is ready to execute. Would you like to proceed?"
		d.options = []string{"Yes, and use auto mode", "Yes, manually approve edits", "Tell Claude what to change"}
		d.footer = "ctrl+g to edit in Vim · ~/.claude/plans/scripted.md"
	case "Write":
		d.title, d.body = "Create file", []string{dim + " 1 " + plain + "hello", dim + " 2 " + plain + "world"}
		d.about = []string{grey + "scripted.txt" + plain}
		d.question = "Do you want to create " + bold + "scripted.txt" + plain + "?"
		d.options = []string{"Yes", "Yes, and switch to accept edits for this session (shift+tab)", "No"}
	case "WebFetch":
		d.title, d.body = "Fetch", []string{"url: " + text("url"), "prompt: " + text("prompt")}
		d.about = []string{grey + "Claude wants to fetch content from docs.example" + plain}
		d.question = "Do you want to allow Claude to fetch this content?"
		d.options, d.footer = []string{"Yes", "Yes, and don't ask again for docs.example", "No, and tell Claude what to do differently (esc)"}, ""
	default:
		d.title = "Bash command"
		d.about = []string{grey + text("description") + plain}
		d.body = strings.Split(text("command"), "\n")
		if len(d.body) > 1 {
			for i, row := range d.body {
				d.body[i] = dim + "│" + plain + " " + row
			}
		}
		d.options = []string{"Yes", "Yes, and always allow access to " + c.cwd + " from this project", "Yes, and switch to auto mode", "No"}
	}
	return d
}

// dialog asks for one decision.
type dialog struct {
	title, question, footer string
	about, body, options    []string
	plan                    bool
	at                      int
}

func (d *dialog) waiting() string { return "permission prompt" }

func (d *dialog) rows(c *claude) []string {
	indent, width := " ", c.width
	var rows []string
	dashes := dashed + strings.Repeat("╌", width) + plain
	if d.plan {
		indent, width = "   ", c.width-4
		dashes = "  " + dashed + strings.Repeat("╌", width) + plain
		rows = append(rows, blue+strings.Repeat("▔", c.width)+plain, "  \x1b[38;5;73m"+strings.Repeat("─", width)+plain)
	} else {
		rows = append(rows, blue+strings.Repeat("─", width)+plain)
	}
	rows = append(rows, indent+bold+blue+d.title+plain)
	for _, r := range d.about {
		rows = append(rows, indent+r)
	}
	rows = append(rows, dashes)
	for _, r := range d.body {
		rows = append(rows, indent+r)
	}
	rows = append(rows, dashes)
	if d.plan {
		rows = append(rows, "  \x1b[38;5;73m"+strings.Repeat("─", width)+plain, indent+grey+d.question+plain)
	} else {
		rows = append(rows, indent+d.question)
	}
	for i, o := range d.options {
		if i == d.at {
			rows = append(rows, fmt.Sprintf("%s%s❯%s %s%d. %s%s%s", indent, blue, plain, grey, i+1, blue, o, plain))
		} else {
			rows = append(rows, fmt.Sprintf("%s  %s%d. %s%s", indent, grey, i+1, plain, o))
		}
	}
	if d.footer != "" {
		rows = append(rows, "", indent+grey+d.footer+plain)
	}
	return rows
}

func (d *dialog) key(c *claude, k string) {
	switch {
	case k == "up":
		d.at = max(0, d.at-1)
	case k == "down":
		d.at = min(len(d.options)-1, d.at+1)
	case k == "enter":
		d.choose(c, d.at)
	case k == "escape":
		d.choose(c, len(d.options)-1)
	case len(k) == 1 && k[0] >= '1' && int(k[0]-'1') < len(d.options):
		d.choose(c, int(k[0]-'1'))
	}
}

func (d *dialog) choose(c *claude, i int) {
	c.decided(i < len(d.options)-1, "done", object{"stdout": "", "stderr": "", "interrupted": false})
}

// sheet is a questionnaire.
type sheet struct {
	questions []sheetQuestion
	at        int // question, or the number of them: the review
	choice    int // highlighted row
	tabs      bool
}

type sheetQuestion struct {
	text, header string
	several      bool
	labels       []string
	abouts       []string
	own          string
	chosen       []int // rows; the last one is the own text
}

func newSheet(list []any) *sheet {
	s := &sheet{}
	for _, q := range list {
		q := q.(object)
		out := sheetQuestion{text: q["question"].(string), header: q["header"].(string), several: q["multiSelect"].(bool)}
		for _, o := range q["options"].([]any) {
			out.labels = append(out.labels, o.(object)["label"].(string))
			out.abouts = append(out.abouts, o.(object)["description"].(string))
		}
		s.questions = append(s.questions, out)
	}
	s.tabs = len(s.questions) > 1 || s.questions[0].several
	return s
}

func (s *sheet) waiting() string { return "input needed" }

func (s *sheet) review() bool { return s.at == len(s.questions) }

// typing reports whether the place for an own text is open.
func (s *sheet) typing() bool { return !s.review() && s.choice == len(s.questions[s.at].labels) }

// answer is what a question was answered with.
func (q sheetQuestion) answer() string {
	var out []string
	for _, i := range q.chosen {
		if i == len(q.labels) {
			out = append(out, q.own)
		} else {
			out = append(out, q.labels[i])
		}
	}
	return strings.Join(out, ", ")
}

func (s *sheet) head() string {
	if !s.tabs {
		return chip + " ☐ " + s.questions[0].header + " " + plain
	}
	tab := func(text string, current bool) string {
		if current {
			return chip + " " + text + " " + plain
		}
		return " " + text + " "
	}
	row := "← "
	for i, q := range s.questions {
		box := "☐ "
		if len(q.chosen) > 0 {
			box = "☒ "
		}
		row += tab(box+q.header, i == s.at)
	}
	return row + tab("✔ Submit", s.review()) + " →"
}

func (s *sheet) rows(c *claude) []string {
	rule := grey + strings.Repeat("─", c.width) + plain
	rows := []string{rule, s.head(), ""}
	option := func(i int, label, about string) {
		if i == s.choice {
			rows = append(rows, fmt.Sprintf("%s❯%s %s%d.%s %s%s%s", blue, plain, grey, i+1, plain, blue, label, plain))
		} else {
			rows = append(rows, fmt.Sprintf("  %s%d.%s %s", grey, i+1, plain, label))
		}
		if about != "" {
			rows = append(rows, "     "+grey+about+plain)
		}
	}
	if s.review() {
		rows = append(rows, bold+"\x1b[38;5;231mReview your answers"+plain, "")
		for _, q := range s.questions {
			rows = append(rows, " ● "+q.text, "   \x1b[38;5;114m→ "+q.answer()+plain)
		}
		rows = append(rows, "")
		option(0, "Submit answers", "")
		option(1, "Cancel", "")
		return rows
	}
	q := s.questions[s.at]
	rows = append(rows, bold+"\x1b[38;5;231m"+q.text+plain, "")
	mark := func(i int) string {
		switch {
		case !q.several:
			return ""
		case slices.Contains(q.chosen, i):
			return "\x1b[38;5;114m[✔]" + plain + " "
		}
		return "[ ] "
	}
	for i, label := range q.labels {
		option(i, mark(i)+label, q.abouts[i])
	}
	own, end := len(q.labels), "."
	if q.several {
		end = ""
	}
	switch {
	case q.own != "" && s.choice == own:
		rows = append(rows, fmt.Sprintf("%s❯%s %s%d. %s%s%s%s %s", blue, plain, grey, own+1, plain, mark(own), q.own, reverse, plain))
	case s.choice == own:
		rows = append(rows, fmt.Sprintf("%s❯%s %s%d. %s%s%sT%s%sype something%s%s", blue, plain, grey, own+1, plain, mark(own), reverse, plain, dim, end, plain))
	case q.own != "":
		rows = append(rows, fmt.Sprintf("  %s%d. %s%s%s", grey, own+1, plain, mark(own), q.own))
	default:
		rows = append(rows, fmt.Sprintf("  %s%d. %s%s%sType something%s%s", grey, own+1, plain, mark(own), grey, end, plain))
	}
	if q.several {
		rows = append(rows, "     "+bold+"Next"+plain)
	}
	rows = append(rows, rule)
	extra := fmt.Sprintf("%d. Chat about this", own+2)
	if s.choice == own+1 {
		rows = append(rows, blue+"❯"+plain+" "+blue+extra+plain)
	} else {
		rows = append(rows, "  "+extra)
	}
	how := "↑/↓ to navigate"
	if s.tabs {
		how = "Tab/Arrow keys to navigate"
	}
	if s.choice == own {
		how += " · ctrl+g to edit in Vim"
	}
	return append(rows, "", grey+"Enter to select · "+how+" · Esc to cancel"+plain)
}

func (s *sheet) key(c *claude, k string) {
	last := 1
	var q *sheetQuestion
	own := -1
	if !s.review() {
		q = &s.questions[s.at]
		own = len(q.labels)
		last = own + 1
	}
	switch {
	case k == "escape":
		c.decided(false, "", nil)
	case k == "up":
		s.choice = max(0, s.choice-1)
	case k == "down":
		s.choice = min(last, s.choice+1)
	case k == "tab" || k == "right" && s.choice != own:
		if s.tabs && !s.review() {
			s.turn(1)
		}
	case k == "backtab" || k == "left" && s.choice != own:
		if s.tabs && s.at > 0 {
			s.turn(-1)
		}
	case k == "enter":
		s.choose(c, s.choice)
	case q != nil && s.choice == own && k == "backspace":
		if r := []rune(q.own); len(r) > 0 {
			q.own = string(r[:len(r)-1])
		}
	case q != nil && s.choice == own && len([]rune(k)) == 1:
		q.own += k
	case len(k) == 1 && k[0] >= '1' && int(k[0]-'1') <= last:
		s.choose(c, int(k[0]-'1'))
	}
}

func (s *sheet) turn(by int) {
	s.at += by
	s.choice = 0
}

// choose takes a row: of the review, of a question with one answer, or one of several.
func (s *sheet) choose(c *claude, i int) {
	if s.review() {
		if i == 0 {
			s.submit(c)
		} else {
			c.decided(false, "", nil)
		}
		return
	}
	q := &s.questions[s.at]
	own := len(q.labels)
	switch {
	case i == own+1: // a chat instead of an answer
		c.decided(false, "", nil)
	case i == own && q.own == "":
		s.choice = own
	case q.several:
		if at := slices.Index(q.chosen, i); at >= 0 {
			q.chosen = slices.Delete(q.chosen, at, at+1)
		} else {
			q.chosen = append(q.chosen, i)
			slices.Sort(q.chosen)
		}
	default:
		q.chosen = []int{i}
		if s.tabs {
			s.turn(1)
		} else {
			s.submit(c)
		}
	}
}

func (s *sheet) submit(c *claude) {
	answers := object{}
	var said []string
	form := "Your questions have been answered: %s. You can now continue with these answers in mind."
	for _, q := range s.questions {
		answers[q.text] = q.answer()
		said = append(said, fmt.Sprintf("%q=%q", q.text, q.answer()))
		if slices.Contains(q.chosen, len(q.labels)) {
			form = "The user answered: %s. Read the answers carefully — they may request clarification, changes, or that you not proceed — and follow what they actually say."
		}
	}
	c.decided(true, fmt.Sprintf(form, strings.Join(said, ", ")), object{"answers": answers, "annotations": object{}})
}

// panel is what a command of the person's opened.
type panel struct{ kind string }

func (p *panel) waiting() string { return "dialog open" }

func (p *panel) rows(c *claude) []string {
	rows := []string{blue + strings.Repeat("▔", c.width) + plain}
	member := func(name, value string) {
		rows = append(rows, fmt.Sprintf("  %s%s:%s%*s%s", bold, name, plain, 27-len(name), "", value))
	}
	if p.kind == "resume" {
		return append(rows, "  "+bold+blue+"Resume session"+plain, "", "  "+grey+"No sessions in this project yet"+plain, "",
			"  \x1b[3m"+grey+"Ctrl+A to show all projects · Esc to close"+plain)
	}
	rows = append(rows, "  "+bold+blue+"Settings"+plain+" "+bold+chip+" Status "+plain+"  Config   Usage   Stats", "")
	member("Version", ClaudeVersion)
	member("Session name", grey+"/rename to add a name"+plain)
	member("Session ID", c.rec.session)
	member("Session kind", "interactive")
	member("cwd", c.cwd)
	rows = append(rows, "")
	member("Model", "Default (claude-scripted)")
	return append(rows, "", "  \x1b[3m"+grey+"←/→ to switch · Esc to close"+plain)
}

func (p *panel) key(c *claude, k string) {
	if k == "escape" {
		c.shut()
		if p.kind == "resume" {
			c.say("  ⎿  Resume cancelled")
		}
	}
}
