package handoff

import (
	"context"
	"fmt"
	"sort"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// ListResult is the body of list (tools §8.1).
type ListResult struct {
	Store       StoreState        `json:"store"`
	Reconciled  Reconciliation    `json:"reconciliation"`
	Contracts   Contracts         `json:"action_contracts"`
	Terminals   []Row             `json:"terminals"`
	Watches     []WatchView       `json:"terminal_watches"`
	Unavailable []TurnView        `json:"unavailable_managed_turns"`
	Transitions []TransitionView  `json:"unavailable_transitions,omitempty"` // unsettled, and their pane is gone
	Scan        ScanState         `json:"terminal_scan"`
	Siblings    map[string]string `json:"siblings,omitempty"`
}

// StoreState says how the Store is.
type StoreState struct {
	Status         string `json:"status"` // ok, read_only
	FormatVersion  int    `json:"format_version"`
	WriterProtocol int    `json:"writer_protocol"`
	Readable       bool   `json:"readable"`
	Writable       bool   `json:"writable"`
	Reason         string `json:"reason,omitempty"`
}

// ScanState says what the look at the terminals met.
type ScanState struct {
	Count   int      `json:"terminal_count"`
	Error   string   `json:"error,omitempty"`
	Errors  []string `json:"errors,omitempty"`
	Settled bool     `json:"screen_settled"` // false: one capture, not two equal ones
}

// maxListed bounds the Turns and Watches that list shows beside the panes.
const maxListed = 200

// TurnView is a Turn outside any row.
type TurnView struct {
	TurnSummary
	Agent    string  `json:"agent"`
	Terminal string  `json:"terminal_id,omitempty"`
	Actions  Actions `json:"available_actions"`
}

// List discovers panes, Turns and Watches and what may be done. It types
// nothing and makes no callback.
func (d *Desk) List(ctx context.Context, in ListInput) (Outcome, error) {
	res := ListResult{Contracts: contracts, Terminals: []Row{}, Watches: []WatchView{}, Unavailable: []TurnView{}}
	var err error
	if res.Store, err = d.storeState(ctx); err != nil {
		return Outcome{}, err
	}
	res.Reconciled = d.Recover(ctx, "")
	if d.Siblings != nil {
		res.Siblings = d.Siblings()
	}
	found, problems, err := d.survey(ctx, !in.NoApprovalScan)
	if err != nil {
		if ctx.Err() != nil {
			return Outcome{}, err
		}
		problems = append(problems, fault.CleanLine(err.Error())) // no tmux is no refusal (tools §8.1)
	}
	res.Scan.Count = len(found)
	if len(problems) > 0 {
		res.Scan.Error, res.Scan.Errors = problems[0], problems
	}
	v, err := d.snapshot(ctx)
	if err != nil {
		return Outcome{}, err
	}
	seen := map[string]bool{}
	for _, s := range found {
		seen[terminal.IncarnationKey(s.pane, s.proc.Inc)] = true
		row, err := d.row(ctx, s, v, in.TerminalDebug)
		if err != nil {
			return Outcome{}, err
		}
		if (in.Agent == "" || in.Agent == row.Agent) && matches(row, in.Status) {
			res.Terminals = append(res.Terminals, row)
		}
	}
	if res.Watches, err = d.listWatches(ctx, in.All); err != nil {
		return Outcome{}, err
	}
	if res.Transitions, err = d.lostTransitions(ctx, v, found); err != nil {
		return Outcome{}, err
	}
	res.Unavailable, err = d.unavailable(ctx, v, seen, in)
	return Outcome{Body: res}, err
}

// matches applies list's status filter: a status of the row or of its Turn.
func matches(r Row, status string) bool {
	if status == "" || status == r.ActivityState || status == r.ScreenState || status == r.Management {
		return true
	}
	return r.Managed != nil && r.Managed.CurrentTurn != nil && r.Managed.CurrentTurn.Status == status
}

func (d *Desk) storeState(ctx context.Context) (StoreState, error) {
	info, err := d.Store.Info(ctx)
	if err != nil {
		return StoreState{}, err
	}
	s := StoreState{
		Status: "ok", FormatVersion: info.FormatVersion, WriterProtocol: info.WriterProtocol,
		Readable: true, Writable: info.Writable, Reason: info.Reason,
	}
	if !info.Writable {
		s.Status = "read_only"
	}
	return s, nil
}

// row projects one sighting.
func (d *Desk) row(ctx context.Context, s *sighting, v *view, debug bool) (Row, error) {
	key := s.pane.Key()
	state, reason := s.activity()
	r := Row{
		ID: s.id(), ShortRef: terminal.ShortRef(s.id()), Agent: string(s.proc.Agent),
		AgentVersion: s.proc.Version, VersionClass: string(s.proc.Class),
		Provider: "tmux", Target: fmt.Sprintf("%s:%d.%d", s.pane.Session, s.pane.Window, s.pane.Index),
		PID: s.proc.Inc.PID, Workspace: s.proc.Cwd, ProcessState: "running",
		ScreenState: screenState(s.reading.State), IdentityState: string(s.identity.State),
		DurableState: string(s.identity.Activity), ActivityState: state, ActivityReason: reason,
		ApprovalState: approvalState(s), Management: "unmanaged", Warnings: s.warnings, Actions: Actions{},
	}
	if debug {
		r.Debug = rowDebug(s)
	}
	owner, owned := v.owner(key)
	if b, ok := v.of(s); ok {
		m, err := d.managed(ctx, b)
		if err != nil {
			return Row{}, err
		}
		if owned && owner.SessionID == b.Session.ID {
			sum := summary(owner)
			m.CurrentTurn = &sum
		}
		r.Management, r.Managed = "managed", m
	}
	for _, t := range v.on(key) {
		acts, err := d.turnActions(ctx, t)
		if err != nil {
			return Row{}, err
		}
		// A Turn of a process that was here before is in the way like a stalled one.
		if r.Managed != nil && r.Managed.CurrentTurn != nil && t.ID == owner.ID && t.Status != store.TurnStalled {
			r.Actions.merge(acts)
			continue
		}
		bt := BlockingTurn{TurnID: t.ID, Status: t.Status, Reason: blockReason(t)}
		if c, ok := acts["close"]; ok {
			bt.Recovery = &c
		}
		r.BlockingTurns = append(r.BlockingTurns, bt)
		r.Actions.merge(acts)
	}
	if !v.blocked(key) && s.promptable() == nil && d.allowed(s) == nil {
		r.Actions["send"] = sendAction(s, v)
	}
	if _, watched := v.watches[key]; !watched && !owned && !v.blocked(key) && d.Route != nil && atWork(state) {
		r.Actions["watch"] = Action{Tool: toolName("watch"), Arguments: map[string]any{"terminal_id": r.ID}, RequiresUserIntent: true}
	}
	r.Actions["status"] = Action{Tool: toolName("status"), Arguments: map[string]any{"conversation_id": r.ID}}
	_, watched := v.watches[key]
	var decider *store.Turn
	if owned {
		decider = &owner
	}
	if err := d.decisions(ctx, s, decider, watched, &r); err != nil {
		return Row{}, err
	}
	err := d.lifecycle(ctx, s, v, &r)
	return r, err
}

func sendAction(s *sighting, v *view) Action {
	a := Action{Tool: toolName("send"), MissingRequired: []string{"request"}, RequiresUserIntent: true}
	b, ok := v.of(s)
	switch {
	case ok && s.identity.State == agent.Resolved && b.Binding.NativeThreadID == s.identity.ThreadID:
		a.Scope, a.Arguments = ScopeSession, map[string]any{"session_id": b.Session.ID}
	case ok:
		a.Scope, a.Arguments = ScopeFollow, map[string]any{"terminal_id": s.id()}
	default:
		a.Scope, a.Arguments = ScopeAttach, map[string]any{"terminal_id": s.id()}
	}
	return a
}

func (d *Desk) managed(ctx context.Context, b store.Bound) (*Managed, error) {
	m := &Managed{
		SessionID: b.Session.ID, ShortRef: terminal.ShortRef(b.Session.ID), SessionCount: 1,
		Binding: "bound", NativeThread: b.Binding.NativeThreadID,
	}
	if b.Binding.NativeThreadID == "" {
		m.Binding = "provisional"
	}
	n, err := d.Store.SessionTurns(ctx, b.Session.ID)
	if err != nil {
		return nil, err
	}
	last, err := d.Store.Turns(ctx, store.TurnFilter{SessionID: b.Session.ID, Limit: 1})
	if err != nil {
		return nil, err
	}
	m.TurnCount = int(n)
	if len(last) > 0 {
		sum := summary(last[0])
		m.RecentTurn = &sum
		m.HiddenTurns = int(n) - 1
	}
	return m, nil
}

// unavailable lists Turns that want attention and have no pane any more; with
// all, every retained one.
func (d *Desk) unavailable(ctx context.Context, v *view, seen map[string]bool, in ListInput) ([]TurnView, error) {
	turns := v.turns
	if in.All {
		all, err := d.Store.Turns(ctx, store.TurnFilter{Limit: maxListed})
		if err != nil {
			return nil, err
		}
		turns = all
	}
	out := []TurnView{}
	for _, t := range turns {
		b, err := d.Store.Binding(ctx, t.BindingID)
		if err != nil {
			return nil, err
		}
		if seen[b.IncarnationKey] && t.Blocks() || in.Agent != "" && in.Agent != t.Agent {
			continue
		}
		acts, err := d.turnActions(ctx, t)
		if err != nil {
			return nil, err
		}
		if gone, known := processGone(b); gone && known {
			for _, needsPane := range []string{"cancel", "renew", "retry_submission"} {
				delete(acts, needsPane)
			}
		}
		out = append(out, TurnView{TurnSummary: summary(t), Agent: t.Agent, Terminal: b.TerminalID, Actions: acts})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].TurnID < out[j].TurnID })
	return out, nil
}

