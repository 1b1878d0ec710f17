package gate

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/peer"
)

// DefaultListen is where a gate listens when nobody says otherwise.
const DefaultListen = "127.0.0.1:0"

// Listen opens a TCP listener on a loopback address, "127.0.0.1:0" for example.
// Any other address is listen_not_loopback; nothing overrules that.
func Listen(address string) (net.Listener, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !to.Addr().Unmap().IsLoopback() {
		return nil, fault.New(fault.ListenNotLoopback, "listen on %s: not a loopback address with a port", fault.CleanLine(address)).
			WithHint("use %s; what has to be reached from outside stands behind a proxy of your own", DefaultListen)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "listen on %s: %w", to, err).
			WithHint("ss -tlnp shows who has the port; another -listen, or port 0, takes a free one")
	}
	return l, nil
}

// CheckListener refuses a listener, whoever opened it, that others than this
// machine's processes reach.
func CheckListener(l net.Listener) error {
	switch a := l.Addr().(type) {
	case *net.UnixAddr:
		return nil
	case *net.TCPAddr:
		if a.IP.IsLoopback() {
			return nil
		}
	}
	return fault.New(fault.ListenNotLoopback, "serve on %s: neither loopback nor a unix socket", l.Addr())
}

// door is a listener that lets in so many connections at once, and over a unix
// socket only peers of this network namespace.
type door struct {
	net.Listener
	room chan struct{}
	shut chan struct{} // closed by Close
	once sync.Once
}

func newDoor(l net.Listener, room chan struct{}) *door {
	return &door{Listener: l, room: room, shut: make(chan struct{})}
}

// Close ends Accept, also one that waits for room: net/http waits for that before
// it closes any connection.
func (d *door) Close() error {
	d.once.Do(func() { close(d.shut) })
	return d.Listener.Close()
}

// Accept waits for a connection, and for room before that.
func (d *door) Accept() (net.Conn, error) {
	for {
		select {
		case d.room <- struct{}{}:
		case <-d.shut:
			return nil, net.ErrClosed
		}
		c, err := d.Listener.Accept()
		if err != nil {
			<-d.room
			return nil, err
		}
		out := &visitor{Conn: c, leave: sync.OnceFunc(func() { <-d.room })}
		u, ok := c.(*net.UnixConn)
		if !ok {
			return out, nil
		}
		p, err := peer.Of(u)
		if err != nil || !p.Near() {
			out.Close()
			continue
		}
		out.uid = &p.UID
		return out, nil
	}
}

// visitor is a client's connection.
type visitor struct {
	net.Conn
	uid   *int // of the peer of a unix socket
	leave func()
}

// Close ends the connection and makes room.
func (v *visitor) Close() error {
	defer v.leave()
	return v.Conn.Close()
}

// CloseWrite tells a client that the answer is complete, before the connection
// is closed: net/http looks for this method.
func (v *visitor) CloseWrite() error {
	if c, ok := v.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// arrival is what the gate knows of a connection.
type arrival struct {
	uid  *int   // nil over TCP
	from string // who is counted for a stranger's failures
	port string // of the listener; "" on a unix socket
}

type arrivalKey struct{}

// arrive notes where a connection came from.
func arrive(ctx context.Context, c net.Conn) context.Context {
	a := arrival{from: "unknown"}
	if v, ok := c.(*visitor); ok && v.uid != nil {
		a.uid, a.from = v.uid, "uid "+strconv.Itoa(*v.uid)
	} else if remote, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		a.from = remote.IP.String()
		if remote.IP.IsLoopback() {
			a.from = "loopback" // whoever has one of its addresses has all
		}
	}
	if local, ok := c.LocalAddr().(*net.TCPAddr); ok {
		a.port = strconv.Itoa(local.Port)
	}
	return context.WithValue(ctx, arrivalKey{}, a)
}

func arrivalOf(ctx context.Context) arrival {
	a, _ := ctx.Value(arrivalKey{}).(arrival)
	return a
}
