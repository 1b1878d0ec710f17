package gate

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/shared/fault"
)

// Counts is what evidence says of a bridge. No client, path or header is in it.
type Counts struct {
	Requests int64                // that were sent to the daemon
	Streams  int64                // of them, answered with an event stream
	Refused  map[fault.Code]int64 // answers of the gate's own
	BytesIn  int64                // of bodies, from clients
	BytesOut int64                // of bodies, to clients, the gate's own events apart
	Activity time.Time            // the last request that came or ended, or event that passed; zero for none
}

// counters are Counts while they grow.
type counters struct {
	requests, streams, in, out atomic.Int64
	activity                   atomic.Int64 // Unix nanoseconds

	mu      sync.Mutex
	refused map[fault.Code]int64
}

func (c *counters) refuse(code fault.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[fault.Code]int64{}
	}
	c.refused[code]++
}

// active notes an activity (station §4.4).
func (c *counters) active(now time.Time) { c.activity.Store(now.UnixNano()) }

func (c *counters) counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Counts{
		Requests: c.requests.Load(), Streams: c.streams.Load(),
		BytesIn: c.in.Load(), BytesOut: c.out.Load(), Refused: maps.Clone(c.refused),
	}
	if at := c.activity.Load(); at != 0 {
		out.Activity = time.Unix(0, at)
	}
	return out
}
