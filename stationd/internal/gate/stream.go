package gate

import (
	"context"
	"io"
	"net/http"
	"time"

	"drawbridge/shared/strictjson"
)

// beat is the comment that the gate writes into a silent stream.
const beat = ": hb\n\n"

// errTooLarge is the reason in the last event of a stream with an endless event.
const errTooLarge = "event_too_large"

// piece is one result of a splitter.
type piece struct {
	chunk
	err error
}

// follow passes on an event stream until it ends, in one of these ways: the
// daemon ends it, the client leaves or does not read, the passage ends.
func (p *passage) follow(ctx context.Context, w http.ResponseWriter, resp *http.Response) {
	pieces, taken, quit := make(chan piece), make(chan struct{}), make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		split(resp.Body, pieces, taken, quit)
	}()
	defer func() {
		close(quit)
		p.cancel(errEnded) // the daemon learns at once
		resp.Body.Close()
		<-finished
	}()

	s := &writer{passage: p, w: w}
	s.flush() // the header: a client waits for it
	silence := time.NewTimer(heartbeat)
	defer silence.Stop()
	now := p.route.gate.opts.Now
	expiry := time.NewTimer(p.access.ExpiresAt.Sub(now()))
	defer expiry.Stop()
	for {
		select {
		case <-p.over:
			s.last(p.ended())
			return
		default: // an end comes before what is still to be passed on
		}
		select {
		case <-p.over:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		case <-expiry.C:
			if left := p.access.ExpiresAt.Sub(now()); left > 0 {
				expiry.Reset(left)
				continue
			}
			p.end(ending{reason: "ticket_expired"})
		case <-silence.C:
			s.write([]byte(beat))
			silence.Reset(heartbeat)
		case got := <-pieces:
			if got.err != nil {
				s.finish(got, resp)
				return
			}
			s.write(got.bytes)
			p.route.out.Add(int64(len(got.bytes)))
			if got.events > 0 {
				p.route.active(now())
			}
			silence.Reset(heartbeat)
			taken <- struct{}{}
		}
	}
}

// split reads whole events and hands them over one after another.
func split(body io.Reader, pieces chan<- piece, taken, quit <-chan struct{}) {
	s := &splitter{r: body}
	for {
		got, err := s.next()
		select {
		case pieces <- piece{got, err}:
		case <-quit:
			return
		}
		if err != nil {
			return
		}
		select {
		case <-taken:
		case <-quit:
			return
		}
	}
}

// writer writes to a client that may be gone: then it ends the connection.
type writer struct {
	passage *passage
	w       http.ResponseWriter
}

func (s *writer) write(b []byte) {
	s.passage.mayWrite()
	if _, err := s.w.Write(b); err != nil {
		panic(http.ErrAbortHandler)
	}
	s.flush()
}

func (s *writer) flush() {
	if s.passage.control.Flush() != nil {
		panic(http.ErrAbortHandler)
	}
}

// finish ends a stream whose daemon ended it. A stream that breaks off may be the
// first sign of a daemon's end: for a moment the stop that explains it is waited
// for, so that the client learns of it.
func (s *writer) finish(got piece, resp *http.Response) {
	p := s.passage
	wait := time.Duration(0)
	switch {
	case got.err == errEventTooLarge:
		p.route.refuse(errTooLarge)
		p.end(ending{reason: errTooLarge})
		s.last(p.ended())
		return
	case got.err != io.EOF:
		wait = brokenWait
	case len(resp.TransferEncoding) == 0 && resp.ContentLength < 0:
		wait = closedWait // its end is the end of the connection, whatever that means
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-p.over:
			s.last(p.ended())
			return
		case <-timer.C:
		}
	}
	if got.err != io.EOF {
		panic(http.ErrAbortHandler)
	}
	if len(got.bytes) > 0 {
		s.write(got.bytes)
		p.route.out.Add(int64(len(got.bytes)))
	}
}

// last writes the event that ends a stream. It has no id, so that a client keeps
// the daemon's last one.
func (s *writer) last(e *ending) {
	state := "ready"
	if e.final {
		state = "stopping"
	}
	data, err := strictjson.Object{
		{Name: "schema", Value: "drawbridge/station-event"},
		{Name: "version", Value: 1},
		{Name: "stationId", Value: s.passage.access.Station},
		{Name: "attempt", Value: s.passage.access.Attempt},
		{Name: "state", Value: state},
		{Name: "reason", Value: e.reason},
		{Name: "final", Value: e.final},
	}.JSON()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.write([]byte("event: station\ndata: " + string(data) + "\n\n"))
}
