package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of one message.
const (
	MaxMessage = 16 << 20 // bytes of one line, in and out of the process
	maxNesting = 64
	readBuffer = 64 << 10
)

// errTooLong says that a line was over MaxMessage; it was skipped to its end.
var errTooLong = errors.New("message too long")

// lines reads newline-framed messages.
type lines struct {
	r *bufio.Reader
}

func newLines(r io.Reader) *lines { return &lines{bufio.NewReaderSize(r, readBuffer)} }

// next gives the next line that is not blank, without its line end. The last
// line of a stream counts even without one. A line that is too long is skipped
// and gives errTooLong; the next call goes on behind it.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

func (l *lines) line() ([]byte, error) {
	var whole []byte
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if len(whole)+len(part) > MaxMessage+len("\r\n") {
			long, whole = true, nil
		}
		if !long {
			whole = append(whole, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !(errors.Is(err, io.EOF) && (len(whole) > 0 || long)):
			return nil, err
		}
		whole = bytes.TrimSuffix(bytes.TrimSuffix(whole, []byte("\n")), []byte("\r"))
		if long || len(whole) > MaxMessage {
			return nil, errTooLong
		}
		return whole, nil
	}
}

// A message is one line from the client, as far as the transport must know it.
type message struct {
	id     ident // of a request; zero for a notification
	isCall bool
	method string
	params json.RawMessage // an object, or nil
}

// wire holds the members of a message that exist, each as it was written.
type wire struct {
	Version jsontext.Value `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Method  jsontext.Value `json:"method"`
	Params  jsontext.Value `json:"params"`
	Result  jsontext.Value `json:"result"`
	Error   jsontext.Value `json:"error"`
}

// A fault of one line, answered without the SDK's help.
type lineFault struct {
	id   ident // zero: null, since the id could not be told or belongs to somebody else
	code int64
	text string
}

// parseMessage reads one line. A nil message without a fault is one that needs
// no answer and no attention: an answer to a request that was never made.
func parseMessage(line []byte) (*message, *lineFault) {
	var w wire
	err := strictjson.Decode(line, &w, strictjson.Limits{MaxBytes: MaxMessage, MaxDepth: maxNesting, AllowUnknown: true})
	switch strictjson.KindOf(err) {
	case "":
	case strictjson.Type:
		return nil, &lineFault{code: jsonrpc.CodeInvalidRequest, text: "invalid request: not a JSON-RPC message object"}
	case strictjson.Depth:
		return nil, &lineFault{code: jsonrpc.CodeInvalidRequest, text: "invalid request: " + fault.CleanLine(err.Error())}
	default:
		return nil, &lineFault{code: jsonrpc.CodeParseError, text: "parse error: " + fault.CleanLine(err.Error())}
	}
	if w.Method == nil {
		if w.ID != nil && (w.Result != nil || w.Error != nil) {
			return nil, nil
		}
		return nil, &lineFault{code: jsonrpc.CodeInvalidRequest, text: "invalid request: neither a request nor an answer"}
	}
	m := &message{}
	if w.ID != nil {
		var ok bool
		if m.id, ok = parseIdent(w.ID); !ok {
			return nil, &lineFault{code: jsonrpc.CodeInvalidRequest, text: "invalid request: the id must be a string or a number"}
		}
		m.isCall = true
	}
	if text, ok := unquote(w.Version); !ok || text != "2.0" {
		return nil, &lineFault{id: m.id, code: jsonrpc.CodeInvalidRequest, text: `invalid request: jsonrpc must be "2.0"`}
	}
	var ok bool
	if m.method, ok = unquote(w.Method); !ok {
		return nil, &lineFault{id: m.id, code: jsonrpc.CodeInvalidRequest, text: "invalid request: the method must be a string"}
	}
	switch w.Params.Kind() {
	case jsontext.KindBeginObject:
		m.params = json.RawMessage(w.Params)
	case jsontext.KindInvalid, jsontext.KindNull: // absent
	default:
		return nil, &lineFault{id: m.id, code: jsonrpc.CodeInvalidParams, text: "invalid params: params must be an object"}
	}
	return m, nil
}

func unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != jsontext.KindString {
		return "", false
	}
	text, err := jsontext.AppendUnquote(nil, v)
	return string(text), err == nil
}

// asksForTask reports whether a tools/call wants to run as a task: a task
// parameter or _meta.task (tools §1). No tool here runs as one.
func asksForTask(params json.RawMessage) bool {
	var p struct {
		Task jsontext.Value `json:"task"`
		Meta jsontext.Value `json:"_meta"`
	}
	lim := strictjson.Limits{MaxBytes: MaxMessage, MaxDepth: maxNesting, AllowUnknown: true}
	if len(params) == 0 || strictjson.Decode(params, &p, lim) != nil {
		return false
	}
	if p.Task != nil {
		return true
	}
	var meta struct {
		Task jsontext.Value `json:"task"`
	}
	return p.Meta.Kind() == jsontext.KindBeginObject &&
		strictjson.Decode(p.Meta, &meta, lim) == nil && meta.Task != nil
}

// answer is the wire form of what the server says to one request.
type answer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *jsonrpc.Error  `json:"error,omitempty"`
}

// encodeAnswer writes the frame for id, with the id as the client wrote it.
func encodeAnswer(id ident, result json.RawMessage, failure error) ([]byte, error) {
	a := answer{Version: "2.0", ID: json.RawMessage("null"), Result: result}
	if id.raw != "" {
		a.ID = json.RawMessage(id.raw)
	}
	if failure != nil {
		a.Result, a.Error = nil, wireError(failure)
	}
	// A result comes from the SDK's encoder: compact, valid and without a newline.
	// Encoding it again would read a long one to its end.
	if failure == nil && len(result) > 0 && bytes.IndexByte(result, '\n') < 0 {
		frame := make([]byte, 0, len(result)+len(a.ID)+64)
		frame = append(frame, `{"jsonrpc":"2.0","id":`...)
		frame = append(frame, a.ID...)
		frame = append(frame, `,"result":`...)
		frame = append(frame, result...)
		return append(frame, "}\n"...), nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(a); err != nil { // ends with the newline that frames it
		return nil, err
	}
	return buf.Bytes(), nil
}

// wireError keeps code and data, and makes the text fit for a model. The SDK
// gives no code to requests that come at the wrong time.
func wireError(err error) *jsonrpc.Error {
	out := &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest}
	var e *jsonrpc.Error
	if errors.As(err, &e) {
		out.Code, out.Data = e.Code, e.Data
	}
	out.Message = fault.CleanLine(err.Error())
	return out
}
