package agent_test

import (
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/terminal"
)

var asks = []agent.Ask{
	{ID: "a", Header: "Door", Text: "Which colour\nshould it be?", Options: []agent.Choice{{Label: "Red", Description: "Warm."}, {Label: "Blue", Description: "Cold."}}},
	{ID: "b", Text: "Which size?", Options: []agent.Choice{{Label: "S"}, {Label: "L"}}},
}

func call() agent.Call { return agent.Call{ID: "c", Kind: "questionnaire", Asks: asks} }

func first() agent.Prompt {
	return agent.Prompt{Kind: "questionnaire", Page: &agent.Page{
		Index: 1, Total: 2, Text: "Which colour should\nit be?", Options: []string{"Red", "Blue", "None of the above"},
		About: []string{"Warm.", "Cold.", "see notes"}, Answers: 2, Selected: 0, Own: 2, FreeText: true,
	}}
}

// A page is the question of the records only where all of it is.
func TestShape_Step(t *testing.T) {
	plain := agent.Shape{Field: terminal.Tab, MaxText: 799, Rows: 6}
	if s := plain.Step(first(), call()); s.Manual != "" || s.Ask == nil || s.Ask.ID != "a" || s.Kind != agent.SingleSelect || !s.FreeText {
		t.Fatalf("step %+v", s)
	}
	for _, tc := range []struct {
		name string
		bend func(p *agent.Prompt, c *agent.Call)
	}{
		{"no page", func(p *agent.Prompt, _ *agent.Call) { p.Page = nil }},
		{"cut", func(p *agent.Prompt, _ *agent.Call) { p.Cut = true }},
		{"another tool's dialog", func(_ *agent.Prompt, c *agent.Call) { c.Kind = "mcp_tool" }},
		{"no questions on record", func(_ *agent.Prompt, c *agent.Call) { c.Asks = nil }},
		{"another number of pages", func(p *agent.Prompt, _ *agent.Call) { p.Page.Total = 3 }},
		{"a page beyond", func(p *agent.Prompt, _ *agent.Call) { p.Page.Index = 3 }},
		{"another text", func(p *agent.Prompt, _ *agent.Call) { p.Page.Text += " Really?" }},
		{"another header", func(p *agent.Prompt, _ *agent.Call) { p.Page.Header = "Gate" }},
		{"another label", func(p *agent.Prompt, _ *agent.Call) { p.Page.Options[1] = "Green" }},
		{"another description", func(p *agent.Prompt, _ *agent.Call) { p.Page.About[0] = "Hot." }},
		{"an option more", func(p *agent.Prompt, _ *agent.Call) { p.Page.Answers = 3 }},
		{"the other question", func(p *agent.Prompt, _ *agent.Call) { p.Page.Index = 2 }},
		{"marks on the page alone", func(p *agent.Prompt, _ *agent.Call) { p.Page.Multi = true }},
		{"several answers", func(p *agent.Prompt, c *agent.Call) { p.Page.Multi, c.Asks[0].Multi = true, true }},
		{"a secret", func(_ *agent.Prompt, c *agent.Call) { c.Asks[0].Secret = true }},
		{"a review that nobody expects", func(p *agent.Prompt, _ *agent.Call) { p.Page.Review = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, c := first(), call()
			c.Asks = append([]agent.Ask{}, asks...)
			tc.bend(&p, &c)
			if s := plain.Step(p, c); s.Manual == "" {
				t.Errorf("executable: %+v", s)
			}
		})
	}
}

func review(text string) agent.Prompt {
	return agent.Prompt{Kind: "questionnaire", Page: &agent.Page{
		Index: 3, Total: 3, Text: text, Options: []string{"Submit answers", "Cancel"}, About: []string{"", ""}, Answers: 2, Own: -1, Review: true,
	}}
}

