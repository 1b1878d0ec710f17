package service

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"drawbridge/shared/redact"
)

// flushLimit is how long Close waits for lines that are not written yet.
const flushLimit = 500 * time.Millisecond

// LogOptions configures OpenLog.
type LogOptions struct {
	Program  string // attribute bin
	Stderr   io.Writer
	Level    string           // as -log-level; "" means info
	Format   string           // as -log-format; "" means auto
	Redactor *redact.Redactor // nil knows no values, and the home and state directories as paths
	Now      func() time.Time // nil means time.Now; names the daily files
}

// Log is a program's log. It never blocks the program: lines go through bounded
// queues, and when stderr is a pipe that nobody reads, what does not fit is
// dropped and counted.
type Log struct {
	*slog.Logger
	opts   LogOptions
	level  slog.Level
	sinks  []*sink
	daily  *daily
	common []slog.Attr
}

// OpenLog starts the log on stderr. Close flushes it.
func OpenLog(opts LogOptions) (*Log, error) {
	if opts.Level == "" {
		opts.Level = "info"
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Redactor == nil {
		opts.Redactor = redact.New(redact.Options{Paths: map[string]string{homeDir(): "<home>", StateRoot(): "<state>"}})
	}
	level, err := parseLevel(opts.Level)
	if err != nil {
		return nil, err
	}
	surviveBrokenPipe()
	l := &Log{opts: opts, level: level}
	l.common = []slog.Attr{slog.String("bin", opts.Program), slog.Int("pid", os.Getpid())}
	l.Logger = slog.New(l.handler(opts.Stderr, !l.text()).WithAttrs(l.common))
	return l, nil
}

// surviveBrokenPipe makes a write to a stderr that nobody reads any more an
// error. Left alone, the Go runtime ends the program by SIGPIPE: a sibling would
// die at its first line after the end of its bridge, in the middle of its drain.
// Catching, unlike ignoring, is not inherited by children.
func surviveBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// text reports whether stderr gets key=value lines instead of JSON.
func (l *Log) text() bool {
	switch l.opts.Format {
	case "text":
		return true
	case "json":
		return false
	}
	f, ok := l.opts.Stderr.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// handler puts a queue before out.
func (l *Log) handler(out io.Writer, json bool) slog.Handler {
	s := newSink(out)
	l.sinks = append(l.sinks, s)
	return redact.NewHandler(s, redact.HandlerOptions{Redactor: l.opts.Redactor, Level: l.level, JSON: json})
}

// Daily also writes the log as JSON lines to runtime-YYYY-MM-DD.ndjson in dir,
// which is made private, and removes such files when they are 14 days old
// (core §12). Call it once, before the Logger is handed out.
func (l *Log) Daily(dir string) error {
	d, err := openDaily(dir, l.opts.Now)
	if err != nil {
		return err
	}
	l.daily = d
	l.Logger = slog.New(tee{l.Handler(), l.handler(d, true).WithAttrs(l.common)})
	return nil
}

// Close writes what is queued, for half a second at most, and ends the log.
// Lines logged later are lost.
func (l *Log) Close() {
	deadline := time.Now().Add(flushLimit)
	for _, s := range l.sinks {
		s.close(time.Until(deadline))
	}
	if l.daily != nil {
		l.daily.close()
	}
}

// tee hands each record to two handlers.
type tee struct{ a, b slog.Handler }

func (t tee) Enabled(ctx context.Context, level slog.Level) bool {
	return t.a.Enabled(ctx, level) || t.b.Enabled(ctx, level)
}

func (t tee) Handle(ctx context.Context, r slog.Record) error {
	err := t.a.Handle(ctx, r.Clone())
	if err2 := t.b.Handle(ctx, r); err == nil {
		err = err2
	}
	return err
}

func (t tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tee{t.a.WithAttrs(attrs), t.b.WithAttrs(attrs)}
}

func (t tee) WithGroup(name string) slog.Handler {
	return tee{t.a.WithGroup(name), t.b.WithGroup(name)}
}
