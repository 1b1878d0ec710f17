package handoff

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Kinds of calls that wait for a person.
const (
	kindCommand = "run_command"
	kindEdit    = "edit_files"
)

// unmatched says that screen and records disagree.
const unmatched = "the agent's own records do not show the one call that the dialog is about"

const (
	offerApproval     = "approval"
	offerTurn         = "turn"
	offerTerminal     = "terminal"
	approvalOfferLife = 10 * time.Minute // of an approval offer (tools §6)

	// claudeLife is how long after its notification a prompt of Claude Code may be
	// decided (core §11.1).
	claudeLife = 10 * time.Minute

	decisionKeys = "keys" // decision_mode: by keys in the pane
)

// A dialog is one approval prompt on which the screen and the agent's own records
// agree: one complete region, and exactly the call that it is about.
type dialog struct {
	prompt agent.Prompt
	call   agent.Call
	print  string // of the prompt as the Store knows it; a moved highlight does not change it
}

// shown is the payload of an approval offer: what a controller session saw.
type shown struct {
	Print  string `json:"fingerprint"`
	Region string `json:"region"` // digest of the exact bytes
	Call   string `json:"call"`
}

func (x dialog) shown() shown { return shown{x.print, x.prompt.Digest, x.call.ID} }

// waiting gives the calls of a task that may wait for a person.
func waiting(p agent.Progress) []agent.Call {
	if len(p.Calls) == 0 && p.Waiting != nil {
		return []agent.Call{*p.Waiting}
	}
	return p.Calls
}

// callOf gives the call that a dialog is about: the oldest one of its kind and
// command. White space does not count, since a screen breaks lines where it likes.
// An agent that shows no command with an edit, or only the file, is believed where
// exactly one edit waits and names that file.
func callOf(p agent.Prompt, calls []agent.Call) (agent.Call, bool) {
	var edits []agent.Call
	for _, c := range calls {
		if c.Kind != p.Kind {
			continue
		}
		shown, whole := squeeze(p.Command), squeeze(c.Command)
		if shown != "" && (whole == shown || p.Cut && strings.HasPrefix(whole, shown)) { // a cut one is never decided
			return c, true
		}
		if c.Kind == kindEdit {
			edits = append(edits, c)
		}
	}
	if p.Kind != kindEdit || len(edits) != 1 {
		return agent.Call{}, false
	}
	call := edits[0]
	switch file := path.Base(strings.TrimSpace(p.Command)); {
	case p.Command == "":
		return call, true
	case strings.Contains(call.Command, "\n"): // a patch
		return call, strings.Contains(call.Command, file)
	default:
		return call, path.Base(call.Command) == file
	}
}

// squeeze removes all white space.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

// printOf names one exact prompt: its text, the pane, the process and the call
// that it belongs to (core §11.1).
func printOf(p agent.Prompt, call agent.Call, pane terminal.Pane, proc agent.Process) string {
	text := p.Stable
	if text == "" {
		text = p.Digest
	}
	parts := []string{text, p.Kind, label(p.Kind), pane.Key(), proc.Inc.String(), proc.Cwd, call.ID, call.Kind, call.Command, call.Cwd}
	for _, k := range p.Reject {
		parts = append(parts, string(k))
	}
	return digest(parts...)
}

// unapprovable says why no key may be sent for what a screen shows, "" where one
// may as far as the screen goes.
func unapprovable(r agent.Reading) string {
	switch p := r.Prompt; {
	case r.State != agent.Approval || p == nil:
		return "no complete approval dialog is shown"
	case p.Cut:
		return "the pane has no room for all of the dialog; make it larger, or decide in the pane"
	case len(p.Approve) == 0:
		return "the dialog has no option that is proven to allow this one call and nothing more; decide in the pane"
	}
	return ""
}

// deciding applies the version policy to approvals: they need a tested version.
func (d *Desk) deciding(proc agent.Process) string {
	if proc.Class == agent.Tested || proc.Class == agent.Untested && d.Untested == UntestedAll {
		return ""
	}
	return "approvals of " + string(proc.Agent) + " " + proc.Version + " are not tested; decide in the pane"
}