// The page that submits is confirmed only if it says nothing but each question and
// its answer.
func TestShape_Step_Review(t *testing.T) {
	shape := agent.Shape{Reviews: true, MaxText: 799}
	for text, want := range map[string]bool{
		"Review your answers\n\n● Which colour should it be?\n→ Blue\n● Which size?\n→ L":                          true,
		"Review your answers\n\n● Which colour should it\nbe?\n→ Blue, with a very\nlong note\n● Which size?\n→ L": true,
		"Review your answers\n\n● Which colour should it be?\n→ Blue":                                              false,
		"Review your answers\n\n⚠ Not all are answered\n● Which colour should it be?\n→ Blue\n● Which size?\n→ L":  false,
		"Review your answers\n\n● Which size?\n→ L\n● Which colour should it be?\n→ Blue":                          false,
		"Review your answers": false,
	} {
		s := shape.Step(review(text), call())
		if (s.Manual == "") != want || s.Kind != agent.Confirm {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

// Every stroke goes one step towards the answer, none leaves the page's own
// options, and none is given where the page is not as it should be.
func TestShape_Stroke(t *testing.T) {
	notes := agent.Shape{Field: terminal.Tab, MaxText: 799}
	inRow := agent.Shape{Reviews: true, MaxText: 799}
	choose := func(n int) agent.Answer { return agent.Answer{Kind: agent.SingleSelect, Option: n} }
	own := agent.Answer{Kind: agent.FreeText, Text: "of my own"}
	for _, tc := range []struct {
		name   string
		shape  agent.Shape
		bend   func(p *agent.Page)
		answer agent.Answer
		want   agent.Stroke
		err    string
	}{
		{"already there", notes, func(*agent.Page) {}, choose(0), agent.Stroke{Key: terminal.Enter, Submits: true}, ""},
		{"one down", notes, func(*agent.Page) {}, choose(1), agent.Stroke{Key: terminal.Down}, ""},
		{"one up", notes, func(p *agent.Page) { p.Selected = 2 }, choose(0), agent.Stroke{Key: terminal.Up}, ""},
		{"not an answer of the question", notes, func(*agent.Page) {}, choose(2), agent.Stroke{}, "no such option"},
		{"notes are open", notes, func(p *agent.Page) { p.Field = true }, choose(0), agent.Stroke{}, "being typed"},
		{"no highlight", notes, func(p *agent.Page) { p.Selected = -1 }, choose(0), agent.Stroke{}, "cannot be read"},
		{"to the own text", notes, func(*agent.Page) {}, own, agent.Stroke{Key: terminal.Down}, ""},
		{"open its place", notes, func(p *agent.Page) { p.Selected = 2 }, own, agent.Stroke{Key: terminal.Tab}, ""},
		{"paste it", notes, func(p *agent.Page) { p.Selected, p.Field = 2, true }, own, agent.Stroke{Paste: "of my own"}, ""},
		{"submit it", notes, func(p *agent.Page) { p.Selected, p.Field, p.Typed = 2, true, "of my\nown" }, own, agent.Stroke{Key: terminal.Enter, Submits: true}, ""},
		{"another text stands there", notes, func(p *agent.Page) { p.Selected, p.Field, p.Typed = 2, true, "half a thought" }, own, agent.Stroke{}, "another text"},
		{"the place is open elsewhere", notes, func(p *agent.Page) { p.Selected, p.Field = 1, true }, own, agent.Stroke{}, "at another option"},
		{"a place in its row", inRow, func(p *agent.Page) { p.Selected, p.Field = 2, true }, own, agent.Stroke{Paste: "of my own"}, ""},
		{"its row is not open", inRow, func(p *agent.Page) { p.Selected = 2 }, own, agent.Stroke{}, "not open"},
		{"no place at all", inRow, func(p *agent.Page) { p.Own, p.FreeText = -1, false }, own, agent.Stroke{}, "no place"},
		{"confirm a question", inRow, func(*agent.Page) {}, agent.Answer{Kind: agent.Confirm}, agent.Stroke{}, "no such option"},
		{"another kind", inRow, func(*agent.Page) {}, agent.Answer{Kind: "multi_select"}, agent.Stroke{}, "no way"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := first()
			tc.bend(p.Page)
			got, err := tc.shape.Stroke(p, agent.Step{}, tc.answer)
			if got != tc.want || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %+v %v, want %+v %q", got, err, tc.want, tc.err)
			}
		})
	}
	p := review("Review your answers")
	if got, err := inRow.Stroke(p, agent.Step{}, agent.Answer{Kind: agent.Confirm}); err != nil || got != (agent.Stroke{Key: terminal.Enter, Submits: true}) {
		t.Error(got, err)
	}
	p.Page.Selected = 1
	if got, err := inRow.Stroke(p, agent.Step{}, agent.Answer{Kind: agent.Confirm}); err != nil || got != (agent.Stroke{Key: terminal.Up}) {
		t.Error(got, err)
	}
}
