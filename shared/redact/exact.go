package redact

import (
	"bytes"
	"encoding/json"
)

// headLength is how much of a value is searched for at once; what is shorter at the
// end of a piece is looked at byte by byte.
const headLength = 8

// window bounds one search, so that a piece full of beginnings of one value is not
// searched to its end for another each time.
const window = 4096

// Exact hides values in streams of bytes for which a Redactor is too much: only the
// values themselves are found, as they are and as JSON writes them, whatever stands
// around them, and nothing is ever held back but what may be the beginning of one.
// It is immutable.
type Exact struct {
	word  []byte
	auto  *automaton
	hold  []int32 // by state: how many of the last bytes begin a value that has not ended
	heads [][]byte
}

// NewExact makes an Exact; empty values are left out.
func NewExact(word string, values ...Secret) *Exact {
	x := &Exact{word: []byte(word)}
	var patterns []string
	add := func(p string) {
		if p == "" {
			return
		}
		patterns = append(patterns, p)
		x.heads = append(x.heads, []byte(p[:min(headLength, len(p))]))
	}
	for _, v := range values {
		add(v.value)
		if inner := jsonInner(v.value); inner != v.value {
			add(inner)
		}
	}
	x.auto = newAutomaton(patterns)
	x.hold = make([]int32, len(x.auto.nodes))
	for state := range x.auto.nodes {
		at := int32(state)
		for at != 0 && len(x.auto.nodes[at].edges) == 0 {
			at = x.auto.nodes[at].fail
		}
		x.hold[state] = x.auto.nodes[at].depth
	}
	return x
}

// jsonInner gives a value as JSON writes it with the fewest escapes.
func jsonInner(value string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil { // a string always has a form
		return value
	}
	return string(b.Bytes()[1 : b.Len()-2]) // without quotes and line end
}

// Finds reports whether data holds one of the values.
func (x *Exact) Finds(data string) bool {
	spans, _ := x.auto.find(nil, []byte(data))
	return len(spans) > 0
}

// Filter starts one stream.
func (x *Exact) Filter() *Filter { return &Filter{x: x} }

// Marks of a byte that is held back.
const (
	shown  = iota
	hidden // part of a value
	begins // first byte of a value: the word stands here
)

// Filter is one stream through an Exact. It is used by one goroutine.
type Filter struct {
	x     *Exact
	at    int32 // state of the automaton
	held  []byte
	marks []byte // one for each byte of held
	from  int    // held[:from] was passed on already
	count int64
}

// Hidden says how many values were replaced so far.
func (f *Filter) Hidden() int64 { return f.count }

// Take appends to dst what can be passed on now that p has come, and gives it.
func (f *Filter) Take(dst, p []byte) []byte {
	for i := 0; i < len(p); {
		if f.at == 0 { // nothing is held
			n := f.x.ahead(p[i:])
			dst = append(dst, p[i:i+n]...)
			if i += n; i == len(p) {
				break
			}
		}
		dst = f.step(dst, p[i])
		i++
	}
	return dst
}

// End appends what was held back: nothing follows that could make a value of it.
func (f *Filter) End(dst []byte) []byte {
	dst = f.release(dst, 0)
	f.at = 0
	return dst
}

// ahead says how many bytes of p surely begin no value, and hold no end of one.
func (x *Exact) ahead(p []byte) int {
	p = p[:min(len(p), window)]
	n := len(p)
	for _, head := range x.heads {
		if i := bytes.Index(p[:min(n+len(head)-1, len(p))], head); i >= 0 {
			n = min(n, i)
		} else {
			n = min(n, max(0, len(p)-len(head)+1))
		}
	}
	// Of what is left at the end, skip what begins nothing.
	for n < len(p) && x.auto.root[p[n]] == 0 {
		n++
	}
	return n
}

// step takes one byte through the automaton.
func (f *Filter) step(dst []byte, b byte) []byte {
	f.at = f.x.auto.step(f.at, b)
	f.held, f.marks = append(f.held, b), append(f.marks, shown)
	if m := int(f.x.auto.nodes[f.at].match); m > 0 {
		f.mark(f.marks[len(f.marks)-m:])
	}
	return f.release(dst, int(f.x.hold[f.at]))
}

// mark hides the bytes of one value. What overlaps a value found before is one with
// it.
func (f *Filter) mark(value []byte) {
	for i := range value {
		if value[i] == begins && i > 0 {
			f.count--
		}
		if value[i] == shown && i == 0 {
			value[i] = begins
			f.count++
		} else if i > 0 {
			value[i] = hidden
		}
	}
}

// release passes on all but the last keep bytes of what is held.
func (f *Filter) release(dst []byte, keep int) []byte {
	for ; len(f.held)-f.from > keep; f.from++ {
		switch f.marks[f.from] {
		case shown:
			dst = append(dst, f.held[f.from])
		case begins:
			dst = append(dst, f.x.word...)
		}
	}
	switch {
	case f.from == len(f.held):
		f.held, f.marks, f.from = f.held[:0], f.marks[:0], 0
	case f.from > len(f.held)/2 && f.from >= 1024: // so that a long stream of beginnings needs no more room
		f.held = append(f.held[:0], f.held[f.from:]...)
		f.marks = append(f.marks[:0], f.marks[f.from:]...)
		f.from = 0
	}
	return dst
}
