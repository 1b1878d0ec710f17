package main

import (
	"context"
	"crypto/subtle"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/stationd/internal/listener"
	"drawbridge/stationd/internal/wire"
)

// Bounds of a connection to ctl.sock.
const (
	helloTime    = 5 * time.Second
	writeTime    = 10 * time.Second
	maxStrangers = 8 // connections that have not said hello
	acceptPause  = 20 * time.Millisecond
	maxNames     = 32

	// silentTime is how long a stationd may say nothing, which asks every few seconds
	// whether the shim is there. A connection over another machine can seem to live for
	// hours after that has gone.
	silentTime = time.Minute
)

// session is one attached stationd. A newer one replaces it.
type session struct {
	conn    net.Conn
	writing sync.Mutex
	ended   context.Context
	cancel  context.CancelFunc
	pumps   sync.WaitGroup
}

// tell writes a message; a client that does not read is let go.
func (c *session) tell(m wire.Message) bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	if err := wire.Write(c.conn, m); err != nil {
		_ = c.conn.Close()
		return false
	}
	return true
}

// serveControl accepts for ever.
func (s *shim) serveControl(l *net.UnixListener) {
	strangers := make(chan struct{}, maxStrangers)
	for {
		conn, err := l.Accept()
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		if !s.outside(conn) {
			_ = conn.Close()
			continue
		}
		strangers <- struct{}{}
		go s.attend(conn, func() { <-strangers })
	}
}

// attend serves one connection.
func (s *shim) attend(conn net.Conn, known func()) {
	defer conn.Close()
	r := wire.NewReader(conn)
	_ = conn.SetReadDeadline(time.Now().Add(helloTime))
	var q wire.Request
	err := r.Read(&q)
	known()
	if err != nil {
		return
	}
	c := &session{conn: conn}
	if q.Op != wire.OpHello || subtle.ConstantTimeCompare([]byte(q.Nonce), []byte(s.spec.Nonce)) != 1 {
		c.tell(wire.Message{ID: q.ID, Error: &wire.Error{Code: wire.CodeNonce, Message: "the nonce is not this attempt's"}})
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.ended, c.cancel = context.WithCancel(context.Background())
	defer c.pumps.Wait()
	defer c.cancel()
	if !c.tell(wire.Message{ID: q.ID}) {
		return
	}
	s.attach(c)
	defer s.detach(c)
	for {
		var q wire.Request
		if r.Read(&q) != nil {
			return
		}
		s.hear(c)
		if q.Op == wire.OpAck {
			if ring := s.ring(q.Stream); ring != nil {
				ring.ack(q.Seq)
			}
			continue
		}
		m := s.answer(q)
		m.ID = q.ID
		told := c.tell(m)
		if q.Op == wire.OpKill && m.Error == nil { // whether its answer arrives or not
			s.end(reasonOf(q.Reason))
		}
		if !told {
			return
		}
	}
}

// attach makes c the one that events go to, and tells it what it may have missed.
func (s *shim) attach(c *session) {
	s.mu.Lock()
	older := s.current
	s.current, s.heard = c, time.Now()
	exit := s.exit
	s.mu.Unlock()
	if older != nil {
		_ = older.conn.Close()
	}
	if exit != nil {
		c.tell(wire.Message{Event: wire.EventExit, Exit: exit})
	}
	for _, stream := range []string{wire.Stdout, wire.Stderr} {
		c.pumps.Go(func() { s.pump(c, stream) })
	}
}

func (s *shim) detach(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.current, s.alone = nil, time.Now()
	}
}

// hear notes that the stationd of c is there.
func (s *shim) hear(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.heard = time.Now()
	}
}

// attended reports whether a stationd is there, else since when none is. One that has
// been silent for too long, orphan at the least, is not.
func (s *shim) attended(orphan time.Duration) (yes bool, alone time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return false, s.alone
	}
	return time.Since(s.heard) < max(orphan, silentTime), s.heard
}

