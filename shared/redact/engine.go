package redact

import (
	"bytes"
	"sort"
)

// pemTail is how much of an open PEM block is kept to find its end mark.
const pemTail = 128

// pemBegin begins a PEM block.
var pemBegin = []byte("-----BEGIN")

// span is a part of a buffer that is to be replaced.
type span struct {
	start, end int
	label      string // "" means the redactor's word
	lead       int    // where what gives the span away begins, at most start
}

// engine redacts a text that comes in pieces: whole lines, or a line's beginning
// that is taken as far as it can be decided. It is what Text and Stream share.
type engine struct {
	red     *Redactor
	auto    *automaton
	noPaths bool

	changed  bool // something was replaced
	onlyWord bool // … and all of it had been replaced before

	mid    bool // the next piece does not begin a line
	worded bool // a word of this line was passed on already
	folded bool // the last line was a header that may go on in the next
	pem    bool // inside a PEM block
	rest   bool // the rest of this line is hidden and its word is written
	torn   bool // bytes are missing before this line: it may be the inside of a PEM block
	bearer bool // the last line ended in that word
	basic  bool // … or in this one
}

// state packs what later bytes depend on.
func (e *engine) state() (bits uint8) {
	for i, b := range []bool{e.mid, e.worded, e.folded, e.pem, e.rest, e.torn, e.bearer, e.basic} {
		if b {
			bits |= 1 << i
		}
	}
	return bits
}

// resume is the inverse of state.
func (e *engine) resume(bits uint8) {
	for i, b := range []*bool{&e.mid, &e.worded, &e.folded, &e.pem, &e.rest, &e.torn, &e.bearer, &e.basic} {
		*b = bits&(1<<i) != 0
	}
}

// tear is the state behind a gap: anything may have begun in it.
func (e *engine) tear() {
	e.mid, e.worded, e.folded, e.rest, e.torn = true, true, true, true, true
	e.pem = false // its end may be in the gap; torn hides its lines
}

// take appends what becomes of buf to dst and says how many bytes of it were
// used. With final, buf is one line (or all there is) and everything is used.
// Otherwise it is the beginning of a line, and what cannot be decided stays.
func (e *engine) take(dst, buf []byte, final bool) (out []byte, used int) {
	if e.red.knownOnly {
		return e.takeKnown(dst, buf, final)
	}
	if e.rest {
		return e.skipLine(dst, buf, final)
	}
	if e.pem {
		n, closed := endOfPEM(buf)
		if !closed {
			e.replaced(true)
			if final {
				return dst, len(buf)
			}
			return dst, max(0, len(buf)-pemTail)
		}
		e.pem, e.mid, e.worded = false, true, true
		out, used = e.take(dst, buf[n:], final)
		return out, n + used
	}
	if e.torn && !e.mid {
		if !final {
			return dst, 0
		}
		if insideOfPEM(buf) {
			e.replaced(true)
			return dst, len(buf)
		}
		e.torn = false
	}
	if e.folded && !e.mid {
		if len(buf) > 0 && (buf[0] == ' ' || buf[0] == '\t') {
			if !final {
				return dst, 0
			}
			blank := len(buf) - len(bytes.TrimLeft(buf, " \t"))
			text := bytes.TrimRight(buf, "\r\n")
			if blank < len(text) {
				e.replaced(!bytes.Equal(text[blank:], []byte(e.red.word)))
				dst = append(append(dst, buf[:blank]...), e.red.word...)
				return append(dst, buf[len(text):]...), len(buf)
			}
			return append(dst, buf...), len(buf)
		}
		if len(buf) == 0 && !final {
			return dst, 0
		}
		e.folded = false
	}
	if (e.bearer || e.basic) && !e.mid {
		if !final {
			return dst, 0
		}
		return e.takeLine(dst, buf, final, e.foldedCredential(buf)...)
	}
	return e.takeLine(dst, buf, final)
}

// foldedCredential finds the credential of a scheme that the line before ended in.
func (e *engine) foldedCredential(buf []byte) []span {
	scheme := byte('e')
	if e.basic {
		scheme = 'a'
	}
	e.bearer, e.basic = false, false
	from := skip(buf, 0, " \t")
	stop := run(buf, from, schemely)
	if from == 0 || !isCredential(buf[from:stop], scheme) {
		return nil
	}
	stop = from + until(buf[from:], " \t\r\n")
	return []span{{start: from, end: stop, lead: 0}}
}

