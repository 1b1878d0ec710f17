package sweep

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// idle gives tasks without a Store: their functions are the test's own.
func idle(log *slog.Logger) *tasks {
	return newTasks(&Sweeper{Interval: DefaultInterval, Log: log}, nil)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// settled waits until no task moves and tidies up as a refresh does.
func (t *tasks) settled(listed map[string]bool) {
	synctest.Wait()
	t.reap()
	t.trim(turnPrefix, listed)
	t.trim(watchPrefix, listed)
}

// A task that ends well although its row still wants one does not run in
// circles; once the row was gone in between it starts at once.
func TestTasks_RestartPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts, runs := idle(quiet()), 0
		start := func() { ts.start(t.Context(), "turn/1", func(context.Context, *task) error { runs++; return nil }) }
		wanted := map[string]bool{"turn/1": true}
		for range 100 {
			start()
			ts.settled(wanted)
		}
		if runs != 1 {
			t.Errorf("%d runs without a pause", runs)
		}
		time.Sleep(restartPause)
		start()
		ts.settled(wanted)
		if runs != 2 {
			t.Errorf("%d runs after the pause, want 2", runs)
		}
		ts.settled(map[string]bool{}) // released, then renewed
		start()
		ts.settled(wanted)
		if runs != 3 {
			t.Errorf("%d runs of a renewed one, want 3", runs)
		}
		ts.wait()
	})
}

// A task that fails or panics rests for one poll, one that hangs stays alone, and
// none of them holds up another. Proves core 19.23's scheduling.
func TestTasks_Isolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		ts := idle(slog.New(slog.NewTextHandler(&said, nil)))
		free := make(chan struct{})
		var failed, panicked, looked atomic.Int64
		begin := time.Now()
		refresh := func() {
			ts.reap()
			ts.start(t.Context(), "turn/hangs", func(context.Context, *task) error { <-free; return nil })
			ts.start(t.Context(), "turn/fails", func(context.Context, *task) error { failed.Add(1); return errors.New("broken") })
			ts.start(t.Context(), "turn/panics", func(context.Context, *task) error { panicked.Add(1); panic("sabotage") })
			ts.start(t.Context(), "watch/works", func(ctx context.Context, _ *task) error {
				for {
					looked.Add(1)
					select {
					case <-ctx.Done():
						return nil
					case <-time.After(time.Second):
					}
				}
			})
		}
		for time.Since(begin) < time.Minute {
			refresh()
			time.Sleep(DefaultInterval / 5)
		}
		synctest.Wait()
		if n := looked.Load(); n < 59 {
			t.Errorf("the good task looked %d times in a minute", n)
		}
		for what, n := range map[string]int64{"failing": failed.Load(), "panicking": panicked.Load()} {
			if n < 9 || n > 13 {
				t.Errorf("the %s task ran %d times in a minute, want about one for each poll", what, n)
			}
		}
		if !strings.Contains(said.String(), "sabotage") || !strings.Contains(said.String(), "broken") {
			t.Errorf("log:\n%s", said.String())
		}
		close(free)
		ts.wait()
	})
}

// What is not listed any more is cancelled and forgotten; where the listing
// failed, everything goes on.
func TestTasks_Trim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := idle(quiet())
		var mu sync.Mutex
		alive := map[string]bool{}
		for _, key := range []string{"turn/a", "turn/b", "watch/a"} {
			alive[key] = true
			ts.start(t.Context(), key, func(ctx context.Context, k *task) error {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				alive[k.key] = false
				return nil
			})
		}
		ts.problem("turn/c", errors.New("skipped"))
		check := func(when string, a, b, w bool) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if alive["turn/a"] != a || alive["turn/b"] != b || alive["watch/a"] != w {
				t.Errorf("%s: %v", when, alive)
			}
		}
		ts.trim(turnPrefix, nil)
		check("unknown", true, true, true)
		ts.trim(turnPrefix, map[string]bool{"turn/a": true, "turn/b": false})
		check("one skipped", true, false, true)
		if len(ts.logged) != 0 {
			t.Errorf("troubles of what is gone: %v", ts.logged)
		}
		ts.trim(watchPrefix, map[string]bool{})
		check("no watch", true, false, false)
		ts.wait()
		check("at the end", false, false, false)
	})
}