// pump sends output as it comes, no more ahead of what was taken than its bound.
func (s *shim) pump(c *session, stream string) {
	ring := s.ring(stream)
	for sent := ring.taken(); ; {
		data, at, again := ring.next(sent)
		if at > sent && !c.tell(wire.Message{Event: wire.EventDropped, Stream: stream, Seq: sent, Bytes: at - sent}) {
			return
		}
		sent = at
		if again != nil {
			select {
			case <-again:
			case <-c.ended.Done():
				return
			}
			continue
		}
		if !c.tell(wire.Message{Event: wire.EventOutput, Stream: stream, Seq: at, Data: data}) {
			return
		}
		sent += int64(len(data))
	}
}

func (s *shim) ring(stream string) *ring {
	switch stream {
	case wire.Stdout:
		return s.stdout
	case wire.Stderr:
		return s.stderr
	}
	return nil
}

// answer does what a request asks.
func (s *shim) answer(q wire.Request) wire.Message {
	switch q.Op {
	case wire.OpPing, wire.OpKill:
		return wire.Message{}
	case wire.OpLaunch:
		if q.Launch == nil {
			return refusal(wire.CodeRequest, "launch: nothing to launch")
		}
		started, err := s.launch(*q.Launch)
		if err != nil {
			return wire.Message{Error: err}
		}
		return wire.Message{Started: started}
	case wire.OpSignal:
		return s.signal(q)
	case wire.OpStatus:
		s.mu.Lock()
		defer s.mu.Unlock()
		return wire.Message{Status: &wire.Status{Birth: s.birth, Started: s.started, Exit: s.exit, Port: s.spec.Port, Credential: s.credential}}
	case wire.OpListeners:
		rows, err := listener.List()
		if err != nil {
			return refusal(wire.CodeFailed, err.Error())
		}
		return wire.Message{Listeners: rows}
	case wire.OpStats:
		return wire.Message{Stats: s.stats()}
	}
	return refusal(wire.CodeRequest, "unknown request")
}

func refusal(code, message string) wire.Message {
	return wire.Message{Error: &wire.Error{Code: code, Message: message}}
}

// signal reaches the daemon's group, or everybody but the shim.
func (s *shim) signal(q wire.Request) wire.Message {
	if q.Signal < 1 || q.Signal > 64 {
		return refusal(wire.CodeRequest, "signal: no such signal")
	}
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	target := -1
	switch {
	case q.Target == wire.Group && started != nil:
		target = -started.Inner // the number cannot be a stranger's: its session was the daemon's
	case q.Target == wire.Group:
		return refusal(wire.CodeRequest, "signal: no daemon was launched")
	case q.Target != wire.All:
		return refusal(wire.CodeRequest, "signal: want group or all")
	}
	if err := unix.Kill(target, unix.Signal(q.Signal)); err != nil && err != unix.ESRCH {
		return refusal(wire.CodeFailed, "signal: "+err.Error())
	}
	return wire.Message{}
}

// stats counts what lives here besides the shim.
func (s *shim) stats() *wire.Stats {
	out := &wire.Stats{Output: map[string]int64{}, Dropped: map[string]int64{}}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		info, err := process.Stat(pid)
		if err != nil || info.Dead() {
			continue
		}
		out.Processes++
		if len(out.Names) < maxNames {
			out.Names = append(out.Names, listener.Program(pid))
		}
	}
	for _, stream := range []string{wire.Stdout, wire.Stderr} {
		out.Output[stream], out.Dropped[stream] = s.ring(stream).count()
	}
	return out
}

// reasonOf keeps what exit.json says to one plain word.
func reasonOf(asked string) string {
	if asked == "" || len(asked) > 64 {
		return wire.ReasonKilled
	}
	for _, c := range asked {
		if c != '_' && (c < 'a' || c > 'z') {
			return wire.ReasonKilled
		}
	}
	return asked
}
