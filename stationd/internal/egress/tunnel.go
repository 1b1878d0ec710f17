package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// refusal is the whole answer to a denied connection; the code is in evidence.
	refusal     = "denied by the egress profile\n"
	unreachable = "the destination does not answer\n"
	established = "HTTP/1.1 200 Connection established\r\n\r\n"

	chunk = 64 << 10
	// answerHeaders bounds the head of an answer that is passed on.
	answerHeaders = 64 << 10
)

// errCut ends a tunnel whose limit is reached.
var errCut = errors.New("the egress limit is reached")

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// tunnel is one connection to the outside. It is the connection: what is read
// and written is counted, limited and watched for silence.
type tunnel struct {
	net.Conn
	proxy  *Proxy
	row    *Row
	timer  *time.Timer
	inside net.Conn // the daemon's end, of CONNECT; closed with this one

	mu     sync.Mutex
	closed bool
	forget func() bool
}

// begin takes the connection; from now on the tunnel ends with ctx.
func (t *tunnel) begin(ctx context.Context, c net.Conn, row *Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Conn, t.row = c, row
	t.timer = time.AfterFunc(milliseconds(t.proxy.opts.Profile.Limits.IdleMS), func() { t.cut(Idle) })
	t.forget = context.AfterFunc(ctx, t.close)
}

// join binds the daemon's end to the tunnel's.
func (t *tunnel) join(inside net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inside = inside
	if t.closed {
		_ = inside.Close()
	}
}

// close ends both ends and frees the place. It may be called often.
func (t *tunnel) close() { t.end("") }

// cut closes and notes why.
func (t *tunnel) cut(code Code) { t.end(code) }

func (t *tunnel) end(code Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
		t.forget()
		_ = t.Conn.Close()
	}
	if t.inside != nil {
		_ = t.inside.Close()
	}
	if code != "" {
		t.proxy.record.count(t.row.Host, t.row.Port, Cut, code)
	}
	t.proxy.mu.Lock()
	defer t.proxy.mu.Unlock()
	delete(t.proxy.open, t)
}

// Close is close, for net/http.
func (t *tunnel) Close() error { t.close(); return nil }

// CloseWrite passes the daemon's end of input on.
func (t *tunnel) CloseWrite() error { return closeWrite(t.Conn) }

// Read counts what comes from outside.
func (t *tunnel) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	t.stir()
	if got := t.proxy.record.grant(t.row, t.proxy.opts.Profile.Limits, false, n); got < n {
		t.cut(Limit)
		return got, errCut
	}
	return n, err
}

// Write counts what goes outside.
func (t *tunnel) Write(b []byte) (int, error) {
	granted := t.proxy.record.grant(t.row, t.proxy.opts.Profile.Limits, true, len(b))
	n, err := t.Conn.Write(b[:granted])
	if n < granted {
		t.proxy.record.unsent(t.row, granted-n)
	}
	if n > 0 {
		t.stir()
	}
	if err == nil && granted < len(b) {
		t.cut(Limit)
		err = errCut
	}
	return n, err
}

// stir notes that the tunnel is not silent.
func (t *tunnel) stir() { t.timer.Reset(milliseconds(t.proxy.opts.Profile.Limits.IdleMS)) }

// serve answers one request of the daemon.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		p.carry(w, r)
	case plainRequest(r):
		p.forward(w, r)
	default:
		p.record.count("", 0, Denied, MethodRefused)
		answer(w, http.StatusMethodNotAllowed, "CONNECT, or a request for http and port 80\n")
	}
}

// plainRequest reports whether r is in absolute form, for port 80.
func plainRequest(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		return false
	}
	port := r.URL.Port()
	return r.URL.Scheme == "http" && r.URL.Host != "" && r.URL.Opaque == "" &&
		(port == "80" || port == "" && !strings.HasSuffix(r.URL.Host, ":"))
}

