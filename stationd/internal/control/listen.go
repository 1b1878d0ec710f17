package control

import (
	"context"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/peer"
)

// listener is the control socket. It lets in so many connections at once, and only
// peers of this network namespace.
type listener struct {
	*net.UnixListener
	path string
	inc  unix.Stat_t // the file that is ours
	room chan struct{}
	shut chan struct{} // closed by Close
	once sync.Once
}

// listen puts a socket of mode 0600 at path. A stationd that answers there keeps it;
// what is dead, or stands still, is replaced.
func listen(ctx context.Context, path string) (*listener, error) {
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fault.New(fault.ListenerUnavailable, "listen on the control socket: something else stands at %s", path)
		}
		answers := served(ctx, path)
		if ctx.Err() != nil { // no answer then says nothing of who serves there
			return nil, context.Canceled
		}
		if answers {
			return nil, fault.New(fault.ListenerUnavailable, "listen on the control socket: another stationd answers at %s", path).
				WithHint("it serves another Store; give each its own -runtime-dir")
		}
	}
	// Born under another name: nobody can connect before the mode is right, and
	// nothing stands at path for a moment only.
	born := path + ".new"
	_ = os.Remove(born)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: born, Net: "unix"})
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "listen on the control socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	out := &listener{UnixListener: l, path: path, room: make(chan struct{}, maxConnections), shut: make(chan struct{})}
	if err := out.settle(born); err != nil {
		_ = l.Close()
		_ = os.Remove(born)
		return nil, fault.New(fault.ListenerUnavailable, "listen on the control socket %s: %w", path, err)
	}
	return out, nil
}

// served reports whether a stationd answers at path and goes on answering: one that
// does not act any more leaves in a moment.
func served(ctx context.Context, path string) bool {
	for end := time.Now().Add(leaveWait); ; {
		probe, cancel := context.WithTimeout(ctx, probeWait)
		answers := NewClient(path).Answers(probe)
		cancel()
		if !answers || ctx.Err() != nil || time.Now().After(end) {
			return answers
		}
		select {
		case <-time.After(leavePoll):
		case <-ctx.Done():
		}
	}
}

func (l *listener) settle(born string) error {
	if err := os.Chmod(born, 0o600); err != nil {
		return err
	}
	if err := unix.Lstat(born, &l.inc); err != nil {
		return err
	}
	return os.Rename(born, l.path)
}

// remove takes the socket away, unless it is another's by now.
func (l *listener) remove() {
	var now unix.Stat_t
	if unix.Lstat(l.path, &now) == nil && now.Ino == l.inc.Ino && now.Dev == l.inc.Dev {
		_ = os.Remove(l.path)
	}
}

// Close ends Accept, also one that waits for room: net/http waits for that before
// it closes any connection.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.shut) })
	return l.UnixListener.Close()
}

// Accept waits for room and for a peer of this network namespace.
func (l *listener) Accept() (net.Conn, error) {
	for {
		select {
		case l.room <- struct{}{}:
		case <-l.shut:
			return nil, net.ErrClosed
		}
		c, err := l.AcceptUnix()
		if err != nil {
			<-l.room
			return nil, err
		}
		v := &visitor{UnixConn: c, leave: sync.OnceFunc(func() { <-l.room })}
		if v.peer, err = peer.Of(c); err == nil && v.peer.Near() {
			return v, nil
		}
		_ = v.Close()
	}
}

// visitor is a connection whose peer is known.
type visitor struct {
	*net.UnixConn
	peer  peer.Peer
	leave func()
}

// Close ends the connection and makes room.
func (v *visitor) Close() error {
	defer v.leave()
	return v.UnixConn.Close()
}

type peerKey struct{}
