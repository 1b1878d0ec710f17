package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// told is a Turn with one published page.
func (w *world) told(n string) (*flow, store.Interaction) {
	w.t.Helper()
	f := w.prepare(n, n, "t"+n).accept("t" + n)
	q := question(n)
	q.SurfaceID, q.ExpiresAt = "surface-"+n, w.Now()+time.Hour.Milliseconds()
	q.Callback = callback(n, store.LaneLifecycle, "question")
	row, inserted, err := w.QuestionNotified(ctx, f.monitor(), q)
	if err != nil || !inserted {
		w.t.Fatal(inserted, err)
	}
	return f, row
}

func response(row store.Interaction) store.Response {
	return store.Response{
		InteractionID: row.ID, MessageID: "msg-answer-" + row.ID, Fingerprint: row.PromptFingerprint, OwnerSession: row.OwnerSession,
		Kind: "single_select", QuestionID: "q", OptionID: "o", Seal: "s",
	}
}

func (w *world) state(id string) string {
	w.t.Helper()
	row, err := w.Interaction(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return row.State
}

// The whole way of an answer, move by move, with what moves beside it.
func TestInteraction_Answered(t *testing.T) {
	w := newWorld(t)
	f, row := w.told("1")
	if _, err := w.ReserveInteraction(ctx, f.term, response(row)); err != nil {
		t.Fatal(err)
	}
	if row, ok, err := w.AnsweredInteraction(ctx, response(row).MessageID); err != nil || !ok || row.State != store.InteractionReserved ||
		!strings.Contains(string(row.Plan), `"option_id":"o"`) {
		t.Error(row, ok, err)
	}
	f.must(w.ExecuteInteraction(ctx, f.term, row.ID))
	// Its observer sees the page leave while keys are on their way: it has no say.
	if turn, err := w.QuestionCleared(ctx, f.monitor()); err != nil || turn.Status != store.TurnWaitingForController || w.state(row.ID) != store.InteractionExecuting {
		t.Error(turn.Status, w.state(row.ID), err)
	}
	f.must(w.InteractionSent(ctx, f.term, row.ID))
	if got := f.turn().Status; got != store.TurnWaitingForAgent {
		t.Error(got)
	}
	if cb, err := w.Callback(ctx, "delivery-1"); err != nil || cb.Status != store.CallbackSuperseded || cb.SupersededReason != "answered" {
		t.Error(cb.Status, cb.SupersededReason, err)
	}
	if _, err := w.QuestionCleared(ctx, f.monitor()); err != nil || w.state(row.ID) != store.InteractionResolved {
		t.Error(w.state(row.ID), err)
	}
	f.must(w.InteractionAdvanced(ctx, f.term, row.ID)) // its observer was first
	q := question("again")
	q.PromptFingerprint, q.SurfaceID = row.PromptFingerprint, row.SurfaceID
	if known, inserted, err := w.QuestionNotified(ctx, f.monitor(), q); err != nil || inserted || known.ID != row.ID {
		t.Error("a consumed page is asked again", known, inserted, err)
	}
}

// Proves core 19.57's rule row by row: which move is possible from which state.
// Nothing leads out of response_uncertain, resolved and superseded.
func TestInteraction_Moves(t *testing.T) {
	states := []string{
		store.InteractionCandidate, store.InteractionPending, store.InteractionPublished, store.InteractionManual, store.InteractionReserved,
		store.InteractionExecuting, store.InteractionAwaiting, store.InteractionResolved, store.InteractionSuperseded, store.InteractionUncertain,
	}
	moves := map[string]struct {
		from []string
		to   string
		move func(w *world, f *flow, row store.Interaction) error
	}{
		"reserve": {[]string{store.InteractionPending, store.InteractionPublished}, store.InteractionReserved, func(w *world, f *flow, row store.Interaction) error {
			_, err := w.ReserveInteraction(ctx, f.term, response(row))
			return err
		}},
		"execute": {[]string{store.InteractionReserved}, store.InteractionExecuting, func(w *world, f *flow, row store.Interaction) error {
			return w.ExecuteInteraction(ctx, f.term, row.ID)
		}},
		"return": {[]string{store.InteractionReserved, store.InteractionExecuting}, store.InteractionPublished, func(w *world, f *flow, row store.Interaction) error {
			return w.ReturnInteraction(ctx, f.term, row.ID)
		}},
		"sent": {[]string{store.InteractionExecuting}, store.InteractionAwaiting, func(w *world, f *flow, row store.Interaction) error {
			return w.InteractionSent(ctx, f.term, row.ID)
		}},
		"advanced": {[]string{store.InteractionAwaiting, store.InteractionResolved}, store.InteractionResolved, func(w *world, f *flow, row store.Interaction) error {
			return w.InteractionAdvanced(ctx, f.term, row.ID)
		}},
		"doubt": {[]string{store.InteractionReserved, store.InteractionExecuting, store.InteractionAwaiting}, store.InteractionUncertain,
			func(w *world, f *flow, row store.Interaction) error {
				return w.DoubtInteraction(ctx, f.term, row.ID, "why", nil)
			}},
	}
	w, n := newWorld(t), 0
	db := w.raw()
	for name, m := range moves {
		for _, state := range states {
			n++
			f, row := w.told(fmt.Sprint(n))
			must(t, db, `UPDATE interactions SET state = '`+state+`' WHERE interaction_id = '`+row.ID+`'`)
			row.State = state
			err := m.move(w, f, row)
			want := state
			if slices.Contains(m.from, state) {
				want = m.to
			}
			if (err == nil) != slices.Contains(m.from, state) || w.state(row.ID) != want {
				t.Errorf("%s from %s: %v, now %s, want %s", name, state, err, w.state(row.ID), want)
			}
		}
	}
}

// Each refusal of a reservation changes nothing.
func TestInteraction_Reserve_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(w *world, f *flow, r *store.Response)
		want  fault.Code
	}{
		{"another page is shown", func(_ *world, _ *flow, r *store.Response) { r.Fingerprint = "other" }, fault.OfferChanged},
		{"another controller session", func(_ *world, _ *flow, r *store.Response) { r.OwnerSession = "other" }, fault.InteractionMismatch},
		{"past its life", func(w *world, _ *flow, _ *store.Response) { w.clk.step(2 * time.Hour) }, fault.Expired},
		{"the Turn ended", func(w *world, f *flow, _ *store.Response) {
			_, err := w.CloseTurn(ctx, store.TurnClose{TurnID: f.sub.Turn.ID})
			f.must(err)
		}, fault.InteractionMismatch},
		{"the page left", func(w *world, f *flow, _ *store.Response) {
			_, err := w.QuestionCleared(ctx, f.monitor())
			f.must(err)
		}, fault.InteractionMismatch},
		{"the Turn does not wait", func(w *world, f *flow, _ *store.Response) {
			must(w.t, w.raw(), `UPDATE turns SET revision = revision + 1, status = 'waiting_for_agent' WHERE turn_id = '`+f.sub.Turn.ID+`'`)
		}, fault.TurnStatusInvalid},
		{"no such step", func(_ *world, _ *flow, r *store.Response) { r.InteractionID = "interaction-none" }, fault.NotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			f, row := w.told("1")
			r := response(row)
			tc.setup(w, f, &r)
			before := dump(t, w.raw())
			_, err := w.ReserveInteraction(ctx, f.term, r)
			wantCode(t, err, tc.want)
			if after := dump(t, w.raw()); after != before {
				t.Error("something changed")
			}
		})
	}
}

