package handoff_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

func respondCall() handoff.Call {
	c := newCall()
	c.Tool = "agent_knock_knock_respond_interaction"
	return c
}

// asked sends a request that opens a questionnaire and follows it until the first
// step is told. The monitor goes on in the background until the test ends.
func (w *world) asked(p *pane, request string) string {
	w.t.Helper()
	turn := p.mustSend(request).TurnID
	w.background(turn)
	w.awaitStatus(turn, store.TurnWaitingForController)
	return turn
}

// background follows a Turn as watchd does.
func (w *world) background(turn string) {
	w.t.Helper()
	m, release := w.monitor(turn)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			o, err := m.Observe(ctx, w.capture(m.Pane()))
			if err != nil && ctx.Err() == nil {
				w.t.Errorf("observe: %v", err)
			}
			if o.Done || err != nil {
				return
			}
			time.Sleep(40 * time.Millisecond) // the poll of a monitor
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
		release()
	})
}

func (w *world) awaitStatus(turn, want string) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() bool { return w.turn(turn).Status == want }, "turn is "+want)
}

// step gives the step that status shows, once the want-th one is there.
func (w *world) step(d *handoff.Desk, turn string, want int) (handoff.InteractionView, bool) {
	w.t.Helper()
	var v handoff.InteractionView
	offered := false
	testkit.Eventually(w.t, patience, func() bool {
		out, err := d.Status(context.Background(), handoff.StatusInput{TurnID: turn})
		if err != nil {
			w.t.Fatal(err)
		}
		s := out.Body.(handoff.TurnStatus)
		if s.Interaction == nil || s.Interaction.Step.Index != want {
			return false
		}
		v = *s.Interaction
		_, offered = s.Actions["respond_interaction"]
		return true
	}, "a step is shown")
	return v, offered
}

func choose(turn string, v handoff.InteractionView, option int) handoff.RespondInteractionInput {
	return handoff.RespondInteractionInput{TurnID: turn, InteractionID: v.ID, Answers: []handoff.AnswerInput{{
		QuestionID: v.Questions[0].ID, ResponseKind: "single_select", Selected: []string{v.Questions[0].Options[option].ID},
	}}}
}

func write(turn string, v handoff.InteractionView, text string) handoff.RespondInteractionInput {
	return handoff.RespondInteractionInput{TurnID: turn, InteractionID: v.ID, Answers: []handoff.AnswerInput{{
		QuestionID: v.Questions[0].ID, ResponseKind: "free_text", Text: &text,
	}}}
}

// respond answers and wants the status.
func (w *world) respond(in handoff.RespondInteractionInput, want string) handoff.RespondInteractionResult {
	w.t.Helper()
	out, err := w.desk.RespondInteraction(context.Background(), respondCall(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	r := out.Body.(handoff.RespondInteractionResult)
	if r.Status != want || out.Failed != (want != "responded") {
		w.t.Fatalf("answer %+v failed %t, want %s", r, out.Failed, want)
	}
	return r
}

func (w *world) interactions(turn string) (states []string) {
	w.t.Helper()
	rows, err := w.store.Interactions(context.Background(), turn)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		states = append(states, r.State)
	}
	return states
}

// A questionnaire of two steps is told step by step and answered in the same Turn:
// one by an option that is not highlighted, one by a text of one's own, which is
// written nowhere but into the pane.
func TestInteraction_TwoSteps(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := w.asked(p, "quiz for me")
	rows := w.callbacks(turn)
	if len(rows) != 1 || rows[0].EventType != "question" || !rows[0].RequiresResponse || rows[0].Kind != "interaction" ||
		!strings.Contains(rows[0].Body, "Which colour should the door be?") || !strings.Contains(rows[0].Body, "Blue: A cold colour.") {
		t.Fatalf("callbacks %+v", rows)
	}
	v, offered := w.step(w.desk, turn, 1)
	if !offered || v.State != "pending" || v.Step.Total != 2 || v.TurnID != turn || v.Schema != "agent-knock-knock/terminal-interaction" ||
		!v.Capabilities.Respond || !v.Capabilities.FreeText || v.Capabilities.MultiSelect || len(v.Questions) != 1 || len(v.Questions[0].Options) != 2 {
		t.Fatalf("step 1 %+v offered %t", v, offered)
	}
	r := w.respond(choose(turn, v, 1), "responded")
	if r.TurnID != turn || r.InteractionID != v.ID || r.Step.Index != 1 || r.Next.Action != "yield" {
		t.Errorf("answer %+v", r)
	}
	if cb, err := w.store.Callback(context.Background(), rows[0].DeliveryID); err != nil || cb.Status != store.CallbackSuperseded {
		t.Errorf("the callback of an answered step is %s %v", cb.Status, err)
	}
	second, offered := w.step(w.desk, turn, 2)
	if !offered || second.ID == v.ID || second.Questions[0].ID == v.Questions[0].ID || second.Questions[0].Options[0].ID == v.Questions[0].Options[0].ID {
		t.Fatalf("step 2 %+v offered %t", second, offered)
	}
	w.awaitStatus(turn, store.TurnWaitingForController)
	const words = "as wide as a barn, zq1"
	w.respond(write(turn, second, words), "responded")
	w.awaitStatus(turn, store.TurnIdle)
	if got := w.interactions(turn); strings.Join(got, " ") != "resolved resolved" {
		t.Errorf("steps %v", got)
	}
	if p.recorded(`["Blue"]`) != 1 || p.recorded("user_note: "+words) != 1 {
		t.Error("the agent's records do not hold both answers")
	}
	dir := w.store.Dir()
	for _, name := range []string{"store.db", "store.db-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("barn, zq1")) {
			t.Errorf("%s holds the answer", name)
		}
	}
}

