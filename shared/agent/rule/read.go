package rule

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/terminal"
)

// What a footer row may mean.
const (
	meansReady    = "ready"    // it names the model: the agent takes requests
	meansHint     = "hint"     // it changes nothing
	meansBusy     = "busy"     // a turn is running
	meansStarting = "starting" // alone, it says that the agent is not ready
	meansBlocked  = "blocked"  // keys do something else now
)

// Names of verdicts that belong to the engine. All others are names in the rule
// file.
const (
	NameIdle      = "idle-empty"
	NameDraft     = "idle-draft"
	NameTall      = "idle-draft-tall"
	NameNotReady  = "starting"
	NameExited    = "exited"
	NameDead      = "pane-dead"
	NameUnknown   = "unknown"
	heldPopup     = "popup"
	ruleScreen    = "screen"
	ruleComposer  = "composer"
	ruleFooter    = "footer"
	ruleUnnamed   = "dialog-unnamed"
	markerHidden  = "marker-out-of-sight"
	ruleSuspicion = "busy-suspect"
)

// Read judges one screen. The state is Unknown unless every proof of one rule
// holds; Evidence says which rule that was, or which proofs failed.
func (f *File) Read(s terminal.Screen) agent.Reading {
	if s.Pane.Dead {
		return agent.Reading{State: agent.Exited, Name: NameDead, Evidence: []agent.Evidence{evidence(ruleScreen, -1, -1, "tmux says that the pane's process has ended")}}
	}
	return f.engine().judge(screen.Parse(s.Text, s.Pane.Width, s.Pane.Height))
}

func (f *engine) judge(s *screen.Screen) agent.Reading {
	r := &reader{engine: f, s: s}
	if s.Cut || s.Height > 0 && s.Lines != s.Height {
		return r.unknown(evidence(ruleScreen, -1, -1, "the capture has %d rows, the pane %d", s.Lines, s.Height))
	}
	if s.Width > 0 && s.Width < f.columns || s.Height > 0 && s.Height < f.rows {
		return r.unknown(evidence(ruleScreen, -1, -1, "the pane is %d by %d, nothing is proven below %d by %d", s.Width, s.Height, f.columns, f.rows))
	}
	if s.Last(len(s.Rows)-1) < 0 {
		return r.unknown(evidence(ruleScreen, -1, -1, "the screen is blank"))
	}
	if out, ok := r.dialog(); ok {
		return out
	}
	at, m := f.composer.last(s)
	if out, ok := r.panel(at); ok {
		return out
	}
	if at < 0 {
		return r.withoutComposer()
	}
	return r.withComposer(at, m)
}

// reader is one judgement.
type reader struct {
	*engine
	s      *screen.Screen
	failed []agent.Evidence // proofs that failed on the way, for an Unknown verdict
}

func (r *reader) unknown(ev ...agent.Evidence) agent.Reading {
	return agent.Reading{State: agent.Unknown, Name: NameUnknown, Evidence: append(ev, r.failed...)}
}

// withoutComposer judges a screen that has neither a known dialog nor a composer.
func (r *reader) withoutComposer() agent.Reading {
	last := r.s.Last(len(r.s.Rows) - 1)
	for _, u := range r.unnamed {
		if u.matches(r.s.Rows[last]) {
			return agent.Reading{State: agent.Blocked, Name: u.name, Evidence: append([]agent.Evidence{
				evidence(ruleUnnamed, last, last, "the last row belongs to a dialog that no rule knows, and there is no composer")}, r.failed...)}
		}
	}
	if out, ok := r.gone(); ok {
		return out
	}
	return r.unknown(evidence(ruleComposer, -1, -1, "no row begins with a composer marker in its style"))
}

// gone looks for what the agent prints when it ends.
func (r *reader) gone() (agent.Reading, bool) {
	if len(r.exited.rows) == 0 {
		return agent.Reading{}, false
	}
	last := r.s.Last(len(r.s.Rows) - 1)
	first, left := last, r.exited.window
	for i := last; i >= 0 && left > 0; i-- {
		if !r.s.Rows[i].Blank() {
			first = i
			left--
		}
	}
	at := first
	var ev []agent.Evidence
	for _, want := range r.exited.rows {
		for at <= last && !want.matches(r.s.Rows[at]) {
			at++
		}
		if at > last {
			return agent.Reading{}, false
		}
		ev = append(ev, evidence(want.name, at, at, "printed on exit"))
	}
	return agent.Reading{State: agent.Exited, Name: NameExited, Evidence: ev}, true
}

