package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/wire"
)

// eventQueue is how many events wait for who reads them before the connection is
// read on; the shim keeps the rest.
const eventQueue = 64

// A Client speaks to one shim over one connection. Its methods may be called from
// several goroutines.
type Client struct {
	conn   net.Conn
	events chan wire.Message
	ended  chan struct{} // closed by Close: events are not waited for any more
	once   sync.Once
	read   sync.WaitGroup

	writing sync.Mutex

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan wire.Message
	err     error // why the connection ended
}

// Connect says hello with the nonce and takes over the shim: an older connection
// is closed by it. The Client owns conn from now on, also when Connect fails.
func Connect(ctx context.Context, conn net.Conn, nonce string) (*Client, error) {
	c := &Client{conn: conn, events: make(chan wire.Message, eventQueue), ended: make(chan struct{}), waiting: map[int64]chan wire.Message{}}
	c.read.Go(c.receive)
	if _, err := c.ask(ctx, wire.Request{Op: wire.OpHello, Nonce: nonce}); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection; the shim lives on.
func (c *Client) Close() error {
	c.once.Do(func() { close(c.ended) })
	err := c.conn.Close()
	c.read.Wait()
	return err
}

// Events gives what the shim tells by itself. The channel is closed when the
// connection ends. It has to be read: while it is full, answers wait behind it.
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
	return wire.Write(c.conn, q)
}

// receive sorts what comes until the connection ends.
func (c *Client) receive() {
	defer close(c.events)
	r := wire.NewReader(c.conn)
	for {
		var m wire.Message
		if err := r.Read(&m); err != nil {
			c.fail(err)
			return
		}
		if m.ID == 0 {
			select {
			case c.events <- m:
			case <-c.ended:
				c.fail(net.ErrClosed)
				return
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

// fail ends all that wait for an answer.
func (c *Client) fail(err error) {
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
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
	return fault.New(code, "%s: %w", op, fmt.Errorf("%s", fault.CleanLine(e.Message)))
}
