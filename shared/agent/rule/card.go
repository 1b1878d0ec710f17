package rule

import (
	"regexp"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/terminal"
)

// Bounds of one card.
const (
	maxCardRows  = 60
	maxCardAbove = 12 // rows above a card that tell it from an earlier equal one
)

// cardJSON is how a status card or panel is drawn: a header, rows "label: value",
// and an end. A region that holds anything else is no card.
type cardJSON struct {
	Top     *rowJSON  `json:"top"`     // stands directly above the header
	Header  rowJSON   `json:"header"`  // may have the group version
	Field   rowJSON   `json:"field"`   // groups label and value
	More    *rowJSON  `json:"more"`    // a further row of a value; group value
	Blank   *rowJSON  `json:"blank"`   // beside rows without ink
	Notes   []rowJSON `json:"notes"`   // rows that are neither
	Thread  string    `json:"thread"`  // label of the thread's row
	Version string    `json:"version"` // label of the version's row; "" where the header names it
	Last    string    `json:"last"`    // RE2 over the label of a last row; "" where End is a row of its own
	End     *rowJSON  `json:"end"`     // must follow; without it a blank row must
}

type card struct {
	top, more, blank, end *row
	header, field         row
	notes                 []row
	thread, version       string
	last                  *regexp.Regexp
}

func (c *compiler) card(at string, j *cardJSON) *card {
	out := &card{top: c.optional(at+"/top", j.Top), header: c.row(at+"/header", j.Header), field: c.row(at+"/field", j.Field),
		more: c.optional(at+"/more", j.More), blank: c.optional(at+"/blank", j.Blank), end: c.optional(at+"/end", j.End),
		notes: c.rowList(at+"/notes", j.Notes), thread: j.Thread, version: j.Version}
	c.groups(at+"/field", out.field, "label", "value")
	if out.more != nil {
		c.groups(at+"/more", *out.more, "value")
	}
	if len(j.Header.Style) == 0 || len(j.Field.Style) == 0 {
		c.fail(at, "needs the style of header and field as proof: an answer can print the words")
	}
	if j.Thread == "" {
		c.fail(at+"/thread", "is empty")
	}
	if named := out.header.re != nil && out.header.re.SubexpIndex("version") >= 0; named == (j.Version != "") {
		c.fail(at+"/version", "must be named by the header or by a row, and by one of them only")
	}
	if j.Last != "" {
		out.last = c.pattern(at+"/last", j.Last)
	} else if j.End == nil {
		c.fail(at+"/end", "is missing: without it and last a card has no end")
	}
	return out
}

// Cards reads every complete status card on the screen, top to bottom. One that
// is cut, has anything else between its rows, names no thread or several, or is
// of another version than the given one, is left out.
func (f *File) Cards(version string, s terminal.Screen) []agent.Card {
	e := f.engine()
	if e.native == nil || e.native.card == nil || s.Pane.Dead {
		return nil
	}
	parsed := screen.Parse(s.Text, s.Pane.Width, s.Pane.Height)
	if parsed.Cut || parsed.Height > 0 && parsed.Lines != parsed.Height {
		return nil
	}
	var out []agent.Card
	for at := 0; at < len(parsed.Rows); at++ {
		got, end, ok := e.native.card.read(parsed.Rows, at)
		if !ok || got.Version != version {
			continue
		}
		for i := max(0, at-maxCardAbove); i < at; i++ {
			got.Above = append(got.Above, parsed.Rows[i].Text())
		}
		got.Last = e.standsLast(parsed, end)
		out = append(out, got)
		at = end
	}
	return out
}

// standsLast reports whether nothing was printed below row end: only blank rows,
// then the composer.
func (f *engine) standsLast(s *screen.Screen, end int) bool {
	at, m := f.composer.last(s)
	if at <= end || m.held != "" {
		return false
	}
	for i := end + 1; i < at; i++ {
		if !s.Rows[i].Blank() {
			return false
		}
	}
	return true
}

// read reads the card whose header is row at; end is its last row.
func (c *card) read(rows []screen.Row, at int) (out agent.Card, end int, ok bool) {
	sub, _, ok := c.header.match(rows[at])
	if !ok || c.top != nil && (at == 0 || !c.top.matches(rows[at-1])) {
		return out, 0, false
	}
	if c.version == "" {
		out.Version = c.header.group(rows[at], sub, "version")
	}
	var (
		text     = []string{rows[at].Text()}
		complete bool // a last row was read
		open     bool // the row above is a field or its continuation
	)
	for i := at + 1; i < len(rows) && i-at < maxCardRows; i++ {
		r := rows[i]
		if c.end != nil && (c.last == nil || complete) && c.end.matches(r) {
			return c.finish(out, append(text, r.Text()), i)
		}
		switch sub, _, isField := c.field.match(r); {
		case isField:
			f := agent.Field{Label: c.field.group(r, sub, "label"), Value: c.field.group(r, sub, "value")}
			out.Fields = append(out.Fields, f)
			open = true
			complete = complete || c.last != nil && c.last.MatchString(f.Label)
		case c.last != nil && c.end == nil && complete && r.Blank():
			return c.finish(out, text, i-1)
		case open && c.more != nil && c.more.matches(r):
			sub, _, _ := c.more.match(r)
			last := &out.Fields[len(out.Fields)-1]
			last.Value = strings.TrimSpace(last.Value + " " + c.more.group(r, sub, "value"))
		case r.Blank() || c.blank != nil && c.blank.matches(r):
			open = false
		case anyMatches(c.notes, r):
			open = false
		default:
			return out, 0, false
		}
		text = append(text, r.Text())
	}
	return out, 0, false
}

func anyMatches(list []row, r screen.Row) bool {
	for _, one := range list {
		if one.matches(r) {
			return true
		}
	}
	return false
}

// finish takes thread and version out of the fields: each exactly once.
func (c *card) finish(out agent.Card, text []string, end int) (agent.Card, int, bool) {
	threads, versions := 0, 0
	for _, f := range out.Fields {
		switch f.Label {
		case c.thread:
			out.ThreadID = strings.ToLower(strings.TrimSpace(f.Value))
			threads++
		case c.version:
			out.Version = strings.TrimSpace(f.Value)
			versions++
		}
	}
	if threads != 1 || !threadPattern.MatchString(out.ThreadID) || out.Version == "" || c.version != "" && versions != 1 {
		return out, 0, false
	}
	out.Excerpt = strings.Join(text, "\n")
	return out, end, true
}
