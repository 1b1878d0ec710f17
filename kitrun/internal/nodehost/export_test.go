package nodehost

import "io"

// ReadFrame reads one frame and gives its kind.
func ReadFrame(r io.Reader) (kind string, err error) {
	f, err := readFrame(r)
	return f.Kind, err
}

// WriteFrame writes one message.
var WriteFrame = writeFrame

// ErrFrame is what no frame is.
var ErrFrame = errFrame
