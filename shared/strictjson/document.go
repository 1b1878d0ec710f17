package strictjson

import "github.com/go-json-experiment/json/jsontext"

// ParseOrdered is Parse for files that another tool writes and may have written
// carelessly: objects are Object, with their members in order, and of a member
// that stands twice the last value counts, at the place of the first. repeated
// names those members, once each.
//
// The error is an *Error.
func ParseOrdered(data []byte, lim Limits) (tree any, repeated []string, err error) {
	b := &orderedBuilder{repeats: map[string]bool{}}
	if err := check(data, lim.withDefaults(), b, jsontext.AllowDuplicateNames(true)); err != nil {
		return nil, nil, err
	}
	return b.root, b.repeated, nil
}

// Get gives a member's value.
func (o Object) Get(name string) (value any, ok bool) {
	for _, m := range o {
		if m.Name == name {
			return m.Value, true
		}
	}
	return nil, false
}

// Indented writes v as JavaScript's JSON.stringify(v, null, 2) does, without a
// final line end; numbers stay as they were written. It takes what ParseOrdered
// gives, and the same shapes made by hand.
func Indented(v any) ([]byte, error) {
	w := writer{}
	w.indented(v, "\n")
	if w.err != nil {
		return nil, w.err
	}
	return w.buf, nil
}

func (w *writer) indented(v any, line string) {
	inner := line + "  "
	switch x := v.(type) {
	case Number:
		w.buf = append(w.buf, x...)
	case Object:
		if len(x) == 0 {
			w.buf = append(w.buf, "{}"...)
			return
		}
		for i, m := range x {
			w.open(i, '{', inner)
			w.text(m.Name)
			w.buf = append(w.buf, ": "...)
			w.indented(m.Value, inner)
		}
		w.buf = append(append(w.buf, line...), '}')
	case []any:
		if len(x) == 0 {
			w.buf = append(w.buf, "[]"...)
			return
		}
		for i, value := range x {
			w.open(i, '[', inner)
			w.indented(value, inner)
		}
		w.buf = append(append(w.buf, line...), ']')
	default:
		w.value(v)
	}
}

// open writes what stands before element i.
func (w *writer) open(i int, bracket byte, line string) {
	if i > 0 {
		bracket = ','
	}
	w.buf = append(append(w.buf, bracket), line...)
}

// orderedBuilder makes the tree of ParseOrdered.
type orderedBuilder struct {
	root     any
	stack    []orderedFrame
	repeated []string
	repeats  map[string]bool
}

// orderedFrame is one open container.
type orderedFrame struct {
	object Object
	places map[string]int // of the members of object; nil in an array
	array  []any
	name   string
	named  bool // name holds the name of the value that comes next
}

func (b *orderedBuilder) add(tok jsontext.Token) {
	switch tok.Kind() {
	case jsontext.KindBeginObject:
		b.stack = append(b.stack, orderedFrame{object: Object{}, places: map[string]int{}})
	case jsontext.KindBeginArray:
		b.stack = append(b.stack, orderedFrame{array: []any{}})
	case jsontext.KindEndObject:
		v := b.stack[len(b.stack)-1].object
		b.stack = b.stack[:len(b.stack)-1]
		b.value(v)
	case jsontext.KindEndArray:
		v := b.stack[len(b.stack)-1].array
		b.stack = b.stack[:len(b.stack)-1]
		b.value(v)
	case jsontext.KindString:
		if n := len(b.stack); n > 0 && b.stack[n-1].places != nil && !b.stack[n-1].named {
			b.stack[n-1].name, b.stack[n-1].named = tok.String(), true
			return
		}
		b.value(tok.String())
	default:
		b.value(scalar(tok))
	}
}

// scalar gives the value of a token that is no string and opens nothing.
func scalar(tok jsontext.Token) any {
	switch tok.Kind() {
	case jsontext.KindNumber:
		return Number(tok.String())
	case jsontext.KindTrue:
		return true
	case jsontext.KindFalse:
		return false
	}
	return nil
}

func (b *orderedBuilder) value(v any) {
	n := len(b.stack)
	if n == 0 {
		b.root = v
		return
	}
	f := &b.stack[n-1]
	if f.places == nil {
		f.array = append(f.array, v)
		return
	}
	f.named = false
	if at, twice := f.places[f.name]; twice {
		f.object[at].Value = v
		if !b.repeats[f.name] {
			b.repeats[f.name] = true
			b.repeated = append(b.repeated, f.name)
		}
		return
	}
	f.places[f.name] = len(f.object)
	f.object = append(f.object, Member{f.name, v})
}
