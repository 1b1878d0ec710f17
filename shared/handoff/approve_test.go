package handoff_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// watchUntilWaiting drives the Turn's monitor until a prompt is notified.
func (w *world) watchUntilWaiting(turn string) {
	w.t.Helper()
	m, release := w.monitor(turn)
	defer release()
	w.lookUntil(m, func() bool { return w.turn(turn).Status == store.TurnWaitingForController })
}

func (w *world) lookUntil(m *handoff.Monitor, ok func() bool) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() bool {
		o, err := m.Observe(context.Background(), w.capture(m.Pane()))
		if err != nil {
			w.t.Fatal(err)
		}
		return ok() || o.Done
	}, "the turn waits")
}

func (w *world) status(turn string) handoff.TurnStatus {
	w.t.Helper()
	out, err := w.desk.Status(context.Background(), handoff.StatusInput{TurnID: turn})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Body.(handoff.TurnStatus)
}

func (w *world) approve(in handoff.ApproveInput) (handoff.ApproveResult, error) {
	w.t.Helper()
	out, err := w.desk.Approve(context.Background(), handoff.Call{}, in)
	if err != nil {
		return handoff.ApproveResult{}, err
	}
	return out.Body.(handoff.ApproveResult), nil
}

// refused wants a refusal that presses nothing.
func (p *pane) refusedApprove(in handoff.ApproveInput, want fault.Code) {
	p.w.t.Helper()
	p.unchanged("a refused approve", func() {
		if _, err := p.w.approve(in); !fault.Is(err, want) {
			p.w.t.Errorf("approve: %v, want %s", err, want)
		}
	})
}

