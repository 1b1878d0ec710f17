package rule

import (
	"fmt"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
)

// This file holds the proof primitives. Each answers one question about what is
// drawn; none looks at the meaning of words that an agent or a user wrote.

// test reports whether one cell is drawn as the rule wants.
func (s style) test(have screen.Style) bool {
	return have.Attr&s.set == s.set && have.Attr&s.clear == 0 && s.fg.test(have.FG) && s.bg.test(have.BG)
}

func (t colorTest) test(c screen.Color) bool { return !t.on || (c == t.color) != t.not }

// texts reports whether a row reads as the rule wants, whatever its style.
func (r row) texts(have screen.Row) bool { return r.re.MatchString(have.Text()) }

// match reports whether a row reads and is drawn as the rule wants. With a false
// answer why is the group whose style is wrong, or "" when the text is.
func (r row) match(have screen.Row) (sub []int, why string, ok bool) {
	sub = r.re.FindStringSubmatchIndex(have.Text())
	if sub == nil || r.full && !have.Full() {
		return nil, "", false
	}
	for _, g := range r.groups {
		from, to := sub[2*g.index], sub[2*g.index+1]
		if from < 0 {
			continue // a group that takes no part
		}
		if !screen.All(have.Span(from, to), g.style.test) {
			return nil, g.name, false
		}
	}
	return sub, "", true
}

// group gives the text of one group of a match.
func (r row) group(have screen.Row, sub []int, name string) string {
	i := r.re.SubexpIndex(name)
	if i < 0 || sub == nil || sub[2*i] < 0 {
		return ""
	}
	return have.Text()[sub[2*i]:sub[2*i+1]]
}

// from is the offset of the first of several groups that takes part in a match.
func (r row) from(sub []int, names ...string) int {
	for _, name := range names {
		if i := r.re.SubexpIndex(name); i >= 0 && sub[2*i] >= 0 {
			return sub[2*i]
		}
	}
	return 0
}

// matches is match without its reasons.
func (r row) matches(have screen.Row) bool {
	_, _, ok := r.match(have)
	return ok
}

// marker gives the composer marker that row i begins with. A composer with a
// frame has its upper row directly above; where that row says that the draft is
// scrolled, any row of a draft follows.
func (c *composer) marker(s *screen.Screen, i int) (marker, bool) {
	have := s.Rows[i]
	if c.scrollFrame != nil && i > 0 && (have.Blank() || have.Indent() >= c.indent) && c.scrollFrame.matches(s.Rows[i-1]) {
		return marker{name: markerHidden, hidden: true}, true
	}
	if c.column >= len(have.Cells) || have.Indent() != c.column {
		return marker{}, false
	}
	cell := have.Cells[c.column]
	for _, m := range c.markers {
		if cell.Text == m.text && m.style.test(cell.Style) && c.gap(have) && (c.frame == nil || i > 0 && c.frame.matches(s.Rows[i-1])) {
			return m, true
		}
	}
	return marker{}, false
}

// gap reports whether nothing stands between the marker and the text's column
// but what the agent itself puts there.
func (c *composer) gap(have screen.Row) bool {
	if c.gapText != "" {
		return c.column+1 < len(have.Cells) && have.Cells[c.column+1].Text == c.gapText
	}
	for i := c.column + 1; i < c.indent && i < len(have.Cells); i++ {
		if !have.Cells[i].Blank() && have.Cells[i].Width > 0 {
			return false
		}
	}
	return true
}

// last is the bottom-most composer row, -1 without one.
func (c *composer) last(s *screen.Screen) (int, marker) {
	for i := len(s.Rows) - 1; i >= 0; i-- {
		if m, ok := c.marker(s, i); ok {
			return i, m
		}
	}
	return -1, marker{}
}

// evidence names rows from..to (counted from 0) the way people count.
func evidence(rule string, from, to int, format string, args ...any) agent.Evidence {
	region := ""
	switch {
	case from < 0:
	case from == to:
		region = fmt.Sprintf("row %d", from+1)
	default:
		region = fmt.Sprintf("rows %d-%d", from+1, to+1)
	}
	return agent.Evidence{Rule: rule, Region: region, Detail: fmt.Sprintf(format, args...)}
}

// stripped removes up to n leading blanks and all trailing ones.
func stripped(text string, n int) string {
	for n > 0 && strings.HasPrefix(text, " ") {
		text = text[1:]
		n--
	}
	return strings.TrimRight(text, " ")
}
