package claude

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/draft"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// tab is what Claude Code makes of a tab.
const tab = "    "

// minScrolled is the least number of rows that prove the end of a longer draft.
const minScrolled = 4

// input is what the rule files of all covered versions say of requests, taken
// together so that a prepared request is good for each of them.
type input struct {
	bytes  int      // longest request
	refuse []string // first characters that Claude Code takes for itself
	wrap   []string // first characters of a last word that opens a popup
	word   string   // put after such a word
}

// inputOf joins the rule files with what is known without them.
func inputOf(set *rule.Set) input {
	in := input{bytes: 32768, refuse: []string{"/", "!"}, word: "."}
	if set == nil {
		return in
	}
	for _, f := range set.Files() {
		if f.Agent() != string(agent.Claude) {
			continue
		}
		r := f.Input()
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

// Prepare makes what is typed of a request (claude §3): all that Claude Code would
// do to it is done before, so that what is typed is also what the record must
// hold. Anything that would run locally or leave the paste is refused.
func (a *Adapter) Prepare(request string) (agent.Prepared, error) {
	if !utf8.ValidString(request) {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: not valid UTF-8")
	}
	text := strings.TrimFunc(plain(request), blank)
	if text == "" {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it is blank")
	}
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' {
			return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it holds the control character U+%04X", r).
				WithHint("only line feeds and tabs are typed")
		}
		if r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: it holds U+%04X, which is no character", r)
		}
	}
	for _, p := range a.input.refuse {
		if strings.HasPrefix(text, p) {
			return agent.Prepared{}, fault.New(fault.NativeSlashCommand, "prepare a request: text that begins with %s is a command of Claude Code itself, not a request", p).
				WithHint("put a word before it")
		}
	}
	last := text[strings.LastIndexFunc(text, unicode.IsSpace)+1:]
	for _, p := range a.input.wrap {
		if strings.HasPrefix(last, p) {
			text += " " + a.input.word
			break
		}
	}
	if len(text) > a.input.bytes {
		return agent.Prepared{}, fault.New(fault.InvalidArguments, "prepare a request: %d bytes, at most %d are typed", len(text), a.input.bytes)
	}
	return agent.Prepared{Typed: text, Expected: text, RequestHash: hash(text), LineFeeds: true}, nil
}

// blank reports what a program written in JavaScript trims, and a little more.
func blank(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' }

// plain gives the text that 2.1.332 makes of a pasted one [measured]: composed
// (NFC), a tab as four blanks, line and paragraph separators as line feeds, and
// without characters that nobody sees. Among the latter are some for which it
// changes the draft instead of submitting it (marks of writing direction). 2.1.263
// keeps all of them, so that one form is right for both.
func plain(text string) string {
	text = strings.NewReplacer("\t", tab, "\u2028", "\n", "\u2029", "\n").Replace(text)
	var b strings.Builder
	before := rune(0) // last character that was kept
	for i, r := range text {
		after, _ := utf8.DecodeRuneInString(text[i+utf8.RuneLen(r):])
		if unseen(r) && !joins(before, r, after) {
			continue
		}
		b.WriteRune(r)
		before = r
	}
	return norm.NFC.String(b.String())
}

// unseen reports characters that show nothing by themselves.
func unseen(r rune) bool {
	switch {
	case r == '\u034f', r == '\u115f', r == '\u1160', r == '\u17b4', r == '\u17b5', r == '\u2065', r == '\u3164', r == '\uffa0':
		return true
	case r >= '\u180b' && r <= '\u180f', r >= '\ufe00' && r <= '\ufe0f', r >= 0xe0000 && r <= 0xe0fff:
		return true
	}
	return unicode.Is(unicode.Cf, r)
}

// joins reports whether an unseen character belongs to what stands around it:
// joiners between letters or pictures, the picture selector, the letters of a
// flag. Claude Code keeps these.
func joins(before, r, after rune) bool {
	shape := func(c rune) bool {
		return c > unicode.MaxASCII && (unicode.In(c, unicode.L, unicode.M, unicode.So, unicode.Sk) && !(unseen(c) && c != '\ufe0f'))
	}
	switch {
	case r == '\u200c', r == '\u200d':
		return shape(before) && shape(after)
	case r == '\ufe0f':
		return unicode.In(before, unicode.So, unicode.Sm, unicode.Sk) || before >= '0' && before <= '9' || before == '#' || before == '*'
	case r >= 0xe0020 && r <= 0xe007f:
		return before == 0x1f3f4 || before >= 0xe0020 && before <= 0xe007e
	}
	return false
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// pastedMark is what stands for a large paste: the number of its line feeds, none
// for a single line.
var pastedMark = regexp.MustCompile(`^\[Pasted text #[0-9]{1,6}(?: \+([0-9]{1,6}) lines)?\]$`)

// Landed reports whether the composer holds exactly the prepared text, as far as a
// composer can show it: all of it modulo wrapping, or the mark that stands for a
// paste with exactly as many line feeds.
func (a *Adapter) Landed(c agent.Composer, p agent.Prepared) bool {
	if !c.Seen || c.Empty || p.Typed == "" {
		return false
	}
	if c.Placeholder != "" {
		return pasted(c.Placeholder, p.Typed)
	}
	rows, lines := draft.Rows(squeeze(c.Draft)), draft.Lines(squeeze(p.Typed))
	if c.Scrolled {
		return len(rows) >= minScrolled && draft.ShownEnd(rows, lines)
	}
	return draft.Shown(rows, lines)
}

// misjudged are characters whose width Claude Code and the terminal judge
// differently, so that a blank appears behind them or not.
var misjudged = regexp.MustCompile(`(\x{fe0f}|\x{20e3}|\x{200d}.) +`)

func squeeze(text string) string { return misjudged.ReplaceAllString(text, "$1") }

// pasted reports whether a mark may stand for the text.
func pasted(mark, text string) bool {
	m := pastedMark.FindStringSubmatch(mark)
	if m == nil {
		return false
	}
	want := ""
	if n := strings.Count(text, "\n"); n > 0 {
		want = decimal(n)
	}
	return m[1] == want
}

// wrapPattern is the form in which a large paste is recorded (claude §3). It has
// the text between two marks with one id, and nothing before or after them.
var wrapPattern = regexp.MustCompile(`^\n*<pasted_content id="([0-9a-zA-Z_-]{1,64})">\n`)

// recorded reports whether the text of a prompt record is exactly the request, as
// it stands or as the one large paste of the record.
func recorded(content, request string) bool {
	content = strings.TrimRightFunc(content, blank)
	if content == request {
		return true
	}
	m := wrapPattern.FindStringSubmatch(content)
	if m == nil {
		return false
	}
	inner, ok := strings.CutSuffix(content[len(m[0]):], "\n</pasted_content id=\""+m[1]+"\">")
	return ok && strings.TrimRightFunc(inner, blank) == request
}
