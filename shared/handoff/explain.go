package handoff

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Explanation says what one screen is taken for and why: the rule that decided,
// the rows that it stands on, what may be typed now and what forbids the rest.
// It is for the person at the machine, who sees the pane anyway, and it holds
// text of the screen: no tool answers it.
type Explanation struct {
	Source   string `json:"source"` // live, file
	Terminal string `json:"terminal_id,omitempty"`
	ShortRef string `json:"short_ref,omitempty"`
	Agent    string `json:"agent"`
	Version  string `json:"agent_version"`
	Class    string `json:"version_class"`
	RuleFile string `json:"rule_file,omitempty"` // filled in by who loaded the rules

	Pane    *PaneFacts    `json:"pane,omitempty"`
	Records *RecordsState `json:"records,omitempty"`

	State    string         `json:"state"`
	Rule     string         `json:"rule"`
	Stable   bool           `json:"stable"` // two equal captures; false for a screen that moves
	Evidence []Proof        `json:"evidence"`
	Composer *ComposerFacts `json:"composer,omitempty"`
	Prompt   *PromptFacts   `json:"prompt,omitempty"`

	Typing []Typing `json:"typing"`
	Owner  string   `json:"owner,omitempty"` // who holds the pane in the Store
	Notes  []string `json:"notes,omitempty"`
	Next   string   `json:"next"`
}

// PaneFacts is what tmux and /proc say.
type PaneFacts struct {
	Target string `json:"target"`
	ID     string `json:"id"`
	PID    int    `json:"agent_pid"`
	Mode   string `json:"mode"` // in_process, daemon
	Cwd    string `json:"workspace"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
	InMode bool   `json:"closed_to_keys"`
}

// RecordsState is what the agent's own files say.
type RecordsState struct {
	Identity string `json:"native_identity_state"`
	Thread   string `json:"native_thread_id,omitempty"`
	Activity string `json:"durable_activity_state"`
	Reason   string `json:"reason,omitempty"`
}

// Proof is one piece of evidence with the rows that it is about.
type Proof struct {
	Rule   string   `json:"rule"`
	Region string   `json:"region,omitempty"` // "rows 12-19", counted from 1
	Detail string   `json:"detail"`
	Rows   []string `json:"rows,omitempty"` // plain, at most maxProofRows of them
}

// ComposerFacts is the input box.
type ComposerFacts struct {
	Empty bool   `json:"empty"`
	Draft string `json:"draft,omitempty"`
	Held  string `json:"held,omitempty"`
}

// PromptFacts is an open dialog.
type PromptFacts struct {
	Kind     string   `json:"kind"`
	Title    string   `json:"title"`
	Command  string   `json:"command,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Options  []string `json:"options"`
	Selected int      `json:"selected"` // index into options, -1 unknown
	Cut      bool     `json:"cut"`
}

// Typing says of one kind of input whether it would be typed into the pane now.
type Typing struct {
	What    string   `json:"what"` // send, cancel, approve, reject, /status
	Keys    []string `json:"keys,omitempty"`
	Allowed bool     `json:"allowed"`
	Code    string   `json:"code,omitempty"` // of the refusal
	Why     string   `json:"why,omitempty"`
}

// maxProofRows bounds the rows that one piece of evidence shows.
const maxProofRows = 40

// Explain looks at one pane, by terminal id or short ref, as a send would, and
// says what it is taken for. It types and writes nothing, and works without a
// Store.
func (d *Desk) Explain(ctx context.Context, target string) (Explanation, error) {
	s, err := d.byTarget(ctx, target)
	if err != nil {
		return Explanation{}, err
	}
	stable := true
	shot, err := d.Tmux.Settled(ctx, s.pane, settleGap, settleTimeout)
	if err != nil {
		stable = false
		if shot, err = d.Tmux.CaptureOne(ctx, s.pane); err != nil {
			return Explanation{}, err
		}
	}
	s.identify(ctx)
	s.read(&shot)
	e := explain(s, shot, d.Untested)
	e.Source, e.Stable = "live", stable
	e.Terminal, e.ShortRef = s.id(), terminal.ShortRef(s.id())
	e.Pane = &PaneFacts{
		Target: fmt.Sprintf("%s:%d.%d", s.pane.Session, s.pane.Window, s.pane.Index), ID: s.pane.ID,
		PID: s.proc.Inc.PID, Mode: string(s.proc.Mode), Cwd: s.proc.Cwd,
		Width: shot.Pane.Width, Height: shot.Pane.Height, InMode: s.pane.InMode,
	}
	e.Records = &RecordsState{
		Identity: string(s.identity.State), Thread: s.identity.ThreadID,
		Activity: string(s.identity.Activity), Reason: s.identity.Reason,
	}
	if !stable {
		e.Notes = append(e.Notes, "the screen changed between two looks; input waits for two equal ones")
	}
	if err := d.explainOwner(ctx, s, &e); err != nil {
		return Explanation{}, err
	}
	e.Next = e.step(s)
	return e, nil
}

