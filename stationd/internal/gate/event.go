package gate

import (
	"errors"
	"io"
)

// Bounds of an event stream (station §11.6).
const (
	maxEvent  = 1 << 20
	firstRead = 4 << 10
)

// errEventTooLarge ends a stream whose event does not end.
var errEventTooLarge = errors.New("an event is over its bound")

// chunk is whole events, as the daemon wrote them. bytes is valid until the next
// call of next.
type chunk struct {
	bytes  []byte
	events int // that a client will see; comments are none
}

// splitter cuts an event stream at the ends of events: a blank line, whatever
// the line ends are (LF, CRLF, CR).
type splitter struct {
	r     io.Reader
	buf   []byte // buf[:ready] was handed out; buf[ready:] is to be looked at
	ready int
	err   error

	scan   scanner
	backup scanner // where the next event begins
}

// scanner is the place in a stream, byte by byte.
type scanner struct {
	column int  // in the line; stays at len(dataField) behind it
	data   bool // the line begins with the field name data, as far as it is there
	field  bool // the event has a data field
	cr     bool // the last byte was CR: an LF belongs to it
	blank  bool // the last line was blank
}

const dataField = "data"

// byte takes the next byte. end means that it ends an event, seen that a client
// dispatches one.
func (s *scanner) byte(c byte) (end, seen bool) {
	switch {
	case c == '\n' && s.cr:
		s.cr = false
		return s.blank, false // the rest of a line end
	case c != '\n' && c != '\r':
		switch {
		case s.column == 0:
			s.data = c == dataField[0]
		case s.column < len(dataField):
			s.data = s.data && c == dataField[s.column]
		case s.column == len(dataField) && s.data:
			s.field = s.field || c == ':'
			s.data = false
		}
		if s.column <= len(dataField) {
			s.column++
		}
		s.cr = false
		return false, false
	}
	s.cr = c == '\r'
	s.blank = s.column == 0
	s.field = s.field || s.column == len(dataField) && s.data // "data" alone
	s.column, s.data = 0, false
	if s.blank {
		seen, s.field = s.field, false
	}
	return s.blank, seen
}

// next gives the whole events that are there, and reads when there is none.
// io.EOF comes with what is left of the stream, which no client dispatches.
// errEventTooLarge and errors of the reader come with nothing.
func (s *splitter) next() (chunk, error) {
	s.buf = s.buf[:copy(s.buf, s.buf[s.ready:])]
	s.ready = 0
	if len(s.buf) == 0 && cap(s.buf) > 16*firstRead {
		s.buf = nil // one large event does not hold its memory for ever
	}
	looked := 0
	s.scan = s.backup
	for {
		out := chunk{}
		for i := looked; i < len(s.buf); i++ {
			end, seen := s.scan.byte(s.buf[i])
			if seen {
				out.events++
			}
			if end {
				out.bytes, s.ready, s.backup = s.buf[:i+1], i+1, s.scan
			}
		}
		looked = len(s.buf)
		switch {
		case out.bytes != nil:
			return out, nil
		case s.err == io.EOF:
			out.bytes, s.ready = s.buf, len(s.buf)
			return out, io.EOF
		case s.err != nil:
			return chunk{}, s.err
		case len(s.buf) == maxEvent:
			return chunk{}, errEventTooLarge
		}
		if len(s.buf) == cap(s.buf) {
			grown := make([]byte, len(s.buf), min(max(firstRead, 2*cap(s.buf)), maxEvent))
			copy(grown, s.buf)
			s.buf = grown
		}
		var n int
		n, s.err = s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
	}
}
