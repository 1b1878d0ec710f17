package rule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
)

// This file reads the page of a questionnaire inside the region of a dialog that
// was proven before. A page that cannot be read whole is no page: the dialog is
// then shown to a person and to nobody else.

// pageJSON describes one kind of page.
type pageJSON struct {
	Name    string   `json:"name"`
	Dialogs []string `json:"dialogs"` // names of the dialogs that may hold it
	// Head is the row that the page begins with; its groups index, total and header
	// are taken where they are.
	Head rowJSON   `json:"head"`
	Tabs *tabsJSON `json:"tabs"` // the head is a bar of tabs
	// Options are numbered from 1 without a gap. A description is the group about,
	// or further rows at least indent deep.
	Selected rowJSON   `json:"selected"`
	Other    rowJSON   `json:"other"`
	Indent   int       `json:"indent"`
	Between  []rowJSON `json:"between"` // other rows among the options
	Own      *ownJSON  `json:"own"`
	// Extra is a label that is never an answer, below the option for an own text.
	Extra string `json:"extra"`
	Multi string `json:"multi"` // label of an option that is chosen besides others; group label
	// Review is the text of the page that submits; it is read as one without Own.
	Review string `json:"review"`
}

// tabsJSON is a bar with one tab for each question and a last one that submits.
type tabsJSON struct {
	Tab     string    `json:"tab"` // RE2 of one tab; group header
	Current styleJSON `json:"current"`
}

// ownJSON is the place for a text of one's own: an option whose label is replaced
// by the text while it is typed, or a field below the options.
type ownJSON struct {
	Label string   `json:"label"` // of the option while nothing is typed
	Field *rowJSON `json:"field"` // group text
	// Empty is how a place is drawn that holds nothing; its text is Label, or of a
	// field the placeholder.
	Empty       styleJSON `json:"empty"`
	Placeholder string    `json:"placeholder"`
	Cursor      styleJSON `json:"cursor"` // of the cell in which the next character will stand
}

// The compiled forms.
type (
	page struct {
		name            string
		dialogs         []string
		head            row
		tab             *regexp.Regexp
		current         style
		selected, other row
		indent          int
		between         []row
		own             *own
		extra           *regexp.Regexp
		multi           *regexp.Regexp
		review          *regexp.Regexp
	}
	own struct {
		label       *regexp.Regexp
		field       *row
		empty       style
		placeholder *regexp.Regexp
		cursor      style
	}
)

func (c *compiler) pages(at string, list []pageJSON, dialogs []dialogJSON) []page {
	var out []page
	for i, j := range list {
		at := fmt.Sprintf("%s/%d", at, i)
		p := page{name: j.Name, dialogs: j.Dialogs, head: c.row(at+"/head", j.Head), indent: j.Indent,
			selected: c.row(at+"/selected", j.Selected), other: c.row(at+"/other", j.Other), between: c.rowList(at+"/between", j.Between)}
		for n, name := range j.Dialogs {
			if !slices.ContainsFunc(dialogs, func(d dialogJSON) bool { return d.Name == name && d.State == string(agent.Question) }) {
				c.fail(fmt.Sprintf("%s/dialogs/%d", at, n), "no dialog of this name asks a question")
			}
		}
		for _, r := range []row{p.selected, p.other} {
			if r.re != nil && (r.re.SubexpIndex("n") < 0 || r.re.SubexpIndex("label") < 0) {
				c.fail(at, "options need the groups n and label")
			}
		}
		if len(j.Selected.Style) == 0 {
			c.fail(at+"/selected/style", "is missing: the highlighted option is told by its style")
		}
		c.within(at+"/indent", j.Indent, 1, maxWindow)
		if j.Tabs != nil {
			if p.tab = c.re(at+"/tabs/tab", j.Tabs.Tab); p.tab != nil && p.tab.SubexpIndex("header") < 0 {
				c.fail(at+"/tabs/tab", "needs the group header")
			}
			if j.Tabs.Current == (styleJSON{}) {
				c.fail(at+"/tabs/current", "tests nothing: every tab would be the current one")
			}
			p.current = c.style(at+"/tabs/current", j.Tabs.Current)
		}
		p.own = c.own(at+"/own", j.Own)
		p.extra, p.review = c.maybe(at+"/extra", j.Extra), c.maybe(at+"/review", j.Review)
		if p.multi = c.maybe(at+"/multi", j.Multi); p.multi != nil && p.multi.SubexpIndex("label") < 0 {
			c.fail(at+"/multi", "needs the group label")
		}
		out = append(out, p)
	}
	return out
}

