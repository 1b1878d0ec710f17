package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"unicode/utf8"
)

// Member gives the value of a member of the document.
func (d Document) Member(name string) (value []byte, ok bool) { return memberOf(d, name) }

// Text gives the value of the member at this path of names, when all on the way
// are objects and it is a text.
func (d Document) Text(path ...string) (string, bool) {
	at := []byte(d)
	for _, name := range path {
		var ok bool
		if at, ok = memberOf(at, name); !ok {
			return "", false
		}
	}
	return textOf(at)
}

// Digest gives the name of bytes in evidence.
func Digest(data []byte) string { return digestOf(sha256.Sum256(data)) }

func digestOf(sum [sha256.Size]byte) string {
	const prefix = "sha256:"
	name := hex.AppendEncode(append(make([]byte, 0, len(prefix)+hex.EncodedLen(len(sum))), prefix...), sum[:])
	return string(name)
}

// InputDigests gives the digests of the texts of the request's input, depth first:
// of each object with type input_text, and of an input that is a text itself. They
// are at most MaxDigests; truncated says that there are more.
func (d Document) InputDigests() (digests []string, truncated bool) {
	digests = []string{}
	input, ok := memberOf(d, "input")
	if !ok {
		return digests, false
	}
	if text, ok := textOf(input); ok {
		return append(digests, Digest([]byte(text))), false
	}
	w := walk{doc: input, found: digests}
	w.value(0)
	if len(w.found) > MaxDigests {
		return w.found[:MaxDigests], true
	}
	return w.found, w.more
}

// A walk goes through a canonical value.
type walk struct {
	doc   []byte
	found []string
	more  bool   // texts beyond the bound were left out
	text  []byte // scratch
}

// value walks what begins at i and gives its end.
func (w *walk) value(i int) int {
	switch w.doc[i] {
	case '[':
		for i++; w.doc[i] != ']'; {
			if w.doc[i] == ',' {
				i++
			}
			i = w.value(i)
		}
		return i + 1
	case '{':
		return w.object(i)
	}
	return skip(w.doc, i)
}

// object walks the members; its own text, which comes before those inside, is known
// only at the end.
func (w *walk) object(i int) int {
	place, kind, text := len(w.found), []byte(nil), []byte(nil)
	for i++; w.doc[i] != '}'; {
		if w.doc[i] == ',' {
			i++
		}
		colon := skip(w.doc, i)
		end := w.value(colon + 1)
		switch string(w.doc[i:colon]) {
		case `"type"`:
			kind = w.doc[colon+1 : end]
		case `"text"`:
			text = w.doc[colon+1 : end]
		}
		i = end
	}
	if string(kind) == `"input_text"` {
		if plain, ok := appendPlain(w.text[:0], text); ok {
			w.text = plain
			w.add(place, plain)
		}
	}
	return i + 1
}

func (w *walk) add(place int, text []byte) {
	if place >= MaxDigests {
		w.more = true
		return
	}
	w.found = slices.Insert(w.found, place, Digest(text))
	if len(w.found) > MaxDigests {
		w.found, w.more = w.found[:MaxDigests], true
	}
}

// memberOf gives a member of a canonical value; one that is no object has none.
func memberOf(doc []byte, name string) (value []byte, ok bool) {
	if len(doc) == 0 || doc[0] != '{' {
		return nil, false
	}
	want := appendText(nil, name)
	for i := 1; doc[i] != '}'; {
		if doc[i] == ',' {
			i++
		}
		colon := skip(doc, i)
		end := skip(doc, colon+1)
		if bytes.Equal(doc[i:colon], want) {
			return doc[colon+1 : end], true
		}
		i = end
	}
	return nil, false
}

// textOf reads a canonical value that is a text.
func textOf(value []byte) (string, bool) {
	text, ok := appendPlain(nil, value)
	return string(text), ok
}

// appendPlain appends what a canonical value says that is a text.
func appendPlain(out, value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' {
		return out, false
	}
	p := parser{in: value[1 : len(value)-1]}
	out = slices.Grow(out, len(p.in))
	for {
		next := bytes.IndexByte(p.in[p.at:], '\\')
		if next < 0 {
			return append(out, p.in[p.at:]...), true
		}
		out = append(out, p.in[p.at:p.at+next]...)
		p.at += next
		r, ok := p.escape()
		if !ok {
			return out, false
		}
		out = utf8.AppendRune(out, r)
	}
}

// appendText writes a text in its canonical spelling.
func appendText(out []byte, text string) []byte {
	out = append(out, '"')
	for _, r := range text {
		out = appendRune(out, r)
	}
	return append(out, '"')
}

// skip gives the end of the canonical value that begins at i.
func skip(doc []byte, i int) int {
	depth := 0
	for {
		switch doc[i] {
		case '"':
			i = skipText(doc, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
			if depth > 0 {
				continue
			}
			for i < len(doc) && doc[i] != ',' && doc[i] != '}' && doc[i] != ']' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// skipText gives the end of the text whose first quote is at i.
func skipText(doc []byte, i int) int {
	for i++; ; {
		n := bytes.IndexByte(doc[i:], '"')
		end := i + n
		slashes := 0
		for end-1-slashes >= i && doc[end-1-slashes] == '\\' {
			slashes++
		}
		i = end + 1
		if slashes%2 == 0 {
			return i
		}
	}
}
