package screen

import (
	"strings"
)

// Row is one line of cells.
type Row struct {
	Cells []Cell

	text  string // without blanks at the end
	start []int  // byte offset in text of each cell, for those within text
	pane  int    // width of the pane, 0 when not known
}

// Text is the row's characters without blanks at the end.
func (r Row) Text() string { return r.text }

// Blank reports whether the row shows no ink.
func (r Row) Blank() bool { return r.text == "" }

// Indent is the column of the first cell with ink, -1 in a blank row.
func (r Row) Indent() int {
	for i, c := range r.Cells {
		if c.Width > 0 && !c.Blank() {
			return i
		}
	}
	return -1
}

// Width is the number of columns up to the last one with ink.
func (r Row) Width() int { return len(r.start) }

// Full reports whether ink stands in the last column of the pane.
func (r Row) Full() bool { return r.pane > 0 && len(r.start) >= r.pane }

// From is the text from a column on, without blanks at the end.
func (r Row) From(column int) string {
	if column < 0 {
		column = 0
	}
	if column >= len(r.start) {
		return ""
	}
	return r.text[r.start[column]:]
}

// Span gives the cells that bytes from..to of Text come from.
func (r Row) Span(from, to int) []Cell {
	lo, hi := len(r.start), 0
	for i, off := range r.start {
		end := len(r.text)
		if i+1 < len(r.start) {
			end = r.start[i+1]
		}
		if end > from && off < to {
			lo, hi = min(lo, i), max(hi, i+1)
		}
	}
	if lo >= hi {
		return nil
	}
	return r.Cells[lo:hi]
}

// All reports whether there is ink in cells and every inked cell passes the test.
func All(cells []Cell, test func(Style) bool) bool {
	seen := false
	for _, c := range cells {
		if c.Width == 0 || c.Blank() {
			continue
		}
		seen = true
		if !test(c.Style) {
			return false
		}
	}
	return seen
}

// Any reports whether an inked cell passes the test.
func Any(cells []Cell, test func(Style) bool) bool {
	for _, c := range cells {
		if c.Width > 0 && !c.Blank() && test(c.Style) {
			return true
		}
	}
	return false
}

// Text puts the characters of cells together.
func Text(cells []Cell) string {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(c.Text)
	}
	return b.String()
}

// combine adds a character without width to the last cell of the row.
func (r *Row) combine(text string) {
	for i := len(r.Cells) - 1; i >= 0; i-- {
		if r.Cells[i].Width > 0 {
			if len(r.Cells[i].Text)+len(text) <= maxCluster {
				r.Cells[i].Text += text
			}
			return
		}
	}
}

// finish makes the plain text once the cells are known.
func (r *Row) finish() {
	last := len(r.Cells)
	for last > 0 && r.Cells[last-1].Blank() {
		last--
	}
	var b strings.Builder
	r.start = make([]int, last)
	for i, c := range r.Cells[:last] {
		r.start[i] = b.Len()
		b.WriteString(c.Text)
	}
	r.text = b.String()
}

// append writes the row in the form of Screen.Region.
func (r Row) append(b []byte) []byte {
	last := len(r.start)
	for i := len(r.Cells) - 1; i >= last; i-- {
		if r.Cells[i].Style.Visible() {
			last = i + 1
			break
		}
	}
	for i, c := range r.Cells[:last] {
		if i == 0 || c.Style != r.Cells[i-1].Style {
			b = c.Style.append(b)
		}
		b = append(b, c.Text...)
	}
	return b
}
