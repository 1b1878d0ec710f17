package upstream

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Bounds of a Server (broker §3).
const (
	headerBlock   = 64 << 10
	headerTime    = 10 * time.Second
	bodyWait      = 60 * time.Second // for the first and each further bodyStep of a body
	bodyStep      = 64 << 10
	writeWait     = 60 * time.Second // for one piece of an answer to be taken
	keepAliveWait = 90 * time.Second
)

// Server gives an http.Server for h with the bounds of broker §3. Each of its
// listeners must be wrapped by Handler.Listen. What net/http cannot read as a request
// it answers itself, with 400 or 431 and the end of the connection; that is before
// any capability was looked at.
func Server(h *Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		MaxHeaderBytes:    headerBlock - 4096, // net/http adds 4096
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       keepAliveWait,

		DisableGeneralOptionsHandler: true, // it would answer without a capability
		ErrorLog:                     slog.NewLogLogger(h.opt.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

type connKey struct{}

// Listen bounds the connections of a listener; the bound is one for all listeners of
// h. When it is reached, a new connection takes the place of the one that has gone
// the longest without showing a capability; when all have one in use, it is closed.
func (h *Handler) Listen(l net.Listener) net.Listener { return &listener{l, &h.door} }

// A door holds the connections that are open.
type door struct {
	most int

	mu    sync.Mutex
	conns []*conn // oldest first
}

type listener struct {
	net.Listener
	door *door
}

// Accept gives the next connection that the door has room for.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if own := l.door.enter(c); own != nil {
			return own, nil
		}
		_ = c.Close()
	}
}

// A conn is one connection of a worker.
type conn struct {
	net.Conn
	door  *door
	once  sync.Once
	grant string // whose capability it showed last; door.mu
	using bool   // a request with a capability is being served; door.mu

	held *[]byte // what is written goes here until release; of the handler's goroutine
}

// heldRooms are for what conns hold for a moment.
var heldRooms = sync.Pool{New: func() any { return new([]byte) }}

// hold gathers what is written until release: net/http makes three writes of a piece.
func (c *conn) hold() {
	c.held = heldRooms.Get().(*[]byte)
	*c.held = (*c.held)[:0]
}

// release writes what was gathered.
func (c *conn) release() error {
	held := c.held
	c.held = nil
	_, err := c.Conn.Write(*held)
	heldRooms.Put(held)
	return err
}

// Write writes, or holds.
func (c *conn) Write(p []byte) (int, error) {
	if c.held != nil {
		*c.held = append(*c.held, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close ends the connection.
func (c *conn) Close() error {
	c.once.Do(func() { c.door.leave(c) })
	return c.Conn.Close()
}

// CloseWrite lets net/http end its side first, so that a refusal is read before the
// connection is reset.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// enter takes a connection in; nil when there is no room.
func (d *door) enter(c net.Conn) *conn {
	own := &conn{Conn: c, door: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.conns) >= d.most {
		i := slices.IndexFunc(d.conns, func(c *conn) bool { return !c.using })
		if i < 0 {
			return nil
		}
		old := d.conns[i]
		d.conns = slices.Delete(d.conns, i, i+1)
		_ = old.Conn.Close() // net/http sees it and calls Close
	}
	d.conns = append(d.conns, own)
	return own
}

func (d *door) leave(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.conns, c); i >= 0 {
		d.conns = slices.Delete(d.conns, i, i+1)
	}
}

// use notes that the connection of a request serves a grant, until it is called
// again with "". A request that came through no door is not noted.
func (d *door) use(ctx context.Context, grantID string) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.using = grantID != ""
	if c.using {
		c.grant = grantID
		return
	}
	// To the end: it is the youngest of those that are idle.
	if i := slices.Index(d.conns, c); i >= 0 {
		d.conns = append(slices.Delete(d.conns, i, i+1), c)
	}
}

// end closes the connections that carried a grant.
func (d *door) end(grantID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		if c.grant == grantID {
			_ = c.Conn.Close() // net/http sees it and calls Close
		}
	}
}