// A lost lease reserves and moves nothing.
func TestInteraction_Fenced(t *testing.T) {
	w := newWorld(t)
	f, row := w.told("1")
	if _, err := w.ReserveInteraction(ctx, f.term, response(row)); err != nil {
		t.Fatal(err)
	}
	w.clk.add(2 * store.TerminalTTL)
	other := w.open("bridge/2/2/x")
	l, err := other.Acquire(ctx, f.term.Name, store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.ExecuteInteraction(ctx, f.term, row.ID), fault.LeaseLost)
	wantCode(t, w.ReturnInteraction(ctx, f.term, row.ID), fault.LeaseLost)
	if open, err := other.OpenResponses(ctx); err != nil || len(open) != 1 || open[0].TerminalKey != "key-1" {
		t.Error(open, err)
	}
	// Who holds the pane now puts it in doubt, and the Turn is not left waiting when
	// the page leaves.
	f.must(other.DoubtInteraction(ctx, l, row.ID, "died", callback("doubt", store.LaneLifecycle, "blocked")))
	f.mon = nil
	if got := f.turn().Status; got != store.TurnWaitingForController {
		t.Error(got)
	}
	if turn, err := w.QuestionCleared(ctx, f.monitor()); err != nil || turn.Status != store.TurnWaitingForAgent || w.state(row.ID) != store.InteractionUncertain {
		t.Error(turn.Status, w.state(row.ID), err)
	}
}

// Of two that could answer one page the Turn comes before a Watch, and a page that
// was seen once is told to nobody.
func TestInteraction_ResponderAndCandidate(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	q := question("1")
	q.ExpiresAt = w.Now() + time.Hour.Milliseconds()
	f.must(w.QuestionSeen(ctx, f.monitor(), q))
	f.must(w.QuestionSeen(ctx, f.monitor(), q))
	if got := f.turn().Status; got != store.TurnWaitingForAgent || w.state(q.InteractionID) != store.InteractionCandidate {
		t.Errorf("a candidate moved the Turn to %s", got)
	}
	q.InteractionID = "interaction-proven"
	row, inserted, err := w.QuestionNotified(ctx, f.monitor(), q)
	if err != nil || !inserted || row.State != store.InteractionPending {
		t.Fatal(row, inserted, err) // no callback: told to nobody
	}
	all, err := w.Interactions(ctx, f.sub.Turn.ID)
	if err != nil || len(all) != 1 {
		t.Error(all, err)
	}
	must(t, w.raw(), `INSERT INTO interactions SELECT 'interaction-twin', turn_id, NULL, message_id, 'published', prompt_fingerprint, surface_id, 1, 1,
	  '{}', '{}', owner_session, binding_id, binding_generation, process_key, NULL, NULL, created_at + 5, expires_at, updated_at FROM interactions WHERE interaction_id = '`+row.ID+`'`)
	_, err = w.ReserveInteraction(ctx, f.term, response(row))
	wantCode(t, err, fault.InteractionMismatch) // the newer claim comes first
}
