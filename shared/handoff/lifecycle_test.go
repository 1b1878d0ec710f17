package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

func (p *pane) newThread(call handoff.Call) (handoff.ThreadResult, error) {
	p.w.t.Helper()
	out, err := p.w.desk.NewThread(context.Background(), call, handoff.NewThreadInput{TerminalID: p.id})
	if err != nil {
		return handoff.ThreadResult{}, err
	}
	r := out.Body.(handoff.ThreadResult)
	if out.Failed == (r.Status == "committed" || r.Status == "already_active") {
		p.w.t.Errorf("failed %v with status %s", out.Failed, r.Status)
	}
	return r, nil
}

func (p *pane) resume(thread string) (handoff.ThreadResult, error) {
	p.w.t.Helper()
	out, err := p.w.desk.ResumeThread(context.Background(), newCall(), handoff.ResumeThreadInput{TerminalID: p.id, NativeThreadID: thread})
	if err != nil {
		return handoff.ThreadResult{}, err
	}
	return out.Body.(handoff.ThreadResult), nil
}

func (p *pane) threads() handoff.ThreadsResult {
	p.w.t.Helper()
	out, err := p.w.desk.ListResumableThreads(context.Background(), newCall(), handoff.ListResumableThreadsInput{TerminalID: p.id})
	return body[handoff.ThreadsResult](p.w.t, out, err)
}

