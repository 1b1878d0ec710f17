package supervise

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/wire"
)

// eventQueue is how many events wait for who reads them before the connection is
// read on; the shim keeps the rest.
const eventQueue = 64

// writeTime is how long the shim may not read what is asked, before the connection is
// given up.
const writeTime = 10 * time.Second

// A Client speaks to one shim over one connection, or with Reconnect over one after
// another. Its methods may be called from several goroutines.
type Client struct {
	nonce  string
	redial func(context.Context) (net.Conn, error) // nil: the first connection is the only one
	events chan wire.Message
	ended  context.Context // done with Close: events are not waited for any more
	end    context.CancelFunc
	read   sync.WaitGroup

	told tellings // of receive alone

	writing sync.Mutex

	mu      sync.Mutex
	conn    net.Conn // the current one
	last    int64
	waiting map[int64]chan wire.Message
	err     error         // why there is no connection
	back    chan struct{} // while it is cut: closed when that is over, or final
}

// Connect says hello with the nonce and takes over the shim: an older connection
// is closed by it. The Client owns conn from now on, also when Connect fails.
func Connect(ctx context.Context, conn net.Conn, nonce string) (*Client, error) {
	return connect(ctx, conn, nonce, nil)
}

// Reconnect is Connect for a way that may be cut. redial is then asked for the next
// connection, and waits and tries as long as that makes sense. Its error, Close, and
// a shim that does not know the nonce are the end. What was asked before the cut
// fails with fault.ShimLost, and so does what is asked while it lasts, if its context
// ends first. What the shim tells once more is not an event again.
func Reconnect(ctx context.Context, conn net.Conn, nonce string, redial func(context.Context) (net.Conn, error)) (*Client, error) {
	return connect(ctx, conn, nonce, redial)
}

func connect(ctx context.Context, conn net.Conn, nonce string, redial func(context.Context) (net.Conn, error)) (*Client, error) {
	c := &Client{nonce: nonce, redial: redial, conn: conn, events: make(chan wire.Message, eventQueue), told: tellings{next: map[string]int64{}}, waiting: map[int64]chan wire.Message{}}
	c.ended, c.end = context.WithCancel(context.Background())
	r, err := c.hello(ctx, conn)
	if err != nil {
		c.end()
		return nil, err
	}
	c.read.Go(func() { c.receive(r) })
	return c, nil
}

// hello begins a connection, which nobody else uses yet. It is closed on failure.
func (c *Client) hello(ctx context.Context, conn net.Conn) (*wire.Reader, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r := wire.NewReader(conn)
	var m wire.Message
	err := wire.Write(conn, wire.Request{Op: wire.OpHello, Nonce: c.nonce})
	if err == nil {
		err = r.Read(&m)
	}
	switch {
	case !stop():
		err = lost(wire.OpHello, context.Cause(ctx))
	case err != nil:
		err = lost(wire.OpHello, err)
	case m.Error != nil:
		err = refused(wire.OpHello, m.Error)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return r, nil
}

// Close ends the connection; the shim lives on.
func (c *Client) Close() error {
	c.end()
	c.mu.Lock()
	err := c.conn.Close()
	c.mu.Unlock()
	c.read.Wait()
	if errors.Is(err, net.ErrClosed) { // it had been cut
		return nil
	}
	return err
}

// Events gives what the shim tells by itself. The channel is closed with the last
// connection. It has to be read: while it is full, answers wait behind it.
func (c *Client) Events() <-chan wire.Message { return c.events }

// Launch starts the daemon.
func (c *Client) Launch(ctx context.Context, l wire.Launch) (wire.Started, error) {
	m, err := c.ask(ctx, wire.Request{Op: wire.OpLaunch, Launch: &l})
	if err != nil {
		return wire.Started{}, err
	}
	if m.Started == nil {
		return wire.Started{}, fault.New(fault.ShimFailed, "launch: the answer names no process")
	}
	return *m.Started, nil
}

// Signal sends a signal to wire.Group or to wire.All. That nobody is left to get it
// is no error.
func (c *Client) Signal(ctx context.Context, target string, sig unix.Signal) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpSignal, Target: target, Signal: int(sig)})
	return err
}

// Status is what the shim knows of itself and of the daemon.
func (c *Client) Status(ctx context.Context) (wire.Status, error) {
	m, err := c.ask(ctx, wire.Request{Op: wire.OpStatus})
	if err != nil {
		return wire.Status{}, err
	}
	if m.Status == nil {
		return wire.Status{}, fault.New(fault.ShimFailed, "status: the answer is empty")
	}
	return *m.Status, nil
}

// Listeners are the listening sockets of the namespace, with their owners.
func (c *Client) Listeners(ctx context.Context) ([]wire.Listener, error) {
	m, err := c.ask(ctx, wire.Request{Op: wire.OpListeners})
	return m.Listeners, err
}

// Stats are the shim's counters.
func (c *Client) Stats(ctx context.Context) (wire.Stats, error) {
	m, err := c.ask(ctx, wire.Request{Op: wire.OpStats})
	if err != nil || m.Stats == nil {
		return wire.Stats{}, err
	}
	return *m.Stats, nil
}

// Ping is the station's heartbeat.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpPing})
	return err
}

