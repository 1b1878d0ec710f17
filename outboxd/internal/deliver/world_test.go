package deliver_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/outboxd/internal/deliver"
	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/outboxd/internal/seed"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// world is one Store with a clock that tests move.
type world struct {
	t     testing.TB
	dir   string
	clock *testkit.Clock
	log   *logBuffer
	*store.Store
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "store"), clock: testkit.NewClock(), log: &logBuffer{}}
	w.Store = w.open()
	return w
}

func (w *world) open() *store.Store {
	w.t.Helper()
	s, err := store.Open(context.Background(), store.Options{
		Dir: w.dir, Program: "test", Now: w.clock.Now,
		Boot: func() (int64, string) { return w.clock.Boot(), process.BootID() },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

// logBuffer keeps what is logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// courier is one running Courier with a Store handle of its own.
type courier struct {
	*world
	ready  chan struct{}
	passes atomic.Int64
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
	stop   sync.Once

	mu     sync.Mutex
	states []deliver.State // told, in order
}

func (c *courier) told() []deliver.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.states)
}

func (w *world) start(h *fakehost.Host, session string, environ ...string) *courier {
	w.t.Helper()
	s := w.open()
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	keeper, bell := store.NewKeeper(s, log), store.NewDoorbell(s, log)
	c := &courier{world: w, ready: make(chan struct{}), done: make(chan error, 1)}
	captured := h.Capture(session)
	d := deliver.New(deliver.Options{
		Store: s, Keeper: keeper, Doorbell: bell, Captured: captured, Environ: fakehost.Environ(session, environ...), Log: log,
		Now: w.clock.Now, Poll: poll, State: func(s deliver.State) {
			c.mu.Lock()
			c.states = append(c.states, s)
			c.mu.Unlock()
			c.once.Do(func() { close(c.ready) })
		},
	})
	d.OnPass(func() { c.passes.Add(1) })
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	behind, stopBehind := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { keeper.Run(behind) })
	wg.Go(func() { bell.Run(behind) })
	go func() {
		err := d.Run(ctx)
		stopBehind()
		wg.Wait()
		c.done <- err
	}()
	w.t.Cleanup(func() { c.end() })
	select {
	case <-c.ready:
	case <-time.After(limit):
		w.t.Fatal("the courier is not ready")
	}
	return c
}

// end stops the courier as a drain does and waits for it.
func (c *courier) end() {
	c.t.Helper()
	c.stop.Do(func() {
		c.cancel()
		select {
		case err := <-c.done:
			if err != nil {
				c.t.Errorf("courier: %v", err)
			}
		case <-time.After(limit):
			c.t.Error("the courier does not end")
		}
	})
}

// pass waits until two whole passes have begun and ended from now.
func (c *courier) pass() {
	c.t.Helper()
	at := c.passes.Load()
	eventually(c.t, "two passes", func() bool { return c.passes.Load() >= at+2 })
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func (w *world) becomes(delivery, status string) store.Callback {
	w.t.Helper()
	var row store.Callback
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		if row = seed.Read(w.t, w.Store, delivery); row.Status == status {
			return row
		}
		if time.Now().After(end) {
			w.t.Fatalf("row %s: got %s (%s, attempt %d), want %s\n%s", delivery, row.Status, row.LastErrorCode, row.Attempts, status, w.log)
		}
	}
}
