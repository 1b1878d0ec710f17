package handoff_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

// body gives the result of a call that must not refuse.
func body[T any](t *testing.T, out handoff.Outcome, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := out.Body.(T)
	if !ok {
		t.Fatalf("got %T", out.Body)
	}
	return got
}

func (p *pane) inspect() (handoff.InspectResult, error) {
	p.w.t.Helper()
	out, err := p.w.desk.NativeInspect(context.Background(), newCall(), handoff.NativeInspectInput{TerminalID: p.id, Inspection: "status"})
	if err != nil {
		return handoff.InspectResult{}, err
	}
	return out.Body.(handoff.InspectResult), nil
}

func (p *pane) identify() (handoff.InspectResult, error) {
	p.w.t.Helper()
	out, err := p.w.desk.IdentifyForeground(context.Background(), newCall(), handoff.IdentifyForegroundInput{TerminalID: p.id})
	if err != nil {
		return handoff.InspectResult{}, err
	}
	return out.Body.(handoff.InspectResult), nil
}

func (p *pane) row() handoff.Row {
	p.w.t.Helper()
	for _, r := range p.w.list().Terminals {
		if r.ID == p.id {
			return r
		}
	}
	p.w.t.Fatalf("no row for %s", p.id)
	return handoff.Row{}
}

// enters counts Enter, from whomever.
func (p *pane) enters() int { p.w.t.Helper(); return strings.Count(p.keys(), "\r") }

// storeDigest is over the database and its log as they are on disk.
func (w *world) storeDigest() string {
	w.t.Helper()
	h := sha256.New()
	for _, name := range []string{"store.db", "store.db-wal"} {
		b, err := os.ReadFile(filepath.Join(w.store.Dir(), name))
		if err != nil && !os.IsNotExist(err) {
			w.t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Proves tools 11.21: native_inspect presses Enter exactly once and leaves every
// byte of the Store as it was.
func TestNativeInspect(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	before, keys := w.storeDigest(), p.keys()
	got, err := p.inspect()
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if w.storeDigest() != before {
		t.Error("the Store changed")
	}
	if typed := strings.TrimPrefix(p.keys(), keys); typed != "\x1b[200~/status\x1b[201~\r" {
		t.Errorf("typed %q", typed)
	}
	if got.Status != "observed" || got.NativeThread == "" || got.Profile == "" || got.AgentVersion != scripted.Version ||
		got.Submission != (handoff.NativeSubmission{Command: "/status", Enters: 1}) || got.Dismissal != nil || got.Proof != nil {
		t.Errorf("got %+v", got)
	}
	if got.Mutation || got.Session || got.Turn || got.Receipt || got.Monitor || got.Callback {
		t.Errorf("it says that something was made: %+v", got)
	}
	if got.Native.Kind != "status_card" || len(got.Native.Fields) != 6 || !strings.Contains(got.Native.Excerpt, got.NativeThread) {
		t.Errorf("status %+v", got.Native)
	}
	if row := p.row(); row.Management != "unmanaged" || row.Actions["native_inspect"].Tool == "" || row.Actions["identify_foreground"].Tool != "" {
		t.Errorf("row %+v", row)
	}
	if again, err := p.inspect(); err != nil || again.NativeThread != got.NativeThread {
		t.Errorf("a second call: %v", err)
	}
}

func TestNativeInspect_Refusals(t *testing.T) {
	w := newWorld(t)
	small := w.agent("100", "20")
	if _, err := small.inspect(); !fault.Is(err, fault.ObservationUnavail) {
		t.Errorf("a pane of 20 rows: %v", err)
	}
	if acts := small.row().Actions; acts["native_inspect"].Tool != "" || acts["new_thread"].Tool != "" || acts["send"].Tool == "" {
		t.Errorf("actions of a pane of 20 rows: %v", acts)
	}
	p := w.agent("100", "40")
	refused := func(why string, want fault.Code) {
		t.Helper()
		before := p.enters()
		_, err := p.inspect()
		f, _ := fault.As(err)
		if !fault.Is(err, want) || f.Input != fault.InputNone && f.Input != "" || !f.Retry {
			t.Errorf("%s: %v, want %s", why, err, want)
		}
		if p.enters() != before {
			t.Errorf("%s: Enter was pressed", why)
		}
	}
	if _, err := w.desk.NativeInspect(context.Background(), newCall(), handoff.NativeInspectInput{TerminalID: p.id, Inspection: "model"}); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("another inspection: %v", err)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "-l", "draft")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "› draft") })
	refused("a draft", fault.ComposerNotEmpty)
	w.tmuxDo("send-keys", "-t", p.tid, "C-u")
	testkit.Eventually(t, patience, func() bool { return !strings.Contains(p.screen(), "› draft") })
	w.tmuxDo("copy-mode", "-t", p.tid)
	refused("copy mode", fault.TerminalNotIdle)
	w.tmuxDo("send-keys", "-t", p.tid, "-X", "cancel")
	hold := filepath.Join(w.dir, "go")
	turn := p.mustSend("hold:" + hold)
	refused("an open Turn", fault.ActiveOwner)
	if row := p.row(); row.Actions["native_inspect"].Tool != "" || row.Actions["new_thread"].Tool != "" {
		t.Errorf("actions beside an open Turn: %v", row.Actions)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.follow(turn.TurnID)
}

