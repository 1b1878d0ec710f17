package catalog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

const pane = "terminal:v2:tmux:codex:work:0.1:4242"

// valid holds arguments that each tool's schema takes.
var valid = map[string]string{
	"list":                   `{}`,
	"watch":                  `{"terminal_id":"` + pane + `"}`,
	"unwatch":                `{"watch_id":"terminal-watch-1"}`,
	"list_resumable_threads": `{"terminal_id":"` + pane + `"}`,
	"native_inspect":         `{"terminal_id":"` + pane + `","inspection":"status"}`,
	"identify_foreground":    `{"terminal_id":"` + pane + `"}`,
	"identify_and_send":      `{"terminal_id":"` + pane + `","request":"go on"}`,
	"new_thread":             `{"terminal_id":"` + pane + `"}`,
	"reconcile_binding":      `{"terminal_id":"` + pane + `","conflicting_session_id":"session-1"}`,
	"resume_thread":          `{"terminal_id":"` + pane + `","native_thread_id":"0198F3A1-0000-7000-8000-0123456789ab"}`,
	"status":                 `{"turn_id":"turn-1"}`,
	"send":                   `{"request":"go on"}`,
	"respond":                `{"turn_id":"turn-1","request":"yes"}`,
	"respond_interaction":    `{"turn_id":"turn-1","interaction_id":"i1","answers":[{"question_id":"q1","response_kind":"confirm","confirm":true}]}`,
	"renew":                  `{"turn_id":"turn-1"}`,
	"retry_callback":         `{"turn_id":"turn-1"}`,
	"cancel":                 `{"turn_id":"turn-1"}`,
	"close":                  `{"turn_id":"turn-1"}`,
	"approve":                `{"turn_id":"turn-1"}`,
}