// layout is what stands from the composer down.
type layout struct {
	at         int // composer row
	mark       marker
	draftEnd   int // last row of the draft; at when it has one row
	footerFrom int // first footer row, -1 without a footer
	footerEnd  int
	found      []footer // the footer's rows, top down
	stray      int      // a row that is neither draft nor footer, -1 if none
	open       bool     // the lower row of the frame is missing
}

// layout divides the rows below the composer into draft and footer. A footer is
// the last run of rows with ink, below a blank row, every one of them known.
func (r *reader) layout(at int, m marker) layout {
	if r.composer.frame != nil {
		return r.framed(at, m)
	}
	l := layout{at: at, mark: m, draftEnd: at, footerFrom: -1, stray: -1}
	last := r.s.Last(len(r.s.Rows) - 1)
	first := last
	for first > at+1 && !r.s.Rows[first-1].Blank() {
		first--
	}
	if last > at && first > at+1 {
		l.footerFrom, l.footerEnd = first, last
		for i := first; i <= last; i++ {
			ft, ok := r.footerRow(i, l.found)
			if !ok {
				l.footerFrom, l.found = -1, nil
				break
			}
			l.found = append(l.found, ft)
		}
	}
	end := last
	if l.footerFrom >= 0 {
		end = r.s.Last(l.footerFrom - 1)
	}
	for i := at + 1; i <= end; i++ {
		if !r.s.Rows[i].Blank() && r.s.Rows[i].Indent() < r.composer.indent {
			l.stray = i
			break
		}
	}
	l.draftEnd = max(end, at)
	return l
}

// wrapped reports whether row i can be the rest of the ready row above it, of
// which found holds the rows so far.
func (r *reader) wrapped(i int, found []footer) bool {
	if len(found) == 0 {
		return false
	}
	above := found[len(found)-1]
	word, _, _ := strings.Cut(strings.TrimLeft(r.s.Rows[i].Text(), " "), " ")
	return r.s.Width > 0 && (above.means == meansReady || above.wraps) && r.s.Rows[i-1].Width()+1+utf8.RuneCountInString(word) > r.s.Width
}

// withComposer judges a screen whose bottom-most region is a composer.
func (r *reader) withComposer(at int, m marker) agent.Reading {
	l := r.layout(at, m)
	comp, compEv := r.composerState(l)
	out := func(state agent.State, name string, ev ...agent.Evidence) agent.Reading {
		return agent.Reading{State: state, Name: name, Composer: comp, Evidence: append(append([]agent.Evidence{}, ev...), compEv)}
	}
	no := func(ev agent.Evidence) agent.Reading {
		u := r.unknown(ev, compEv)
		comp.Empty = false
		u.Composer = comp
		return u
	}

	for i, ft := range l.found {
		if ft.means == meansBlocked {
			comp.Held, comp.Empty = ft.held, false
			return out(agent.Blocked, ft.row.name, evidence(ft.row.name, l.footerFrom+i, l.footerFrom+i, "the footer says that keys do something else now"))
		}
	}
	if name, row, ok := r.popup(l); ok {
		comp.Held, comp.Empty = heldPopup, false
		return out(agent.Blocked, name, evidence(name, row, row, "a popup is open: Enter would take its choice"))
	}
	if m.held != "" {
		comp.Held, comp.Empty = m.held, false
		return out(agent.Blocked, m.name, evidence(m.name, at, at, "the composer's marker says that Enter does something else"))
	}
	if l.open {
		return no(evidence(ruleComposer, at, l.draftEnd, "no row closes the composer's frame"))
	}
	if m.busy {
		return out(agent.Working, m.name, evidence(m.name, at, at, "the composer's marker is drawn as while a turn is running"))
	}
	if name, row, ok := r.busyRow(at, r.busy.rows); ok {
		return out(agent.Working, name, evidence(name, row, row, "a busy row stands %d rows above the composer", at-row))
	}
	for i, ft := range l.found {
		if ft.means == meansBusy {
			return out(agent.Working, ft.row.name, evidence(ft.row.name, l.footerFrom+i, l.footerFrom+i, "the footer says that a turn is running"))
		}
	}
	if l.stray >= 0 {
		return no(evidence(ruleComposer, l.stray, l.stray, "a row below the composer is neither draft nor footer"))
	}
	if name, row, ok := r.suspect(at); ok {
		return no(evidence(ruleSuspicion, row, row, "reads like %s, %d rows above the composer, but is not drawn as one", name, at-row))
	}
	tall := r.tall(l)
	if l.footerFrom < 0 && !(tall && comp.Draft != "") {
		return no(evidence(ruleFooter, -1, -1, "no known footer below the composer"))
	}
	ready, starting := -1, -1
	for i, ft := range l.found {
		switch ft.means {
		case meansReady:
			if r.proves(ft, l, i, comp) {
				ready = l.footerFrom + i
			}
		case meansStarting:
			starting = l.footerFrom + i
		}
	}
	switch {
	case ready >= 0 && starting >= 0:
		return no(evidence(ruleFooter, l.footerFrom, l.footerEnd, "the footer says both that the agent is ready and that it is starting"))
	case starting >= 0:
		ev := evidence(l.found[starting-l.footerFrom].row.name, starting, starting, "the footer names no model: the agent is starting")
		comp.Empty = false
		return out(agent.NotReady, NameNotReady, ev)
	case ready < 0 && tall && comp.Draft != "":
		return out(agent.Idle, NameTall, evidence(ruleFooter, at, l.draftEnd, "the draft is so tall that it hides the footer; there is no busy row above it"))
	case ready < 0:
		return no(evidence(ruleFooter, l.footerFrom, l.footerEnd, "no footer row names the model"))
	case comp.Empty && r.missing(l) != "":
		return no(evidence(ruleFooter, l.footerFrom, l.footerEnd, "the footer lacks %s, which stands below every empty composer", r.missing(l)))
	case comp.Empty && r.room(l) < r.composer.headroom:
		return no(evidence(ruleScreen, at, at, "only %d rows above the composer and below the footer: a busy row would have no room", r.room(l)))
	}
	foot := evidence(l.found[ready-l.footerFrom].row.name, ready, ready, "the footer names the model and has no other text")
	ev := append([]agent.Evidence{foot}, r.noted(at)...)
	switch {
	case comp.Empty:
		return out(agent.Idle, NameIdle, ev...)
	case comp.Draft != "":
		return out(agent.Idle, NameDraft, ev...)
	}
	return no(evidence(ruleComposer, at, l.draftEnd, "neither a placeholder nor a draft"))
}

