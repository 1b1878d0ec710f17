package handoff

import (
	"context"
	"encoding/json"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds of what status shows.
const (
	eventsShown  = 10
	excerptLines = 120
	excerptBytes = 16 << 10
	maxAbout     = 500
)

// TurnStatus is the body of status for a Turn (tools §8.11).
type TurnStatus struct {
	SessionID   string           `json:"session_id"`
	TurnID      string           `json:"turn_id"`
	Summary     StatusSummary    `json:"summary"`
	Confidence  string           `json:"confidence"` // exact, provisional, uncertain
	About       string           `json:"about"`
	Limitations []string         `json:"limitations"`
	Budget      Budget           `json:"budget"`
	Events      []EventView      `json:"recent_events"`
	Terminal    TerminalStatus   `json:"terminal_status"`
	Screen      *ScreenView      `json:"terminal_screen,omitempty"`
	Interaction *InteractionView `json:"interaction_state,omitempty"`
	Callback    *CallbackView    `json:"callback,omitempty"` // the latest
	Callbacks   []CallbackView   `json:"callbacks"`          // all, oldest first
	Trace       *Trace           `json:"trace,omitempty"`
	Actions     Actions          `json:"available_actions"`
}

// StatusSummary is the Turn in short.
type StatusSummary struct {
	Status       string `json:"status"`
	Agent        string `json:"agent"`
	Request      string `json:"request"`
	Submission   string `json:"submission,omitempty"`
	Reason       string `json:"reason,omitempty"`
	StartedAt    string `json:"started_at,omitempty"`
	LastActivity string `json:"last_activity_at,omitempty"`
	QuietUntil   string `json:"inactivity_deadline_at,omitempty"`
	HardUntil    string `json:"hard_deadline_at,omitempty"`
	Monitored    bool   `json:"monitored"`
}

// EventView is one line of a Turn's history.
type EventView struct {
	At    string `json:"at"`
	Event string `json:"event"`
}

// TerminalStatus says how the pane is.
type TerminalStatus struct {
	TerminalID string         `json:"terminal_id"`
	Reachable  bool           `json:"reachable"`
	Activity   string         `json:"activity_state,omitempty"`
	Reason     string         `json:"activity_reason"`
	Approval   *ApprovalState `json:"approval_state,omitempty"`
}

// ScreenView is a bounded excerpt of the pane.
type ScreenView struct {
	Excerpt string `json:"excerpt"`
}

// CallbackView is the state of one callback.
type CallbackView struct {
	Lane      string `json:"lane"`
	Kind      string `json:"kind"`
	Status    string `json:"status"`
	Attempts  int64  `json:"attempts"`
	NextAt    string `json:"next_attempt_at,omitempty"`
	LastError string `json:"last_error_code,omitempty"`
}

// Trace is shown on request: the steps of the Turn's submissions.
type Trace struct {
	Dispatches []DispatchView `json:"dispatches"`
}

// DispatchView is one submission of a Turn.
type DispatchView struct {
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Status    string `json:"status"`
	Proven    string `json:"last_proven_stage"`
	Prepared  string `json:"prepared_at"`
	Accepted  string `json:"accepted_at,omitempty"`
	Code      string `json:"error_code,omitempty"`
}

// TerminalLook is the body of status for a raw terminal.
type TerminalLook struct {
	Source    string         `json:"source"` // terminal_control
	Terminal  string         `json:"terminal_id"`
	Agent     string         `json:"agent"`
	About     string         `json:"about"`
	Status    TerminalStatus `json:"terminal_status"`
	Screen    *ScreenView    `json:"terminal_screen,omitempty"`
	WatchHint string         `json:"terminal_watch_hint,omitempty"`
	Actions   Actions        `json:"available_actions,omitempty"`
}

// Status shows one Turn, raw terminal or Watch. It types nothing.
func (d *Desk) Status(ctx context.Context, in StatusInput) (Outcome, error) {
	switch {
	case in.WatchID != "":
		w, err := d.watchView(ctx, in.WatchID)
		if err == nil {
			err = d.askedOfWatch(ctx, &w)
		}
		return Outcome{Body: map[string]any{"watch": w}}, err
	case in.TerminalID != "":
		return d.statusTerminal(ctx, in.TerminalID)
	}
	if err := checkTurnID(in.TurnID); err != nil {
		return Outcome{}, err
	}
	t, err := d.Store.Turn(ctx, in.TurnID)
	if err != nil {
		return Outcome{}, err
	}
	first := t
	look := func() presence { return d.present(ctx, first) }
	if first.Blocks() { // tmux is asked while the records are read
		look = aside(look)
		defer look()
	}
	t, x, err := d.recovered(ctx, t)
	if err != nil {
		return Outcome{}, err
	}
	res := TurnStatus{
		SessionID: t.SessionID, TurnID: t.ID, Budget: budget(t), Confidence: "exact", Limitations: []string{},
		Events: []EventView{}, Callbacks: []CallbackView{},
		Summary: StatusSummary{
			Status: t.Status, Agent: t.Agent, Request: clip(oneLine(t.RequestText, ""), maxSummary), Reason: blockReason(t),
			StartedAt: stamp(t.StartedAt), LastActivity: stamp(t.LastActivityAt),
			QuietUntil: stamp(t.InactivityDeadlineAt), HardUntil: stamp(t.HardDeadlineAt),
		},
	}
	if t.CurrentMessageID != "" {
		res.Summary.Submission = x.Status
		if res.Summary.Monitored, err = d.leaseLives(ctx, store.MonitorLease(t.ID, t.CurrentMessageID)); err != nil {
			return Outcome{}, err
		}
	}
	callbacks, err := d.history(ctx, &res, t, in.Trace)
	if err != nil {
		return Outcome{}, err
	}
	now := look()
	if t.Blocks() != first.Blocks() { // recovery released it
		now = d.present(ctx, t)
	}
	res.Terminal, res.Screen, res.Limitations = now.terminal, now.screen, append(res.Limitations, now.limitations...)
	switch x.Status {
	case store.DispatchUncertain, store.DispatchNotAccepted:
		res.Confidence = "uncertain"
	case store.DispatchEnterDispatched, store.DispatchTextInjected, store.DispatchPrepared:
		res.Confidence = "provisional"
	}
	res.About = about(t, res.Terminal)
	res.Actions = d.actionsOf(t, x, callbacks)
	if err := d.decide(ctx, &res, now.sighting, t, x); err != nil {
		return Outcome{}, err
	}
	if res.Interaction, err = d.askedOfTurn(ctx, t, now.sighting, res.Actions); err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: res}, nil
}

