package agent

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"drawbridge/shared/terminal"
)

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

// Shape is what the pages of an agent have in common beyond their rules.
type Shape struct {
	Reviews bool         // a last page submits the answers of several questions
	Field   terminal.Key // opens the place for an own text; "" where it is open with its option
	MaxText int          // longest own text that the place shows as it is
	Rows    int          // rows of the place, beyond which it shows the end alone; 0: as many as it takes
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

// Reasons of Step.Manual that a caller may want to tell apart.
const (
	ManualMulti  = "several options may be chosen at once"
	ManualSecret = "it asks for a secret"
)

// Step matches a page with the questions of a call. Everything that the page
// shows must be the question's: its place, its text, each option with its
// description, in order.
func (s Shape) Step(shown Prompt, call Call) Step {
	p := shown.Page
	if p == nil {
		return Step{Index: 1, Total: max(1, len(call.Asks)), Manual: "the page cannot be read whole"}
	}
	out := Step{Index: p.Index, Total: p.Total, MaxText: s.MaxText}
	if s.Rows > 0 && p.Columns > 0 { // words break earlier than columns
		out.MaxText = max(1, min(s.MaxText, s.Rows*(p.Columns-8)*4/5))
	}
	manual := func(why string) Step {
		out.Manual = why
		return out
	}
	pages := len(call.Asks)
	if s.Reviews && p.Total > 1 {
		pages++
	}
	switch {
	case shown.Cut:
		return manual("the pane does not show all of it")
	case call.Kind != "questionnaire" || len(call.Asks) == 0:
		return manual("the agent's records hold no such questions")
	case p.Total != pages || p.Index < 1 || p.Index > pages:
		return manual("page and records count the questions differently")
	case p.Review != (p.Index > len(call.Asks)):
		return manual("page and records disagree on what is asked")
	case p.Review:
		out.Kind = Confirm
		if !reviews(p, call.Asks) {
			return manual("the page that submits says more than the answers")
		}
		return out
	}
	out.Ask, out.Kind, out.FreeText = &call.Asks[p.Index-1], SingleSelect, p.FreeText
	switch {
	case !asks(p, *out.Ask):
		out.Ask = nil
		return manual("page and records disagree on what is asked")
	case out.Ask.Secret:
		return manual(ManualSecret)
	case out.Ask.Multi || p.Multi:
		return manual(ManualMulti)
	}
	return out
}

// asks reports whether the page shows exactly the question.
func asks(p *Page, a Ask) bool {
	if inked(p.Text) != inked(a.Text) || p.Answers != len(a.Options) || p.Multi != a.Multi {
		return false
	}
	if p.Header != "" && a.Header != "" && inked(p.Header) != inked(a.Header) {
		return false
	}
	for i, o := range a.Options {
		if inked(p.Options[i]+p.About[i]) != inked(o.Label+o.Description) {
			return false
		}
	}
	return true
}

// reviews reports whether the page that submits shows each question with an answer
// in order and nothing besides, and may only submit or cancel.
func reviews(p *Page, all []Ask) bool {
	_, rest, _ := strings.Cut(p.Text, "\n")
	rest = inked(rest)
	for _, a := range all {
		var ok bool
		if rest, ok = strings.CutPrefix(rest, "●"+inked(a.Text)+"→"); !ok {
			return false
		}
		i := strings.Index(rest, "●")
		if i < 0 {
			i = len(rest)
		}
		if i == 0 {
			return false
		}
		rest = rest[i:]
	}
	return rest == "" && len(p.Options) == 2 && p.Answers == 2
}

// Stroke gives the next input from what the page shows now. It never clears
// anything and never leaves the page's own options.
func (s Shape) Stroke(shown Prompt, step Step, a Answer) (Stroke, error) {
	p := shown.Page
	if p == nil || p.Selected < 0 {
		return Stroke{}, errors.New("the page cannot be read")
	}
	switch a.Kind {
	case SingleSelect, Confirm:
		target := a.Option
		if a.Kind == Confirm {
			target = 0
		}
		switch {
		case p.Review != (a.Kind == Confirm) || target < 0 || target >= p.Answers:
			return Stroke{}, errors.New("the page has no such option")
		case p.Typed != "" || p.Field && s.Field != "":
			return Stroke{}, errors.New("a text of one's own is being typed there")
		}
		if p.Selected == target {
			return Stroke{Key: terminal.Enter, Submits: true}, nil
		}
		return toward(p.Selected, target), nil
	case FreeText:
		text := strings.TrimSpace(a.Text)
		switch {
		case !p.FreeText || p.Own < 0 || p.Multi:
			return Stroke{}, errors.New("the page has no place for a text of one's own")
		case p.Typed != "" && inked(p.Typed) != inked(text):
			return Stroke{}, errors.New("another text stands in the place for an own one")
		case p.Selected != p.Own && (p.Field || p.Typed != ""):
			return Stroke{}, errors.New("the place for an own text is open at another option")
		case p.Typed != "":
			return Stroke{Key: terminal.Enter, Submits: true}, nil
		case p.Selected != p.Own:
			return toward(p.Selected, p.Own), nil
		case p.Field:
			return Stroke{Paste: text}, nil
		case s.Field != "":
			return Stroke{Key: s.Field}, nil
		}
		return Stroke{}, errors.New("the place for an own text is not open")
	}
	return Stroke{}, fmt.Errorf("no way to give a %q answer", a.Kind)
}

func toward(from, to int) Stroke {
	if from < to {
		return Stroke{Key: terminal.Down}
	}
	return Stroke{Key: terminal.Up}
}

// inked is a text without its white space: rows break it anywhere.
func inked(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}
