package service

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// maxQueued bounds the bytes that wait for a slow reader of the log.
const maxQueued = 1 << 20

// sink is a queue of whole lines before a writer that may block. Write never
// blocks: a line that does not fit is dropped, and the next one that does is
// preceded by a line that says how many were.
type sink struct {
	out io.Writer

	mu      sync.Mutex
	queue   [][]byte
	queued  int // bytes in queue
	dropped int
	closed  bool

	wake chan struct{} // holds a token when queue or closed changed
	done chan struct{} // closed when the writing goroutine has ended
}

func newSink(out io.Writer) *sink {
	s := &sink{out: out, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s
}

// Write queues a copy of p, which is one line.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return len(p), nil
	case s.queued+len(p) > maxQueued:
		s.dropped++
		return len(p), nil
	case s.dropped > 0:
		s.push(droppedLine(p, s.dropped))
		s.dropped = 0
	}
	s.push(bytes.Clone(p))
	return len(p), nil
}

func (s *sink) push(line []byte) {
	s.queue = append(s.queue, line)
	s.queued += len(line)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// droppedLine has the form of the line it precedes.
func droppedLine(like []byte, n int) []byte {
	if bytes.HasPrefix(like, []byte("{")) {
		return fmt.Appendf(nil, `{"level":"WARN","msg":"log lines dropped","lines":%d}`+"\n", n)
	}
	return fmt.Appendf(nil, "level=WARN msg=\"log lines dropped\" lines=%d\n", n)
}

// run writes until the sink is closed and empty. A line's bytes count as queued
// until it is written.
func (s *sink) run() {
	defer close(s.done)
	for range s.wake {
		for {
			s.mu.Lock()
			if len(s.queue) == 0 {
				closed, dropped := s.closed, s.dropped
				s.mu.Unlock()
				if !closed {
					break
				}
				if dropped > 0 {
					_, _ = s.out.Write(droppedLine(nil, dropped))
				}
				return
			}
			line := s.queue[0]
			s.queue = s.queue[1:]
			s.mu.Unlock()
			_, _ = s.out.Write(line) // nobody could be told of a failure
			s.mu.Lock()
			s.queued -= len(line)
			s.mu.Unlock()
		}
	}
}

// close ends the sink and waits for what is queued, within limit. When the
// writer is stuck its goroutine is left behind: the program is about to end.
func (s *sink) close(limit time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
}
