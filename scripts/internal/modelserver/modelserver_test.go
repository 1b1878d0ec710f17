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
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/scripts/internal/modelserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a Server on a free port until the test ends.
func start(t *testing.T, opts modelserver.Options) (*modelserver.Server, string) {
	t.Helper()
	s := modelserver.New(opts)
	ln, err := modelserver.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s, "http://" + ln.Addr().String()
}

// item is one entry of a conversation.
type item map[string]any

func user(text string) item {
	return item{"type": "message", "role": "user", "content": []any{map[string]any{"type": "input_text", "text": text}}}
}

func output() item {
	return item{"type": "function_call_output", "call_id": "call_1_0", "output": "ok"}
}

// event is one event of a streamed answer.
type event struct {
	kind string
	data map[string]any
}

// post sends a conversation and gives status, events, and the text of an answer
// that is not a stream.
func post(t *testing.T, ctx context.Context, base string, items ...item) (int, []event, string) {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"model": "m", "input": items})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/responses", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Thread-Id", "thread-1")
	req.Header.Set("X-Codex-Turn-Metadata", `{"turn_id":"turn-1"}`)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer resp.Body.Close()
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, nil, string(body)
	}
	var events []event
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var m map[string]any
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatalf("event %q: %v", data, err)
			}
			events = append(events, event{m["type"].(string), m})
		}
	}
	return resp.StatusCode, events, ""
}

func kinds(events []event) []string {
	var out []string
	for _, e := range events {
		out = append(out, strings.TrimPrefix(e.kind, "response."))
	}
	return out
}

// text joins the finished assistant messages.
func text(events []event) string {
	var b strings.Builder
	for _, e := range events {
		it, _ := e.data["item"].(map[string]any)
		if e.kind != "response.output_item.done" || it["type"] != "message" {
			continue
		}
		for _, part := range it["content"].([]any) {
			b.WriteString(part.(map[string]any)["text"].(string))
		}
	}
	return b.String()
}

// call gives the arguments of the one tool call.
func call(t *testing.T, events []event) (name string, args map[string]any) {
	t.Helper()
	for _, e := range events {
		it, _ := e.data["item"].(map[string]any)
		if it["type"] == "function_call" {
			if err := json.Unmarshal([]byte(it["arguments"].(string)), &args); err != nil {
				t.Fatal(err)
			}
			if ns, ok := it["namespace"].(string); ok {
				return ns + "/" + it["name"].(string), args
			}
			return it["name"].(string), args
		}
	}
	t.Fatal("no tool call")
	return "", nil
}

var whole = []string{"created", "output_item.added", "output_text.delta", "output_item.done", "completed"}

func TestServer_Answers(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		name, prompt, want string
		kinds              []string
	}{
		{"no scenario", "hello  there\nfriend", "ECHO hello there friend", whole},
		{"echo", "SCN=ECHO again", "ECHO SCN=ECHO again", whole},
		{"unknown scenario", "SCN=NONSUCH", "ECHO SCN=NONSUCH", whole},
		{"inside a word is no scenario", "xSCN=EMPTY", "ECHO xSCN=EMPTY", whole},
		{"say", "please SCN=SAY:two_words now", "two words", whole},
		{"reason", "SCN=REASON", "REASON answer", append([]string{"created", "output_item.done"}, whole[1:]...)},
		{"empty", "SCN=EMPTY", "", []string{"created", "completed"}},
		{"failed", "SCN=FAILED", "", []string{"created", "failed"}},
		{"incomplete", "SCN=INCOMPLETE", "half of an answer", append(append([]string{}, whole[:4]...), "incomplete")},
		{"cut", "SCN=CUT", "", []string{"created", "output_text.delta"}},
		{"stream", "SCN=STREAM:2", "line 1 of the streamed answer\nline 2 of the streamed answer\n",
			[]string{"created", "output_item.added", "output_text.delta", "output_text.delta", "output_item.done", "completed"}},
		{"slow", "SCN=SLOW:1", "SLOW answer after 1 s", whole},
		{"slow words", "SCN=SLOW:1/at_last", "at last", whole},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, events, _ := post(t, t.Context(), base, user("<environment_context>\n<cwd>/w</cwd>\n</environment_context>"), user(tc.prompt))
			if status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			if diff := cmp.Diff(tc.want, text(events)); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.kinds, kinds(events)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := s.Turns(tc.prompt); got != 1 {
				t.Errorf("Turns(%q) = %d, want 1", tc.prompt, got)
			}
		})
	}
}

