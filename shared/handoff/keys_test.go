package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// unchanged wants that not one byte reaches the pane while f runs.
func (p *pane) unchanged(what string, f func()) {
	p.w.t.Helper()
	before := p.keys()
	f()
	if got := p.keys(); got != before {
		p.w.t.Errorf("%s typed %q", what, strings.TrimPrefix(got, before))
	}
}

// Proves core 19.35 and tools 11.18: whatever observes a Watch writes no byte to
// its pane, through create, 100 sweeps, an approval and unwatch.
func TestWatch_TypesNothing(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	p.human("ask mine hold:" + gate)
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Would you like") }, "dialog")
	p.waitWorking()
	var v handoff.WatchView
	p.unchanged("watch", func() {
		var err error
		if v, err = p.watch(); err != nil {
			t.Fatal(err)
		}
	})
	lease, err := w.store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.store.Release(ctx, lease) }()
	row, err := w.store.Watch(ctx, v.ID)
	if err != nil {
		t.Fatal(err)
	}
	p.unchanged("100 sweeps at an approval", func() {
		l, err := w.desk.NewLookout(row, lease)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if _, err := l.Observe(ctx, w.capture(l.Pane()), false); err != nil {
				t.Fatal(err)
			}
		}
	})
	p.unchanged("status, list, unwatch", func() {
		for _, in := range []handoff.StatusInput{{WatchID: v.ID}, {TerminalID: p.id}, {TerminalID: p.id, Trace: true}} {
			if _, err := w.desk.Status(ctx, in); err != nil {
				t.Errorf("status %+v: %v", in, err)
			}
		}
		w.list()
		if _, err := w.desk.Unwatch(ctx, handoff.Call{}, handoff.UnwatchInput{WatchID: v.ID}); err != nil {
			t.Error(err)
		}
	})
}

// A watchd that starts anew before an approval was delivered meets the same
// dialog under the same notification id. Proves core 19.36's second half.
func TestWatch_ApprovalSurvivesRestart(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	p.human("ask mine")
	testkit.Eventually(t, patience, func() bool { return strings.Contains(p.screen(), "Would you like") }, "dialog")
	p.waitWorking()
	v, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	before, err := w.store.WatchNotifications(ctx, v.ID)
	if err != nil || len(before) != 1 {
		t.Fatalf("notifications %+v %v", before, err)
	}
	for range 2 {
		lease, err := w.store.Acquire(ctx, store.WatchdLease(), store.LeaseTTL)
		if err != nil {
			t.Fatal(err)
		}
		row, err := w.store.Watch(ctx, v.ID)
		if err != nil {
			t.Fatal(err)
		}
		l, err := w.desk.NewLookout(row, lease)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := l.Observe(ctx, w.capture(l.Pane()), false); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.store.Release(ctx, lease); err != nil {
			t.Fatal(err)
		}
	}
	after, err := w.store.WatchNotifications(ctx, v.ID)
	if err != nil || len(after) != 1 || after[0].ID != before[0].ID {
		t.Errorf("notifications %+v, before %+v, %v", after, before, err)
	}
}

// Proves tools 11.18 for what looks after a Turn: nothing is typed by status, list,
// renew, close and retry_callback; and core 19.61 for the last one where no outboxd
// delivers.
func TestTurn_TypesNothing(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	tiny := 0.0005 // minutes
	out, err := w.desk.Send(ctx, newCall(), handoff.SendInput{TerminalID: p.id, Request: "work hold:" + filepath.Join(w.dir, "never"), AgentTimeoutMinutes: &tiny})
	if err != nil {
		t.Fatal(err)
	}
	turn := out.Body.(handoff.SendResult).TurnID
	p.unchanged("a monitor", func() {
		m, release := w.monitor(turn)
		defer release()
		w.quietUntil(m, turn, store.TurnStalled)
	})
	p.unchanged("status, list, retry_callback, renew, close", func() {
		if _, err := w.desk.Status(ctx, handoff.StatusInput{TurnID: turn}); err != nil {
			t.Error(err)
		}
		w.list()
		if _, err := w.desk.RetryCallback(ctx, handoff.Call{}, handoff.RetryCallbackInput{TurnID: turn}); !fault.Is(err, fault.SiblingUnavailable) {
			t.Errorf("retry_callback without an outboxd: %v", err)
		}
		longer := 5.0
		if _, err := w.desk.Renew(ctx, handoff.Call{}, handoff.RenewInput{TurnID: turn, Minutes: &longer}); err != nil {
			t.Error(err)
		}
		if _, err := w.desk.Close(ctx, handoff.Call{}, handoff.CloseInput{TurnID: turn}); err != nil {
			t.Error(err)
		}
	})
}