// byTarget finds a pane by its terminal id or by the short ref of one.
func (d *Desk) byTarget(ctx context.Context, target string) (*sighting, error) {
	if !strings.HasPrefix(target, "@") {
		return d.byTerminalID(ctx, target)
	}
	all, problems, err := d.survey(ctx, false)
	if err != nil {
		return nil, err
	}
	var hit *sighting
	for _, s := range all {
		switch {
		case terminal.ShortRef(s.id()) != target:
		case hit != nil:
			return nil, fault.New(fault.TerminalAmbiguous, "find %s: two panes have this short ref", target).
				WithHint("use the terminal id").Safe()
		default:
			hit = s
		}
	}
	if hit != nil {
		return hit, nil
	}
	f := fault.New(fault.TerminalNotFound, "find %s: no pane has this short ref", target).WithHint("call list again").Safe()
	if len(problems) > 0 {
		f = f.With("terminal_scan_error", problems[0])
	}
	return nil, f
}

// ExplainScreen judges a screen that was captured some time: what its pane would
// be taken for, and what might be typed if it were live now.
func ExplainScreen(a agent.Adapter, version string, class agent.Class, shot terminal.Screen, policy Untested) Explanation {
	s := &sighting{
		pane: shot.Pane, adapter: a, seen: true,
		proc:     agent.Process{Agent: a.Kind(), Version: version, Class: class},
		identity: agent.Identity{State: agent.Unavailable, Activity: agent.ActivityUnknown},
		reading:  a.Read(version, shot),
	}
	e := explain(s, shot, policy)
	e.Source = "file"
	e.Next = e.step(s)
	return e
}

// explain is what screen and version alone say.
func explain(s *sighting, shot terminal.Screen, policy Untested) Explanation {
	r := s.reading
	e := Explanation{
		Agent: string(s.proc.Agent), Version: s.proc.Version, Class: string(s.proc.Class),
		State: string(r.State), Rule: r.Name, Evidence: []Proof{}, Typing: []Typing{}, Notes: s.warnings,
	}
	parsed := screen.Parse(shot.Text, shot.Pane.Width, shot.Pane.Height)
	for _, ev := range r.Evidence {
		e.Evidence = append(e.Evidence, Proof{Rule: ev.Rule, Region: ev.Region, Detail: ev.Detail, Rows: proofRows(parsed, ev.Region)})
	}
	if c := r.Composer; c.Seen {
		e.Composer = &ComposerFacts{Empty: c.Empty, Draft: c.Draft, Held: c.Held}
	}
	if p := r.Prompt; p != nil {
		e.Prompt = &PromptFacts{
			Kind: p.Kind, Title: p.Title, Command: p.Command, Reason: p.Reason,
			Options: append([]string{}, p.Options...), Selected: p.Selected, Cut: p.Cut,
		}
	}
	e.typing(s, policy)
	return e
}

var regionForm = regexp.MustCompile(`^rows? (\d+)(?:-(\d+))?$`)

// proofRows gives the plain text of the rows that a region names.
func proofRows(s *screen.Screen, region string) []string {
	m := regionForm.FindStringSubmatch(region)
	if m == nil {
		return nil
	}
	from, err := strconv.Atoi(m[1])
	to := from
	if err == nil && m[2] != "" {
		to, err = strconv.Atoi(m[2])
	}
	if err != nil {
		return nil
	}
	var rows []string
	for i := from; i <= to && len(rows) < maxProofRows; i++ {
		rows = append(rows, s.Row(i-1).Text())
	}
	return rows
}

// typing says what could be typed as far as the screen and the version decide.
func (e *Explanation) typing(s *sighting, policy Untested) {
	send := Typing{What: "send", Keys: []string{"paste of the request", string(terminal.Enter)}}
	e.add(send, firstOf(s.promptable(), allowedBy(policy, s, false)))

	if s.reading.State == agent.Working {
		e.add(Typing{What: "cancel", Keys: []string{string(s.adapter.Interrupt())}}, allowedBy(policy, s, false))
	}
	if p := s.reading.Prompt; p != nil && s.reading.State == agent.Approval {
		e.add(Typing{What: "approve", Keys: keyNames(p.Approve)}, firstOf(provable(p, p.Approve, "allow this one call and nothing more"), allowedBy(policy, s, true)))
		e.add(Typing{What: "reject", Keys: keyNames(p.Reject)}, firstOf(provable(p, p.Reject, "refuse it"), allowedBy(policy, s, true)))
	}
	native, ok := s.adapter.(agent.Native)
	if !ok {
		return
	}
	c, err := native.Command(s.proc.Version, agent.OpStatus, "")
	if err == nil {
		e.add(Typing{What: c.Text, Keys: []string{"paste of " + c.Text, string(terminal.Enter)}}, firstOf(s.promptable(), allowedBy(policy, s, true)))
	}
}

