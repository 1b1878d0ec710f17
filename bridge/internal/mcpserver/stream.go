package mcpserver

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pipeChunk is how much is written at once where the kernel cannot be asked to
// take only what fits: a pipe that polls as writable takes this much without
// blocking (PIPE_BUF).
const pipeChunk = 4096

// errReleased ends a Read or Write that was told to give up.
var errReleased = errors.New("stream released")

// A stream reads or writes a descriptor and can be released from it at any
// time. Closing os.Stdin does not end a Read that is under way, and the
// descriptor is not put into non-blocking mode either, since that would change
// it for every process that shares it: the stream polls the descriptor together
// with an event of its own, and touches it only when that will not block.
type stream struct {
	file  *os.File
	fd    int
	event int // eventfd; readable once released

	partial atomic.Bool // RWF_NOWAIT is not to be had: write in chunks

	mu       sync.Mutex
	released bool
	closed   bool
}

func openStream(f *os.File) (*stream, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &stream{file: f, fd: int(f.Fd()), event: event}, nil
}

// release lets the Read or Write under way, and all later ones, end with
// errReleased. It may be called more than once.
func (s *stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.closed {
		return
	}
	s.released = true
	_, _ = unix.Write(s.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a fresh eventfd takes it
}

// close frees the event. No Read or Write may be under way.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		unix.Close(s.event)
	}
}

// await returns when the descriptor is ready for what events says, or gone.
func (s *stream) await(events int16) error {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: events}, {Fd: int32(s.event), Events: unix.POLLIN}}
	for {
		fds[0].Revents, fds[1].Revents = 0, 0
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			return errReleased
		}
		if fds[0].Revents != 0 {
			return nil
		}
	}
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if err := s.await(unix.POLLIN); err != nil {
			return 0, err
		}
		n, err := unix.Read(s.fd, p)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := s.try(p[done:])
		done += n
		if err != nil {
			return done, err
		}
		if done == len(p) {
			break
		}
		if err := s.await(unix.POLLOUT); err != nil {
			return done, err
		}
		if !s.partial.Load() {
			continue
		}
		n, err = unix.Write(s.fd, p[done:min(done+pipeChunk, len(p))])
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return done, nil
}

// try writes what fits now and never blocks; 0 where that cannot be had without
// putting the descriptor into non-blocking mode (a terminal, an older kernel).
func (s *stream) try(p []byte) (int, error) {
	if s.partial.Load() {
		return 0, nil
	}
	n, err := unix.Pwritev2(s.fd, [][]byte{p}, -1, unix.RWF_NOWAIT)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return 0, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESPIPE):
		s.partial.Store(true)
		return 0, nil
	}
	return 0, os.NewSyscallError("write", err)
}

// releasable gives r or w as something that release can free. What is neither a
// file nor closable is read and written as it is; release then has no effect.
func releasableReader(r io.Reader) (in io.Reader, release, done func(), err error) {
	if f, ok := r.(*os.File); ok {
		s, err := openStream(f)
		if err != nil {
			return nil, nil, nil, err
		}
		return s, s.release, s.close, nil
	}
	if c, ok := r.(io.Closer); ok {
		return r, func() { c.Close() }, func() {}, nil
	}
	return r, func() {}, func() {}, nil
}

func releasableWriter(w io.Writer) (out io.Writer, release, done func(), err error) {
	if f, ok := w.(*os.File); ok {
		s, err := openStream(f)
		if err != nil {
			return nil, nil, nil, err
		}
		return s, s.release, s.close, nil
	}
	if c, ok := w.(io.Closer); ok {
		return w, func() { c.Close() }, func() {}, nil
	}
	return w, func() {}, func() {}, nil
}
