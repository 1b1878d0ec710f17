package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Why a body is no request. No error holds a byte of it.
var (
	errUTF8   = errors.New("not valid UTF-8")
	errSyntax = errors.New("not one JSON object")
	errDeep   = errors.New("nested too deep")
)

// fewMembers is up to how many members of an object are compared one by one.
const fewMembers = 16

// A Document is a request body in its canonical form (broker §6): one object
// without white space, members in the order in which they came, none twice.
//
// Of a name that comes twice the last value counts, at the place of the first.
// Numbers are literals as they came. Text escapes what JSON makes it escape, and
// U+2028 and U+2029; the escape of a lone surrogate is U+FFFD. Two names are the
// same when they are so written.
//
// Everything that is authorised is read from these bytes, and these bytes are what
// is sent.
type Document []byte

// Canonical parses body, which it leaves alone. It takes at most twice the room of
// body for the result.
func Canonical(body []byte) (Document, error) { return canonical(nil, body) }

// canonical is Canonical that appends to out.
func canonical(out, body []byte) (Document, error) {
	if !utf8.Valid(body) {
		return nil, errUTF8
	}
	p := parser{in: body, out: slices.Grow(out, len(body)+len(body)/64+64)}
	p.space()
	if p.next() != '{' {
		return nil, errSyntax
	}
	if err := p.value(); err != nil {
		return nil, err
	}
	p.space()
	if p.at < len(p.in) {
		return nil, errSyntax
	}
	return p.out, nil
}

// parser writes the canonical form while it reads. What it has written of the
// objects that are open is in members, the innermost last.
type parser struct {
	in      []byte
	at      int // in
	out     []byte
	depth   int
	members []member
	order   []int32 // scratch: members by name
	scratch []byte  // scratch: an object that is written again
}

// A member is a place in out. An object of 32 MiB has room for many of them, so
// they are small.
type member struct{ name, value, end int32 }

// next gives the byte at hand, 0 at the end; 0 begins nothing in JSON.
func (p *parser) next() byte {
	if p.at < len(p.in) {
		return p.in[p.at]
	}
	return 0
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// value takes a value that begins here.
func (p *parser) value() error {
	switch c := p.next(); c {
	case '{':
		return p.nest(p.object)
	case '[':
		return p.nest(p.array)
	case '"':
		return p.text()
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		if c == '-' || isDigit(c) {
			return p.number()
		}
		return errSyntax
	}
}

func (p *parser) nest(f func() error) error {
	if p.depth == MaxDepth {
		return errDeep
	}
	p.depth++
	err := f()
	p.depth--
	return err
}

func (p *parser) word(w string) error {
	if !bytes.HasPrefix(p.in[p.at:], []byte(w)) {
		return errSyntax
	}
	p.at += len(w)
	p.out = append(p.out, w...)
	return nil
}

func (p *parser) array() error { return p.list(']', p.value) }

func (p *parser) object() error {
	begin, base := len(p.out), len(p.members)
	if err := p.list('}', p.member); err != nil {
		return err
	}
	if list := p.members[base:]; p.twice(list) {
		p.again(begin, list)
	}
	p.members = p.members[:base]
	return nil
}

// list takes what stands between a bracket, which is at hand, and its end.
func (p *parser) list(end byte, item func() error) error {
	p.out = append(p.out, p.in[p.at])
	p.at++
	p.space()
	if p.next() == end {
		p.at++
		p.out = append(p.out, end)
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		p.space()
		c := p.next()
		if c != ',' && c != end {
			return errSyntax
		}
		p.at++
		p.out = append(p.out, c)
		if c == end {
			return nil
		}
		p.space()
	}
}

func (p *parser) member() error {
	m := member{name: int32(len(p.out))}
	if p.next() != '"' {
		return errSyntax
	}
	if err := p.text(); err != nil {
		return err
	}
	p.space()
	if p.next() != ':' {
		return errSyntax
	}
	p.at++
	p.out = append(p.out, ':')
	p.space()
	m.value = int32(len(p.out))
	if err := p.value(); err != nil {
		return err
	}
	m.end = int32(len(p.out))
	p.members = append(p.members, m)
	return nil
}

// nameOf gives a member's name as it is written, quotes and colon included.
func (p *parser) nameOf(m member) []byte { return p.out[m.name:m.value] }

// twice reports whether a name stands twice in list. For many members it leaves
// p.order sorted by name, then by place.
func (p *parser) twice(list []member) bool {
	if len(list) <= fewMembers {
		for i := range list {
			for _, m := range list[:i] {
				if bytes.Equal(p.nameOf(m), p.nameOf(list[i])) {
					return true
				}
			}
		}
		return false
	}
	p.sort(list)
	for i := 1; i < len(p.order); i++ {
		if bytes.Equal(p.nameOf(list[p.order[i-1]]), p.nameOf(list[p.order[i]])) {
			return true
		}
	}
	return false
}

func (p *parser) sort(list []member) {
	p.order = p.order[:0]
	for i := range list {
		p.order = append(p.order, int32(i))
	}
	slices.SortFunc(p.order, func(a, b int32) int {
		if c := bytes.Compare(p.nameOf(list[a]), p.nameOf(list[b])); c != 0 {
			return c
		}
		return int(a - b)
	})
}

// again writes the object from begin on once more, each name once: at its first
// place, with its last value.
func (p *parser) again(begin int, list []member) {
	const dropped = -1
	p.sort(list)
	from := slices.Repeat([]int32{dropped}, len(list)) // where a member's value comes from
	for i := 0; i < len(p.order); {
		first, last := p.order[i], p.order[i]
		for i++; i < len(p.order) && bytes.Equal(p.nameOf(list[first]), p.nameOf(list[p.order[i]])); i++ {
			last = p.order[i]
		}
		from[first] = last
	}
	p.scratch = append(p.scratch[:0], '{')
	for i, m := range list {
		if from[i] == dropped {
			continue
		}
		if i > 0 { // the first is never dropped
			p.scratch = append(p.scratch, ',')
		}
		p.scratch = append(p.scratch, p.nameOf(m)...)
		p.scratch = append(p.scratch, p.out[list[from[i]].value:list[from[i]].end]...)
	}
	p.scratch = append(p.scratch, '}')
	p.out = append(p.out[:begin], p.scratch...)
}

// number takes a number by the grammar of JSON and keeps its literal.
func (p *parser) number() error {
	begin := p.at
	if p.next() == '-' {
		p.at++
	}
	switch c := p.next(); {
	case c == '0':
		p.at++
	case isDigit(c):
		p.digits()
	default:
		return errSyntax
	}
	if p.next() == '.' {
		p.at++
		if !p.digits() {
			return errSyntax
		}
	}
	if c := p.next(); c == 'e' || c == 'E' {
		p.at++
		if c := p.next(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return errSyntax
		}
	}
	p.out = append(p.out, p.in[begin:p.at]...)
	return nil
}

func (p *parser) digits() bool {
	begin := p.at
	for isDigit(p.next()) {
		p.at++
	}
	return p.at > begin
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// plain are the bytes of a text that are copied without a look. 0xE2 begins U+2028
// and U+2029.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\' && c != 0xE2
	}
	return t
}()

