package scripted

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
)

// recorder writes the transcript: one file, made with the first message.
type recorder struct {
	home, thread, cwd string
	file              *os.File
	ordinal           int
}

type object map[string]any

func (r *recorder) write(kind string, payload object) {
	if r.file == nil {
		r.open()
	}
	line, err := json.Marshal(object{
		"timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "ordinal": r.ordinal, "type": kind, "payload": payload,
	})
	if err != nil {
		panic(err)
	}
	r.ordinal++
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

func (r *recorder) open() {
	now := time.Now().UTC()
	dir := filepath.Join(r.home, "sessions", now.Format("2006"), now.Format("01"), now.Format("02"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	name := "rollout-" + now.Format("2006-01-02T15-04-05") + "-" + r.thread + ".jsonl"
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	r.file = f
	r.write("session_meta", object{
		"session_id": r.thread, "id": r.thread, "timestamp": now.Format(time.RFC3339Nano), "cwd": r.cwd,
		"originator": "codex-tui", "cli_version": Version, "source": "cli", "thread_source": "user",
	})
}

func (r *recorder) began(turn string) {
	r.write("event_msg", object{"type": "task_started", "turn_id": turn, "root_turn_id": turn, "started_at": time.Now().Unix()})
}

func (r *recorder) user(turn, text string) {
	r.write("event_msg", object{
		"type": "item_completed", "thread_id": r.thread, "turn_id": turn,
		"item": object{
			"type": "UserMessage", "id": uuid.Must(uuid.NewV7()).String(), "client_id": uuid.NewString(),
			"content": []object{{"type": "text", "text": text, "text_elements": []string{}}},
		},
	})
}

func (r *recorder) call(id, cwd, command string) {
	args, err := json.Marshal(object{
		"cmd": command, "workdir": cwd, "sandbox_permissions": "require_escalated", "justification": "scripted",
	})
	if err != nil {
		panic(err)
	}
	r.write("response_item", object{"type": "function_call", "name": "exec_command", "arguments": string(args), "call_id": id})
}

func (r *recorder) output(call, text string) {
	r.write("response_item", object{"type": "function_call_output", "call_id": call, "output": text})
}

func (r *recorder) completed(turn, text string) {
	r.write("event_msg", r.end("task_complete", turn, object{"last_agent_message": text}))
}

func (r *recorder) failed(turn, why string) {
	r.write("event_msg", r.end("task_complete", turn, object{
		"last_agent_message": nil, "error": object{"message": why, "codex_error_info": "internal_server_error"},
	}))
}

func (r *recorder) aborted(turn string) {
	r.write("event_msg", r.end("turn_aborted", turn, object{"reason": "interrupted"}))
}

func (r *recorder) end(kind, turn string, more object) object {
	now := time.Now().Unix()
	o := object{"type": kind, "turn_id": turn, "root_turn_id": turn, "started_at": now, "completed_at": now, "duration_ms": 1}
	for k, v := range more {
		o[k] = v
	}
	return o
}
