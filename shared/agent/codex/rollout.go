package codex

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

// Errors of reading a rollout. They end a search: nothing after them is trusted.
var (
	errMoved   = errors.New("the rollout is gone, shorter or another file")
	errCorrupt = errors.New("the rollout has a bad record in the middle")
	errTooLong = errors.New("the rollout has a record over 16 MiB")
)

// Sizes of the pieces that are read backwards: most looks need the last lines only.
const (
	firstChunk = 16 << 10
	maxChunk   = 1 << 20
)

// line is one complete record and where it stands.
type line struct {
	start, end int64 // end is behind the newline
	data       []byte
}

// rollout is one open rollout, checked against a position.
type rollout struct {
	*os.File
	path string
	id   agent.FileID
	size int64 // at the time of opening
}

// openRollout opens path as it is now.
func openRollout(path string) (*rollout, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &rollout{f, path, fileID(fi), fi.Size()}, nil
}

// openAt opens the rollout of a position and proves that it is still the same
// file and that the position still stands behind a newline of it.
func openAt(p agent.Position) (*rollout, error) {
	r, err := openRollout(p.Path)
	for _, no := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, errNotFile} {
		if errors.Is(err, no) {
			return nil, fmt.Errorf("%w: %w", errMoved, err)
		}
	}
	if err != nil { // no descriptor left, no permission: says nothing of the file
		return nil, err
	}
	if r.id != p.File || r.size < p.Offset || p.Offset < 0 {
		r.Close()
		return nil, errMoved
	}
	if p.Offset > 0 {
		var b [1]byte
		if _, err := r.ReadAt(b[:], p.Offset-1); err != nil || b[0] != '\n' {
			r.Close()
			return nil, errMoved
		}
	}
	return r, nil
}

// scan gives the complete lines from offset on, at most limit bytes of them, until
// each returns an error (io.EOF ends without one). It returns how far it came:
// behind the last line that each took; whole is false where limit cut it short.
// What follows the last newline is "not yet".
func (r *rollout) scan(ctx context.Context, offset, limit int64, each func(line) error) (end int64, whole bool, err error) {
	end = offset
	room := limit
	// No larger than what is there: most readings are of a few new records.
	src := bufio.NewReaderSize(io.NewSectionReader(r.File, offset, r.size-offset), int(min(max(r.size-offset, 4<<10), 256<<10)))
	var long []byte // a line that is longer than the buffer
	for n := 0; ; n++ {
		if n&0xff == 0 && ctx.Err() != nil {
			return end, false, ctx.Err()
		}
		part, err := src.ReadSlice('\n')
		if len(long)+len(part) > RecordLimit {
			return end, false, errTooLong
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
		err = each(line{end, next, data[:len(data)-1]})
		if errors.Is(err, io.EOF) {
			return end, true, nil
		}
		if err != nil {
			return end, false, err
		}
		end = next
	}
}

// record decodes one line; a line that is none is corruption, since scan gives
// complete lines only.
func record(f *rule.File, l line) (rule.Record, error) {
	rec, err := f.Record(l.data)
	if err != nil {
		return rec, fmt.Errorf("%w at byte %d", errCorrupt, l.start)
	}
	return rec, nil
}

// back gives the complete lines from the end of the file towards its beginning,
// until each returns an error (io.EOF ends without one) or limit bytes are read.
// whole is true where the beginning was reached or each was satisfied.
func (r *rollout) back(ctx context.Context, limit int64, each func(line) error) (whole bool, err error) {
	var (
		tail  []byte // bytes from pos on that are not given yet; ends with the last newline
		pos   = r.size
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
		if r.size-pos >= limit {
			return false, nil
		}
		buf := make([]byte, n, n+int64(len(tail)))
		if _, err := r.ReadAt(buf, pos-n); errors.Is(err, io.EOF) {
			return false, errMoved
		} else if err != nil {
			return false, err
		}
		pos -= n
		tail = append(buf, tail...)
		if first { // drop what follows the last newline
			cut := bytes.LastIndexByte(tail, '\n')
			if cut < 0 {
				if len(tail) > RecordLimit {
					return false, errTooLong
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
			l := line{pos + int64(at), pos + int64(len(tail)), tail[at : len(tail)-1]}
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
		if len(tail) > RecordLimit {
			return false, errTooLong
		}
	}
	return true, nil
}

// position gives the present end of a rollout: behind its last newline.
func position(ctx context.Context, f *rule.File, path, thread string) (agent.Position, error) {
	r, err := openRollout(path)
	if err != nil {
		return agent.Position{}, err
	}
	defer r.Close()
	p := agent.Position{Path: path, File: r.id, ThreadID: thread, Ordinal: -1}
	_, err = r.back(ctx, 2*RecordLimit, func(l line) error {
		rec, err := record(f, l)
		if err != nil {
			return err
		}
		p.Offset, p.Ordinal = l.end, rec.Ordinal
		return io.EOF
	})
	return p, err
}
