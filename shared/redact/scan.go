package redact

import "bytes"

// Shortest credentials that are believed without a secret's name before them.
const (
	minScheme = 16 // behind bearer and basic
	minColon  = 8  // behind "token:" in the middle of a line
)

// scan finds what structure and patterns give away in one line, or in its
// beginning. It goes over the bytes once, word by word.
type scan struct {
	red     *Redactor
	buf     []byte
	final   bool // nothing of this line follows
	worded  bool // a word of this line came before buf
	noPaths bool
	firstAt int // a word that begins elsewhere is not the first; -1: the first that comes is

	spans     []span
	open      int  // before this place, later bytes change nothing
	firstWord int  // where the first word of buf begins, -1 for none
	queryEnd  int  // before this place, queries were looked at
	folded    bool // the line is a header that may be folded
	pem       bool // a PEM block is open at the end
	scheme    byte // the line ends in bearer ('e') or basic ('a'): their second letter
}

// special are the bytes outside words that begin something.
var special = charset(`\%/?:`)

func (s *scan) run() {
	for i := 0; i < len(s.buf); {
		switch c := s.buf[i]; {
		case wordly[c]:
			i = s.word(i)
		case special[c]:
			i = s.mark(i, c)
		default:
			i++
		}
	}
}

// mark handles a byte of special and gives the place to go on.
func (s *scan) mark(i int, c byte) int {
	switch c {
	case '\\':
		if next := s.path(i); next > 0 {
			return next
		}
		return s.escape(i)
	case '%':
		if next := s.path(i); next > 0 {
			return next
		}
		if i+2 < len(s.buf) && isHex(s.buf[i+1]) && isHex(s.buf[i+2]) && !s.secretWord(i+1) {
			return i + 3
		}
	case '/':
		if next := s.path(i); next > 0 {
			return next
		}
	case '?':
		return s.query(i)
	case ':':
		if bytes.HasPrefix(s.buf[i:], []byte("://")) {
			return s.authority(i + len("://"))
		}
	}
	return i + 1
}

// word handles the word that begins at i and gives the place to go on.
func (s *scan) word(i int) int {
	end := run(s.buf, i, wordly)
	if n := bytes.Index(s.buf[i:end], []byte("-----BEGIN")); n >= 0 { // also right behind another block
		if next, ok := s.block(i + n); ok {
			return next
		}
	}
	name := bytes.TrimLeft(s.buf[i:end], "-")
	flag := end-i-len(name) == 2
	if len(name) == 0 {
		return end
	}
	first := s.firstWord < 0 && !s.worded && (s.firstAt < 0 || s.firstAt == i)
	if s.firstWord < 0 {
		s.firstWord = i
	}
	if p, stop := tokenIn(s.buf, i, end); stop > 0 {
		s.hide(p, p, stop)
		return stop
	}
	if end == len(s.buf) {
		return end
	}
	switch s.buf[end] {
	case '=', '%':
		return s.setting(i, end, name)
	case ':':
		return s.colon(i, end, name, first)
	case '"', '\'', '\\':
		return s.member(i, end, name)
	case ' ', '\t':
		return s.spaced(i, end, name, flag)
	case '\r', '\n':
		if kindOf(name) == schemeName {
			return s.credential(i, end, name)
		}
	}
	return end
}

// block hides a PEM block, to its end or as far as the line goes.
func (s *scan) block(i int) (next int, ok bool) {
	head := s.buf[i:]
	if n := bytes.Index(head[len("-----BEGIN"):], []byte("-----")); n >= 0 {
		head = head[:len("-----BEGIN")+n]
	} else if !s.final {
		s.open = min(s.open, i)
		return len(s.buf), true
	}
	if bytes.Contains(head, []byte("CERTIFICATE")) || bytes.Contains(head, []byte("PUBLIC KEY")) {
		return 0, false
	}
	if n, closed := endOfPEM(s.buf[i:]); closed {
		s.hide(i, i, i+n)
		return i + n, true
	}
	s.hide(i, i, len(s.buf))
	s.pem = true
	s.wait(i)
	return len(s.buf), true
}

// setting handles name=value.
func (s *scan) setting(i, end int, name []byte) int {
	from := end + 1
	if s.buf[end] == '%' { // an escaped = or :
		if end+2 >= len(s.buf) || s.buf[end+1] != '3' || (lower(s.buf[end+2]) != 'd' && lower(s.buf[end+2]) != 'a') {
			return end
		}
		from = end + 3
	}
	switch kindOf(name) {
	case ordinary:
		return end
	case schemeName:
		return s.credential(i, from, name)
	case headerName:
		if s.buf[end] == '=' {
			return s.line(i, from, true)
		}
	}
	if value, stop, ok := s.quoted(i, from); ok {
		if stop+1 < len(s.buf) && wordly[s.buf[stop+1]] { // "abc"def is one word of a shell
			value, stop = from, stop+until(s.buf[stop:], " \t\r\n")
		}
		s.hide(i, value, stop)
		return stop
	}
	ends := " \t\r\n"
	if i > 0 && (s.buf[i-1] == '?' || s.buf[i-1] == '&') {
		ends = " \t\r\n&"
	}
	stop := from + until(s.buf[from:], ends)
	s.hide(i, from, stop)
	return stop
}

