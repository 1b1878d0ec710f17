package control

import (
	"context"
	"net/http"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// Events of a stream of logs.
const (
	eventOutput = "output"
	eventEnd    = "end" // the last one; without it the stream broke off
)

// Output is a piece of a daemon's output.
type Output struct {
	Stream string `json:"stream"` // stdout or stderr; "" for a mark of what is left out
	Text   string `json:"text"`
}

// logs is an event stream: what there is, or with follow all until the attempt has
// ended.
func (s *Server) logs(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, operate); err != nil {
		return err
	}
	follow, err := q.flag("follow")
	if err != nil {
		return err
	}
	number, err := q.attempt()
	if err != nil {
		return err
	}
	ctx, cancel := s.waiting(q.Context())
	defer cancel()
	if follow {
		defer s.whileAllowed(ctx, cancel, q, id)()
	}
	out := &events{w: q.w, ctl: http.NewResponseController(q.w)}
	stop := out.beat()
	defer stop()
	err = s.opts.Manager.Logs(ctx, id, number, follow, func(stream string, text []byte) error {
		return out.send(eventOutput, Output{stream, string(text)})
	})
	switch {
	case err != nil && !out.begun():
		return err
	case err != nil || ctx.Err() != nil:
		panic(http.ErrAbortHandler) // no last event: it is not the end of the log
	}
	return out.send(eventEnd, struct{}{})
}

// whileAllowed calls end when the caller may not see the log of a station any more. It
// stops looking with stop, which calls end too.
func (s *Server) whileAllowed(ctx context.Context, end func(), q *request, id string) (stop func()) {
	var work sync.WaitGroup
	work.Go(func() {
		_ = s.poll(ctx, func() (bool, error) {
			_, err := s.may(q, id, operate)
			lost := fault.Is(err, fault.NotFound) || fault.Is(err, fault.RoleDenied)
			if lost {
				end()
			}
			return lost, nil
		})
	})
	return func() {
		end()
		work.Wait()
	}
}

// events is a server-sent event stream that begins with its first event.
type events struct {
	w   http.ResponseWriter
	ctl *http.ResponseController

	mu      sync.Mutex
	started bool
}

func (e *events) begun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

func (e *events) send(name string, v any) error {
	data, err := marshal(v)
	if err != nil {
		return err
	}
	return e.write("event: " + name + "\ndata: " + string(data) + "\n\n")
}

func (e *events) write(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.started {
		e.started = true
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.WriteHeader(http.StatusOK)
	}
	_ = e.ctl.SetWriteDeadline(time.Now().Add(writeWait))
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.ctl.Flush()
}

// beat writes a comment now and then, by which a client sees that there is nothing
// to see, until stop is called.
func (e *events) beat() (stop func()) {
	end := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = e.write(": hb\n\n") // who left is seen by the request's context
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		work.Wait()
	}
}
