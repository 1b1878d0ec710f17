package codex

import (
	"context"
	"errors"
	"fmt"
	"io"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/agent/rule"
)

// Errors of reading a rollout. They end a search: nothing after them is trusted.
var (
	errMoved   = journal.ErrMoved
	errTooLong = journal.ErrTooLong
	errCorrupt = errors.New("the rollout has a bad record in the middle")
)

// line is one complete record and where it stands.
type line struct {
	start, end int64 // end is behind the newline
	data       []byte
}

// rollout is one open rollout, checked against a position.
type rollout struct {
	*journal.File
	path string
	id   agent.FileID
	size int64 // at the time of opening
}

// openRollout opens path as it is now.
func openRollout(path string) (*rollout, error) { return opened(journal.Open(path, RecordLimit)) }

// openAt opens the rollout of a position and proves that it is still the same
// file and that the position still stands behind a newline of it.
func openAt(p agent.Position) (*rollout, error) { return opened(journal.OpenAt(p, RecordLimit)) }

func opened(f *journal.File, err error) (*rollout, error) {
	if err != nil {
		return nil, err
	}
	return &rollout{f, f.Path, f.ID, f.Size}, nil
}

// scan gives the complete lines from offset on (journal.File.Scan).
func (r *rollout) scan(ctx context.Context, offset, limit int64, each func(line) error) (end int64, whole bool, err error) {
	return r.Scan(ctx, offset, limit, func(l journal.Line) error { return each(line{l.Start, l.End, l.Data}) })
}

// back gives the complete lines from the end towards the beginning
// (journal.File.Back).
func (r *rollout) back(ctx context.Context, limit int64, each func(line) error) (whole bool, err error) {
	return r.Back(ctx, limit, func(l journal.Line) error { return each(line{l.Start, l.End, l.Data}) })
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
