package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"drawbridge/shared/redact"
)

// Rooms for one piece of a response. Most streams are slow and their pieces small, and
// there may be many of them: a stream has the larger room only when it fills the
// smaller.
const (
	pieceLeast = 4 << 10
	pieceMost  = 32 << 10
)

// rearm is how exact the waits for the next piece are, either way: to set them for each
// piece anew would cost a fast stream much.
const rearm = time.Second

// Why an exchange was ended; they are the causes of its context.
var (
	errIdle  = errors.New("nothing came for too long")
	errTotal = errors.New("the exchange took too long")
)

// errLong ends an answer of more than MaxResponse bytes.
var errLong = errors.New("its answer is too long")

// forward sends the request and passes the answer on. Whatever happens, the row is
// settled. cut says that the answer stopped in the middle.
func (c *call) forward() (cut bool) {
	begin := time.Now()
	total := time.AfterFunc(totalWait, func() { c.cancel(errTotal) })
	defer total.Stop()
	s := &stream{call: c}
	defer func() {
		texts := <-c.texts
		c.evidence.InputTextDigests, c.evidence.InputTextDigestsTruncated = texts.digests, texts.truncated
		ended := c.h.opt.Now().UnixMilli()
		c.evidence.EndedAt = &ended
		c.h.opt.Journal.Settle(c.evidence)
		c.h.opt.Meter.ended(c.evidence, s.sent, time.Since(begin))
		c.tell(time.Since(begin))
	}()

	resp, err := c.h.opt.Transport.RoundTrip(c.request())
	c.parcel.drop()
	if err != nil {
		return c.unanswered(troubleOf(err))
	}
	defer resp.Body.Close()
	c.evidence.Status = &resp.StatusCode
	if why := unfit(resp); why != "" {
		return c.unanswered(why)
	}
	return s.pass(resp)
}

// request makes what is sent: the canonical bytes, and the headers of broker §7.
func (c *call) request() *http.Request {
	p := c.parcel
	origin, _, _ := c.origin()
	req, err := http.NewRequestWithContext(c.ctx, http.MethodPost, origin+c.operation, p.open())
	if err != nil { // both parts are constants
		panic("upstream: " + err.Error())
	}
	req.ContentLength = int64(len(p.doc))
	// For a connection that turns out to be dead before anything was written to it.
	req.GetBody = func() (io.ReadCloser, error) { return p.open(), nil }
	for _, name := range c.h.headers {
		values := c.r.Header.Values(name)
		if len(values) == 1 && printable(values[0]) && !strings.Contains(values[0], c.token) {
			req.Header[name] = values
		}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", c.h.agent)
	req.Header.Set("Authorization", "Bearer "+c.credential.Secret.Reveal())
	if c.grant.Kind == AccessToken && c.credential.AccountID != "" {
		req.Header.Set("Chatgpt-Account-Id", c.credential.AccountID)
	}
	return req
}

// unfit says why an answer must not be passed on, "" when it may.
func unfit(resp *http.Response) string {
	switch {
	case resp.StatusCode < http.StatusOK: // 101, or a number that is no status
		return "it switched protocols, or gave no status"
	case resp.StatusCode >= 300 && resp.StatusCode < 400 && len(resp.Header.Values("Location")) > 0:
		return "it redirected"
	}
	for _, v := range resp.Header.Values("Content-Encoding") {
		if !strings.EqualFold(v, "identity") {
			return "it packed its answer"
		}
	}
	return ""
}

// unanswered refuses with 502, unless nobody is there to read it.
func (c *call) unanswered(trouble string) (cut bool) {
	if c.evidence.Outcome = c.failed(trouble); c.evidence.Outcome != UpstreamError {
		return true
	}
	c.h.refuse(c.w, Unreachable, false)
	return false
}

// why gives the outcome of an exchange that was broken off: that of its context, when
// that has ended, else the given one.
func (c *call) why(otherwise string) string {
	switch cause := context.Cause(c.ctx); cause {
	case nil:
		return otherwise
	case errGrantClosed:
		return AbortedByClose
	case errIdle, errTotal:
		c.trouble = cause.Error()
		return UpstreamError
	default:
		return ClientGone
	}
}

// failed gives the outcome of an exchange that the provider may have broken off, and
// keeps for the log what was wrong with it.
func (c *call) failed(trouble string) string {
	c.trouble = trouble
	return c.why(UpstreamError)
}

// troubleOf names what kept the provider from answering. The text of the error is not
// for the log: it may quote what the provider sent.
func troubleOf(err error) string {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var op *net.OpError
	var timeout net.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, errLong):
		return errLong.Error()
	case errors.As(err, &name):
		return "its name is not resolved"
	case errors.As(err, &certificate):
		return "its certificate is not trusted"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "it did not answer in time"
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return "the proxy does not lead to it"
	case errors.As(err, &op) && op.Op == "dial" && errors.As(err, &errno):
		return "no connection: " + errno.Error()
	}
	return "its answer ended early, or is none"
}

