package main

import (
	"sync"

	"drawbridge/stationd/internal/wire"
)

// ring holds the newest output of one stream until somebody took it. Positions
// count bytes from the beginning of the stream.
type ring struct {
	mu      sync.Mutex
	buf     []byte
	start   int64 // position of buf[0]
	acked   int64 // everything before was taken
	dropped int64
	changed chan struct{} // closed and replaced with each change
}

func newRing() *ring { return &ring{changed: make(chan struct{})} }

// Write never blocks: what has no room pushes the oldest out.
func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, p...)
	if over := len(r.buf) - wire.RingBytes; over > 0 {
		r.dropped += int64(over)
		r.drop(over)
	}
	r.tell()
	return len(p), nil
}

// ack forgets everything before seq.
func (r *ring) ack(seq int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq <= r.acked || seq > r.start+int64(len(r.buf)) {
		return
	}
	r.acked = seq
	if n := seq - r.start; n > 0 {
		r.drop(int(n))
	}
	r.tell()
}

func (r *ring) drop(n int) {
	r.buf = append(r.buf[:0], r.buf[n:]...)
	r.start += int64(n)
}

func (r *ring) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// next gives a copy of what follows the position sent, at most a chunk: data that
// begins at at, or nothing and what is closed when to ask again. What was not
// acknowledged may not grow over its bound.
func (r *ring) next(sent int64) (data []byte, at int64, again <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = max(sent, r.start)
	n := min(r.start+int64(len(r.buf))-at, wire.MaxChunk)
	if n <= 0 || at-max(r.acked, r.start) >= wire.MaxUntold {
		return nil, at, r.changed
	}
	from := at - r.start
	return append([]byte(nil), r.buf[from:from+n]...), at, nil
}

// taken is where a new connection goes on.
func (r *ring) taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked
}

// count gives how much came, and how much of it was lost.
func (r *ring) count() (total, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start + int64(len(r.buf)), r.dropped
}