func (c *compiler) own(at string, j *ownJSON) *own {
	if j == nil {
		return nil
	}
	if j.Empty == (styleJSON{}) {
		c.fail(at+"/empty", "tests nothing: a typed text could be a placeholder")
	}
	o := &own{label: c.whole(at+"/label", j.Label), field: c.optional(at+"/field", j.Field), empty: c.style(at+"/empty", j.Empty),
		placeholder: c.maybe(at+"/placeholder", j.Placeholder), cursor: c.style(at+"/cursor", j.Cursor)}
	if o.field != nil && (o.field.re == nil || o.field.re.SubexpIndex("text") < 0) {
		c.fail(at+"/field/text", "needs the group text")
	}
	return o
}

// maybe is whole for an expression that may be missing.
func (c *compiler) maybe(at, text string) *regexp.Regexp {
	if text == "" {
		return nil
	}
	return c.whole(at, text)
}

// re compiles an expression that may match anywhere.
func (c *compiler) re(at, text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil || text == "" {
		c.fail(at, "is not an expression: %v", err)
		return nil
	}
	return re
}

// page reads the page in rows first..last of a dialog into p. A page's Stable
// leaves out what changes while it is answered: highlight, marks, the own text.
func (r *reader) page(dialog string, first, last int, p *agent.Prompt) []agent.Evidence {
	for i := range r.pages {
		d := &r.pages[i]
		if !slices.Contains(d.dialogs, dialog) {
			continue
		}
		got, stable, why := r.tryPage(d, first, last)
		if why == "" {
			p.Page, p.Stable = got, digest([]byte(stable))
			return []agent.Evidence{evidence(d.name, first, last, "page %d of %d with %d options", got.Index, got.Total, len(got.Options))}
		}
		r.failed = append(r.failed, evidence(d.name, first, last, "not read as a page: %s", why))
	}
	return nil
}

func (r *reader) tryPage(d *page, first, last int) (*agent.Page, string, string) {
	head := first
	for head <= last && !d.head.matches(r.s.Rows[head]) {
		head++
	}
	if head > last {
		return nil, "", "no head"
	}
	out := &agent.Page{Selected: -1, Own: -1, Columns: r.s.Width}
	if why := r.pageHead(d, r.s.Rows[head], out); why != "" {
		return nil, "", why
	}
	at := head + 1
	for ; at <= last; at++ {
		if n, _, _ := d.option(r.s.Rows[at]); n == 1 {
			break
		}
	}
	if at > last {
		return nil, "", "no option 1"
	}
	out.Text = paragraph(r.s.Rows[head+1 : at])
	out.Review = d.review != nil && d.review.MatchString(firstLine(out.Text))
	marked, why := r.pageOptions(d, at, last, out)
	switch {
	case why != "":
		return nil, "", why
	case marked != 1:
		return nil, "", strconv.Itoa(marked) + " options are highlighted"
	case out.Text == "":
		return nil, "", "no text"
	}
	return out, stablePage(out), ""
}

// pageHead takes place and header of the page.
func (r *reader) pageHead(d *page, have screen.Row, out *agent.Page) string {
	if d.tab == nil {
		sub, _, _ := d.head.match(have)
		out.Index, _ = strconv.Atoi(d.head.group(have, sub, "index"))
		out.Total, _ = strconv.Atoi(d.head.group(have, sub, "total"))
		out.Header = d.head.group(have, sub, "header")
		if out.Index == 0 && out.Total == 0 {
			out.Index, out.Total = 1, 1 // a page that does not count is the only one
		}
		return ""
	}
	text := have.Text()
	tabs := d.tab.FindAllStringSubmatchIndex(text, -1)
	for i, t := range tabs {
		if !screen.All(have.Span(t[0], t[1]), d.current.test) {
			continue
		}
		if out.Index != 0 {
			return "two tabs are current"
		}
		h := 2 * d.tab.SubexpIndex("header")
		out.Index, out.Header = i+1, text[t[h]:t[h+1]]
	}
	if out.Total = len(tabs); out.Index == 0 || out.Total < 2 {
		return "no current tab"
	}
	return ""
}

