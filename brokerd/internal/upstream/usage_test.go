package upstream_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/brokerd/internal/upstream"
)

const stream = "text/event-stream; charset=utf-8"

// completed is an event whose response has these members.
func completed(members string) string {
	return "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{" + members + "}}\n\n"
}

// observed renders usage and model.
func observed(u *upstream.Usage, m *string) string {
	usage, err := json.Marshal(u)
	if err != nil {
		panic(err)
	}
	if m == nil {
		return string(usage)
	}
	return string(usage) + " " + *m
}

// Proves broker 18.15: usage is what a whole completed event says; what is not a count
// is not known, and never zero.
func TestUsage(t *testing.T) {
	const good = `{"input_tokens":10,"output_tokens":5,"cached_input_tokens":3}`
	all := `"model":"m","usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":15}`
	for _, tc := range []struct{ name, contentType, text, want string }{
		{"completed", stream, completed(all), good + " m"},
		{"among others", stream, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n: comment\n\n" + completed(all) + "data: [DONE]\n\n", good + " m"},
		{"CRLF", stream, strings.ReplaceAll(completed(all), "\n", "\r\n"), good + " m"},
		{"no space behind the colon", stream, strings.Replace(completed(all), "data: ", "data:", 1), good + " m"},
		{"data in lines", stream, "data: {\"type\":\"response.completed\",\ndata: \"response\":{\ndata: " + all + "}}\n\n", good + " m"},
		{"line break inside a text", stream, "data: {\"type\":\"response.com\ndata: pleted\",\"response\":{" + all + "}}\n\n", "null"},
		{"no blank line behind it", stream, strings.TrimSuffix(completed(all), "\n"), "null"},
		{"no content type", "", completed(all), good + " m"},
		{"the last one counts", stream, completed(`"model":"a","usage":{"input_tokens":1,"output_tokens":1}`) + completed(all), good + " m"},
		{"the last one counts, also without usage", stream, completed(all) + completed(`"model":"b"`), "null b"},
		{"another type", stream, strings.ReplaceAll(completed(all), "response.completed", "response.incomplete"), "null"},
		{"type only in a text", stream, "data: {\"type\":\"x\",\"text\":\"response.completed\",\"response\":{" + all + "}}\n\n", "null"},
		{"type only as the event's name", stream, "event: response.completed\ndata: {\"response\":{" + all + "}}\n\n", "null"},
		{"key in another case", stream, strings.Replace(completed(all), `"type"`, `"Type"`, 1), "null"},
		{"not JSON", stream, "data: response.completed\n\n", "null"},
		{"no usage", stream, completed(`"model":"m"`), "null m"},
		{"usage null", stream, completed(`"model":"m","usage":null`), "null m"},
		{"input absent", stream, completed(`"usage":{"output_tokens":5}`), "null"},
		{"output absent", stream, completed(`"usage":{"input_tokens":5}`), "null"},
		{"negative", stream, completed(`"usage":{"input_tokens":-1,"output_tokens":5}`), "null"},
		{"fraction", stream, completed(`"usage":{"input_tokens":1.5,"output_tokens":5}`), "null"},
		{"text", stream, completed(`"usage":{"input_tokens":"1","output_tokens":5}`), "null"},
		{"bool", stream, completed(`"usage":{"input_tokens":true,"output_tokens":5}`), "null"},
		{"null count", stream, completed(`"usage":{"input_tokens":1,"output_tokens":null}`), "null"},
		{"largest", stream, completed(`"usage":{"input_tokens":9007199254740991,"output_tokens":0}`), `{"input_tokens":9007199254740991,"output_tokens":0,"cached_input_tokens":null}`},
		{"too large", stream, completed(`"usage":{"input_tokens":9007199254740992,"output_tokens":5}`), "null"},
		{"cached is no count", stream, completed(`"usage":{"input_tokens":1,"output_tokens":5,"input_tokens_details":{"cached_tokens":-3}}`), `{"input_tokens":1,"output_tokens":5,"cached_input_tokens":null}`},
		{"details are no object", stream, completed(`"usage":{"input_tokens":1,"output_tokens":5,"input_tokens_details":7}`), `{"input_tokens":1,"output_tokens":5,"cached_input_tokens":null}`},
		{"model is no text", stream, completed(`"model":7,"usage":{"input_tokens":1,"output_tokens":5}`), `{"input_tokens":1,"output_tokens":5,"cached_input_tokens":null}`},
		{"model too long", stream, completed(`"model":"` + strings.Repeat("m", 257) + `","usage":{"input_tokens":1,"output_tokens":5}`), `{"input_tokens":1,"output_tokens":5,"cached_input_tokens":null}`},
		{"response is no object", stream, "data: {\"type\":\"response.completed\",\"response\":[]}\n\n", "null"},
		{"a name twice", stream, completed(`"usage":{"input_tokens":1,"input_tokens":2,"output_tokens":5}`), "null"},
		{"too long", stream, completed(`"pad":"` + strings.Repeat("x", upstream.MaxEvent) + `",` + all), "null"},
		{"behind one that is too long", stream, "data: " + strings.Repeat("x", upstream.MaxEvent+1) + "\n\n" + completed(all), good + " m"},
		{"behind one of many lines that is too long", stream, strings.Repeat("data: "+strings.Repeat("x", 1000)+"\r\n", 5000) + "\r\n" + completed(all), good + " m"},
		{"document", "application/json", `{"object":"response",` + all + `}`, good + " m"},
		{"document with parameters", "application/json; charset=utf-8", ` {"object":"response",` + all + "}\n", good + " m"},
		{"another document", "application/json", `{"object":"response.compaction",` + all + `}`, "null"},
		{"cut document", "application/json", `{"object":"response",` + all, "null"},
		{"document too long", "application/json", `{"object":"response",` + all + `}` + strings.Repeat(" ", upstream.MaxEvent), "null"},
		{"events said to be a document", "application/json", completed(all), "null"},
		{"nothing", stream, "", "null"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := observed(upstream.Observe(tc.contentType, []byte(tc.text))); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			if got := observed(upstream.Observe(tc.contentType, pieces(rnd, []byte(tc.text))...)); got != tc.want {
				t.Errorf("in pieces got %s, want %s", got, tc.want)
			}
		})
	}
}

