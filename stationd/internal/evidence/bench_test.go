package evidence_test

import (
	"strings"
	"testing"
)

// What a daemon may print in a second without loss: redaction, framing and disk.
func BenchmarkLogs(b *testing.B) {
	line := "2026-01-02T03:04:05.678Z INFO request handled method=GET path=/v1/things/42 status=200 duration=12.5ms agent=\"Mozilla/5.0 (X11; Linux)\"\n"
	text := strings.Repeat(line, 64<<10/len(line))
	l := open(b, b.TempDir())
	b.SetBytes(int64(len(text)))
	var seq int64
	for b.Loop() {
		seq = put(b, l, "stdout", seq, text)
	}
}
