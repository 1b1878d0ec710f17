package sweep

import (
	"context"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// Kinds of tasks, before their keys.
const (
	turnPrefix  = "turn/"
	watchPrefix = "watch/"
)

// observer is what a task drives: a Turn's monitor or a Watch's lookout.
type observer interface {
	Pane() terminal.Pane
	Paths() []string
	observe(ctx context.Context, look look) (handoff.Observed, error)
}

// A look is what one poll saw of a task's pane.
type look struct {
	screen *terminal.Screen
	polled bool // screen nil and polled: the pane was not there
}

type turnObserver struct{ *handoff.Monitor }

func (o turnObserver) observe(ctx context.Context, l look) (handoff.Observed, error) {
	return o.Observe(ctx, l.screen)
}

type watchObserver struct{ *handoff.Lookout }

func (o watchObserver) observe(ctx context.Context, l look) (handoff.Observed, error) {
	return o.Observe(ctx, l.screen, l.polled && l.screen == nil)
}

// tasks are the running observations. Only the sweeping goroutine calls its
// methods; each task is one goroutine that wait waits for.
type tasks struct {
	s     *Sweeper
	lease *store.Lease // watchd/main
	once  bool         // every task looks once and ends

	running map[string]*task     // by the key of a Turn's message or a Watch
	started map[string]time.Time // last start of what is listed still
	logged  map[string]string    // last trouble of what is listed still
	ended   chan struct{}        // a task ended; capacity 1
	wg      sync.WaitGroup
	capture chan struct{} // holds a token while screens are being captured
}

type task struct {
	key    string
	cancel context.CancelFunc
	looks  chan look     // capacity 1, the newest look
	pane   terminal.Pane // set before the task is polled
	ready  chan struct{} // closed when pane is set
	done   chan struct{}
}

func newTasks(s *Sweeper, lease *store.Lease) *tasks {
	return &tasks{
		s: s, lease: lease, running: map[string]*task{}, started: map[string]time.Time{}, logged: map[string]string{},
		ended: make(chan struct{}, 1), capture: make(chan struct{}, 1),
	}
}

// refresh starts what has no task and ends what is not wanted any more. The
// two kinds have error boundaries of their own.
func (t *tasks) refresh(ctx context.Context) {
	t.reap()
	t.trim(turnPrefix, t.refreshTurns(ctx))
	t.trim(watchPrefix, t.refreshWatches(ctx))
}

// reap takes away the tasks that have ended.
func (t *tasks) reap() {
	maps.DeleteFunc(t.running, func(_ string, k *task) bool {
		select {
		case <-k.done:
			return true
		default:
			return false
		}
	})
}

// trim ends the tasks of one kind that are not wanted, and forgets what is not
// listed any more. listed says of each object whether it wants a task; nil means
// that nobody knows.
func (t *tasks) trim(kind string, listed map[string]bool) {
	if listed == nil {
		return
	}
	for key, k := range t.running {
		if strings.HasPrefix(key, kind) && !listed[key] {
			k.cancel()
		}
	}
	gone := func(key string) bool {
		_, ok := listed[key]
		return strings.HasPrefix(key, kind) && !ok
	}
	maps.DeleteFunc(t.started, func(key string, _ time.Time) bool { return gone(key) })
	maps.DeleteFunc(t.logged, func(key, _ string) bool { return gone(key) })
}

func (t *tasks) refreshTurns(ctx context.Context) (listed map[string]bool) {
	defer t.s.caught("turns")
	list, err := t.s.Store.EligibleTurns(ctx)
	if err != nil {
		t.problem("turns", err)
		return nil
	}
	wanted := map[string]bool{}
	for _, e := range list {
		key := turnPrefix + e.Turn.ID + "/" + e.Dispatch.MessageID
		if e.Skip == store.SkipSuperseded {
			wanted[key] = true
			t.start(ctx, key, func(ctx context.Context, _ *task) error { return t.give(ctx, e) })
			continue
		}
		if e.Skip != "" {
			wanted[key] = false
			t.problem(key, fault.New(fault.TurnStatusInvalid, "not monitored: %s", e.Skip))
			continue
		}
		wanted[key] = true
		t.start(ctx, key, func(ctx context.Context, k *task) error { return t.follow(ctx, k, e) })
	}
	return wanted
}

func (t *tasks) refreshWatches(ctx context.Context) (listed map[string]bool) {
	defer t.s.caught("watches")
	ids, err := t.s.Store.ActiveWatches(ctx)
	if err != nil {
		t.problem("watches", err)
		return nil
	}
	wanted := map[string]bool{}
	for _, id := range ids {
		key := watchPrefix + id
		wanted[key] = true
		t.start(ctx, key, func(ctx context.Context, k *task) error {
			w, err := t.s.Store.Watch(ctx, id)
			if err != nil {
				return err
			}
			l, err := t.s.Desk.NewLookout(w, t.lease)
			if err != nil {
				return err
			}
			return t.loop(ctx, k, watchObserver{l})
		})
	}
	return wanted
}

// start runs one task, if there is none. One that fails or panics ends alone,
// rests until the next poll, and is then tried again. One that ended well and is
// wanted all the same waits for restartPause and the next poll, so that a row
// which contradicts itself cannot make it run in circles.
func (t *tasks) start(ctx context.Context, key string, run func(context.Context, *task) error) {
	if t.running[key] != nil || time.Since(t.started[key]) < restartPause {
		return
	}
	t.started[key] = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	k := &task{key: key, cancel: cancel, looks: make(chan look, 1), ready: make(chan struct{}), done: make(chan struct{})}
	t.running[key] = k
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		defer cancel()
		if !t.guarded(ctx, k, run) {
			t.rest(ctx)
		}
		close(k.done)
		select { // let the sweep look whether more is to be done
		case t.ended <- struct{}{}:
		default:
		}
	}()
}