// pageOptions reads the rows from option 1 to the end of the dialog.
func (r *reader) pageOptions(d *page, at, last int, out *agent.Page) (marked int, why string) {
	split := -1 // options before the first row between them
	for i := at; i <= last; i++ {
		have := r.s.Rows[i]
		if n, used, sub := d.option(have); n > 0 {
			if n != len(out.Options)+1 {
				return 0, "the options are not numbered in order"
			}
			if used == &d.selected {
				out.Selected, marked = n-1, marked+1
			}
			out.Options = append(out.Options, used.group(have, sub, "label"))
			out.About = append(out.About, used.group(have, sub, "about"))
			if d.own != nil && d.own.field == nil {
				r.ownOption(d, have, sub, used, out)
			}
			continue
		}
		switch {
		case have.Blank():
		case slices.ContainsFunc(d.between, func(b row) bool { return b.matches(have) }):
			if split < 0 {
				split = len(out.Options)
			}
		case d.own != nil && d.own.field != nil && d.own.field.matches(have):
			sub, _, _ := d.own.field.match(have)
			g := 2 * d.own.field.re.SubexpIndex("text")
			out.Field, out.Typed = true, have.Text()[sub[g]:sub[g+1]]
			if d.own.placeholder != nil && d.own.placeholder.MatchString(out.Typed) && screen.All(have.Span(sub[g], sub[g+1]), d.own.empty.test) {
				out.Typed = ""
			}
			// a long text goes on in further rows, the hints follow
			for i++; i <= last && !r.s.Rows[i].Blank(); i++ {
				out.Typed += " " + strings.TrimSpace(r.s.Rows[i].Text())
			}
			return marked, d.answers(split, out)
		case have.Indent() >= d.indent && len(out.About) > 0 && split != len(out.Options):
			k := len(out.About) - 1
			out.About[k] = strings.TrimSpace(out.About[k] + " " + strings.TrimSpace(have.Text()))
		default: // hints of the footer
			i = last
		}
	}
	return marked, d.answers(split, out)
}

// ownOption notes that the option for an own text is open and empty: its label is
// then drawn as a placeholder with the cursor in front.
func (r *reader) ownOption(d *page, have screen.Row, sub []int, used *row, out *agent.Page) {
	g := 2 * used.re.SubexpIndex("label")
	label := have.Text()[sub[g]:sub[g+1]]
	cells := have.Span(sub[g], sub[g+1])
	// The first cell of an open and empty place is the cursor.
	if used == &d.selected && d.own.label.MatchString(label) && len(cells) > 1 && d.own.cursor.test(cells[0].Style) {
		out.Field = out.Field || screen.All(cells[1:], d.own.empty.test)
	}
}

// answers says which options may be chosen as answers, which takes an own text,
// and what stands in it.
func (d *page) answers(split int, out *agent.Page) string {
	n := len(out.Options)
	if d.extra != nil && !out.Review {
		if n == 0 || !d.extra.MatchString(out.Options[n-1]) || split != n-1 {
			return "the extra option is not the last"
		}
		n--
	}
	out.Answers = n
	if d.own != nil && !out.Review {
		if n == 0 {
			return "no option for an own text"
		}
		out.Own, out.FreeText = n-1, true
		out.Answers = n - 1
	}
	if d.multi != nil && !out.Review {
		marks := 0
		for i := range out.Options[:n] {
			if m := d.multi.FindStringSubmatch(out.Options[i]); m != nil {
				out.Options[i] = m[d.multi.SubexpIndex("label")]
				marks++
			}
		}
		if out.Multi = marks > 0; out.Multi && marks < out.Answers {
			return "only some options have a mark"
		}
	}
	if out.Own >= 0 {
		label := out.Options[out.Own]
		switch {
		case d.own.label.MatchString(label):
		case d.own.field != nil:
			return "the option for an own text is missing"
		case out.Selected != out.Own:
			return "a text stands in the place for an own one, which is not highlighted"
		default:
			out.Typed, out.Field = label, true
		}
	}
	if out.Answers < 1 {
		return "too few options"
	}
	return ""
}

// option reads a row as a numbered option; 0 if it is none.
func (d *page) option(have screen.Row) (n int, used *row, sub []int) {
	for _, used := range []*row{&d.selected, &d.other} {
		if sub, _, ok := used.match(have); ok {
			n, err := strconv.Atoi(used.group(have, sub, "n"))
			if err != nil || n < 1 || n > maxOptions {
				return 0, nil, nil
			}
			return n, used, sub
		}
	}
	return 0, nil, nil
}

// stablePage is what a page says, without highlight and own text.
func stablePage(p *agent.Page) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d %q %q", p.Index, p.Total, p.Header, p.Text)
	for i, o := range p.Options {
		if i != p.Own {
			fmt.Fprintf(&b, " %q %q", o, p.About[i])
		}
	}
	fmt.Fprintf(&b, " own=%d multi=%t review=%t", p.Own, p.Multi, p.Review)
	return b.String()
}

// paragraph puts rows together without the blank ones around them.
func paragraph(rows []screen.Row) string {
	var out []string
	for _, r := range rows {
		out = append(out, strings.TrimSpace(r.Text()))
	}
	return strings.Trim(strings.Join(out, "\n"), "\n")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
