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
)

// errDeadline is the cause of a context whose run is out of time.
var errDeadline = errors.New("the deadline of the run has passed")

// ending is how a turn came to its end.
type ending struct {
	started   bool // codex may have run
	status    *int64
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
	engine   Engine
	id       string
	streams  Streams
	exits    <-chan Exit
	overflow chan struct{}
	violated chan string
}

// turn attaches, starts, feeds, watches and waits, until the container runs no
// more or cannot be stopped. An error means that codex was never started.
func (r *run) turn(ctx context.Context) (end ending, err error) {
	calls, done := context.WithTimeout(context.WithoutCancel(ctx), startWait)
	defer done()
	streams, err := r.Engine.Attach(calls, r.container)
	if err != nil {
		return end, r.notMade("attach to", err)
	}
	defer streams.Close()
	waiting, stopWaiting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWaiting()
	exits, err := r.Engine.Wait(waiting, r.container)
	if err != nil {
		return end, r.notMade("wait for", err)
	}
	if ctx.Err() != nil {
		return end, notStarted(ctx, "start the container")
	}
	row, err := r.Store.WorkerRunning(calls, r.InvocationID)
	if err != nil {
		return end, err
	}
	r.row = row
	r.begun = r.Now()
	if err := r.Engine.Start(calls, r.container); err != nil {
		if !r.mayHaveStarted() {
			return end, r.notMade("start", err)
		}
		r.log().Warn("the start of a container broke off", "invocation", r.InvocationID, "err", err)
	}
	crashpoint.At("worker_started")
	end.started = true
	r.emit(func(e *Event) { e.State = StateRunning })

	t := turn{engine: r.Engine, id: r.container, streams: streams, exits: exits, overflow: r.overflow, violated: make(chan string, 1)}
	split := make(chan struct{})
	go func() {
		defer close(split)
		_ = streams.Split(r.stdout, r.stderr) // it ends with the container, or when it is closed
	}()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		// A worker that does not read ends this by its own end; EPIPE means no more.
		if _, err := streams.Stdin().Write(r.prompt); err == nil {
			_ = streams.CloseWrite()
		}
	}()
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = storage.Watcher{Roots: r.roots, Budget: r.budget,
			Seen: func(o storage.Observation) {
				r.emit(func(e *Event) { e.ObservedBytes, e.ObservedEntries = o.ObservedBytes, o.ObservedEntries })
			},
			Violated: func(reason string) { t.violated <- reason },
		}.Run(watching)
	}()

	t.wait(ctx, &end)
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
	streams.Close()
	<-split
	<-fed
	r.afterwards(&end)
	return end, nil
}

// wait waits for the exit, and brings it about when a bound is hit.
func (t turn) wait(ctx context.Context, end *ending) {
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
	case <-t.overflow:
		end.overflow = true
	case end.violation = <-t.violated:
	}
	calls, done := context.WithTimeout(context.WithoutCancel(ctx), exitWait)
	defer done()
	for {
		// SIGKILL: there is nothing to save inside, the record comes from outside.
		err := t.engine.Kill(calls, t.id)
		if err == nil {
			break
		}
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

// killAgain is the pause between two tries to kill.
const killAgain = 200 * time.Millisecond

// mayHaveStarted looks at a container whose start gave an error.
func (r *run) mayHaveStarted() bool {
	calls, done := context.WithTimeout(context.Background(), exitWait)
	defer done()
	o, err := r.Engine.Inspect(calls, r.container)
	return err == nil && (o.Running || o.Started) || err != nil && !errors.Is(err, errNoContainer)
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
