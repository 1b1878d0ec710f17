// Package journal reads files to which an agent only ever appends whole lines:
// the rollouts of Codex, the transcripts of Claude Code.
//
// A place in such a file is an agent.Position. OpenAt opens the file there and
// proves that it is still the same file and that the place still stands behind a
// newline; Scan gives the lines from a place on, Back those from the end towards
// the beginning. What follows the last newline is "not yet" and never given. The
// package does not look into lines and writes nothing.
package journal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
)

// Errors of reading. They end a search: nothing after them is trusted.
var (
	ErrMoved   = errors.New("the file is gone, shorter or another one")
	ErrTooLong = errors.New("the file has a line over the limit")
	// ErrNotFile means that a path names no ordinary file.
	ErrNotFile = errors.New("not an ordinary file")
)

// Sizes of the pieces that are read: most looks need a few lines only.
const (
	firstChunk = 16 << 10
	maxChunk   = 1 << 20
	maxBuffer  = 256 << 10
)

// Line is one complete line and where it stands. Data is valid until the next one
// is given.
type Line struct {
	Start, End int64 // End is behind the newline
	Data       []byte
}

// File is one open journal.
type File struct {
	*os.File
	Path string
	ID   agent.FileID
	Size int64 // at the time of opening: nothing behind it is read

	limit int // longest line, in bytes
}

// Open opens path as it is now. A line over limit bytes is ErrTooLong.
func Open(path string, limit int) (*File, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &File{File: f, Path: path, ID: ID(fi), Size: fi.Size(), limit: limit}, nil
}

// OpenAt opens the file of a position. ErrMoved means that the position is not
// one in that file any more; any other error says nothing of the file.
func OpenAt(p agent.Position, limit int) (*File, error) {
	f, err := Open(p.Path, limit)
	for _, no := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, ErrNotFile} {
		if errors.Is(err, no) {
			return nil, fmt.Errorf("%w: %w", ErrMoved, err)
		}
	}
	if err != nil { // no descriptor left, no permission
		return nil, err
	}
	if f.ID != p.File || f.Size < p.Offset || p.Offset < 0 {
		f.Close()
		return nil, ErrMoved
	}
	if p.Offset > 0 {
		var b [1]byte
		if _, err := f.ReadAt(b[:], p.Offset-1); err != nil || b[0] != '\n' {
			f.Close()
			return nil, ErrMoved
		}
	}
	return f, nil
}

// OpenFile opens an ordinary file for reading and nothing else.
func OpenFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", filepath.Base(path), ErrNotFile)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ID names the file that fi is of.
func ID(fi fs.FileInfo) agent.FileID {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return agent.FileID{Dev: st.Dev, Ino: st.Ino}
	}
	return agent.FileID{}
}

// Scan gives the complete lines from offset on, at most limit bytes of them, until
// each returns an error (io.EOF ends without one). It returns how far it came:
// behind the last line that each took; whole is false where limit cut it short.
func (f *File) Scan(ctx context.Context, offset, limit int64, each func(Line) error) (end int64, whole bool, err error) {
	end = offset
	room := limit
	// No larger than what is there: most readings are of a few new lines.
	src := bufio.NewReaderSize(io.NewSectionReader(f.File, offset, f.Size-offset), int(min(max(f.Size-offset, 4<<10), maxBuffer)))
	var long []byte // a line that is longer than the buffer
	for n := 0; ; n++ {
		if n&0xff == 0 && ctx.Err() != nil {
			return end, false, ctx.Err()
		}
		part, err := src.ReadSlice('\n')
		if len(long)+len(part) > f.limit {
			return end, false, ErrTooLong
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			continue
		}
		if errors.Is(err, io.EOF) {
			return end, true, nil
		}
		if err != nil {
			return end, false, err
		}
		data := part
		if len(long) > 0 {
			data = append(long, part...)
			long = nil
		}
		if room -= int64(len(data)); room < 0 {
			return end, false, nil
		}
		next := end + int64(len(data))
		err = each(Line{end, next, data[:len(data)-1]})
		if errors.Is(err, io.EOF) {
			return end, true, nil
		}
		if err != nil {
			return end, false, err
		}
		end = next
	}
}

// Back gives the complete lines from the end of the file towards its beginning,
// until each returns an error (io.EOF ends without one) or limit bytes are read.
// whole is true where the beginning was reached or each was satisfied.
func (f *File) Back(ctx context.Context, limit int64, each func(Line) error) (whole bool, err error) {
	var (
		tail  []byte // bytes from pos on that are not given yet; ends with the last newline
		pos   = f.Size
		first = true
		chunk = int64(firstChunk)
	)
	for pos > 0 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n := min(chunk, pos)
		if chunk *= 2; chunk > maxChunk {
			chunk = maxChunk
		}
		if f.Size-pos >= limit {
			return false, nil
		}
		buf := make([]byte, n, n+int64(len(tail)))
		if _, err := f.ReadAt(buf, pos-n); errors.Is(err, io.EOF) {
			return false, ErrMoved
		} else if err != nil {
			return false, err
		}
		pos -= n
		tail = append(buf, tail...)
		if first { // drop what follows the last newline
			cut := bytes.LastIndexByte(tail, '\n')
			if cut < 0 {
				if len(tail) > f.limit {
					return false, ErrTooLong
				}
				continue
			}
			tail, first = tail[:cut+1], false
		}
		for {
			at := bytes.LastIndexByte(tail[:len(tail)-1], '\n') + 1
			if at == 0 && pos > 0 {
				break
			}
			l := Line{pos + int64(at), pos + int64(len(tail)), tail[at : len(tail)-1]}
			switch err := each(l); {
			case errors.Is(err, io.EOF):
				return true, nil
			case err != nil:
				return false, err
			}
			if tail = tail[:at]; len(tail) == 0 {
				break
			}
		}
		if len(tail) > f.limit {
			return false, ErrTooLong
		}
	}
	return true, nil
}

// End gives the offset behind the last newline.
func (f *File) End(ctx context.Context) (int64, error) {
	var end int64
	_, err := f.Back(ctx, 2*int64(f.limit), func(l Line) error {
		end = l.End
		return io.EOF
	})
	return end, err
}
