// Package strictjson reads JSON the way a trust border needs it and writes the
// one canonical form that digests are taken over.
//
// Reading: exactly one document, valid UTF-8 without lone surrogate escapes, no
// member name twice in one object, names compared byte for byte, nothing behind
// the document but white space, and a bound on bytes and nesting that holds
// before anything is allocated. Decode fills a Go value and refuses members it
// does not know; Parse gives a generic tree for documents whose rules are richer
// than a struct.
//
// Writing: Canonical sorts members and escapes only what JSON makes it escape
// (host-profile §7); Ordered, List and Object keep the order they are given, for
// the ids whose digest is taken over a document in a fixed order (core §5–8).
//
// Errors carry a Kind, an offset and a JSON Pointer, never a value of the input:
// the input may hold a secret.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Limits used where a field of Limits is zero.
const (
	DefaultMaxBytes = 1 << 20
	DefaultMaxDepth = 32
)

// Limits bounds one document.
type Limits struct {
	MaxBytes     int  // 0 means DefaultMaxBytes
	MaxDepth     int  // open objects and arrays at one place; 0 means DefaultMaxDepth
	AllowUnknown bool // Decode only: ignore members the target does not know
}

func (l Limits) withDefaults() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = DefaultMaxBytes
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = DefaultMaxDepth
	}
	return l
}

// Decode reads exactly one document into v, a pointer. Members match by the
// field's json tag, byte for byte. A number that lands in an interface is a
// Number. null empties the target, so a required member is a pointer or is
// checked by the caller. After an error the target may be half filled: drop it.
//
// The error is an *Error.
func Decode(data []byte, v any, lim Limits) error {
	lim = lim.withDefaults()
	if err := check(data, lim, nil); err != nil {
		return err
	}
	err := json.Unmarshal(data, v,
		json.RejectUnknownMembers(!lim.AllowUnknown),
		json.WithUnmarshalers(exactNumbers))
	if err == nil {
		return nil
	}
	return semantic(err)
}

// Parse reads exactly one document into a generic tree of map[string]any, []any,
// string, Number, bool and nil. AllowUnknown has no meaning here.
//
// The error is an *Error.
func Parse(data []byte, lim Limits) (any, error) {
	b := &builder{}
	if err := check(data, lim.withDefaults(), b); err != nil {
		return nil, err
	}
	return b.root, nil
}

// exactNumbers keeps the literal of a number whose target is an interface.
var exactNumbers = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
	if dec.PeekKind() != jsontext.KindNumber {
		return errors.ErrUnsupported // falls through to the default
	}
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	*v = Number(tok.String())
	return nil
})

// sink is told every token of a document, in order.
type sink interface{ add(jsontext.Token) }

// check walks all tokens of data. It is the whole syntax check; with a sink it
// also makes the tree.
func check(data []byte, lim Limits, b sink, opts ...jsontext.Options) error {
	if len(data) > lim.MaxBytes {
		return &Error{Kind: Size, Detail: fmt.Sprintf("%d bytes, limit %d", len(data), lim.MaxBytes)}
	}
	if !utf8.Valid(data) {
		return &Error{Kind: Encoding, Offset: int64(firstInvalid(data)), Detail: "not valid UTF-8"}
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), opts...)
	for {
		if err := depth(dec, lim); err != nil {
			return err
		}
		tok, err := dec.ReadToken()
		if err == io.EOF {
			return &Error{Kind: Syntax, Detail: "no document"}
		}
		if err != nil {
			return syntactic(data, err)
		}
		if b != nil {
			b.add(tok)
		}
		if dec.StackDepth() == 0 {
			break
		}
	}
	end := dec.InputOffset()
	if rest := bytes.TrimLeft(data[end:], " \t\r\n"); len(rest) > 0 {
		return &Error{Kind: Trailing, Offset: end, Detail: "bytes after the document"}
	}
	return nil
}

// depth refuses the next token when it would open one container too many.
func depth(dec *jsontext.Decoder, lim Limits) error {
	if dec.StackDepth() < lim.MaxDepth {
		return nil
	}
	if k := dec.PeekKind(); k == jsontext.KindBeginObject || k == jsontext.KindBeginArray {
		return &Error{Kind: Depth, Offset: dec.InputOffset(), Detail: fmt.Sprintf("nested deeper than %d", lim.MaxDepth)}
	}
	return nil
}

// firstInvalid gives the offset of the first byte that is not UTF-8.
func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

// builder makes the tree of Parse out of tokens that are known to be in order.
type builder struct {
	root  any
	stack []frame
}

// frame is one open container.
type frame struct {
	object map[string]any
	array  []any
	name   string
	named  bool // name holds the name of the value that comes next
}

func (b *builder) add(tok jsontext.Token) {
	switch tok.Kind() {
	case jsontext.KindBeginObject:
		b.stack = append(b.stack, frame{object: map[string]any{}})
	case jsontext.KindBeginArray:
		b.stack = append(b.stack, frame{array: []any{}})
	case jsontext.KindEndObject:
		v := b.stack[len(b.stack)-1].object
		b.stack = b.stack[:len(b.stack)-1]
		b.value(v)
	case jsontext.KindEndArray:
		v := b.stack[len(b.stack)-1].array
		b.stack = b.stack[:len(b.stack)-1]
		b.value(v)
	case jsontext.KindString:
		if n := len(b.stack); n > 0 && b.stack[n-1].object != nil && !b.stack[n-1].named {
			b.stack[n-1].name, b.stack[n-1].named = tok.String(), true
			return
		}
		b.value(tok.String())
	case jsontext.KindNumber:
		b.value(Number(tok.String()))
	case jsontext.KindTrue:
		b.value(true)
	case jsontext.KindFalse:
		b.value(false)
	default:
		b.value(nil)
	}
}

func (b *builder) value(v any) {
	n := len(b.stack)
	if n == 0 {
		b.root = v
		return
	}
	f := &b.stack[n-1]
	if f.object != nil {
		f.object[f.name] = v
		f.named = false
		return
	}
	f.array = append(f.array, v)
}