// processGone reports whether a binding's process is proven to have ended.
func processGone(b store.Binding) (gone, known bool) {
	at, err := parsePlace(b.Endpoint)
	if err != nil {
		return false, false
	}
	return at.Process.Inc.Gone()
}

func summary(t store.Turn) TurnSummary {
	return TurnSummary{
		TurnID: t.ID, SessionID: t.SessionID, Status: t.Status, Request: clip(oneLine(t.RequestText, ""), maxSummary),
		StartedAt: stamp(t.StartedAt), Reason: blockReason(t),
	}
}

func blockReason(t store.Turn) string {
	switch t.Status {
	case store.TurnStalled:
		return t.StalledReason
	case store.TurnClosed:
		return t.CloseReason
	}
	return ""
}

func screenState(s agent.State) string {
	switch s {
	case agent.Idle, agent.Working:
		return string(s)
	case agent.Approval:
		return "awaiting_approval"
	}
	return "unknown"
}

func approvalState(s *sighting) ApprovalState {
	a := ApprovalState{Scanned: s.seen}
	switch s.reading.State {
	case agent.Approval:
		a.Blocked, a.Reason = true, "an approval dialog is open; the user decides it in the pane"
	case agent.Question:
		a.Blocked, a.Reason = true, "a questionnaire is open; status shows whether respond_interaction may answer it, else the user does in the pane"
	case agent.Blocked:
		a.Blocked, a.Reason = true, "the pane shows "+s.reading.Name+"; a person must act there"
	}
	if p := s.reading.Prompt; p != nil && a.Blocked {
		a.PromptKind, a.Label, a.Command = p.Kind, label(p.Kind), clip(p.Command, maxSummary)
	}
	return a
}

func rowDebug(s *sighting) *RowDebug {
	dbg := &RowDebug{
		Rule: s.reading.Name, Evidence: []string{}, Pane: s.pane.ID,
		Size: fmt.Sprintf("%dx%d", s.pane.Width, s.pane.Height), Mode: string(s.proc.Mode),
	}
	for _, e := range s.reading.Evidence {
		dbg.Evidence = append(dbg.Evidence, e.Rule+" at "+e.Region+": "+clip(e.Detail, maxSummary))
	}
	return dbg
}

func (a Actions) merge(b Actions) {
	for k, v := range b {
		a[k] = v
	}
}
