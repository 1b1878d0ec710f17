package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// steppable makes a world whose Store and Desk read one wall clock that the test
// can step; the boot-time clock stays the machine's.
func steppable(t *testing.T) (*world, func(time.Duration)) {
	t.Helper()
	w := newWorld(t)
	var offset atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(offset.Load())).Round(0) } // no monotonic reading
	s, err := store.Open(context.Background(), store.Options{Dir: testkit.StoreDir(t), Program: "test", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.store = s
	w.desk = w.newDesk(s)
	w.desk.Now = now
	return w, func(d time.Duration) { offset.Add(int64(d)) }
}

// Somebody steps the wall clock by an hour in the middle of a Turn and of a
// Watch: both end as they would have, once, no row goes back in time, and their
// callbacks are due at once. Proves core 19.10 for Turns and Watches.
func TestClock_SteppedByAnHour(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			w, jump := steppable(t)
			ctx := context.Background()
			worked, watched := w.agent(), w.agent()
			gate := filepath.Join(w.dir, "gate")
			r := worked.mustSend("work hold:" + gate)
			watched.human("mine hold:" + gate)
			watched.waitWorking()
			v, err := watched.watch()
			if err != nil {
				t.Fatal(err)
			}
			m, release := w.monitor(r.TurnID)
			w.observe(m, r.TurnID, 3)
			before, err := w.store.Watch(ctx, v.ID)
			if err != nil {
				t.Fatal(err)
			}
			began := w.turn(r.TurnID)

			jump(step)
			for range 3 { // the agent works and shows it: no lifetime is over
				if o, err := m.Observe(ctx, w.capture(m.Pane())); err != nil || o.Done {
					t.Fatalf("observation after the step: %+v %v", o, err)
				}
			}
			release()
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			turn, watch := w.follow(r.TurnID), w.lookout(v.ID)
			if turn.Status != store.TurnIdle || watch.Status != store.WatchCompleted {
				t.Errorf("turn is %s, watch is %s (%s)", turn.Status, watch.Status, watch.SettledReason)
			}
			for what, times := range map[string][2]int64{
				"turn updated": {began.UpdatedAt, turn.UpdatedAt}, "turn active": {began.LastActivityAt, turn.LastActivityAt},
				"watch updated": {before.UpdatedAt, watch.UpdatedAt}, "watch active": {before.LastActivityAt, watch.LastActivityAt},
			} {
				if times[1] < times[0] {
					t.Errorf("%s went back from %d to %d", what, times[0], times[1])
				}
			}
			notes, err := w.store.WatchCallbacks(ctx, v.ID)
			if err != nil {
				t.Fatal(err)
			}
			for _, rows := range [][]store.Callback{w.callbacks(r.TurnID), notes} {
				if len(rows) != 1 || rows[0].Status != store.CallbackPending || rows[0].NextAttemptAt != 0 {
					t.Errorf("callbacks %+v", rows)
				}
			}
			w.follow(worked.mustSend("the next one").TurnID)
		})
	}
}

// A quiet Turn cannot tell an hour of silence from a step of the clock: it is
// stalled, told once, and renew goes on with it.
func TestClock_ForwardOverTheInactivityOfAQuietTurn(t *testing.T) {
	w, jump := steppable(t)
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	r := p.mustSend("work hold:" + gate)
	m, release := w.monitor(r.TurnID)
	w.observe(m, r.TurnID, 2)
	jump(61 * time.Minute)
	turn := w.quietUntil(m, r.TurnID, store.TurnStalled)
	release()
	if !strings.Contains(turn.StalledReason, "nothing moved for 60 minutes") {
		t.Errorf("stalled: %s", turn.StalledReason)
	}
	if _, err := w.desk.Renew(context.Background(), handoff.Call{}, handoff.RenewInput{TurnID: r.TurnID}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if turn := w.follow(r.TurnID); turn.Status != store.TurnIdle {
		t.Errorf("turn is %s", turn.Status)
	}
	kinds := map[string]int{}
	for _, c := range w.callbacks(r.TurnID) {
		kinds[c.Kind]++
	}
	if kinds["stall"] != 1 || kinds["completion"] != 1 || len(kinds) != 2 {
		t.Errorf("callbacks %v", kinds)
	}
}

// The clock is set back while a draft stands that the agent did not take: that
// is still decided within the sender's own wait, not an hour later.
func TestClock_BackWhileADraftStands(t *testing.T) {
	w, jump := steppable(t)
	p := w.agent()
	done := make(chan error, 1)
	go func() { _, err := p.send("deaf to all"); done <- err }()
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.keys(), "\r") }, "Enter")
	jump(-time.Hour)
	<-done
	turns, err := w.store.Turns(context.Background(), store.TurnFilter{Limit: 1})
	if err != nil || len(turns) != 1 {
		t.Fatalf("turns %v %v", turns, err)
	}
	if turns[0].Status != store.TurnStalled {
		t.Errorf("turn is %s", turns[0].Status)
	}
}