// dialogOf joins what a sighting shows with the records of its task. why says
// what keeps it from being decided.
func (d *Desk) dialogOf(ctx context.Context, s *sighting, task agent.Task) (x dialog, why string, err error) {
	if why := unapprovable(s.reading); why != "" {
		return x, why, nil
	}
	if why := d.deciding(s.proc); why != "" {
		return x, why, nil
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	p, err := s.adapter.Progress(pctx, task, agent.Position{})
	if err != nil {
		return x, "", fault.New(fault.ObservationUnavail, "read the records of %s: %w", s.id(), err)
	}
	x.prompt = *s.reading.Prompt
	call, ok := callOf(x.prompt, waiting(p))
	if p.State != agent.Open || !ok {
		return x, unmatched, nil
	}
	x.call, x.print = call, printOf(x.prompt, call, s.pane, s.proc)
	return x, "", nil
}

// turnTask gives the task that a Turn's current message started.
func (d *Desk) turnTask(x store.Dispatch) (agent.Task, error) {
	if x.Acceptance == nil {
		return agent.Task{}, fault.New(fault.TurnStatusInvalid, "decide an approval of %s: its submission is not proven", x.TurnID).
			With("turn_id", x.TurnID)
	}
	acc, err := agent.ParseAcceptance(x.Acceptance)
	if err != nil {
		return agent.Task{}, fault.New(fault.IdentityUnverified, "decide an approval of %s: %w", x.TurnID, err)
	}
	return acc.Task, nil
}

// turnDialog judges the dialog of a Turn for display: what may be decided, and the
// Store's row that a decision would take. why is "" only then.
func (d *Desk) turnDialog(ctx context.Context, s *sighting, t store.Turn, x store.Dispatch) (dialog, string) {
	if s.reading.State != agent.Approval {
		return dialog{}, unapprovable(s.reading)
	}
	task, err := d.turnTask(x)
	if err != nil {
		return dialog{}, fault.CleanLine(err.Error())
	}
	found, why, err := d.dialogOf(ctx, s, task)
	if err != nil {
		why = fault.CleanLine(err.Error())
	}
	if why != "" {
		return found, why
	}
	rows, err := d.Store.Approvals(ctx, t.ID)
	if err != nil {
		return found, fault.CleanLine(err.Error())
	}
	return found, d.rowWhy(t, rows, found.print)
}

// rowWhy says why the Store would not take a decision about a prompt now.
func (d *Desk) rowWhy(t store.Turn, rows []store.Approval, print string) string {
	for _, a := range slices.Backward(rows) {
		if a.MessageID != t.CurrentMessageID || a.Fingerprint != print {
			continue
		}
		switch {
		case a.State == store.ApprovalConsumed:
			return "it is decided; the agent has not gone on yet"
		case a.ClearedAt != 0:
			continue
		case a.State == store.ApprovalReserved:
			return "a decision about it is on its way"
		case a.State == store.ApprovalUncertain:
			return "an earlier decision about it is in doubt; the user decides in the pane"
		case a.State == store.ApprovalExpired, d.late(t.Agent, a):
			return "it was notified too long ago; the user decides in the pane"
		case t.Status != store.TurnWaitingForController:
			return "the turn does not wait for it"
		}
		return ""
	}
	return "it is not noticed yet; look again in a few seconds"
}

// life is how long a notified prompt of an agent may be decided; 0: without end.
func life(kind string) time.Duration {
	if kind == string(agent.Claude) {
		return claudeLife
	}
	return 0
}

func (d *Desk) late(kind string, a store.Approval) bool {
	l := life(kind)
	return l > 0 && d.now().UnixMilli() >= a.NotifiedAt+l.Milliseconds()
}

// offerKey names the offer to decide the one prompt of a Turn or a pane.
func (d *Desk) offerKey(kind, target string) store.OfferKey {
	return store.OfferKey{OwnerSession: d.Controller, Kind: offerApproval, TargetType: kind, TargetID: target}
}

// offer records that this controller session was shown exactly this prompt.
func (d *Desk) offer(ctx context.Context, kind, target string, x dialog) error {
	payload := canonical(x.shown())
	return d.Store.MintOffer(ctx, store.NewOffer{
		Key: d.offerKey(kind, target), Payload: payload, Fingerprint: hash(payload), Life: approvalOfferLife,
	})
}

// take uses the offer up and gives what was shown.
func (d *Desk) take(ctx context.Context, kind, target string) (seen shown, err error) {
	payload, err := d.Store.ConsumeOffer(ctx, d.offerKey(kind, target))
	if err != nil {
		f, ok := fault.As(err)
		if !ok {
			return seen, err
		}
		if kind == offerTurn {
			f = f.With("turn_id", target)
		}
		return seen, f.WithHint("call status, show the user what waits, and decide about exactly that")
	}
	if err := json.Unmarshal(payload, &seen); err != nil {
		return seen, fault.New(fault.OfferMissing, "use the approval offer: it is unreadable")
	}
	return seen, nil
}

// terminalTask gives the one open task of a pane that no Turn owns.
func (d *Desk) terminalTask(ctx context.Context, s *sighting) (agent.Task, error) {
	pctx, cancel := probe(ctx)
	defer cancel()
	task, ok, err := s.adapter.Current(pctx, s.proc)
	if err != nil {
		return agent.Task{}, fault.New(fault.ObservationUnavail, "read the records of %s: %w", s.id(), err)
	}
	if !ok {
		return agent.Task{}, fault.New(fault.IdentityUnverified, "decide an approval of %s: no unique task is proven there", s.id()).
			WithHint("the user decides in the pane")
	}
	return task, nil
}

// unowned refuses a pane whose work belongs to a Turn or a Watch: a Turn's
// approval is decided by its turn_id, a Watch's by the user alone.
func (d *Desk) unowned(ctx context.Context, s *sighting) error {
	key := s.pane.Key()
	turns, err := d.Store.Turns(ctx, store.TurnFilter{TerminalKey: key, Statuses: blockingStatuses})
	if err != nil {
		return err
	}
	if len(turns) > 0 {
		return fault.New(fault.ActiveOwner, "decide an approval of %s: its work belongs to a turn", s.id()).
			With("turn_id", turns[0].ID).WithHint("use the turn_id")
	}
	f, fenced, err := d.Store.Fence(ctx, key)
	if err != nil {
		return err
	}
	if fenced {
		return fault.New(fault.DispatchUnresolved, "decide an approval of %s: an earlier %s into this pane is not settled", s.id(), f.Kind)
	}
	watches, err := d.Store.Watches(ctx, store.WatchFilter{ActiveOnly: true})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(watches, func(w store.Watch) bool { return w.TerminalKey == key }) {
		return fault.New(fault.ActionNotAdvertised, "decide an approval of %s: a Watch observes its task, and a Watch is never approved", s.id()).
			WithHint("the user decides in the pane")
	}
	return nil
}