// Refusals that need a look at the pane: no key, and nothing that blocks the
// next send. Proves tools 11.15, 11.16 and core 19.8.
func TestSend_RefusedTypesNothing(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p := w.agent()
	var key string
	panes, err := w.tmux.Panes(ctx)
	if err != nil || len(panes.Panes) != 1 {
		t.Fatalf("panes %+v %v", panes, err)
	}
	key = panes.Panes[0].Key()
	record := func(r *terminal.Record) {
		t.Helper()
		l, err := terminal.Lock(ctx, w.runDir, key, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock()
		if r == nil {
			err = l.Clear()
		} else {
			err = l.Write(*r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name     string
		do, undo func()
		in       handoff.SendInput
		want     fault.Code
	}{
		{
			"a draft", func() { w.tmuxDo("send-keys", "-t", p.tid, "-l", "half a thought") },
			func() { w.tmuxDo("send-keys", "-t", p.tid, "C-u") }, handoff.SendInput{TerminalID: p.id}, fault.ComposerNotEmpty,
		},
		{
			"copy mode", func() { w.tmuxDo("copy-mode", "-t", p.tid) },
			func() { w.tmuxDo("send-keys", "-t", p.tid, "-X", "cancel") }, handoff.SendInput{TerminalID: p.id}, fault.TerminalNotIdle,
		},
		{
			"a submission of another Store", func() {
				record(&terminal.Record{StoreID: "another", Kind: "dispatch", RefID: "msg-1", Status: store.DispatchPrepared})
			},
			func() { record(nil) }, handoff.SendInput{TerminalID: p.id}, fault.OwnerUnavailable,
		},
		{
			"no pane is ready", func() { w.tmuxDo("copy-mode", "-t", p.tid) },
			func() { w.tmuxDo("send-keys", "-t", p.tid, "-X", "cancel") }, handoff.SendInput{}, fault.TerminalAmbiguous,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.do()
			defer tc.undo()
			tc.in.Request = "refused"
			testkit.Eventually(t, patience, func() bool { // tmux may not have shown it yet
				l := w.list()
				return strings.Contains(tc.name, "Store") || len(l.Terminals) == 1 && l.Terminals[0].Actions["send"].Tool == ""
			}, "the pane is not ready")
			p.unchanged("a refused send", func() {
				if _, err := w.desk.Send(ctx, newCall(), tc.in); !fault.Is(err, tc.want) {
					t.Errorf("send: %v, want %s", err, tc.want)
				}
			})
		})
	}
	if turns, err := w.store.Turns(ctx, store.TurnFilter{Limit: 10}); err != nil || len(turns) != 0 {
		t.Errorf("turns left: %v %v", turns, err)
	}
	two := w.agent()
	for _, p := range []*pane{p, two} {
		p.unchanged("a send to nobody", func() {
			if _, err := w.desk.Send(ctx, newCall(), handoff.SendInput{Request: "to whom"}); !fault.Is(err, fault.TerminalAmbiguous) {
				t.Errorf("two panes: %v", err)
			}
		})
	}
	// What a resolved row of our own left blocks nobody.
	record(&terminal.Record{StoreID: w.store.ID(), Kind: "dispatch", RefID: "msg-1", Status: store.DispatchPrepared})
	r := p.mustSend("now it goes")
	w.follow(r.TurnID)
	if _, err := os.Stat(p.keysFile()); err != nil || !strings.Contains(p.keys(), "now it goes") {
		t.Errorf("input is not recorded: %v", err)
	}
}
