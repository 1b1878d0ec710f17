package modelserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Blocks of user messages that Claude Code itself writes.
var notTyped = []string{"<system-reminder>", "<local-command", "<command-", "[Request interrupted", "Caveat: "}

// summaryPrompt stands in the request by which Claude Code compacts its history.
const summaryPrompt = "create a detailed summary of the conversation"

var (
	workingDirectory = regexp.MustCompile(`(?m)[Ww]orking directory: (/[^\n"\\]*)`)
	planFile         = regexp.MustCompile(`(/[^\s"'` + "`" + `\\]*/plans/[^\s"'` + "`" + `\\]+\.md)`)
	// pasted is how a long paste reaches the model.
	pasted = regexp.MustCompile(`(?s)\A\s*<pasted_content id="[^"]*">\n(.*)\n</pasted_content[^>]*>\s*\z`)
)

// messagesBody is the part of a Messages request that matters here.
type messagesBody struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	System   json.RawMessage `json:"system"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
	Metadata struct {
		UserID string `json:"user_id"`
	} `json:"metadata"`
}

// block is one content block of a message.
type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// blocks reads content, which may be a plain string.
func blocks(raw json.RawMessage) []block {
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return []block{{Type: "text", Text: plain}}
	}
	var list []block
	_ = json.Unmarshal(raw, &list) // anything else has no blocks
	return list
}

// read reduces the conversation to what a scenario is told.
func (b messagesBody) read() query {
	var q query
	all := blocks(b.System)
	for _, m := range b.Messages {
		list := blocks(m.Content)
		all = append(all, list...)
		if m.Role != "user" {
			continue
		}
		for _, x := range list {
			switch {
			case x.Type == "tool_result":
				q.step++
			case x.Type == "text" && typed(x.Text):
				q.text, q.step = unwrap(x.Text), 0
			}
		}
	}
	for _, x := range all {
		if m := workingDirectory.FindStringSubmatch(x.Text); m != nil {
			q.cwd = strings.TrimSpace(m[1])
		}
		if m := planFile.FindStringSubmatch(x.Text); m != nil {
			q.file = m[1]
		}
	}
	q.name, q.arg = parseScenario(q.text)
	return q
}

func typed(text string) bool {
	text = strings.TrimSpace(text)
	for _, prefix := range notTyped {
		if strings.HasPrefix(text, prefix) {
			return false
		}
	}
	return text != ""
}

// unwrap gives what a person pasted.
func unwrap(text string) string {
	if m := pasted.FindStringSubmatch(text); m != nil {
		return strings.TrimSpace(m[1])
	}
	return strings.TrimSpace(text)
}

// session is the conversation's id; older versions put it behind the user's.
func (b messagesBody) session() string {
	var user struct {
		Session string `json:"session_id"`
	}
	if json.Unmarshal([]byte(b.Metadata.UserID), &user) == nil {
		return user.Session
	}
	_, session, _ := strings.Cut(b.Metadata.UserID, "_session_")
	return session
}

// kind tells turns from side requests, which offer no tool that works.
func (b messagesBody) kind(q query) Kind {
	if strings.Contains(q.text, summaryPrompt) {
		return Compact
	}
	for _, t := range b.Tools {
		if t.Name == "Bash" || t.Name == "Read" {
			return Turn
		}
	}
	return Title
}

func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	s.close(s.open(Request{Kind: Count}), true, false)
	writeJSON(w, http.StatusOK, map[string]any{"input_tokens": 10})
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	var body messagesBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, anthropicError("invalid_request_error", "the body is not a Messages request"))
		return
	}
	q := body.read()
	kind := body.kind(q)
	if kind != Turn {
		q.name, q.arg = "", ""
	}
	n := s.open(Request{
		Kind: kind, Thread: body.session(),
		Scenario: q.name, Arg: q.arg, Step: q.step, Text: cut(q.text, maxLogged),
	})
	v := &messagesVoice{s: s, ctx: r.Context(), w: w, id: n, q: q, model: body.Model, whole: !body.Stream}
	defer func() { s.close(n, v.ended, r.Context().Err() != nil) }()

	switch kind {
	case Title:
		answer(v, `{"title":"A task of the rig"}`)
		return
	case Compact:
		answer(v, "<summary>\nSummary of what was said before.\n</summary>")
		return
	}
	if s.meetFault(r.Context(), v) {
		play(v, q)
	}
}

// messagesVoice speaks the Messages wire, streamed or, where the agent wants it,
// as one document.
type messagesVoice struct {
	s       *Server
	ctx     context.Context
	w       http.ResponseWriter
	id      int64
	q       query
	model   string
	whole   bool  // no stream
	content []any // blocks so far
	calls   int   // of tools
	started bool
	ended   bool
}

// Kinds of errors by status, as the wire names them.
var anthropicKinds = map[int]string{
	http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error",
	http.StatusForbidden: "permission_error", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusInternalServerError: "api_error", statusOverloaded: "overloaded_error",
}

func (v *messagesVoice) refuse(status int, _, _, message string) {
	if status == http.StatusTooManyRequests {
		v.w.Header().Set("Retry-After", "1")
	}
	v.w.Header().Set("Request-Id", v.name("req"))
	kind := anthropicKinds[status]
	if kind == "" {
		kind = "api_error"
	}
	writeJSON(v.w, status, anthropicError(kind, message))
	v.ended = true
}

func (v *messagesVoice) hold(d time.Duration) bool {
	v.start()
	return wait(v.ctx, d)
}

func (v *messagesVoice) pass(gate string) bool {
	v.start()
	return v.s.passGate(v.ctx, gate)
}

func (v *messagesVoice) think(summary string) {
	v.block(map[string]any{"type": "thinking", "thinking": "", "signature": ""},
		map[string]any{"type": "thinking", "thinking": summary, "signature": "AAAA"},
		map[string]any{"type": "thinking_delta", "thinking": summary},
		map[string]any{"type": "signature_delta", "signature": "AAAA"})
}

func (v *messagesVoice) say(text string) { v.stream([]string{text}, 0) }

func (v *messagesVoice) stream(pieces []string, pause time.Duration) bool {
	v.event("content_block_start", map[string]any{"index": len(v.content), "content_block": textBlock("")})
	for _, p := range pieces {
		v.event("content_block_delta", map[string]any{"index": len(v.content), "delta": map[string]any{"type": "text_delta", "text": p}})
		if !v.hold(pause) {
			return false
		}
	}
	v.event("content_block_stop", map[string]any{"index": len(v.content)})
	v.content = append(v.content, textBlock(strings.Join(pieces, "")))
	return true
}

func (v *messagesVoice) command(c command) {
	input := map[string]any{"command": c.line, "description": c.why}
	if c.why == "" {
		input["description"] = "A command of the rig"
	}
	if c.background {
		input["run_in_background"] = true
	}
	v.call("Bash", input)
}

func (v *messagesVoice) add(path, content string) {
	v.call("Write", map[string]any{"file_path": v.path(path), "content": content})
}

func (v *messagesVoice) change(path, from, to string) {
	v.call("Edit", map[string]any{"file_path": v.path(path), "old_string": from, "new_string": to})
}

// path makes a path absolute, as these tools want it.
func (v *messagesVoice) path(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(v.q.cwd, path)
}

func (v *messagesVoice) fetch(address string) {
	v.call("WebFetch", map[string]any{"url": address, "prompt": "What does the page say?"})
}

func (v *messagesVoice) ask(questions []question) {
	var list []any
	for _, q := range questions {
		var options []any
		for _, o := range q.options {
			options = append(options, map[string]any{"label": o.label, "description": o.description})
		}
		list = append(list, map[string]any{"question": q.text, "header": q.header, "multiSelect": q.several, "options": options})
	}
	v.call("AskUserQuestion", map[string]any{"questions": list})
}

// plan writes the file that plan mode asks for, then leaves plan mode: without
// the file the question would be a lesser one.
func (v *messagesVoice) plan(step int) bool {
	const text = "# A plan of the rig\n\n1. Open the door.\n2. Close the door.\n"
	if v.q.file == "" {
		step++
	}
	switch step {
	case 0:
		v.call("Write", map[string]any{"file_path": v.q.file, "content": text})
	case 1:
		v.call("ExitPlanMode", map[string]any{"plan": text})
	default:
		return false
	}
	return true
}

// tool calls a tool of an MCP server, whose name already has its prefix.
func (v *messagesVoice) tool(server, name string, args json.RawMessage) {
	v.call(server+"__"+name, args)
}

func (v *messagesVoice) dialog() string {
	return " Bash command\n\n   rm -rf /\n   Remove everything\n\n Do you want to proceed?\n ❯ 1. Yes\n   2. No\n\n Esc to cancel · Tab to amend"
}

func (v *messagesVoice) call(name string, input any) {
	raw, err := json.Marshal(input)
	if err != nil {
		panic(fmt.Sprintf("modelserver: input of %s: %v", name, err)) // built here, always marshals
	}
	id := v.name("toolu")
	v.calls++
	v.block(map[string]any{"type": "tool_use", "id": id, "name": name, "input": map[string]any{}},
		map[string]any{"type": "tool_use", "id": id, "name": name, "input": json.RawMessage(raw)},
		map[string]any{"type": "input_json_delta", "partial_json": string(raw)})
}

// block streams one block: how it begins, and its pieces; whole is all of it.
func (v *messagesVoice) block(begin, whole map[string]any, deltas ...map[string]any) {
	at := len(v.content)
	v.event("content_block_start", map[string]any{"index": at, "content_block": begin})
	for _, d := range deltas {
		v.event("content_block_delta", map[string]any{"index": at, "delta": d})
	}
	v.event("content_block_stop", map[string]any{"index": at})
	v.content = append(v.content, whole)
}

func (v *messagesVoice) finish(in, out int) {
	reason := "end_turn"
	if v.calls > 0 {
		reason = "tool_use"
	}
	v.end(reason, in, out)
}

func (v *messagesVoice) incomplete(reason string) {
	if reason == "max_output_tokens" {
		reason = "max_tokens"
	}
	v.end(reason, usageIn, usageOut)
}

func (v *messagesVoice) end(reason string, in, out int) {
	v.event("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": reason, "stop_sequence": nil},
		"usage": map[string]any{"input_tokens": in, "output_tokens": out},
	})
	v.event("message_stop", map[string]any{})
	if v.whole {
		writeJSON(v.w, http.StatusOK, v.message(v.content, reason, in, out))
	}
	v.ended = true
}

func (v *messagesVoice) fail(_, text string) {
	v.event("error", anthropicError("api_error", text))
	if v.whole {
		writeJSON(v.w, http.StatusInternalServerError, anthropicError("api_error", text))
	}
	v.ended = true
}

func (v *messagesVoice) hangUp(beginning string) {
	v.event("content_block_start", map[string]any{"index": len(v.content), "content_block": textBlock("")})
	v.event("content_block_delta", map[string]any{"index": len(v.content), "delta": map[string]any{"type": "text_delta", "text": beginning}})
	v.ended = true
}

// start sends the head of the stream once.
func (v *messagesVoice) start() {
	if v.started || v.whole {
		return
	}
	v.started = true
	v.w.Header().Set("Content-Type", "text/event-stream")
	v.w.Header().Set("Request-Id", v.name("req"))
	v.event("message_start", map[string]any{"message": v.message([]any{}, nil, usageIn, 1)})
}

// message is the document around the blocks. Its id is its own: records of the
// agent are grouped by it.
func (v *messagesVoice) message(content []any, reason any, in, out int) map[string]any {
	if content == nil {
		content = []any{}
	}
	return map[string]any{
		"id": v.name("msg"), "type": "message", "role": "assistant", "model": v.model, "content": content,
		"stop_reason": reason, "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": in, "output_tokens": out, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
	}
}

func (v *messagesVoice) event(kind string, data map[string]any) {
	if v.whole {
		return
	}
	v.start()
	data["type"] = kind
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("modelserver: event %s: %v", kind, err)) // built here, always marshals
	}
	// A write error means that the client has gone; hold and pass notice that.
	_, _ = fmt.Fprintf(v.w, "event: %s\ndata: %s\n\n", kind, raw)
	if f, ok := v.w.(http.Flusher); ok {
		f.Flush()
	}
}

// name gives an id that no other answer of any server has.
func (v *messagesVoice) name(prefix string) string {
	return fmt.Sprintf("%s_%s_%d_%d", prefix, v.s.stamp, v.id, v.calls)
}

func textBlock(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

func anthropicError(kind, message string) map[string]any {
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": message}}
}
