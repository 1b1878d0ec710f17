package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// maxInner is how deep JSON inside a JSON string is looked into.
const maxInner = 2

// JSON redacts one document, or several one after another: every string below a
// member with a secret's name, and in all other strings and names what Text
// hides. White space, numbers and the order of members stay as they are. On
// input that is not JSON it returns an error; Text still redacts that.
func (r *Redactor) JSON(data []byte) ([]byte, error) { return r.json(data, 0) }

func (r *Redactor) json(data []byte, inner int) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	out := make([]byte, 0, len(data))
	copied := 0
	hidden := 0 // depth of the container whose strings are all hidden, 0 for none
	secret := false
	for {
		kind := dec.PeekKind()
		if kind != jsontext.KindString {
			if _, err := dec.ReadToken(); err == io.EOF {
				break
			} else if err != nil {
				return nil, notJSON(err)
			}
			switch depth := dec.StackDepth(); {
			case kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray:
				if secret && hidden == 0 {
					hidden = depth
				}
			case depth < hidden:
				hidden = 0
			}
			secret = false
			continue
		}
		container, n := dec.StackIndex(dec.StackDepth())
		name := container == jsontext.KindBeginObject && n%2 == 0
		raw, err := dec.ReadValue()
		if err != nil {
			return nil, notJSON(err)
		}
		end := int(dec.InputOffset())
		start := end - len(raw)
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil && len(text) == 0 {
			return nil, notJSON(err)
		}
		var clean string
		switch {
		case name:
			secret = secretKey(string(text))
			clean = r.Text(string(text))
		case (secret || hidden > 0) && len(text) > 0:
			clean, secret = r.word, false
		default:
			clean, secret = r.inner(string(text), inner), false
		}
		if clean == string(text) {
			continue
		}
		quoted, err := jsontext.AppendQuote(nil, clean)
		if err != nil && len(quoted) == 0 {
			return nil, notJSON(err)
		}
		out = append(append(out, data[copied:start]...), quoted...)
		copied = end
	}
	return append(out, data[copied:]...), nil
}

// inner redacts a string that may itself be a JSON document.
func (r *Redactor) inner(text string, depth int) string {
	trimmed := bytes.TrimSpace([]byte(text))
	if depth < maxInner && len(trimmed) > 1 && (trimmed[0] == '{' || trimmed[0] == '[') {
		if clean, err := r.json([]byte(text), depth+1); err == nil {
			return string(clean)
		}
	}
	return r.Text(text)
}

// notJSON drops the decoder's text, which quotes the document.
func notJSON(err error) error {
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		return fmt.Errorf("redact JSON: not JSON at offset %d", se.ByteOffset)
	}
	return errors.New("redact JSON: not JSON")
}
