package rule

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"drawbridge/shared/strictjson"
)

// Bounds of one line of a transcript.
const (
	MaxLineBytes = 64 << 20
	maxLineDepth = 256
)

// ErrLine means that a line is not one JSON object. Behind the last newline of a
// growing file it says "not yet"; anywhere else the file is corrupt.
var ErrLine = errors.New("not one JSON object")

// Kind is what a line of a transcript means.
type Kind string

// The kinds.
const (
	SessionMeta   Kind = "session_meta"
	TurnStarted   Kind = "turn_started"
	UserMessage   Kind = "user_message"
	TurnCompleted Kind = "turn_completed"
	TurnFailed    Kind = "turn_failed"
	TurnAborted   Kind = "turn_aborted"
	CallBegan     Kind = "call"
	CallOutput    Kind = "call_output"
	Compacted     Kind = "compacted"
	Answer        Kind = "answer"        // a text of the model that ends its part of the turn
	LocalCommand  Kind = "local_command" // of the agent itself; the model sees nothing
	Queued        Kind = "queued"        // a request that waits for the running turn; Reason says what happened to it
	Other         Kind = "other"
)

// Record is one line of a transcript.
type Record struct {
	Kind    Kind
	Rule    string    // name of the matcher that decided; "" for Other
	At      time.Time // the line's own time; zero without one
	Ordinal int64     // the line's own number; -1 without one

	Thread string // SessionMeta, UserMessage; lower case
	Turn   string // TurnStarted, UserMessage, Turn*; CallBegan and CallOutput where the line names it
	ID     string // UserMessage: id of the message

	Text        string // UserMessage: its text parts put together; Turn*: the final answer
	Silent      bool   // TurnCompleted, TurnFailed: there is no final answer at all
	Attachments bool   // UserMessage: it has parts that are not text, so Text is not all of it
	Error       string // TurnFailed: message
	Code        string // TurnFailed: what kind of failure, as the agent writes it
	Reason      string // TurnAborted: why

	Started, Ended time.Time // Turn*: whole seconds; zero where the line does not say

	Cwd, Version, Source string // SessionMeta

	Call   *Call  // CallBegan: all of it; CallOutput: its ID
	Output string // CallOutput, when it is a text
}

// Call is one tool call of the model.
type Call struct {
	ID, Name, Namespace string
	Kind                string // run_command, edit_files, mcp_tool, questionnaire; "" for any other tool
	Command             string // the authoritative text: of the command, the tool's name, or the questions
	Cwd                 string
	Reason              string // why the model wants more than it may
	Escalated           bool   // it asks to run outside the sandbox
	Asks                bool   // it may wait for a person; only the screen can tell whether it does
	Arguments           string // as written
}

// Record reads one line, with or without its newline. A line that is one JSON
// object but fits no rule of the file is Other; anything else is ErrLine.
func (f *File) Record(line []byte) (Record, error) { return f.engine().records.read(line) }

func (r *records) read(line []byte) (Record, error) {
	env, err := r.envelope(line)
	if err != nil {
		return Record{}, err
	}
	out := Record{Kind: Other, At: env.at, Ordinal: env.ordinal}
	var tree any
	for i := range r.kinds {
		k := &r.kinds[i]
		if !k.likely(env.members, line) {
			continue
		}
		if tree == nil {
			if tree, err = strictjson.Parse(bytes.TrimSpace(line), strictjson.Limits{MaxBytes: MaxLineBytes, MaxDepth: maxLineDepth}); err != nil {
				return Record{}, fmt.Errorf("%w: %w", ErrLine, err)
			}
		}
		rec := out
		if k.fill(&rec, &lineTree{tree: tree}) {
			return rec, nil
		}
	}
	return out, nil
}

// envelope is what the outermost object of a line says.
type envelope struct {
	at      time.Time
	ordinal int64
	members map[string]string // texts that some rule asks for
}