// Kill makes the shim write exit.json with the reason and end, and everything with
// it. The connection may end before the answer; that is success, too.
func (c *Client) Kill(ctx context.Context, reason string) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpKill, Reason: reason})
	if fault.Is(err, fault.ShimLost) {
		return nil
	}
	return err
}

// Ack tells the shim that all of a stream before seq was taken, so that it may
// forget it.
func (c *Client) Ack(stream string, seq int64) error {
	return c.send(wire.Request{Op: wire.OpAck, Stream: stream, Seq: seq})
}

// ask sends a request and waits for its answer.
func (c *Client) ask(ctx context.Context, q wire.Request) (wire.Message, error) {
	answer := make(chan wire.Message, 1)
	c.mu.Lock()
	if back := c.back; back != nil {
		c.mu.Unlock()
		select {
		case <-back:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return wire.Message{}, lost(q.Op, c.err)
	}
	c.last++
	q.ID = c.last
	c.waiting[q.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, q.ID)
		c.mu.Unlock()
	}()
	if err := c.send(q); err != nil {
		return wire.Message{}, lost(q.Op, err)
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return wire.Message{}, lost(q.Op, c.err)
		case m.Error != nil:
			return wire.Message{}, refused(q.Op, m.Error)
		}
		return m, nil
	case <-ctx.Done():
		return wire.Message{}, fault.New(fault.ShimLost, "ask the shim for %s: %w", q.Op, context.Cause(ctx))
	}
}

func (c *Client) send(q wire.Request) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	_ = conn.SetWriteDeadline(time.Now().Add(writeTime))
	err := wire.Write(conn, q)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = conn.Close() // a part of it may have been written
	}
	return err
}

// receive sorts what comes until the last connection ends.
func (c *Client) receive(r *wire.Reader) {
	defer close(c.events)
	for r != nil {
		c.cut(c.sort(r), c.redial != nil)
		if c.redial == nil {
			return
		}
		r = c.again()
	}
}

// again gives the next connection, nil when there is none.
func (c *Client) again() *wire.Reader {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.back)
		c.back = nil
	}()
	for c.ended.Err() == nil {
		conn, err := c.redial(c.ended)
		if err != nil {
			c.cut(err, true)
			return nil
		}
		r, err := c.hello(c.ended, conn)
		if err == nil {
			c.mu.Lock()
			c.conn, c.err = conn, nil
			c.mu.Unlock()
			if c.ended.Err() != nil { // Close saw the one before
				_ = conn.Close()
			}
			return r
		}
		if known, ok := errors.AsType[*wire.Error](err); ok && known.Code == wire.CodeNonce {
			c.cut(err, true)
			return nil
		}
	}
	return nil
}

// sort handles what one connection brings, and gives the error that ended it.
func (c *Client) sort(r *wire.Reader) error {
	for {
		var m wire.Message
		if err := r.Read(&m); err != nil {
			return err
		}
		if m.ID == 0 {
			if !c.told.fresh(&m) {
				continue
			}
			select {
			case c.events <- m:
			case <-c.ended.Done():
				return net.ErrClosed
			}
			continue
		}
		c.mu.Lock()
		if answer, ok := c.waiting[m.ID]; ok {
			delete(c.waiting, m.ID)
			answer <- m // it has room for one
		}
		c.mu.Unlock()
	}
}

// cut ends all that wait for an answer. more says that a connection may follow.
func (c *Client) cut(err error, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Close()
	c.err = err
	if more && c.back == nil {
		c.back = make(chan struct{})
	}
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

// tellings is what the shim told so far. A new connection is told again what was not
// acknowledged on the one before, and how the daemon ended.
type tellings struct {
	next   map[string]int64 // by stream: what follows
	exited bool
}

// fresh reports whether an event is new, and cuts off what of it is not.
func (t *tellings) fresh(m *wire.Message) bool {
	switch m.Event {
	case wire.EventExit:
		was := t.exited
		t.exited = true
		return !was
	case wire.EventOutput:
		again := min(max(t.next[m.Stream]-m.Seq, 0), int64(len(m.Data)))
		m.Seq, m.Data = m.Seq+again, m.Data[again:]
		if len(m.Data) == 0 {
			return false
		}
		t.next[m.Stream] = m.Seq + int64(len(m.Data))
	case wire.EventDropped:
		again := min(max(t.next[m.Stream]-m.Seq, 0), m.Bytes)
		m.Seq, m.Bytes = m.Seq+again, m.Bytes-again
		if m.Bytes == 0 {
			return false
		}
		t.next[m.Stream] = m.Seq + m.Bytes
	}
	return true
}

func lost(op string, err error) error {
	if err == nil {
		err = errors.New("the connection ended")
	}
	return fault.New(fault.ShimLost, "ask the shim for %s: %w", op, err)
}

// refused turns the shim's refusal into a fault.
func refused(op string, e *wire.Error) error {
	code := fault.ShimFailed
	switch e.Code {
	case wire.CodeIntegrity:
		code = fault.IntegrityFailed
	case wire.CodeStart:
		code = fault.DaemonNotStarted
	case wire.CodeNonce:
		code = fault.ShimLost
	}
	return fault.New(code, "%s: %w", op, &wire.Error{Code: e.Code, Message: fault.CleanLine(e.Message)})
}