// missing names a footer row that always stands below an empty composer and is
// not there.
func (r *reader) missing(l layout) string {
	for _, ft := range r.footer {
		if ft.withEmpty && !slices.ContainsFunc(l.found, func(have footer) bool { return have.row.re == ft.row.re }) {
			return ft.row.name
		}
	}
	return ""
}

// height is the number of rows of the pane.
func (r *reader) height() int {
	if r.s.Height > 0 {
		return r.s.Height
	}
	return len(r.s.Rows)
}

// room counts the rows that are left for a busy row: above the composer, and
// blank ones at the end, into which an inline screen still grows.
func (r *reader) room(l layout) int {
	return l.at + r.height() - 1 - r.s.Last(len(r.s.Rows)-1)
}

// tall reports whether composer and draft take so much of the pane, down to its
// end, that the agent leaves the footer out, and yet leave room for a busy row.
func (r *reader) tall(l layout) bool {
	h := r.height()
	return r.composer.tall > 0 && l.at >= r.composer.headroom && (h-l.at)*100 >= h*r.composer.tall && l.draftEnd >= h-maxTail
}

// maxTail is how many rows (blank, hints) may stand below a tall draft.
const maxTail = 4

// scrolled reports whether the composer shows only the end of a draft, and gives
// the cells of its first row without the mark that says so.
func (r *reader) scrolled(l layout, cells []screen.Cell) ([]screen.Cell, bool) {
	c := &r.composer
	if n := len(cells); c.scrollMark != "" && n > 0 {
		end := cells[n-1]
		if end.Text == c.scrollMark && c.scrollStyle.test(end.Style) && r.s.Rows[l.at].Full() {
			return cells[:n-1], true
		}
	}
	return cells, l.mark.hidden || c.scrollTop > 0 && l.at < c.scrollTop && l.draftEnd > l.at && r.s.Last(len(r.s.Rows)-1) == r.height()-1
}

