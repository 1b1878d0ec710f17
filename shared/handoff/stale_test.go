package handoff_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// A screen with the draft that was captured before Enter says nothing of what
// came after it: a monitor that meets it right behind Enter, or when the draft is
// gone, leaves the submission open (core §5.2: not_accepted only with positive
// proof).
func TestMonitor_DraftOnAnOldScreen(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	const text = "drop it"
	r, err := p.send(text)
	if err != nil || r.Outcome != "pending_acceptance" {
		t.Fatalf("%+v %v", r, err)
	}
	m, release := w.monitor(r.TurnID)
	defer release()
	shows := func(want bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), text) == want })
	}
	observe := func(what string, done bool) {
		t.Helper()
		screen := w.capture(m.Pane())
		if what == "the draft is gone" {
			w.tmuxDo("send-keys", "-t", p.tid, "C-u")
			shows(false)
		}
		if o, err := m.Observe(ctx, screen); err != nil || o.Done != done {
			t.Fatalf("%s: %+v %v", what, o, err)
		}
	}
	again := func() {
		w.tmuxDo("send-keys", "-t", p.tid, "-l", text)
		shows(true)
	}

	again()
	w.desk.Now = func() time.Time { return time.Now().Add(-5 * time.Second) }
	observe("Enter was a moment ago", false)
	w.desk.Now = time.Now
	observe("the agent may not have come to Enter yet", false)
	w.desk.Now = func() time.Time { return time.Now().Add(15 * time.Second) }
	observe("the draft is gone", false)
	again()
	observe("the draft stands", true)
	sub, err := w.store.Submission(ctx, r.Message.ID)
	if err != nil || sub.Dispatch.Status != store.DispatchNotAccepted || sub.Turn.Status != store.TurnStalled {
		t.Errorf("%+v %v", sub, err)
	}
}