// takeLine is the ordinary case. more are spans that the line before gave away.
func (e *engine) takeLine(dst, buf []byte, final bool, more ...span) (out []byte, used int) {
	if len(buf) == 0 {
		return dst, 0
	}
	known, tail := e.auto.find(nil, buf)
	known = merge(known)
	s := scan{red: e.red, buf: buf, final: final, firstWord: -1, firstAt: -1, worded: e.worded, noPaths: e.noPaths, open: len(buf)}
	s.run()
	if len(known) > 0 {
		s.without(known)
	}
	spans := merge(append(append(s.spans, known...), more...))

	cut := len(buf)
	if !final {
		cut = safeCut(buf, spans, min(s.open, len(buf)-tail))
	}
	dst = e.write(dst, buf[:cut], spans)
	switch {
	case final:
		e.mid = buf[len(buf)-1] != '\n'
		e.worded = e.mid
		e.folded = s.folded && !e.mid
		e.pem = s.pem
		e.bearer, e.basic = s.scheme == 'e', s.scheme == 'a'
	case cut > 0:
		e.mid = true
		e.worded = e.worded || (s.firstWord >= 0 && s.firstWord < cut)
	}
	return dst, cut
}

// takeKnown looks for known values only and knows no lines.
func (e *engine) takeKnown(dst, buf []byte, final bool) (out []byte, used int) {
	spans, tail := e.auto.find(nil, buf)
	spans = merge(spans)
	cut := len(buf)
	if !final {
		cut = outside(spans, len(buf)-tail)
	}
	return e.write(dst, buf[:cut], spans), cut
}

// swallow hides a line from here on. What it opens holds for the lines behind it, too:
// a header that is folded, a PEM block. It says how many bytes of buf were used: half
// the mark of a block may stand at its end.
func (e *engine) swallow(buf []byte) (used int) {
	e.rest, e.mid, e.folded = true, true, true
	e.torn = e.torn || bytes.Contains(buf, pemBegin)
	return max(0, len(buf)-len(pemBegin)+1)
}

// skipLine drops what is left of a hidden line.
func (e *engine) skipLine(dst, buf []byte, final bool) ([]byte, int) {
	e.replaced(true)
	if i := bytes.IndexByte(buf, '\n'); i >= 0 {
		e.swallow(buf[:i])
		e.rest, e.mid, e.worded = false, false, false
		return append(dst, '\n'), i + 1
	}
	if used := e.swallow(buf); !final {
		return dst, used
	}
	return dst, len(buf)
}

// write copies buf with its spans replaced.
func (e *engine) write(dst, buf []byte, spans []span) []byte {
	at := 0
	for _, sp := range spans {
		if sp.start >= len(buf) {
			break
		}
		word := sp.label
		if word == "" {
			word = e.red.word
		}
		e.replaced(string(buf[sp.start:sp.end]) != word)
		dst = append(append(dst, buf[at:sp.start]...), word...)
		at = sp.end
	}
	return append(dst, buf[at:]...)
}

// replaced notes a replacement; fresh is false when it put the word in the place
// of itself.
func (e *engine) replaced(fresh bool) {
	if fresh {
		e.changed, e.onlyWord = true, false
	} else if !e.changed {
		e.changed, e.onlyWord = true, true
	}
}

// merge sorts spans and joins those that overlap. A path in a secret, or one
// that touches its inside, is part of the secret.
func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].start < spans[j].start })
	out := spans[:1]
	for _, sp := range spans[1:] {
		last := &out[len(out)-1]
		if sp.start >= last.end {
			out = append(out, sp)
			continue
		}
		last.end = max(last.end, sp.end)
		last.lead = min(last.lead, sp.lead)
		if sp.label == "" {
			last.label = ""
		}
	}
	return out
}

// safeCut gives the last place up to limit behind white space that is not inside
// a span: what comes later can change nothing before it.
func safeCut(buf []byte, spans []span, limit int) int {
	for cut := outside(spans, limit); cut > 0; {
		i := bytes.LastIndexAny(buf[:cut], " \t\r")
		if i < 0 {
			return 0
		}
		if at := outside(spans, i+1); at == i+1 {
			return at
		} else {
			cut = at
		}
	}
	return 0
}

// outside moves a cut out of the span it falls into, to the front of what gives
// that span away: a value must not be parted from its name.
func outside(spans []span, cut int) int {
	cut = max(cut, 0)
	i := sort.Search(len(spans), func(i int) bool { return spans[i].end > cut })
	if i < len(spans) && spans[i].lead < cut {
		return spans[i].lead
	}
	return cut
}

// endOfPEM gives the place behind the end mark of a PEM block.
func endOfPEM(buf []byte) (n int, closed bool) {
	i := bytes.Index(buf, []byte("-----END"))
	if i < 0 {
		return 0, false
	}
	rest := buf[i+len("-----END"):]
	if j := bytes.Index(rest, []byte("-----")); j >= 0 {
		return i + len("-----END") + j + len("-----"), true
	}
	if j := bytes.IndexAny(rest, "\r\n"); j >= 0 { // a mark without its own end
		return i + len("-----END") + j, true
	}
	return 0, false
}

// insideOfPEM reports whether a line could be one of a PEM block, its end included.
func insideOfPEM(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && (bytes.HasPrefix(line, []byte("-----END")) || run(line, 0, base64y) == len(line))
}