// composerState reads the composer's text. It is empty when it has one row and
// every inked cell is drawn as a placeholder; a draft when none is.
func (r *reader) composerState(l layout) (agent.Composer, agent.Evidence) {
	c := agent.Composer{Seen: true}
	first := r.s.Rows[l.at]
	var cells []screen.Cell
	if r.composer.indent < first.Width() {
		cells = first.Cells[r.composer.indent:first.Width()]
	}
	cells, c.Scrolled = r.scrolled(l, cells)
	more := l.draftEnd > l.at
	if r.composer.cursor != nil && !more && !c.Scrolled {
		if why, ok := r.underCursor(first, cells); ok {
			c.Empty = true
			return c, evidence(ruleComposer, l.at, l.at, "one row, %s", why)
		}
	}
	dim := screen.Any(cells, r.composer.placeholder.test)
	for i := l.at + 1; i <= l.draftEnd; i++ {
		dim = dim || screen.Any(r.s.Rows[i].Cells, r.composer.placeholder.test)
	}
	switch {
	case r.composer.cursor == nil && !more && !c.Scrolled && screen.All(cells, r.composer.placeholder.test):
		c.Empty = true
		return c, evidence(ruleComposer, l.at, l.at, "one row, all of it drawn as a placeholder")
	case dim:
		return c, evidence(ruleComposer, l.at, l.draftEnd, "partly drawn as a placeholder: a torn frame, or not a draft")
	}
	rows := []string{stripped(screen.Text(cells), 0)}
	for i := l.at + 1; i <= l.draftEnd; i++ {
		rows = append(rows, stripped(r.s.Rows[i].Text(), r.composer.indent))
	}
	c.Draft = strings.Join(rows, "\n")
	if c.Draft == "" {
		return c, evidence(ruleComposer, l.at, l.at, "no text at all, not even a placeholder")
	}
	if n, ok := r.pasted(first, more); ok {
		c.Pasted, c.Placeholder = n, c.Draft
		return c, evidence(r.composer.pasted.name, l.at, l.at, "a placeholder for a large paste")
	}
	return c, evidence(ruleComposer, l.at, l.draftEnd, "a draft of %d rows, none of it drawn as a placeholder", len(rows))
}

// pasted reports whether the draft is nothing but the placeholder of a large
// paste, and the number of characters behind it where it says that. Its
// expression is over the row from the text's column on, its style over the same
// cells.
func (r *reader) pasted(first screen.Row, more bool) (int, bool) {
	if more || r.composer.indent >= len(first.Cells) {
		return 0, false
	}
	text := first.From(r.composer.indent)
	sub := r.composer.pasted.re.FindStringSubmatchIndex(text)
	if sub == nil {
		return 0, false
	}
	for _, g := range r.composer.pasted.groups {
		if !screen.All(first.Cells[r.composer.indent:], g.style.test) {
			return 0, false
		}
	}
	i := r.composer.pasted.re.SubexpIndex("n")
	if i < 0 {
		return 0, true
	}
	n, err := strconv.Atoi(text[sub[2*i]:sub[2*i+1]])
	return n, err == nil && n > 0
}

// popup looks for an open popup above or below the composer.
func (r *reader) popup(l layout) (string, int, bool) {
	for _, p := range r.popups.rows {
		from, to := l.at-r.popups.window, l.at-1
		if p.below {
			from, to = l.at+1, l.at+r.popups.window
		}
		for i := max(from, 0); i <= to && i < len(r.s.Rows); i++ {
			if p.row.matches(r.s.Rows[i]) {
				return p.row.name, i, true
			}
		}
	}
	return "", 0, false
}

// busyRow looks for a row in the window above the composer that one of the rules
// matches, text and style.
func (r *reader) busyRow(at int, rules []row) (string, int, bool) {
	for i := at - 1; i >= 0 && i >= at-r.busy.window; i-- {
		for _, b := range rules {
			if b.matches(r.s.Rows[i]) {
				return b.name, i, true
			}
		}
	}
	return "", 0, false
}

// suspect looks for a row that forbids to call the pane idle: one that reads like
// a busy row without being drawn as one, or one of the file's suspects.
func (r *reader) suspect(at int) (string, int, bool) {
	for i := at - 1; i >= 0 && i >= at-r.busy.window; i-- {
		for _, b := range r.busy.rows {
			if b.texts(r.s.Rows[i]) {
				return b.name, i, true
			}
		}
	}
	return r.busyRow(at, r.busy.suspects)
}

// noted gives evidence of rows that change nothing but are worth saying.
func (r *reader) noted(at int) []agent.Evidence {
	var out []agent.Evidence
	for i := at - 1; i >= 0 && i >= at-r.busy.window; i-- {
		for _, n := range r.notes {
			if n.matches(r.s.Rows[i]) {
				out = append(out, evidence(n.name, i, i, "noted; it does not change the state"))
			}
		}
	}
	return out
}
