package store

import (
	"context"
	"encoding/json"

	"drawbridge/shared/fault"
)

// messageEvent is the event of a dispatched message. A task's text is its Turn's
// request; an answer's stands in its event alone.
type messageEvent struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`
}

var eventOfMessage = define(`
SELECT detail_json
FROM turn_events
WHERE turn_id = :turn AND message_id = :message AND event = 'message'
ORDER BY seq DESC
LIMIT 1`)

// MessageText gives what a dispatched message asked of the agent.
func (s *Store) MessageText(ctx context.Context, d Dispatch) (string, error) {
	if d.Kind != KindAnswer {
		turn, err := s.Turn(ctx, d.TurnID)
		return turn.RequestText, err
	}
	detail, ok, err := first(pool{ctx, s.rdb}, scanString, eventOfMessage, "turn", d.TurnID, "message", d.MessageID)
	if err != nil {
		return "", storeError("read message", err)
	}
	var ev messageEvent
	if !ok || json.Unmarshal([]byte(detail), &ev) != nil || ev.Text == "" {
		return "", fault.New(fault.NotFound, "read message %s: its text is not stored", d.MessageID)
	}
	return ev.Text, nil
}

// detail is the event of the message itself.
func (d NewDispatch) detail() ([]byte, error) {
	ev := messageEvent{Type: d.Kind}
	if d.Kind == KindAnswer {
		ev.Text = d.RequestText
	}
	return json.Marshal(ev)
}
