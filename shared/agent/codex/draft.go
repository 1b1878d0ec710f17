package codex

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/draft"
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
	rows, text := draft.Rows(c.Draft), draft.Lines(p.Typed)
	if c.Scrolled {
		return len(rows) >= minScrolled && draft.ShownEnd(rows, text)
	}
	return draft.Shown(rows, text)
}
