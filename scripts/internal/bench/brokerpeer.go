package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A peer is a role that serves HTTP on a loopback address.
type peer struct {
	url string
	pid int
	end func()
}

// peer starts a role in a process of its own, until end is called.
func (s *stand) peer(role string, args ...string) (*peer, error) {
	cmd := exec.Command(s.opts.Self, append([]string{"role", role}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &peer{pid: cmd.Process.Pid, end: func() { _, _ = stdin.Close(), cmd.Wait() }}
	if _, err := fmt.Fscanln(stdout, &p.url); err != nil {
		p.end()
		return nil, fmt.Errorf("start the role %s: %w", role, err)
	}
	return p, nil
}

// servePeer is the other side of it.
func servePeer(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	if _, err := fmt.Fprintf(os.Stdout, "http://%s\n", l.Addr()); err != nil {
		return err
	}
	_ = http.Serve(l, h) // ends with its listener
	return nil
}

// completedEvent ends every answer.
const completedEvent = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"bench\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n"

// provide answers as the script in the header version says: at once, with as much as
// there is, or with an event now and then that holds the time.
func provide(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	say := func(p []byte) bool {
		_, err := w.Write(p)
		return err == nil && rc.Flush() == nil
	}
	switch r.Header.Get("Version") {
	case "flow":
		event := "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"msg_0123456789\",\"output_index\":0,\"content_index\":0,\"delta\":\"some words that a model says, one piece after another\"}\n\n"
		piece := []byte(strings.Repeat(event, 40))
		for n := 0; n < flowBytes; n += len(piece) {
			if !say(piece) {
				return
			}
		}
	case "crowd":
		tick := time.NewTicker(crowdEvery)
		defer tick.Stop()
		for range crowdEvents {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			if !say(fmt.Appendf(nil, "data: {\"type\":\"tick\",\"at\":\"%d\"}\n\n", time.Now().UnixNano())) {
				return
			}
		}
	}
	say([]byte(completedEvent))
}
