package egress

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeSize bounds what one direction of a tunnel holds between its sockets.
const pipeSize = 256 << 10

// pipe takes bytes from one socket to another inside the kernel, by splice(2):
// they are counted here, and not copied. One goroutine uses it.
type pipe struct{ out, in int }

func newPipe() (pipe, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, err
	}
	p := pipe{out: ends[0], in: ends[1]}
	_, _ = unix.FcntlInt(uintptr(p.in), unix.F_SETPIPE_SZ, pipeSize) // a smaller one takes more calls
	return p, nil
}

func (p pipe) close() {
	_ = unix.Close(p.out)
	_ = unix.Close(p.in)
}

// fill waits for bytes of a socket and takes what is there; 0 and no error is its
// end. The pipe must be empty.
func (p pipe) fill(from syscall.RawConn) (n int, err error) {
	if failed := from.Read(func(fd uintptr) bool {
		n, err = splice(int(fd), p.in, pipeSize)
		return err != unix.EAGAIN
	}); failed != nil {
		return 0, failed
	}
	return n, err
}

// drain waits until a socket takes some of the next most bytes, and gives how many
// it took.
func (p pipe) drain(to syscall.RawConn, most int) (n int, err error) {
	if failed := to.Write(func(fd uintptr) bool {
		n, err = splice(p.out, int(fd), most)
		return err != unix.EAGAIN
	}); failed != nil {
		return 0, failed
	}
	return n, err
}

// splice moves up to most bytes without waiting; one of the two is a pipe.
func splice(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_NONBLOCK)
		if err != unix.EINTR {
			return max(int(n), 0), err
		}
	}
}

// raw gives the socket of a connection, for splice.
func raw(c net.Conn) (syscall.RawConn, error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.New("the connection is no socket")
	}
	return socket.SyscallConn()
}
