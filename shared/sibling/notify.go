package sibling

import (
	"fmt"
	"net"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// maxDatagram bounds one sd_notify message.
const maxDatagram = 4096

// Notify is the socket that siblings get as NOTIFY_SOCKET. It is in the abstract
// namespace, so that a killed starter leaves no file behind; anybody may send to
// it, hence the kernel's word for the sender is what counts.
type Notify struct {
	conn *net.UnixConn
	name string // as in NOTIFY_SOCKET
}

// Message is what one datagram says.
type Message struct {
	Ready   bool
	Status  string // "": nothing about it
	Standby bool   // the status is that it waits for a lease
}

// OpenNotify opens a socket; starter is the name of the running program.
func OpenNotify(starter string) (*Notify, error) {
	name := "@drawbridge-" + starter + "-" + uuid.NewString()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("open notify socket: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		if err == nil {
			err = set
		}
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open notify socket: %w", err)
	}
	return &Notify{conn, name}, nil
}

// Close ends Listen.
func (n *Notify) Close() { n.conn.Close() }

// Listen reads until the socket is closed. hear gets the sender's pid.
func (n *Notify) Listen(hear func(pid int, m Message)) {
	buf, oob := make([]byte, maxDatagram), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		size, oobSize, _, _, err := n.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		if pid, ok := sender(oob[:oobSize]); ok {
			hear(pid, parseMessage(string(buf[:size])))
		}
	}
}

// sender gives the pid of a sender of our own user.
func sender(oob []byte) (int, bool) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, false
	}
	for i := range list {
		cred, err := unix.ParseUnixCredentials(&list[i])
		if err == nil {
			return int(cred.Pid), int(cred.Uid) == unix.Geteuid()
		}
	}
	return 0, false
}

func parseMessage(text string) Message {
	var m Message
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "READY":
			m.Ready = value == "1"
		case "STATUS":
			m.Status = value
			m.Standby = strings.HasPrefix(strings.ToLower(strings.ReplaceAll(value, "-", "")), "standby")
		}
	}
	return m
}
