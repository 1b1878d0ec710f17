// Package draft compares a text with what the composer of a terminal program shows
// of it: wrapped over rows, without what a terminal does not show, perhaps only its
// end. Adapters use it to prove that a draft is exactly what was pasted.
package draft

import (
	"slices"
	"strings"
	"unicode"
)

// Rows gives the rows of a composer as they can be compared: only what shows, and
// without the blanks at their ends, which cannot be seen.
func Rows(text string) []string {
	rows := Lines(text)
	for i := range rows {
		rows[i] = strings.TrimRight(rows[i], " ")
	}
	return rows
}

// Lines gives the lines of a text as they can be compared with rows.
func Lines(text string) []string { return strings.Split(Visible(text), "\n") }

// Visible reduces a text to what a terminal shows of it: a tab or any other space
// is one blank, and characters without a width of their own are gone (tmux drops
// some of them and keeps others).
func Visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || unicode.Is(unicode.Zs, r):
			return ' '
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
			return -1
		case r >= 0x1F3FB && r <= 0x1F3FF: // skin tones join the character before them
			return -1
		case r == 0x115F || r == 0x1160 || r == 0x3164 || r == 0xFFA0: // Hangul fillers
			return -1
		}
		return r
	}, s)
}

// Shown reports whether the rows of a composer are exactly the lines of a text,
// each line on one or more rows. Rows are broken at blanks, which may vanish, stay
// or make rows of their own (versions differ), and within words. Blanks at the end
// of a row cannot be seen.
func Shown(rows, lines []string) bool {
	failed := map[[2]int]bool{} // by rows and lines left
	var try func(rows, lines []string) bool
	try = func(rows, lines []string) bool {
		if len(lines) == 0 {
			return len(rows) == 0
		}
		at := [2]int{len(rows), len(lines)}
		if failed[at] {
			return false
		}
		left, rest, ok := takeLine(rows, lines[0])
		for ok {
			if try(left, lines[1:]) {
				return true
			}
			// Blanks at the end of a line may have rows of their own.
			if rest == "" || len(left) == 0 || left[0] != "" {
				break
			}
			left = left[1:]
		}
		failed[at] = true
		return false
	}
	return try(rows, lines)
}

// takeLine takes the rows of one line; rest is the blanks at its end.
func takeLine(rows []string, line string) (left []string, rest string, ok bool) {
	rest = line
	for first := true; first || strings.Trim(rest, " ") != ""; first = false {
		if len(rows) == 0 {
			return nil, "", false
		}
		row := rows[0]
		if row == "" && strings.Trim(rest, " ") != "" && !strings.HasPrefix(rest, "  ") {
			return nil, "", false
		}
		if !first {
			// Blanks at the break belong to either side, or to none.
			row, rest = strings.TrimLeft(row, " "), strings.TrimLeft(rest, " ")
		}
		after, ok := strings.CutPrefix(rest, row)
		if !ok {
			return nil, "", false
		}
		rows, rest = rows[1:], after
	}
	return rows, rest, true
}

// ShownEnd is Shown for rows that may be the last ones only: the text may go on
// above them.
func ShownEnd(rows, lines []string) bool {
	rows, lines = slices.Clone(rows), slices.Clone(lines)
	slices.Reverse(rows)
	slices.Reverse(lines)
	for _, rest := range lines {
		rest = strings.TrimRight(rest, " ")
		for first := true; first || rest != ""; first = false {
			if len(rows) == 0 {
				return true
			}
			before, ok := strings.CutSuffix(rest, rows[0])
			if !ok && !first {
				// A blank that was carried over the break stands at the row's beginning.
				before, ok = strings.CutSuffix(rest, strings.TrimLeft(rows[0], " "))
			}
			if !ok {
				return false
			}
			rows, rest = rows[1:], strings.TrimRight(before, " ")
			if before != "" && rest == "" && len(rows) > 0 {
				return false // the line is indented and the row is not
			}
		}
	}
	return len(rows) == 0
}
