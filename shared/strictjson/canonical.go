package strictjson

import (
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// Canonical gives the one form that digests are taken over: no white space,
// members sorted by the bytes of their names, integers in decimal, and strings
// that escape only ", \ and U+0000–U+001F.
//
// It takes a tree of Parse, the same shapes made by hand (also map[string]string,
// []string and Go integers), an Object, or any value that has a JSON form. A
// number that is not an integer within ±MaxExact is refused, since two readers
// would not agree on it; so is text that is not UTF-8.
func Canonical(v any) ([]byte, error) {
	w := writer{sorted: true}
	return w.write(v)
}

// Member is one name and value of an Object.
type Member struct {
	Name  string
	Value any
}

// Object is a JSON object whose members keep their order. Names are not checked
// for being distinct.
type Object []Member

// JSON writes the object with its members in order; everything else is as in
// Canonical, and objects that are Go maps are sorted.
func (o Object) JSON() ([]byte, error) {
	w := writer{}
	return w.write(o)
}

// Ordered is Object.JSON for members given as name, value, name, value … It is
// for documents made of values that are already checked: text that is not UTF-8
// has U+FFFD in it afterwards, and any other value without a canonical form is
// a fault in the program and panics.
func Ordered(pairs ...any) []byte {
	if len(pairs)%2 != 0 {
		panic("strictjson: Ordered takes names and values in pairs")
	}
	o := make(Object, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			panic("strictjson: Ordered takes a string as name")
		}
		o = append(o, Member{name, pairs[i+1]})
	}
	return mustWrite(o)
}

// List writes an array under the rules of Ordered.
func List(values ...any) []byte {
	if values == nil {
		values = []any{}
	}
	return mustWrite(values)
}

func mustWrite(v any) []byte {
	w := writer{repair: true}
	data, err := w.write(v)
	if err != nil {
		panic("strictjson: " + err.Error())
	}
	return data
}

// writer writes values of this package's form.
type writer struct {
	buf    []byte
	err    error
	sorted bool // sort the members of an Object too
	repair bool // put U+FFFD for bytes that are not UTF-8 instead of refusing
}

func (w *writer) write(v any) ([]byte, error) {
	w.value(v)
	if w.err != nil {
		return nil, w.err
	}
	return w.buf, nil
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = &Error{Kind: Type, Detail: fmt.Sprintf(format, args...)}
	}
}

func (w *writer) value(v any) {
	if w.err != nil {
		return
	}
	switch x := v.(type) {
	case nil:
		w.buf = append(w.buf, "null"...)
	case bool:
		w.buf = strconv.AppendBool(w.buf, x)
	case string:
		w.text(x)
	case Number:
		i, ok := x.Int64()
		if !ok {
			w.fail("a number is not an integer")
			return
		}
		w.integer(i)
	case int:
		w.integer(int64(x))
	case int64:
		w.integer(x)
	case map[string]any:
		w.members(len(x), func(add func(string, any)) {
			for name, val := range x {
				add(name, val)
			}
		}, true)
	case map[string]string:
		w.members(len(x), func(add func(string, any)) {
			for name, val := range x {
				add(name, val)
			}
		}, true)
	case Object:
		w.members(len(x), func(add func(string, any)) {
			for _, m := range x {
				add(m.Name, m.Value)
			}
		}, w.sorted)
	case []any:
		w.array(len(x), func(i int) any { return x[i] })
	case []string:
		w.array(len(x), func(i int) any { return x[i] })
	default:
		w.reflected(v)
	}
}

// reflected writes integers and texts of named types, and everything else
// through its own JSON form.
func (w *writer) reflected(v any) {
	if _, own := v.(interface{ MarshalJSON() ([]byte, error) }); !own {
		switch rv := reflect.ValueOf(v); rv.Kind() {
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			w.integer(rv.Int())
			return
		case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			if rv.Uint() > math.MaxInt64 {
				w.fail("an integer is beyond 2^53")
				return
			}
			w.integer(int64(rv.Uint()))
			return
		case reflect.String:
			w.text(rv.String())
			return
		}
	}
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		w.fail("a %T has no JSON form", v)
		return
	}
	tree, err := Parse(data, Limits{MaxBytes: math.MaxInt, MaxDepth: DefaultMaxDepth})
	if err != nil {
		w.err = err
		return
	}
	w.value(tree)
}

func (w *writer) integer(i int64) {
	if i > MaxExact || i < -MaxExact {
		w.fail("an integer is beyond 2^53")
		return
	}
	w.buf = strconv.AppendInt(w.buf, i, 10)
}

func (w *writer) members(n int, each func(add func(string, any)), sorted bool) {
	list := make([]Member, 0, n)
	each(func(name string, val any) { list = append(list, Member{name, val}) })
	if sorted {
		sort.SliceStable(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	}
	w.buf = append(w.buf, '{')
	for i, m := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.text(m.Name)
		w.buf = append(w.buf, ':')
		w.value(m.Value)
	}
	w.buf = append(w.buf, '}')
}

func (w *writer) array(n int, at func(int) any) {
	w.buf = append(w.buf, '[')
	for i := range n {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.value(at(i))
	}
	w.buf = append(w.buf, ']')
}

// text writes a string with the fewest escapes that JSON allows.
func (w *writer) text(s string) {
	if !utf8.ValidString(s) {
		if !w.repair {
			w.fail("text is not valid UTF-8")
			return
		}
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	const hex = "0123456789abcdef"
	w.buf = append(w.buf, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			w.buf = append(w.buf, '\\', c)
		case c >= ' ':
			w.buf = append(w.buf, c)
		case c == '\b':
			w.buf = append(w.buf, '\\', 'b')
		case c == '\f':
			w.buf = append(w.buf, '\\', 'f')
		case c == '\n':
			w.buf = append(w.buf, '\\', 'n')
		case c == '\r':
			w.buf = append(w.buf, '\\', 'r')
		case c == '\t':
			w.buf = append(w.buf, '\\', 't')
		default:
			w.buf = append(w.buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	w.buf = append(w.buf, '"')
}
