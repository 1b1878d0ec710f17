package store_test

import (
	"context"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// keep runs a Keeper until the test ends.
func keep(t *testing.T, s *store.Store) *store.Keeper {
	t.Helper()
	k := store.NewKeeper(s, nil)
	run(t, k.Run)
	return k
}

// run runs an actor until the test ends and waits for it.
func run(t *testing.T, actor func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- actor(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("actor: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestKeeper_RenewsInTime(t *testing.T) {
	s := mustOpen(t, t.TempDir()+"/s")
	k := keep(t, s)
	short, err := s.Acquire(ctx, "short", 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	long, err := s.Acquire(ctx, "long", store.TerminalTTL)
	if err != nil {
		t.Fatal(err)
	}
	held, stop := k.Keep(ctx, short)
	defer stop()
	heldLong, stopLong := k.Keep(ctx, long)
	end := func() int64 {
		rows, err := s.Leases(ctx, "short")
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		return rows[0].ExpiresAt
	}
	first := end()
	eventually(t, 20*time.Second, "the lease is far past its first end", func() bool { return end() > first+2000 })
	if held.Err() != nil || heldLong.Err() != nil {
		t.Error(context.Cause(held), context.Cause(heldLong))
	}
	stopLong()
	stopLong()
	if heldLong.Err() == nil || held.Err() != nil {
		t.Error("stop ends the wrong context")
	}
}

func TestKeeper_TellsALostLease(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	k := keep(t, s)
	l, err := s.Acquire(ctx, "x", 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Acquire(ctx, "y", 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	held, stop := k.Keep(ctx, l)
	defer stop()
	heldOther, stopOther := k.Keep(ctx, other)
	defer stopOther()
	if _, err := store.Readers(s).Exec(`PRAGMA query_only = 0`); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Readers(s).Exec(`UPDATE leases SET holder = 'thief', epoch = epoch + 1 WHERE name = 'x'`); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the loss was not told")
	}
	wantCode(t, context.Cause(held), fault.LeaseLost)
	if l.Live() || heldOther.Err() != nil {
		t.Error("the wrong lease was lost")
	}
}
