package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"

	"drawbridge/shared/fault"
)

// Bounds of a log line.
const (
	MaxLine   = 4096 // bytes, the line end included
	maxString = 2048 // bytes of one text in a line; less when the line is too long
	minString = 64   // shortest cut before attributes are dropped
	cutMark   = "…"
)

// HandlerOptions configures NewHandler.
type HandlerOptions struct {
	Redactor *Redactor    // nil redacts patterns only
	Level    slog.Leveler // nil means info
	JSON     bool         // one JSON object a line, else key=value
}

// NewHandler gives the one slog handler of drawbridge. Every message, key and
// text in a record passes the redactor, control characters become spaces, an
// error with a fault code adds that code as "code", and no line is longer than
// MaxLine: long texts are cut, and attributes beyond the bound dropped with a
// mark. Each line is one Write to out.
func NewHandler(out io.Writer, opts HandlerOptions) slog.Handler {
	if opts.Redactor == nil {
		opts.Redactor = New(Options{})
	}
	if opts.Level == nil {
		opts.Level = slog.LevelInfo
	}
	return &handler{shared: &shared{out: out, opts: opts}}
}

// shared is what all handlers derived from one NewHandler have in common.
type shared struct {
	opts HandlerOptions
	mu   sync.Mutex // serialises lines
	out  io.Writer
}

// handler keeps the attributes and groups of With as they came; a record is
// assembled and cleaned as a whole when it is handled.
type handler struct {
	*shared
	scopes []scope
}

// scope is a group and what was added in it; the first has no name.
type scope struct {
	name  string
	attrs []slog.Attr
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.opts.Level.Level()
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	scopes := h.copyScopes()
	last := &scopes[len(scopes)-1]
	last.attrs = append(last.attrs, attrs...)
	return &handler{h.shared, scopes}
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.shared, append(h.copyScopes(), scope{name: name})}
}

// copyScopes copies deeply enough that a derived handler can append.
func (h *handler) copyScopes() []scope {
	if len(h.scopes) == 0 {
		return []scope{{}}
	}
	out := make([]scope, len(h.scopes), len(h.scopes)+1)
	for i, s := range h.scopes {
		out[i] = scope{s.name, append([]slog.Attr(nil), s.attrs...)}
	}
	return out
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	scopes := h.copyScopes()
	last := &scopes[len(scopes)-1]
	r.Attrs(func(a slog.Attr) bool { last.attrs = append(last.attrs, a); return true })
	attrs := last.attrs
	for i := len(scopes) - 1; i > 0; i-- {
		group := slog.Attr{Key: scopes[i].name, Value: slog.GroupValue(attrs...)}
		attrs = append(scopes[i-1].attrs, group)
	}
	c := &cleaner{red: h.opts.Redactor, json: h.opts.JSON}
	attrs = c.attrs(attrs, 0)
	if c.code != "" && !has(attrs, "code") {
		attrs = append(attrs, slog.String("code", string(c.code)))
	}
	message := c.text(r.Message)

	// Cut harder until the line fits; then drop attributes from the end.
	for limit := maxString; ; limit /= 2 {
		line, err := h.format(ctx, r, cut(message, limit), cutAll(attrs, limit))
		if err != nil {
			return err
		}
		if len(line) <= MaxLine {
			return h.write(line)
		}
		if limit <= minString {
			break
		}
	}
	for n := len(attrs) / 2; ; n /= 2 {
		kept := append(cutAll(attrs[:n], minString), slog.Bool("cut", true))
		line, err := h.format(ctx, r, cut(message, maxString), kept)
		if err != nil || len(line) <= MaxLine || n == 0 {
			if err == nil {
				err = h.write(line)
			}
			return err
		}
	}
}

// format lets the standard handlers write the cleaned record.
func (h *handler) format(ctx context.Context, r slog.Record, message string, attrs []slog.Attr) ([]byte, error) {
	var buf bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.Level(-128)}
	var std slog.Handler = slog.NewTextHandler(&buf, options)
	if h.opts.JSON {
		std = slog.NewJSONHandler(&buf, options)
	}
	clean := slog.NewRecord(r.Time, r.Level, message, 0)
	clean.AddAttrs(attrs...)
	err := std.Handle(ctx, clean)
	return buf.Bytes(), err
}

func (h *handler) write(line []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(line)
	return err
}

// maxGroups bounds how deep groups may nest in a record.
const maxGroups = 8

// cleaner makes values harmless: after it there are only plain kinds, and every
// text has passed the redactor.
type cleaner struct {
	red  *Redactor
	json bool
	code fault.Code
}

func (c *cleaner) attrs(in []slog.Attr, depth int) []slog.Attr {
	out := make([]slog.Attr, 0, len(in))
	for _, a := range in {
		value := a.Value.Resolve()
		if a.Key == "" && value.Kind() != slog.KindGroup {
			continue
		}
		key := c.text(a.Key)
		if secretKey(a.Key) && value.Kind() == slog.KindString {
			value = slog.StringValue(c.red.word)
		}
		out = append(out, slog.Attr{Key: key, Value: c.value(value, depth)})
	}
	return out
}

func (c *cleaner) value(v slog.Value, depth int) slog.Value {
	switch v.Kind() {
	case slog.KindString:
		return slog.StringValue(c.text(v.String()))
	case slog.KindGroup:
		if depth == maxGroups {
			return slog.StringValue("(nested too deep)")
		}
		return slog.GroupValue(c.attrs(v.Group(), depth+1)...)
	case slog.KindAny:
		return c.any(v.Any())
	}
	return v
}

func (c *cleaner) any(v any) slog.Value {
	if err, ok := v.(error); ok {
		if f, ok := fault.As(err); ok && c.code == "" {
			c.code = f.Code
		}
		return slog.StringValue(c.text(safely(err.Error)))
	}
	if s, ok := v.(fmt.Stringer); ok {
		return slog.StringValue(c.text(safely(s.String)))
	}
	if _, own := v.(json.Marshaler); !own && v != nil && reflect.TypeOf(v).Kind() == reflect.String {
		return slog.StringValue(c.text(reflect.ValueOf(v).String())) // a code: its JSON would be quoted twice
	}
	data, err := json.Marshal(v)
	if err != nil {
		return slog.StringValue(c.text(fmt.Sprintf("%T", v)))
	}
	clean, err := c.red.JSON(data)
	if err != nil {
		return slog.StringValue(c.text(string(data)))
	}
	return slog.StringValue(c.text(string(clean)))
}

// text redacts and leaves one line: control characters and line separators
// become spaces, bytes that are not UTF-8 become U+FFFD.
func (c *cleaner) text(s string) string {
	s = c.red.Text(s)
	return strings.Map(func(r rune) rune {
		if r < 0x20 || (r >= 0x7f && r <= 0x9f) || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// safely calls a method of a value that may be a nil pointer.
func safely(f func() string) (s string) {
	defer func() {
		if recover() != nil {
			s = "(value panics when printed)"
		}
	}()
	return f()
}

func has(attrs []slog.Attr, key string) bool {
	for _, a := range attrs {
		if a.Key == key {
			return true
		}
	}
	return false
}

func cutAll(attrs []slog.Attr, limit int) []slog.Attr {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		switch a.Value.Kind() {
		case slog.KindString:
			a.Value = slog.StringValue(cut(a.Value.String(), limit))
		case slog.KindGroup:
			a.Value = slog.GroupValue(cutAll(a.Value.Group(), limit)...)
		}
		a.Key = cut(a.Key, minString)
		out[i] = a
	}
	return out
}

// cut shortens s to at most limit bytes, never inside a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := limit - len(cutMark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cutMark
}
