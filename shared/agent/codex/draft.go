package codex

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// minScrolled is the least number of rows that prove the end of a draft; Codex
// scrolls only what is taller than half of the pane.
const minScrolled = 4

// input is what the rule files of all covered versions say of requests, taken
// together so that a prepared request is good for each of them.
type input struct {
	inline int      // longest text that every version shows as text
	bytes  int      // longest request
	refuse []string // first characters that Codex takes for itself
	wrap   []string // first characters of a last word that opens a popup
	word   string   // put after such a word
}

// inputOf joins the rule files with what is known without them.
func inputOf(set *rule.Set) input {
	in := input{inline: 1000, bytes: 32768, refuse: []string{"/", "!"}, wrap: []string{"@", "$"}, word: "."}
	if set == nil {
		return in
	}
	for _, f := range set.Files() {
		if f.Agent() != string(agent.Codex) {
			continue
		}
		r := f.Input()
		if r.InlineChars > 0 {
			in.inline = min(in.inline, r.InlineChars)
		}
		if r.RequestBytes > 0 {
			in.bytes = min(in.bytes, r.RequestBytes)
		}
		in.refuse = append(in.refuse, r.Refuse...)
		in.wrap = append(in.wrap, r.WrapPrefix...)
		if r.WrapWord != "" {
			in.word = r.WrapWord
		}
	}
	return in
}

// Prepare makes what is typed of a request (codex §3): both ends trimmed as Codex
// does on submit, a popup at the end defused, anything that would run locally or
// leave the paste refused. What is typed is also what the record must hold.
func (a *Adapter) Prepare(request string) (agent.Prepared, error) {
	in := a.input
	if !utf8.ValidString(request) {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: not valid UTF-8")
	}
	text := strings.TrimSpace(request)
	if text == "" {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it is blank")
	}
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it holds the control character U+%04X", r).
				WithHint("only line feeds and tabs are typed")
		}
		if unshowable(r) && utf8.RuneCountInString(text) <= in.inline {
			return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it holds U+%04X, which spoils the composer's row, so that its arrival could not be proven", r).
				WithHint("replace it, for a line separator by a line feed")
		}
	}
	for _, p := range in.refuse {
		if strings.HasPrefix(text, p) {
			return agent.Prepared{}, fault.New(fault.NativeSlashCommand, "prepare a request: text that begins with %s is a command of Codex itself, not a request", p).
				WithHint("put a word before it")
		}
	}
	last := text[strings.LastIndexFunc(text, unicode.IsSpace)+1:]
	for _, p := range in.wrap {
		if strings.HasPrefix(last, p) {
			text += " " + in.word
			break
		}
	}
	if len(text) > in.bytes {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: %d bytes, at most %d are typed", len(text), in.bytes)
	}
	return agent.Prepared{Typed: text, Expected: text, RequestHash: hash(text)}, nil
}

// unshowable reports the characters that leave rubbish in the composer, because
// Codex gives them a cell and the terminal none: line and paragraph separators,
// interlinear annotations (both versions, tmux 3.3a).
func unshowable(r rune) bool {
	return r == '\u2028' || r == '\u2029' || (r >= '\ufff9' && r <= '\ufffb')
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Landed reports whether the composer holds exactly the prepared text, as far as
// a composer can show it: all of it modulo wrapping; the number of its characters
// where Codex shows a placeholder; its end where the box is too small for it.
func (a *Adapter) Landed(c agent.Composer, p agent.Prepared) bool {
	if !c.Seen || c.Empty || p.Typed == "" {
		return false
	}
	n := utf8.RuneCountInString(p.Typed)
	if c.Pasted > 0 && n > a.input.inline {
		return c.Pasted == n
	}
	rows, text := strings.Split(visible(c.Draft), "\n"), strings.Split(visible(p.Typed), "\n")
	for i := range rows {
		rows[i] = strings.TrimRight(rows[i], " ")
	}
	if c.Scrolled {
		if len(rows) < minScrolled {
			return false
		}
		slices.Reverse(rows)
		slices.Reverse(text)
		return shownEnd(rows, text)
	}
	return shown(rows, text)
}

// visible reduces a text to what a terminal shows of it: a tab or any other space
// is one blank, and characters without a width of their own are gone (tmux drops
// some of them and keeps others).
func visible(s string) string {
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

// shown reports whether the rows of a composer are exactly the lines of a text,
// each line on one or more rows. Rows are broken at blanks, which may vanish, stay
// or make rows of their own (versions differ), and within words. Blanks at the end
// of a row cannot be seen.
func shown(rows, lines []string) bool {
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

// shownEnd is shown for the last rows only; both lists come last first. The text
// may go on above the rows.
func shownEnd(rows, lines []string) bool {
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
