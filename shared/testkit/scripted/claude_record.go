package scripted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"drawbridge/shared/process"
)

// registry is the file by which a Claude Code says what it does. It is rewritten
// in place, as the real one does.
type registry struct {
	path, session, cwd string
	start              uint64
	began              time.Time
}

func register(home, session, cwd string) (*registry, error) {
	info, err := process.Stat(os.Getpid())
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(home, "sessions")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r := &registry{path: filepath.Join(dir, strconv.Itoa(os.Getpid())+".json"), session: session, cwd: cwd, start: info.Start, began: time.Now()}
	r.set("", "")
	return r, nil
}

func (r *registry) set(status, waiting string) {
	o := object{
		"pid": os.Getpid(), "sessionId": r.session, "cwd": r.cwd, "startedAt": r.began.UnixMilli(), "procStart": strconv.FormatUint(r.start, 10),
		"version": ClaudeVersion, "kind": "interactive", "entrypoint": "cli", "updatedAt": time.Now().UnixMilli(),
	}
	if pane := os.Getenv("TMUX_PANE"); pane != "" {
		o["tmux"] = "s:@0." + pane
	}
	if status != "" {
		o["status"], o["statusUpdatedAt"] = status, time.Now().UnixMilli()
	}
	if waiting != "" {
		o["waitingFor"] = waiting
	}
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(r.path, raw, 0o600); err != nil {
		panic(err)
	}
}

func (r *registry) remove() { _ = os.Remove(r.path) }

// transcript writes the records of a session: a chain by parentUuid, in a file
// that is made with the first of them.
type transcript struct {
	home, session, cwd string
	file               *os.File
	tip                string // uuid of the newest record of the chain
	prompts            int
}

// path is where the transcript of a session of this directory belongs.
func (t *transcript) path(session string) string {
	slug := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.cwd)
	return filepath.Join(t.home, "projects", slug, session+".jsonl")
}

// fresh begins another session.
func (t *transcript) fresh(session string) {
	if t.file != nil {
		_ = t.file.Close()
	}
	t.session, t.file, t.tip, t.prompts = session, nil, "", 0
}

// resume goes on behind what the session's file holds.
func (t *transcript) resume() error {
	raw, err := os.ReadFile(t.path(t.session))
	if err != nil {
		return fmt.Errorf("no conversation found with session ID: %s", t.session)
	}
	t.fresh(t.session)
	for line := range bytes.Lines(raw) {
		var r struct {
			UUID string `json:"uuid"`
		}
		if json.Unmarshal(line, &r) == nil && r.UUID != "" {
			t.tip = r.UUID
		}
	}
	return nil
}

// bare writes a record that is no member of the chain.
func (t *transcript) bare(o object) {
	if t.file == nil {
		path := t.path(t.session)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			panic(err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		t.file = f
		t.bare(object{"type": "mode", "mode": "normal"})
		t.bare(object{"type": "permission-mode", "permissionMode": "default"})
	}
	o["sessionId"] = t.session
	line, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	if _, err := t.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// chain writes the next record of the chain and gives its uuid.
func (t *transcript) chain(o object) string {
	id := uuid.NewString()
	o["uuid"], o["parentUuid"] = id, nil
	if t.tip != "" {
		o["parentUuid"] = t.tip
	}
	o["isSidechain"], o["timestamp"] = false, time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	o["userType"], o["entrypoint"], o["cwd"], o["version"] = "external", "cli", t.cwd, ClaudeVersion
	t.bare(o)
	t.tip = id
	return id
}

func (t *transcript) user(prompt, source, text string) {
	t.prompts++
	t.chain(object{
		"type": "user", "promptId": prompt, "message": object{"role": "user", "content": text}, "permissionMode": "default",
		"origin": object{"kind": "human"}, "promptSource": source, "turnOrigin": "human",
		"turnPosition": object{"promptIndex": t.prompts, "turnIndex": t.prompts},
	})
	t.chain(object{"type": "attachment", "attachment": object{"type": "todo"}})
}

func (t *transcript) assistant(id string, stop any, block object, more object) string {
	o := object{"type": "assistant", "message": object{
		"id": id, "type": "message", "role": "assistant", "model": "claude-scripted", "content": []object{block},
		"stop_reason": stop, "stop_sequence": nil, "usage": object{"input_tokens": 1, "output_tokens": 1},
	}}
	for k, v := range more {
		o[k] = v
	}
	return t.chain(o)
}

func messageID() string { return "msg_" + strings.ReplaceAll(uuid.NewString(), "-", "") }

func (t *transcript) completed(text string) {
	t.assistant(messageID(), "end_turn", object{"type": "text", "text": text}, nil)
	t.chain(object{"type": "system", "subtype": "turn_duration", "durationMs": 1, "messageCount": 2, "isMeta": false})
	t.bare(object{"type": "last-prompt", "leafUuid": t.tip})
}

func (t *transcript) partial(text string) {
	t.assistant(messageID(), nil, object{"type": "text", "text": text}, object{"isAbortedMidStream": true})
}

func (t *transcript) failed(text string) {
	t.chain(object{
		"type": "assistant", "isApiErrorMessage": true, "error": "unknown", "apiErrorStatus": 400,
		"message": object{
			"id": uuid.NewString(), "type": "message", "role": "assistant", "model": "<synthetic>",
			"content": []object{{"type": "text", "text": text}}, "stop_reason": "stop_sequence", "stop_sequence": "",
		},
	})
}

// calls writes the calls of one message, a record for each.
func (t *transcript) calls(calls []*toolCall) {
	id := messageID()
	for _, k := range calls {
		k.assistant = t.assistant(id, "tool_use", object{"type": "tool_use", "id": k.id, "name": k.name, "input": k.input}, nil)
	}
}

func (t *transcript) result(prompt string, k *toolCall, accepted bool, output string, result any) {
	block := object{"type": "tool_result", "tool_use_id": k.id, "content": output}
	o := object{
		"type": "user", "promptId": prompt, "message": object{"role": "user", "content": []object{block}},
		"toolUseResult": result, "sourceToolAssistantUUID": k.assistant,
	}
	switch {
	case !accepted:
		block["is_error"] = true
		block["content"] = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
		o["toolUseResult"], o["toolDenialKind"] = "User rejected tool use", "user-rejected"
	case k.name != "AskUserQuestion":
		block["is_error"] = false
	}
	t.chain(o)
}

func (t *transcript) interrupted(prompt, text string) {
	t.chain(object{"type": "user", "promptId": prompt, "message": object{"role": "user", "content": []object{{"type": "text", "text": text}}}})
}

func (t *transcript) queue(operation, text string) {
	t.bare(object{"type": "queue-operation", "operation": operation, "content": text, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)})
}

// local writes what a slash command leaves.
func (t *transcript) local(name string) {
	t.chain(object{"type": "user", "isMeta": true, "message": object{"role": "user", "content": "<local-command-caveat>A command was run.</local-command-caveat>"}})
	t.chain(object{"type": "user", "message": object{"role": "user", "content": "<command-name>/" + name + "</command-name>"}})
	t.chain(object{"type": "system", "subtype": "local_command", "content": "<local-command-stdout></local-command-stdout>", "level": "info", "isMeta": false})
}

func (t *transcript) informational(text string) {
	t.chain(object{"type": "system", "subtype": "informational", "content": text, "level": "info", "isMeta": false})
}