// guarded reports whether run ended well.
func (t *tasks) guarded(ctx context.Context, k *task, run func(context.Context, *task) error) (ok bool) {
	defer t.s.caught(k.key)
	err := run(ctx, k)
	switch {
	case ctx.Err() != nil, err == nil, fault.Is(err, fault.LeaseLost):
		return true
	case fault.Is(err, fault.LeaseHeld): // a predecessor still drains
	default:
		t.s.Log.Warn("observe", "task", k.key, "err", err)
	}
	return false
}

// rest waits for about one poll.
func (t *tasks) rest(ctx context.Context) {
	if t.once {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(t.s.Interval):
	}
}

// follow drives a Turn's monitor under its lease.
func (t *tasks) follow(ctx context.Context, k *task, e store.Eligible) error {
	lease, err := t.s.Store.Acquire(ctx, store.MonitorLease(e.Turn.ID, e.Dispatch.MessageID), store.LeaseTTL)
	if err != nil {
		return err
	}
	return t.s.under(ctx, lease, func(held context.Context) error {
		m, err := t.s.Desk.NewMonitor(e, lease)
		if err != nil {
			return err
		}
		return t.loop(held, k, turnObserver{m})
	})
}

// give takes a Turn for stalled that nobody can follow, so that its controller
// hears of it.
func (t *tasks) give(ctx context.Context, e store.Eligible) error {
	lease, err := t.s.Store.Acquire(ctx, store.MonitorLease(e.Turn.ID, e.Dispatch.MessageID), store.LeaseTTL)
	if err != nil {
		return err
	}
	return t.s.under(ctx, lease, func(held context.Context) error {
		changed, err := t.s.Desk.Superseded(held, e, lease)
		if changed {
			t.s.Log.Info("a turn's session was attached elsewhere; it is stalled", "turn", e.Turn.ID)
		}
		return err
	})
}

// loop observes at each event of the agent's files, at each poll, and when the
// observer asks for it.
func (t *tasks) loop(ctx context.Context, k *task, o observer) error {
	k.pane = o.Pane()
	close(k.ready)
	sub := t.s.Files.Subscribe(o.Paths())
	defer sub.Close()
	next := look{}
	if t.once {
		select {
		case next = <-k.looks:
		case <-ctx.Done():
			return nil
		}
	}
	failing := ""
	for {
		seen, err := o.observe(ctx, next)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != failing: // one line for one trouble
			failing = err.Error()
			t.s.Log.Warn("observe", "task", k.key, "err", err)
		case err == nil:
			failing = ""
		}
		if seen.Done || t.once {
			return nil
		}
		sub.Set(o.Paths())
		next = look{}
		var again <-chan time.Time
		if seen.Again > 0 {
			again = time.After(seen.Again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-sub.C():
		case next = <-k.looks:
		case <-again:
		}
	}
}

// poll captures the panes of all tasks at once and hands each its screen. It
// does not wait: a slow tmux delays screens, nothing else.
func (t *tasks) poll(ctx context.Context) {
	select {
	case t.capture <- struct{}{}:
	default:
		return // the last poll still captures
	}
	var ks []*task
	for _, k := range t.running {
		ks = append(ks, k)
	}
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		defer func() { <-t.capture }()
		defer t.s.caught("capture")
		t.deliver(ctx, ks)
	}()
}

func (t *tasks) deliver(ctx context.Context, ks []*task) {
	var panes []terminal.Pane
	var live []*task
	for _, k := range ks {
		if t.once {
			select {
			case <-k.ready:
			case <-k.done:
			}
		}
		select {
		case <-k.done:
			continue
		default:
		}
		select {
		case <-k.ready:
			live = append(live, k)
			panes = append(panes, k.pane)
		default:
		}
	}
	if len(live) == 0 {
		return
	}
	cctx, cancel := context.WithTimeout(ctx, captureTime)
	defer cancel()
	screens, err := t.s.Tmux.Capture(cctx, panes)
	if err != nil {
		t.s.Log.Warn("capture screens", "panes", len(panes), "err", err)
	}
	for _, k := range live {
		l := look{polled: err == nil}
		if screen, ok := screens[k.pane.Key()]; ok {
			l.screen = &screen
		}
		select { // the newest look replaces one that was not taken
		case <-k.looks:
		default:
		}
		k.looks <- l
	}
}

// problem logs a trouble of one object once, until it changes.
func (t *tasks) problem(key string, err error) {
	if t.logged[key] != err.Error() {
		t.logged[key] = err.Error()
		t.s.Log.Warn("sweep", "object", key, "err", err)
	}
}

// wait ends when every task has.
func (t *tasks) wait() {
	if !t.once {
		for _, k := range t.running {
			k.cancel()
		}
	}
	t.wg.Wait()
}

func stack() string { return string(debug.Stack()) }
