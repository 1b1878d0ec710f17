package strictjson

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxPointerText bounds how much of a pointer an error message shows: member
// names come from outside.
const maxPointerText = 120

// Kind says which rule a document broke.
type Kind string

// The kinds, in the order in which they are looked for.
const (
	Size      Kind = "size"           // over Limits.MaxBytes
	Encoding  Kind = "encoding"       // invalid UTF-8, or a lone surrogate escape
	Syntax    Kind = "syntax"         // not JSON, or no document at all
	Depth     Kind = "depth"          // over Limits.MaxDepth
	Duplicate Kind = "duplicate"      // a member name twice in one object
	Trailing  Kind = "trailing"       // bytes after the document
	Unknown   Kind = "unknown_member" // a member that the target does not have
	Type      Kind = "type"           // a value that does not fit its target
)

// Error is why a document was refused.
type Error struct {
	Kind    Kind
	Offset  int64  // bytes from the start, at or shortly before the fault; 0 when not known
	Pointer string // RFC 6901 pointer to the place; "" for the whole document
	Detail  string // one phrase, without any value of the document
}

// Error names the place and the rule, never a value.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("read JSON: ")
	b.WriteString(e.Detail)
	if e.Pointer != "" {
		p := e.Pointer
		if len(p) > maxPointerText {
			p = strings.ToValidUTF8(p[:maxPointerText], "") + "…"
		}
		b.WriteString(" at ")
		b.WriteString(strconv.Quote(p))
	}
	if e.Offset > 0 {
		fmt.Fprintf(&b, " (offset %d)", e.Offset)
	}
	return b.String()
}

// KindOf gives the kind of the first Error in err's chain, "" without one.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// syntactic turns a decoder's error into one without text of the document.
func syntactic(data []byte, err error) error {
	var se *jsontext.SyntacticError
	if !errors.As(err, &se) {
		return &Error{Kind: Syntax, Detail: "not a JSON document"}
	}
	out := &Error{Kind: Syntax, Offset: se.ByteOffset, Pointer: string(se.JSONPointer), Detail: "not a JSON document"}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		out.Kind, out.Detail = Duplicate, "member twice in one object"
	case surrogateAt(data, se.ByteOffset):
		out.Kind, out.Detail = Encoding, "lone surrogate escape"
	}
	return out
}

// surrogateAt reports whether a \u escape of a surrogate stands at offset: the
// decoder stops there only when it has no partner.
func surrogateAt(data []byte, offset int64) bool {
	if offset < 0 || offset+6 > int64(len(data)) {
		return false
	}
	esc := data[offset : offset+6]
	if esc[0] != '\\' || esc[1] != 'u' {
		return false
	}
	n, err := strconv.ParseUint(string(esc[2:]), 16, 16)
	return err == nil && n >= 0xD800 && n <= 0xDFFF
}

// semantic turns an error of the second pass, which is about types only, into
// one without a value of the document.
func semantic(err error) error {
	var own *Error
	if errors.As(err, &own) { // from an UnmarshalJSON method that uses this package
		return own
	}
	var se *json.SemanticError
	if !errors.As(err, &se) {
		return &Error{Kind: Type, Detail: "value does not fit"}
	}
	out := &Error{Kind: Type, Offset: se.ByteOffset, Pointer: string(se.JSONPointer), Detail: "value does not fit"}
	if errors.Is(err, json.ErrUnknownName) {
		out.Kind, out.Detail = Unknown, "unknown member"
		return out
	}
	if se.JSONKind != 0 && se.GoType != nil {
		out.Detail = fmt.Sprintf("%s where %s is wanted", kindName(se.JSONKind), se.GoType)
	}
	return out
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginObject:
		return "object"
	case jsontext.KindBeginArray:
		return "array"
	case jsontext.KindString:
		return "string"
	case jsontext.KindNumber:
		return "number"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "boolean"
	case jsontext.KindNull:
		return "null"
	}
	return "value"
}
