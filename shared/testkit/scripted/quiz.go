package scripted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// quiz is an open questionnaire of two questions, as Codex's plan mode asks them.
type quiz struct {
	questions []quizQuestion
	at        int
	chosen    int    // highlighted option
	notes     bool   // the field for notes is open
	typed     string // what stands in it
	answers   map[string][]string
	how       string // word behind quiz:
}

type quizQuestion struct {
	ID       string       `json:"id"`
	Header   string       `json:"header"`
	Question string       `json:"question"`
	Secret   bool         `json:"isSecret,omitempty"`
	Options  []quizOption `json:"options"`
}

type quizOption struct {
	Label       string `json:"label"`
	Description string `json:"description"`
}

// quizOf gives the questionnaire that a request asks for, nil if it asks for none.
func quizOf(text string) *quiz {
	how := argument(text, "quiz:")
	if how == "" && !has(text, "quiz") {
		return nil
	}
	return &quiz{
		how: how, answers: map[string][]string{},
		questions: []quizQuestion{
			{ID: "color", Header: "Color", Question: "Which colour should the door be?", Secret: how == "secret",
				Options: []quizOption{{"Red (Recommended)", "A warm colour."}, {"Blue", "A cold colour."}}},
			{ID: "size", Header: "Size", Question: "Which size?", Options: []quizOption{{"Small", "Little."}, {"Large", "Big."}}},
		},
	}
}

// question opens the questionnaire of the request, if it has one.
func (a *agent) question() {
	t := a.turn
	if a.quiz = quizOf(t.text); a.quiz == nil {
		return
	}
	t.calls++
	t.call = fmt.Sprintf("call_%s_%d", t.id[:8], t.calls)
	args, err := json.Marshal(object{"questions": a.quiz.questions})
	if err != nil {
		panic(err)
	}
	a.rec.write("response_item", object{"type": "function_call", "name": "request_user_input", "arguments": string(args), "call_id": t.call})
}

// quizKeys consumes whole keys of an open questionnaire.
func (a *agent) quizKeys(b []byte) []byte {
	for len(b) > 0 && a.quiz != nil {
		q := a.quiz
		last := len(q.questions[q.at].Options) // None of the above
		switch {
		case bytes.HasPrefix(b, []byte(pasteBegin)):
			i := bytes.Index(b, []byte(pasteEnd))
			if i < 0 {
				return b
			}
			q.notes, q.typed = true, q.typed+string(b[len(pasteBegin):i])
			b = b[i+len(pasteEnd):]
		case bytes.HasPrefix(b, []byte("\x1b[A")) || bytes.HasPrefix(b, []byte("\x1bOA")):
			if !q.notes && q.how != "deaf" {
				q.chosen = (q.chosen + last) % (last + 1)
			}
			b = b[3:]
		case bytes.HasPrefix(b, []byte("\x1b[B")) || bytes.HasPrefix(b, []byte("\x1bOB")):
			if !q.notes && q.how != "deaf" {
				q.chosen = (q.chosen + 1) % (last + 1)
			}
			b = b[3:]
		case b[0] == 0x1b && len(b) < len(pasteBegin):
			return b
		case b[0] == '\t':
			q.notes, q.typed = !q.notes, ""
			b = b[1:]
		case b[0] == '\r':
			if q.how != "stuck" {
				a.quizSubmit()
			}
			b = b[1:]
		case b[0] >= '1' && b[0] <= '9' && !q.notes: // chooses and submits in one
			q.chosen = min(int(b[0]-'1'), last)
			a.quizSubmit()
			b = b[1:]
		default:
			b = b[1:]
		}
	}
	return b
}

func (a *agent) quizSubmit() {
	q := a.quiz
	now := q.questions[q.at]
	label := "None of the above"
	if q.chosen < len(now.Options) {
		label = now.Options[q.chosen].Label
	}
	q.answers[now.ID] = []string{label}
	if q.notes && q.typed != "" {
		q.answers[now.ID] = append(q.answers[now.ID], "user_note: "+q.typed)
	}
	q.chosen, q.notes, q.typed = 0, false, ""
	if q.at++; q.at < len(q.questions) {
		return
	}
	answers := object{}
	for id, all := range q.answers {
		answers[id] = object{"answers": all}
	}
	out, err := json.Marshal(object{"answers": answers})
	if err != nil {
		panic(err)
	}
	a.quiz = nil
	a.answerCall(string(out))
}

// quizRows gives the questionnaire as 0.171.0 draws it.
func (a *agent) quizRows() []string {
	q := a.quiz
	now := q.questions[q.at]
	rows := []string{
		"", fmt.Sprintf("  %sQuestion %d/%d (%d unanswered)%s", dim, q.at+1, len(q.questions), len(q.questions)-len(q.answers), plain),
		"  \x1b[38;5;75m" + now.Question + "\x1b[39m", "",
	}
	options := append(append([]quizOption{}, now.Options...), quizOption{"None of the above", "Optionally, add details in notes (tab)"})
	for i, o := range options {
		row := fmt.Sprintf("%d. %-20s%s", i+1, o.Label, o.Description)
		if i == q.chosen {
			rows = append(rows, "  \x1b[1;7m› "+row+strings.Repeat(" ", 10)+plain)
		} else {
			rows = append(rows, "    "+row)
		}
	}
	rows = append(rows, "")
	submit := "answer"
	if q.at == len(q.questions)-1 {
		submit = "all"
	}
	if !q.notes {
		return append(rows, "  "+bold+"tab"+plain+" to add notes"+dim+" | "+plain+bold+"enter"+plain+" to submit "+submit+
			dim+" | "+plain+"←/→ to navigate questions"+dim+" | "+plain+bold+"esc"+plain+" to interrupt")
	}
	field := q.typed
	if field == "" {
		field = dim + "Add notes" + plain
	}
	return append(rows, "  "+bold+"›"+plain+" "+field, "",
		"  "+bold+"tab"+plain+dim+" or "+plain+bold+"esc"+plain+dim+" to clear notes | "+plain+bold+"enter"+plain+" to submit "+submit)
}
