// Package relay carries connections from a loopback address to a Unix socket. It
// is the only way out of a network namespace that has nothing but lo: the station
// shim uses it in namespaces (station §2), the worker's container in its socket
// network (worker §6).
//
// A relay does not look at what it carries. The end of one direction is passed on
// as such, so a request may end while its answer still streams; an error of either
// side ends both, and so does a client that is gone from a Unix socket altogether.
// It owns no file: the socket belongs to who listens there. When Run is told to stop
// it closes the listener and every connection, and returns when all its goroutines
// have ended.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConnections are carried at once; further ones wait to be accepted.
	maxConnections = 256
	// dialTimeout bounds the way to the socket, which is on this machine.
	dialTimeout = 5 * time.Second
	// acceptPause is how long to wait when the process has no descriptor left.
	acceptPause = 20 * time.Millisecond
	// sendBuffer bounds what waits for a program on this machine to read it, which is
	// faster while it is in the processor's caches.
	sendBuffer = 64 << 10
)

// A Relay listens at one end.
type Relay struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	admit    func(net.Conn) bool
}

// New carries what l accepts, and admit does not refuse, to what dial gives. The
// listener is closed by Run.
func New(l net.Listener, dial func(context.Context) (net.Conn, error), admit func(net.Conn) bool) *Relay {
	return &Relay{listener: l, dial: dial, admit: admit}
}

// Listen binds address, a loopback IP with a port, and carries what connects there
// to the Unix socket. From its return on, connections are queued, so a program
// started now finds an open port.
func Listen(address, socket string) (*Relay, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() || at.Addr().Zone() != "" {
		return nil, fmt.Errorf("listen on %q: want a loopback address with a port, as 127.0.0.1:8787", address)
	}
	if !filepath.IsAbs(socket) {
		return nil, fmt.Errorf("connect to %q: want the absolute path of a socket", socket)
	}
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) }
	return New(l, dial, func(net.Conn) bool { return true }), nil
}

// Addr is where the relay listens.
func (r *Relay) Addr() net.Addr { return r.listener.Addr() }

// Run carries connections until ctx ends. It must be called once.
func (r *Relay) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var carried sync.WaitGroup
	defer carried.Wait()
	stop := context.AfterFunc(ctx, func() { _ = r.listener.Close() })
	defer stop()
	defer func() { _ = r.listener.Close() }()
	defer cancel() // before Wait: what is carried ends

	free := make(chan struct{}, maxConnections)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := r.listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			<-free
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept on %s: %w", r.Addr(), err)
			}
			// Out of descriptors, or the peer is gone already.
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		carried.Go(func() {
			r.carry(ctx, conn)
			<-free
		})
	}
}

// carry joins one connection with the socket, until both directions have ended.
func (r *Relay) carry(ctx context.Context, near net.Conn) {
	defer near.Close()
	if !r.admit(near) {
		return
	}
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	far, err := r.dial(dialling)
	cancel()
	if err != nil {
		return // who connected sees the end, as with a broker that is gone
	}
	defer far.Close()
	for _, c := range []net.Conn{near, far} {
		if loopback, ok := c.(*net.TCPConn); ok {
			_ = loopback.SetWriteBuffer(sendBuffer)
		}
	}
	both := func() { _ = near.Close(); _ = far.Close() }
	defer context.AfterFunc(ctx, both)()

	var back sync.WaitGroup
	back.Go(func() { pass(near, far, both) })
	pass(far, near, both)
	if hungUp(near) { // nobody is left for an answer; whoever is at the far end may never see that
		both()
	}
	back.Wait()
}

// hungUp reports whether the other end of a Unix connection is closed, and not only
// its sending half; a TCP connection does not tell.
func hungUp(c net.Conn) (gone bool) {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		gone = err == nil && n == 1 && state[0].Revents&unix.POLLHUP != 0
	})
	return gone
}

// pass moves one direction and passes its end on; an error ends both. Sockets as
// they come from net are spliced: the bytes stay in the kernel.
func pass(to, from net.Conn, both func()) {
	if _, err := io.Copy(to, from); err != nil {
		both()
		return
	}
	half, ok := to.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		both()
	}
}
