package scripted

import (
	"fmt"
	"os"
	"strings"
)

// Colours of Claude Code.
const (
	grey    = "\x1b[38;5;246m"
	line    = "\x1b[38;5;244m"
	blue    = "\x1b[38;5;153m"
	dashed  = "\x1b[38;5;239m"
	reverse = "\x1b[7m"
	chip    = "\x1b[38;5;16m\x1b[48;5;153m"
)

// echo puts a prompt into the history.
func (c *claude) echo(text string) {
	rows := []string{""}
	for i, l := range strings.Split(text, "\n") {
		if i == 0 {
			l = "❯ \x1b[38;5;231m" + l
		} else {
			l = "  \x1b[38;5;231m" + l
		}
		rows = append(rows, "\x1b[48;5;237m"+clipRow(l, c.width+len("\x1b[38;5;231m"))+plain)
	}
	c.history = append(c.history, rows...)
}

// say puts a row into the history.
func (c *claude) say(row string) { c.history = append(c.history, "", row) }

func (c *claude) draw() {
	rows := c.history
	if c.open != nil {
		rows = append(append([]string{}, rows...), c.open.rows(c)...)
		c.paint(c.fit(rows))
		return
	}
	if t := c.turn; t != nil && t.ready.IsZero() {
		rows = append(append([]string{}, rows...), "")
		for _, q := range c.queued {
			rows = append(rows, grey+"❯ "+firstLine(q)+plain)
		}
		if len(c.queued) > 0 {
			rows = append(rows, grey+"  ⎿  Queued · ctrl+x ctrl+s to send now"+plain)
		}
		rows = append(rows, "\x1b[38;5;174m✢"+plain+" \x1b[38;5;174mWorking…"+plain)
	}
	rows = append(append([]string{}, rows...), "")
	rows = append(rows, c.menu()...)
	if c.stash != "" {
		rows = append(rows, strings.Repeat(" ", max(0, c.width-16))+grey+"draft stashed"+plain)
	}
	rule := line + strings.Repeat("─", c.width) + plain
	rows = append(rows, rule)
	rows = append(rows, c.box()...)
	rows = append(rows, rule, "  "+grey+c.footer()+plain)
	c.paint(rows)
}

// menu is the popup of a command that is being typed.
func (c *claude) menu() []string {
	if !strings.HasPrefix(c.draft, "/") || strings.ContainsAny(c.draft, " \n") {
		return nil
	}
	var rows []string
	for _, entry := range [][2]string{
		{"/status", "Show version, account, model, MCP servers, and setup warnings"}, {"/statusline", "Set up the status line"},
		{"/clear", "Start a new session with empty context"}, {"/resume", "Resume a conversation"}, {"/exit", "Exit"},
	} {
		if !strings.HasPrefix(entry[0], c.draft) {
			continue
		}
		if len(rows) == 0 {
			rows = append(rows, fmt.Sprintf("  %s❯ /%s%s%s%s%*s%s%s", blue, bold, entry[0][1:], plain, blue, 28-len(entry[0]), "", entry[1], plain))
		} else {
			rows = append(rows, fmt.Sprintf("    %s%s%*s%s%s", grey, entry[0], 28-len(entry[0]), "", entry[1], plain))
		}
	}
	return rows
}

// box is the composer: the mark, a no-break space, the draft and the cursor.
func (c *claude) box() []string {
	mark := "❯\u00a0"
	switch {
	case strings.HasPrefix(c.draft, "!"):
		mark = "\x1b[38;5;204m!" + plain + "\u00a0"
	case c.turn != nil && c.turn.ready.IsZero():
		mark = grey + mark + plain
	}
	text := strings.TrimPrefix(c.draft, "!")
	if text == "" && len(c.queued) > 0 {
		return []string{mark + reverse + "P" + plain + dim + "ress up to edit queued messages" + plain}
	}
	if c.armedNow() {
		return []string{mark + reverse + " " + plain}
	}
	var rows []string
	lead := mark
	for _, l := range strings.Split(text, "\n") {
		for room := c.width - 3; ; {
			r := []rune(l)
			if len(r) <= room {
				break
			}
			cut := room
			for j := room; j > 0; j-- {
				if r[j-1] == ' ' {
					cut = j
					break
				}
			}
			rows = append(rows, lead+string(r[:cut]))
			l, lead = string(r[cut:]), "  "
		}
		rows = append(rows, lead+l)
		lead = "  "
	}
	rows[len(rows)-1] += reverse + " " + plain
	return rows
}

func (c *claude) armedNow() bool { return !c.armed.IsZero() }

func (c *claude) footer() string {
	switch {
	case c.armedNow():
		return "Press Ctrl-C again to exit"
	case strings.HasPrefix(c.draft, "!"):
		return "! for shell mode"
	case len(c.pastes) > 0:
		return "paste again to expand"
	case c.turn != nil && c.turn.ready.IsZero():
		return "⏸ manual mode on · esc to interrupt"
	case c.draft == "":
		return "⏸ manual mode on · ? for shortcuts"
	}
	return "⏸ manual mode on"
}

// fit cuts what does not fit at its top, and says so above the last row.
func (c *claude) fit(rows []string) []string {
	over := len(rows) - c.height
	if over <= 0 {
		return rows
	}
	if top := len(c.open.rows(c)); top < c.height {
		return rows // the history is cut by paint
	}
	last := len(rows) - 1
	more := fmt.Sprintf("\x1b[38;5;220m ↑ %d more lines %s", over+1, plain)
	return append(append(append([]string{}, rows[over+1:last]...), more), rows[last])
}

// paint writes the rows at the bottom of the screen.
func (c *claude) paint(rows []string) {
	if len(rows) > c.height {
		rows = rows[len(rows)-c.height:]
	}
	var b strings.Builder
	b.WriteString("\x1b[?25l\x1b[H\x1b[2J")
	top := c.height - len(rows)
	for i, r := range rows {
		fmt.Fprintf(&b, "\x1b[%d;1H%s", top+i+1, r)
	}
	_, _ = os.Stdout.WriteString(b.String())
}