// envelope checks the whole line's syntax once and keeps the few outermost texts
// that the rules look at. Most lines of a transcript end here.
func (r *records) envelope(line []byte) (envelope, error) {
	env := envelope{ordinal: -1}
	if len(line) > MaxLineBytes {
		return env, fmt.Errorf("%w: over %d bytes", ErrLine, MaxLineBytes)
	}
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' || !jsontext.Value(line).IsValid() {
		return env, ErrLine
	}
	eachMember(line, func(name, value []byte) {
		text := value[0] == '"'
		switch {
		case text && string(name) == r.at:
			if t, err := time.Parse(time.RFC3339, unquoted(value)); err == nil {
				env.at = t.UTC()
			}
		case !text && string(name) == r.ordinal:
			if n, ok := strictjson.Number(value).Int64(); ok && n >= 0 {
				env.ordinal = n
			}
		}
		if text && r.outer[string(name)] {
			if env.members == nil {
				env.members = make(map[string]string, len(r.outer))
			}
			env.members[string(name)] = unquoted(value)
		}
	})
	return env, nil
}

// eachMember calls visit for every outermost member of a valid object whose name
// is written without escapes.
func eachMember(object []byte, visit func(name, value []byte)) {
	for i := 1; i < len(object); {
		if object[i] != '"' { // blanks, commas, the closing brace
			i++
			continue
		}
		end := stringEnd(object, i)
		name := object[i+1 : end-1]
		for i = end; object[i] != ':'; i++ {
		}
		for i++; object[i] <= ' '; i++ {
		}
		end = valueEnd(object, i)
		visit(name, object[i:end])
		i = end
	}
}

// stringEnd is the offset behind the string that begins at i of a valid text.
func stringEnd(b []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(b[i:], '"')
		n := 0
		for b[i-1-n] == '\\' {
			n++
		}
		if n%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd is the offset behind the value that begins at i of a valid text.
func valueEnd(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default: // a number or a word
			for b[i] > ' ' && b[i] != ',' && b[i] != '}' && b[i] != ']' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

func unquoted(v []byte) string {
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// Ordinal gives the number that a line bears, without judging the rest of it
// beyond its syntax.
func (f *File) Ordinal(line []byte) (int64, bool) {
	env, err := f.engine().records.envelope(line)
	return env.ordinal, err == nil && env.ordinal >= 0
}

// likely reports whether a line may fit: its outermost texts are those that the
// rule asks for, and every other text that it asks for occurs somewhere.
func (k *kind) likely(members map[string]string, line []byte) bool {
	for name, want := range k.outer {
		if members[name] != want {
			return false
		}
	}
	for _, n := range k.needles {
		if !bytes.Contains(line, n) {
			return false
		}
	}
	return true
}

// fill applies one rule; false means that the line does not fit it.
func (k *kind) fill(rec *Record, doc *lineTree) bool {
	for _, t := range k.where {
		if !t.holds(doc) {
			return false
		}
	}
	rec.Kind, rec.Rule = k.kind, k.name
	if k.call != nil {
		call := *k.call
		rec.Call = &call
	} else if k.kind == CallOutput {
		rec.Call = &Call{}
	}
	for _, s := range k.take {
		text, ok := s.source.text(doc, rec)
		if !ok && s.source.required {
			return false
		}
		if s.field == "text" {
			rec.Silent = !ok && k.kind != UserMessage
		}
		if ok {
			s.set(rec, text)
		}
	}
	return true
}

// lineTree is a parsed line with the JSON texts inside it, parsed at most once.
type lineTree struct {
	tree  any
	inner map[string]any
}

// at gives the value at a pointer, inside the JSON text at in if that is set.
// A null is no value.
func (d *lineTree) at(in, ptr string) (any, bool) {
	tree := d.tree
	if in != "" {
		var ok bool
		if tree, ok = d.inner[in]; !ok {
			if text, isText := strictjson.Pointer(d.tree, in); isText {
				if s, isString := text.(string); isString {
					tree, _ = strictjson.Parse([]byte(s), strictjson.Limits{MaxBytes: MaxLineBytes, MaxDepth: maxLineDepth})
				}
			}
			if d.inner == nil {
				d.inner = map[string]any{}
			}
			d.inner[in] = tree
		}
	}
	v, ok := strictjson.Pointer(tree, ptr)
	return v, ok && v != nil
}

func (t test) holds(d *lineTree) bool {
	v, ok := d.at(t.in, t.at)
	switch t.is {
	case "present":
		return ok
	case "absent":
		return !ok
	case "true", "false":
		b, isBool := v.(bool)
		return isBool && b == (t.is == "true")
	}
	s, isText := v.(string)
	if !ok || !isText {
		return false
	}
	if t.prefix != "" {
		return strings.HasPrefix(s, t.prefix)
	}
	return s == t.equals
}
