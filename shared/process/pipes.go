package process

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readChunk is how much is read from a child at once.
const readChunk = 32 << 10

// chunks are buffers to read into; each child needs some, for a moment.
var chunks = sync.Pool{New: func() any { return new([readChunk]byte) }}

// pipe is one stream between us and a child.
type pipe struct{ ours, theirs *os.File }

// pipes are the three streams of a child.
type pipes struct{ stdin, stdout, stderr pipe }

func openPipes() (*pipes, error) {
	p := &pipes{}
	for _, end := range []struct {
		read, write **os.File
	}{
		{&p.stdin.theirs, &p.stdin.ours},
		{&p.stdout.ours, &p.stdout.theirs},
		{&p.stderr.ours, &p.stderr.theirs},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeOurs()
			p.closeTheirs()
			return nil, err
		}
		*end.read, *end.write = r, w
	}
	return p, nil
}

func (p *pipes) closeOurs()   { closeAll(p.stdin.ours, p.stdout.ours, p.stderr.ours) }
func (p *pipes) closeTheirs() { closeAll(p.stdin.theirs, p.stdout.theirs, p.stderr.theirs) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// feed writes the child's input and closes it. A child need not read it.
func feed(w *os.File, data []byte) {
	_, _ = w.Write(data)
	w.Close()
}

// reader collects one output stream up to a cap. While run is in progress only
// that goroutine touches the fields; after stop they are the caller's.
type reader struct {
	file   *os.File
	max    int
	over   chan struct{} // closed with the first byte beyond the cap
	done   chan struct{} // closed when run has returned
	data   []byte
	tooBig bool
	eof    bool
}

func newReader(f *os.File, max int) *reader {
	return &reader{file: f, max: max, over: make(chan struct{}), done: make(chan struct{})}
}

// run reads until the end, the cap or stop.
func (r *reader) run() {
	defer close(r.done)
	buf := chunks.Get().(*[readChunk]byte)
	defer chunks.Put(buf)
	for !r.tooBig {
		n, err := r.file.Read(buf[:])
		r.add(buf[:n])
		if err != nil {
			r.eof = errors.Is(err, io.EOF)
			return
		}
	}
}

// stop ends run; what the pipe still holds stays in it.
func (r *reader) stop() {
	_ = r.file.SetReadDeadline(time.Unix(1, 0))
	<-r.done
	_ = r.file.SetReadDeadline(time.Time{})
}

// drain takes what is in the pipe now and does not wait.
func (r *reader) drain() {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	buf := chunks.Get().(*[readChunk]byte)
	defer chunks.Put(buf)
	for !r.eof && !r.tooBig {
		n := 0
		var readErr error
		// Returning true keeps the runtime from waiting for readability.
		err := raw.Read(func(fd uintptr) bool {
			n, readErr = unix.Read(int(fd), buf[:])
			return true
		})
		switch {
		case err != nil || errors.Is(readErr, unix.EAGAIN):
			return
		case errors.Is(readErr, unix.EINTR):
			continue
		case readErr != nil || n <= 0:
			r.eof = true
			return
		}
		r.add(buf[:n])
	}
}

func (r *reader) control(f func(fd uintptr)) error {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

func (r *reader) add(p []byte) {
	if room := r.max - len(r.data); len(p) > room {
		p = p[:room]
		if !r.tooBig {
			r.tooBig = true
			close(r.over)
		}
	}
	r.data = append(r.data, p...)
}

// waitAny blocks until one of the streams that are open has something to read or
// has ended; false means that the deadline came first. Runs after stop.
func waitAny(deadline time.Time, readers ...*reader) bool {
	var fds []unix.PollFd
	for _, r := range readers {
		if !r.eof {
			// Not File.Fd, which would make the descriptor blocking.
			_ = r.control(func(fd uintptr) {
				fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			})
		}
	}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n > 0 {
			return true
		}
	}
}