func TestServer_ToolCalls(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	environment := user("<environment_context>\n<cwd>/srv/tree</cwd>\n</environment_context>")
	for _, tc := range []struct {
		name, prompt, tool string
		args               map[string]any // members that must be there
		last               string
		steps              int
	}{
		{"escalated", "SCN=EXEC:a/../b", "exec_command", map[string]any{"cmd": "touch approved-ab.txt", "sandbox_permissions": "require_escalated"}, "EXEC finished", 1},
		{"escalated in its directory", "SCN=EXECDIR:a", "exec_command", map[string]any{"cmd": "touch approved-a.txt", "workdir": "/srv/tree"}, "EXECDIR finished", 1},
		{"plain", "SCN=RUN:2", "exec_command", map[string]any{"cmd": "echo begin; sleep 2; echo end"}, "RUN finished", 1},
		{"environment", "SCN=ENV", "exec_command", map[string]any{"cmd": "env"}, "ENV finished", 1},
		{"two", "SCN=TWO", "exec_command", map[string]any{"cmd": "touch two-1.txt"}, "TWO finished", 2},
		{"background", "SCN=BG:30", "exec_command", map[string]any{"cmd": "sleep 30", "yield_time_ms": 1000.0}, "BG left a command running", 1},
		{"patch outside", "SCN=PATCH:o", "exec_command", map[string]any{"cmd": "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: /srv/tree/../outside-o.txt\n+hello\n+world\n*** End Patch\nEOF\n"}, "PATCH finished", 1},
		{"mcp", `SCN=MCP:mcp__probe/echo/{"text":"x"}`, "mcp__probe/echo", map[string]any{"text": "x"}, "MCP finished", 1},
		{"questions", "SCN=ASK", "request_user_input", nil, "ASK finished", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			items := []item{environment, user(tc.prompt)}
			_, events, _ := post(t, t.Context(), base, items...)
			tool, args := call(t, events)
			if tool != tc.tool {
				t.Errorf("tool %q, want %q", tool, tc.tool)
			}
			for k, want := range tc.args {
				if diff := cmp.Diff(want, args[k]); diff != "" {
					t.Errorf("argument %s (-want +got):\n%s", k, diff)
				}
			}
			for range tc.steps {
				items = append(items, output())
			}
			_, events, _ = post(t, t.Context(), base, items...)
			if got := text(events); got != tc.last {
				t.Errorf("last answer %q, want %q", got, tc.last)
			}
		})
	}
}

func TestServer_Refusals(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	for _, tc := range []struct {
		scenario string
		status   int
		code     string
	}{
		{"E400", 400, "bad_request"}, {"E401", 401, "invalid_api_key"}, {"E403", 403, "forbidden"},
		{"E429", 429, "rate_limit_exceeded"}, {"E429Q", 429, "insufficient_quota"}, {"E500", 500, "server_error"},
	} {
		status, _, body := post(t, t.Context(), base, user("SCN="+tc.scenario))
		if status != tc.status || !strings.Contains(body, `"code":"`+tc.code+`"`) {
			t.Errorf("%s: status %d, body %s", tc.scenario, status, body)
		}
	}
}