func (w *world) approvals(turn string) []store.Approval {
	w.t.Helper()
	rows, err := w.store.Approvals(context.Background(), turn)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

// asked sends a request and waits until its first prompt is notified.
func (p *pane) asked(request string) string {
	p.w.t.Helper()
	turn := p.mustSend(request).TurnID
	p.w.watchUntilWaiting(turn)
	return turn
}

// stable is what stays of a prompt while its highlight moves.
func stable(p agent.Prompt) string {
	if p.Stable == "" {
		return p.Digest
	}
	return p.Stable
}

// A Store that is only read shows what waits and offers nothing.
func TestStatus_ApprovalInAReadOnlyStore(t *testing.T) {
	w := newWorld(t)
	turn := w.agent().asked("one run:touch_a.txt")
	s, err := store.Open(context.Background(), store.Options{Dir: w.store.Dir(), Program: "bridge", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.desk = w.newDesk(s)
	st := w.status(turn)
	if a := st.Terminal.Approval; a == nil || a.Command != "touch a.txt" {
		t.Errorf("approval state %+v", a)
	}
	if a := st.Actions["approve"]; a.Tool != "" {
		t.Errorf("action %+v", a)
	}
}

// A prompt that status showed is approved with one key; the Turn goes on to its
// end, and asking again presses nothing. Proves tools 11.24, and 11.40: nothing but a
// look of this session makes an offer.
func TestApprove_Once(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := p.asked("one run:touch_a.txt")
	if rows := w.callbacks(turn); len(rows) != 1 || rows[0].EventType != "question" || !strings.Contains(rows[0].Body, "touch a.txt") {
		t.Errorf("callbacks %+v", rows)
	}
	in := handoff.ApproveInput{TurnID: turn}
	p.refusedApprove(in, fault.OfferMissing) // nobody looked
	st := w.status(turn)
	if a := st.Terminal.Approval; a == nil || !a.Approvable || a.DecisionMode != "keys" || a.Command != "touch a.txt" || a.PromptKind != "run_command" {
		t.Errorf("approval state %+v", a)
	}
	if a := st.Actions["approve"]; a.Tool != "agent_knock_knock_approve" || a.Arguments["turn_id"] != turn || !a.RequiresFreshStatus || !a.RequiresConfirmation {
		t.Errorf("action %+v", a)
	}
	// What another controller session was shown is not this one's, and the reverse.
	o := w.desk.Options
	o.Controller = "another-session-id"
	p.unchanged("approve of another session", func() {
		if _, err := handoff.New(o).Approve(context.Background(), handoff.Call{}, in); !fault.Is(err, fault.OfferMissing) {
			t.Errorf("another session: %v", err)
		}
	})
	row := w.list().Terminals[0]
	if !row.ApprovalState.Approvable || row.Actions["approve"].Arguments["turn_id"] != turn {
		t.Errorf("row %+v", row)
	}
	before := p.keys()
	res, err := w.approve(in)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if !res.Approved || res.Decision != "approve_once" || res.AlreadyApproved {
		t.Errorf("result %+v", res)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "y" {
		t.Errorf("pressed %q", got)
	}
	if a := w.approvals(turn); len(a) != 1 || a[0].State != "consumed" || a[0].DecidedBy != "user" || a[0].ClearedAt == 0 {
		t.Errorf("approvals %+v", a)
	}
	if rows := w.callbacks(turn); rows[0].Status != store.CallbackSuperseded {
		t.Errorf("its notification is %s", rows[0].Status)
	}
	p.unchanged("approve again", func() {
		if again, err := w.approve(in); err != nil || !again.AlreadyApproved || !again.Approved {
			t.Errorf("again: %+v %v", again, err)
		}
	})
	if turn := w.follow(turn); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s", turn.Status)
	}
	if rows := w.callbacks(turn); len(rows) != 2 || rows[1].EventType != "done" {
		t.Errorf("callbacks %+v", rows)
	}
}

// A rejection ends the agent's turn, which is told; nothing is pressed but Escape.
func TestApprove_Reject(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := p.asked("two run:rm_-r_x")
	w.status(turn)
	before := p.keys()
	res, err := w.approve(handoff.ApproveInput{TurnID: turn, Decision: "reject"})
	if err != nil || res.Approved || res.Decision != "reject" {
		t.Fatalf("%+v %v", res, err)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "\x1b" {
		t.Errorf("pressed %q", got)
	}
	if got := w.follow(turn); got.Status != store.TurnFailed {
		t.Errorf("turn is %s", got.Status)
	}
}

// Two prompts of one turn: what was shown of the first decides nothing about the
// second, a second look makes the offer good only once it was used up, and each
// prompt gets one key. Proves tools 11.25 and 11.27.
func TestApprove_ChangedPrompt(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := p.asked("both run:touch_a run:touch_b")
	in := handoff.ApproveInput{TurnID: turn}
	w.status(turn)
	w.tmuxDo("send-keys", "-t", p.tid, "-l", "y") // the human is faster
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "touch b") }, "the second dialog")
	p.refusedApprove(in, fault.OfferChanged)
	p.refusedApprove(in, fault.OfferMissing) // it is used up

	w.status(turn) // the second dialog, which no monitor has met yet
	if a := w.status(turn).Terminal.Approval; a.Approvable || !strings.Contains(a.Reason, "not noticed yet") {
		t.Errorf("approval state %+v", a)
	}
	m, release := w.monitor(turn)
	w.lookUntil(m, func() bool { return len(w.approvals(turn)) == 2 })
	release()
	w.status(turn)
	before := p.keys()
	if _, err := w.approve(in); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "y" {
		t.Errorf("pressed %q", got)
	}
	if got := w.follow(turn); got.Status != store.TurnIdle {
		t.Errorf("turn is %s", got.Status)
	}
}

// status(A), the prompt changes, status(B): the offer is invalid whatever is shown
// next, until an attempt has used it up. One changed byte of the region is a
// change; what moves outside is none. Proves core 19.54 and tools 11.27.
func TestApprove_OneByte(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	turn := p.asked("bytes run:touch_a")
	in := handoff.ApproveInput{TurnID: turn}
	w.status(turn)
	b.read = func(r agent.Reading) agent.Reading { // the bytes differ, the text does not
		if r.Prompt != nil {
			q := *r.Prompt
			q.Stable = stable(q)
			q.Digest = "other-" + q.Digest
			r.Prompt = &q
		}
		return r
	}
	p.refusedApprove(in, fault.OfferChanged)
	b.read = nil
	w.status(turn)
	b.read = func(r agent.Reading) agent.Reading { // something else on the screen
		r.Composer.Draft = time.Now().String()
		return r
	}
	if _, err := w.approve(in); err != nil {
		t.Errorf("a change outside the region: %v", err)
	}
	b.read = nil
	w.follow(turn)
}

// An offer that was seen to change is invalid, and stays so although the first
// prompt is shown again. Proves tools 11.25's rule of sticky invalidation.
func TestApprove_OfferInvalidated(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	turn := p.asked("sticky run:touch_a")
	in := handoff.ApproveInput{TurnID: turn}
	w.status(turn)
	b.read = func(r agent.Reading) agent.Reading {
		if r.Prompt != nil {
			q := *r.Prompt
			q.Stable = stable(q)
			q.Digest = "other-" + q.Digest
			r.Prompt = &q
		}
		return r
	}
	w.status(turn)
	b.read = nil
	w.status(turn)
	p.refusedApprove(in, fault.OfferMissing)
	w.status(turn)
	before := p.keys()
	if _, err := w.approve(in); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "y" {
		t.Errorf("pressed %q", got)
	}
	w.follow(turn)
}

// A dialog that is cut, has no proven answer, or is of a call that the records do
// not show is told as blocked and never decided.
func TestApprove_NotApprovable(t *testing.T) {
	t.Parallel()
	for name, bendTo := range map[string]func(*agent.Prompt){
		"cut":             func(q *agent.Prompt) { q.Cut, q.Approve = true, nil },
		"no proven key":   func(q *agent.Prompt) { q.Approve = nil },
		"another command": func(q *agent.Prompt) { q.Command = "rm -rf /" },
		"another kind":    func(q *agent.Prompt) { q.Kind = "mcp_tool" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b, p := w.bend(), w.agent()
			b.read = func(r agent.Reading) agent.Reading {
				if r.Prompt != nil {
					q := *r.Prompt
					bendTo(&q)
					r.Prompt = &q
				}
				return r
			}
			turn := p.asked("blocked run:touch_a")
			if rows := w.callbacks(turn); len(rows) != 1 || rows[0].EventType != "blocked" {
				t.Errorf("callbacks %+v", rows)
			}
			st := w.status(turn)
			if a := st.Terminal.Approval; a.Approvable || a.Reason == "" || st.Actions["approve"].Tool != "" {
				t.Errorf("approval state %+v", a)
			}
			p.refusedApprove(handoff.ApproveInput{TurnID: turn}, fault.OfferMissing)
			b.read = nil
			w.tmuxDo("send-keys", "-t", p.tid, "-l", "y")
			if got := w.follow(turn); got.Status != store.TurnIdle {
				t.Errorf("turn is %s", got.Status)
			}
		})
	}
}

