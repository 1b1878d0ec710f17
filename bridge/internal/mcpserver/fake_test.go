package mcpserver_test

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// fake is a Handoff whose send does what the request says.
type fake struct {
	catalog.Handoff // what no test here calls

	running, most, total atomic.Int64
	ended                atomic.Int64 // calls whose context ended before they did

	mu    sync.Mutex
	calls []handoff.Call
	gate  chan struct{} // "wait" returns when it is closed
}

func newFake() *fake { return &fake{gate: make(chan struct{})} }

func (f *fake) begin(c handoff.Call) func() {
	f.total.Add(1)
	n := f.running.Add(1)
	for {
		most := f.most.Load()
		if n <= most || f.most.CompareAndSwap(most, n) {
			break
		}
	}
	f.mu.Lock()
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	return func() { f.running.Add(-1) }
}

func (f *fake) Send(ctx context.Context, c handoff.Call, in handoff.SendInput) (handoff.Outcome, error) {
	defer f.begin(c)()
	switch in.Request {
	case "panic":
		panic("secret detail of a panic")
	case "refuse":
		return handoff.Outcome{}, fault.New(fault.SessionBusy, "send: the Session has a Turn").With("turn_id", "turn-9")
	case "pending":
		return handoff.Outcome{Body: map[string]any{"submission_outcome": "pending_acceptance", "delivered": false, "do_not_retry": true}, Failed: true}, nil
	case "wait":
		select {
		case <-f.gate:
		case <-ctx.Done():
			f.ended.Add(1)
			return handoff.Outcome{}, ctx.Err()
		}
	case "stubborn":
		<-f.gate
	case "short":
		time.Sleep(2 * time.Millisecond) // some work
	}
	return handoff.Outcome{Body: map[string]any{"turn_id": "turn-1", "request": in.Request, "delivered": true, "binding_token": "canary"}}, nil
}

func (f *fake) List(context.Context, handoff.ListInput) (handoff.Outcome, error) {
	defer f.begin(handoff.Call{})()
	return handoff.Outcome{Body: struct {
		Terminals []string `json:"terminals"`
	}{[]string{}}}, nil
}

func (f *fake) Status(_ context.Context, in handoff.StatusInput) (handoff.Outcome, error) {
	defer f.begin(handoff.Call{})()
	return handoff.Outcome{Body: in}, nil
}

func (f *fake) other(c handoff.Call) (handoff.Outcome, error) {
	defer f.begin(c)()
	return handoff.Outcome{Body: struct{}{}}, nil
}

func (f *fake) Watch(_ context.Context, c handoff.Call, _ handoff.WatchInput) (handoff.Outcome, error) {
	return f.other(c)
}

func (f *fake) Unwatch(_ context.Context, c handoff.Call, _ handoff.UnwatchInput) (handoff.Outcome, error) {
	return f.other(c)
}

func (f *fake) Renew(_ context.Context, c handoff.Call, _ handoff.RenewInput) (handoff.Outcome, error) {
	return f.other(c)
}

func (f *fake) RetryCallback(_ context.Context, c handoff.Call, _ handoff.RetryCallbackInput) (handoff.Outcome, error) {
	return f.other(c)
}

func (f *fake) Cancel(_ context.Context, c handoff.Call, _ handoff.CancelInput) (handoff.Outcome, error) {
	return f.other(c)
}

func (f *fake) Close(_ context.Context, c handoff.Call, _ handoff.CloseInput) (handoff.Outcome, error) {
	return f.other(c)
}
