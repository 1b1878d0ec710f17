package gate

import (
	"time"

	"drawbridge/shared/fault"
)

// What a bridge takes where its spec says nothing, and the most it may say
// (station §11.4).
const (
	defaultBody          = 10 << 20
	defaultAnswer        = 64 << 20
	defaultHeaderWait    = 120 * time.Second
	defaultRequests      = 64
	defaultStreams       = 16
	defaultTicketStreams = 4

	mostBody       = 64 << 20
	mostAnswer     = 1 << 30
	mostHeaderWait = time.Hour
	mostAtOnce     = 4096 // requests or streams
)

// Waits that no spec changes.
const (
	readHeaderWait  = 10 * time.Second
	bodyIdle        = 30 * time.Second
	writeWait       = 15 * time.Second // one write to a client
	keepAlive       = 60 * time.Second // an idle connection of a client
	daemonIdle      = 60 * time.Second // an idle connection to a daemon
	heartbeat       = 15 * time.Second
	recheckEvery    = 5 * time.Second
	recheckGap      = 100 * time.Millisecond // at least, between two rounds
	recheckPatience = 3 * recheckEvery       // without an answer from the Authorizer
	stopRequest     = 2 * time.Second        // a request in flight when its attempt stops
	stopStream      = 700 * time.Millisecond // a stream that has to take its last event
	brokenWait      = time.Second            // for the stop that explains a broken stream
	closedWait      = 250 * time.Millisecond // the same where the end may be a plain one
	stopServer      = 3 * time.Second        // all connections, when the gate ends
)

// Bounds of the listener and of headers.
const (
	maxHeaders       = 32 << 10
	maxAnswerHeaders = 64 << 10
	maxConnections   = 4096
	copyBuffer       = 32 << 10
)

// Limits of one bridge. A zero field means its default.
type Limits struct {
	Body          int64         // bytes of a request body
	Answer        int64         // bytes of an answer that is no stream
	HeaderWait    time.Duration // until the daemon begins its answer, and between two pieces of it
	Requests      int           // at once
	Streams       int           // at once
	TicketStreams int           // at once with one ticket
}

// withDefaults fills in what is zero and refuses what is out of bounds.
func (l Limits) withDefaults() (Limits, error) {
	l = Limits{
		Body: or(l.Body, defaultBody), Answer: or(l.Answer, defaultAnswer), HeaderWait: or(l.HeaderWait, defaultHeaderWait),
		Requests: or(l.Requests, defaultRequests), Streams: or(l.Streams, defaultStreams), TicketStreams: or(l.TicketStreams, defaultTicketStreams),
	}
	for _, bound := range []struct {
		name       string
		value, top int64
	}{
		{"body", l.Body, mostBody},
		{"answer", l.Answer, mostAnswer},
		{"headerWait", int64(l.HeaderWait), int64(mostHeaderWait)},
		{"requests", int64(l.Requests), mostAtOnce},
		{"streams", int64(l.Streams), mostAtOnce},
		{"ticketStreams", int64(l.TicketStreams), mostAtOnce},
	} {
		if bound.value < 1 || bound.value > bound.top {
			return Limits{}, fault.New(fault.BridgeInvalid, "read the bridge's limits: %s is not between 1 and %d", bound.name, bound.top)
		}
	}
	return l, nil
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
