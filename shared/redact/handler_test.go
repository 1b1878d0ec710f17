package redact_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

func logger(out *bytes.Buffer, json bool) *slog.Logger {
	return slog.New(redact.NewHandler(out, redact.HandlerOptions{Redactor: sample(redact.Options{}), JSON: json}))
}

type panics struct{}

func (*panics) Error() string { panic("no text") }

type pair struct {
	Token string `json:"token"`
	N     int    `json:"n"`
}

func TestHandler(t *testing.T) {
	var out bytes.Buffer
	log := logger(&out, true).With("boot", "b1").WithGroup("g").With("in", known)
	log.Info("use\x1b[31m "+skKey+"\r\nnext\u2028line",
		"err", fmt.Errorf("open /home/joe/x: %w", fault.New(fault.StoreBusy, "busy with password=x")),
		"api_token", "short",
		"api_tokens", 3,
		"value", pair{"abc", 1},
		"list", []string{"a", known},
		"secret", redact.NewSecret("hidden-value"),
		"kind", fault.StoreBusy, "named", fault.Code(known),
		"nil", error(nil),
		"panics", (*panics)(nil),
		"chan", make(chan int),
		"bad", "\xff",
		"took", time.Second,
		slog.Group("inner", "header", "Authorization: Bearer x"),
	)
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	delete(got, "time")
	want := map[string]any{
		"level": "INFO", "boot": "b1", "code": "store_busy",
		"msg": "use [31m [redacted]  next line",
		"g": map[string]any{
			"in": "[redacted]", "err": "open <home>/x: busy with password=[redacted]", "api_token": "[redacted]", "api_tokens": float64(3),
			"value": `{"token":"[redacted]","n":1}`, "list": `["a","[redacted]"]`, "secret": "[redacted]", "nil": "null",
			"kind": "store_busy", "named": "[redacted]",
			"panics": "(value panics when printed)", "chan": "chan int", "bad": "\ufffd", "took": float64(time.Second),
			"inner": map[string]any{"header": "Authorization: [redacted]"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

// No line is longer than MaxLine, every line is one line, and JSON stays JSON.
func TestHandler_Bounds(t *testing.T) {
	many := make([]any, 0, 2000)
	for i := range 1000 {
		many = append(many, fmt.Sprintf("key%d", i), strings.Repeat("é", 50))
	}
	for _, asJSON := range []bool{true, false} {
		for name, log := range map[string]func(*slog.Logger){
			"long message":  func(l *slog.Logger) { l.Info(strings.Repeat("m€", 50_000), "kept", "yes") },
			"long value":    func(l *slog.Logger) { l.Info("m", "v", strings.Repeat("\"\n", 50_000), "kept", "yes") },
			"many values":   func(l *slog.Logger) { l.Info("m", append([]any{"kept", "yes"}, many...)...) },
			"long key":      func(l *slog.Logger) { l.Info("m", strings.Repeat("k", 10_000), 1, "kept", "yes") },
			"long group":    func(l *slog.Logger) { l.WithGroup("g").Info("m", append([]any{"kept", "yes"}, many...)...) },
			"everything":    func(l *slog.Logger) { l.Info(strings.Repeat("m", 10_000), append([]any{"kept", "yes"}, many...)...) },
			"exploding":     func(l *slog.Logger) { l.Info(strings.Repeat("\u0001\\", 10_000), "kept", "yes") },
			"deeply nested": func(l *slog.Logger) { l.Info("m", nest(100), "kept", "yes") },
		} {
			var out bytes.Buffer
			log(logger(&out, asJSON))
			line := out.Bytes()
			if len(line) > redact.MaxLine || bytes.IndexByte(line, '\n') != len(line)-1 || len(line) < 50 {
				t.Errorf("%s: %d bytes: %.100q", name, len(line), line)
			}
			if asJSON && !json.Valid(line) {
				t.Errorf("%s: not JSON: %.100q", name, line)
			}
			if name != "long group" && !bytes.Contains(line, []byte("kept")) {
				t.Errorf("%s: the short attribute is lost: %.100q", name, line)
			}
		}
	}
}

func nest(n int) slog.Attr {
	a := slog.String("leaf", "x")
	for range n {
		a = slog.Group("g", a)
	}
	return a
}

func TestHandler_Level(t *testing.T) {
	h := redact.NewHandler(&bytes.Buffer{}, redact.HandlerOptions{Level: slog.LevelWarn})
	if h.Enabled(context.Background(), slog.LevelInfo) || !h.Enabled(context.Background(), slog.LevelError) {
		t.Error("level is not obeyed")
	}
}

type refuses struct{}

func (refuses) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestHandler_WriteError(t *testing.T) {
	h := redact.NewHandler(refuses{}, redact.HandlerOptions{})
	if err := h.Handle(context.Background(), slog.NewRecord(time.Time{}, 0, "m", 0)); err == nil {
		t.Error("no error")
	}
}

// What every slog handler must do.
func TestHandler_Contract(t *testing.T) {
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return redact.NewHandler(&out, redact.HandlerOptions{JSON: true})
	}, func(t *testing.T) map[string]any {
		var m map[string]any
		if err := json.Unmarshal(out.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	})
}
