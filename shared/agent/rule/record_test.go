package rule_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent/rule"
)

const rollouts = "../testdata/codex/rollouts"

func transcripts(t testing.TB) map[string][][]byte {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(rollouts, "*.jsonl"))
	if err != nil || len(list) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	out := map[string][][]byte{}
	for _, p := range list {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(p), ".jsonl")] = bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	}
	return out
}

// say is one line of the hand-checked table.
func say(r rule.Record) string {
	out := fmt.Sprintf("%d %s", r.Ordinal, r.Kind)
	switch r.Kind {
	case rule.SessionMeta:
		out += fmt.Sprintf(" %s %s %s", r.Version, r.Source, r.Cwd)
	case rule.UserMessage:
		out += fmt.Sprintf(" %q", r.Text)
	case rule.TurnCompleted:
		if r.Silent {
			return out + " silent"
		}
		out += fmt.Sprintf(" %q", r.Text)
	case rule.TurnFailed:
		out += " " + r.Code
	case rule.TurnAborted:
		out += " " + r.Reason
	case rule.CallBegan:
		out += " " + r.Call.ID + " " + r.Rule
	case rule.CallOutput:
		out += " " + r.Call.ID
	}
	return out
}

func TestRecord_Corpus(t *testing.T) {
	text, err := os.ReadFile("testdata/records.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	name := ""
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] != ' ':
			name = line
		default:
			want[name] = append(want[name], strings.TrimSpace(line))
		}
	}
	set := load(t)
	all := transcripts(t)
	if len(all) != len(want) {
		t.Errorf("%d transcripts, %d in the table", len(all), len(want))
	}
	for name, lines := range all {
		f := file(t, set, "x."+name[:7])
		var got []string
		counted := map[rule.Kind]int{}
		for i, line := range lines {
			r, err := f.Record(line)
			if err != nil {
				t.Fatalf("%s line %d: %v", name, i+1, err)
			}
			if r.Ordinal < 0 || r.At.IsZero() {
				t.Errorf("%s line %d: ordinal %d, at %v", name, i+1, r.Ordinal, r.At)
			}
			if n, ok := f.Ordinal(line); !ok || n != r.Ordinal {
				t.Errorf("%s line %d: ordinal %d %v, want %d", name, i+1, n, ok, r.Ordinal)
			}
			counted[r.Kind]++
			if r.Kind != rule.Other {
				got = append(got, say(r))
			}
			if (r.Call != nil) != (r.Kind == rule.CallBegan || r.Kind == rule.CallOutput) {
				t.Errorf("%s line %d: %s with call %v", name, i+1, r.Kind, r.Call)
			}
			if turn := r.Turn; turn == "" && r.Kind != rule.Other && r.Kind != rule.SessionMeta && r.Kind != rule.Compacted {
				t.Errorf("%s line %d: %s without a turn", name, i+1, r.Kind)
			}
		}
		got = append(got, fmt.Sprintf("of %d", len(lines)))
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(count(t, lines), counted); diff != "" {
			t.Errorf("%s: counted by another way (-want +got)\n%s", name, diff)
		}
	}
}

