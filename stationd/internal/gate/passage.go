package gate

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// errEnded is why a request to a daemon is cancelled when its passage ends.
var errEnded = errors.New("the passage ends")

// passage is one request that was let through.
type passage struct {
	route   *Route
	access  Access
	control *http.ResponseController
	cancel  context.CancelCauseFunc // of the daemon's request
	over    chan struct{}           // closed when ending is set

	mu      sync.Mutex
	stream  bool
	ending  *ending // the first
	cut     time.Time
	timer   *time.Timer // cancels a request that was given time
	left    bool        // nothing touches the connection any more
	unknown time.Time   // since when Still gives no answer
}

func newPassage(route *Route, access Access, w http.ResponseWriter, cancel context.CancelCauseFunc) *passage {
	return &passage{route: route, access: access, control: http.NewResponseController(w), cancel: cancel, over: make(chan struct{})}
}

// end tells the passage to end. The first call counts.
func (p *passage) end(e ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending != nil || p.left {
		return
	}
	p.ending = &e
	close(p.over)
	p.bound()
}

// bound limits what an ending passage may still take. p.mu is held.
func (p *passage) bound() {
	wait := p.ending.grace
	if p.stream {
		wait = stopStream
	}
	p.cut = time.Now().Add(wait)
	_ = p.control.SetWriteDeadline(p.cut)
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if !p.stream {
		p.timer = time.AfterFunc(wait, func() { p.cancel(errEnded) })
	}
}

// becomeStream is called under the route's lock.
func (p *passage) becomeStream() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = true
	if p.ending != nil {
		p.bound()
	}
}

// ended gives the ending, nil while there is none.
func (p *passage) ended() *ending {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

// mayWrite gives the next write its time.
func (p *passage) mayWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := time.Now().Add(writeWait)
	if p.ending != nil && p.cut.Before(until) {
		until = p.cut
	}
	_ = p.control.SetWriteDeadline(until)
}

// close lets go of the connection. The answer's last bytes get their time.
func (p *passage) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	if p.timer != nil {
		p.timer.Stop()
	}
	_ = p.control.SetWriteDeadline(time.Now().Add(writeWait))
}

// judge applies what the Authorizer says now. A request that runs when its
// ticket expires is let finish; one whose right was taken away is not.
func (p *passage) judge(err error, now time.Time) {
	if err == nil {
		p.mu.Lock()
		p.unknown = time.Time{}
		p.mu.Unlock()
		return
	}
	switch code := fault.CodeOf(err); code {
	case fault.StationStopping, fault.StationEnded, fault.AttemptReplaced:
		p.end(ending{reason: reasonOf(err), code: code, final: true, grace: stopRequest})
	case fault.TicketExpired:
		if p.isStream() {
			p.end(ending{reason: "ticket_expired", code: code})
		}
	case fault.Unauthorized, fault.TicketRevoked:
		p.end(ending{reason: "access_revoked", code: code})
	default:
		p.mu.Lock()
		if p.unknown.IsZero() {
			p.unknown = now
		}
		patient := now.Sub(p.unknown) < recheckPatience
		p.mu.Unlock()
		if !patient { // what cannot be proven for so long is refused
			p.end(ending{reason: "access_unproven", code: fault.GateUnavailable})
		}
	}
}

func (p *passage) isStream() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream
}

// reasonOf gives the recorded reason of a stop.
func reasonOf(err error) string {
	if f, ok := fault.As(err); ok {
		if reason, _ := f.Details[detailReason].(string); reason != "" {
			return reason
		}
	}
	return "station_ended"
}
