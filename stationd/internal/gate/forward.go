package gate

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// userAgent is what daemons see.
const userAgent = "drawbridge-bridge/1"

// errStalled is why a request is cancelled whose answer stopped arriving.
var errStalled = errors.New("the daemon's answer stalls")

var buffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// replayable are the headers for whose sake net/http sends a request again after
// the daemon broke off.
var replayable = []string{"Idempotency-Key", "X-Idempotency-Key"}

// outgoing makes the daemon's request; body is nil when it has none.
func (p *passage) outgoing(r *http.Request, v visit) (out *http.Request, body *upload) {
	out = &http.Request{
		Method: r.Method, URL: v.target.url(p.route.host), Host: p.route.host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: v.header,
	}
	out.Header.Set("User-Agent", userAgent)
	out.Header.Set("Accept-Encoding", "identity")
	p.route.bridge.Credential.Apply(out.Header)
	for _, name := range replayable {
		if value, ok := out.Header[name]; ok {
			// net/http does not know it so written; on the wire it is the same.
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = value
		}
	}
	if r.ContentLength > 0 {
		body = &upload{body: r.Body, control: p.control, route: p.route, until: time.Now().Add(bodyIdle)}
		out.Body, out.ContentLength = body, r.ContentLength
	}
	return out, body
}

// forward sends the request to the daemon and its answer to the client. An error
// means that nothing was answered yet. Once the answer has begun, whatever goes
// wrong ends the connection, so that a cut answer is never taken for a whole one.
func (p *passage) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, v visit) error {
	route := p.route
	out, body := p.outgoing(r, v)
	defer body.seal()
	if sent := out.URL.RequestURI(); sent != v.target.String() {
		return fault.New(fault.TargetInvalid, "send the request: the target would not be sent as it was checked")
	}
	resp, err := route.daemon.RoundTrip(out.WithContext(ctx))
	if err != nil {
		return p.unanswered(r, body, err)
	}
	defer resp.Body.Close()
	if err := p.acceptable(r, resp); err != nil {
		return err
	}
	location, err := route.location(v.target, resp.Header)
	if err != nil {
		return err
	}
	passing := http.Header{}
	decorate(passing)
	if err := route.headers.copyAnswer(passing, resp.Header, route.bridge.Credential); err != nil {
		return err
	}
	if location != "" {
		passing.Set("Location", location)
	}
	stream := eventStream(resp) && hasBody(r, resp)
	if stream {
		if err := route.promote(p); err != nil {
			return err
		}
		delete(passing, "Content-Length")
		passing.Set("X-Accel-Buffering", "no")
		passing.Set("Connection", "close")
	}
	if !body.ended() {
		passing.Set("Connection", "close") // else net/http reads the rest before it answers
	}
	maps.Copy(w.Header(), passing)
	p.mayWrite()
	w.WriteHeader(resp.StatusCode)
	if stream {
		p.follow(ctx, w, resp)
	} else if hasBody(r, resp) {
		p.copyBody(ctx, w, resp)
	}
	return nil
}

// unanswered names why a request got no answer. It panics when nobody is left to
// be told.
func (p *passage) unanswered(r *http.Request, body *upload, err error) error {
	if e := p.ended(); e != nil {
		return fault.New(e.code, "send the request: the passage ended: %w", err)
	}
	if body.timedOut() {
		return fault.New(fault.BodyTimeout, "send the request: the client's body stopped: %w", err)
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fault.New(fault.DaemonTimeout, "send the request: %w", err)
	}
	return fault.New(fault.DaemonUnreachable, "send the request: %w", err)
}

// acceptable refuses answers that are not passed on whatever they hold.
func (p *passage) acceptable(r *http.Request, resp *http.Response) error {
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized:
		return fault.New(fault.DaemonAuthFailed, "read the answer: the daemon wants another credential")
	case code < 200 || code > 599:
		return fault.New(fault.DaemonAnswer, "read the answer: status %d", code)
	case resp.ContentLength > p.route.limits.Answer && hasBody(r, resp) && !eventStream(resp):
		return fault.New(fault.AnswerTooLarge, "read the answer: %d bytes", resp.ContentLength)
	case eventStream(resp) && resp.Header.Get("Content-Encoding") != "":
		return fault.New(fault.DaemonAnswer, "read the answer: a compressed stream")
	}
	return nil
}