func TestServer_TitleAndCompaction(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	// The title request quotes the user's text: its scenario must not run.
	_, events, _ := post(t, t.Context(), base, user("Generate a concise, single-line task title for: SCN=E500"))
	if got := text(events); got != "A task of the rig" {
		t.Errorf("title %q", got)
	}
	_, events, _ = post(t, t.Context(), base, user("You are performing a CONTEXT CHECKPOINT COMPACTION. SCN=E500"))
	if got := text(events); got != "Summary of what was said before." {
		t.Errorf("summary %q", got)
	}
	var got []modelserver.Kind
	for _, r := range s.Requests() {
		got = append(got, r.Kind)
	}
	if diff := cmp.Diff([]modelserver.Kind{modelserver.Title, modelserver.Compact}, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if n := len(s.Threads()); n != 0 {
		t.Errorf("%d threads counted, want none: no turn was asked for", n)
	}
}

func TestServer_Gate(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	answered := make(chan string, 1)
	go func() {
		_, events, _ := post(t, context.Background(), base, user("SCN=GATE:one"))
		answered <- text(events)
	}()
	eventually(t, func() bool { return s.Waiting("one") == 1 })
	s.Release("other")
	if n := s.Waiting("one"); n != 1 {
		t.Fatalf("%d wait at the gate after another was released, want 1", n)
	}
	resp, err := http.Post(base+"/control/release?gate=one", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-answered; got != "GATE answer one" {
		t.Errorf("answer %q", got)
	}
	// A gate stays open.
	if _, events, _ := post(t, t.Context(), base, user("SCN=GATE:one")); text(events) != "GATE answer one" {
		t.Errorf("second answer %q", text(events))
	}
}

func TestServer_ClientGone(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { post(t, ctx, base, user("SCN=GATE:never")); close(ended) }()
	eventually(t, func() bool { return s.Waiting("never") == 1 })
	cancel()
	<-ended
	eventually(t, func() bool {
		r := s.Requests()
		return s.Waiting("never") == 0 && len(r) == 1 && r[0].Gone && !r[0].Done
	})
}

func TestServer_Faults(t *testing.T) {
	s, base := start(t, modelserver.Options{})
	resp, err := http.Post(base+"/control/fault?status=503&times=2", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.Inject(modelserver.Fault{Cut: true})
	var got []string
	for range 4 {
		status, events, body := post(t, t.Context(), base, user("SCN=SAY:fine"))
		switch {
		case status == 0:
			got = append(got, "cut")
		case len(events) > 0:
			got = append(got, text(events))
		default:
			got = append(got, fmt.Sprint(status, strings.Contains(body, "injected failure")))
		}
	}
	if diff := cmp.Diff([]string{"503 true", "503 true", "cut", "fine"}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"status=200", "times=x", "delay=1h", "times=-1"} {
		resp, err := http.Post(base+"/control/fault?"+bad, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("fault %s: status %d, want 400", bad, resp.StatusCode)
		}
	}
}

func TestServer_LogKeepsNoHeader(t *testing.T) {
	_, base := start(t, modelserver.Options{})
	req, err := http.NewRequest(http.MethodPost, base+"/v1/responses", strings.NewReader(`{"input":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer canary-0123456789")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	resp, err = http.Get(base + "/control/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "canary") {
		t.Errorf("the log holds a header: %s", body)
	}
}

func TestServer_EndsByItself(t *testing.T) {
	s := modelserver.New(modelserver.Options{Life: 50 * time.Millisecond})
	ln, err := modelserver.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background(), ln); err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := http.Get("http://" + ln.Addr().String() + "/v1/models"); err == nil {
		t.Error("the server still answers after its life")
	}
}

func TestListen_LoopbackOnly(t *testing.T) {
	if ln, err := modelserver.Listen("0.0.0.0:0"); err == nil {
		ln.Close()
		t.Error("listens on all addresses")
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("not so within 5 s")
		}
		time.Sleep(2 * time.Millisecond)
	}
}