// recovered gives the Turn and its current dispatch after recovery has looked at
// them, if there was anything for it to do.
func (d *Desk) recovered(ctx context.Context, t store.Turn) (store.Turn, store.Dispatch, error) {
	x, err := d.currentDispatch(ctx, t)
	if err != nil || !d.recoverable(t, x) {
		return t, x, err
	}
	d.Recover(ctx, t.ID)
	if t, err = d.Store.Turn(ctx, t.ID); err != nil {
		return t, x, err
	}
	x, err = d.currentDispatch(ctx, t)
	return t, x, err
}

// recoverable reports whether Recover may change the Turn. A released one holds
// nothing that a dead program could have left behind; only its retention may end.
// Of the others it settles a submission that did not reach Enter, and one whose
// proof does not recompute.
func (d *Desk) recoverable(t store.Turn, x store.Dispatch) bool {
	switch {
	case t.Status == store.TurnIdle:
		return t.IdleSince+int64(t.RetentionMinutes*60_000) <= d.now().UnixMilli()
	case !t.Blocks():
		return false
	case x.Status == store.DispatchAccepted:
		return checkAcceptance(x, x.Acceptance) != nil
	}
	return x.Status == store.DispatchPrepared || x.Status == store.DispatchTextInjected
}

// currentDispatch gives the zero value for a Turn without one.
func (d *Desk) currentDispatch(ctx context.Context, t store.Turn) (store.Dispatch, error) {
	if t.CurrentMessageID == "" {
		return store.Dispatch{}, nil
	}
	return d.Store.Dispatch(ctx, t.CurrentMessageID)
}