// refuse answers what was not reached.
func refuse(w http.ResponseWriter, code Code) {
	if code == DialFailed {
		answer(w, http.StatusBadGateway, unreachable)
		return
	}
	answer(w, http.StatusForbidden, refusal)
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// carry serves CONNECT.
func (p *Proxy) carry(w http.ResponseWriter, r *http.Request) {
	out, _, code := p.reach(r.Context(), r.RequestURI)
	if out == nil {
		refuse(w, code)
		return
	}
	defer out.close()
	inside, ahead, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer inside.Close()
	out.join(inside)
	if _, err := io.WriteString(inside, established); err != nil {
		return
	}
	if n := ahead.Reader.Buffered(); n > 0 { // sent before the answer
		sent, _ := ahead.Reader.Peek(n)
		if _, err := out.Write(sent); err != nil {
			return
		}
	}
	var back sync.WaitGroup
	back.Go(func() { out.pass(inside, out.Conn, false) })
	out.pass(out.Conn, inside, true)
	back.Wait()
}

// pass moves one direction and passes its end on; an error ends both.
func (t *tunnel) pass(to, from net.Conn, up bool) {
	if t.move(to, from, up) != nil || closeWrite(to) != nil {
		t.close()
	}
}

// move counts, limits and watches what it moves, as Read and Write do. Of bytes
// beyond the limit none is passed on, and all before them are.
func (t *tunnel) move(to, from net.Conn, up bool) error {
	source, err := raw(from)
	if err != nil {
		return err
	}
	sink, err := raw(to)
	if err != nil {
		return err
	}
	p, err := newPipe()
	if err != nil {
		return err
	}
	defer p.close()
	for {
		n, err := p.fill(source)
		if n == 0 {
			return err
		}
		t.stir()
		granted := t.proxy.record.grant(t.row, t.proxy.opts.Profile.Limits, up, n)
		for left := granted; left > 0; {
			sent, err := p.drain(sink, left)
			left -= sent
			if err != nil {
				if up {
					t.proxy.record.unsent(t.row, left)
				}
				return err
			}
			t.stir()
		}
		if granted < n {
			t.cut(Limit)
			return errCut
		}
	}
}

// forward serves a request in absolute form, on a connection of its own. The
// request and the answer are built anew; upgrades, 1xx and trailers stay behind.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) {
	raw := r.URL.Host
	if r.URL.Port() == "" {
		raw += ":80"
	}
	if r.URL.User != nil {
		raw = "@" // no target; what stood there is not kept
	}
	out, to, code := p.reach(r.Context(), raw)
	if out == nil {
		refuse(w, code)
		return
	}
	defer out.close()
	host := to.host()
	if to.addr.Is6() {
		host = "[" + host + "]"
	}
	request := (&http.Request{
		Method: r.Method, Host: host, Header: passed(r.Header),
		URL:  &url.URL{Scheme: "http", Host: host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery},
		Body: r.Body, ContentLength: r.ContentLength,
	}).WithContext(r.Context())
	if r.ContentLength == 0 {
		request.Body = http.NoBody
	}
	if _, ok := request.Header["User-Agent"]; !ok {
		request.Header.Set("User-Agent", "") // none was sent, none is made up
	}
	var once sync.Once
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = errDenied
			once.Do(func() { conn, err = out, nil })
			return conn, err
		},
		DisableKeepAlives: true, DisableCompression: true,
		ResponseHeaderTimeout:  milliseconds(p.opts.Profile.Limits.IdleMS),
		MaxResponseHeaderBytes: answerHeaders,
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		answer(w, http.StatusBadGateway, unreachable)
		return
	}
	defer response.Body.Close()
	if response.StatusCode < 200 {
		answer(w, http.StatusBadGateway, unreachable)
		return
	}
	for name, values := range passed(response.Header) {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	if err := p.copyBody(w, response); err != nil {
		panic(http.ErrAbortHandler) // a cut answer is not taken for a whole one
	}
}

// copyBody passes an answer's body on as it comes.
func (p *Proxy) copyBody(w http.ResponseWriter, response *http.Response) error {
	buffer := chunks.Get().(*[]byte)
	defer chunks.Put(buffer)
	control := http.NewResponseController(w)
	for {
		n, err := response.Body.Read(*buffer)
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(milliseconds(p.opts.Profile.Limits.IdleMS)))
			if _, err := w.Write((*buffer)[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return control.SetWriteDeadline(time.Time{})
		case err != nil:
			return err
		}
	}
}

// passed are the headers that concern both ends, not the connection between two.
func passed(in http.Header) http.Header {
	out := in.Clone()
	if out == nil {
		out = http.Header{}
	}
	for _, list := range in["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	for name := range out {
		switch name {
		case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
			delete(out, name)
		default:
			if strings.HasPrefix(name, "Proxy-") {
				delete(out, name)
			}
		}
	}
	return out
}