// tell logs the end of a request.
func (c *call) tell(took time.Duration) {
	e := c.evidence
	status := 0
	if e.Status != nil {
		status = *e.Status
	}
	if e.Redactions > 0 {
		c.h.opt.Log.Warn("credential_echoed_by_upstream", "grant_id", e.GrantID, "seq", e.Seq, "redactions", e.Redactions)
	}
	if e.Outcome == UpstreamError {
		c.h.opt.Log.Warn("the provider failed a request", "grant_id", e.GrantID, "seq", e.Seq, "why", c.trouble)
	}
	c.h.opt.Log.Debug("request forwarded", "grant_id", e.GrantID, "seq", e.Seq, "outcome", e.Outcome, "status", status,
		"ms", took.Milliseconds(), "request_bytes", e.RequestBytes, "response_bytes", e.ResponseBytes)
}

// A stream passes one answer on.
type stream struct {
	*call
	filter *redact.Filter
	watch  *observer
	out    []byte
	sent   int64
	armed  time.Time // when the time to take a piece was set last
}

// pass copies head and body. cut says that the answer stopped in the middle.
func (s *stream) pass(resp *http.Response) (cut bool) {
	exact := s.h.exactFor(s.call, s.credential.Secret)
	s.filter, s.watch = exact.Filter(), newObserver(resp.Header.Get("Content-Type"))
	s.head(resp, exact)
	outcome := s.body(resp.Body)
	s.evidence.Redactions = s.filter.Hidden()
	if outcome == Completed {
		s.watch.end()
		if resp.StatusCode >= http.StatusBadRequest {
			outcome = UpstreamStatus
		}
	}
	s.evidence.ResponseUsage, s.evidence.ReportedModel = s.watch.usage, s.watch.model
	s.evidence.Outcome = outcome
	return outcome != Completed && outcome != UpstreamStatus
}

// head passes the status and the headers of broker §8 on.
func (s *stream) head(resp *http.Response, exact *redact.Exact) {
	header := s.w.Header()
	header["Content-Type"] = nil // none is made up
	for _, name := range responseHeaders {
		for _, v := range resp.Header.Values(name) {
			if printable(v) && !exact.Finds(v) {
				header[name] = append(header[name], v)
			}
		}
	}
	header.Set("Cache-Control", "no-store")
	header.Set("Server", s.h.server)
	s.w.WriteHeader(resp.StatusCode)
}

// body passes the body on, piece by piece, each at once, and gives the outcome.
func (s *stream) body(body io.Reader) string {
	idle := time.AfterFunc(idleWait, func() { s.cancel(errIdle) })
	defer idle.Stop()
	if err := s.write(nil); err != nil { // the head goes first, however long the body takes
		return s.why(ClientGone)
	}
	piece := make([]byte, pieceLeast)
	looked := time.Now()
	for {
		n, err := body.Read(piece)
		if now := time.Now(); now.Sub(looked) > rearm {
			idle.Reset(idleWait)
			looked = now
		}
		if n > 0 && s.evidence.FirstByteAt == nil {
			at := s.h.opt.Now().UnixMilli()
			s.evidence.FirstByteAt = &at
		}
		if room := MaxResponse - s.evidence.ResponseBytes; int64(n) > room {
			n, err = int(room), errLong
			s.evidence.ResponseTruncated = true
		}
		s.evidence.ResponseBytes += int64(n)
		if n > 0 {
			s.out = s.filter.Take(s.out[:0], piece[:n])
			if err := s.write(s.out); err != nil {
				return s.why(ClientGone)
			}
		}
		if err == io.EOF {
			s.out = s.filter.End(s.out[:0])
			if err := s.write(s.out); err != nil {
				return s.why(ClientGone)
			}
			return Completed
		}
		if err != nil {
			return s.failed(troubleOf(err))
		}
		if n == len(piece) && n < pieceMost {
			piece = make([]byte, 2*n)
		}
	}
}

// write passes bytes on at once; it must be taken in time. So must the end of the
// answer, which net/http writes behind the last of them.
func (s *stream) write(p []byte) error {
	if now := time.Now(); now.Sub(s.armed) > rearm {
		_ = s.rc.SetWriteDeadline(now.Add(writeWait)) // a recorder of a test has none
		s.armed = now
	}
	if len(p) == 0 && s.sent > 0 {
		return nil
	}
	if err := s.flush(p); err != nil {
		return err
	}
	s.sent += int64(len(p))
	s.watch.take(p)
	return nil
}

// flush gives a piece to the connection, in one go where it is one of ours.
func (s *stream) flush(p []byte) (err error) {
	if c, ok := s.r.Context().Value(connKey{}).(*conn); ok {
		c.hold()
		defer func() { err = errors.Join(err, c.release()) }()
	}
	if len(p) > 0 {
		if _, err := s.w.Write(p); err != nil {
			return err
		}
	}
	return s.rc.Flush()
}