// An untested version is observed and sent to, and not decided for unless the
// operator says so.
func TestApprove_UntestedVersion(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	b.class = agent.Untested
	turn := p.asked("untested run:touch_a")
	if st := w.status(turn); st.Terminal.Approval.Approvable || !strings.Contains(st.Terminal.Approval.Reason, "not tested") {
		t.Errorf("approval state %+v", st.Terminal.Approval)
	}
	o := w.desk.Options
	o.Untested = handoff.UntestedAll
	w.desk = handoff.New(o)
	w.status(turn)
	if _, err := w.approve(handoff.ApproveInput{TurnID: turn}); err != nil {
		t.Error(err)
	}
	w.follow(turn)
}

// A dialog whose answer takes several keys: one is pressed, its effect is waited
// for, and the deciding key is pressed only where it is the last one.
func TestApprove_SeveralKeys(t *testing.T) {
	w := newWorld(t)
	b, p := w.bend(), w.agent()
	// The scripted agent ignores Tab; the bent reading moves the highlight with it.
	tabs := func() int { return strings.Count(p.keys(), "\t") }
	b.read = func(r agent.Reading) agent.Reading {
		if r.Prompt != nil {
			q := *r.Prompt
			moved := min(tabs(), 2)
			q.Stable, q.Digest = stable(q), fmt.Sprint(q.Digest, moved)
			q.Approve = []terminal.Key{terminal.Tab, terminal.Tab, terminal.Yes}[moved:]
			r.Prompt = &q
		}
		return r
	}
	turn := p.asked("keys run:touch_a")
	w.status(turn)
	before := p.keys()
	if _, err := w.approve(handoff.ApproveInput{TurnID: turn}); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "\t\ty" {
		t.Errorf("pressed %q", got)
	}
	w.follow(turn)

	b.read = func(r agent.Reading) agent.Reading {
		if r.Prompt != nil { // the highlight does not follow
			q := *r.Prompt
			q.Stable = stable(q)
			q.Approve = []terminal.Key{terminal.Tab, terminal.Yes}
			r.Prompt = &q
		}
		return r
	}
	turn = p.asked("stuck run:touch_a")
	w.status(turn)
	before = p.keys()
	if _, err := w.approve(handoff.ApproveInput{TurnID: turn}); !fault.Is(err, fault.SubmissionUncertain) {
		t.Errorf("approve: %v", err)
	}
	if got := strings.TrimPrefix(p.keys(), before); strings.Contains(got, "y") || got == "" {
		t.Errorf("pressed %q", got)
	}
	w.status(turn)
	p.refusedApprove(handoff.ApproveInput{TurnID: turn}, fault.OfferMissing)
}

