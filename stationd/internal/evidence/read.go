package evidence

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"drawbridge/shared/fault"
)

// reader goes through the files of a log once, also while it grows and while old files
// are removed.
type reader struct {
	name   string // of the file that is read, "" before the first
	offset int64  // in it
	text   int64  // bytes of text before the place, those that were dropped included
	broken bool   // the last text did not end its line
}

// read passes on what segments hold behind the place of the last call.
func (r *reader) read(ctx context.Context, segments []segment, emit func(stream string, text []byte) error) error {
	for _, s := range segments {
		if err := r.segment(ctx, s, emit); err != nil && !errors.Is(err, fs.ErrNotExist) { // removed meanwhile: the next says what is missing
			return err
		}
	}
	return nil
}

func (r *reader) segment(ctx context.Context, s segment, emit func(stream string, text []byte) error) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReader(io.NewSectionReader(f, 0, s.size))
	h, n, err := readHeader(in)
	if err != nil {
		return nil // it is being made
	}
	switch name := filepath.Base(s.path); {
	case name < r.name:
		return nil
	case name == r.name:
		n = r.offset
		in.Reset(io.NewSectionReader(f, n, s.size-n))
	default:
		if missing := h.Start - r.text; missing > 0 {
			if err := r.say(emit, fmt.Sprintf("[station: %d bytes are left out here]\n", missing)); err != nil {
				return err
			}
		}
		r.name, r.text = name, h.Start
	}
	r.offset = n
	for {
		fr, n, err := readFrame(in)
		if err != nil {
			return nil // the end, for now
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		r.offset += n
		if fr.lost > 0 {
			if err := r.say(emit, fmt.Sprintf("[station: %d bytes of %s were lost here]\n", fr.lost, fr.stream)); err != nil {
				return err
			}
			continue
		}
		if len(fr.text) == 0 {
			continue
		}
		r.text += int64(len(fr.text))
		r.broken = fr.text[len(fr.text)-1] != '\n'
		if err := emit(fr.stream, fr.text); err != nil {
			return err
		}
	}
}

// say passes on a line of the station's own.
func (r *reader) say(emit func(stream string, text []byte) error, line string) error {
	if r.broken {
		line = "\n" + line
		r.broken = false
	}
	return emit("", []byte(line))
}

// summarize reads a log to its end. Dropped is left out.
func summarize(segments []segment) (s LogSummary, err error) {
	sum := sha256.New()
	var r reader
	err = r.read(context.Background(), segments, func(stream string, text []byte) error {
		if stream != "" {
			s.Bytes += int64(len(text))
		}
		sum.Write(text)
		return nil
	})
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return s, err
}

// ReadLogs passes on the log of an attempt that has ended, as Logs.Read does.
// not_found when it was removed, or never was.
func ReadLogs(ctx context.Context, dir string, emit func(stream string, text []byte) error) error {
	segments, err := segmentsOf(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the log of an attempt: %w", err)
	}
	if len(segments) == 0 {
		return fault.New(fault.NotFound, "read the log of an attempt: there is none").
			WithHint("the daemon wrote nothing, or never ran, or ended more than %d days ago", int(LogKeep.Hours()/24))
	}
	var r reader
	return r.read(ctx, segments, emit)
}
