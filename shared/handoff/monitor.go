package handoff

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Bounds of a monitor (core §6).
const (
	activityLeast = 5 * time.Second // writes of last_activity_at are at least this far apart
	activityMost  = 5 * time.Minute
	askingFor     = 3 * time.Second        // a new unanswered call is looked at often
	askingPoll    = 150 * time.Millisecond // this often
)

// A Monitor follows one dispatched message of one Turn to its end. It belongs
// to one goroutine. Every write is conditional on Turn, message, binding
// generation and the monitor lease; when one of them moved on, Observe says
// done and has changed nothing.
type Monitor struct {
	desk    *Desk
	ref     store.Monitor
	turn    store.Turn
	at      place
	adapter agent.Adapter

	anchor agent.Anchor // while acceptance is open
	prep   agent.Prepared
	task   *agent.Task // once accepted

	keep    monitorState
	screen  string    // digest of the last screen
	moved   time.Time // when proof of life was last seen
	written time.Time // when it was last written
	asked   string    // the newest unanswered call
	askedAt time.Time // when it was first seen
	strange string    // digest of a dialog that fits no waiting call

	strangeAt time.Time // when it was first seen
	unsaid    string    // digest of a dialog of a call that does not wait by the agent's word
	unsaidAt  time.Time // when it was first seen
	clear     int       // consecutive screens without the notified prompt
}

// monitorState is what survives in turns.monitor_json.
type monitorState struct {
	Version    int            `json:"version"`
	Checkpoint agent.Position `json:"checkpoint"`
	Digest     string         `json:"digest"`
	Prompt     string         `json:"prompt,omitempty"` // approval or question that is open in the Store
	Kind       string         `json:"prompt_kind,omitempty"`
	Call       string         `json:"prompt_call,omitempty"`  // the unanswered call that is followed
	Gone       int            `json:"prompts_gone,omitempty"` // prompts of that call that were seen to go
}

// NewMonitor prepares to follow an eligible Turn under its monitor lease.
func (d *Desk) NewMonitor(e store.Eligible, lease *store.Lease) (*Monitor, error) {
	m := &Monitor{
		desk: d, turn: e.Turn, adapter: d.adapter(e.Turn.Agent), askedAt: d.now(),
		ref: store.Monitor{
			TurnID: e.Turn.ID, MessageID: e.Dispatch.MessageID,
			BindingGeneration: e.Turn.BindingGeneration, Lease: lease,
		},
	}
	if m.adapter == nil {
		return nil, fault.New(fault.CapabilityMissing, "monitor %s: no adapter for agent %q", e.Turn.ID, e.Turn.Agent)
	}
	var err error
	if m.at, err = parsePlace(e.Binding.Endpoint); err != nil {
		return nil, err
	}
	if m.anchor, err = parseAnchor(e.Dispatch.Anchor); err != nil {
		return nil, err
	}
	if m.prep, err = d.prepared(m.adapter, e.Turn, e.Dispatch); err != nil {
		return nil, err
	}
	if e.Dispatch.Acceptance != nil {
		acc, err := agent.ParseAcceptance(e.Dispatch.Acceptance)
		if err != nil { // recovery settles it
			return nil, fault.New(fault.SubmissionUncertain, "monitor %s: %w", e.Turn.ID, err)
		}
		m.task = &acc.Task
	}
	if e.Turn.Monitor != nil {
		_ = json.Unmarshal(e.Turn.Monitor, &m.keep) // ours; unreadable: read from the start again
	}
	if m.keep.Version != 1 {
		m.keep = monitorState{Version: 1}
	}
	if e.Turn.Status == store.TurnWaitingForController && m.keep.Prompt == "" {
		m.keep.Prompt = "unknown" // its writer died before it could say which
	}
	return m, nil
}

// Pane is where the Turn's agent lives; its screen may be handed to Observe.
func (m *Monitor) Pane() terminal.Pane { return m.at.Pane }

// Paths are the files and directories whose changes concern the Turn.
func (m *Monitor) Paths() []string {
	if m.task == nil {
		return m.anchor.Dirs
	}
	return m.adapter.Files(*m.task)
}