// The pane of a task that a human started: its approval is decided without a row,
// once for each look. Watches are never approved.
func TestApprove_Terminal(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	in := handoff.ApproveInput{TerminalID: p.id}
	p.human("mine run:touch_a run:touch_b")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "touch a") }, "dialog")
	p.refusedApprove(in, fault.OfferMissing)
	look := func() handoff.TerminalLook {
		t.Helper()
		out, err := w.desk.Status(context.Background(), handoff.StatusInput{TerminalID: p.id})
		if err != nil {
			t.Fatal(err)
		}
		return out.Body.(handoff.TerminalLook)
	}
	if l := look(); !l.Status.Approval.Approvable || l.Actions["approve"].Arguments["terminal_id"] != p.id || l.Status.Approval.Command != "touch a" {
		t.Fatalf("look %+v", l)
	}
	if row := w.list().Terminals[0]; row.Actions["approve"].Arguments["terminal_id"] != p.id {
		t.Errorf("row %+v", row.Actions)
	}
	before := p.keys()
	if res, err := w.approve(in); err != nil || !res.Approved || res.TerminalID != p.id {
		t.Fatalf("%+v %v", res, err)
	}
	if got := strings.TrimPrefix(p.keys(), before); got != "y" {
		t.Errorf("pressed %q", got)
	}
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "touch b") }, "the second dialog")
	p.refusedApprove(in, fault.OfferMissing)
	if turns, err := w.store.Turns(context.Background(), store.TurnFilter{Limit: 10}); err != nil || len(turns) != 0 {
		t.Errorf("turns %v %v", turns, err)
	}
	look()
	if _, err := p.watch(); err != nil {
		t.Fatal(err)
	}
	p.refusedApprove(in, fault.ActionNotAdvertised)
	if l := look(); l.Status.Approval.Approvable || l.Actions["approve"].Tool != "" {
		t.Errorf("a watched pane: %+v", l)
	}
}

// A pane whose work belongs to a Turn is decided by the Turn alone.
func TestApprove_TerminalOfATurn(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	p.human("mine run:touch_a")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "touch a") }, "dialog")
	out, err := w.desk.Status(context.Background(), handoff.StatusInput{TerminalID: p.id})
	if err != nil || !out.Body.(handoff.TerminalLook).Status.Approval.Approvable {
		t.Fatal(out, err)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "-l", "y")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "ECHO: mine") }, "the end")
	p.asked("theirs run:touch_a")
	p.refusedApprove(handoff.ApproveInput{TerminalID: p.id}, fault.ActiveOwner)
}