func (w *world) sessionOf(id string) store.Session {
	w.t.Helper()
	s, err := w.store.Session(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// done sends a task and follows it to its end.
func (p *pane) done(text string) handoff.SendResult {
	p.w.t.Helper()
	r := p.mustSend(text)
	p.w.follow(r.TurnID)
	return r
}

// unfenced requires that nothing is unresolved on the pane, in the Store and in its
// lock file.
func (p *pane) unfenced() {
	p.w.t.Helper()
	if all, err := p.w.store.Fences(context.Background()); err != nil || len(all) > 0 {
		p.w.t.Errorf("fences %+v %v", all, err)
	}
	if rec, err := terminal.Records(p.w.runDir); err != nil || len(rec) > 0 {
		p.w.t.Errorf("records %+v %v", rec, err)
	}
}

func TestNewThread_ThenResume(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	first := p.done("first")
	old := w.turn(first.TurnID).NativeThreadID
	call := newCall()
	keys := p.keys()
	got, err := p.newThread(call)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if typed := strings.TrimPrefix(p.keys(), keys); typed != "\x1b[200~/clear\x1b[201~\r\x1b[200~/status\x1b[201~\r" {
		t.Errorf("typed %q", typed)
	}
	if got.Status != "committed" || got.Previous != first.SessionID || got.Thread == "" || got.Thread == old || !got.NoTurn {
		t.Fatalf("got %+v", got)
	}
	p.unfenced()
	if a, b := w.sessionOf(first.SessionID), w.sessionOf(got.SessionID); a.Status != store.SessionDetached || b.Status != store.SessionBound || b.PreviousSessionID != a.ID || b.CreatedBy != "new_thread" {
		t.Errorf("sessions %+v %+v", a, b)
	}
	again, err := p.newThread(call)
	if err != nil || !again.Replayed || again.Transition != got.Transition || strings.Count(p.keys(), "/clear") != 1 {
		t.Errorf("the same call: %+v %v", again, err)
	}

	// The earlier thread can be resumed, by its number and as the previous one.
	l := p.threads()
	if len(l.Threads) != 1 || !l.Threads[0].Resumable || l.Threads[0].ThreadID != old || l.Threads[0].SessionID != first.SessionID ||
		l.Threads[0].Preview != "first" || l.Threads[0].Actions["resume_thread"].Tool == "" || !strings.HasPrefix(l.Threads[0].ShortID, "@") {
		t.Fatalf("threads %+v", l.Threads)
	}
	if l.Previous == nil || l.Previous.ThreadID != old || l.Current != got.Thread {
		t.Errorf("previous %+v, current %s", l.Previous, l.Current)
	}
	back, err := p.resume(old)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if back.Status != "committed" || back.SessionID != first.SessionID || back.Thread != old || back.Previous != got.SessionID {
		t.Errorf("got %+v", back)
	}
	p.unfenced()
	if b, err := w.store.Bindings(context.Background(), first.SessionID); err != nil || len(b) != 2 || b[1].ReleasedAt != 0 || b[1].Generation != 2 {
		t.Errorf("bindings %+v %v", b, err)
	}
	if got := p.done("second"); w.turn(got.TurnID).NativeThreadID != old {
		t.Error("the next task went elsewhere")
	}
}

// Proves tools 11.36: resuming the thread that the pane shows types nothing.
func TestResumeThread_AlreadyActive(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	thread := w.turn(p.done("first").TurnID).NativeThreadID
	keys := p.keys()
	got, err := p.resume(strings.ToUpper(thread))
	if err != nil || got.Status != "already_active" || !got.NoOp || got.Transition != "" || got.Thread != thread {
		t.Errorf("got %+v %v", got, err)
	}
	if p.keys() != keys {
		t.Error("something was typed")
	}
	p.unfenced()
	// Also behind a switch, where only the status card on the screen tells.
	fresh, err := p.newThread(newCall())
	if err != nil {
		t.Fatal(err)
	}
	keys = p.keys()
	if got, err = p.resume(fresh.Thread); err != nil || got.Status != "already_active" || got.SessionID != fresh.SessionID || p.keys() != keys {
		t.Errorf("got %+v %v", got, err)
	}
}

// Proves tools 11.37: a thread that another process opened between list and call.
func TestResumeThread_Elsewhere(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	const other = foreign
	copyThread(t, p, w.turn(p.done("first").TurnID).NativeThreadID, other)
	if got := find(p.threads(), other); got == nil || !got.Resumable {
		t.Fatalf("the copied thread: %+v", got)
	}
	flock(t, filepath.Join(p.home, "thread-writer-locks", other+".lock"))
	keys := p.keys()
	_, err := p.resume(other)
	f, _ := fault.As(err)
	if !fault.Is(err, fault.IdentityUnverified) || f.Details["unavailable_reason"] != "active_in_another_process" || !f.Retry {
		t.Errorf("got %v", err)
	}
	if p.keys() != keys {
		t.Error("something was typed")
	}
	if got := find(p.threads(), other); got.Resumable || got.Why != "active_in_another_process" {
		t.Errorf("listed as %+v", got)
	}
	p.unfenced()
	if _, err := p.resume("01a22c87-0000-7c12-b45d-5b387f73b984"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a thread that does not exist: %v", err)
	}
}

func find(l handoff.ThreadsResult, id string) *handoff.ThreadView {
	for i := range l.Threads {
		if l.Threads[i].ThreadID == id {
			return &l.Threads[i]
		}
	}
	return nil
}

// copyThread makes a transcript of another thread out of one.
func copyThread(t *testing.T, p *pane, from, to string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(p.home, "sessions", "*", "*", "*", "*"+from+".jsonl"))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	data, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	path := strings.ReplaceAll(all[0], from, to)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), from, to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Proves tools 11.35: a switch whose outcome is not proven stays unresolved and
// keeps the pane from every send until it is recovered by what the pane shows.
func TestNewThread_Unverified(t *testing.T) {
	w := newWorld(t)
	mute := filepath.Join(w.dir, "mute")
	w.env = []string{scripted.MuteVariable + "=" + mute}
	p := w.agent("100", "40")
	first := p.done("first")
	if err := os.WriteFile(mute, []byte("status"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := p.newThread(newCall())
	if err != nil || got.Status != "uncertain" || !got.DoNotRetry || got.Transition == "" || got.SessionID != "" {
		t.Fatalf("got %+v %v", got, err)
	}
	if _, err := p.send("second"); !fault.Is(err, fault.LifecycleUnresolved) {
		t.Errorf("a send: %v", err)
	}
	if _, err := p.newThread(newCall()); !fault.Is(err, fault.LifecycleUnresolved) {
		t.Errorf("another switch: %v", err)
	}
	if strings.Count(p.keys(), "/clear") != 1 || p.typed("second") != 0 {
		t.Errorf("typed %q", p.keys())
	}
	row := p.row()
	if row.Transition == nil || row.Transition.ID != got.Transition || row.Actions["send"].Tool != "" || row.Actions["new_thread"].Tool != "" {
		t.Errorf("row %+v", row)
	}
	act := row.Actions["close"]
	if act.Arguments["conversation_id"] != p.id || act.Arguments["expected_transition_id"] != got.Transition {
		t.Fatalf("close %+v", act)
	}
	closing := handoff.CloseInput{TurnID: p.id, ExpectedTransitionID: got.Transition}
	keys := p.keys()
	if _, err := w.desk.Close(context.Background(), newCall(), closing); !fault.Is(err, fault.IdentityUnverified) {
		t.Errorf("close without proof: %v", err)
	}
	if _, err := w.desk.Close(context.Background(), newCall(), handoff.CloseInput{TurnID: p.id, ExpectedTransitionID: "transition-x"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("close with another id: %v", err)
	}
	if p.keys() != keys {
		t.Error("close typed")
	}
	// A person asks for the status; now the pane proves the new thread.
	if err := os.Remove(mute); err != nil {
		t.Fatal(err)
	}
	p.human("/status")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Limits:") })
	keys = p.keys()
	out, err := w.desk.Close(context.Background(), newCall(), closing)
	res := body[handoff.CloseResult](t, out, err)
	if !res.Resolved || !res.Recovered || res.Outcome != store.TransitionCommitted || out.Failed {
		t.Errorf("close %+v", res)
	}
	if p.keys() != keys {
		t.Error("close typed")
	}
	p.unfenced()
	if s := w.sessionOf(first.SessionID); s.Status != store.SessionDetached {
		t.Errorf("source %+v", s)
	}
	out, err = w.desk.Close(context.Background(), newCall(), closing)
	if again := body[handoff.CloseResult](t, out, err); again.Outcome != store.TransitionCommitted {
		t.Errorf("close again %+v", again)
	}
	p.done("third")
}

// A command that did nothing is given up by what the pane shows, and the earlier
// Session goes on.
func TestNewThread_CommandWithoutEffect(t *testing.T) {
	w := newWorld(t)
	mute := filepath.Join(w.dir, "mute")
	w.env = []string{scripted.MuteVariable + "=" + mute}
	p := w.agent("100", "40")
	first := p.done("first")
	if err := os.WriteFile(mute, []byte("clear"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := p.newThread(newCall())
	if err != nil || got.Status != "uncertain" {
		t.Fatalf("got %+v %v", got, err)
	}
	out, err := w.desk.Close(context.Background(), newCall(), handoff.CloseInput{TurnID: p.id, ExpectedTransitionID: got.Transition})
	if res := body[handoff.CloseResult](t, out, err); res.Outcome != store.TransitionAborted || !res.Resolved {
		t.Errorf("close %+v", res)
	}
	p.unfenced()
	if s := w.sessionOf(first.SessionID); s.Status != store.SessionBound {
		t.Errorf("source %+v", s)
	}
	tr, err := w.store.Transition(context.Background(), got.Transition)
	if err != nil || tr.Reconciled != store.OutcomeBefore {
		t.Errorf("transition %+v %v", tr, err)
	}
	if again := p.done("second"); again.SessionID != first.SessionID {
		t.Errorf("the next task is of Session %s", again.SessionID)
	}
}

// What keeps a switch from beginning leaves nothing behind.
func TestNewThread_RefusedBeforeInput(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	p.done("first")
	w.tmuxDo("send-keys", "-t", p.tid, "-l", "draft")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "› draft") })
	keys := p.keys()
	_, err := p.newThread(newCall())
	if f, _ := fault.As(err); !fault.Is(err, fault.ComposerNotEmpty) || !f.Retry {
		t.Errorf("a draft: %v", err)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "C-u")
	testkit.Eventually(t, patience, func() bool { return !strings.Contains(p.screen(), "› draft") })
	hold := filepath.Join(w.dir, "go")
	open := p.mustSend("hold:" + hold)
	if _, err := p.newThread(newCall()); !fault.Is(err, fault.SessionBusy) {
		t.Errorf("an open Turn: %v", err)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.follow(open.TurnID)
	if strings.Contains(strings.TrimPrefix(p.keys(), keys), "/clear") {
		t.Error("the command was typed")
	}
	if all, err := w.store.OpenTransitions(context.Background()); err != nil || len(all) > 0 {
		t.Errorf("transitions %+v %v", all, err)
	}
	p.unfenced()
}

// elsewhere is an adapter whose files name another thread than the pane's.
type elsewhere struct {
	agent.Native
	thread *string
}

func (e elsewhere) Identify(ctx context.Context, proc agent.Process) (agent.Identity, error) {
	id, err := e.Native.Identify(ctx, proc)
	if *e.thread != "" && err == nil {
		id.State, id.ThreadID = agent.Resolved, *e.thread
	}
	return id, err
}

const foreign = "01a22c87-235b-7c12-b45d-5b387f73b984"

// Proves tools 11.18 and 11.38: reconciling detaches the Session that was shown, once for
// each offer, and never types.
func TestReconcileBinding(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	first := p.done("first")
	p.human("/clear")
	p.human("/status")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Limits:") })
	keys := p.keys()
	try := func(session string) (handoff.ReconcileResult, error) {
		out, err := w.desk.ReconcileBinding(context.Background(), newCall(), handoff.ReconcileBindingInput{TerminalID: p.id, ConflictingSessionID: session})
		if err != nil {
			return handoff.ReconcileResult{}, err
		}
		return out.Body.(handoff.ReconcileResult), nil
	}
	if _, err := try(first.SessionID); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("without an offer: %v", err)
	}
	row := p.row()
	if row.Management != "conflict" || row.ConflictKind != handoff.KindSwitched {
		t.Fatalf("row %+v\n%s", row, p.screen())
	}
	for name := range row.Actions {
		switch name {
		case "status", "close", "send", "reconcile_binding":
		default:
			t.Errorf("action %s beside a conflict", name)
		}
	}
	if got := row.Actions["reconcile_binding"].Arguments["conflicting_session_id"]; got != first.SessionID {
		t.Errorf("offered for %v", got)
	}
	if _, err := try("session-x"); !fault.Is(err, fault.OfferChanged) {
		t.Errorf("another Session: %v", err)
	}
	if _, err := try(first.SessionID); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("a failed call used the offer up: %v", err)
	}
	p.row()
	other := handoff.New(handoff.Options{
		Store: w.store, Leases: w.desk.Leases, Tmux: w.tmux, Agents: w.desk.Agents, RuntimeDir: w.runDir, Controller: "another", Log: w.desk.Log,
	})
	if _, err := other.ReconcileBinding(context.Background(), newCall(), handoff.ReconcileBindingInput{TerminalID: p.id, ConflictingSessionID: first.SessionID}); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("from another controller session: %v", err)
	}
	got, err := try(first.SessionID)
	if err != nil || got.Status != store.SessionDetached || got.Kind != handoff.KindSwitched {
		t.Fatalf("got %+v %v", got, err)
	}
	if _, err := try(first.SessionID); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("a second time: %v", err)
	}
	if p.keys() != keys {
		t.Error("something was typed")
	}
	if row := p.row(); row.Management != "unmanaged" || row.Actions["new_thread"].Tool == "" {
		t.Errorf("row afterwards %+v", row)
	}
}

