package evidence

import (
	"context"
	"fmt"
	"sync"

	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/wire"
)

// piece is how much is given to the redactor at once: what becomes of it is one frame
// on disk.
const piece = 32 << 10

// unmarked is how much hidden output may pass before that is recorded.
const unmarked = 16 << 10

// Logs is the log of one attempt that runs. Its methods may be called from several
// goroutines; those of one stream's output by one at a time.
type Logs struct {
	in      sync.Mutex // output comes in
	streams map[string]*stream

	mu     sync.Mutex // guards the ring
	ring   *ring
	err    error         // of the last write that failed
	grown  chan struct{} // closed and replaced when something was added
	closed bool
}

// stream is one stream of the daemon.
type stream struct {
	*redact.Stream
	next int64 // position of the byte that is expected
}

// OpenLogs opens the log of an attempt in dir, which is made if absent, or goes on
// with one that an earlier stationd left there. Close ends it.
func OpenLogs(dir string, r *redact.Redactor) (*Logs, error) {
	ring, err := openRing(dir)
	if err != nil {
		return nil, fmt.Errorf("open the log of an attempt: %w", err)
	}
	l := &Logs{ring: ring, grown: make(chan struct{}), streams: map[string]*stream{}}
	for _, name := range []string{wire.Stdout, wire.Stderr} {
		mark := ring.marks[name]
		l.streams[name] = &stream{next: mark.Taken, Stream: r.Resume(mark, func(text []byte, m redact.Mark) error {
			l.add(name, text, m)
			return nil
		})}
	}
	return l, nil
}

// Write takes output of a stream, wire.Stdout or wire.Stderr, that begins at position
// seq. What was taken before is passed over; what is missing in between is noted. Its
// error says that the disk did not take it: the text is counted as dropped, and later
// output is tried again.
func (l *Logs) Write(stream string, seq int64, data []byte) error {
	return l.take(stream, seq, func(s *streamAt) {
		data := data[min(s.skip, int64(len(data))):]
		for len(data) > 0 {
			n := min(len(data), piece)
			_, _ = s.Stream.Write(data[:n]) // add keeps its errors
			s.next += int64(n)
			data = data[n:]
		}
	})
}

// Lost notes n bytes of a stream from position seq on that nobody will send any more.
func (l *Logs) Lost(stream string, seq, n int64) error {
	return l.take(stream, seq+n, func(*streamAt) {})
}

// streamAt is a stream brought to a position, or skip bytes behind it.
type streamAt struct {
	*stream
	skip int64
}

func (l *Logs) take(name string, seq int64, then func(*streamAt)) error {
	l.in.Lock()
	defer l.in.Unlock()
	s := l.streams[name]
	if s == nil {
		return fmt.Errorf("write the log of an attempt: %.20q is no stream", name)
	}
	l.failure()
	if gap := seq - s.next; gap > 0 {
		l.gap(name, gap)
		_ = s.Stream.Lost(gap)
		s.next = seq
	}
	then(&streamAt{s, s.next - seq})
	return l.failure()
}

// Taken is the position of a stream before which everything is on disk or hidden: so
// much may be acknowledged. It also moves by itself, a moment after an unfinished
// line.
func (l *Logs) Taken(stream string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.marks[stream].Taken
}

// Read passes the log on from its beginning, in order: text of a stream, or with
// stream "" a line that says what is missing. With follow it goes on until the log is
// closed; without, it ends at the present end.
func (l *Logs) Read(ctx context.Context, follow bool, emit func(stream string, text []byte) error) error {
	var r reader
	for {
		l.mu.Lock()
		segments, grown, closed := l.ring.list(), l.grown, l.closed
		l.mu.Unlock()
		if err := r.read(ctx, segments, emit); err != nil {
			return err
		}
		if !follow || closed {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-grown:
		}
	}
}

// Summary describes the log as it is now; after Close it is what stays.
func (l *Logs) Summary() (LogSummary, error) {
	l.mu.Lock()
	segments, dropped := l.ring.list(), l.ring.lost
	total := l.ring.total
	l.mu.Unlock()
	s, err := summarize(segments)
	s.Dropped = dropped + total - s.Bytes
	return s, err
}

// Close passes on what is held back and ends the log, and all that follow it. The
// files stay.
func (l *Logs) Close() error { return l.end(func(s *stream) { _ = s.Stream.Close() }) }

// Leave ends the log where it stands, for a later stationd that goes on with it. What is
// held back is not written, for half a secret is none that is known; it was not taken,
// so the shim has it still.
func (l *Logs) Leave() error { return l.end(func(s *stream) { s.Stream.Drop() }) }

func (l *Logs) end(how func(*stream)) error {
	l.in.Lock()
	defer l.in.Unlock()
	for _, s := range l.streams {
		how(s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.grown)
	return l.ring.close()
}

// add writes what a stream passed on.
func (l *Logs) add(name string, text []byte, m redact.Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(text) == 0 && m.Taken-l.ring.marks[name].Taken < unmarked {
		return
	}
	l.ring.put(name, text, 0, m)
	l.tell()
}

// gap writes that bytes are missing.
func (l *Logs) gap(name string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring.put(name, nil, n, l.ring.marks[name])
	l.tell()
}

func (l *Logs) tell() {
	if l.ring.err != nil {
		l.err, l.ring.err = l.ring.err, nil
	}
	if !l.closed {
		close(l.grown)
		l.grown = make(chan struct{})
	}
}

// failure gives the error since it was asked last.
func (l *Logs) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.err
	l.err = nil
	if err != nil {
		return fmt.Errorf("write the log of an attempt: %w", err)
	}
	return nil
}
