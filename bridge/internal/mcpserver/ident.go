package mcpserver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"drawbridge/shared/strictjson"
)

// maxIdent bounds the text of a request id.
const maxIdent = 512

// Plain notation is used for numbers of at most this many digits before or
// after the point; beyond it digits and a power of ten are written.
const maxPlain = 21

// An ident is a JSON-RPC request id. Two ids are the same when type and value
// are: 1, 1.0 and 1e0 are one id, "1" is another.
type ident struct {
	raw string // as the client wrote it, echoed in the answer
	key string // canonical JSON: the same text for the same id
}

// parseIdent reads the id member of a request. ok is false for anything but a
// string or a number of bearable length.
func parseIdent(raw jsontext.Value) (id ident, ok bool) {
	if len(raw) == 0 || len(raw) > maxIdent {
		return ident{}, false
	}
	switch raw.Kind() {
	case jsontext.KindString:
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return ident{}, false
		}
		doc := strictjson.List(string(text))
		return ident{raw: string(raw), key: string(doc[1 : len(doc)-1])}, true
	case jsontext.KindNumber:
		key, ok := plainNumber(string(raw))
		return ident{raw: string(raw), key: key}, ok
	}
	return ident{}, false
}

// plainNumber gives one text for each number, whatever way it was written. It
// is exact: no float stands between, so 2^53 and 2^53+1 stay apart.
func plainNumber(s string) (string, bool) {
	rest, negative := strings.CutPrefix(s, "-")
	mantissa, exponent := rest, "0"
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, exponent = rest[:i], rest[i+1:]
	}
	whole, frac, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+frac, "0")
	if digits == "" {
		return "0", true
	}
	exp, err := strconv.Atoi(exponent)
	if err != nil || exp > 1<<30 || exp < -1<<30 {
		return "", false
	}
	exp -= len(frac)
	trimmed := strings.TrimRight(digits, "0")
	exp += len(digits) - len(trimmed)

	sign := ""
	if negative {
		sign = "-"
	}
	switch {
	case exp >= 0 && len(trimmed)+exp <= maxPlain:
		return sign + trimmed + strings.Repeat("0", exp), true
	case exp < 0 && -exp < len(trimmed) && len(trimmed) <= maxPlain:
		at := len(trimmed) + exp
		return sign + trimmed[:at] + "." + trimmed[at:], true
	case exp < 0 && -exp >= len(trimmed) && -exp <= maxPlain:
		return sign + "0." + strings.Repeat("0", -exp-len(trimmed)) + trimmed, true
	}
	return fmt.Sprintf("%s%se%d", sign, trimmed, exp), true
}

// CallID names one accepted tools/call for good (tools §5): instance is the
// bridge process, request the JSON-RPC id as it was received.
func CallID(instance string, request json.RawMessage) (string, error) {
	id, ok := parseIdent(jsontext.Value(request))
	if !ok {
		return "", fmt.Errorf("name a tool call: %d bytes are no request id", len(request))
	}
	return callID(instance, id), nil
}

func callID(instance string, id ident) string {
	doc := strictjson.List(instance)
	return "host-bridge:" + string(doc[:len(doc)-1]) + "," + id.key + "]"
}
