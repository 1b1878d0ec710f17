package redact

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// Bounds of a stream.
const (
	holdLine  = 16 << 10               // a line without an end is cut from here on, where that is safe
	maxLine   = 256 << 10              // a line that cannot be cut is hidden from here on
	flushIdle = 250 * time.Millisecond // after which what is decided is written
)

// Stream redacts what is written to it, cut in whatever way, and passes it on.
// Lines are passed on when they end; the beginning of a line after a quarter of
// a second, as far as nothing that may come can change it. With KnownOnly there
// are no lines: all that is decided is passed on at once.
type Stream struct {
	mu     sync.Mutex
	emit   func(text []byte, m Mark) error
	engine engine
	taken  int64 // bytes before buf
	buf    []byte
	look   int         // length of buf at which an unfinished line is looked at
	timer  *time.Timer // nil with KnownOnly
	err    error       // first error of emit; nothing is passed on after it
	closed bool
}

// Mark is a place in a stream at which another Stream can go on with the same
// result, in another process too. The zero Mark is the beginning.
type Mark struct {
	Taken int64 `json:"taken"` // bytes of the stream before it
	State uint8 `json:"state"` // what they leave open
}

// Stream starts a stream to out. Close ends it.
func (r *Redactor) Stream(out io.Writer) *Stream {
	return r.Resume(Mark{}, func(text []byte, _ Mark) error {
		if len(text) == 0 {
			return nil
		}
		_, err := out.Write(text)
		return err
	})
}

// Resume goes on with a stream behind a mark. emit gets each text that is passed on
// with the mark behind it, also an empty one when what was hidden ended there; it is
// called by one goroutine at a time, with the stream locked.
func (r *Redactor) Resume(m Mark, emit func(text []byte, m Mark) error) *Stream {
	s := &Stream{emit: emit, engine: engine{red: r}, look: holdLine, taken: m.Taken}
	s.engine.resume(m.State)
	if !r.knownOnly {
		s.timer = time.AfterFunc(time.Hour, s.flush)
		s.timer.Stop()
	}
	return s
}

// Write takes p. Its error is the first one of the writer behind it.
func (s *Stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.buf = append(s.buf, p...)
	s.engine.auto = s.engine.red.known()
	s.pass(false)
	if s.timer != nil {
		if len(s.buf) > 0 {
			s.timer.Reset(flushIdle)
		} else {
			s.timer.Stop()
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

// Lost tells the stream that its next n bytes are missing. What was held back is
// hidden, and so is what follows as long as it may belong to something that began in
// the gap: the rest of a line, of a folded header, of a PEM block.
func (s *Stream) Lost(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return io.ErrClosedPipe
	}
	s.taken += int64(len(s.buf)) + n
	s.buf = nil
	var out []byte
	if !s.engine.red.knownOnly {
		s.look = holdLine
		s.timer.Stop()
		if !s.engine.rest {
			out = append(out, s.engine.red.word...)
		}
		s.engine.tear()
	}
	s.tell(out)
	return s.err
}

// Close passes on what is left. It does not close the writer behind it.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.err
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.engine.auto = s.engine.red.known()
	s.pass(false)
	if len(s.buf) > 0 {
		s.taken += int64(len(s.buf))
		out, _ := s.engine.take(nil, s.buf, true)
		s.buf = nil
		s.tell(out)
	}
	return s.err
}

// Drop ends the stream without what is held back: somebody else goes on at the last
// mark.
func (s *Stream) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.buf = true, nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

// flush is what the timer does.
func (s *Stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.engine.auto = s.engine.red.known()
	s.pass(true)
}

// pass takes whole lines, and of the beginning of a line what can be decided
// when it is long or idle.
func (s *Stream) pass(idle bool) {
	var out []byte
	held := len(s.buf)
	for !s.engine.red.knownOnly {
		n := bytes.IndexByte(s.buf, '\n') + 1
		if n == 0 {
			break
		}
		if out == nil {
			out = make([]byte, 0, len(s.buf))
		}
		out, _ = s.engine.take(out, s.buf[:n], true)
		s.buf = s.buf[n:]
		s.look = holdLine
	}
	if len(s.buf) > 0 && (idle || s.engine.red.knownOnly || s.engine.rest || len(s.buf) >= s.look) {
		var used int
		out, used = s.engine.take(out, s.buf, false)
		s.buf = s.buf[used:]
		switch {
		case len(s.buf) >= maxLine && !s.engine.red.knownOnly:
			out = append(out, s.engine.red.word...)
			s.buf, s.look = bytes.Clone(s.buf[s.engine.swallow(s.buf):]), holdLine
		default:
			s.look = max(holdLine, 2*len(s.buf)) // so that looking again stays linear
		}
	}
	used := held - len(s.buf)
	if len(s.buf) == 0 {
		s.buf = nil
	}
	if used > 0 {
		s.taken += int64(used)
		s.tell(out)
	}
}

// tell passes text on, with the mark behind it.
func (s *Stream) tell(text []byte) {
	if s.err == nil {
		s.err = s.emit(text, Mark{s.taken, s.engine.state()})
	}
}
