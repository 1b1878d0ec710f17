package handoff_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// page is a step with two options and a place for an own text.
func page(state, kind string, free bool) handoff.InteractionView {
	return handoff.InteractionView{
		ID: "interaction-1", State: state, Kind: "questionnaire", Step: handoff.InteractionStep{Index: 1, Total: 2},
		Questions: []handoff.QuestionView{{ID: "question-1", Prompt: "Which?", Required: true, ResponseKind: kind,
			Options: []handoff.OptionView{{ID: "option-1", Label: "one"}, {ID: "option-2", Label: "two"}}}},
		Capabilities: handoff.InteractionCapabilities{Respond: state == "pending", FreeText: free},
	}
}

// Proves tools 11.29 for what an answer says: each misfit has its own code, and no
// refusal repeats the answer.
func TestCheckAnswers(t *testing.T) {
	secretly := page("manual_required", "single_select", true)
	secretly.Reason = "it asks for a secret"
	for _, tc := range []struct {
		name string
		page handoff.InteractionView
		in   string // JSON of the answers
		want fault.Code
	}{
		{"an option", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"single_select","selected_option_ids":["option-2"]}]`, ""},
		{"a text", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"of my own"}]`, ""},
		{"a confirmation", page("pending", "confirm", false), `[{"question_id":"question-1","response_kind":"confirm","confirm":true}]`, ""},
		{"nothing", page("pending", "single_select", false), `[]`, fault.MissingAnswer},
		{"two", page("pending", "single_select", false), `[{},{}]`, fault.LimitExceeded},
		{"no question", page("pending", "single_select", false), `[{"response_kind":"free_text","text":"x"}]`, fault.MissingAnswer},
		{"another question", page("pending", "single_select", false), `[{"question_id":"question-2","response_kind":"free_text","text":"x"}]`, fault.UnknownQuestion},
		{"another kind of kind", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"multi_select"}]`, fault.InvalidType},
		{"no member", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"single_select"}]`, fault.MissingAnswer},
		{"no option", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"single_select","selected_option_ids":[]}]`, fault.MissingAnswer},
		{"two options", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"single_select","selected_option_ids":["option-1","option-2"]}]`, fault.LimitExceeded},
		{"an unknown option", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"single_select","selected_option_ids":["option-3"]}]`, fault.UnknownOption},
		{"a member too many", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"x","confirm":true}]`, fault.UnknownField},
		{"a text where none may be", page("pending", "single_select", false), `[{"question_id":"question-1","response_kind":"free_text","text":"hidden-words"}]`, fault.AnswerKindMismatch},
		{"a confirmation of a choice", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"confirm","confirm":true}]`, fault.AnswerKindMismatch},
		{"no confirmation", page("pending", "confirm", false), `[{"question_id":"question-1","response_kind":"confirm","confirm":false}]`, fault.ResponseNotAllowed},
		{"a blank text", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"  "}]`, fault.MissingAnswer},
		{"a line feed", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"hidden\nwords"}]`, fault.ControlCharacter},
		{"a C1 control", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"hidden\u0085words"}]`, fault.ControlCharacter},
		{"a long text", page("pending", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"` + strings.Repeat("x", 4097) + `"}]`, fault.LimitExceeded},
		{"manual", page("manual_required", "single_select", true), `[{"question_id":"question-1","response_kind":"free_text","text":"x"}]`, fault.ResponseNotAllowed},
		{"a secret", secretly, `[{"question_id":"question-1","response_kind":"free_text","text":"hidden-words"}]`, fault.SecretNotAllowed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var in []handoff.AnswerInput
			if err := json.Unmarshal([]byte(tc.in), &in); err != nil {
				t.Fatal(err)
			}
			_, _, err := handoff.CheckAnswers(tc.page, in)
			if got := fault.CodeOf(err); err != nil && got != tc.want || err == nil && tc.want != "" {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "hidden") {
				t.Errorf("the refusal repeats the answer: %v", err)
			}
		})
	}
}

func FuzzCheckAnswers(f *testing.F) {
	f.Add(`[{"question_id":"question-1","response_kind":"single_select","selected_option_ids":["option-2"]}]`, true)
	f.Add(`[{"question_id":"question-1","response_kind":"free_text","text":"of my own"}]`, true)
	f.Add(`[{"question_id":"question-1","response_kind":"free_text","text":"\u001b[201~"}]`, true)
	f.Add(`[{"question_id":"question-1","response_kind":"confirm","confirm":false}]`, false)
	f.Fuzz(func(t *testing.T, doc string, free bool) {
		var in []handoff.AnswerInput
		if json.Unmarshal([]byte(doc), &in) != nil {
			return
		}
		for _, kind := range []string{"single_select", "confirm"} {
			v := page("pending", kind, free)
			answer, option, err := handoff.CheckAnswers(v, in)
			if err != nil {
				if fault.CodeOf(err) == "" {
					t.Errorf("a refusal without a code: %v", err)
				}
				continue
			}
			switch answer.Kind {
			case "single_select":
				if answer.Option < 0 || answer.Option >= len(v.Questions[0].Options) || v.Questions[0].Options[answer.Option].ID != option {
					t.Errorf("option %d %q", answer.Option, option)
				}
			case "free_text":
				if !free || answer.Text == "" || !utf8.ValidString(answer.Text) || strings.ContainsFunc(answer.Text, unicode.IsControl) || utf8.RuneCountInString(answer.Text) > 4096 {
					t.Errorf("text %q", answer.Text)
				}
			case "confirm":
				if kind != "confirm" {
					t.Error("confirmed a choice")
				}
			default:
				t.Errorf("kind %q", answer.Kind)
			}
		}
	})
}
