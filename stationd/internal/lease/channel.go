package lease

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// channel is an SSH channel as a connection of this machine: with deadlines, which
// channels have not, and which HTTP servers and clients cannot do without.
type channel struct {
	*net.UnixConn
	far net.Conn
}

// Close ends both directions, whatever the far end does.
func (c *channel) Close() error {
	_ = c.far.Close()
	return c.UnixConn.Close()
}

// local carries a channel to a pair of sockets. It owns far from now on.
func (l *link) local(far net.Conn) (net.Conn, error) {
	near, mine, err := socketPair()
	if err != nil {
		_ = far.Close()
		return nil, l.unreachable(err)
	}
	l.work.Go(func() {
		_, _ = io.Copy(mine, far)
		_ = mine.CloseWrite()
	})
	l.work.Go(func() {
		_, _ = io.Copy(far, mine)
		if half, ok := far.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			_ = far.Close()
		}
		_ = mine.CloseRead()
	})
	return &channel{near, far}, nil
}

func socketPair() (a, b *net.UnixConn, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "channel")
		conn, wrong := net.FileConn(f)
		f.Close()
		if wrong != nil {
			err = wrong
			continue
		}
		ends[i] = conn.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
