package lease

import (
	"context"
	"net"
	"path"

	"drawbridge/stationd/internal/place"
)

// farListener is a socket of a runtime directory of another machine. When the
// connection is cut it is made anew.
type farListener struct {
	machine *sshMachine
	name    string
	conns   chan net.Conn
	ended   context.Context
	end     context.CancelFunc
}

// Listen returns when the socket is there.
func (m *sshMachine) Listen(ctx context.Context, name string) (net.Listener, error) {
	l := &farListener{machine: m, name: name, conns: make(chan net.Conn)}
	first, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	l.ended, l.end = context.WithCancel(m.ended)
	m.listeners.Go(func() { l.run(first) })
	return l, nil
}

// open makes the socket, in the place of an older one.
func (l *farListener) open(ctx context.Context) (net.Listener, error) {
	q := l.machine.request(place.OpUnlink)
	q.Path = l.name
	if _, err := l.machine.do(ctx, q); err != nil {
		return nil, err
	}
	line, err := l.machine.provider.link.get(ctx)
	if err != nil {
		return nil, err
	}
	far, err := line.client.ListenUnix(path.Join(l.machine.layout.Runtime, l.name))
	if err != nil {
		return nil, l.machine.provider.link.unreachable(err)
	}
	return far, nil
}

// run accepts on one socket after another.
func (l *farListener) run(far net.Listener) {
	for tries := 0; ; {
		if far != nil {
			tries = 0
			l.accept(far)
		}
		if l.machine.provider.link.pause(l.ended, tries) != nil {
			return
		}
		tries++
		far, _ = l.open(l.ended)
	}
}

// accept takes connections until the listener, or its connection, ends.
func (l *farListener) accept(far net.Listener) {
	stop := context.AfterFunc(l.ended, func() { _ = far.Close() })
	defer stop()
	for {
		conn, err := far.Accept()
		if err != nil {
			return
		}
		conn, err = l.machine.provider.link.local(conn)
		if err != nil {
			continue
		}
		select {
		case l.conns <- conn:
		case <-l.ended.Done():
			_ = conn.Close()
		}
	}
}

func (l *farListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.ended.Done():
		return nil, net.ErrClosed
	}
}

func (l *farListener) Close() error {
	l.end()
	return nil
}

func (l *farListener) Addr() net.Addr {
	return &net.UnixAddr{Name: path.Join(l.machine.layout.Runtime, l.name), Net: "unix"}
}
