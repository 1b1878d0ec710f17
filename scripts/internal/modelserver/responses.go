package modelserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// titlePrompt begins the hidden request by which Codex names a new thread. It
// quotes the user's text, so it is recognised before any scenario word.
const titlePrompt = "Generate a concise, single-line task title"

// Prefixes of user messages that the agent itself writes.
var notFromUser = []string{"<environment_context>", "<turn_aborted>", "<user_instructions>", "<user_shell_command>", "<permissions", "# AGENTS"}

var cwdTag = regexp.MustCompile(`<cwd>([^<]+)</cwd>`)

// responsesBody is the part of a Responses request that matters here.
type responsesBody struct {
	Input []struct {
		Type    string          `json:"type"`
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"input"`
}

// read reduces the conversation to what a scenario is told.
func (b responsesBody) read() query {
	var q query
	for _, item := range b.Input {
		switch {
		case item.Type == "message" && item.Role == "user":
			text := contentText(item.Content)
			if m := cwdTag.FindStringSubmatch(text); m != nil && strings.HasPrefix(text, "<environment_context>") {
				q.cwd = m[1]
			}
			if !fromUser(text) {
				continue
			}
			q.text, q.step = strings.TrimSpace(text), 0
		case strings.HasSuffix(item.Type, "_call_output"):
			q.step++
		}
	}
	q.name, q.arg = parseScenario(q.text)
	return q
}

func fromUser(text string) bool {
	for _, prefix := range notFromUser {
		if strings.HasPrefix(text, prefix) {
			return false
		}
	}
	return true
}

// contentText joins the text parts of a message; content may be a plain string.
func contentText(raw json.RawMessage) string {
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return plain
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	s.close(s.open(Request{Kind: Models, Thread: r.Header.Get("Thread-Id")}), true, false)
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{}, "models": []any{}})
}

func (s *Server) compact(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
	s.close(s.open(Request{Kind: Compact, Thread: r.Header.Get("Thread-Id")}), true, false)
	writeJSON(w, http.StatusOK, map[string]any{"output": []any{map[string]any{
		"type": "message", "role": "user",
		"content": []any{map[string]any{"type": "input_text", "text": "Summary of what was said before."}},
	}}})
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	var body responsesBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, openAIError("invalid_request_error", "invalid_json", "the body is not a Responses request"))
		return
	}
	q := body.read()
	kind := Turn
	switch {
	case strings.HasPrefix(q.text, titlePrompt):
		kind = Title
	case strings.Contains(q.text, "CONTEXT CHECKPOINT COMPACTION"), strings.Contains(q.text, "handoff summary"):
		kind = Compact
	}
	if kind != Turn {
		q.name, q.arg = "", ""
	}
	var meta struct {
		TurnID string `json:"turn_id"`
	}
	_ = json.Unmarshal([]byte(r.Header.Get("X-Codex-Turn-Metadata")), &meta) // absent in some versions
	n := s.open(Request{
		Kind: kind, Thread: r.Header.Get("Thread-Id"), TurnID: meta.TurnID,
		Scenario: q.name, Arg: q.arg, Step: q.step, Text: cut(q.text, maxLogged),
	})
	v := &responsesVoice{s: s, ctx: r.Context(), w: w, id: n}
	defer func() { s.close(n, v.ended, r.Context().Err() != nil) }()

	switch kind {
	case Title:
		answer(v, "A task of the rig")
		return
	case Compact:
		answer(v, "Summary of what was said before.")
		return
	}
	if s.meetFault(r.Context(), v) {
		play(v, q)
	}
}

// responsesVoice speaks the streamed Responses wire.
type responsesVoice struct {
	s       *Server
	ctx     context.Context
	w       http.ResponseWriter
	id      int64
	items   int
	started bool
	ended   bool
}

func (v *responsesVoice) refuse(status int, kind, code, message string) {
	if status == http.StatusTooManyRequests {
		v.w.Header().Set("Retry-After", "1")
	}
	writeJSON(v.w, status, openAIError(kind, code, message))
	v.ended = true
}

func (v *responsesVoice) hold(d time.Duration) bool {
	v.start()
	return wait(v.ctx, d)
}

func (v *responsesVoice) pass(gate string) bool {
	v.start()
	return v.s.passGate(v.ctx, gate)
}

func (v *responsesVoice) think(summary string) {
	v.item(map[string]any{
		"type": "reasoning", "id": v.name("rs"), "encrypted_content": "AAAA",
		"summary": []any{map[string]any{"type": "summary_text", "text": summary}},
	})
}

func (v *responsesVoice) say(text string) { v.stream([]string{text}, 0) }

func (v *responsesVoice) stream(pieces []string, pause time.Duration) bool {
	id := v.name("msg")
	v.event("response.output_item.added", map[string]any{"output_index": v.items, "item": message(id)})
	for _, p := range pieces {
		v.delta(id, p)
		if !v.hold(pause) {
			return false
		}
	}
	text := strings.Join(pieces, "")
	v.item(message(id, map[string]any{"type": "output_text", "text": text}))
	return true
}

func (v *responsesVoice) command(c command) {
	args := map[string]any{"cmd": c.line}
	if c.why != "" {
		args["sandbox_permissions"], args["justification"] = "require_escalated", c.why
	}
	if c.prefix != nil {
		args["prefix_rule"] = c.prefix
	}
	if c.dir != "" {
		args["workdir"] = c.dir
	}
	if c.background {
		args["yield_time_ms"] = 1000
	}
	v.call("", "exec_command", args)
}

func (v *responsesVoice) add(path, content string) {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(content, "\n"), "\n") {
		fmt.Fprintf(&b, "+%s\n", line)
	}
	v.patch("Add File: "+path, b.String())
}

func (v *responsesVoice) change(path, from, to string) {
	v.patch("Update File: "+path, "@@\n-"+from+"\n+"+to+"\n")
}

func (v *responsesVoice) patch(head, body string) {
	v.call("", "exec_command", map[string]any{"cmd": "apply_patch <<'EOF'\n*** Begin Patch\n*** " + head + "\n" + body + "*** End Patch\nEOF\n"})
}

func (v *responsesVoice) fetch(address string) {
	v.command(command{line: "curl -s " + address, why: "Need to read a page"})
}

func (v *responsesVoice) ask(questions []question) {
	var list []any
	for _, q := range questions {
		var options []any
		for _, o := range q.options {
			options = append(options, map[string]any{"label": o.label, "description": o.description})
		}
		list = append(list, map[string]any{"id": q.id, "header": q.header, "question": q.text, "options": options})
	}
	v.call("", "request_user_input", map[string]any{"questions": list})
}

func (v *responsesVoice) plan(step int) bool {
	if step > 0 {
		return false
	}
	entry := func(name, status string) map[string]any { return map[string]any{"step": name, "status": status} }
	v.call("", "update_plan", map[string]any{"explanation": "two steps", "plan": []any{entry("one", "in_progress"), entry("two", "pending")}})
	return true
}

func (v *responsesVoice) dialog() string {
	return "Would you like to run the following command?\n\n  $ rm -rf /\n\n› 1. Yes, proceed (y)\n  2. No, and tell Codex what to do differently (esc)\n\nPress enter to confirm or esc to cancel"
}

func (v *responsesVoice) tool(server, name string, args json.RawMessage) { v.call(server, name, args) }

func (v *responsesVoice) call(namespace, name string, args any) {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(fmt.Sprintf("modelserver: arguments of %s: %v", name, err)) // built here, always marshals
	}
	item := map[string]any{"type": "function_call", "name": name, "arguments": string(raw), "call_id": v.name("call")}
	if namespace != "" {
		item["namespace"] = namespace
	}
	v.item(item)
}

func (v *responsesVoice) finish(in, out int) {
	v.event("response.completed", map[string]any{"response": map[string]any{"id": v.response(), "usage": usage(in, out)}})
	v.ended = true
}

func (v *responsesVoice) fail(code, text string) {
	v.event("response.failed", map[string]any{"response": map[string]any{
		"id": v.response(), "status": "failed", "error": map[string]any{"code": code, "message": text},
	}})
	v.ended = true
}

func (v *responsesVoice) incomplete(reason string) {
	v.event("response.incomplete", map[string]any{"response": map[string]any{
		"id": v.response(), "status": "incomplete",
		"incomplete_details": map[string]any{"reason": reason}, "usage": usage(usageIn, usageOut),
	}})
	v.ended = true
}

func (v *responsesVoice) hangUp(beginning string) {
	v.delta(v.name("msg"), beginning)
	v.ended = true
}

// start sends the head of the stream once.
func (v *responsesVoice) start() {
	if v.started {
		return
	}
	v.started = true
	v.w.Header().Set("Content-Type", "text/event-stream")
	v.event("response.created", map[string]any{"response": map[string]any{"id": v.response()}})
}

func (v *responsesVoice) delta(id, text string) {
	v.event("response.output_text.delta", map[string]any{"item_id": id, "output_index": v.items, "content_index": 0, "delta": text})
}

func (v *responsesVoice) item(item map[string]any) {
	v.event("response.output_item.done", map[string]any{"output_index": v.items, "item": item})
	v.items++
}

func (v *responsesVoice) event(kind string, data map[string]any) {
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

func (v *responsesVoice) response() string { return fmt.Sprintf("resp_%d", v.id) }
func (v *responsesVoice) name(prefix string) string {
	return fmt.Sprintf("%s_%d_%d", prefix, v.id, v.items)
}

func message(id string, parts ...any) map[string]any {
	if parts == nil {
		parts = []any{}
	}
	return map[string]any{"type": "message", "role": "assistant", "id": id, "content": parts}
}

func usage(in, out int) map[string]any {
	return map[string]any{
		"input_tokens": in, "input_tokens_details": map[string]any{"cached_tokens": 3},
		"output_tokens": out, "output_tokens_details": map[string]any{"reasoning_tokens": 2},
		"total_tokens": in + out,
	}
}

func openAIError(kind, code, message string) map[string]any {
	return map[string]any{"error": map[string]any{"message": message, "type": kind, "code": code, "param": nil}}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the reader has gone
}
