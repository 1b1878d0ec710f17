package mcpserver

import (
	"errors"
	"io"
	"sync"
)

// maxUnsent bounds the answers that wait for a client that does not read.
const maxUnsent = 64 << 20

// errNoWriter says that the frame will not be written any more.
var errNoWriter = errors.New("output closed")

// A writer is the only thing that touches stdout. Frames are written whole and
// one after another, so no two frames ever mix. A frame that the client's pipe
// takes at once is written by whoever brings it; all else is left to one
// goroutine, so no call waits for a slow client.
type writer struct {
	out io.Writer
	try func([]byte) (int, error) // writes what fits now; nil: nothing ever does

	mu     sync.Mutex
	change sync.Cond // signalled whenever a field below changes
	queue  []unsent
	size   int  // bytes in queue
	busy   bool // a frame is being tried
	err    error
	ending bool
	done   chan struct{} // closed when run has returned
}

// unsent is one frame and what to do when it is out, or is known never to be.
type unsent struct {
	frame []byte
	sent  func()
}

func newWriter(out io.Writer) *writer {
	w := &writer{out: out, done: make(chan struct{})}
	w.change.L = &w.mu
	if t, ok := out.(interface{ try([]byte) (int, error) }); ok {
		w.try = t.try
	}
	return w
}

// put hands over one frame, its newline included. It waits only when maxUnsent
// is reached. sent is called once: after the write, or when it will never be.
func (w *writer) put(frame []byte, sent func()) {
	w.mu.Lock()
	for w.err == nil && !w.ending && w.size > 0 && w.size+len(frame) > maxUnsent {
		w.change.Wait()
	}
	if w.err != nil || w.ending {
		w.mu.Unlock()
		sent()
		return
	}
	if w.try == nil || w.busy || w.size > 0 {
		w.enqueue(unsent{frame, sent})
		w.mu.Unlock()
		return
	}
	w.busy = true
	w.mu.Unlock()
	n, err := w.try(frame)
	w.mu.Lock()
	w.busy = false
	if err == nil && n == len(frame) {
		w.change.Broadcast() // others may have come meanwhile
		w.mu.Unlock()
		sent()
		return
	}
	// What is left of the frame, or the error for run to meet again, goes first.
	w.queue = append([]unsent{{frame[n:], sent}}, w.queue...)
	w.size += len(frame) - n
	w.change.Broadcast()
	w.mu.Unlock()
}

// enqueue is called with mu held.
func (w *writer) enqueue(u unsent) {
	w.queue = append(w.queue, u)
	w.size += len(u.frame)
	w.change.Broadcast()
}

// run writes until end was called and the queue is empty, or the output failed.
// failed is told about the first failure.
func (w *writer) run(failed func(error)) {
	defer close(w.done)
	for {
		w.mu.Lock()
		for w.busy || len(w.queue) == 0 && !w.ending {
			w.change.Wait()
		}
		if len(w.queue) == 0 {
			w.mu.Unlock()
			return
		}
		next, broken := w.queue[0], w.err != nil
		w.queue = w.queue[1:]
		w.mu.Unlock()

		var err error
		if !broken {
			_, err = w.out.Write(next.frame)
		}
		w.mu.Lock()
		w.size -= len(next.frame)
		if err != nil {
			w.err = err
		}
		w.change.Broadcast()
		w.mu.Unlock()
		if err != nil {
			failed(err)
		}
		next.sent()
	}
}

// end lets run return once the queue is written; nothing is taken any more.
func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = true
	w.change.Broadcast()
}

// drop gives up what is queued.
func (w *writer) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = errNoWriter
	}
	w.ending = true
	w.change.Broadcast()
}
