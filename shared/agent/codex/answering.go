package codex

import (
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/strictjson"
	"drawbridge/shared/terminal"
)

// maxOwnText is how many characters of an own text the notes of a question show
// as they are; a longer paste may become a mark that proves only its length.
const maxOwnText = 799

// ownRows is how many rows of the notes are shown; of more, only the last ones are.
const ownRows = 6

// shape is what the questionnaires of plan mode have in common. Digits are never
// pressed: they choose and submit in one.
var shape = agent.Shape{Field: terminal.Tab, MaxText: maxOwnText, Rows: ownRows}

var _ agent.Answering = (*Adapter)(nil)

// Step tells which question of call the prompt shows.
func (a *Adapter) Step(_ string, shown agent.Prompt, call agent.Call) agent.Step {
	return shape.Step(shown, call)
}

// Stroke gives the next input for an answer.
func (a *Adapter) Stroke(_ string, shown agent.Prompt, step agent.Step, answer agent.Answer) (agent.Stroke, error) {
	return shape.Stroke(shown, step, answer)
}

// asksOf reads the questions from the arguments of a request_user_input call; nil
// where they are of another form, which leaves them to the person at the pane.
func asksOf(call rule.Call) []agent.Ask {
	if call.Kind != "questionnaire" {
		return nil
	}
	var args struct {
		Questions []struct {
			ID       string `json:"id"`
			Header   string `json:"header"`
			Question string `json:"question"`
			Secret   bool   `json:"isSecret"`
			Options  []struct {
				Label       string `json:"label"`
				Description string `json:"description"`
			} `json:"options"`
		} `json:"questions"`
	}
	if err := strictjson.Decode([]byte(call.Arguments), &args, strictjson.Limits{AllowUnknown: true}); err != nil {
		return nil
	}
	var out []agent.Ask
	for _, q := range args.Questions {
		ask := agent.Ask{ID: q.ID, Header: q.Header, Text: q.Question, Secret: q.Secret}
		for _, o := range q.Options {
			ask.Options = append(ask.Options, agent.Choice{Label: o.Label, Description: o.Description})
		}
		out = append(out, ask)
	}
	return out
}