// history adds events, callbacks and the trace, and gives the callbacks.
func (d *Desk) history(ctx context.Context, res *TurnStatus, t store.Turn, trace bool) ([]store.Callback, error) {
	events, err := d.Store.TurnEvents(ctx, t.ID, eventsShown)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		res.Events = append(res.Events, EventView{At: stamp(e.At), Event: e.Event})
	}
	rows, err := d.Store.TurnCallbacks(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	for _, c := range rows {
		v := CallbackView{Lane: c.Lane, Kind: c.Kind, Status: c.Status, Attempts: c.Attempts, LastError: c.LastErrorCode}
		if c.Status == store.CallbackRetryWait {
			v.NextAt = stamp(c.NextAttemptAt)
		}
		res.Callbacks = append(res.Callbacks, v)
		res.Callback = &v
	}
	if !trace {
		return rows, nil
	}
	xs, err := d.Store.Dispatches(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	res.Trace = &Trace{Dispatches: []DispatchView{}}
	for _, x := range xs {
		res.Trace.Dispatches = append(res.Trace.Dispatches, DispatchView{
			MessageID: x.MessageID, Kind: x.Kind, Status: x.Status, Proven: x.LastProvenStage,
			Prepared: stamp(x.PreparedAt), Accepted: stamp(x.AcceptedAt), Code: x.ErrorCode,
		})
	}
	return rows, nil
}

// presence is how a Turn's pane is now.
type presence struct {
	sighting    *sighting // nil: not to be seen
	terminal    TerminalStatus
	screen      *ScreenView
	limitations []string
}

// present tells how the pane is now; an unreachable one is no error. A released
// Turn is shown without its pane, which may serve other work by now.
func (d *Desk) present(ctx context.Context, t store.Turn) (p presence) {
	b, err := d.Store.Binding(ctx, t.BindingID)
	if err != nil {
		p.terminal.Reason = fault.CleanLine(err.Error())
		return p
	}
	p.terminal.TerminalID = b.TerminalID
	if !t.Blocks() {
		p.terminal.Reason = "its pane is not looked at any more"
		return p
	}
	if b.ReleasedAt != 0 || b.Generation != t.BindingGeneration {
		p.limitations = append(p.limitations, "the session was attached elsewhere since this turn began")
	}
	at, err := parsePlace(b.Endpoint)
	if err != nil {
		p.terminal.Reason = fault.CleanLine(err.Error())
		return p
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	s, screen, err := d.captureAt(pctx, at)
	if err != nil {
		p.terminal.Reason = fault.CleanLine(err.Error())
		p.limitations = append(p.limitations, "the pane cannot be seen")
		return p
	}
	p.sighting = s
	p.terminal, p.screen = show(s, screen)
	p.terminal.TerminalID = b.TerminalID
	return p
}

// look captures one pane once for display.
func (d *Desk) look(ctx context.Context, s *sighting) (TerminalStatus, *ScreenView) {
	pctx, cancel := probe(ctx)
	defer cancel()
	screen, err := d.Tmux.CaptureOne(pctx, s.pane)
	if err != nil {
		return TerminalStatus{TerminalID: s.id(), Reason: fault.CleanLine(err.Error())}, nil
	}
	s.identify(pctx)
	return show(s, screen)
}

// show judges a captured pane, whose agent is identified, for display.
func show(s *sighting, screen terminal.Screen) (TerminalStatus, *ScreenView) {
	s.read(&screen)
	st := TerminalStatus{TerminalID: s.id(), Reachable: true}
	st.Activity, st.Reason = s.activity()
	approval := approvalState(s)
	st.Approval = &approval
	return st, &ScreenView{Excerpt: excerpt(screen)}
}

func (d *Desk) statusTerminal(ctx context.Context, id string) (Outcome, error) {
	s, err := d.byTerminalID(ctx, id)
	if err != nil {
		return Outcome{}, err
	}
	res := TerminalLook{Source: "terminal_control", Terminal: id, Agent: string(s.proc.Agent), Actions: Actions{}}
	res.Status, res.Screen = d.look(ctx, s)
	res.About = clip(title(s.proc.Agent)+": "+res.Status.Reason, maxAbout)
	if d.Route != nil && atWork(res.Status.Activity) {
		res.WatchHint = "watch tells when this work ends"
	}
	if err := d.decideTerminal(ctx, &res, s); err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: res}, nil
}

func about(t store.Turn, term TerminalStatus) string {
	s := title(agent.Kind(t.Agent)) + ": the turn is " + t.Status
	if r := blockReason(t); r != "" {
		s += " (" + r + ")"
	}
	return clip(s+"; "+term.Reason, maxAbout)
}

// watchView reads one Watch for display.
func (d *Desk) watchView(ctx context.Context, id string) (WatchView, error) {
	if err := checkWatchID(id); err != nil {
		return WatchView{}, err
	}
	w, err := d.Store.Watch(ctx, id)
	if err != nil {
		return WatchView{}, err
	}
	return d.viewWatch(ctx, w)
}

// warnings reads the stored list.
func warnings(b []byte) []string {
	out := []string{}
	_ = json.Unmarshal(b, &out) // our own column, checked by the schema
	return out
}
