package nodehost

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Kinds of frames (kit §10).
const (
	kindReady         = "ready"
	kindCall          = "call"
	kindAbort         = "abort"
	kindCallbackReply = "callback-reply"
	kindResult        = "result"
	kindError         = "error"

	kindStart    = "start"
	kindReply    = "reply"
	kindEvent    = "event"
	kindCallback = "callback"
	kindCancel   = "cancel"
	kindAck      = "outcome-ack"
)

// protocol is the number that a ready frame must name.
const protocol = 1

// frame is one message of either side; which members count follows from Kind.
type frame struct {
	Kind       string          `json:"kind"`
	Protocol   int             `json:"protocol,omitempty"`
	Node       string          `json:"node,omitempty"`
	ID         int64           `json:"id,omitempty"`
	Method     string          `json:"method,omitempty"`
	Params     json.RawMessage `json:"params,omitempty"`
	DeliveryID string          `json:"deliveryId,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Message    string          `json:"message,omitempty"`
	Error      *remoteError    `json:"error,omitempty"`
	Module     string          `json:"module,omitempty"`
	Export     string          `json:"export,omitempty"`
	Args       any             `json:"args,omitempty"`
	Handle     string          `json:"handle,omitempty"`
}

// remoteError is an error as it crosses.
type remoteError struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"` // detail of a refusal
}

// event is a push; its ids are words, those of calls numbers.
type event struct {
	Kind  string `json:"kind"`
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Row   any    `json:"row"`
}

// errFrame means that what came is no frame.
var errFrame = errors.New("invalid frame")

// readFrame reads one frame. io.EOF means that the other side closed between two.
func readFrame(r io.Reader) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: cut in its length", errFrame)
		}
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return frame{}, fmt.Errorf("%w: %d bytes, more than %d", errFrame, n, MaxFrame)
	}
	// Grows with what really comes: the length alone reserves nothing.
	body, err := readBody(r, int(n))
	if err != nil {
		return frame{}, err
	}
	var f frame
	if err := json.Unmarshal(body, &f); err != nil {
		return frame{}, fmt.Errorf("%w: %v", errFrame, syntax(err))
	}
	return f, nil
}

// readBody reads n bytes in steps.
func readBody(r io.Reader, n int) ([]byte, error) {
	const step = 1 << 20
	body := make([]byte, 0, min(n, step))
	for len(body) < n {
		at := len(body)
		end := min(n, max(at+step, 2*at))
		body = append(body, make([]byte, end-at)...)
		if m, err := io.ReadFull(r, body[at:]); err != nil {
			return nil, fmt.Errorf("%w: cut after %d of %d bytes", errFrame, at+m, n)
		}
	}
	return body, nil
}

// syntax keeps of an error what holds none of the bytes.
func syntax(err error) string {
	var s *json.SyntaxError
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &s):
		return fmt.Sprintf("no JSON at byte %d", s.Offset)
	case errors.As(err, &t):
		return fmt.Sprintf("its %s is no %v", t.Field, t.Type)
	}
	return "no JSON object"
}

// writeFrame writes one message in one piece.
func writeFrame(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("a message to the kit has %d bytes, more than %d", len(body), MaxFrame)
	}
	data := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(data, body...))
	return err
}

// socketpair gives our end as a connection and the child's as a file.
func socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(fds[0]), "kit")
	theirs := os.NewFile(uintptr(fds[1]), "kit")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}
