package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	aloneRounds = 40
	manyRounds  = 50
	manyBatch   = 10 // turns that end before their panes get new ones

	callbackMedian = 100.0 // ms
	callbackSlow   = 300.0 // ms, of 99 in a hundred
)

// callbackTime takes the time from the write of a completion record to the start
// of the Host's executable, with one turn watched and with many. The baseline is
// a process that waits on inotify and starts the same executable.
func callbackTime(ctx context.Context, s *stand) ([]Figure, error) {
	if err := s.grow(ctx, 1); err != nil {
		return nil, err
	}
	bare, err := newReflex(s)
	if err != nil {
		return nil, err
	}
	defer bare.close()
	ours, base, err := s.oneByOne(ctx, bare, s.panes[:1], aloneRounds, 1)
	if err != nil {
		return nil, err
	}
	out := callbackFigures("callback_1", ours, base)

	if err := s.grow(ctx, manyPanes); err != nil {
		return nil, err
	}
	panes := s.panes[:manyPanes]
	if ours, base, err = s.oneByOne(ctx, bare, panes, manyRounds, manyBatch); err != nil {
		return nil, err
	}
	return append(out, callbackFigures("callback_50", ours, base)...), nil
}

func callbackFigures(name string, ours, base samples) []Figure {
	return []Figure{
		newFigure(name+"_median", "ms", len(ours), ours.median(), base.median()).oursMost(callbackMedian),
		newFigure(name+"_p99", "ms", len(ours), ours.quantile(0.99), base.quantile(0.99)).oursMost(callbackSlow),
	}
}

// oneByOne gives all panes a turn and lets one end after the other, batch of them
// before new turns are given, so that nearly all are watched all the time.
func (s *stand) oneByOne(ctx context.Context, bare *reflex, panes []*pane, rounds, batch int) (ours, base samples, err error) {
	if err := s.occupy(ctx, panes); err != nil {
		return nil, nil, err
	}
	for len(ours) < rounds {
		ended := panes[:batch]
		panes = append(panes[batch:len(panes):len(panes)], ended...)
		for _, p := range ended {
			if err := s.settled(ctx, []*pane{p}); err != nil {
				return nil, nil, err
			}
			took, err := s.callbackTook(p.word)
			if err != nil {
				return nil, nil, err
			}
			ours = append(ours, took)
			if took, err = bare.once(ctx, s.newWord()); err != nil {
				return nil, nil, err
			}
			base = append(base, took)
		}
		if err := s.occupy(ctx, ended); err != nil {
			return nil, nil, err
		}
	}
	return ours, base, s.settled(ctx, panes)
}

// callbackTook gives the milliseconds between the two stamps of a turn.
func (s *stand) callbackTook(word string) (float64, error) {
	ended, err := stamps(s.ends)
	if err != nil {
		return 0, err
	}
	began, err := stamps(s.delivered())
	if err != nil {
		return 0, err
	}
	if ended[word] == 0 || began[word] == 0 {
		return 0, fmt.Errorf("the turn %s has no two stamps", word)
	}
	return float64(began[word]-ended[word]) / 1e6, nil
}

// A reflex is the baseline: a record is written, inotify tells, a process starts.
type reflex struct {
	dir    string
	exe    string
	record *os.File
	notify *os.File
}

func newReflex(s *stand) (*reflex, error) {
	r := &reflex{dir: s.below("reflex"), exe: s.opts.Stamp}
	watched := filepath.Join(r.dir, "watched")
	if err := os.MkdirAll(watched, 0o700); err != nil {
		return nil, err
	}
	var err error
	if r.record, err = os.Create(filepath.Join(watched, "record.jsonl")); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	r.notify = os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, watched, unix.IN_MODIFY); err != nil {
		return nil, fmt.Errorf("watch %s: %w", watched, err)
	}
	return r, nil
}

func (r *reflex) close() {
	_ = errors.Join(r.record.Close(), r.notify.Close()) // nothing is lost
}

// once writes one record and gives the milliseconds to the start of the
// executable.
func (r *reflex) once(ctx context.Context, word string) (float64, error) {
	started := make(chan error, 1)
	go func() {
		buf := make([]byte, 64*(int(unsafe.Sizeof(unix.InotifyEvent{}))+unix.NAME_MAX+1))
		if _, err := r.notify.Read(buf); err != nil {
			started <- err
			return
		}
		cmd := exec.CommandContext(ctx, r.exe, "-dir", r.dir)
		cmd.Env, cmd.Stdin = []string{}, strings.NewReader(word)
		started <- cmd.Run()
	}()
	at, err := monotonic()
	if err != nil {
		return 0, err
	}
	if _, err := r.record.WriteString(strconv.FormatInt(at, 10) + "\n"); err != nil {
		return 0, err
	}
	if err := <-started; err != nil {
		return 0, fmt.Errorf("start the executable: %w", err)
	}
	seen, err := stamps(filepath.Join(r.dir, stampFile))
	if err != nil {
		return 0, err
	}
	return float64(seen[word]-at) / 1e6, nil
}

func monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return ts.Nano(), nil
}
