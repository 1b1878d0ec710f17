package claude_test

import (
	"testing"

	"github.com/google/uuid"

	"drawbridge/shared/agent"
	"drawbridge/shared/testkit/agenttest"
)

func TestContract(t *testing.T) {
	agenttest.Run(t, func(t *testing.T) agenttest.Subject {
		m := newWorld(t).start()
		m.register("idle", nil)
		return &subject{transcript: m.transcript()}
	})
}

// subject is a fake Claude Code for the contract.
type subject struct {
	*transcript
	last agent.Process
}

func (s *subject) Adapter() agent.Adapter { return s.adapter }
func (s *subject) Thread() string         { return s.session }

func (s *subject) Process() agent.Process {
	if s.hold != nil {
		s.last = s.find()
	}
	return s.last
}

func (s *subject) Prompt(text string) {
	s.register("busy", nil)
	s.prompt(text, nil)
}

func (s *subject) Work() {
	s.record("attachment", map[string]any{"attachment": map[string]any{"type": "date"}})
}

func (s *subject) Call(id, command string) {
	s.says("tool_use", words("I ask."), use(id, "Bash", map[string]any{"command": command, "description": "x"}))
	s.register("waiting", map[string]any{"waitingFor": "permission prompt"})
}

func (s *subject) Answered(id string) {
	s.register("busy", nil)
	s.result(id)
}

func (s *subject) Complete(text string) {
	s.says("end_turn", words(text))
	s.closes()
	s.register("idle", nil)
}

func (s *subject) Fail(message string) {
	s.record("assistant", map[string]any{"isApiErrorMessage": true, "error": "unknown", "message": map[string]any{
		"id": uuid.NewString(), "role": "assistant", "model": "<synthetic>", "stop_reason": "stop_sequence", "content": []any{words(message)},
	}})
	s.register("idle", nil)
}

func (s *subject) Interrupted() {
	s.interrupted()
	s.register("idle", nil)
}

func (s *subject) Part() { s.raw(`{"type":"assistant","uuid":"x","parentUuid":"` + s.tip + `"`) }

func (s *subject) Ambiguous() {
	other := s.world.start()
	other.session = s.session
	other.register("idle", map[string]any{"tmux": nil})
}

func (s *subject) Kill() { s.end() }
