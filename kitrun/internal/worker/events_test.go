package worker_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
)

const (
	thread = `{"type":"thread.started","thread_id":"t-1"}`
	begun  = `{"type":"turn.started"}`
	done   = `{"type":"turn.completed","usage":{"input_tokens":20,"cached_input_tokens":6,"output_tokens":10}}`
	failed = `{"type":"turn.failed","error":{"message":"no"}}`
)

func message(text string) string {
	return `{"type":"item.completed","item":{"id":"i","type":"agent_message","text":` + quoted(text) + `}}`
}

func quoted(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

// Proves worker 17.22
func TestParseEvents_Refused(t *testing.T) {
	for _, tc := range []struct{ name, in string }{
		{"nothing", ""},
		{"no thread", lines(begun, done)},
		{"two threads", lines(thread, thread, begun, done)},
		{"a thread without an id", lines(`{"type":"thread.started"}`, begun, done)},
		{"a thread with an empty id", lines(`{"type":"thread.started","thread_id":""}`, begun, done)},
		{"a thread with a number", lines(`{"type":"thread.started","thread_id":7}`, begun, done)},
		{"no start", lines(thread, done)},
		{"two turns", lines(thread, begun, done, begun, done)},
		{"two completions", lines(thread, begun, done, done)},
		{"no completion", lines(thread, begun)},
		{"a failed turn", lines(thread, begun, failed)},
		{"a failed and a completed turn", lines(thread, begun, failed, done)},
		{"a line that is no JSON", lines(thread, begun, "oops", done)},
		{"a line that is no object", lines(thread, begun, `["type"]`, done)},
		{"null", lines(thread, begun, "null", done)},
		{"two documents in a line", lines(thread, begun, "{} {}", done)},
		{"a member twice", lines(thread, `{"type":"turn.started","type":"turn.failed"}`, done)},
		{"a cut line at the end", lines(thread, begun) + done[:30]},
		{"invalid UTF-8", lines(thread, begun, "{\"a\":\"\xff\"}", done)},
		{"Type is not type", lines(thread, `{"Type":"turn.started"}`, done)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if sum, err := worker.ParseEvents(strings.NewReader(tc.in)); !fault.Is(err, fault.EventsInvalid) {
				t.Errorf("got %+v, %v", sum, err)
			}
		})
	}
}

