package sibling_test

import (
	"bytes"
	"log/slog"
	"testing"

	"drawbridge/shared/sibling"
)

// A record of a sibling's own logger keeps its time, level and fields; whatever
// else it prints is a message.
func TestOutput_Forward(t *testing.T) {
	for _, tc := range []struct{ name, line, want string }{
		{
			"a record", `{"time":"2026-03-04T05:06:07.008Z","level":"WARN","msg":"lease lost","bin":"watchd","pid":4711,"lease":"monitor/x","epoch":3,"late":1.5,"ok":true}` + "\n",
			`{"time":"2026-03-04T05:06:07.008Z","level":"WARN","msg":"lease lost","bin":"bridge","sibling_pid":4711,"lease":"monitor/x","epoch":3,"late":1.5,"ok":true,"sibling":"watchd"}`,
		},
		{
			"a group and a list", `{"level":"ERROR","msg":"m","at":{"a":"b"},"all":["x"]}`,
			`{"level":"ERROR","msg":"m","bin":"bridge","at":{"a":"b"},"all":["x"],"sibling":"watchd"}`,
		},
		{"below the level", `{"level":"DEBUG","msg":"m"}`, ""},
		{"no level", `{"msg":"m"}`, `{"level":"INFO","msg":"{\"msg\":\"m\"}","bin":"bridge","sibling":"watchd"}`},
		{"cut", `{"level":"WARN","msg":"m`, `{"level":"INFO","msg":"{\"level\":\"WARN\",\"msg\":\"m","bin":"bridge","sibling":"watchd"}`},
		{"text", "panic: level=ERROR\x1b[31m of it", `{"level":"ERROR","msg":"panic: level=ERROR [31m of it","bin":"bridge","sibling":"watchd"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey && a.Value.Time().Year() != 2026 || a.Key == slog.TimeKey && a.Value.Time().Month() != 3 {
					return slog.Attr{} // now
				}
				return a
			}})).With("bin", "bridge")
			sibling.Forward("watchd", log, tc.line)
			if got := string(bytes.TrimSpace(out.Bytes())); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
