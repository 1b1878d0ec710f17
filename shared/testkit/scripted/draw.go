package scripted

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
	model = "\x1b[38;5;223mgpt-5-codex default\x1b[39m · \x1b[38;5;151m"
)

// draw paints the whole screen in one write.
func (a *agent) draw() {
	var rows []string
	if a.answer != "" {
		rows = append(rows, clipRow("• "+firstLine(a.answer), a.width), "")
	}
	rows = append(rows, a.printed...)
	if a.quiz != nil {
		rows = append(rows, a.quizRows()...)
	} else if a.dialog() {
		rows = append(rows, a.askRows()...)
	} else {
		if a.turn != nil {
			rows = append(rows, "• "+dim+"Working"+plain+" "+dim+"(1s • "+plain+bold+"esc"+plain+dim+" to interrupt)"+plain, "")
		}
		rows = append(rows, a.composer()...)
		rows = append(rows, "", "  "+model+"~/"+filepath.Base(a.cwd)+plain)
		if a.draft == "" {
			rows = append(rows, "  "+bold+"←"+plain+" for agents · "+bold+"?"+plain+" for shortcuts")
		}
	}
	if len(rows) > a.height {
		rows = rows[len(rows)-a.height:]
	}
	var b strings.Builder
	b.WriteString("\x1b[?25l\x1b[H\x1b[2J")
	top := a.height - len(rows)
	for i, r := range rows {
		fmt.Fprintf(&b, "\x1b[%d;1H%s", top+i+1, r)
	}
	_, _ = os.Stdout.WriteString(b.String())
}

// composer gives the input box: placeholder or draft, further lines indented.
func (a *agent) composer() []string {
	if a.draft == "" {
		return []string{bold + "›" + plain + " " + dim + "Ask Codex to do anything" + plain}
	}
	const inline = 1000
	if n := len([]rune(a.draft)); n > inline {
		return []string{fmt.Sprintf("%s›%s \x1b[36m[Pasted Content %d chars]\x1b[39m", bold, plain, n)}
	}
	var rows []string
	for i, line := range strings.Split(a.draft, "\n") {
		lead := "  "
		if i == 0 {
			lead = bold + "›" + plain + " "
		}
		for room := a.width - 4; len([]rune(line)) > room; {
			r := []rune(line)
			cut := room
			for j := room; j > 0; j-- {
				if r[j-1] == ' ' {
					cut = j
					break
				}
			}
			rows = append(rows, lead+string(r[:cut]))
			line, lead = string(r[cut:]), "  "
		}
		rows = append(rows, lead+line)
	}
	return rows
}

// askRows gives the approval dialog as 0.171.0 draws it: bottom-most, no
// composer, no footer.
func (a *agent) askRows() []string {
	return []string{
		"  " + bold + "Would you like to run the following command?" + plain, "",
		"  Environment: " + bold + "local" + plain, "",
		"  Reason: " + "\x1b[3mscripted\x1b[23m", "",
		"  $ " + a.turn.asking, "",
		"\x1b[1;7m› 1. Yes, proceed (y)" + plain,
		"  2. No, and tell Codex what to do differently (esc)", "",
		"  " + dim + "Press " + plain + bold + "enter" + plain + dim + " to confirm or " + plain + bold + "esc" + plain + dim + " to cancel" + plain,
	}
}

func clipRow(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:width])
	}
	return s
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