// What the agent shows after Enter is proven, or nothing is claimed.
func TestNativeInspect_NoCard(t *testing.T) {
	w := newWorld(t)
	mute := filepath.Join(w.dir, "mute")
	w.env = []string{scripted.MuteVariable + "=" + mute}
	p := w.agent("100", "40")
	if err := os.WriteFile(mute, []byte("status"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := p.inspect()
	f, _ := fault.As(err)
	if !fault.Is(err, fault.SubmissionUncertain) || f.Input != fault.InputPossible || f.Retry {
		t.Errorf("got %v", err)
	}
	if p.enters() != 1 {
		t.Errorf("%d times Enter", p.enters())
	}
}

// Proves tools 11.22: the proof is shown once, kept nowhere, and no tool takes it.
func TestIdentifyForeground(t *testing.T) {
	w := newWorld(t)
	w.env = []string{scripted.ThreadsVariable + "=2"}
	p := w.agent("100", "40")
	if row := p.row(); row.Actions["identify_foreground"].Tool == "" || row.Actions["identify_and_send"].Tool == "" || row.Actions["native_inspect"].Tool != "" {
		t.Fatalf("actions %v", row.Actions)
	}
	before := w.storeDigest()
	got, err := p.identify()
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if w.storeDigest() != before {
		t.Error("the Store changed")
	}
	if got.Proof == nil || got.Proof.Grants || got.Proof.Scope != "ephemeral_diagnostic_only" || got.Proof.TTL != 30_000 || got.Proof.NativeThread != got.NativeThread {
		t.Errorf("proof %+v", got.Proof)
	}
	if p.enters() != 1 {
		t.Errorf("%d times Enter", p.enters())
	}
	// A strict send stays refused, and what list shows names no thread.
	row := p.row()
	if row.IdentityState != string(agent.Ambiguous) || row.Managed != nil {
		t.Errorf("row %+v", row)
	}
	sent := p.mustSend("first")
	w.follow(sent.TurnID)
	if _, err := p.identify(); err != nil {
		t.Fatal(err)
	}
	out, err := w.desk.Send(context.Background(), newCall(), handoff.SendInput{SessionID: sent.SessionID, Request: "second"})
	if !fault.Is(err, fault.IdentityUnverified) {
		t.Errorf("a strict send behind a proof: %+v %v", out.Body, err)
	}
	if p.typed("second") != 0 {
		t.Error("it was typed")
	}
}

// Where the files say which thread runs there is nothing to ask the agent.
func TestIdentifyForeground_KnownThread(t *testing.T) {
	w := newWorld(t)
	p := w.agent("100", "40")
	if _, err := p.identify(); !fault.Is(err, fault.ActionNotAdvertised) {
		t.Errorf("a pane whose thread is known: %v", err)
	}
}

func (p *pane) identifyAndSend(call handoff.Call, text string) (handoff.IdentifyAndSendResult, error) {
	p.w.t.Helper()
	call.Tool = "agent_knock_knock_identify_and_send"
	out, err := p.w.desk.IdentifyAndSend(context.Background(), call, handoff.IdentifyAndSendInput{TerminalID: p.id, Request: text})
	if err != nil {
		return handoff.IdentifyAndSendResult{}, err
	}
	return out.Body.(handoff.IdentifyAndSendResult), nil
}

func (w *world) epoch(p *pane) int64 {
	w.t.Helper()
	rows, err := w.store.Leases(context.Background(), "terminal/")
	if err != nil {
		w.t.Fatal(err)
	}
	var sum int64
	for _, r := range rows {
		sum += r.Epoch
	}
	return sum
}

// Proves tools 11.13 and 11.23: one lease epoch from probe to request; a replay repeats
// neither.
func TestIdentifyAndSend(t *testing.T) {
	w := newWorld(t)
	w.env = []string{scripted.ThreadsVariable + "=2"}
	p := w.agent("100", "40")
	before := w.epoch(p)
	call := newCall()
	got, err := p.identifyAndSend(call, "the task")
	if err != nil {
		t.Fatalf("%v\n%s", err, p.screen())
	}
	if got.Outcome != "agent_accepted" || got.Proof == nil || got.Proof.NativeThread == "" {
		t.Errorf("got %+v", got)
	}
	if after := w.epoch(p); after != before+1 {
		t.Errorf("the pane was taken %d times", after-before)
	}
	keys := p.keys()
	if strings.Count(keys, "/status") != 1 || strings.Count(keys, "the task") != 1 || p.enters() != 2 {
		t.Errorf("typed %q", keys)
	}
	if b := w.turn(got.TurnID); b.NativeThreadID != got.Proof.NativeThread {
		t.Errorf("accepted in %s, shown was %s", b.NativeThreadID, got.Proof.NativeThread)
	}
	again, err := p.identifyAndSend(call, "the task")
	if err != nil || !again.Replayed || again.Proof != nil || p.keys() != keys {
		t.Errorf("replay %+v %v", again, err)
	}
	if _, err := p.identifyAndSend(call, "another task"); !fault.Is(err, fault.IdempotencyConflict) {
		t.Errorf("the same call with another text: %v", err)
	}
	for _, text := range []string{"/clear", " \n /status x", "/Fork", " !ls"} {
		if _, err := p.identifyAndSend(newCall(), text); !fault.Is(err, fault.NativeSlashCommand) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if p.keys() != keys {
		t.Error("something was typed")
	}
}

// meddler does something when the agent's cards are read for the nth time.
type meddler struct {
	agent.Native
	nth  int
	do   func()
	seen *int
}

func (m meddler) Cards(version string, s terminal.Screen) []agent.Card {
	out := m.Native.Cards(version, s)
	if len(out) > 0 {
		if *m.seen++; *m.seen == m.nth {
			m.do()
		}
	}
	return out
}

// Proves tools 11.23: a pane that changes between probe and request gets no
// request, and the answer says what was typed.
func TestIdentifyAndSend_PaneChangesBetween(t *testing.T) {
	w := newWorld(t)
	w.env = []string{scripted.ThreadsVariable + "=2"}
	p := w.agent("100", "40")
	seen := 0
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter {
		return meddler{a.(agent.Native), 1, func() { w.tmuxDo("send-keys", "-t", p.tid, "-l", "x") }, &seen}
	})
	_, err := p.identifyAndSend(newCall(), "the task")
	f, _ := fault.As(err)
	switch {
	case fault.Is(err, fault.SubmissionUncertain): // the draft came before the card was believed
	case !fault.Is(err, fault.TerminalChanged) || f.Input != fault.InputSent || f.Details["request_sent"] != false:
		t.Errorf("got %+v", err)
	}
	if strings.Contains(p.keys(), "the task") || p.typed("the task") != 0 {
		t.Error("the request was typed")
	}
	if turns, err := w.store.Turns(context.Background(), store.TurnFilter{}); err != nil || len(turns) != 0 {
		t.Errorf("turns %v %v", turns, err)
	}
}

// switcher does something when the request's anchor is taken.
type switcher struct {
	agent.Native
	do func()
}

func (s switcher) Anchor(ctx context.Context, proc agent.Process) (agent.Anchor, error) {
	s.do()
	return s.Native.Anchor(ctx, proc)
}

// A person who switches the thread behind the last look is met before the request.
func TestIdentifyAndSend_ThreadSwitchedBehind(t *testing.T) {
	w := newWorld(t)
	w.env = []string{scripted.ThreadsVariable + "=2"}
	p := w.agent("100", "40")
	w.desk = w.newDesk(w.store, func(a agent.Adapter) agent.Adapter {
		return switcher{a.(agent.Native), func() {
			p.human("/clear")
			testkit.Eventually(t, patience, func() bool { return !strings.Contains(p.screen(), "Limits:") })
		}}
	})
	_, err := p.identifyAndSend(newCall(), "the task")
	f, _ := fault.As(err)
	if !fault.Is(err, fault.TerminalChanged) || f.Input != fault.InputSent || f.Details["request_sent"] != false {
		t.Errorf("got %+v", err)
	}
	if strings.Contains(p.keys(), "the task") {
		t.Error("the request was typed")
	}
	p.unfenced()
}

// flock holds a thread as another process would.
func flock(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
}
