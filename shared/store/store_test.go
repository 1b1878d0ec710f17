package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"go.uber.org/goleak"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("STORE_TEST_ROLE"); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(m)
}

// clock is wall and boot-time clock of a test.
type clock struct {
	mu   sync.Mutex
	wall int64
	boot int64
	id   string
}

func newClock() *clock { return &clock{wall: 1_800_000_000_000, boot: 50_000, id: "boot-a"} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.UnixMilli(c.wall)
}

func (c *clock) bootTime() (int64, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot, c.id
}

// add moves both clocks.
func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d.Milliseconds()
	c.boot += d.Milliseconds()
}

// step moves the wall clock alone.
func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d.Milliseconds()
}

func (c *clock) reboot(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id, c.boot = id, 1_000
}

// world is one Store with a clock and some programs on it.
type world struct {
	t    testing.TB
	dir  string
	clk  *clock
	gone map[string]bool
	seq  atomic.Int64
	*store.Store
}

// fastDir is a directory in memory where there is one, for tests of many commits.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "store-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(fastDir(t), "store"), clk: newClock(), gone: map[string]bool{}}
	w.Store = w.open("bridge/1/1/x")
	return w
}

// open opens the Store once more, as another program.
func (w *world) open(holder string) *store.Store {
	w.t.Helper()
	s, err := store.Open(context.Background(), store.Options{
		Dir: w.dir, Program: "test", Holder: holder, Now: w.clk.now, Boot: w.clk.bootTime,
		NewID: func() string { return fmt.Sprintf("id-%d", w.seq.Add(1)) },
		Gone:  func(h string) (bool, bool) { return w.gone[h], true },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return s
}

// raw is a second connection for looking and for damage.
func (w *world) raw() *sql.DB {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "store.db")+"?_foreign_keys=on&_busy_timeout=5000")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { db.Close() })
	return db
}

func (w *world) lease(name string) *store.Lease {
	w.t.Helper()
	return w.leaseOf(w.Store, name)
}

func (w *world) leaseOf(s *store.Store, name string) *store.Lease {
	w.t.Helper()
	l, err := s.Acquire(context.Background(), name, store.LeaseTTL)
	if err != nil {
		w.t.Fatalf("acquire %s: %v", name, err)
	}
	return l
}

// ctx is for calls that have no reason to be cut.
var ctx = context.Background()

// dispatch is a plain new Turn for pane and thread; "" is provisional.
func dispatch(n, pane, thread string) store.NewDispatch {
	return store.NewDispatch{
		MessageID: "msg-" + n, ToolCallID: "call-" + n, Kind: store.KindTask, NewTurnID: "turn-" + n,
		Attach: store.Attach{
			NewSessionID: "session-" + n, NativeThreadID: thread, Agent: "codex", Workspace: "/w",
			Binding: store.NewBinding{TerminalID: "terminal:v2:tmux:codex:" + pane, TerminalKey: "key-" + pane, IncarnationKey: "inc-" + pane,
				Endpoint: []byte(`{}`), PID: 7, Evidence: "test"},
		},
		ControllerSessionID: "controller-1", Route: []byte(`{"r":1}`), RequestText: "do it",
		BodyHash: "body-" + n, RequestHash: "req-" + n, Anchor: []byte(`{"a":1}`),
	}
}

// flow drives one Turn as a bridge and a watchd would.
type flow struct {
	*world
	term *store.Lease
	mon  *store.Lease
	d    store.NewDispatch
	sub  store.Submission
}

func (w *world) prepare(n, pane, thread string) *flow {
	w.t.Helper()
	f := &flow{world: w, d: dispatch(n, pane, thread)}
	f.term = w.lease(store.TerminalLease(f.d.Attach.Binding.TerminalKey))
	sub, err := w.PrepareDispatch(ctx, f.term, f.d)
	if err != nil {
		w.t.Fatalf("prepare %s: %v", n, err)
	}
	f.sub = sub
	return f
}

func (f *flow) must(err error) *flow {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	return f
}

func (f *flow) mark() *flow { f.t.Helper(); return f.must(f.MarkInput(ctx, f.term, f.d.MessageID)) }
func (f *flow) text() *flow {
	f.t.Helper()
	return f.mark().must(f.TextInjected(ctx, f.term, f.d.MessageID))
}
func (f *flow) enter() *flow {
	f.t.Helper()
	return f.text().must(f.EnterDispatched(ctx, f.term, f.d.MessageID))
}

func (f *flow) accept(thread string) *flow {
	f.t.Helper()
	f.enter()
	sub, err := f.AcceptDispatch(ctx, f.term, acceptance(f.d.MessageID, thread))
	f.sub = sub
	return f.must(err)
}

func acceptance(message, thread string) store.Acceptance {
	return store.Acceptance{MessageID: message, NativeThreadID: thread, Evidence: []byte(`{"e":1}`),
		Check: func(store.Dispatch, []byte) error { return nil }}
}

// monitor takes the monitor lease and gives the fence of the moves.
func (f *flow) monitor() store.Monitor {
	f.t.Helper()
	if f.mon == nil {
		f.mon = f.lease(store.MonitorLease(f.sub.Turn.ID, f.sub.Turn.CurrentMessageID))
	}
	return store.Monitor{TurnID: f.sub.Turn.ID, MessageID: f.sub.Turn.CurrentMessageID,
		BindingGeneration: f.sub.Turn.BindingGeneration, Lease: f.mon}
}

func (f *flow) turn() store.Turn {
	f.t.Helper()
	turn, err := f.Turn(ctx, f.sub.Turn.ID)
	f.must(err)
	return turn
}

// callback is a row for the given lane and event.
func callback(n, lane, event string) *store.NewCallback {
	return &store.NewCallback{
		DeliveryID: "delivery-" + n, IdempotencyKey: "idem-" + n, Lane: lane, Kind: event, MessageID: "event-" + n, EventType: event,
		RequiresResponse: event == "question", Body: "body " + n, Envelope: []byte(`{"n":"` + n + `"}`),
		RouteTransport: "command_json_v1", RouteProfileID: "profile", RouteProfileRevision: "1", RouteControllerSessionID: "controller-1",
	}
}

func completion(n string) store.Completion {
	return store.Completion{Fingerprint: "fp-" + n, Outcome: store.OutcomeSuccess, Callback: callback(n, store.LaneLifecycle, "done")}
}

// family is the route family of callback.
var family = store.RouteFamily{ProfileID: "profile", ControllerSessionID: "controller-1"}

func wantCode(t testing.TB, err error, want fault.Code) {
	t.Helper()
	if got := fault.CodeOf(err); got != want {
		t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}

func eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}
