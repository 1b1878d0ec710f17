package supervise_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// lines is a connection to a shim that can be cut, and that forgets what is
// acknowledged over it.
type lines struct {
	net.Conn
	deaf atomic.Bool
}

func (l *lines) Write(p []byte) (int, error) {
	if l.deaf.Load() && strings.Contains(string(p), `"op":"ack"`) {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// A client that reconnects tells everything once, in its order: what came before the
// cut, and what came while there was no connection.
func TestReconnect(t *testing.T) {
	w := newWorld(t)
	w.spec.Artifact = nil
	w.start()
	if _, err := w.process.Client().Launch(t.Context(), wire.Launch{Args: []string{"/bin/sh", "-c", "while [ ! -e begin ]; do sleep 0.02; done; echo before; while [ ! -e go ]; do sleep 0.02; done; echo after; exit 3"}, Dir: w.spec.Workspace}); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context) (*lines, error) {
		conn, err := w.process.Dial(ctx, wire.Control)
		return &lines{Conn: conn}, err
	}
	first, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.deaf.Store(true)
	next := make(chan struct{})
	var dials atomic.Int64
	c, err := supervise.Reconnect(t.Context(), first, nonce, func(ctx context.Context) (net.Conn, error) {
		dials.Add(1)
		select {
		case <-next:
			return dial(ctx)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	told := gather(c)
	w.file("begin") // not earlier: the world's own client would take what it says
	testkit.Eventually(t, patience, func() bool { return told.of(wire.Stdout) == "before\n" })
	_ = first.Close()
	testkit.Eventually(t, patience, func() bool { return dials.Load() == 1 })
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Ping(short); !fault.Is(err, fault.ShimLost) {
		t.Errorf("while it is cut: %v", err)
	}
	patient := make(chan error, 1)
	go func() { patient <- c.Ping(t.Context()) }()
	w.file("go")
	next <- struct{}{}
	if err := <-patient; err != nil {
		t.Errorf("who waits for the end of the cut: %v", err)
	}
	testkit.Eventually(t, patience, func() bool { e := told.exited(); return e != nil && *e.Code == 3 })
	testkit.Eventually(t, patience, func() bool { return told.of(wire.Stdout) == "before\nafter\n" }, told.of(wire.Stdout))
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, patience, told.closed)
}

// The error of redial, and a shim of another nonce, are the end.
func TestReconnect_Ends(t *testing.T) {
	w := newWorld(t)
	w.spec.Artifact = nil
	w.start()
	dial := func(ctx context.Context) (net.Conn, error) { return w.process.Dial(ctx, wire.Control) }
	first, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := supervise.Reconnect(t.Context(), first, nonce, func(context.Context) (net.Conn, error) { return nil, errors.New("gone for good") })
	if err != nil {
		t.Fatal(err)
	}
	told := gather(c)
	_ = first.Close()
	testkit.Eventually(t, patience, told.closed)
	if err := c.Ping(t.Context()); !fault.Is(err, fault.ShimLost) || !strings.Contains(err.Error(), "gone for good") {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	conn, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := supervise.Reconnect(t.Context(), conn, strings.Repeat("x", 32), dial); !fault.Is(err, fault.ShimLost) {
		t.Errorf("another nonce: %v", err)
	}
}
