// Package peer says who is at the other end of a unix socket: the gate and the
// control socket ask it before they answer.
//
// A uid alone proves nothing here. A daemon may run under stationd's own uid, and
// a socket in the file system is reached across network namespaces; so a peer
// also has to live in stationd's own network namespace (station §6.7), which no
// daemon does.
package peer

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer is the process that opened a connection, as the kernel noted it then.
type Peer struct {
	UID int
	PID int
}

// Of reads the peer of a unix connection.
func Of(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("ask for the peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("ask for the peer: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("ask for the peer: %w", credErr)
	}
	return Peer{UID: int(cred.Uid), PID: int(cred.Pid)}, nil
}

// Near reports whether the peer lives in this process's network namespace. What
// cannot be read is not near: the peer is gone, or hidden.
func (p Peer) Near() bool {
	if p.PID <= 0 {
		return false
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID))
	return err == nil && own == theirs
}
