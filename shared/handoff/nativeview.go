package handoff

import (
	"regexp"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/redact"
)

// Bounds of what is shown of a status screen.
const (
	maxFields  = 24
	maxField   = 512
	maxExcerpt = 4000
)

// NativeStatus is what the agent's own status screen says.
type NativeStatus struct {
	Kind     string        `json:"kind"` // status_card, status_panel
	Fields   []agent.Field `json:"fields"`
	Excerpt  string        `json:"excerpt"`
	Cut      bool          `json:"truncated,omitempty"`
	Redacted bool          `json:"redacted,omitempty"`
}

// NativeSubmission says what was typed.
type NativeSubmission struct {
	Command string `json:"command"`
	Enters  int    `json:"enter_count"`
}

// NativeDismissal says how the agent's panel was closed.
type NativeDismissal struct {
	Key string `json:"key"`
}

// InspectResult is the body of native_inspect and identify_foreground (tools
// §8.5, §8.6). The false members say what did not happen.
type InspectResult struct {
	Status       string           `json:"status"` // observed
	Inspection   string           `json:"inspection"`
	TerminalID   string           `json:"terminal_id"`
	Agent        string           `json:"agent"`
	AgentVersion string           `json:"agent_version"`
	Profile      string           `json:"behavior_profile"`
	NativeThread string           `json:"native_thread_id"`
	Native       NativeStatus     `json:"native_status"`
	Submission   NativeSubmission `json:"terminal_submission"`
	Dismissal    *NativeDismissal `json:"terminal_dismissal,omitempty"`
	Mutation     bool             `json:"store_mutation"`
	Session      bool             `json:"session_created"`
	Turn         bool             `json:"turn_created"`
	Receipt      bool             `json:"receipt_created"`
	Monitor      bool             `json:"monitor_created"`
	Callback     bool             `json:"callback_created"`
	Proof        *ForegroundProof `json:"foreground_proof,omitempty"`
}

// result renders a card for the caller.
func (e *errand) result(card agent.Card) InspectResult {
	kind := "status_card"
	if e.asked.Dismiss != "" {
		kind = "status_panel"
	}
	return InspectResult{
		Status: "observed", Inspection: string(agent.OpStatus), TerminalID: e.s.id(), Agent: string(e.s.proc.Agent),
		AgentVersion: e.s.proc.Version, Profile: e.asked.Profile, NativeThread: card.ThreadID,
		Native: nativeStatus(kind, card), Submission: e.typed, Dismissal: e.closed,
	}
}

// privateLabel matches rows of a status screen that say how to reach or be the
// agent or its owner.
var privateLabel = regexp.MustCompile(`(?i)token$|key|secret|password|credential|address|account|e-?mail|login|organi[sz]ation|socket`)

// nativeStatus bounds a card and withholds what is private in it.
func nativeStatus(kind string, card agent.Card) NativeStatus {
	clean := redact.New(redact.Options{})
	out := NativeStatus{Kind: kind, Fields: []agent.Field{}}
	excerpt := clean.Text(card.Excerpt)
	out.Redacted = excerpt != card.Excerpt
	for i, f := range card.Fields {
		if i == maxFields {
			out.Cut = true
			break
		}
		value := clean.Text(f.Value)
		if privateLabel.MatchString(f.Label) && f.Value != "" {
			value = redact.Word
			excerpt = withhold(excerpt, f.Label)
		}
		out.Redacted = out.Redacted || value != f.Value
		out.Fields = append(out.Fields, agent.Field{Label: clip(f.Label, maxField), Value: clip(value, maxField)})
	}
	out.Excerpt = clip(excerpt, maxExcerpt)
	out.Cut = out.Cut || out.Excerpt != excerpt
	return out
}

// withhold replaces the value in a row "label: value" of an excerpt.
func withhold(excerpt, label string) string {
	rows := strings.Split(excerpt, "\n")
	for i, r := range rows {
		if before, _, ok := strings.Cut(r, label+":"); ok && strings.Trim(before, " │") == "" {
			rows[i] = before + label + ": " + redact.Word
		}
	}
	return strings.Join(rows, "\n")
}