// eventStream looks at the type alone: parameters do not matter, nor whether they
// can be read.
func eventStream(resp *http.Response) bool {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

func hasBody(r *http.Request, resp *http.Response) bool {
	return r.Method != http.MethodHead && resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusNotModified
}

// copyBody passes on an answer that is no stream. Pieces of an answer without a
// length are passed on as they come.
func (p *passage) copyBody(ctx context.Context, w http.ResponseWriter, resp *http.Response) {
	buf := buffers.Get().(*[copyBuffer]byte)
	defer buffers.Put(buf)
	stalled := time.AfterFunc(p.route.limits.HeaderWait, func() { p.cancel(errStalled) })
	defer stalled.Stop()
	var sum int64
	for {
		n, err := resp.Body.Read(buf[:])
		stalled.Reset(p.route.limits.HeaderWait)
		if sum += int64(n); sum > p.route.limits.Answer {
			p.route.refuse(fault.AnswerTooLarge)
			panic(http.ErrAbortHandler)
		}
		if n > 0 {
			p.mayWrite()
			if _, err := w.Write(buf[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			p.route.out.Add(int64(n))
			if resp.ContentLength < 0 && p.control.Flush() != nil {
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case err == io.EOF:
			return
		case err != nil:
			panic(http.ErrAbortHandler)
		}
	}
}

// location gives where a redirect leads from outside; "" for none. A place
// outside the daemon is refused, and so is one that the gate would refuse.
func (r *Route) location(from Target, h http.Header) (string, error) {
	values := h["Location"]
	if len(values) == 0 {
		return "", nil
	}
	outside := fault.New(fault.RedirectOutside, "read the answer: it redirects outside the daemon")
	if len(values) > 1 || ticketInURL(values[0], nil) || r.bridge.Credential.in(values[0]) {
		return "", outside
	}
	raw := values[0]
	for _, own := range []string{"http://" + r.host, "http://localhost:" + strconv.Itoa(r.bridge.Port)} {
		if rest, ok := cutOrigin(raw, own); ok {
			raw = rest
			break
		}
	}
	to, err := from.resolve(raw)
	if err != nil {
		return "", outside
	}
	return r.Path() + to.String(), nil
}

// upload is a client's request body on its way to the daemon. Each piece of it has
// bodyIdle to come. What is left of a body when its request is over has what is
// left of that time: net/http reads it away before it closes the connection. Once
// the whole body is there the deadline is lifted, since net/http goes on reading,
// to see the client leave. A nil upload is no body.
type upload struct {
	body    io.ReadCloser
	control *http.ResponseController
	route   *Route

	reading sync.Mutex // held by a Read

	mu     sync.Mutex
	until  time.Time // the next piece has come then
	sealed bool
	late   bool
	whole  bool
}

// Read is called by the transport.
func (u *upload) Read(b []byte) (int, error) {
	u.reading.Lock()
	defer u.reading.Unlock()
	u.mu.Lock()
	if u.sealed {
		u.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	u.until = time.Now().Add(bodyIdle)
	_ = u.control.SetReadDeadline(u.until)
	u.mu.Unlock()

	n, err := u.body.Read(b)

	u.mu.Lock()
	defer u.mu.Unlock()
	if err == io.EOF && !u.sealed {
		u.whole = true
		_ = u.control.SetReadDeadline(time.Time{})
	}
	var timeout net.Error
	u.late = u.late || errors.As(err, &timeout) && timeout.Timeout()
	u.route.in.Add(int64(n))
	return n, err
}

// Close is called by the transport, which may still read.
func (u *upload) Close() error { return nil }

// timedOut reports whether the client stopped sending.
func (u *upload) timedOut() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.late
}

// ended reports whether the whole body was read.
func (u *upload) ended() bool {
	if u == nil {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.whole
}

// seal ends the upload with the handler: the transport may come later, and the
// connection is not its own then. A read that waits is woken here: net/http would
// lift the deadline in doing so, and then wait for the client for ever.
func (u *upload) seal() {
	if u == nil {
		return
	}
	u.mu.Lock()
	u.sealed = true
	whole := u.whole
	if !whole {
		_ = u.control.SetReadDeadline(time.Unix(1, 0))
	}
	u.mu.Unlock()
	if whole {
		return
	}
	u.reading.Lock()
	defer u.reading.Unlock()
	_ = u.control.SetReadDeadline(u.until)
}