// recorded counts how often the pane's transcript holds a text inside a call's
// output.
func (p *pane) recorded(text string) int {
	n := 0
	_ = filepath.WalkDir(filepath.Join(p.home, "sessions"), func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".jsonl") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n += strings.Count(strings.ReplaceAll(string(b), `\`, ""), text)
		}
		return nil
	})
	return n
}

// Proves tools 11.29 (and 11.40 for this tool): whatever does not fit, is not
// offered, or is not shown any more sends no key.
func TestInteraction_RefusedTypesNothing(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := w.asked(p, "quiz for me")
	refused := func(what string, in handoff.RespondInteractionInput, want fault.Code) {
		t.Helper()
		p.unchanged(what, func() {
			if _, err := w.desk.RespondInteraction(ctx, respondCall(), in); !fault.Is(err, want) {
				t.Errorf("%s: %v, want %s", what, err, want)
			}
		})
	}
	rows, err := w.store.Interactions(ctx, turn)
	if err != nil || len(rows) == 0 {
		t.Fatal(rows, err)
	}
	refused("without status", handoff.RespondInteractionInput{TurnID: turn, InteractionID: rows[len(rows)-1].ID, Answers: []handoff.AnswerInput{{}}}, fault.OfferMissing)
	offer := func() handoff.InteractionView {
		t.Helper()
		v, ok := w.step(w.desk, turn, 1)
		if !ok {
			t.Fatal("no offer")
		}
		return v
	}
	v := offer()
	refused("both targets", handoff.RespondInteractionInput{TurnID: turn, WatchID: "terminal-watch-1", InteractionID: v.ID}, fault.InvalidArguments)
	refused("a terminal", handoff.RespondInteractionInput{TurnID: p.id, InteractionID: v.ID}, fault.WrongIDKind)
	refused("another step", handoff.RespondInteractionInput{TurnID: turn, InteractionID: "interaction-other"}, fault.OfferMissing)
	unknown := choose(turn, v, 0)
	unknown.Answers[0].Selected = []string{"option-none"}
	refused("an unknown option", unknown, fault.UnknownOption)
	refused("a used offer", choose(turn, v, 0), fault.OfferMissing)
	v = offer()
	refused("a text too long for the place", write(turn, v, strings.Repeat("long ", 300)), fault.LimitExceeded)

	// What was shown is not shown any more: the person answered in between.
	v = offer()
	w.tmuxDo("send-keys", "-t", p.tid, "Enter")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Question 2/2") }, "second page")
	p.unchanged("a step that was answered in the pane", func() {
		_, err := w.desk.RespondInteraction(ctx, respondCall(), choose(turn, v, 0))
		switch fault.CodeOf(err) {
		case fault.OfferChanged, fault.InteractionMismatch, fault.TurnStatusInvalid:
		default:
			t.Errorf("answer to a page that left: %v", err)
		}
	})
	// A person who types there is not disturbed.
	next, ok := w.step(w.desk, turn, 2)
	if !ok {
		t.Fatal("step 2 is not offered")
	}
	w.tmuxDo("send-keys", "-t", p.tid, "Tab")
	w.tmuxDo("set-buffer", "half a thought")
	w.tmuxDo("paste-buffer", "-p", "-t", p.tid)
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "half a thought") }, "typed")
	p.unchanged("while a person types", func() {
		if _, err := w.desk.RespondInteraction(ctx, respondCall(), choose(turn, next, 0)); !fault.Is(err, fault.TerminalChanged) {
			t.Errorf("answer over a person's text: %v", err)
		}
	})
	w.tmuxDo("send-keys", "-t", p.tid, "Enter")
	w.awaitStatus(turn, store.TurnIdle)
	if got := w.interactions(turn); strings.Join(got, " ") != "superseded superseded" {
		t.Errorf("steps that the person answered: %v", got)
	}
}

// Only the owner's controller session may answer, and a secret nobody but the
// person.
func TestInteraction_NotForEverybody(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	turn := w.asked(p, "quiz:secret for me")
	v, offered := w.step(w.desk, turn, 1)
	if offered || v.State != "manual_required" || v.Capabilities.Respond || v.Reason == "" {
		t.Errorf("a secret: %+v offered %t", v, offered)
	}
	if rows := w.callbacks(turn); len(rows) != 1 || !strings.Contains(rows[0].Body, "Only the user at the pane") {
		t.Errorf("callbacks %+v", rows)
	}
	w.tmuxDo("send-keys", "-t", p.tid, "Enter")
	v, offered = w.step(w.desk, turn, 2)
	if !offered || v.State != "pending" {
		t.Errorf("what follows a secret: %+v offered %t", v, offered)
	}
	other := handoff.New(func() handoff.Options { o := w.desk.Options; o.Controller = "another-session"; return o }())
	if v, offered = w.step(other, turn, 2); offered || v.State != "pending" {
		t.Errorf("another session: %+v offered %t", v, offered)
	}
	if _, err := other.RespondInteraction(context.Background(), respondCall(), choose(turn, v, 0)); !fault.Is(err, fault.OfferMissing) {
		t.Errorf("another session answers: %v", err)
	}
}

// Proves tools 11.30: once keys may have been pressed, an answer that did not do
// what it should is response_uncertain, and so is every later one refused.
func TestInteraction_UncertainForGood(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ how, reason string }{
		{"stuck", "did not move on"},
		{"deaf", "changed nothing"},
	} {
		t.Run(tc.how, func(t *testing.T) {
			w := newWorld(t)
			ctx := context.Background()
			p := w.agent()
			turn := w.asked(p, "quiz:"+tc.how+" for me")
			v, _ := w.step(w.desk, turn, 1)
			r := w.respond(choose(turn, v, 1), "response_uncertain")
			if !r.DoNotRetry || r.TerminalInput != "possible" || !strings.Contains(r.Reason, tc.reason) {
				t.Errorf("result %+v", r)
			}
			again, offered := w.step(w.desk, turn, 1)
			if offered || again.State != "response_uncertain" || again.ID != v.ID {
				t.Errorf("after it: %+v offered %t", again, offered)
			}
			p.unchanged("a second answer", func() {
				if _, err := w.desk.RespondInteraction(ctx, respondCall(), choose(turn, v, 1)); !fault.Is(err, fault.OfferMissing) {
					t.Errorf("second answer: %v", err)
				}
				if err := w.store.MintOffer(ctx, store.NewOffer{ // as if it had been shown before
					Key:     store.OfferKey{OwnerSession: controller, Kind: "interaction", TargetType: "turn", TargetID: turn + " " + v.ID},
					Payload: []byte(`{"fingerprint":"x","interaction_id":"` + v.ID + `"}`), Life: time.Minute,
				}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.desk.RespondInteraction(ctx, respondCall(), choose(turn, v, 1)); !fault.Is(err, fault.ResponseNotAllowed) {
					t.Errorf("second answer with an offer: %v", err)
				}
			})
			// The person ends it: the Turn does not wait for ever.
			w.tmuxDo("send-keys", "-t", p.tid, "Escape")
			w.awaitStatus(turn, store.TurnFailed)
		})
	}
}

// Proves core 19.57 across two bridges, and the rules of repeated calls: equal
// calls type once, another answer under the same id is a conflict.
func TestInteraction_Once(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := w.asked(p, "quiz for me")
	v, _ := w.step(w.desk, turn, 1)
	two := w.newDesk(w.store)
	in := choose(turn, v, 1)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		done  int
		codes []fault.Code
	)
	for i := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d := w.desk
			if i%2 == 1 {
				d = two
			}
			out, err := d.RespondInteraction(ctx, respondCallOf(i+1), in)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && out.Body.(handoff.RespondInteractionResult).Status == "responded" {
				done++
			} else {
				codes = append(codes, fault.CodeOf(err))
			}
		}()
	}
	wg.Wait()
	if done != 1 {
		t.Fatalf("%d answers, refusals %v", done, codes)
	}
	if got := strings.Count(p.keys(), "\x1b[B") + strings.Count(p.keys(), "\x1bOB"); got != 1 {
		t.Errorf("%d times Down", got)
	}

	second, _ := w.step(w.desk, turn, 2)
	call := respondCall()
	first, err := w.desk.RespondInteraction(ctx, call, choose(turn, second, 0))
	if err != nil {
		t.Fatal(err)
	}
	p.unchanged("a repeated call", func() {
		out, err := w.desk.RespondInteraction(ctx, call, choose(turn, second, 0))
		if err != nil {
			t.Fatal(err)
		}
		r := out.Body.(handoff.RespondInteractionResult)
		if !r.Replayed || r.Status != first.Body.(handoff.RespondInteractionResult).Status {
			t.Errorf("replay %+v", r)
		}
		if _, err := w.desk.RespondInteraction(ctx, call, choose(turn, second, 1)); !fault.Is(err, fault.IdempotencyConflict) {
			t.Errorf("another answer under the same id: %v", err)
		}
	})
}

func respondCallOf(n int) handoff.Call {
	return handoff.Call{ToolCallID: "host-bridge:[\"once\"," + string(rune('0'+n)) + "]", Tool: "agent_knock_knock_respond_interaction"}
}

// Proves core §13 row 11: a program that dies while it answers leaves the step in
// doubt, and nothing is typed again.
func TestInteraction_DeadProgram(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	turn := w.asked(p, "quiz for me")
	v, _ := w.step(w.desk, turn, 1)
	rows, err := w.store.Interactions(ctx, turn)
	if err != nil {
		t.Fatal(err)
	}
	row := rows[len(rows)-1]
	lease, err := w.store.Acquire(ctx, store.TerminalLease(w.turn(turn).TerminalKey), store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.ReserveInteraction(ctx, lease, store.Response{
		InteractionID: row.ID, MessageID: "msg-dead", Fingerprint: row.PromptFingerprint, OwnerSession: controller, Kind: "single_select",
	}); err != nil {
		t.Fatal(err)
	}
	p.unchanged("recovery", func() {
		if r := w.desk.Recover(ctx, ""); len(r.Problems) != 0 {
			t.Errorf("while it lives: %+v", r)
		}
		if got := w.interactions(turn); got[len(got)-1] != store.InteractionReserved {
			t.Errorf("while it lives: %v", got)
		}
		if err := w.store.Release(ctx, lease); err != nil { // it died
			t.Fatal(err)
		}
		if r := w.desk.Recover(ctx, ""); len(r.Problems) != 0 || r.Changed == 0 {
			t.Errorf("after its death: %+v", r)
		}
	})
	got, offered := w.step(w.desk, turn, 1)
	if offered || got.State != "response_uncertain" || got.ID != v.ID {
		t.Errorf("after recovery %+v offered %t", got, offered)
	}
	found := false
	for _, c := range w.callbacks(turn) {
		found = found || c.EventType == "blocked" && strings.Contains(c.Body, "in doubt")
	}
	if !found {
		t.Error("nobody is told of the doubt")
	}
	w.tmuxDo("send-keys", "-t", p.tid, "Enter", "Enter")
	w.awaitStatus(turn, store.TurnIdle)
}

// A Watch of one exact task tells of a questionnaire and may be answered through.
func TestInteraction_OfAWatch(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	p.human("quiz of mine")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Question 1/2") }, "page")
	var view handoff.WatchView
	testkit.EventuallyNil(t, patience, func() (err error) { view, err = p.watch(); return err })
	lease, err := w.store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.store.Release(ctx, lease) }()
	row, err := w.store.Watch(ctx, view.ID)
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.desk.NewLookout(row, lease)
	if err != nil {
		t.Fatal(err)
	}
	look := func() bool {
		t.Helper()
		o, err := l.Observe(ctx, w.capture(l.Pane()), false)
		if err != nil {
			t.Fatal(err)
		}
		return o.Done
	}
	step := func(n int) handoff.InteractionView {
		t.Helper()
		var v *handoff.InteractionView
		testkit.Eventually(t, patience, func() bool {
			look()
			out, err := w.desk.Status(ctx, handoff.StatusInput{WatchID: view.ID})
			if err != nil {
				t.Fatal(err)
			}
			v = out.Body.(map[string]any)["watch"].(handoff.WatchView).Interaction
			return v != nil && v.Step.Index == n
		}, "a step is told")
		return *v
	}
	p.unchanged("a watch that is asked", func() { step(1) })
	v := step(1)
	if v.TurnID != "" || v.Subject == nil || v.Subject.WatchID != view.ID {
		t.Errorf("step %+v", v)
	}
	rows, err := w.store.WatchCallbacks(ctx, view.ID)
	if err != nil || len(rows) != 1 || rows[0].Kind != "interaction" || rows[0].EventType != "question" {
		t.Fatalf("callbacks %+v %v", rows, err)
	}
	in := choose("", v, 1)
	in.WatchID = view.ID
	if r := w.respond(in, "responded"); r.WatchID != view.ID || r.TurnID != "" {
		t.Errorf("answer %+v", r)
	}
	v = step(2)
	in = choose("", v, 0)
	in.WatchID = view.ID
	w.respond(in, "responded")
	testkit.Eventually(t, patience, look, "the watch ends")
	got, err := w.store.Watch(ctx, view.ID)
	if err != nil || got.Status != store.WatchCompleted {
		t.Errorf("watch %+v %v", got.Status, err)
	}
}