// colon handles name: value without quotes around the name.
func (s *scan) colon(i, end int, name []byte, first bool) int {
	kind := kindOf(name)
	if kind == ordinary || bytes.HasPrefix(s.buf[end:], []byte("://")) {
		return end
	}
	if kind == headerName || (kind == secretName && first) {
		return s.line(i, end+1, kind == headerName)
	}
	from := skip(s.buf, end+1, " \t")
	if from == len(s.buf) {
		s.wait(i)
		return end
	}
	if kind == schemeName {
		return s.credential(i, from, name)
	}
	if value, stop, ok := s.quoted(i, from); ok {
		s.hide(i, value, stop)
		return stop
	}
	stop := run(s.buf, from, schemely)
	if stop == len(s.buf) {
		s.wait(i)
	}
	if stop-from >= minColon && hasDigit(s.buf[from:stop]) {
		stop = from + until(s.buf[from:], " \t\r\n")
		s.hide(i, from, stop)
		return stop
	}
	return end
}

// member handles "name": "value", at any depth of escaping.
func (s *scan) member(i, end int, name []byte) int {
	if kind := kindOf(name); kind == ordinary || kind == schemeName {
		return end
	}
	at := skip(s.buf, end, `\`)
	if at == len(s.buf) {
		s.wait(i)
		return end
	}
	if s.buf[at] != '"' && s.buf[at] != '\'' {
		return end
	}
	at = skip(s.buf, at+1, " \t")
	if at == len(s.buf) {
		s.wait(i)
		return end
	}
	if s.buf[at] != ':' && s.buf[at] != '=' {
		return end
	}
	at = skip(s.buf, at+1, " \t>") // => of some languages
	if at == len(s.buf) {
		s.wait(i)
		return end
	}
	if value, stop, ok := s.quoted(i, at); ok {
		s.hide(i, value, stop)
		return stop
	}
	return end
}

// spaced handles what white space may separate: --flag value, Bearer value.
func (s *scan) spaced(i, end int, name []byte, flag bool) int {
	if !flag && len(name) != len("bearer") && len(name) != len("basic") {
		return end
	}
	kind := kindOf(name)
	var room [maxName]byte
	secretFlag := flag && (kind == secretName || kind == headerName || flagNames[string(fold(room[:0], name))])
	if kind != schemeName && !secretFlag {
		return end
	}
	from := skip(s.buf, end, " \t")
	if from == len(s.buf) {
		s.wait(i)
		return end
	}
	if !secretFlag {
		return s.credential(i, from, name)
	}
	if s.buf[from] == '-' || s.buf[from] == '{' || s.buf[from] == '<' { // another flag, or a placeholder
		return end
	}
	if value, stop, ok := s.quoted(i, from); ok {
		s.hide(i, value, stop)
		return stop
	}
	stop := from + until(s.buf[from:], " \t\r\n")
	if stop == len(s.buf) {
		s.wait(i)
	}
	s.hide(i, from, stop)
	return max(stop, end)
}

// credential hides what follows bearer or basic when it looks like one, whatever
// separates them; it may stand in the next line, folded.
func (s *scan) credential(i, from int, scheme []byte) int {
	from = skip(s.buf, from, " \t:=\\\"'")
	switch {
	case from == len(s.buf):
		s.wait(i)
		return from
	case s.buf[from] == '\r' || s.buf[from] == '\n':
		s.scheme = lower(scheme[1])
		return from
	}
	stop := run(s.buf, from, schemely)
	if stop == len(s.buf) {
		s.wait(i)
	}
	if !isCredential(s.buf[from:stop], lower(scheme[1])) {
		return from
	}
	stop = from + until(s.buf[from:], " \t\r\n")
	s.hide(i, from, stop)
	return stop
}

// isCredential reports whether text behind bearer or basic is one. "Basic" is also an
// ordinary word, so what follows it must not be.
func isCredential(text []byte, scheme byte) bool {
	return len(text) >= minScheme && (scheme != 'a' || !isProse(text))
}

// line hides the rest of the line, white space at both ends apart.
func (s *scan) line(i, from int, folded bool) int {
	s.wait(i)
	s.folded = folded
	from = skip(s.buf, from, " \t")
	s.hide(i, from, len(bytes.TrimRight(s.buf, " \t\r\n")))
	return len(s.buf)
}

// hide adds a span that what begins at lead gives away. Where the redactor's word stands
// already, it stays as often as it does.
func (s *scan) hide(lead, start, end int) {
	text := s.buf[start:max(start, end)]
	for bytes.HasPrefix(text, []byte(s.red.word)) {
		text = text[len(s.red.word):]
	}
	if len(text) > 0 {
		s.spans = append(s.spans, span{start: start, end: end, lead: lead})
	}
}

// quoted finds the inside of a quoted value that begins at from: value to stop.
// Quotes that are escaped more deeply than the first belong to it. Without an
// end in this line everything does.
func (s *scan) quoted(i, from int) (value, stop int, ok bool) {
	at := skip(s.buf, from, `\`)
	if at == len(s.buf) {
		if at > from {
			s.wait(i)
		}
		return 0, 0, false
	}
	q, depth := s.buf[at], at-from
	if q != '"' && q != '\'' {
		return 0, 0, false
	}
	value = at + 1
	for p := value; p < len(s.buf); p++ {
		if s.buf[p] != q {
			continue
		}
		slashes := 0
		for p-slashes > value && s.buf[p-slashes-1] == '\\' {
			slashes++
		}
		if slashes <= depth || (depth == 0 && slashes%2 == 0) {
			if depth == 0 {
				slashes = 0 // they are part of the value
			}
			return value, p - slashes, true
		}
	}
	s.wait(i)
	return value, len(bytes.TrimRight(s.buf, "\r\n")), true
}

// wait notes that what begins at i may go on behind the buffer.
func (s *scan) wait(i int) {
	if !s.final {
		s.open = min(s.open, i)
	}
}
