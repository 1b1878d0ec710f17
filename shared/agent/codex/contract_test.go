package codex_test

import (
	"encoding/json"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/testkit/agenttest"
)

func TestContract(t *testing.T) {
	agenttest.Run(t, func(t *testing.T) agenttest.Subject {
		w := newWorld(t, "0.171.0")
		s := &subject{member: w.tui(), thread: w.newThread()}
		s.tell("lock", s.thread.lock())
		return s
	})
}

// subject is a fake Codex that holds its thread itself, for the contract.
type subject struct {
	*member
	thread *thread
	turn   string
	last   agent.Process
}

func (s *subject) Adapter() agent.Adapter { return s.adapter }
func (s *subject) Thread() string         { return s.thread.id }

func (s *subject) Process() agent.Process {
	if s.orders != nil {
		s.last = s.proc()
	}
	return s.last
}

func (s *subject) Prompt(text string) {
	if s.thread.ordinal == 0 {
		s.tell("open", s.thread.path)
		s.thread.meta()
	}
	s.turn = s.thread.started()
	s.thread.user(s.turn, text)
}

func (s *subject) Work() {
	s.thread.write("event_msg", map[string]any{"type": "token_count"})
}

func (s *subject) Call(id, command string) {
	arguments, err := json.Marshal(map[string]any{"cmd": command, "workdir": s.cwd, "sandbox_permissions": "require_escalated", "justification": "x"})
	if err != nil {
		s.Fatal(err)
	}
	s.thread.write("response_item", map[string]any{"type": "function_call", "name": "exec_command", "call_id": id, "arguments": string(arguments)})
}

func (s *subject) Answered(id string) {
	s.thread.write("response_item", map[string]any{"type": "function_call_output", "call_id": id, "output": "done"})
}

func (s *subject) Complete(text string) { s.thread.complete(s.turn, text) }

func (s *subject) Fail(message string) {
	s.thread.write("event_msg", map[string]any{"type": "task_complete", "turn_id": s.turn, "error": map[string]any{"message": message, "codex_error_info": "other"}, "completed_at": s.thread.at().Unix()})
}

func (s *subject) Interrupted() {
	s.thread.write("event_msg", map[string]any{"type": "turn_aborted", "turn_id": s.turn, "reason": "interrupted"})
}

func (s *subject) Part() { s.thread.raw(`{"ordinal":`) }

func (s *subject) Ambiguous() { s.tell("lock", s.newThread().lock()) }

func (s *subject) Kill() { s.end() }
