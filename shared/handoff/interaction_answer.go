package handoff

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// maxAnswer is the longest text of an answer in characters (tools §8.14).
const maxAnswer = 4096

// RespondInteractionInput answers one step; exactly one of TurnID and WatchID.
type RespondInteractionInput struct {
	TurnID        string        `json:"turn_id,omitzero"`
	WatchID       string        `json:"watch_id,omitzero"`
	InteractionID string        `json:"interaction_id"`
	Answers       []AnswerInput `json:"answers"` // exactly one
}

// AnswerInput is one answer. ResponseKind says which of the others must be there;
// no other one may.
type AnswerInput struct {
	QuestionID   string   `json:"question_id"`
	ResponseKind string   `json:"response_kind"` // single_select, free_text, confirm
	Selected     []string `json:"selected_option_ids,omitzero"`
	Text         *string  `json:"text,omitzero"`
	Confirm      *bool    `json:"confirm,omitzero"`
}

// checkAnswers gives the answer that the input holds to the step that v shows, and
// the id of the chosen option. It looks at nothing but its arguments, and no
// refusal repeats what an answer says.
func checkAnswers(v InteractionView, all []AnswerInput) (answer agent.Answer, option string, err error) {
	refuse := func(code fault.Code, format string, args ...any) (agent.Answer, string, error) {
		return agent.Answer{}, "", fault.New(code, "answer "+v.ID+": "+format, args...).With("interaction_id", v.ID).
			WithHint("call status again and answer exactly what interaction_state shows").Safe()
	}
	switch {
	case len(all) == 0:
		return refuse(fault.MissingAnswer, "there is no answer")
	case len(all) > 1:
		return refuse(fault.LimitExceeded, "a step takes one answer")
	}
	in, q := all[0], v.Questions[0]
	switch {
	case v.Reason == agent.ManualSecret:
		return refuse(fault.SecretNotAllowed, "it asks for a secret, which only the person at the pane gives")
	case v.State == store.InteractionManual || !v.Capabilities.Respond:
		return refuse(fault.ResponseNotAllowed, "only the person at the pane may: %s", v.Reason)
	case in.QuestionID == "":
		return refuse(fault.MissingAnswer, "it names no question")
	case in.QuestionID != q.ID:
		return refuse(fault.UnknownQuestion, "the step has no such question")
	}
	kind := in.ResponseKind
	present := map[string]bool{agent.SingleSelect: in.Selected != nil, agent.FreeText: in.Text != nil, agent.Confirm: in.Confirm != nil}
	if has, known := present[kind]; !known {
		return refuse(fault.InvalidType, "its response_kind is none of single_select, free_text, confirm")
	} else if !has {
		return refuse(fault.MissingAnswer, "a %s answer lacks its member", kind)
	}
	for other, has := range present {
		if has && other != kind {
			return refuse(fault.UnknownField, "a %s answer holds the member of another kind", kind)
		}
	}
	if kind != q.ResponseKind && !(kind == agent.FreeText && v.Capabilities.FreeText) {
		return refuse(fault.AnswerKindMismatch, "the question takes %s", q.ResponseKind)
	}
	answer.Kind = kind
	switch kind {
	case agent.SingleSelect:
		if len(in.Selected) != 1 {
			code := fault.LimitExceeded
			if len(in.Selected) == 0 {
				code = fault.MissingAnswer
			}
			return refuse(code, "exactly one option is chosen")
		}
		for i, o := range q.Options {
			if o.ID == in.Selected[0] {
				answer.Option = i
				return answer, o.ID, nil
			}
		}
		return refuse(fault.UnknownOption, "the question has no such option")
	case agent.Confirm:
		if !*in.Confirm {
			return refuse(fault.ResponseNotAllowed, "not to confirm would throw all answers away; the person at the pane may do that")
		}
		return answer, "", nil
	}
	text := *in.Text
	switch {
	case !utf8.ValidString(text):
		return refuse(fault.InvalidType, "its text is not valid UTF-8")
	case utf8.RuneCountInString(text) > maxAnswer:
		return refuse(fault.LimitExceeded, "its text has more than %d characters", maxAnswer)
	case strings.ContainsFunc(text, unicode.IsControl):
		return refuse(fault.ControlCharacter, "its text holds a control character")
	case strings.TrimSpace(text) == "":
		return refuse(fault.MissingAnswer, "its text is blank")
	}
	answer.Text = strings.TrimSpace(text)
	return answer, "", nil
}

// sealKey is this process's own: a call is repeated only within one bridge.
var sealKey = sync.OnceValue(func() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
})

// sealOf tells one call's content from another's. It cannot be turned back into an
// answer: its key is written nowhere.
func sealOf(in RespondInteractionInput) string {
	mac := hmac.New(sha256.New, sealKey())
	mac.Write(canonical(in))
	return hex.EncodeToString(mac.Sum(nil))
}
