package worker

import (
	"context"
	"errors"
	"time"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/crashpoint"
)

// Waits of a turn.
const (
	startWait = 60 * time.Second // for calls that are not cut by a deadline or a signal
	exitWait  = 5 * time.Second  // for the exit after a kill
	drainWait = 2 * time.Second  // for the rest of the output after an exit
	killAgain = 200 * time.Millisecond
)

// errDeadline is the cause of a context whose run is out of time.
var errDeadline = errors.New("the deadline of the run has passed")

// ending is how a turn came to its end.
type ending struct {
	status    *int64 // nil: no exit was observed
	timeout   bool
	overflow  bool
	cancelled bool
	oom       bool
	violation string // "": none
}

// reason is the word for Progress; "" when the worker ended by itself.
func (e ending) reason() string {
	switch {
	case e.timeout:
		return "timeout"
	case e.cancelled:
		return "cancelled"
	case e.overflow:
		return "overflow"
	}
	return e.violation
}

// turn is a started container.
type turn struct {
	streams     Streams
	exits       <-chan Exit
	stopWaiting context.CancelFunc
	violated    chan string
}

// runTurn starts the container, feeds it, watches it and waits, until it runs no
// more or cannot be stopped. An error means that codex was never started.
func (r *run) runTurn(ctx context.Context) (end ending, err error) {
	t, err := r.begin(ctx)
	if err != nil {
		return end, err
	}
	defer t.stopWaiting()
	crashpoint.At("worker_started")
	r.emit(func(e *Event) { e.State = StateRunning })

	split, fed, watched := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(split)
		_ = t.streams.Split(r.stdout, r.stderr) // it ends with the container, or when it is closed
	}()
	go func() {
		defer close(fed)
		// A worker that does not read ends this by its own end; EPIPE means no more.
		if _, err := t.streams.Stdin().Write(r.prompt); err == nil {
			_ = t.streams.CloseWrite()
		}
	}()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	go func() {
		defer close(watched)
		r.watch(watching, t.violated)
	}()

	r.await(ctx, t, &end)
	stopWatching()
	<-watched
	if end.violation == "" {
		select { // found while the container was on its way out
		case end.violation = <-t.violated:
		default:
		}
	}
	r.emit(func(e *Event) { e.State, e.Reason = StateEnding, end.reason() })

	select { // what the worker wrote last
	case <-split:
	case <-time.After(drainWait):
	}
	t.streams.Close()
	<-split
	<-fed
	r.afterwards(&end)
	return end, nil
}

// begin attaches, registers the wait, and starts, in this order: nothing of a
// turn is missed.
func (r *run) begin(ctx context.Context) (t turn, err error) {
	calls, done := context.WithTimeout(context.WithoutCancel(ctx), startWait)
	defer done()
	t = turn{violated: make(chan string, 1)}
	if t.streams, err = r.Engine.Attach(calls, r.container); err != nil {
		return t, r.notMade("attach to", err)
	}
	waiting, stopWaiting := context.WithCancel(context.WithoutCancel(ctx))
	t.stopWaiting = stopWaiting
	defer func() {
		if err != nil {
			stopWaiting()
			t.streams.Close()
		}
	}()
	if t.exits, err = r.Engine.Wait(waiting, r.container); err != nil {
		return t, r.notMade("wait for", err)
	}
	if ctx.Err() != nil {
		return t, notStarted(ctx, "start the container")
	}
	row, err := r.Store.WorkerRunning(calls, r.InvocationID)
	if err != nil {
		return t, err
	}
	r.row, r.begun = row, r.Now()
	if err := r.Engine.Start(calls, r.container); err != nil {
		if !r.mayHaveStarted() {
			return t, r.notMade("start", err)
		}
		r.Log.Warn("the start of a container broke off", "invocation", r.InvocationID, "err", err)
	}
	return t, r.sameSources(calls)
}

// watch looks at the storage until ctx ends.
func (r *run) watch(ctx context.Context, violated chan<- string) {
	_ = storage.Watcher{Roots: r.roots, Budget: r.budget,
		Seen: func(o storage.Observation) {
			r.emit(func(e *Event) { e.ObservedBytes, e.ObservedEntries = o.ObservedBytes, o.ObservedEntries })
		},
		Violated: func(reason string) { violated <- reason },
	}.Run(ctx)
}

// await waits for the exit, and brings it about when a bound is hit.
func (r *run) await(ctx context.Context, t turn, end *ending) {
	select {
	case e := <-t.exits:
		if e.Err == nil {
			end.status = &e.Status
			return
		}
		// The engine lost track; what runs is ended like anything else.
	case <-ctx.Done():
		end.timeout = errors.Is(context.Cause(ctx), errDeadline)
		end.cancelled = !end.timeout
	case <-r.overflow:
		end.overflow = true
	case end.violation = <-t.violated:
	}
	calls, done := context.WithTimeout(context.WithoutCancel(ctx), exitWait)
	defer done()
	// SIGKILL: there is nothing to save inside, the record comes from outside.
	for r.Engine.Kill(calls, r.container) != nil {
		select {
		case <-time.After(killAgain):
		case <-calls.Done():
			return
		}
	}
	select {
	case e := <-t.exits:
		if e.Err == nil {
			end.status = &e.Status
		}
	case <-calls.Done():
	}
}

// mayHaveStarted looks at a container whose start gave an error. What cannot be
// seen may have started.
func (r *run) mayHaveStarted() bool {
	calls, done := context.WithTimeout(context.Background(), exitWait)
	defer done()
	o, err := r.Engine.Inspect(calls, r.container)
	if err != nil {
		return !errors.Is(err, errNoContainer)
	}
	return o.Running || o.Started
}

// afterwards looks at the stopped container: out of memory, and the status if the
// wait did not give it.
func (r *run) afterwards(end *ending) {
	calls, done := context.WithTimeout(context.Background(), exitWait)
	defer done()
	o, err := r.Engine.Inspect(calls, r.container)
	if err != nil {
		return
	}
	end.oom = o.OOMKilled
	if end.status == nil && o.Started && !o.Running && o.Status == "exited" {
		end.status = &o.ExitCode
	}
}