// run gives the end of the plain bytes from i on. Eight are looked at together: a byte
// of x that is zero borrows into its highest bit.
func run(in []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(in); i += 8 {
		x := binary.LittleEndian.Uint64(in[i:])
		quote, slash, line := x^('"'*ones), x^('\\'*ones), x^(0xE2*ones)
		found := (quote-ones)&^quote | (slash-ones)&^slash | (line-ones)&^line | (x-' '*ones)&^x
		if found &= tops; found != 0 {
			break
		}
	}
	for i < len(in) && plain[in[i]] {
		i++
	}
	return i
}

// text takes a text and writes it in its one spelling.
func (p *parser) text() error {
	p.out = append(p.out, '"')
	p.at++
	for {
		begin := p.at
		p.at = run(p.in, p.at)
		p.out = append(p.out, p.in[begin:p.at]...)
		switch p.next() {
		case '"':
			p.at++
			p.out = append(p.out, '"')
			return nil
		case '\\':
			r, ok := p.escape()
			if !ok {
				return errSyntax
			}
			p.out = appendRune(p.out, r)
		case 0xE2: // the input is valid UTF-8, so two more bytes follow
			r, size := utf8.DecodeRune(p.in[p.at:])
			p.at += size
			p.out = appendRune(p.out, r)
		default: // a raw control character, or the end
			return errSyntax
		}
	}
}

// escape takes one escape, or two that are the halves of one character.
func (p *parser) escape() (rune, bool) {
	if p.at+1 >= len(p.in) {
		return 0, false
	}
	c := p.in[p.at+1]
	p.at += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	case 'u':
		r, ok := p.hex(p.at)
		if !ok {
			return 0, false
		}
		p.at += 4
		if !utf16.IsSurrogate(r) {
			return r, true
		}
		if bytes.HasPrefix(p.in[p.at:], []byte(`\u`)) {
			if low, ok := p.hex(p.at + 2); ok {
				if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
					p.at += 6
					return both, true
				}
			}
		}
		return utf8.RuneError, true
	}
	return 0, false
}

// hex reads four hexadecimal digits.
func (p *parser) hex(at int) (rune, bool) {
	if at+4 > len(p.in) {
		return 0, false
	}
	var r rune
	for _, c := range p.in[at : at+4] {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// appendRune writes one character of a text.
func appendRune(out []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(out, '\\', byte(r))
	case '\b':
		return append(out, `\b`...)
	case '\f':
		return append(out, `\f`...)
	case '\n':
		return append(out, `\n`...)
	case '\r':
		return append(out, `\r`...)
	case '\t':
		return append(out, `\t`...)
	case 0x2028, 0x2029:
		return append(out, '\\', 'u', '2', '0', '2', digits[r&15])
	}
	if r < ' ' {
		return append(out, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
	}
	return utf8.AppendRune(out, r)
}
