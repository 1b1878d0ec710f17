package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/store"
)

const interval = 200 * time.Millisecond // of the Sweepers here

// A saboteur is an adapter that misbehaves for the agents of some homes.
type saboteur struct {
	agent.Adapter
	free chan struct{} // closed: whatever hangs goes on

	mu    sync.Mutex
	how   map[string]string // home: panic, hang or fail
	did   map[string]int    // times it misbehaved
	looks map[string][]time.Time
}

func (s *saboteur) Progress(ctx context.Context, t agent.Task, from agent.Position) (agent.Progress, error) {
	home := t.Process.Home
	s.mu.Lock()
	how := s.how[home]
	if how != "" {
		s.did[home]++
	} else {
		s.looks[home] = append(s.looks[home], time.Now())
	}
	s.mu.Unlock()
	switch how {
	case "panic":
		panic("sabotage")
	case "hang":
		<-s.free // whatever the context says
	case "fail":
		return agent.Progress{}, errors.New("sabotage")
	}
	return s.Adapter.Progress(ctx, t, from)
}

// busy reports whether each misbehaving pane was looked at.
func (s *saboteur) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.did) == len(s.how)
}

// gap is the longest time between two looks at a pane since from.
func (s *saboteur) gap(home string, from time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest, last := time.Duration(0), from
	for _, at := range append(slices.Clone(s.looks[home]), time.Now()) {
		if at.After(last) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return longest
}

// sweep runs a Sweeper until the test ends, which misbehaves for some panes.
func (w *world) sweep(bad map[*pane]string) (*saboteur, *lines) {
	w.t.Helper()
	s := &saboteur{free: make(chan struct{}), how: map[string]string{}, did: map[string]int{}, looks: map[string][]time.Time{}}
	for p, how := range bad {
		s.how[p.home] = how
	}
	log := &lines{}
	_, sweeper := w.newDesk(func(a agent.Adapter) agent.Adapter { s.Adapter = a; return s })
	sweeper.Log = slog.New(slog.NewTextHandler(log, nil))
	w.run(sweeper.Run)
	w.t.Cleanup(func() { close(s.free) }) // before Run is waited for
	return s, log
}

// Proves core 19.23: a monitor that panics, hangs or fails delays no look at
// another Turn or Watch by more than a second.
func TestSweep_OneTaskMisbehaves(t *testing.T) {
	for _, how := range []string{"panic", "hang", "fail"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			bad, worse := w.working(), w.watched()
			turn, watch := w.working(), w.watched()
			s, _ := w.sweep(map[*pane]string{bad: how, worse: how})
			eventually(t, patience, func() error { return is(s.busy(), "both misbehave") })
			// A busy machine may spoil a measurement, a task that waits for another spoils all.
			var late error
			for range 5 {
				from := time.Now()
				time.Sleep(3 * time.Second) // the time that is measured
				late = nil
				for _, p := range []*pane{turn, watch} {
					if got := s.gap(p.home, from); got > interval+time.Second {
						late = fmt.Errorf("%s was not looked at for %v", p.name, got)
					}
				}
				if late == nil {
					break
				}
			}
			if late != nil {
				t.Error(late)
			}
			turn.open()
			watch.open()
			turn.ended(patience)
			watch.ended(patience)
			bad.told(0)
			worse.told(0)
		})
	}
}

// Proves core 19.30: where every Turn fails the Watches are swept, and the
// reverse.
func TestSweep_OnePhaseFails(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"every Turn", "every Watch"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			bad, good := []*pane{w.working(), w.working()}, []*pane{w.watched(), w.watched()}
			if name == "every Watch" {
				bad, good = good, bad
			}
			s, _ := w.sweep(map[*pane]string{bad[0]: "panic", bad[1]: "fail"})
			eventually(t, patience, func() error { return is(s.busy(), "all of one kind misbehave") })
			for _, p := range good {
				p.open()
				p.ended(patience)
			}
			for _, p := range bad {
				p.told(0)
			}
		})
	}
}

// Proves core 19.37: a Watch row that cannot be read is reported, and the others
// are swept.
func TestSweep_UnreadableWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	term, err := w.store.Acquire(ctx, store.TerminalLease("another pane"), store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.CreateWatch(ctx, term, store.NewWatch{
		WatchID: "terminal-watch-unreadable", Agent: "codex", Mode: store.ModeTerminalActivity, TerminalID: "terminal-x", TerminalKey: "another pane",
		Endpoint: []byte(`{}`), Workspace: "/w", BindingToken: "token", IdentityFingerprint: "i", Anchor: []byte(`{}`),
		AnchorFingerprint: "a", Checkpoint: []byte(`{}`), ControllerSessionID: "session", Route: w.desk.Route.Canonical(),
		Lifetime: 3_600_000,
	}); err != nil {
		t.Fatal(err)
	}
	good := w.watched()
	_, log := w.sweep(nil)
	eventually(t, patience, func() error {
		return is(strings.Contains(log.text(), "terminal-watch-unreadable"), "the row is reported")
	})
	good.open()
	good.ended(patience)
	if row, err := w.store.Watch(ctx, "terminal-watch-unreadable"); err != nil || row.Status != store.WatchActive {
		t.Errorf("the row is %s: %v", row.Status, err)
	}
}