// Observed is the result of one observation.
type Observed struct {
	Done  bool          // the Turn ended, or is not this monitor's any more
	Again time.Duration // look again this soon; 0: at the next event or poll
}

// Observe looks once, in the order of core §6. screen is the pane's screen if
// the caller captured it with this poll, else nil.
func (m *Monitor) Observe(ctx context.Context, screen *terminal.Screen) (Observed, error) {
	turn, err := m.desk.Store.CheckMonitor(ctx, m.ref)
	if err != nil {
		return ended(err)
	}
	m.turn = turn
	if m.task == nil {
		return m.seek(ctx, screen)
	}
	p, err := m.read(ctx)
	if err != nil {
		return m.deadline(ctx, err)
	}
	switch p.State {
	case agent.Completed, agent.Failed, agent.Aborted:
		return m.finish(ctx, p)
	case agent.Lost:
		return m.stall(ctx, "the agent ended without completing the task")
	case agent.Broken:
		return m.stall(ctx, "the agent's transcript was replaced, cut or damaged")
	case agent.NextBegan:
		return m.stall(ctx, "the agent began another task and this one has no end on record")
	}
	soon, err := m.prompt(ctx, p, screen)
	if err != nil {
		return ended(err)
	}
	if err := m.alive(ctx, p, screen); err != nil {
		return ended(err)
	}
	return m.goOn(ctx, soon)
}

// ended turns the two errors that mean "not yours any more" into Done.
func ended(err error) (Observed, error) {
	switch fault.CodeOf(err) {
	case fault.LeaseLost, fault.BindingSuperseded, fault.TurnStatusInvalid, fault.NotFound:
		return Observed{Done: true}, nil
	}
	return Observed{}, err
}

func (m *Monitor) read(ctx context.Context) (agent.Progress, error) {
	pctx, cancel := probe(ctx)
	defer cancel()
	return m.adapter.Progress(pctx, *m.task, m.keep.Checkpoint)
}

// seek looks for an acceptance that was still open when send answered.
func (m *Monitor) seek(ctx context.Context, screen *terminal.Screen) (Observed, error) {
	pctx, cancel := probe(ctx)
	acc, verdict, err := m.adapter.Accept(pctx, m.anchor, m.prep)
	cancel()
	if err != nil {
		return m.deadline(ctx, err)
	}
	switch {
	case verdict == agent.Accepted || verdict == agent.Shared:
		sub, err := m.desk.storeAcceptance(ctx, m.ref.Lease, m.ref.MessageID, acc)
		if code := fault.CodeOf(err); code == fault.SubmissionUnfenced || code == fault.SubmissionUncertain {
			return m.unsettled(ctx, store.DispatchUncertain, code, fault.CleanLine(err.Error()))
		}
		if err != nil {
			return ended(err)
		}
		m.turn, m.task = sub.Turn, &acc.Task
		return Observed{Again: time.Millisecond}, nil
	case verdict == agent.Uncertain:
		return m.unsettled(ctx, store.DispatchUncertain, fault.SubmissionUncertain,
			"several records match the request, or the agent's files were replaced")
	case matched(acc):
		return m.goOn(ctx, askingPoll)
	}
	if screen != nil {
		stands, err := m.stands(ctx, *screen)
		if err != nil {
			return m.deadline(ctx, err)
		}
		if stands {
			return m.unsettled(ctx, store.DispatchNotAccepted, fault.SubmissionNotAccept,
				"the draft still stands in the composer: Enter was not taken")
		}
		if alive, known := m.adapter.Alive(ctx, m.anchor.Process); known && !alive {
			return m.unsettled(ctx, store.DispatchUncertain, fault.SubmissionUncertain,
				"the agent ended before the submission was proven")
		}
	}
	return m.deadline(ctx, nil)
}

