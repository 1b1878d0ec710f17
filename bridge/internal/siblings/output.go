package siblings

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

// Bounds of what a sibling may say.
const (
	maxLine     = 4096             // bytes of one line; the rest of it is dropped
	burstLines  = 200              // lines in one burstWindow; more are counted and dropped
	burstWindow = 10 * time.Second // per sibling
)

// output forwards what a child writes on stdout and stderr to the log, line by
// line. The child never waits for it longer than the log takes.
type output struct {
	name string
	log  *slog.Logger
	from *os.File
	done chan struct{}

	since   time.Time
	lines   int
	dropped int
}

// openOutput gives the running output and the file for the child to write to.
func openOutput(name string, log *slog.Logger) (*output, *os.File, error) {
	from, into, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("open the output of %s: %w", name, err)
	}
	o := &output{name: name, log: log, from: from, done: make(chan struct{})}
	go o.run()
	return o, into, nil
}

// end reads on for at most wait and gives the rest up.
func (o *output) end(wait time.Duration) {
	timer := time.AfterFunc(wait, func() { o.from.Close() })
	<-o.done
	timer.Stop()
	o.from.Close()
}

func (o *output) run() {
	defer close(o.done)
	r := bufio.NewReaderSize(o.from, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			o.forward(string(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			if o.dropped > 0 {
				o.tellDropped()
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				o.log.Debug("read the output of a sibling", "sibling", o.name, "err", err)
			}
			return
		}
	}
}

func (o *output) forward(line string) {
	if now := time.Now(); now.Sub(o.since) >= burstWindow {
		if o.dropped > 0 {
			o.tellDropped()
		}
		o.since, o.lines = now, 0
	}
	if o.lines++; o.lines > burstLines {
		o.dropped++
		return
	}
	line = strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r <= 0x9f) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, "\uFFFD"))
	o.log.Log(context.Background(), levelOf(line), strings.TrimSpace(line), "sibling", o.name)
}

func (o *output) tellDropped() {
	o.log.Warn("lines of a sibling were dropped", "sibling", o.name, "lines", o.dropped)
	o.dropped = 0
}

// levelOf finds the level that a sibling's own logger wrote, as JSON or text.
func levelOf(line string) slog.Level {
	for level, marks := range map[slog.Level][2]string{
		slog.LevelError: {`"level":"ERROR"`, "level=ERROR"},
		slog.LevelWarn:  {`"level":"WARN"`, "level=WARN"},
		slog.LevelDebug: {`"level":"DEBUG"`, "level=DEBUG"},
	} {
		if strings.Contains(line, marks[0]) || strings.Contains(line, marks[1]) {
			return level
		}
	}
	return slog.LevelInfo
}