// add completes one line with the refusal that it would meet.
func (e *Explanation) add(t Typing, refusal error) {
	t.Allowed = refusal == nil
	if !t.Allowed {
		t.Code, t.Why = string(fault.CodeOf(refusal)), plainWhy(refusal)
	}
	e.Typing = append(e.Typing, t)
}

// provable refuses keys that no rule proves.
func provable(p *agent.Prompt, keys []terminal.Key, what string) error {
	switch {
	case p.Cut:
		return fault.New(fault.ActionNotAdvertised, "the pane has no room for the whole dialog, so what it asks is not proven")
	case len(keys) == 0:
		return fault.New(fault.ActionNotAdvertised, "no rule proves which keys %s", what)
	}
	return nil
}

// allowedBy applies the version policy; strict is for what needs a tested version.
func allowedBy(policy Untested, s *sighting, strict bool) error {
	switch {
	case s.proc.Class == agent.Refused:
		return fault.New(fault.VersionUnsupported, "%s %q has no rule file", s.proc.Agent, s.proc.Version)
	case s.proc.Class == agent.Untested && (policy == UntestedObserve || strict && policy != UntestedAll):
		return fault.New(fault.VersionUnsupported, "%s %s is untested and --untested-agents is %s", s.proc.Agent, s.proc.Version, policy)
	}
	return nil
}

// explainOwner adds what the Store says of the pane.
func (d *Desk) explainOwner(ctx context.Context, s *sighting, e *Explanation) error {
	if d.Store == nil {
		e.Notes = append(e.Notes, "there is no Store yet: nobody has sent anything from here")
		return nil
	}
	v, err := d.snapshot(ctx)
	if err != nil {
		return err
	}
	key := s.pane.Key()
	var held error
	for _, t := range v.on(key) {
		e.Owner = fmt.Sprintf("%s is %s", t.ID, t.Status)
		held = fault.New(fault.ActiveOwner, "%s is not finished", t.ID)
	}
	if f, ok := v.fences[key]; ok && held == nil {
		e.Owner = fmt.Sprintf("an unresolved %s stands on the pane", f.Kind)
		held = fault.New(fault.DispatchUnresolved, "%s", e.Owner)
	}
	if w, ok := v.watches[key]; ok {
		e.Notes = append(e.Notes, w.ID+" watches the pane")
	}
	for i := range e.Typing {
		t := &e.Typing[i]
		switch {
		case t.What == "cancel" && t.Allowed && !hasRunning(v.on(key)):
			t.Allowed, t.Code, t.Why = false, string(fault.NotFound), "the work belongs to no Turn; only a Turn is cancelled"
		case t.What != "cancel" && t.What != "approve" && t.What != "reject" && t.Allowed && held != nil:
			t.Allowed, t.Code, t.Why = false, string(fault.CodeOf(held)), plainWhy(held)
		}
	}
	return nil
}

func hasRunning(turns []store.Turn) bool {
	for _, t := range turns {
		switch t.Status {
		case store.TurnRunning, store.TurnWaitingForAgent, store.TurnWaitingForController:
			return true
		}
	}
	return false
}

// step is one sentence on what to do now.
func (e *Explanation) step(s *sighting) string {
	for _, t := range e.Typing {
		if t.What == "send" && t.Allowed {
			return "send can start a task here"
		}
	}
	switch s.reading.State {
	case agent.Approval:
		if len(e.Typing) > 1 && e.Typing[1].Allowed {
			return "status of its Turn or terminal offers the decision; approve takes it"
		}
		return "decide the dialog in the pane"
	case agent.Question:
		return "answer the question in the pane, or by respond_interaction where status shows the step"
	case agent.Blocked:
		return "a person must act in the pane: it shows " + s.reading.Name
	case agent.Working:
		return "wait for the end; watch tells when work that a human started is over"
	case agent.NotReady:
		return "wait until the agent has started"
	case agent.Exited:
		return "start the agent again"
	case agent.Idle:
		if e.Composer != nil && !e.Composer.Empty {
			return "the person at the pane must send or clear the draft"
		}
		return "look at why a send is refused above"
	}
	if e.Class == string(agent.Refused) {
		return "the version has no rule file: record it with scripts/rig learn, or use a version that has one"
	}
	return "nothing is typed while no rule holds: look at the failed proofs, and record this screen if it is an ordinary one"
}

// plainWhy is a refusal without the pane's name, which stands above it.
func plainWhy(err error) string {
	text := err.Error()
	if strings.HasPrefix(text, "act on terminal:") {
		if _, rest, ok := strings.Cut(text, ": "); ok {
			text = rest
		}
	}
	return fault.CleanLine(text)
}

func keyNames(keys []terminal.Key) []string {
	var out []string
	for _, k := range keys {
		out = append(out, string(k))
	}
	return out
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
