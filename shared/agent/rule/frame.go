package rule

import (
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
)

// This file reads what an agent draws that frames its composer: the rows above
// and below it, and the cell under a cursor that the agent draws itself.

// framed divides the rows from a framed composer down: the draft ends at the
// lower row of the frame, and every row with ink below that is a known footer
// row, or a stray.
func (r *reader) framed(at int, m marker) layout {
	l := layout{at: at, mark: m, draftEnd: at, footerFrom: -1, stray: -1}
	last := r.s.Last(len(r.s.Rows) - 1)
	lower := at + 1
	for lower <= last && !r.composer.frame.matches(r.s.Rows[lower]) {
		if row := r.s.Rows[lower]; !row.Blank() && row.Indent() < r.composer.indent {
			break // not a row of the draft
		}
		lower++
	}
	if lower > last || !r.composer.frame.matches(r.s.Rows[lower]) {
		l.open = true
		return l
	}
	l.draftEnd = lower - 1
	for i := lower + 1; i <= last; i++ {
		if r.s.Rows[i].Blank() {
			continue
		}
		ft, ok := r.footerRow(i, l.found)
		if !ok || l.footerFrom >= 0 && i != l.footerEnd+1 {
			l.stray = i
			break
		}
		if l.footerFrom < 0 {
			l.footerFrom = i
		}
		l.found, l.footerEnd = append(l.found, ft), i
	}
	if n := len(l.found); n > 0 && l.stray < 0 && l.found[n-1].above {
		l.stray = l.footerEnd // the row that says what the footer is does not stand below it
	}
	return l
}

// proves reports whether ready row i of the footer says that no turn is running.
func (r *reader) proves(ft footer, l layout, i int, comp agent.Composer) bool {
	switch {
	case ft.draft && (comp.Empty || comp.Scrolled):
		return false
	case l.mark.hidden:
		return r.s.Rows[l.footerFrom+i].Width()+ft.room <= r.s.Width
	}
	return true
}

// footerRow gives the rule for a row below the composer; found holds those above.
func (r *reader) footerRow(i int, found []footer) (footer, bool) {
	for _, ft := range r.footer {
		if ft.row.matches(r.s.Rows[i]) && (!ft.wraps || r.wrapped(i, found)) {
			return ft, true
		}
	}
	return footer{}, false
}

// underCursor reports whether the composer's only row holds no draft: nothing
// but the cursor on its first cell, or a placeholder whose first character is
// under the cursor and whose every other one is drawn as a placeholder.
func (r *reader) underCursor(first screen.Row, cells []screen.Cell) (string, bool) {
	c := &r.composer
	inked, under := 0, -1
	for i := c.indent; i < len(first.Cells); i++ {
		cell := first.Cells[i]
		if cell.Width > 0 && c.cursor.test(cell.Style) {
			if under >= 0 || i > c.indent {
				return "", false
			}
			under = i
			continue
		}
		if cell.Width == 0 || cell.Blank() {
			continue
		}
		if under < 0 || !c.placeholder.test(cell.Style) {
			return "", false
		}
		inked++
	}
	switch {
	case inked > 0 && !first.Cells[under].Blank() && !c.placeholder.test(first.Cells[under].Style):
		return "its first character under the cursor, the others drawn as a placeholder", true
	case inked == 0 && len(cells) == 0:
		return "nothing but the cursor", true
	}
	return "", false
}

// panel looks for a view that hides the composer: its first row stands below the
// bottom-most composer, if there is one at all.
func (r *reader) panel(composer int) (agent.Reading, bool) {
	if len(r.panels) == 0 {
		return agent.Reading{}, false
	}
	for i := len(r.s.Rows) - 1; i > composer; i-- {
		for _, p := range r.panels {
			if p.matches(r.s.Rows[i]) {
				return agent.Reading{State: agent.Blocked, Name: p.name, Evidence: append([]agent.Evidence{
					evidence(p.name, i, i, "a view begins here, and there is no composer below")}, r.failed...)}, true
			}
		}
	}
	return agent.Reading{}, false
}
