package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of the record of a turn (worker §10).
const (
	maxEvents    = 200_000
	maxEventLine = maxOutput
	eventDepth   = 200
	maxTokens    = 1<<53 - 1
)

// Summary is what the record of one turn says.
type Summary struct {
	ThreadID string
	Final    *string // the agent's last message
	Usage    Usage
	Events   int
	Failure  string // with an error: the last that Codex said of what failed, one bounded line; "": nothing
}

// MarshalJSON gives the form that `kitrun worker events` prints.
func (s Summary) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ThreadID string  `json:"provider_thread_id"`
		Final    *string `json:"final"`
		Usage    Usage   `json:"usage"`
		Events   int     `json:"events"`
	}{s.ThreadID, s.Final, s.Usage, s.Events})
}

// ParseEvents reads the JSON lines of `codex exec --json`. It is an error,
// events_invalid, unless they are the record of exactly one thread and exactly one
// turn, which completed. A turn that does not say what it used is complete, and
// its usage unavailable. No message holds a value of the input; the Failure that
// comes along with an error does.
func ParseEvents(r io.Reader) (Summary, error) {
	var t turnRecord
	sum, err := t.read(r)
	if err != nil {
		return Summary{Failure: t.failure}, err
	}
	return sum, nil
}

func (t *turnRecord) read(r io.Reader) (Summary, error) {
	lines := lineReader{r: bufio.NewReaderSize(r, 64<<10)}
	for {
		line, err := lines.next()
		if err == io.EOF {
			return t.summary()
		}
		if err != nil {
			return Summary{}, t.invalid("%w", err)
		}
		if len(line) == 0 {
			continue
		}
		if err := t.add(line); err != nil {
			return Summary{}, err
		}
	}
}

// codexEvent is one line. Members of other types than these make no difference
// unless the event's type needs them, hence the raw values.
type codexEvent struct {
	Type     json.RawMessage `json:"type"`
	ThreadID json.RawMessage `json:"thread_id"`
	Item     json.RawMessage `json:"item"`
	Usage    json.RawMessage `json:"usage"`
	Message  json.RawMessage `json:"message"` // of error
	Error    json.RawMessage `json:"error"`   // of turn.failed
}

type codexItem struct {
	Type json.RawMessage `json:"type"`
	Text json.RawMessage `json:"text"`
}

// turnRecord is what the lines so far amount to.
type turnRecord struct {
	events    int
	threads   int
	started   int
	completed int
	failed    int
	failure   string
	sum       Summary
}

// maxFailure bounds what is passed on of a failure, in characters.
const maxFailure = 300

// fails takes note of what Codex says of a failure; what is no text says nothing.
func (t *turnRecord) fails(message json.RawMessage) {
	said := []rune(fault.CleanLine(text(message)))
	if len(said) > maxFailure {
		said = append(said[:maxFailure-3], []rune("...")...)
	}
	if len(said) > 0 {
		t.failure = string(said)
	}
}

func (t *turnRecord) invalid(format string, args ...any) error {
	e := fault.New(fault.EventsInvalid, "read codex event %d: "+format, append([]any{t.events}, args...)...)
	return e.With("event", t.events)
}

// add takes one line.
func (t *turnRecord) add(line []byte) error {
	t.events++
	if t.events > maxEvents {
		return t.invalid("there are more than %d", maxEvents)
	}
	var e codexEvent
	if err := decodeObject(line, &e); err != nil {
		return t.invalid("%w", err)
	}
	switch text(e.Type) {
	case "thread.started":
		t.threads++
		if t.sum.ThreadID = text(e.ThreadID); t.sum.ThreadID == "" {
			return t.invalid("a thread without an id")
		}
	case "turn.started":
		t.started++
	case "turn.completed":
		t.completed++
		t.sum.Usage = usageOf(e.Usage)
	case "turn.failed":
		t.failed++
		var failure struct {
			Message json.RawMessage `json:"message"`
		}
		if decodeObject(e.Error, &failure) == nil {
			t.fails(failure.Message)
		}
	case "error":
		if t.failed == 0 { // on the way to it
			t.fails(e.Message)
		}
	case "item.completed":
		var item codexItem
		if decodeObject(e.Item, &item) == nil && text(item.Type) == "agent_message" && isText(item.Text) {
			final := text(item.Text)
			t.sum.Final = &final
		}
	}
	return nil
}

// summary judges the whole.
func (t *turnRecord) summary() (Summary, error) {
	t.sum.Events = t.events
	for _, rule := range []struct {
		what      string
		got, want int
	}{
		{"thread.started", t.threads, 1}, {"turn.started", t.started, 1},
		{"turn.failed", t.failed, 0}, {"turn.completed", t.completed, 1},
	} {
		if rule.got != rule.want {
			return Summary{}, fault.New(fault.EventsInvalid, "read codex events: %d of %s, not %d", rule.got, rule.what, rule.want).
				With("events", t.events)
		}
	}
	return t.sum, nil
}

// usageOf reads the counts of a turn; anything that is not two whole numbers in
// range is no measurement.
func usageOf(raw json.RawMessage) Usage {
	var u struct {
		Input     json.RawMessage `json:"input_tokens"`
		Output    json.RawMessage `json:"output_tokens"`
		Cached    json.RawMessage `json:"cached_input_tokens"`
		Reasoning json.RawMessage `json:"reasoning_output_tokens"`
		Write     json.RawMessage `json:"cache_write_input_tokens"`
	}
	if decodeObject(raw, &u) != nil {
		return Usage{}
	}
	input, output := count(u.Input), count(u.Output)
	if input == nil || output == nil {
		return Usage{}
	}
	return Usage{Complete: true, InputTokens: *input, OutputTokens: *output,
		CachedInput: count(u.Cached), ReasoningOutput: count(u.Reasoning), CacheWriteInput: count(u.Write)}
}

// count reads a number of tokens, nil for anything else.
func count(raw json.RawMessage) *int64 {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 || n > maxTokens || string(raw) != strconv.FormatInt(n, 10) {
		return nil
	}
	return &n
}

// decodeObject reads one JSON object into a struct of raw values.
func decodeObject(data []byte, v any) error {
	if trimmed := bytes.TrimLeft(data, " \t\r"); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("not a JSON object")
	}
	return strictjson.Decode(data, v, strictjson.Limits{MaxBytes: maxEventLine, MaxDepth: eventDepth, AllowUnknown: true})
}

// text gives a JSON string, "" for anything else.
func text(raw json.RawMessage) string {
	var s string
	if !isText(raw) || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func isText(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// lineReader splits at line feeds and drops empty lines' ends.
type lineReader struct {
	r   *bufio.Reader
	buf []byte
}

// next gives the next line without its end, good until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if len(l.buf) > maxEventLine {
				return nil, errors.New("a line is too long")
			}
			continue
		case err != nil && (!errors.Is(err, io.EOF) || len(l.buf) == 0):
			return nil, err
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r")), nil
	}
}
