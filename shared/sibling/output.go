package sibling

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
// line: a record of its own logger as a record with its fields, anything else as
// text. The child never waits for it longer than the log takes.
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
	if r, ok := parseRecord(line); ok {
		if o.log.Enabled(context.Background(), r.Level) {
			r.AddAttrs(slog.String("sibling", o.name))
			_ = o.log.Handler().Handle(context.Background(), r) // as Logger does
		}
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

// parseRecord reads a line that a sibling's own logger wrote as JSON: its time,
// level, message and fields in their order. Its name and pid would stand beside
// those of the starter, so the one is left out and the other renamed.
func parseRecord(line string) (slog.Record, bool) {
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return slog.Record{}, false
	}
	var (
		at    time.Time
		level slog.Level
		msg   string
		attrs []slog.Attr
		known bool
	)
	for d.More() {
		key, err := d.Token()
		var v any
		if err == nil {
			err = d.Decode(&v)
		}
		if err != nil {
			return slog.Record{}, false
		}
		text, _ := v.(string)
		switch key {
		case slog.TimeKey:
			at, _ = time.Parse(time.RFC3339Nano, text) // zero: no time
		case slog.LevelKey:
			known = level.UnmarshalText([]byte(text)) == nil
		case slog.MessageKey:
			msg = text
		case "bin":
		case "pid":
			attrs = append(attrs, slog.Any("sibling_pid", number(v)))
		default:
			attrs = append(attrs, slog.Any(key.(string), number(v)))
		}
	}
	if _, err := d.Token(); err != nil || !known {
		return slog.Record{}, false
	}
	r := slog.NewRecord(at, level, msg, 0)
	r.AddAttrs(attrs...)
	return r, true
}

// number gives a number as one; everything else stays.
func number(v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	if i, err := n.Int64(); err == nil {
		return i
	}
	f, err := n.Float64()
	if err != nil {
		return n.String()
	}
	return f
}

// levelOf finds the level that a line names which is no record: a program of
// another version, or the runtime's last words.
func levelOf(line string) slog.Level {
	for level, mark := range map[slog.Level]string{
		slog.LevelError: "level=ERROR", slog.LevelWarn: "level=WARN", slog.LevelDebug: "level=DEBUG",
	} {
		if strings.Contains(line, mark) {
			return level
		}
	}
	return slog.LevelInfo
}
