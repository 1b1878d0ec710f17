package agent

import "drawbridge/shared/terminal"

// Response kinds: what an answer to one step is.
const (
	SingleSelect = "single_select" // one of the step's options
	FreeText     = "free_text"     // a text of one's own
	Confirm      = "confirm"       // a page that only submits what was answered before
)

// Step is one page of a questionnaire: what the screen shows, matched with the
// questions of the agent's own records, which are authoritative.
type Step struct {
	Index, Total int  // of the page, from 1
	Ask          *Ask // the question that the page shows; nil on the page that submits
	Kind         string
	// FreeText says that a text of one's own is possible besides the options.
	FreeText bool
	MaxText  int // longest such text in characters
	// Manual says why only the person at the pane may answer; "" where a step is
	// executable. Ask may be nil then.
	Manual string
}

// Answer is one answer to one Step. Kind decides which other member counts.
type Answer struct {
	Kind   string
	Option int    // index into Ask.Options
	Text   string // one line
}

// Stroke is the next input towards an answer: one key, or one paste.
type Stroke struct {
	Key     terminal.Key
	Paste   string
	Submits bool // after it the page is answered
}

// Answering is an Adapter whose questionnaires may be answered step by step. It
// never types itself: the caller asks for one stroke at a time, each from a fresh
// screen, so that no key is sent on the belief that an earlier one was taken.
type Answering interface {
	Adapter

	// Step tells which question of call a questionnaire shows. The result is
	// Manual wherever the page is not proven to be exactly one of call's questions
	// in a shape whose keys are known.
	Step(version string, shown Prompt, call Call) Step

	// Stroke gives the next input for the answer as long as the page is still the
	// step's. It fails where what is shown leaves no proven way on.
	Stroke(version string, shown Prompt, step Step, answer Answer) (Stroke, error)
}