// Where the pane cannot be proven to show another thread nothing is detached.
func TestReconcileBinding_ConflictGone(t *testing.T) {
	w := newWorld(t)
	thread := foreign
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return elsewhere{a.(agent.Native), &thread} })
	thread = ""
	p := w.agent("100", "40")
	first := p.done("first")
	thread = foreign
	if row := p.row(); row.ConflictKind != handoff.KindSwitched {
		t.Fatalf("row %+v", row)
	}
	thread = ""
	_, err := w.desk.ReconcileBinding(context.Background(), newCall(), handoff.ReconcileBindingInput{TerminalID: p.id, ConflictingSessionID: first.SessionID})
	f, _ := fault.As(err)
	if !fault.Is(err, fault.TurnStatusInvalid) || f.Details["conflict_kind"] != handoff.KindExact {
		t.Errorf("got %v", err)
	}
	if s := w.sessionOf(first.SessionID); s.Status != store.SessionBound {
		t.Errorf("session %+v", s)
	}
}

// A Turn whose pane a person has switched is given up only by the decision that
// list offered.
func TestHandoff_TakeOver(t *testing.T) {
	w := newWorld(t)
	thread := ""
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { return elsewhere{a.(agent.Native), &thread} })
	p := w.agent("100", "40")
	hold := filepath.Join(w.dir, "go")
	sent := p.mustSend("hold:" + hold)
	closing := handoff.CloseInput{TurnID: sent.TurnID, Reason: "superseded_by_human_context_switch"}
	if _, err := w.desk.Close(context.Background(), newCall(), closing); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("without an offer: %v", err)
	}
	thread = foreign
	row := p.row()
	if row.HandoffState == "" || row.Handoff == nil || row.Handoff.TurnID != sent.TurnID {
		t.Fatalf("row %+v", row)
	}
	act := row.Handoff.Choices["take_over_current"].Action
	if act == nil || act.Arguments["reason"] != closing.Reason || act.Arguments["turn_id"] != sent.TurnID || !act.RequiresConfirmation {
		t.Fatalf("action %+v", act)
	}
	p.unchanged("an interrupt for the person's own work", func() {
		if _, err := w.desk.Cancel(context.Background(), newCall(), handoff.CancelInput{TurnID: sent.TurnID}); !fault.Is(err, fault.TerminalChanged) {
			t.Errorf("cancel: %v", err)
		}
	})
	thread = ""
	if _, err := w.desk.Close(context.Background(), newCall(), closing); !fault.Is(err, fault.OfferChanged) {
		t.Errorf("the person came back: %v", err)
	}
	thread = foreign
	p.row()
	out, err := w.desk.Close(context.Background(), newCall(), closing)
	if res := body[handoff.CloseResult](t, out, err); !res.Closed || res.Reason != closing.Reason {
		t.Errorf("close %+v", res)
	}
	if got := w.turn(sent.TurnID); got.Status != store.TurnClosed {
		t.Errorf("turn %+v", got)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if row := p.row(); row.Actions["reconcile_binding"].Tool == "" {
		t.Errorf("row afterwards %+v", row)
	}
}

