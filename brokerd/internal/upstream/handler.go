package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/version"
)

// RedactedWord stands where the provider echoed the credential (broker §8).
const RedactedWord = "[redacted-host-credential]"

// quietFor is the time between two log lines about refusals of one kind.
const quietFor = time.Minute

// Options of a Handler. Ledger, Journal and Credentials are required.
type Options struct {
	Ledger      Ledger
	Journal     *Journal
	Credentials Credentials
	Transport   http.RoundTripper // nil means NewTransport without options

	TestOrigin     string   // of ParseTestOrigin; "" is live
	AllowHeaders   []string // request headers passed on besides the built-in ones
	DenyMembers    []string // members of a body that refuse it
	MaxConnections int      // of all listeners; 0 means MaxConnections
	MaxInFlight    int      // of one grant; 0 means MaxInFlight

	Log   *slog.Logger
	Now   Now
	Meter *Meter // nil counts for itself
}

// Handler answers the requests of workers. Its methods may be called from several
// goroutines.
type Handler struct {
	opt     Options
	headers []string // passed on
	server  string
	agent   string
	door    door

	mu    sync.Mutex
	lanes map[string]*lane // by grant

	told map[refused]*quiet // mu
}

// refused is a kind of refusals; no grant: the capability opened none.
type refused struct {
	grantID string
	why     Refusal
}

// quiet counts what is not told each time.
type quiet struct {
	count int // since the last log line
	told  time.Time
}

// A lane is what a grant has in flight.
type lane struct {
	calls   map[*call]struct{}
	closing bool          // nobody enters any more
	empty   chan struct{} // closed when the last call of a closing lane has ended

	secret redact.Secret // that exact looks for
	exact  *redact.Exact
}

// errGrantClosed is why the context of a request ends when its grant does.
var errGrantClosed = errors.New("the grant was closed")

// NewHandler makes a Handler. It refuses headers that may never be passed on.
func NewHandler(opt Options) (*Handler, error) {
	if opt.Transport == nil {
		opt.Transport = NewTransport(TransportOptions{})
	}
	if opt.MaxConnections <= 0 {
		opt.MaxConnections = MaxConnections
	}
	if opt.MaxInFlight <= 0 {
		opt.MaxInFlight = MaxInFlight
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Meter == nil {
		opt.Meter = NewMeter()
	}
	h := &Handler{opt: opt, headers: slices.Clone(requestHeaders), lanes: map[string]*lane{}, told: map[refused]*quiet{}}
	for _, name := range opt.AllowHeaders {
		if err := CheckHeader(name); err != nil {
			return nil, err
		}
		h.headers = append(h.headers, http.CanonicalHeaderKey(name))
	}
	h.server = "drawbridge-broker/" + version.String()
	h.agent = h.server
	h.door.most = opt.MaxConnections
	return h, nil
}

// Serving reports how many requests of a grant are in flight.
func (h *Handler) Serving(grantID string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[grantID]; l != nil {
		return len(l.calls)
	}
	return 0
}

// Close ends what a grant has in flight and the connections that carried it, and
// waits for the handlers until ctx ends. The grant's row must no longer be active.
// left is how many handlers still run. Their rows are settled as aborted_by_close;
// Journal.Flush makes that durable.
func (h *Handler) Close(ctx context.Context, grantID string) (left int) {
	h.mu.Lock()
	maps.DeleteFunc(h.told, func(k refused, _ *quiet) bool { return k.grantID == grantID })
	l := h.lanes[grantID]
	switch {
	case l == nil:
	case len(l.calls) == 0:
		delete(h.lanes, grantID)
		l = nil
	case !l.closing:
		l.closing = true
		for c := range l.calls {
			c.cancel(errGrantClosed)
		}
	}
	h.mu.Unlock()
	h.door.end(grantID)
	if l == nil {
		return 0
	}
	select {
	case <-l.empty:
		return 0
	case <-ctx.Done():
		return h.Serving(grantID)
	}
}

// enter puts a call into the lane of its grant, unless the lane is full or being
// closed.
func (h *Handler) enter(c *call) Refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lanes[c.grant.ID]
	if l == nil {
		l = &lane{calls: map[*call]struct{}{}, empty: make(chan struct{})}
		h.lanes[c.grant.ID] = l
	}
	if l.closing {
		return Capability
	}
	if len(l.calls) >= h.opt.MaxInFlight {
		return Concurrency
	}
	l.calls[c] = struct{}{}
	h.opt.Meter.serving(1)
	return ""
}

// leave takes a call out. The lane of a grant that serves no more goes with the last.
func (h *Handler) leave(c *call, closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opt.Meter.serving(-1)
	l := h.lanes[c.grant.ID]
	delete(l.calls, c)
	if len(l.calls) > 0 {
		return
	}
	if l.closing {
		close(l.empty)
	}
	if l.closing || closed {
		delete(h.lanes, c.grant.ID)
	}
}

// exactFor gives what looks for a secret in the answers to a grant. It is made once,
// since it is large for a long token.
func (h *Handler) exactFor(c *call, secret redact.Secret) *redact.Exact {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lanes[c.grant.ID]
	if l.exact == nil || l.secret != secret {
		l.secret, l.exact = secret, redact.NewExact(RedactedWord, secret)
	}
	return l.exact
}

// wrongCapability tells the log that somebody tries, once in a while.
func (h *Handler) wrongCapability() {
	if count, tell := h.tell(refused{why: Capability}); tell {
		h.opt.Log.Warn("requests without a capability that opens anything are refused", "count", count)
	}
}

// tellRefused tells the log why requests of a grant are refused, once in a while: the
// worker may not say it, or may go on for hours.
func (h *Handler) tellRefused(grantID string, r Refusal) {
	if count, tell := h.tell(refused{grantID, r}); tell {
		h.opt.Log.Warn("requests of a grant are refused", "grant_id", grantID, "code", string(r), "count", count)
	}
}

// tell reports whether it is time for a log line, and how many refusals that stands for.
func (h *Handler) tell(k refused) (count int, now bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.told[k]
	if q == nil {
		q = &quiet{}
		h.told[k] = q
	}
	q.count++
	at := h.opt.Now()
	if at.Sub(q.told) < quietFor {
		return q.count, false
	}
	count = q.count
	q.count, q.told = 0, at
	return count, true
}

// panicked, deferred, tells the log of a panic, which is a mistake of ours, and ends the
// connection. net/http would tell it among what clients do wrong.
func (h *Handler) panicked() {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		h.opt.Log.Error("request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}

// refuse answers a request that is not forwarded. unread says that its body was not
// read to the end: then the connection ends with the answer.
func (h *Handler) refuse(w http.ResponseWriter, r Refusal, unread bool) {
	h.opt.Meter.refused(r)
	header := w.Header()
	header.Set("Server", h.server)
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set(refusalHeader, string(r))
	if r == Concurrency {
		header.Set("Retry-After", "1")
	}
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(writeWait)) // a recorder of a test has none
	if unread {
		header.Set("Connection", "close")
		// What is on its way is dropped behind the answer, for a moment, so that the
		// end of the connection does not overtake the answer.
		_ = rc.SetReadDeadline(time.Now().Add(dropWait))
	}
	w.WriteHeader(r.Status())
	_, _ = w.Write([]byte(refusalBody)) // nobody else to tell
}

// dropWait is how long the rest of a refused request is dropped.
const dropWait = 200 * time.Millisecond