// An error item before the turn, or anywhere, makes no difference.
//
// Proves worker 17.22, 17.23
func TestParseEvents(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	word := func(s string) *string { return &s }
	measured := worker.Usage{Complete: true, InputTokens: 20, OutputTokens: 10, CachedInput: number(6)}
	for _, tc := range []struct {
		name, in string
		want     worker.Summary
	}{
		{"plain", lines(thread, begun, message("hi"), done),
			worker.Summary{ThreadID: "t-1", Final: word("hi"), Usage: measured, Events: 4}},
		{"the last message counts", lines(thread, begun, message("one"), message("two"), done),
			worker.Summary{ThreadID: "t-1", Final: word("two"), Usage: measured, Events: 5}},
		{"no message", lines(thread, begun, done), worker.Summary{ThreadID: "t-1", Usage: measured, Events: 3}},
		{"errors on the way", lines(thread, `{"type":"item.completed","item":{"type":"error","message":"metadata not found"}}`, begun,
			`{"type":"error","message":"Reconnecting... 1/5"}`, done), worker.Summary{ThreadID: "t-1", Usage: measured, Events: 5}},
		{"empty lines, CRLF, no end", "\n" + thread + "\r\n\n" + begun + "\n" + done,
			worker.Summary{ThreadID: "t-1", Usage: measured, Events: 3}},
		{"unknown events and odd members", lines(thread, `{"type":7}`, `{"type":"item.completed","item":"x"}`, `{}`, begun, done),
			worker.Summary{ThreadID: "t-1", Usage: measured, Events: 6}},
		{"a message that is no text", lines(thread, begun, `{"type":"item.completed","item":{"type":"agent_message","text":5}}`, done),
			worker.Summary{ThreadID: "t-1", Usage: measured, Events: 4}},
		{"no usage", lines(thread, begun, `{"type":"turn.completed"}`), worker.Summary{ThreadID: "t-1", Events: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := worker.ParseEvents(strings.NewReader(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What Codex says of a failure comes along with the refusal: the last word, as one
// bounded line, and nothing of a turn that completed.
func TestParseEvents_Failure(t *testing.T) {
	trouble := func(text string) string { return `{"type":"error","message":` + quoted(text) + `}` }
	for _, tc := range []struct{ name, in, want string }{
		{"turn.failed", lines(thread, begun, failed), "no"},
		{"after errors", lines(thread, begun, trouble("Reconnecting... 1/1"), failed), "no"},
		{"an error alone", lines(thread, begun, trouble("first"), trouble("second")), "second"},
		{"no message", lines(thread, begun, `{"type":"turn.failed","error":7}`), ""},
		{"before a bad line", lines(thread, begun, failed, "oops"), "no"},
		{"an error item is none", lines(thread, `{"type":"item.completed","item":{"type":"error","message":"metadata"}}`, begun), ""},
		{"control characters", lines(thread, begun, trouble("a\x1b[31m\nb")), "a b"},
		{"long", lines(thread, begun, trouble(strings.Repeat("é", 500))), strings.Repeat("é", 297) + "..."},
		{"completed", lines(thread, begun, trouble("Reconnecting... 1/1"), done), ""},
	} {
		if sum, _ := worker.ParseEvents(strings.NewReader(tc.in)); sum.Failure != tc.want {
			t.Errorf("%s: got %q", tc.name, sum.Failure)
		}
	}
}

// What is not two whole numbers in range is no measurement, and no zero.
//
// Proves worker 17.23
func TestParseEvents_Usage(t *testing.T) {
	for _, tc := range []struct{ usage, want string }{
		{`{"input_tokens":20,"output_tokens":10}`,
			`{"complete":true,"source":"codex-turn-completed","input_tokens":20,"output_tokens":10,"cached_input_tokens":null}`},
		{`{"input_tokens":0,"output_tokens":0,"cached_input_tokens":0,"reasoning_output_tokens":3,"cache_write_input_tokens":4}`,
			`{"complete":true,"source":"codex-turn-completed","input_tokens":0,"output_tokens":0,"cached_input_tokens":0,"reasoning_output_tokens":3,"cache_write_input_tokens":4}`},
		{`{"input_tokens":9007199254740991,"output_tokens":1,"cached_input_tokens":-1}`,
			`{"complete":true,"source":"codex-turn-completed","input_tokens":9007199254740991,"output_tokens":1,"cached_input_tokens":null}`},
		{`{"input_tokens":9007199254740992,"output_tokens":1}`, ``},
		{`{"input_tokens":-1,"output_tokens":1}`, ``},
		{`{"input_tokens":1.5,"output_tokens":1}`, ``},
		{`{"input_tokens":1,"output_tokens":1e3}`, ``},
		{`{"input_tokens":"1","output_tokens":1}`, ``},
		{`{"input_tokens":null,"output_tokens":1}`, ``},
		{`{"input_tokens":1}`, ``},
		{`null`, ``}, {`[]`, ``}, {`7`, ``},
	} {
		t.Run(tc.usage, func(t *testing.T) {
			if tc.want == "" {
				tc.want = `{"complete":false,"source":"unavailable"}`
			}
			sum, err := worker.ParseEvents(strings.NewReader(lines(thread, begun, `{"type":"turn.completed","usage":`+tc.usage+`}`)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(sum.Usage)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A line of 10 MiB is a line like any other.
func TestParseEvents_LongLine(t *testing.T) {
	big := strings.Repeat("x", 10<<20)
	sum, err := worker.ParseEvents(strings.NewReader(lines(thread, begun, message(big), done)))
	if err != nil {
		t.Fatal(err)
	}
	if *sum.Final != big {
		t.Errorf("the message has %d bytes", len(*sum.Final))
	}
}

func TestParseEvents_TooMany(t *testing.T) {
	in := thread + "\n" + begun + "\n" + strings.Repeat("{}\n", 200_000) + done
	if _, err := worker.ParseEvents(strings.NewReader(in)); !fault.Is(err, fault.EventsInvalid) {
		t.Errorf("got %v", err)
	}
}

// The records that the real Codex left, as they are in testdata.
func TestParseEvents_Recorded(t *testing.T) {
	files, err := filepath.Glob("testdata/codex-*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d records, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			sum, err := worker.ParseEvents(f)
			if bad := strings.Contains(name, "refused"); bad != (err != nil) {
				t.Fatalf("got %+v, %v", sum, err)
			}
			if err == nil && (sum.ThreadID == "" || !sum.Usage.Complete || (sum.Final == nil) != strings.Contains(name, "empty")) {
				t.Errorf("got %+v", sum)
			}
		})
	}
}

func FuzzParseEvents(f *testing.F) {
	for _, seed := range []string{
		"", completeTurn, lines(thread, begun, failed), lines(thread, begun, message("a"), done), "{}\n[]\n", thread + "\r\n" + begun + done,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		sum, err := worker.ParseEvents(strings.NewReader(string(in)))
		if err != nil {
			if !fault.Is(err, fault.EventsInvalid) {
				t.Errorf("an error without its code: %v", err)
			}
			return
		}
		if sum.ThreadID == "" || sum.Events < 3 || sum.Usage.InputTokens < 0 || !sum.Usage.Complete && sum.Usage.InputTokens != 0 {
			t.Errorf("got %+v", sum)
		}
		if _, err := json.Marshal(sum); err != nil {
			t.Error(err)
		}
	})
}