// dead is a store of a program that ended: its holder is nobody.
func (w *world) dead(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: w.store.Dir(), Program: "bridge", Holder: "bridge/gone/4194303/" + strings.Repeat("0", 8)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Proves core 19.51: recovery of an adoption types nothing, whatever was left.
// Proves core 19.50: prepared is given up, verified is committed, dispatching is in
// doubt; each without a key.
func TestRecover_Transitions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		left, want string
		adopt      bool
	}{
		{left: store.TransitionPrepared, want: store.TransitionAborted},
		{left: store.TransitionDispatching, want: store.TransitionUncertain},
		{left: store.TransitionSubmitted, want: store.TransitionAborted}, // the pane still shows the earlier thread
		{left: store.TransitionVerified, want: store.TransitionCommitted},
		{left: store.TransitionPrepared, want: store.TransitionAborted, adopt: true},
		{left: store.TransitionVerified, want: store.TransitionCommitted, adopt: true},
	} {
		t.Run(c.left, func(t *testing.T) {
			w := newWorld(t)
			p := w.agent("100", "40")
			first := p.done("first")
			keys := p.keys()
			id := w.leave(t, p, first, c.left, c.adopt)
			if f, ok, err := w.store.Fence(context.Background(), w.terminalKey(first)); err != nil || !ok || f.RefID != id {
				t.Fatalf("fence %+v %v %v", f, ok, err)
			}
			if _, err := p.send("second"); !fault.Is(err, fault.LifecycleUnresolved) {
				t.Errorf("a send meanwhile: %v", err)
			}
			w.desk.Recover(context.Background(), "")
			tr, err := w.store.Transition(context.Background(), id)
			if err != nil || tr.Status != c.want {
				t.Fatalf("got %s %v, want %s", tr.Status, err, c.want)
			}
			if p.keys() != keys {
				t.Error("recovery typed")
			}
			if c.want != store.TransitionUncertain {
				p.unfenced()
				return
			}
			if _, ok, err := w.store.Fence(context.Background(), tr.TerminalKey); err != nil || !ok {
				t.Error("the fence is gone")
			}
			w.desk.Recover(context.Background(), "")
			if tr, err = w.store.Transition(context.Background(), id); err != nil || tr.Status != store.TransitionUncertain {
				t.Errorf("a second pass: %s %v", tr.Status, err)
			}
		})
	}
}

