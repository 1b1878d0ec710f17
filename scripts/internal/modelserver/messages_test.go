package modelserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/modelserver"
)

const reminder = "<system-reminder>\nAs you answer, mind this. SCN=E500\n</system-reminder>"

// said is a user message with the texts as its blocks.
func said(texts ...string) item {
	var content []any
	for _, x := range texts {
		content = append(content, map[string]any{"type": "text", "text": x})
	}
	return item{"role": "user", "content": content}
}

func result(texts ...string) item {
	return item{"role": "user", "content": append([]any{
		map[string]any{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"},
	}, said(texts...)["content"].([]any)...)}
}

func used() item {
	return item{"role": "assistant", "content": []any{map[string]any{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": map[string]any{}}}}
}

// conversation is the body of a request for a turn.
func conversation(messages ...item) map[string]any {
	return map[string]any{
		"model": "claude-test", "stream": true, "messages": messages,
		"system":   []any{map[string]any{"type": "text", "text": "# Environment\n - Primary working directory: /srv/tree\n"}},
		"tools":    []any{map[string]any{"name": "Bash"}, map[string]any{"name": "Write"}},
		"metadata": map[string]any{"user_id": `{"device_id":"d","session_id":"session-1"}`},
	}
}

// reply is an answer of the Messages wire.
type reply struct {
	status int
	kinds  []string
	id     string // of the message
	text   string
	calls  []toolCall
	stop   string
	body   string // of an answer that is not a stream
}

type toolCall struct {
	ID, Name string
	Input    map[string]any
}

func ask(t *testing.T, ctx context.Context, base string, body map[string]any) reply {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/messages?beta=true", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{body: err.Error()}
	}
	defer resp.Body.Close()
	out := reply{status: resp.StatusCode}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		out.body = string(text)
		return out
	}
	input := ""
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type    string
			Message struct{ ID string }
			Block   struct{ Type, ID, Name string } `json:"content_block"`
			Delta   struct {
				Text    string
				Partial string `json:"partial_json"`
				Stop    string `json:"stop_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		out.kinds = append(out.kinds, e.Type)
		out.text += e.Delta.Text
		input += e.Delta.Partial
		switch e.Type {
		case "message_start":
			out.id = e.Message.ID
		case "content_block_start":
			input = ""
			if e.Block.Type == "tool_use" {
				out.calls = append(out.calls, toolCall{ID: e.Block.ID, Name: e.Block.Name})
			}
		case "content_block_stop":
			if n := len(out.calls); n > 0 && input != "" {
				if err := json.Unmarshal([]byte(input), &out.calls[n-1].Input); err != nil {
					t.Fatalf("input %q: %v", input, err)
				}
			}
		case "message_delta":
			out.stop = e.Delta.Stop
		}
	}
	return out
}

var told = []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}

func TestMessages_Answers(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		name, prompt, want, stop string
		kinds                    []string
	}{
		{"no scenario", "hello  there\nfriend", "ECHO hello there friend", "end_turn", told},
		{"say", "please SCN=SAY:two_words now", "two words", "end_turn", told},
		{"reason", "SCN=REASON", "REASON answer", "end_turn", append([]string{
			"message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"}, told[1:]...)},
		{"empty", "SCN=EMPTY", "", "end_turn", []string{"message_start", "message_delta", "message_stop"}},
		{"failed", "SCN=FAILED", "", "", []string{"message_start", "error"}},
		{"incomplete", "SCN=INCOMPLETE", "half of an answer", "max_tokens", told},
		{"cut", "SCN=CUT", "the beginning of an answer that", "", []string{"message_start", "content_block_start", "content_block_delta"}},
		{"stream", "SCN=STREAM:2", "line 1 of the streamed answer\nline 2 of the streamed answer\n", "end_turn",
			append([]string{"message_start", "content_block_start", "content_block_delta"}, told[2:]...)},
		{"slow", "SCN=SLOW:1/at_last", "at last", "end_turn", told},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ask(t, t.Context(), base, conversation(said(reminder, tc.prompt, reminder)))
			if got.status != http.StatusOK || got.text != tc.want || got.stop != tc.stop {
				t.Errorf("status %d, text %q, stop %q; want %q, %q", got.status, got.text, got.stop, tc.want, tc.stop)
			}
			if diff := cmp.Diff(tc.kinds, got.kinds); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if n := s.Turns(tc.prompt); n != 1 {
				t.Errorf("Turns(%q) = %d, want 1", tc.prompt, n)
			}
		})
	}
	if n := s.Threads()["session-1"]; n != 9 {
		t.Errorf("%d requests for session-1, want 9: %v", n, s.Threads())
	}
}

// What the agent adds to a conversation is no message of a person, and a long
// paste is what was pasted.
func TestMessages_Prompt(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		name     string
		messages []item
		want     string
	}{
		{"plain string", []item{{"role": "user", "content": "one"}}, "one"},
		{"paste", []item{said("\n\n<pasted_content id=\"6ac7\">\none\ntwo\n</pasted_content id=\"6ac7\">\n")}, "one\ntwo"},
		{"interruption before", []item{said("old"), said("[Request interrupted by user]"), said("new")}, "new"},
		{"interruption after", []item{said("old"), said("[Request interrupted by user for tool use]")}, "old"},
		{"command", []item{said("<command-name>/clear</command-name>"), said("<local-command-stdout>done</local-command-stdout>"), said("one")}, "one"},
		{"reminder with a result", []item{said("one"), used(), result(reminder)}, "one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ask(t, t.Context(), base, conversation(tc.messages...))
			log := s.Requests()
			if got := log[len(log)-1].Text; got != tc.want {
				t.Errorf("newest message %q, want %q", got, tc.want)
			}
		})
	}
}

func TestMessages_ToolCalls(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		name, prompt string
		calls        []string // names in the first answer
		input        map[string]any
		last         string
		steps        int
	}{
		{"command", "SCN=EXEC:a/../b", []string{"Bash"}, map[string]any{"command": "touch approved-ab.txt", "description": "Need to touch a file"}, "EXEC finished", 1},
		{"two, one after the other", "SCN=TWO", []string{"Bash"}, map[string]any{"command": "touch two-1.txt"}, "TWO finished", 2},
		{"two at once", "SCN=BOTH", []string{"Bash", "Bash"}, map[string]any{"command": "touch both-1.txt"}, "BOTH finished", 2},
		{"background", "SCN=BG:30", []string{"Bash"}, map[string]any{"command": "sleep 30", "run_in_background": true}, "BG left a command running", 1},
		{"write outside", "SCN=PATCH:o", []string{"Write"}, map[string]any{"file_path": "/srv/outside-o.txt", "content": "hello\nworld\n"}, "PATCH finished", 1},
		{"write inside", "SCN=PATCHIN:o", []string{"Write"}, map[string]any{"file_path": "/srv/tree/inside-o.txt"}, "PATCHIN finished", 1},
		{"edit", "SCN=EDIT:o", []string{"Write"}, map[string]any{"file_path": "/srv/tree/edited-o.txt"}, "EDIT finished", 2},
		{"fetch", "SCN=FETCH", []string{"WebFetch"}, map[string]any{"url": "https://docs.example/page"}, "FETCH finished", 1},
		{"mcp", `SCN=MCP:mcp__probe/echo/{"text":"x"}`, []string{"mcp__probe__echo"}, map[string]any{"text": "x"}, "MCP finished", 1},
		{"questions", "SCN=ASK", []string{"AskUserQuestion"}, nil, "ASK finished", 1},
		{"plan without a file", "SCN=PLAN", []string{"ExitPlanMode"}, nil, "PLAN finished", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			messages := []item{said(tc.prompt)}
			got := ask(t, t.Context(), base, conversation(messages...))
			var names []string
			for _, c := range got.calls {
				names = append(names, c.Name)
			}
			if diff := cmp.Diff(tc.calls, names); diff != "" || got.stop != "tool_use" {
				t.Fatalf("calls (-want +got):\n%s\nstop %q", diff, got.stop)
			}
			for k, want := range tc.input {
				if diff := cmp.Diff(want, got.calls[0].Input[k]); diff != "" {
					t.Errorf("input %s (-want +got):\n%s", k, diff)
				}
			}
			messages = append(messages, used())
			for range tc.steps {
				messages = append(messages, result())
			}
			if got := ask(t, t.Context(), base, conversation(messages...)); got.text != tc.last || got.stop != "end_turn" {
				t.Errorf("last answer %q (%s), want %q", got.text, got.stop, tc.last)
			}
		})
	}
}

// A plan is written to the file that plan mode names, then shown.
func TestMessages_Plan(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	first := said("<system-reminder>Plan mode is active. Write the plan to /h/.claude/plans/three-words.md now.</system-reminder>", "SCN=PLAN")
	got := ask(t, t.Context(), base, conversation(first))
	if len(got.calls) != 1 || got.calls[0].Name != "Write" || got.calls[0].Input["file_path"] != "/h/.claude/plans/three-words.md" {
		t.Fatalf("calls %v", got.calls)
	}
	got = ask(t, t.Context(), base, conversation(first, used(), result()))
	if len(got.calls) != 1 || got.calls[0].Name != "ExitPlanMode" {
		t.Fatalf("calls %v", got.calls)
	}
	if got = ask(t, t.Context(), base, conversation(first, used(), result(), used(), result())); got.text != "PLAN finished" {
		t.Errorf("last answer %q", got.text)
	}
}

// Several answers are allowed where the question says so, and nowhere else.
func TestMessages_Questionnaires(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	for scenario, want := range map[string][]string{
		"ASK":     {"Color false 2", "Size false 2"},
		"ASKONE":  {"Size false 2"},
		"ASKMANY": {"Checks true 3", "Branch false 2"},
	} {
		var got []string
		for _, q := range ask(t, t.Context(), base, conversation(said("SCN="+scenario))).calls[0].Input["questions"].([]any) {
			q := q.(map[string]any)
			got = append(got, fmt.Sprint(q["header"], " ", q["multiSelect"], " ", len(q["options"].([]any))))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", scenario, diff)
		}
	}
}

func TestMessages_Refusals(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		scenario string
		status   int
		kind     string
	}{
		{"E400", 400, "invalid_request_error"}, {"E401", 401, "authentication_error"}, {"E403", 403, "permission_error"},
		{"E429", 429, "rate_limit_error"}, {"E500", 500, "api_error"}, {"E529", 529, "overloaded_error"},
	} {
		got := ask(t, t.Context(), base, conversation(said("SCN="+tc.scenario)))
		if got.status != tc.status || !strings.Contains(got.body, `"type":"`+tc.kind+`"`) {
			t.Errorf("%s: status %d, body %s", tc.scenario, got.status, got.body)
		}
	}
}

// A side request offers no tools; it quotes the person's text, which must not run.
func TestMessages_SideRequests(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	title := conversation(said("SCN=E500"))
	delete(title, "tools")
	if got := ask(t, t.Context(), base, title); !strings.Contains(got.text, "A task of the rig") {
		t.Errorf("title %q", got.text)
	}
	title["stream"] = false
	if got := ask(t, t.Context(), base, title); !strings.Contains(got.body, "A task of the rig") || !strings.Contains(got.body, `"stop_reason":"end_turn"`) {
		t.Errorf("title as one document: %s", got.body)
	}
	if got := ask(t, t.Context(), base, conversation(said("SCN=SAY:x"), said("Your task is to create a detailed summary of the conversation so far. SCN=E500"))); !strings.Contains(got.text, "Summary of what was said before.") {
		t.Errorf("summary %q", got.text)
	}
	resp, err := http.Post(base+"/v1/messages/count_tokens?beta=true", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(raw)) != `{"input_tokens":10}` {
		t.Errorf("count_tokens: %s", raw)
	}
	head, err := http.Head(base + "/")
	if err != nil {
		t.Fatal(err)
	}
	head.Body.Close()
	if head.StatusCode != http.StatusOK {
		t.Errorf("HEAD /: %d", head.StatusCode)
	}
	var got []modelserver.Kind
	for _, r := range s.Requests() {
		got = append(got, r.Kind)
	}
	if diff := cmp.Diff([]modelserver.Kind{modelserver.Title, modelserver.Title, modelserver.Compact, modelserver.Count}, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// Ids of messages and calls are never the same twice, in no two servers either:
// an agent that resumes a conversation has messages of both.
func TestMessages_Ids(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		_, base := start(t, modelserver.Options{})
		for range 2 {
			got := ask(t, t.Context(), base, conversation(said("SCN=BOTH")))
			for _, id := range []string{got.id, got.calls[0].ID, got.calls[1].ID} {
				if id == "" || seen[id] {
					t.Errorf("id %q again", id)
				}
				seen[id] = true
			}
		}
	}
}

func TestMessages_FaultAndGone(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	s.Inject(modelserver.Fault{Status: 503})
	if got := ask(t, t.Context(), base, conversation(said("SCN=SAY:fine"))); got.status != 503 || !strings.Contains(got.body, "api_error") {
		t.Errorf("injected: status %d, body %s", got.status, got.body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { ask(t, ctx, base, conversation(said("SCN=GATE:never"))); close(ended) }()
	eventually(t, func() bool { return s.Waiting("never") == 1 })
	cancel()
	<-ended
	eventually(t, func() bool {
		log := s.Requests()
		return s.Waiting("never") == 0 && log[len(log)-1].Gone && !log[len(log)-1].Done
	})
}