// pieces cuts data at random.
func pieces(rnd *rand.Rand, data []byte) [][]byte {
	var out [][]byte
	for len(data) > 0 {
		n := min(len(data), 1+rnd.IntN(1+rnd.IntN(1+len(data))))
		out, data = append(out, data[:n]), data[n:]
	}
	return out
}

// An event of 10 MiB passes, and what comes behind it is seen.
func TestUsage_LongEvent(t *testing.T) {
	w := newWorld(t)
	long := "data: " + strings.Repeat("y", 10<<20) + "\n\n"
	w.answer(func(rw http.ResponseWriter, _ *http.Request) { sse(rw, long, event(7, 8, 0)) })
	if a := w.post("/responses", bound); a.body != long+event(7, 8, 0) {
		t.Errorf("%d bytes came, %v", len(a.body), a.err)
	}
	want := &upstream.Usage{InputTokens: 7, OutputTokens: 8, CachedInputTokens: new(int64)}
	if diff := cmp.Diff(want, w.row().ResponseUsage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// A stream that breaks off behind the completed event has its usage all the same.
func TestUsage_OfBrokenStream(t *testing.T) {
	w := newWorld(t)
	w.answer(func(rw http.ResponseWriter, _ *http.Request) {
		sse(rw, event(1, 2, 0))
		panic(http.ErrAbortHandler)
	})
	w.post("/responses", bound)
	if e := w.row(); e.Outcome != upstream.UpstreamError || e.ResponseUsage == nil || e.ResponseUsage.OutputTokens != 2 {
		t.Errorf("row %s", e.JSON())
	}
}

// FuzzEvents compares the reading of a stream in pieces with a reading of the whole by
// other means.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{
		event(1, 2, 3), completed(`"usage":{"input_tokens":1,"output_tokens":2}`), strings.ReplaceAll(event(1, 2, 3), "\n", "\r\n"),
		"data: {\"type\":\"response.completed\",\ndata: \"response\":{\"model\":\"m\"}}\n\n", "\n\n\n" + event(4, 5, 6) + "data", "data: a\r\r\n\n", ":\n\ndata:\n\n",
	} {
		f.Add([]byte(seed), uint64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		got := observed(upstream.Observe(stream, pieces(rnd, data)...))
		if want := wholeEvents(data); got != want {
			t.Fatalf("in pieces %s, whole %s", got, want)
		}
	})
}

// wholeEvents splits a whole stream and reads the last completed event with encoding/json.
func wholeEvents(data []byte) string {
	var usage *upstream.Usage
	var model *string
	var event [][]byte
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return observed(usage, model)
		}
		line := data[:i]
		data = data[i+1:]
		if string(line) != "" && string(line) != "\r" {
			if v, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r"), []byte("data:")); ok {
				event = append(event, bytes.TrimPrefix(v, []byte(" ")))
			}
			continue
		}
		joined := bytes.Join(event, []byte("\n"))
		event = nil
		u, m := upstream.Observe("application/json", document(joined))
		if !bytes.Contains(joined, []byte("response.completed")) || !isCompleted(joined) {
			continue
		}
		usage, model = u, m
	}
}

// isCompleted reports the type of an event, by names as they are written.
func isCompleted(data []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil || duplicates(data) {
		return false
	}
	var kind string
	return json.Unmarshal(members["type"], &kind) == nil && kind == "response.completed"
}

// document makes a response of the event's.
func document(event []byte) []byte {
	var members map[string]json.RawMessage
	var response map[string]json.RawMessage
	if json.Unmarshal(event, &members) != nil || json.Unmarshal(members["response"], &response) != nil || response == nil {
		return nil
	}
	response["object"] = json.RawMessage(`"response"`)
	out, err := json.Marshal(response)
	if err != nil {
		return nil
	}
	return out
}

// duplicates reports what encoding/json takes and a strict reader does not: a name twice
// in one object, or text that is no UTF-8.
func duplicates(data []byte) bool {
	_, u := upstream.Canonical(data)
	if u != nil {
		return true
	}
	d := json.NewDecoder(bytes.NewReader(data))
	var seen []map[string]bool
	var name []bool
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return strings.Contains(strings.ToLower(fmt.Sprintf("%q", data)), `\\ud`) // perhaps half a surrogate
		}
		if err != nil {
			return true
		}
		top := len(seen) - 1
		if s, ok := tok.(string); ok && top >= 0 && seen[top] != nil && name[top] {
			if seen[top][s] {
				return true
			}
			seen[top][s], name[top] = true, false
			continue
		}
		switch tok {
		case json.Delim('{'):
			seen, name = append(seen, map[string]bool{}), append(name, true)
			continue
		case json.Delim('['):
			seen, name = append(seen, nil), append(name, false)
			continue
		case json.Delim('}'), json.Delim(']'):
			seen, name = seen[:top], name[:top]
		}
		if top := len(seen) - 1; top >= 0 {
			name[top] = true
		}
	}
}