// Proves tools 11.1: nineteen tools, sorted, each with the reviewed schema byte
// for byte, closed at every object.
func TestCatalog_Tools(t *testing.T) {
	data, err := os.ReadFile("testdata/tool-schemas.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Tools []struct {
			Name        string
			InputSchema json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, tool := range doc.Tools {
		var b bytes.Buffer
		if err := json.Compact(&b, tool.InputSchema); err != nil {
			t.Fatal(err)
		}
		want[tool.Name] = b.String()
	}
	got := map[string]string{}
	var names []string
	for _, tool := range open(t, &fake{}).Tools() {
		got[tool.Name] = string(tool.InputSchema)
		names = append(names, tool.Name)
		var schema any
		if err := json.Unmarshal(tool.InputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		closed(t, tool.Name, schema)
		if len(tool.Description) < 80 || tool.Title == "" {
			t.Errorf("%s: title %q, description of %d bytes", tool.Name, tool.Title, len(tool.Description))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(names) != 19 || !sort.StringsAreSorted(names) {
		t.Errorf("%d names, sorted %t", len(names), sort.StringsAreSorted(names))
	}
}

// closed checks that every schema with type object forbids other members.
func closed(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if v["type"] == "object" && v["additionalProperties"] != false {
			t.Errorf("%s: an object is open", where)
		}
		for name, sub := range v {
			closed(t, where+"/"+name, sub)
		}
	case []any:
		for i, sub := range v {
			closed(t, fmt.Sprintf("%s/%d", where, i), sub)
		}
	}
}

// A tool that is only observed must say so, and one that gives an agent work
// must not.
func TestCatalog_Annotations(t *testing.T) {
	want := map[string]string{
		"approve": "dw", "cancel": "d", "close": "di", "identify_and_send": "dw", "identify_foreground": "",
		"list": "ri", "list_resumable_threads": "ri", "native_inspect": "", "new_thread": "d",
		"reconcile_binding": "d", "renew": "i", "respond": "dw", "respond_interaction": "dw", "resume_thread": "d",
		"retry_callback": "iw", "send": "dw", "status": "ri", "unwatch": "i", "watch": "",
	}
	got := map[string]string{}
	for _, tool := range open(t, &fake{}).Tools() {
		mark := ""
		for _, hint := range []struct {
			set  bool
			name string
		}{{tool.ReadOnly, "r"}, {tool.Destructive, "d"}, {tool.Idempotent, "i"}, {tool.OpenWorld, "w"}} {
			if hint.set {
				mark += hint.name
			}
		}
		got[strings.TrimPrefix(tool.Name, catalog.Prefix)] = mark
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Proves tools 11.2: one extra member is refused before any tool code runs.
func TestCatalog_Accept_ExtraMember(t *testing.T) {
	f := &fake{}
	c := open(t, f)
	for tool, args := range valid {
		if _, err := c.Accept(catalog.Prefix+tool, []byte(args)); err != nil {
			t.Errorf("%s: valid arguments: %v", tool, err)
		}
		for _, extra := range []string{`"callback_route":{}`, `"profile_id":"x"`, `"Turn_id":"turn-1"`, `"":1`} {
			bad := strings.TrimSuffix(args, "}") + "," + extra + "}"
			bad = strings.Replace(bad, "{,", "{", 1)
			if _, err := c.Accept(catalog.Prefix+tool, []byte(bad)); err == nil {
				t.Errorf("%s takes %s", tool, bad)
			}
		}
	}
	if n := f.count(); n != 0 {
		t.Errorf("%d tool executions", n)
	}
}

// Proves tools 11.8: combinations that exclude each other; also types, bounds
// and patterns, which count code points and follow ECMAScript.
func TestCatalog_Accept_Rejects(t *testing.T) {
	answer := func(text string) string {
		data, _ := json.Marshal(text)
		return `{"turn_id":"t","interaction_id":"i1","answers":[{"question_id":"q1","response_kind":"free_text","text":` + string(data) + `}]}`
	}
	tests := []struct{ name, tool, args string }{
		{"two targets", "send", `{"request":"x","session_id":"session-1","terminal_id":"` + pane + `"}`},
		{"turn and request", "send", `{"turn_id":"turn-1","request":"x"}`},
		{"turn and minutes", "send", `{"turn_id":"turn-1","agentTimeoutMinutes":5}`},
		{"neither form", "send", `{}`},
		{"empty request", "send", `{"request":""}`},
		{"other type", "send", `{"request":"x","type":"chat"}`},
		{"zero hard minutes", "send", `{"request":"x","agentHardTimeoutMinutes":0}`},
		{"pattern of terminal", "send", `{"request":"x","terminal_id":"terminal:codex"}`},
		{"blank in terminal", "watch", `{"terminal_id":"terminal:v2:a b"}`},
		{"wide blank in terminal", "watch", `{"terminal_id":"terminal:v2:\u00a0"}`},
		{"status of nothing", "status", `{"trace":true}`},
		{"status of turn and alias", "status", `{"turn_id":"a","conversation_id":"a"}`},
		{"status of turn and watch", "status", `{"turn_id":"a","watch_id":"b"}`},
		{"status of alias and watch", "status", `{"conversation_id":"a","watch_id":"b"}`},
		{"close of turn and alias", "close", `{"turn_id":"a","conversation_id":"a"}`},
		{"close with both expectations", "close", `{"turn_id":"a","expected_message_id":"m","expected_transition_id":"t"}`},
		{"approve both", "approve", `{"turn_id":"a","terminal_id":"` + pane + `"}`},
		{"approve nothing", "approve", `{"decision":"reject"}`},
		{"approve for ever", "approve", `{"turn_id":"a","decision":"approve_always"}`},
		{"interaction of both", "respond_interaction", `{"turn_id":"a","watch_id":"b","interaction_id":"i","answers":[{"question_id":"q","response_kind":"confirm"}]}`},
		{"interaction without answer", "respond_interaction", `{"turn_id":"a","interaction_id":"i","answers":[]}`},
		{"interaction with control", "respond_interaction", answer("a\x1bb")},
		{"interaction with C1", "respond_interaction", answer("a\u0085b")},
		{"interaction too long", "respond_interaction", answer(strings.Repeat("é", 4097))},
		{"uuid", "resume_thread", `{"terminal_id":"` + pane + `","native_thread_id":"0198F3A1"}`},
		{"number as text", "renew", `{"turn_id":"t","minutes":"5"}`},
		{"negative minutes", "renew", `{"turn_id":"t","minutes":-1}`},
		{"huge number", "renew", `{"turn_id":"t","minutes":1e999}`},
		{"null member", "renew", `{"turn_id":null}`},
		{"array", "list", `[]`},
		{"text", "list", `"x"`},
		{"duplicate member", "renew", `{"turn_id":"a","turn_id":"b"}`},
		{"lone surrogate", "renew", `{"turn_id":"\ud800"}`},
	}
	f := &fake{}
	c := open(t, f)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := c.Accept(catalog.Prefix+tt.tool, []byte(tt.args)); err == nil {
				t.Errorf("%s takes %s", tt.tool, tt.args)
			}
		})
	}
	if _, err := c.Accept(catalog.Prefix+"model_options", nil); !errors.Is(err, catalog.ErrUnknownTool) {
		t.Errorf("unknown tool: %v", err)
	}
	if _, err := c.Accept(catalog.Prefix+"respond_interaction", []byte(answer(strings.Repeat("é", 4096)))); err != nil {
		t.Errorf("4,096 code points: %v", err)
	}
	if n := f.count(); n != 0 {
		t.Errorf("%d tool executions", n)
	}
}

// What reaches handoff, and under which names.
func TestCatalog_Run_Inputs(t *testing.T) {
	five := 5.0
	half := 0.5
	word := "é"
	tests := []struct {
		name, tool, args string
		want             any
	}{
		{"list", "list", ``, handoff.ListInput{}},
		{"list null", "list", `null`, handoff.ListInput{}},
		{"list all", "list", `{"agent":"codex","status":"idle","all":true,"noApprovalScan":true,"terminalDebug":true,"idleTimeoutMinutes":5}`,
			handoff.ListInput{Agent: "codex", Status: "idle", All: true, NoApprovalScan: true, TerminalDebug: true, IdleTimeoutMinutes: &five}},
		{"list status alias", "list", `{"status":"waiting_for_openclaw"}`, handoff.ListInput{Status: "waiting_for_controller"}},
		{"status", "status", `{"turn_id":"turn-1","trace":true}`, handoff.StatusInput{TurnID: "turn-1", Trace: true}},
		{"status alias", "status", `{"conversation_id":"turn-1"}`, handoff.StatusInput{TurnID: "turn-1"}},
		{"status raw terminal", "status", `{"conversation_id":"` + pane + `"}`, handoff.StatusInput{TerminalID: pane}},
		{"status watch", "status", `{"watch_id":"terminal-watch-1"}`, handoff.StatusInput{WatchID: "terminal-watch-1"}},
		{"send", "send", `{"request":" hi\n\tthere ","session_id":"session-1","type":"task","agentTimeoutMinutes":0.5,"agentHardTimeoutMinutes":5}`,
			handoff.SendInput{Request: " hi\n\tthere ", SessionID: "session-1", AgentTimeoutMinutes: &half, AgentHardTimeoutMinutes: &five}},
		{"send retry", "send", `{"turn_id":"turn-1"}`, handoff.SendInput{TurnID: "turn-1"}},
		{"watch", "watch", `{"terminal_id":"` + pane + `","hardTimeoutMinutes":5}`, handoff.WatchInput{TerminalID: pane, HardTimeoutMinutes: &five}},
		{"unwatch", "unwatch", `{"watch_id":"terminal-watch-a.b:c"}`, handoff.UnwatchInput{WatchID: "terminal-watch-a.b:c"}},
		{"renew", "renew", `{"conversation_id":"turn-1","minutes":5}`, handoff.RenewInput{TurnID: "turn-1", Minutes: &five}},
		{"retry_callback", "retry_callback", `{"conversation_id":"turn-1"}`, handoff.RetryCallbackInput{TurnID: "turn-1"}},
		{"cancel", "cancel", `{"turn_id":"turn-1","idleTimeoutMinutes":5}`, handoff.CancelInput{TurnID: "turn-1", IdleTimeoutMinutes: &five}},
		{"close", "close", `{"turn_id":"turn-1","reason":"a\nb","expected_message_id":"m"}`,
			handoff.CloseInput{TurnID: "turn-1", Reason: "a b", ExpectedMessageID: "m"}},
		{"interaction", "respond_interaction", `{"turn_id":"turn-1","interaction_id":"i1","answers":[{"question_id":"q1","response_kind":"single_select","selected_option_ids":["o2"]}]}`,
			handoff.RespondInteractionInput{TurnID: "turn-1", InteractionID: "i1", Answers: []handoff.AnswerInput{{QuestionID: "q1", ResponseKind: "single_select", Selected: []string{"o2"}}}}},
		{"interaction of a Watch", "respond_interaction", `{"watch_id":"terminal-watch-1","interaction_id":"i1","answers":[{"question_id":"q1","response_kind":"free_text","text":"é"}]}`,
			handoff.RespondInteractionInput{WatchID: "terminal-watch-1", InteractionID: "i1", Answers: []handoff.AnswerInput{{QuestionID: "q1", ResponseKind: "free_text", Text: &word}}}},
		{"native_inspect", "native_inspect", `{"terminal_id":"` + pane + `","inspection":"status"}`, handoff.NativeInspectInput{TerminalID: pane, Inspection: "status"}},
		{"identify_foreground", "identify_foreground", `{"terminal_id":"` + pane + `"}`, handoff.IdentifyForegroundInput{TerminalID: pane}},
		{"identify_and_send", "identify_and_send", `{"terminal_id":"` + pane + `","request":"go on","agentTimeoutMinutes":5}`,
			handoff.IdentifyAndSendInput{TerminalID: pane, Request: "go on", AgentTimeoutMinutes: &five}},
		{"list_resumable_threads", "list_resumable_threads", `{"terminal_id":"` + pane + `"}`, handoff.ListResumableThreadsInput{TerminalID: pane}},
		{"new_thread", "new_thread", `{"terminal_id":"` + pane + `"}`, handoff.NewThreadInput{TerminalID: pane}},
		{"resume_thread", "resume_thread", valid["resume_thread"], handoff.ResumeThreadInput{TerminalID: pane, NativeThreadID: "0198f3a1-0000-7000-8000-0123456789ab"}},
		{"reconcile_binding", "reconcile_binding", valid["reconcile_binding"], handoff.ReconcileBindingInput{TerminalID: pane, ConflictingSessionID: "session-1"}},
		{"approve", "approve", `{"turn_id":"turn-1"}`, handoff.ApproveInput{TurnID: "turn-1"}},
		{"reject in a pane", "approve", `{"terminal_id":"` + pane + `","decision":"reject"}`, handoff.ApproveInput{TerminalID: pane, Decision: "reject"}},
		{"respond", "respond", `{"turn_id":"turn-1","request":"the second\none"}`, handoff.RespondInput{TurnID: "turn-1", Request: "the second\none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{}
			if res := run(t, open(t, f), tt.tool, tt.args); res.IsError {
				t.Fatalf("refused: %s", res.Text)
			}
			if len(f.calls) != 1 || f.calls[0].Tool != tt.tool {
				t.Fatalf("calls %v", f.calls)
			}
			if diff := cmp.Diff(tt.want, f.calls[0].Input); diff != "" {
				t.Error(diff)
			}
			if c := f.calls[0].Call; c != (handoff.Call{}) && c != (handoff.Call{ToolCallID: "id", Tool: catalog.Prefix + tt.tool}) {
				t.Errorf("call %v", c)
			}
		})
	}
}

// Proves tools 11.13 for send, respond and identify_and_send: commands and shell escapes never reach the tool.
// The other rules that no schema has are refusals too.
func TestCatalog_Run_ArgumentRules(t *testing.T) {
	text := func(s string) string {
		data, err := json.Marshal(map[string]string{"request": s})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	tests := []struct {
		name, tool, args string
		want             fault.Code // "": not refused
	}{
		{"slash", "send", text("/clear"), fault.NativeSlashCommand},
		{"slash behind blanks", "send", text(" \n /status x"), fault.NativeSlashCommand},
		{"slash in capitals", "send", text("/Fork"), fault.NativeSlashCommand},
		{"slash behind a wide blank", "send", text("\u3000/clear"), fault.NativeSlashCommand},
		{"shell", "send", text(" !ls"), fault.NativeSlashCommand},
		{"slash later", "send", text("a /clear"), ""},
		{"blank", "send", text(" \n\t "), fault.InvalidArguments},
		{"too long", "send", text(strings.Repeat("x", 32769)), fault.InvalidArguments},
		{"just fits", "send", text(strings.Repeat("x", 32768)), ""},
		{"bytes count", "send", text(strings.Repeat("é", 16385)), fault.InvalidArguments},
		{"escape", "send", text("a\x1b[31m"), fault.InvalidArguments},
		{"carriage return", "send", text("a\rb"), fault.InvalidArguments},
		{"delete", "send", text("a\x7f"), fault.InvalidArguments},
		{"C1", "send", text("a\u009b"), fault.InvalidArguments},
		{"line feed and tab", "send", text("a\n\tb"), ""},
		{"identify with a slash", "identify_and_send", `{"terminal_id":"` + pane + `","request":"/new"}`, fault.NativeSlashCommand},
		{"identify with a shell", "identify_and_send", `{"terminal_id":"` + pane + `","request":" !ls"}`, fault.NativeSlashCommand},
		{"identify with a slash later", "identify_and_send", `{"terminal_id":"` + pane + `","request":"a /clear"}`, ""},
		{"identify minutes", "identify_and_send", `{"terminal_id":"` + pane + `","request":"x","agentTimeoutMinutes":0}`, fault.InvalidArguments},
		{"reconcile a turn", "reconcile_binding", `{"terminal_id":"` + pane + `","conflicting_session_id":"turn-1"}`, fault.WrongIDKind},
		{"interaction of a pane", "respond_interaction", `{"watch_id":"turn-1","interaction_id":"i","answers":[{"question_id":"q","response_kind":"confirm","confirm":true}]}`, fault.WrongIDKind},
		{"answer with a slash", "respond", `{"turn_id":"turn-1","request":" \n /clear"}`, fault.NativeSlashCommand},
		{"answer to a shell", "respond", `{"turn_id":"turn-1","request":" !ls"}`, fault.NativeSlashCommand},
		{"answer with a slash later", "respond", `{"turn_id":"turn-1","request":"a /clear"}`, ""},
		{"blank answer", "respond", `{"turn_id":"turn-1","request":" "}`, fault.InvalidArguments},
		{"answer to a pane", "respond", `{"turn_id":"` + pane + `","request":"x"}`, fault.WrongIDKind},
		{"approve a short ref", "approve", `{"turn_id":"@0123456789"}`, fault.WrongIDKind},
		{"approve a Watch", "approve", `{"turn_id":"terminal-watch-1"}`, fault.WrongIDKind},
		{"approve nobody", "approve", `{"turn_id":""}`, fault.InvalidArguments},
		{"zero minutes", "send", `{"request":"x","idleTimeoutMinutes":0}`, fault.InvalidArguments},
		{"negative minutes", "send", `{"request":"x","agentTimeoutMinutes":-0.5}`, fault.InvalidArguments},
		{"endless minutes", "send", `{"request":"x","agentHardTimeoutMinutes":1e300}`, fault.InvalidArguments},
		{"list minutes", "list", `{"idleTimeoutMinutes":0}`, fault.InvalidArguments},
		{"cancel minutes", "cancel", `{"turn_id":"turn-1","idleTimeoutMinutes":-1}`, fault.InvalidArguments},
		{"status short ref", "status", `{"turn_id":"@0123456789"}`, fault.WrongIDKind},
		{"status terminal", "status", `{"turn_id":"` + pane + `"}`, fault.WrongIDKind},
		{"status session", "status", `{"turn_id":"session-1"}`, fault.WrongIDKind},
		{"status watch", "status", `{"turn_id":"terminal-watch-1"}`, fault.WrongIDKind},
		{"status watch as turn", "status", `{"watch_id":"turn-1"}`, fault.WrongIDKind},
		{"status broken terminal", "status", `{"conversation_id":"terminal:codex"}`, fault.WrongIDKind},
		{"status empty", "status", `{"turn_id":""}`, fault.InvalidArguments},
		{"renew", "renew", `{"turn_id":"` + pane + `"}`, fault.WrongIDKind},
		{"retry_callback", "retry_callback", `{"conversation_id":"@0123456789"}`, fault.WrongIDKind},
		{"cancel", "cancel", `{"turn_id":"session-1"}`, fault.WrongIDKind},
		{"close", "close", `{"turn_id":"terminal-watch-1"}`, fault.WrongIDKind},
		{"send retry", "send", `{"turn_id":"session-1"}`, fault.WrongIDKind},
		{"send session", "send", `{"request":"x","session_id":"@0123456789"}`, fault.WrongIDKind},
		{"unwatch", "unwatch", `{"watch_id":"turn-1"}`, fault.WrongIDKind},
		{"unwatch other text", "unwatch", `{"watch_id":"1"}`, fault.WrongIDKind},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{}
			res := run(t, open(t, f), tt.tool, tt.args)
			if res.Code != tt.want {
				t.Fatalf("code %q, want %q: %s", res.Code, tt.want, res.Text)
			}
			if tt.want != "" && f.count() != 0 {
				t.Error("the tool was executed")
			}
			if tt.want != "" {
				doc := object(t, res)
				if doc["safe_to_retry"] != true || doc["do_not_retry"] != false || doc["terminal_input"] != "none" {
					t.Errorf("refusal %v", doc)
				}
			}
		})
	}
}

// Every tool reaches handoff, once, under its own name.
func TestCatalog_Run_All(t *testing.T) {
	for tool, args := range valid {
		f := &fake{}
		if res := run(t, open(t, f), tool, args); res.IsError {
			t.Errorf("%s: %s", tool, res.Text)
		}
		if len(f.calls) != 1 || f.calls[0].Tool != tool {
			t.Errorf("%s: calls %v", tool, f.calls)
		}
	}
}

// Whatever arguments come in, Accept and Run neither panic nor answer with
// anything but one JSON object; what Accept takes reaches the tool at most once.
func FuzzAccept(f *testing.F) {
	for tool, args := range valid {
		f.Add(tool, []byte(args))
	}
	f.Add("send", []byte(`{"request":"\u0000","agentTimeoutMinutes":1e308}`))
	f.Add("status", []byte(`{"conversation_id":"terminal:v2:\ud83d\ude00"}`))
	type key struct{}
	c, err := catalog.New(catalog.Options{Handoff: func(ctx context.Context) (catalog.Handoff, error) {
		return ctx.Value(key{}).(*fake), nil
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string, args []byte) {
		h := &fake{out: handoff.Outcome{Body: struct{}{}}}
		req, err := c.Accept(catalog.Prefix+name, args)
		if err != nil {
			return
		}
		res := req.Run(context.WithValue(t.Context(), key{}, h), handoff.Call{ToolCallID: "id", Tool: catalog.Prefix + name})
		object(t, res)
		if h.count() > 1 || (h.count() == 1) == (res.Code != "") {
			t.Errorf("%s(%s): %d executions, %s", name, args, h.count(), res.Text)
		}
	})
}