// A verified switch to a thread that another Session took before the commit is
// given up where the pane shows the earlier thread: it does not block for ever.
func TestClose_VerifiedCannotBeCommitted(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p, q := w.agent("100", "40"), w.agent("100", "40")
	first, taken := p.done("first"), q.done("taken")
	id := w.leave(t, p, first, store.TransitionSubmitted, false)
	key := w.terminalKey(first)
	l, err := w.store.Await(ctx, store.TerminalLease(key), store.TerminalTTL, patience)
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.store.Binding(ctx, w.turn(first.TurnID).BindingID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.VerifyTransition(ctx, l, store.Verification{
		ID: id, Thread: w.turn(taken.TurnID).NativeThreadID, Evidence: []byte(`{}`),
		Binding: store.NewBinding{
			TerminalID: b.TerminalID, TerminalKey: key, IncarnationKey: b.IncarnationKey, Endpoint: b.Endpoint, PID: b.PID, Evidence: b.Evidence,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	out, err := w.desk.Close(ctx, newCall(), handoff.CloseInput{TurnID: p.id, ExpectedTransitionID: id})
	if res := body[handoff.CloseResult](t, out, err); res.Outcome != store.TransitionAborted {
		t.Errorf("close %+v", res)
	}
	p.unfenced()
	if ses := w.sessionOf(first.SessionID); ses.Status != store.SessionBound {
		t.Errorf("source %+v", ses)
	}
}

func (w *world) terminalKey(r handoff.SendResult) string {
	w.t.Helper()
	return w.turn(r.TurnID).TerminalKey
}

// leave makes a transition as a program would that ended at a status.
func (w *world) leave(t *testing.T, p *pane, r handoff.SendResult, status string, adopt bool) string {
	t.Helper()
	ctx := context.Background()
	s := w.dead(t)
	turn := w.turn(r.TurnID)
	b, err := s.Binding(ctx, turn.BindingID)
	if err != nil {
		t.Fatal(err)
	}
	ses := w.sessionOf(r.SessionID)
	l, err := s.Acquire(ctx, store.TerminalLease(b.TerminalKey), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	row := store.NewTransition{
		ID: "transition-left", ToolCallID: "left", Operation: store.OpNewThread, InputPossible: true, TerminalID: p.id, TerminalKey: b.TerminalKey,
		IncarnationKey: b.IncarnationKey, Agent: "codex", Workspace: ses.Workspace, SourceID: ses.ID, SourceRevision: ses.Revision, TargetID: "session-left",
		Before:         []byte(`{"version":1,"thread":"` + turn.NativeThreadID + `","known":["` + turn.NativeThreadID + `"],"place":` + string(b.Endpoint) + `}`),
		AdapterVersion: scripted.Version, Command: "x",
	}
	if adopt {
		row.ToolCallID, row.Operation, row.Origin, row.InputPossible, row.TargetThread = "", store.OpAdopt, "human_observed", false, foreign
	}
	if _, _, err := s.PrepareTransition(ctx, l, row); err != nil {
		t.Fatal(err)
	}
	step := func(_ store.Transition, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if status != store.TransitionPrepared && !adopt {
		step(s.MarkDispatching(ctx, l, row.ID))
		if status != store.TransitionDispatching {
			step(s.TransitionTyped(ctx, l, row.ID))
		}
	}
	if status == store.TransitionVerified {
		step(s.VerifyTransition(ctx, l, store.Verification{ID: row.ID, Thread: foreign, Evidence: []byte(`{}`), Binding: store.NewBinding{
			TerminalID: b.TerminalID, TerminalKey: b.TerminalKey, IncarnationKey: b.IncarnationKey, Endpoint: b.Endpoint, PID: b.PID, Evidence: "test",
		}}))
	}
	return row.ID
}
