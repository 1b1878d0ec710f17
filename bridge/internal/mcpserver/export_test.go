package mcpserver

import (
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// Line is what parseMessage makes of one line, for tests outside.
type Line struct {
	ID     string // canonical, "" for none
	Call   bool
	Method string
	Params json.RawMessage
	Code   int64 // of the fault, 0 for none
	Echo   string
	Ignore bool
}

func ParseLine(line []byte) Line {
	m, bad := parseMessage(line)
	switch {
	case bad != nil:
		return Line{Code: bad.code, Echo: bad.id.raw}
	case m == nil:
		return Line{Ignore: true}
	}
	return Line{ID: m.id.key, Call: m.isCall, Method: m.method, Params: m.params}
}

func PlainNumber(s string) (string, bool) { return plainNumber(s) }

func IDKey(raw string) (string, bool) {
	id, ok := parseIdent(jsontext.Value(raw))
	return id.key, ok
}

var AsksForTask = asksForTask