// stands reports whether it is proven that Enter was not taken. The poll's screen
// alone proves nothing: it may be older than Enter, which the sender may have
// pressed a moment ago, and a busy machine's agent may not have come to Enter yet.
// So standsWait must be over, a screen of now must show the draft, and after it
// there must still be no record.
func (m *Monitor) stands(ctx context.Context, screen terminal.Screen) (bool, error) {
	landed := func(s terminal.Screen) bool {
		reading := m.adapter.Read(m.at.Process.Version, s)
		return reading.State == agent.Idle && m.adapter.Landed(reading.Composer, m.prep)
	}
	if !landed(screen) {
		return false, nil
	}
	x, err := m.desk.Store.Dispatch(ctx, m.ref.MessageID)
	if err != nil {
		return false, err
	}
	if x.Status != store.DispatchEnterDispatched || m.desk.now().UnixMilli() < x.EnterDispatchedAt+standsWait.Milliseconds() {
		return false, nil
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	now, err := m.desk.Tmux.CaptureOne(pctx, m.at.Pane)
	if err != nil || !landed(now) {
		return false, nil //nolint:nilerr // not to be seen is not proven; the next poll looks again
	}
	acc, verdict, err := m.adapter.Accept(pctx, m.anchor, m.prep)
	return verdict == agent.Pending && !matched(acc), err
}

// unsettled ends an open submission without proof; the Turn is stalled and its
// controller told once. While the sender still works on it nothing is decided.
func (m *Monitor) unsettled(ctx context.Context, status string, code fault.Code, why string) (Observed, error) {
	cb, err := m.stallCallback(why)
	if err != nil {
		return Observed{}, err
	}
	_, err = m.desk.Store.SettleDispatch(ctx, m.ref.Lease, store.Settlement{
		MessageID: m.ref.MessageID, Status: status, Code: string(code), Reason: why, Callback: cb,
	})
	if fault.Is(err, fault.DispatchUnresolved) {
		return m.deadline(ctx, nil)
	}
	if err != nil {
		return ended(err)
	}
	return Observed{Done: true}, nil
}

// finish claims a completion that two equal readings, at least secondReading
// apart, agree on. Evidence that keeps changing is never claimed, and does not
// keep the Turn from its deadlines.
func (m *Monitor) finish(ctx context.Context, first agent.Progress) (Observed, error) {
	if err := sleep(ctx, secondReading); err != nil {
		return Observed{}, err
	}
	p, err := m.read(ctx)
	if err != nil {
		return m.deadline(ctx, err)
	}
	if p.State != first.State || p.Fingerprint != first.Fingerprint {
		return m.goOn(ctx, askingPoll)
	}
	outcome, event, body := store.OutcomeSuccess, callback.EventDone, ""
	kind := m.adapter.Kind()
	switch p.State {
	case agent.Completed:
		body = sayDone(kind, m.turn.ID, m.turn.SessionID, p.Text)
	case agent.Failed:
		outcome, event = store.OutcomeFailure, callback.EventError
		body = sayFailed(kind, m.turn.ID, m.turn.SessionID, p.Error)
	default:
		outcome, event = store.OutcomeFailure, callback.EventError
		body = sayInterrupted(kind, m.turn.ID, m.turn.SessionID)
	}
	cb, err := tellTurn(m.turn, store.LaneLifecycle, "completion", callback.Event{
		ID:   callback.TerminalMessageID(m.turn.ID, m.ref.MessageID, p.Fingerprint, outcome),
		Type: event, Body: body,
	})
	if err != nil {
		return Observed{}, err
	}
	m.keep.Checkpoint = p.Checkpoint
	_, err = m.desk.Store.ClaimCompletion(ctx, m.ref, store.Completion{
		Fingerprint: p.Fingerprint, Outcome: outcome, Callback: cb,
		Detail:   canonical(map[string]string{"state": string(p.State), "completion_id": p.ID}),
		Activity: store.Activity{At: m.desk.now().UnixMilli(), State: canonical(m.keep)},
	})
	if err != nil {
		return ended(err)
	}
	m.desk.clearRecord(ctx, m.turn.TerminalKey, recordWait)
	return Observed{Done: true}, nil
}

// alive stores proof of life: new records, or a screen that changed or shows
// work.
func (m *Monitor) alive(ctx context.Context, p agent.Progress, screen *terminal.Screen) error {
	moved := p.Digest != m.keep.Digest
	if screen != nil {
		if digest := hash(screen.Text); digest != m.screen {
			moved = moved || m.screen != ""
			m.screen = digest
		}
		moved = moved || m.adapter.Read(m.at.Process.Version, *screen).State == agent.Working
	}
	if !moved {
		return nil
	}
	m.keep.Digest, m.keep.Checkpoint = p.Digest, p.Checkpoint
	now := m.desk.now()
	m.moved = now
	act := store.Activity{At: now.UnixMilli(), State: canonical(m.keep)}
	var err error
	switch m.turn.Status {
	case store.TurnCreated, store.TurnWaitingForAgent:
		m.turn, err = m.desk.Store.TurnRunning(ctx, m.ref, act)
	default:
		every := min(max(time.Duration(m.turn.InactivityMinutes*float64(30*time.Second)), activityLeast), activityMost)
		if now.Sub(m.written) < every && now.UnixMilli() < m.turn.InactivityDeadlineAt {
			return nil
		}
		m.turn, err = m.desk.Store.TouchActivity(ctx, m.ref, act)
	}
	if err == nil {
		m.written = now
	}
	return err
}

// goOn ends an observation that decided nothing: deadlines count, and the next
// look is this soon.
func (m *Monitor) goOn(ctx context.Context, soon time.Duration) (Observed, error) {
	o, err := m.deadline(ctx, nil)
	if !o.Done {
		o.Again = soon
	}
	return o, err
}

// deadline applies the Turn's two lifetimes; hard first. cause is an
// observation that failed; it only matters when no deadline decides.
func (m *Monitor) deadline(ctx context.Context, cause error) (Observed, error) {
	if m.turn.Status == store.TurnWaitingForController {
		return Observed{}, cause // a person is awaited, not the agent
	}
	now := m.desk.now().UnixMilli()
	if now >= m.turn.InactivityDeadlineAt && m.moved.UnixMilli() > m.turn.LastActivityAt {
		// Proof of life that was seen and not written: it decides now.
		turn, err := m.desk.Store.TouchActivity(ctx, m.ref, store.Activity{At: m.moved.UnixMilli(), State: canonical(m.keep)})
		if err != nil {
			return ended(err)
		}
		m.turn = turn
	}
	switch {
	case m.turn.HardDeadlineAt > 0 && now >= m.turn.HardDeadlineAt:
		return m.stall(ctx, fmt.Sprintf("it is older than its hard lifetime of %g minutes", m.turn.HardMinutes))
	case m.turn.InactivityDeadlineAt > 0 && now >= m.turn.InactivityDeadlineAt:
		return m.stall(ctx, fmt.Sprintf("nothing moved for %g minutes", m.turn.InactivityMinutes))
	}
	return Observed{}, cause
}

func (m *Monitor) stall(ctx context.Context, why string) (Observed, error) {
	if err := m.promptGone(ctx); err != nil {
		return ended(err)
	}
	cb, err := m.stallCallback(why)
	if err != nil {
		return Observed{}, err
	}
	if _, err := m.desk.Store.StallTurn(ctx, m.ref, store.Stall{Reason: why, Callback: cb}); err != nil {
		return ended(err)
	}
	return Observed{Done: true}, nil
}

func (m *Monitor) stallCallback(why string) (*store.NewCallback, error) {
	return stallCallback(m.turn, m.ref.MessageID, m.adapter.Kind(), why)
}

// stallCallback tells that a Turn is stalled. Its id holds the renewal, so that
// a second stall is a second event.
func stallCallback(t store.Turn, message string, kind agent.Kind, why string) (*store.NewCallback, error) {
	return tellTurn(t, store.LaneNotification, "stall", callback.Event{
		ID:   "msg-stall-" + digest(t.ID, message, fmt.Sprint(t.Revision))[:32],
		Type: callback.EventError, Body: sayStalled(kind, t.ID, t.SessionID, why),
		Metadata: map[string]any{"reason": "stalled"},
	})
}