// count counts the kinds in a way that owes nothing to the rules.
func count(t *testing.T, lines [][]byte) map[rule.Kind]int {
	t.Helper()
	out := map[rule.Kind]int{}
	for _, line := range lines {
		var r struct {
			Type    string
			Payload struct {
				Type  string
				Error *struct{}
				Item  struct{ Type string }
			}
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		kind := rule.Other
		switch what := r.Type + "/" + r.Payload.Type; {
		case r.Type == "session_meta":
			kind = rule.SessionMeta
		case r.Type == "compacted":
			kind = rule.Compacted
		case what == "event_msg/task_started":
			kind = rule.TurnStarted
		case what == "event_msg/task_complete" && r.Payload.Error != nil:
			kind = rule.TurnFailed
		case what == "event_msg/task_complete":
			kind = rule.TurnCompleted
		case what == "event_msg/turn_aborted":
			kind = rule.TurnAborted
		case what == "event_msg/item_completed" && r.Payload.Item.Type == "UserMessage":
			kind = rule.UserMessage
		case what == "response_item/function_call":
			kind = rule.CallBegan
		case what == "response_item/function_call_output":
			kind = rule.CallOutput
		}
		out[kind]++
	}
	return out
}

const (
	head    = `{"timestamp":"2026-11-30T12:57:28.914Z","ordinal":16,"type":"event_msg","payload":`
	callNow = `{"timestamp":"2026-11-30T12:57:28.914Z","ordinal":16,"type":"response_item","payload":`
)

func TestRecord(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 57, 28, 914e6, time.UTC)
	started, ended := time.Unix(1796043448, 0).UTC(), time.Unix(1796043462, 0).UTC()
	rec := func(kind rule.Kind, name string, change func(*rule.Record)) rule.Record {
		r := rule.Record{Kind: kind, Rule: name, At: at, Ordinal: 16}
		if change != nil {
			change(&r)
		}
		return r
	}
	other := rule.Record{Kind: rule.Other, At: at, Ordinal: 16}
	user := func(change func(*rule.Record)) rule.Record {
		return rec(rule.UserMessage, "user-message", func(r *rule.Record) {
			r.Thread, r.Turn, r.ID, r.Text = "aa-bb", "T1", "I1", "hello"
			if change != nil {
				change(r)
			}
		})
	}
	for _, tc := range []struct {
		name, line string
		want       rule.Record
	}{
		{"user message", head + `{"type":"item_completed","thread_id":"AA-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":"hello"}]}}}`, user(nil)},
		{"parts are put together as they are", head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":" a\n"},{"type":"text","text":"\tb "}]}}}`, user(func(r *rule.Record) { r.Text = " a\n\tb " })},
		{"parts that are not text", head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":"hello"},{"type":"image","url":"x"}]}}}`, user(func(r *rule.Record) { r.Attachments = true })},
		{"unknown members", head + `{"new":{"a":[1,2]},"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","x":null,"content":[{"type":"text","text":"hello","y":1}]}},"metadata":{}}`, user(nil)},
		{"a newline and blanks around", " " + head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":"hello"}]}}} ` + "\n", user(nil)},
		{"no turn", head + `{"type":"item_completed","thread_id":"aa-bb","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":"hello"}]}}}`, other},
		{"null thread", head + `{"type":"item_completed","thread_id":null,"turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[]}}}`, other},
		{"content of another type", head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":"hello"}}}`, other},
		{"part of another type", head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"UserMessage","id":"I1","content":[{"type":"text","text":7}]}}}`, other},
		{"another item", head + `{"type":"item_completed","thread_id":"aa-bb","turn_id":"T1","item":{"type":"AgentMessage","id":"I1","content":[]}}}`, other},
		{"the words in a text", head + `{"type":"agent_message","text":"\"task_complete\" \"UserMessage\" \"item_completed\""}}`, other},
		{"completed", head + `{"type":"task_complete","turn_id":"T1","last_agent_message":"done","started_at":1796043448,"completed_at":1796043462}}`, rec(rule.TurnCompleted, "task-complete", func(r *rule.Record) { r.Turn, r.Text, r.Started, r.Ended = "T1", "done", started, ended })},
		{"completed without an answer", head + `{"type":"task_complete","turn_id":"T1","last_agent_message":null,"error":null}}`, rec(rule.TurnCompleted, "task-complete", func(r *rule.Record) { r.Turn, r.Silent = "T1", true })},
		{"failed", head + `{"type":"task_complete","turn_id":"T1","last_agent_message":null,"error":{"message":"no","codex_error_info":{"b":1,"a":{"http_status_code":401}}}}}`, rec(rule.TurnFailed, "task-failed", func(r *rule.Record) {
			r.Turn, r.Silent, r.Error, r.Code = "T1", true, "no", `{"a":{"http_status_code":401},"b":1}`
		})},
		{"failed in a new way", head + `{"type":"task_complete","turn_id":"T1","error":"no"}}`, rec(rule.TurnFailed, "task-failed", func(r *rule.Record) { r.Turn, r.Silent = "T1", true })},
		{"aborted", head + `{"type":"turn_aborted","turn_id":"T1","reason":"interrupted","started_at":"soon"}}`, rec(rule.TurnAborted, "turn-aborted", func(r *rule.Record) { r.Turn, r.Reason = "T1", "interrupted" })},
		{"command", callNow + `{"type":"function_call","name":"exec_command","call_id":"c1","arguments":"{\"cmd\":\"ls\",\"workdir\":\"/w\"}"}}`, rec(rule.CallBegan, "call-command", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "exec_command", Kind: "run_command", Command: "ls", Cwd: "/w", Arguments: `{"cmd":"ls","workdir":"/w"}`}
		})},
		{"escalated", callNow + `{"type":"function_call","name":"exec_command","call_id":"c1","arguments":"{\"cmd\":\"ls\",\"sandbox_permissions\":\"require_escalated\",\"justification\":\"why\"}"}}`, rec(rule.CallBegan, "call-escalated", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "exec_command", Kind: "run_command", Command: "ls", Reason: "why", Escalated: true, Asks: true, Arguments: `{"cmd":"ls","sandbox_permissions":"require_escalated","justification":"why"}`}
		})},
		{"patch", callNow + `{"type":"function_call","name":"exec_command","call_id":"c1","arguments":"{\"cmd\":\"apply_patch <<'EOF'\"}"}}`, rec(rule.CallBegan, "call-patch", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "exec_command", Kind: "edit_files", Command: "apply_patch <<'EOF'", Asks: true, Arguments: `{"cmd":"apply_patch <<'EOF'"}`}
		})},
		{"arguments that are not JSON", callNow + `{"type":"function_call","name":"exec_command","call_id":"c1","arguments":"{oops"}}`, rec(rule.CallBegan, "call-other", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "exec_command", Arguments: "{oops"}
		})},
		{"tool of a server", callNow + `{"type":"function_call","namespace":"mcp__probe","name":"exec_command","call_id":"c1","arguments":"{\"cmd\":\"ls\"}"}}`, rec(rule.CallBegan, "call-mcp", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "exec_command", Namespace: "mcp__probe", Kind: "mcp_tool", Command: "probe.exec_command", Asks: true, Arguments: `{"cmd":"ls"}`}
		})},
		{"questions", callNow + `{"type":"function_call","name":"request_user_input","call_id":"c1","arguments":"{\"questions\":[{\"question\":\"A?\"},{\"question\":\"B?\"}]}"}}`, rec(rule.CallBegan, "call-question", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "request_user_input", Kind: "questionnaire", Command: "A?\nB?", Asks: true, Arguments: `{"questions":[{"question":"A?"},{"question":"B?"}]}`}
		})},
		{"unknown tool", callNow + `{"type":"function_call","name":"new_tool","call_id":"c1","arguments":"{}"}}`, rec(rule.CallBegan, "call-other", func(r *rule.Record) { r.Call = &rule.Call{ID: "c1", Name: "new_tool", Arguments: "{}"} })},
		{"output", callNow + `{"type":"function_call_output","call_id":"c1","output":"ok"}}`, rec(rule.CallOutput, "call-output", func(r *rule.Record) { r.Call, r.Output = &rule.Call{ID: "c1"}, "ok" })},
		{"output in parts", callNow + `{"type":"function_call_output","call_id":"c1","output":[{"type":"text"}]}}`, rec(rule.CallOutput, "call-output", func(r *rule.Record) { r.Call = &rule.Call{ID: "c1"} })},
		{"free-form patch", callNow + `{"type":"custom_tool_call","name":"apply_patch","call_id":"c1","input":"*** Begin Patch"}}`, rec(rule.CallBegan, "call-patch-tool", func(r *rule.Record) {
			r.Call = &rule.Call{ID: "c1", Name: "apply_patch", Kind: "edit_files", Command: "*** Begin Patch", Asks: true, Arguments: "*** Begin Patch"}
		})},
		{"user text of the model's view", callNow + `{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}}`, other},
		{"compaction repeats texts", `{"timestamp":"2026-11-30T12:57:28.914Z","ordinal":16,"type":"compacted","payload":{"message":"x"}}`, rec(rule.Compacted, "compacted", nil)},
		{"unknown type", `{"type":"brand_new"}`, rule.Record{Kind: rule.Other, Ordinal: -1}},
		{"no type", `{}`, rule.Record{Kind: rule.Other, Ordinal: -1}},
		{"odd envelope", `{"timestamp":7,"ordinal":"x","type":["event_msg"],"payload":null}`, rule.Record{Kind: rule.Other, Ordinal: -1}},
		{"negative ordinal", `{"timestamp":"yesterday","ordinal":-4}`, rule.Record{Kind: rule.Other, Ordinal: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range versions {
				got, err := file(t, load(t), "x."+v).Record([]byte(tc.line))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", v, diff)
				}
			}
		})
	}
}

// A line that is torn, doubled or not JSON is an error, never Other.
func TestRecord_BadLine(t *testing.T) {
	f := file(t, load(t), "x.0.171.0")
	good := head + `{"type":"task_started","turn_id":"T1","list":[1,"a",{"b":"\\\"}"}]}}`
	if r, err := f.Record([]byte(good)); err != nil || r.Kind != rule.TurnStarted {
		t.Fatal(r, err)
	}
	for n := range len(good) {
		if _, err := f.Record([]byte(good[:n])); !errors.Is(err, rule.ErrLine) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	for _, line := range []string{"", "\n", "null", "7", `"x"`, "[]", "{", good + good, good + "\n" + good, good + "x", "\x00" + good, strings.Replace(good, "T1", "\xff", 1), `{"type":"a","type":"b"}`, `{"a":1,}`, `{a:1}`} {
		if _, err := f.Record([]byte(line)); !errors.Is(err, rule.ErrLine) {
			t.Errorf("%.60q: %v", line, err)
		}
		if n, ok := f.Ordinal([]byte(line)); ok {
			t.Errorf("%.60q: ordinal %d", line, n)
		}
	}
	secret := `{"payload":"s3cr3t-token`
	if _, err := f.Record([]byte(secret)); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("the error repeats the line: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	set := load(f)
	for name, lines := range transcripts(f) {
		for _, line := range lines {
			if len(line) < 2000 {
				f.Add(line, strings.HasPrefix(name, "0.148.0"))
			}
		}
	}
	for _, s := range []string{`{}`, `{"type":"event_msg","payload":[]}`, `{"\u0074ype":"event_msg"}`, `{"a":"\\","type":"compacted"}`, ` { "type" : "compacted" , "ordinal" : 3e0 } `} {
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, line []byte, old bool) {
		v := "0.171.0"
		if old {
			v = "0.148.0"
		}
		rf, _ := set.For("codex", v)
		r, err := rf.Record(line)
		if err != nil {
			if !errors.Is(err, rule.ErrLine) {
				t.Fatal(err)
			}
			return
		}
		var outer struct {
			Type *json.RawMessage `json:"type"`
		}
		if err := json.Unmarshal(line, &outer); err != nil {
			t.Fatalf("taken, yet not JSON: %v", err)
		}
		if r.Kind == "" || r.Kind == rule.Other && r.Rule != "" || r.Ordinal < -1 {
			t.Fatalf("%+v", r)
		}
		if r.Kind == rule.UserMessage && (r.Thread == "" && !bytes.Contains(line, []byte(`""`)) || r.Call != nil) {
			t.Fatalf("%+v", r)
		}
	})
}
