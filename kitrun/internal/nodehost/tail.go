package nodehost

import (
	"os"
	"time"
)

// tail keeps the end of what comes out of a pipe.
type tail struct {
	file *os.File
	max  int
	kept []byte
	done chan struct{}
}

// newTail makes a pipe and gives the end to write to.
func newTail(max int) (*tail, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return &tail{file: r, max: max, done: make(chan struct{})}, w, nil
}

// run reads until the pipe's end, or until end gives up on it.
func (t *tail) run() {
	defer close(t.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.file.Read(buf)
		t.kept = append(t.kept, buf[:n]...)
		if over := len(t.kept) - t.max; over > t.max { // in large steps
			t.kept = append(t.kept[:0], t.kept[over:]...)
		}
		if err != nil {
			return
		}
	}
}

// end waits for what is still in the pipe, no longer than d: a process that
// inherited it must not hold anybody up.
func (t *tail) end(d time.Duration) []byte {
	_ = t.file.SetReadDeadline(time.Now().Add(d))
	<-t.done
	t.file.Close()
	return t.kept[max(0, len(t.kept)-t.max):]
}
