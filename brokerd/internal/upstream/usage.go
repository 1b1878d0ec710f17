package upstream

import (
	"bytes"
	"mime"

	"drawbridge/shared/strictjson"
)

// completedType is the type of the one event that says what a response cost; no
// other event is parsed.
const completedType = "response.completed"

// maxReported bounds the name that a provider gives its model.
const maxReported = 256

// An observer reads a response beside the client and keeps what the last completed
// event said of it (broker §9). It is given what the client gets, so that no
// credential reaches a row. It never fails: what it cannot read it does not know.
type observer struct {
	events bool   // server-sent events, else one document
	buf    []byte // the event, or the document, so far
	from   int    // where the line that is not at its end begins in buf
	long   bool   // the event is too long to be looked at
	blank  bool   // of a long event: nothing stands on its line so far

	usage *Usage
	model *string
}

// newObserver makes an observer for a response of this content type.
func newObserver(contentType string) *observer {
	media, _, err := mime.ParseMediaType(contentType)
	return &observer{events: err != nil || media != "application/json"}
}

// take looks at the next bytes of the response.
func (o *observer) take(p []byte) {
	for o.events && len(p) > 0 {
		if len(o.buf) == 0 && !o.long {
			if p = p[dull(p):]; len(p) == 0 {
				return
			}
		}
		n := bytes.IndexByte(p, '\n') + 1
		if n == 0 {
			break
		}
		o.keep(p[:n])
		o.endLine()
		p = p[n:]
	}
	o.keep(p)
}

// dull gives the length of the whole events at the beginning of p, which is that of an
// event, when none of them can be of interest.
func dull(p []byte) int {
	n := 0
	if i := bytes.LastIndex(p, []byte("\n\n")); i >= 0 {
		n = i + len("\n\n")
	}
	if i := bytes.LastIndex(p[n:], []byte("\n\r\n")); i >= 0 {
		n += i + len("\n\r\n")
	}
	if bytes.Contains(p[:n], []byte(completedType)) {
		return 0
	}
	return n
}

// end looks at what is left. An event without a blank line behind it was not sent
// whole and does not count.
func (o *observer) end() {
	if !o.events && !o.long {
		o.document(o.buf)
	}
	o.buf = nil
}

// keep adds to the event, or gives it up when it is too long.
func (o *observer) keep(p []byte) {
	if !o.long && len(o.buf)+len(p) > MaxEvent {
		o.long, o.blank, o.buf = true, o.from == len(o.buf), nil
	}
	if !o.long {
		o.buf = append(o.buf, p...)
		return
	}
	o.blank = o.blank && len(bytes.Trim(p, "\r\n")) == 0
}

// endLine looks at the line that has come to its end; a blank one ends the event.
func (o *observer) endLine() {
	if o.long {
		if o.blank {
			o.long, o.from = false, 0
		}
		o.blank = true
		return
	}
	line := o.buf[o.from:]
	if len(line) > len("\r\n") || len(bytes.Trim(line, "\r\n")) > 0 {
		o.from = len(o.buf)
		return
	}
	o.event(o.buf[:o.from])
	o.buf, o.from = o.buf[:0], 0
	if cap(o.buf) > roomy {
		o.buf = nil
	}
}

// roomy is how large a buffer may be that is kept for the next use.
const roomy = 64 << 10

// event reads one event. The look for the word comes first: it spares parsing all
// others, and an event that writes the word with escapes is not known.
func (o *observer) event(event []byte) {
	if !bytes.Contains(event, []byte(completedType)) {
		return
	}
	var data []byte
	parts := 0
	for line := range bytes.Lines(event) {
		value, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
		if !ok {
			continue
		}
		if parts++; parts > 1 {
			data = append(data, '\n')
		}
		data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
	}
	var e struct {
		Type     any `json:"type"`
		Response any `json:"response"`
	}
	if decode(data, &e) && e.Type == completedType {
		o.response(e.Response)
	}
}

// document reads a response that is no stream.
func (o *observer) document(data []byte) {
	var response any
	if decode(data, &response) {
		if members, ok := response.(map[string]any); ok && members["object"] == "response" {
			o.response(response)
		}
	}
}

func decode(data []byte, v any) bool {
	limits := strictjson.Limits{MaxBytes: MaxEvent, MaxDepth: MaxDepth, AllowUnknown: true}
	return strictjson.Decode(data, v, limits) == nil
}

// response keeps what a response says of itself; the last one counts, also when it
// says nothing.
func (o *observer) response(response any) {
	o.model, o.usage = nil, nil
	members, _ := response.(map[string]any)
	if model, ok := members["model"].(string); ok && model != "" && len(model) <= maxReported {
		o.model = &model
	}
	usage, _ := members["usage"].(map[string]any)
	input, ok := tokens(usage["input_tokens"])
	if !ok {
		return
	}
	output, ok := tokens(usage["output_tokens"])
	if !ok {
		return
	}
	o.usage = &Usage{InputTokens: input, OutputTokens: output}
	details, _ := usage["input_tokens_details"].(map[string]any)
	if cached, ok := tokens(details["cached_tokens"]); ok {
		o.usage.CachedInputTokens = &cached
	}
}

// tokens reads a count: an integer from 0 to 2^53-1.
func tokens(v any) (int64, bool) {
	n, ok := v.(strictjson.Number)
	if !ok {
		return 0, false
	}
	i, ok := n.Int64()
	return i, ok && 0 <= i && i <= strictjson.MaxExact
}
