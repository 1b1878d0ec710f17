// Package screen turns the styled capture of one pane into cells: which
// character stands where, how wide it is, and how it is drawn. The rules of
// package rule tell a placeholder from a draft, and a dialog from a picture of a
// dialog, by these styles alone.
//
// Parse reads what `capture-pane -e -p` writes: rows divided by newlines, and
// styles by SGR sequences that carry over from one row to the next. Every other
// escape sequence (titles, hyperlinks, cursor movement) is skipped. It never
// fails and never panics: bytes that are not text become U+FFFD, and what is
// over a bound is cut and said so (Screen.Cut).
//
// It owns nothing and keeps nothing of the capture but the text of its cells.
package screen

import (
	"strings"
	"unicode/utf8"
)

// Bounds of one screen. A pane beyond them is cut, never refused: cutting only
// removes proof.
const (
	MaxBytes   = 4 << 20 // of a capture
	MaxRows    = 1000
	MaxColumns = 2000
	maxCluster = 64 // bytes of one cell with its combining characters
)

// Cell is one character position as it is drawn.
type Cell struct {
	Text  string // base character with its combining characters; "" in the second half of a wide one
	Style Style
	Width uint8 // 2 for a wide character, 0 for its second half, else 1
}

// Blank reports whether the cell shows no ink: its style may still be visible.
func (c Cell) Blank() bool { return c.Text == " " }

// Screen is one parsed capture.
type Screen struct {
	Width, Height int   // of the pane, as given to Parse; 0 when not known
	Rows          []Row // as many as the capture has lines, at most Height when that is known
	Lines         int   // lines in the capture; more than Height means that it is not one screen
	Cut           bool  // a bound was met: part of the capture is not in Rows
}

// Parse reads a capture of a pane of the given size.
func Parse(text []byte, width, height int) *Screen {
	s := &Screen{Width: max(width, 0), Height: max(height, 0)}
	if len(text) > MaxBytes {
		text, s.Cut = text[:MaxBytes], true
	}
	if len(text) == 0 && s.Height == 0 {
		return s
	}
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	limit := MaxRows
	if s.Height > 0 && s.Height < limit {
		limit = s.Height
	}
	p := parser{src: string(text), width: min(s.Width, MaxColumns)}
	for {
		row := p.row()
		row.pane = s.Width
		s.Lines++
		if len(s.Rows) < limit {
			s.Rows = append(s.Rows, row)
		}
		if p.end {
			break
		}
	}
	s.Cut = s.Cut || p.cut || s.Lines > MaxRows
	return s
}

// Row gives row i, an empty one where there is none.
func (s *Screen) Row(i int) Row {
	if i < 0 || i >= len(s.Rows) {
		return Row{}
	}
	return s.Rows[i]
}

// Last is the index of the last row with ink at or above row from, -1 without one.
func (s *Screen) Last(from int) int {
	for i := min(from, len(s.Rows)-1); i >= 0; i-- {
		if !s.Rows[i].Blank() {
			return i
		}
	}
	return -1
}

// Region gives rows from..to (inclusive) as canonical styled bytes: one line a
// row, every run of equal style led by its full SGR sequence. It is a function of
// what is drawn in these rows and of nothing else: how the terminal got there,
// where on the screen they stand, and what stands around them does not matter.
// Blanks at the end of a row count only where their style can be seen.
func (s *Screen) Region(from, to int) []byte {
	var b []byte
	for i := max(from, 0); i <= to && i < len(s.Rows); i++ {
		b = s.Rows[i].append(b)
		b = append(b, '\n')
	}
	return b
}

// Text gives the plain text of rows from..to (inclusive), one line a row.
func (s *Screen) Text(from, to int) string {
	var b strings.Builder
	for i := max(from, 0); i <= to && i < len(s.Rows); i++ {
		b.WriteString(s.Rows[i].Text())
		b.WriteByte('\n')
	}
	return b.String()
}

// parser walks a capture once.
type parser struct {
	src   string
	width int // of the pane: how many cells a row is expected to have
	pos   int
	style Style
	end   bool // the whole capture is read
	cut   bool
}

// row reads up to and over the next newline.
func (p *parser) row() Row {
	var r Row
	column := 0
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		switch {
		case c == '\n':
			p.pos++
			r.finish()
			return r
		case c == 0x1b:
			p.escape()
			continue
		case c == 0x0e: // SO: the line drawing set, as tmux writes it
			p.style.Attr |= Charset
			p.pos++
			continue
		case c == 0x0f: // SI
			p.style.Attr &^= Charset
			p.pos++
			continue
		case c < 0x20 || c == 0x7f:
			p.pos++
			continue
		}
		ch, size := utf8.DecodeRuneInString(p.src[p.pos:])
		text := p.src[p.pos : p.pos+size]
		p.pos += size
		if ch == utf8.RuneError && size == 1 {
			text = "\uFFFD"
		}
		if ch >= 0x80 && ch < 0xa0 { // C1 controls
			continue
		}
		w := Width(ch)
		if w == 0 {
			r.combine(text)
			continue
		}
		if column+w > MaxColumns {
			p.cut = true
			continue
		}
		if r.Cells == nil {
			r.Cells = make([]Cell, 0, p.width)
		}
		r.Cells = append(r.Cells, Cell{Text: text, Width: uint8(w), Style: p.style})
		if w == 2 {
			r.Cells = append(r.Cells, Cell{Style: p.style})
		}
		column += w
	}
	p.end = true
	r.finish()
	return r
}

// escape reads one escape sequence. A sequence never runs over the end of its
// row, so that a broken one cannot swallow the rows below.
func (p *parser) escape() {
	p.pos++ // ESC
	if p.pos >= len(p.src) {
		return
	}
	c := p.src[p.pos]
	switch {
	case c == '[':
		p.pos++
		p.csi()
	case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
		p.pos++
		p.skipString()
	case c >= 0x20 && c <= 0x2f: // intermediates, then one final byte
		for p.pos < len(p.src) && p.src[p.pos] >= 0x20 && p.src[p.pos] <= 0x2f {
			p.pos++
		}
		if p.pos < len(p.src) && p.src[p.pos] >= 0x30 && p.src[p.pos] <= 0x7e {
			p.pos++
		}
	case c >= 0x30 && c <= 0x7e:
		p.pos++
	}
}

// csi reads a control sequence and obeys it if it sets a style.
func (p *parser) csi() {
	start := p.pos
	for p.pos < len(p.src) && p.src[p.pos] >= 0x30 && p.src[p.pos] <= 0x3f {
		p.pos++
	}
	params := p.src[start:p.pos]
	plain := true
	for p.pos < len(p.src) && p.src[p.pos] >= 0x20 && p.src[p.pos] <= 0x2f {
		plain = false
		p.pos++
	}
	if p.pos >= len(p.src) || p.src[p.pos] < 0x40 || p.src[p.pos] > 0x7e {
		return // broken: what follows is text again
	}
	final := p.src[p.pos]
	p.pos++
	if final == 'm' && plain && (params == "" || params[0] < '<') {
		p.style.apply(params)
	}
}

// skipString skips the body of an OSC, DCS, SOS, PM or APC sequence.
func (p *parser) skipString() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case '\n':
			return
		case 0x07:
			p.pos++
			return
		case 0x1b:
			if p.pos+1 < len(p.src) && p.src[p.pos+1] == '\\' {
				p.pos += 2
			}
			return
		}
		p.pos++
	}
}
